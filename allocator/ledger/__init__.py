"""The node's accounting: who holds which units of which card, and where bound pods will go.

`facts` is what is known, one plain value. Everything else is a pure function on it: `charges` (what every
card is charged with), `places` (where pods without devices will be served), `release` (when a charge ends)
and `choice` (what the kubelet is told). `ledger` takes what happens and keeps the facts.
"""

from allocator.ledger.choice import Ask
from allocator.ledger.facts import BookEntry, Grant, Mark, Pod
from allocator.ledger.ledger import Ledger

__all__ = ["Ask", "BookEntry", "Grant", "Ledger", "Mark", "Pod"]
