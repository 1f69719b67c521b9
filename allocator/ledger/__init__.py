"""The ledger: which pod has which units of which card of a node, and which device IDs the kubelet gets.

- `accounts` is what is known, one plain value; `pods` has the account of each pod and its states.
- `charges`, `release` and `choice` are pure functions on it: what every card is charged with, when a charge
  ends, and which IDs a container gets.
- `ledger` records what happens and keeps the accounts.
"""

from allocator.ledger.choice import AllocationRequest
from allocator.ledger.ledger import Ledger
from allocator.ledger.pods import CheckpointEntry, Pod, PodAccount

__all__ = ["AllocationRequest", "CheckpointEntry", "Ledger", "Pod", "PodAccount"]
