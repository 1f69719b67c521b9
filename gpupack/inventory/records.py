"""The rows of `gpupack top`: nodes, their cards and the pods on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deviceplugin.gpus.api.telemetry import CardTelemetry

Output = Literal["table", "wide", "json"]

Share = Literal["allocated", "assigned", "unknown", "ending"]
"""How a pod stands to a card: the kubelet gave it, the scheduler chose it, nobody says, the pod ends."""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod's part of one card, or of no card that is known.

    Attributes:
        namespace, name: empty when only its UID is known.
        units: on the card; of the whole pod where the card is not known.
        used_mib: MiB that it uses there as of lately, None if nobody tells.
        held: what holds it to its share: `driver`, `mps`, `accounted` if one of its containers is; empty if
            nobody tells.
        compute: percent of the card's compute that it asks for there; 0 if it takes what is left.
        used_compute: percent of the time in which it kept the card busy, as of lately; None if nobody tells.
        compute_held: what holds it to its compute: `mps`, `accounted`; empty if nobody tells.
    """

    namespace: str
    name: str
    uid: str
    units: int
    share: Share
    used_mib: int | None = None
    held: str = ""
    compute: int = 0
    used_compute: int | None = None
    compute_held: str = ""


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card.

    Attributes:
        index: the driver's number, or the position in the words where the node publishes no inventory.
        used_units: as the words say; the whole size while the card is out of use, so that no pod comes.
        healthy: as the inventory says; the daemon calls every card unhealthy when it stops.
        held: what holds its containers to their shares, as `PodRow.held`.
        memory_mode: as in the inventory: `numa`, or empty.
        detached: the daemon has let the card's driver go.
        held_units: what the words hold of pods there, None if the node does not say.
        assumed_units: units of pods that the words do not hold yet, as the extender counts them; 0 unless
            pods were asked for.
        compute_limit: percent of its compute that it gives away; 0 if its node does not publish it.
        compute_used: percent that are given away, as the words say: all while the card is out of use.
        assumed_compute: percent of pods that the words do not hold yet, as `assumed_units`.
        telemetry: what it does, as its node's daemon says; None if that is not known or not asked for.
    """

    index: int
    uuid: str | None
    model: str | None
    size_units: int
    used_units: int
    healthy: bool = True
    cordoned: bool = False
    cordon_reason: str = ""
    held: str = ""
    memory_mode: str = ""
    detached: bool = False
    held_units: int | None = None
    assumed_units: int = 0
    compute_limit: int = 0
    compute_used: int = 0
    assumed_compute: int = 0
    pods: tuple[PodRow, ...] = ()
    telemetry: CardTelemetry | None = None

    @property
    def state(self) -> Literal["ok", "unhealthy", "cordoned"]:
        """Whether it is in use, and why not."""
        if not self.healthy:
            return "unhealthy"
        return "cordoned" if self.cordoned else "ok"

    @property
    def in_use_units(self) -> int:
        """Units really in use, also while the words call a card full to keep pods away."""
        if self.state == "ok" or self.held_units is None:
            return min(self.used_units + self.assumed_units, self.size_units)
        return min(self.held_units + self.assumed_units, self.size_units)

    @property
    def compute_in_use(self) -> int | None:
        """Percent of its compute that pods ask for; None where nobody says, also of a card out of use."""
        return self.compute_used + self.assumed_compute if self.compute_limit and self.state == "ok" else None

    @property
    def free_units(self) -> int:
        """Units that a pod could get; 0 on a card that is out of use."""
        free = self.size_units - self.used_units - self.assumed_units
        return max(0, free) if self.state == "ok" else 0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that publishes words, is meant to, or was asked for by name.

    Attributes:
        unit_mib: MiB of one unit, None when the words do not decode.
        error: what is wrong with the words or the annotations, None when nothing is.
        ready: whether the condition Ready is True, None if the node has none.
        resource: name of the extended resource, None when the words do not decode.
        offered_units: amount of that resource in allocatable: what the kubelet's device plugin offers. 0
            without a daemon, and when no card is healthy.
        known_units: amount of that resource in capacity: the kubelet sets it to 0 5 minutes after its plugin
            went.
        usable: the extender does not exclude the node, whatever a pod asks for.
        revision: revision of the words, as a rule milliseconds since the epoch; None when they do not decode.
        pods: that are on the node and on no card that is known; empty unless they were asked for.
        foreign_gpus: GPUs that another device plugin offers there, by resource.
    """

    node: str
    cards: tuple[CardRow, ...]
    unit_mib: int | None
    error: str | None
    ready: bool | None = None
    unschedulable: bool = False
    resource: str | None = None
    offered_units: int = 0
    known_units: int = 0
    usable: bool = False
    revision: int | None = None
    pods: tuple[PodRow, ...] = ()
    foreign_gpus: Mapping[str, int] = field(default_factory=dict)

    @property
    def without_daemon(self) -> bool:
        """Whether the words stand without a device plugin that serves pods.

        Where every card is unhealthy the kubelet offers nothing, daemon or not: then its capacity tells.
        """
        if self.resource is None:
            return False
        if any(card.healthy and card.size_units for card in self.cards):
            return self.offered_units == 0
        return any(card.size_units for card in self.cards) and self.known_units == 0

    @property
    def takes_pods(self) -> bool:
        """Whether a pod that asks for GPU memory can start there."""
        alive = self.ready is not False and not self.unschedulable and not self.without_daemon
        return alive and self.usable
