"""The node's accounting: who holds which units of which card, and where bound pods will go.

`facts` is what is known, one plain value: `pods` has that of each pod, `settled` adds up those of which
nothing is under way. Everything else is a pure function on it: `charges` (what every card is charged with),
`places` (where pods without devices will be served), `release` (when a charge ends) and `choice` (what the
kubelet is told). `ledger` takes what happens and keeps the facts.
"""

from allocator.ledger.choice import Ask
from allocator.ledger.ledger import Ledger
from allocator.ledger.pods import BookEntry, Grant, Mark, Pod

__all__ = ["Ask", "BookEntry", "Grant", "Ledger", "Mark", "Pod"]
