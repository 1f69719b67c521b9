"""Chooses the card on which `gpupack verify` tries sharing, and what its pods need there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gpupack.inventory.records import CardRow, NodeRow
from kubeapi.objects import KubeObject, KubeStruct

SHARE_MIB: Final = 2048
"""What each of the two pods asks for: room for a CUDA context, and memory to use beside it."""

SHARES: Final = 2


@dataclass(frozen=True, slots=True)
class CardChoice:
    """The card with most room.

    Attributes:
        units: that each pod asks for.
        free_units: of all cards of the node together.
        largest_units: size of the node's largest card.
        total_units: size of all its cards together.
    """

    node: str
    resource: str
    card: CardRow
    uuid: str
    units: int
    unit_mib: int
    free_units: int
    largest_units: int
    total_units: int

    @property
    def share_mib(self) -> int:
        return self.units * self.unit_mib

    @property
    def too_large(self) -> int:
        """Units that no card of the node has; where it can be, the node's sum has them free.

        kube-scheduler compares a request with the sum first. Only if the sum suffices does gpupack's
        scheduler see the pod. Nobody is preempted in either case, because the end of no pod would help.
        """
        beyond = self.largest_units + 1
        return beyond if beyond <= self.free_units else self.total_units + 1


@dataclass(frozen=True, slots=True)
class Target:
    """Where pods are tried, and what they need there.

    Attributes:
        runtime_class: empty for the node's default.
    """

    hostname: str
    resource: str
    uuid: str
    image: str
    scheduler_name: str
    runtime_class: str = ""


def choose_card(rows: Sequence[NodeRow]) -> CardChoice | None:
    """Choose the card with most free memory that has room for two pods; None where there is none."""
    found = [choice for row in rows if row.takes_pods for choice in _choices(row)]
    return max(found, key=lambda choice: choice.card.free_units * choice.unit_mib, default=None)


def _choices(row: NodeRow) -> list[CardChoice]:
    unit_mib, resource = row.unit_mib, row.resource
    if unit_mib is None or resource is None:
        return []
    units = -(-SHARE_MIB // unit_mib)
    sizes = [card.size_units for card in row.cards]
    free = sum(card.free_units for card in row.cards)
    return [
        CardChoice(row.node, resource, card, card.uuid, units, unit_mib, free, max(sizes), sum(sizes))
        for card in row.cards
        if card.uuid is not None and card.free_units >= SHARES * units
    ]


def explain_no_card(rows: Sequence[NodeRow]) -> str:
    """Say why no card has room for two pods, a reason for each node."""
    if not rows:
        return "no node publishes cards: label one for gpupack's daemon, and see that the daemon runs there"
    return "; ".join(dict.fromkeys(_explain_node(row) for row in rows))


def _explain_node(row: NodeRow) -> str:
    if row.ready is False:
        return "a node is NotReady"
    if row.unschedulable:
        return "a node is cordoned"
    if row.without_daemon:
        return "a node has no device plugin of gpupack: its daemon does not run, or is not registered"
    if row.unit_mib is None or not row.usable:
        return row.error or "a node publishes no cards"
    if all(card.state != "ok" for card in row.cards):
        return "no card of a node takes pods: they are unhealthy or cordoned, or the daemon has ended"
    most_mib = max((card.free_units for card in row.cards), default=0) * row.unit_mib
    return f"a node has {most_mib} MiB free on its emptiest card; needed: {SHARES} x {SHARE_MIB} MiB"


class _DaemonContainer(KubeStruct):
    image: str = ""
    args: list[str] | None = None


class _DaemonSpec(KubeStruct):
    runtime_class_name: str = ""
    containers: list[_DaemonContainer] | None = None


class DaemonPod(KubeObject):
    """The pod of a node daemon, with what pods beside it need, too."""

    spec: _DaemonSpec = msgspec.field(default_factory=_DaemonSpec)

    @property
    def image(self) -> str:
        return next((each.image for each in self.spec.containers or ()), "")

    @property
    def is_simulated(self) -> bool:
        words = [word for each in self.spec.containers or () for word in each.args or ()]
        return "simulated" in " ".join(words).replace("=", " ").split()
