"""The node's accounting: who holds which units of which card, and what the kubelet is told.

`facts` is what is known, one plain value; `pods` has that of each pod. Everything else is a pure function on
it: `charges` (what every card is charged with), `release` (when a charge ends) and `choice` (what the kubelet
is told). `ledger` takes what happens and keeps the facts.
"""

from allocator.ledger.choice import Ask
from allocator.ledger.ledger import Ledger
from allocator.ledger.pods import BookEntry, Pod, PodFacts

__all__ = ["Ask", "BookEntry", "Ledger", "Pod", "PodFacts"]
