"""Reservations: cards, cpu and host memory kept free until pods are admitted. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from scheduler_plugin.cache.amounts import NOTHING, Amounts, sum_amounts
from scheduler_plugin.cache.cards import find_current_positions


@dataclass(frozen=True, slots=True)
class QueueReservation:
    """Cards and host resources that are kept free for one pod.

    It is for a pod that the queue has not admitted yet, and only the queue respects it; for a pod that
    kube-scheduler is to place there is a `Reservation` of the scheduler's cache.

    Attributes:
        workload_uid: UID of the workload that waits: the pod's, or its gang's.
        node: Name of the node, not its row, because rows are reused.
        cards: Cards of the node, by position in `uuids`. Pods of the workload may share them; other pods get
            none of them.
        amounts: What the pod asks for besides. Sums of GPU memory are left out: they are free when the cards
            are.
        uuids: The node's cards by position when this was decided; empty if it published none.
    """

    workload_uid: str
    node: str
    cards: tuple[int, ...]
    amounts: Amounts = NOTHING
    uuids: tuple[str, ...] = ()

    def get_positions(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """Return the current positions of the cards, without those that no longer exist."""
        return tuple(find_current_positions(self.cards, self.uuids, uuids).values())


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """Reservations of some workloads on one node; see `QueueReservation`.

    Attributes:
        cards: By position now.
    """

    cards: frozenset[int] = frozenset()
    amounts: Amounts = NOTHING


NO_RESERVATIONS = NodeReservations()


class QueueReservations:
    """All reservations, by the UID of the pod that they are for.

    Attributes:
        version: +1 on every change.
    """

    def __init__(self) -> None:
        self._by_pod: dict[str, QueueReservation] = {}
        self._by_node: dict[str, dict[str, QueueReservation]] = {}
        self.version = 0

    def __bool__(self) -> bool:
        return bool(self._by_pod)

    def get_reservation(self, uid: str) -> QueueReservation | None:
        return self._by_pod.get(uid)

    def add_reservation(self, uid: str, reservation: QueueReservation) -> None:
        self._remove(uid)
        self._by_pod[uid] = reservation
        self._by_node.setdefault(reservation.node, {})[uid] = reservation
        self.version += 1

    def remove_workload(self, workload_uid: str) -> None:
        for uid in [
            uid for uid, reservation in self._by_pod.items() if reservation.workload_uid == workload_uid
        ]:
            self._remove(uid)

    @property
    def workload_uids(self) -> tuple[str, ...]:
        """UIDs of the workloads with reservations, the oldest reservation first."""
        return tuple(dict.fromkeys(reservation.workload_uid for reservation in self._by_pod.values()))

    def get_by_pod(self, workload_uid: str) -> dict[str, QueueReservation]:
        return {
            uid: reservation
            for uid, reservation in self._by_pod.items()
            if reservation.workload_uid == workload_uid
        }

    @property
    def node_names(self) -> Collection[str]:
        return self._by_node.keys()

    def has_on_node(self, workload_uid: str, node: str) -> bool:
        return any(
            reservation.workload_uid == workload_uid for reservation in self._by_node.get(node, {}).values()
        )

    def sum_others(self, workload_uid: str, node: str, uuids: Sequence[str]) -> NodeReservations:
        """Sum the reservations of other workloads on a node."""
        others = [
            reservation
            for reservation in self._by_node.get(node, {}).values()
            if reservation.workload_uid != workload_uid
        ]
        if not others:
            return NO_RESERVATIONS
        return NodeReservations(
            frozenset(card for reservation in others for card in reservation.get_positions(uuids)),
            sum_amounts(reservation.amounts for reservation in others),
        )

    def sum_ahead(self, workload_uid: str, node: str, uuids: Sequence[str]) -> NodeReservations:
        """Sum the reservations that a workload must respect on a node; for arguments see `sum_others`.

        Cards are reserved for one workload each. Cpu and memory can serve any pod, so they go to the oldest
        reservation first: if every workload respected all others, none would start.
        """
        cards = self.sum_others(workload_uid, node, uuids).cards
        here = self._by_node.get(node, {}).values()
        ahead = takewhile(lambda reservation: reservation.workload_uid != workload_uid, here)
        return NodeReservations(cards, sum_amounts(reservation.amounts for reservation in ahead))

    def _remove(self, uid: str) -> None:
        reservation = self._by_pod.pop(uid, None)
        if reservation is not None:
            del self._by_node[reservation.node][uid]
            if not self._by_node[reservation.node]:
                del self._by_node[reservation.node]
            self.version += 1
