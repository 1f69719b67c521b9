"""Cards that are reserved for pods for which others were evicted, or whose PodGroup is being placed.

A reservation is not a charge: nothing is bound, the node does not know of it, and a pod of larger priority
may take the cards of a preemptor. So it is not part of the arrays; it is added to them while a pod that must
respect it is tried.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final

from allocator.cards import CardAmounts, add_amounts
from scheduler_plugin.cache.cards import find_current_positions
from scheduler_plugin.cache.node_arrays import NodeArrays

ABOVE_ALL_PRIORITIES: Final = 1 << 31
"""The priority of a reservation that every other pod respects: a pod's priority has 32 bits."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Cards of one node that are kept free for one pod.

    It is for a pod that kube-scheduler is to place, and filter respects it for pods of no larger priority;
    for a pod that the queue has not admitted yet there is a `QueueReservation`.

    Attributes:
        priority: The pod's priority; pods of the same or a smaller priority must respect the
            reservation.
        amounts: What is kept free by card position in `uuids`. It counts from the first eviction on, while
            the victims still have their own.
        uuids: The node's cards by position when the reservation was made; empty if it published none.
    """

    uid: str
    priority: int
    node: str
    amounts: Mapping[int, CardAmounts]
    uuids: tuple[str, ...] = ()

    def get_current_amounts(self, uuids: Sequence[str]) -> dict[int, CardAmounts]:
        """Return what is kept free by current card position, without cards that no longer exist."""
        positions = find_current_positions(self.amounts, self.uuids, uuids)
        return {now: self.amounts[then] for then, now in positions.items()}


class Reservations:
    """The cards reserved for preemptors, by pod UID, and those held for pods of PodGroups.

    Attributes:
        held: Cards held by UID of the pod and node; see `group_holds.GroupHolds`, which alone changes it.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], Reservation] = {}
        self._by_uid: dict[str, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get_reservation(self, uid: str) -> Reservation | None:
        return self._by_uid.get(uid)

    def add_reservation(self, reservation: Reservation) -> None:
        """Reserve cards for a pod, in place of those reserved for it before."""
        self._by_uid[reservation.uid] = reservation

    def remove_reservation(self, uid: str) -> None:
        self._by_uid.pop(uid, None)

    @contextmanager
    def charged_against(
        self, nodes: NodeArrays, uid: str, priority: int, planned: Iterable[Reservation] = ()
    ) -> Iterator[None]:
        """Charge the reservations that a pod must respect to the arrays, while the context is open.

        Args:
            planned: Reservations that would be made before one for this pod.
        """
        charges: dict[int, dict[int, CardAmounts]] = {}
        for each in chain(self._by_uid.values(), self.held.values(), planned):
            row = nodes.rows.get(each.node)
            if (each.uid, each.node) in self.held and each is not self.held[each.uid, each.node]:
                continue  # a preemptor has passed filter: the same cards would count twice
            if row is not None and each.uid != uid and each.priority >= priority:
                uuids, on_node = nodes.uuids[row], charges.setdefault(row, {})
                add_amounts(on_node, each.get_current_amounts(uuids))
        if not charges:
            yield
            return
        with nodes.with_charges(charges):
            yield
