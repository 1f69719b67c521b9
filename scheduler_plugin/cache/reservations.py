"""Cards that are kept for pods on whose behalf others were evicted.

No claim in the sense of `rules`: nothing is bound, the node knows nothing of it, and a pod of larger
priority may have the cards all the same. So a reservation is not in the arrays but is put into them for as
long as a pod that has to respect it is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from scheduler_plugin.cache.cards import current_positions
from scheduler_plugin.cache.nodes import NodeArrays


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room on one node for one pod.

    Attributes:
        uid: The pod.
        priority: Its priority; it is kept from pods of the same and of smaller ones.
        node: The node.
        units: By card position in `uuids`. They count from the first eviction on, while the victims still
            have theirs.
        uuids: The node's cards by position when the reservation was made; empty where it published none.
    """

    uid: str
    priority: int
    node: str
    units: Mapping[int, int]
    uuids: tuple[str, ...] = ()

    def units_now(self, uuids: Sequence[str]) -> dict[int, int]:
        """Count the units by card position as of now, without those of cards that are gone.

        Args:
            uuids: The node's cards by position now; empty where it publishes none.
        """
        positions = current_positions(self.units, self.uuids, uuids)
        return {now: self.units[then] for then, now in positions.items()}


class Reservations:
    """All reservations, by pod UID."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def of(self, uid: str) -> Reservation | None:
        """A pod's reservation."""
        return self._by_uid.get(uid)

    def put(self, reservation: Reservation) -> None:
        """Keep room for a pod; replaces what was kept for it before."""
        self._by_uid[reservation.uid] = reservation

    def drop(self, uid: str) -> None:
        """End a pod's reservation, if there is one."""
        self._by_uid.pop(uid, None)

    @contextmanager
    def kept_from(self, nodes: NodeArrays, uid: str, priority: int) -> Iterator[None]:
        """Show a pod the arrays as it has to see them; let nothing else change them meanwhile.

        Args:
            nodes: The arrays.
            uid: The pod.
            priority: Its priority.
        """
        charges: dict[int, dict[int, int]] = {}
        for each in self._by_uid.values():
            row = nodes.rows.get(each.node)
            if row is not None and each.uid != uid and each.priority >= priority:
                sums = charges.setdefault(row, {})
                for card, units in each.units_now(nodes.uuids[row]).items():
                    sums[card] = sums.get(card, 0) + units
        if not charges:
            yield
            return
        with nodes.charged(charges):
            yield
