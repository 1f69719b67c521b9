"""Records that the page is sent: small ones, for 40 000 cards go over the wire at once."""

from typing import Final

import msgspec

from gpupack.inventory.records import CardRow, NodeRow, PodRow
from gpupack.inventory.rendering import RenderOptions, format_remark, format_status

STATES: Final = ("ok", "unhealthy", "cordoned")

_OWN_LABELS: Final = frozenset({"kubernetes.io/hostname", "beta.kubernetes.io/os", "beta.kubernetes.io/arch"})
"""Labels that group nothing, and those that only repeat others."""

_QUIET: Final = RenderOptions("json")


class CardTile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A card; amounts in units of its node.

    Attributes:
        allocated: what pods hold or are about to get there.
        overuse: used by pods beyond their promise; where nobody says what each of them uses, by others too.
        external: used by others.
        free: what a pod could get; 0 on a card that is out of use.
        model: position in the node's `models`, -1 where it publishes no inventory.
        pods: how many are on it.
    """

    index: int
    size: int
    allocated: int
    overuse: int
    external: int
    free: int
    state: int
    model: int
    pods: int


class NodeTile(msgspec.Struct, frozen=True, gc=False):
    """A node.

    Attributes:
        unit: MiB of one unit, 0 when its words do not decode.
        labels: those that may group nodes.
        cards: in the order of the words.
        unplaced: units of pods on the node whose card nobody says.
    """

    name: str
    unit: int
    status: str
    remark: str
    open: bool
    labels: dict[str, str]
    models: list[str]
    cards: list[CardTile]
    unplaced: int


class CardSums(msgspec.Struct, frozen=True, gc=False):
    """Sums over cards; amounts in MiB.

    Attributes:
        overuse: used beyond promises, by pods or others.
        whole: cards that a pod could have alone.
        whole_free: what these are.
        largest: the most that one card can give.
    """

    cards: int = 0
    size: int = 0
    allocated: int = 0
    overuse: int = 0
    free: int = 0
    whole: int = 0
    whole_free: int = 0
    largest: int = 0
    unhealthy: int = 0
    cordoned: int = 0

    def __add__(self, other: "CardSums") -> "CardSums":
        return CardSums(
            self.cards + other.cards,
            self.size + other.size,
            self.allocated + other.allocated,
            self.overuse + other.overuse,
            self.free + other.free,
            self.whole + other.whole,
            self.whole_free + other.whole_free,
            max(self.largest, other.largest),
            self.unhealthy + other.unhealthy,
            self.cordoned + other.cordoned,
        )


def make_node_tile(row: NodeRow, labels: dict[str, str] | None) -> NodeTile:
    models = sorted({card.model for card in row.cards if card.model})
    return NodeTile(
        name=row.node,
        unit=row.unit_mib or 0,
        status=format_status(row),
        remark=format_remark(row, _QUIET),
        open=row.takes_pods,
        labels={key: value for key, value in (labels or {}).items() if key not in _OWN_LABELS},
        models=models,
        cards=[_make_card_tile(card, models, row) for card in row.cards],
        unplaced=sum(pod.units for pod in row.pods),
    )


def count_allocated_units(card: CardRow) -> int:
    """Count the units that pods hold or are about to get; pods may be unread.

    A pod that the words do not hold yet counts as in the extender: on each card that it may be on.
    """
    on_card = sum(pod.units for pod in card.pods)
    return min(card.size_units, max((card.held_units or 0) + card.assumed_units, on_card))


def _make_card_tile(card: CardRow, models: list[str], row: NodeRow) -> CardTile:
    promised = count_allocated_units(card)
    if card.state == "ok":
        # Without holds and without pods nobody says whose the units are: then they are pods'.
        unknown = card.held_units is None and not card.pods
        taken = card.size_units - card.free_units
        # Words that are late may lack a pod which got another card than it was assigned: see `free_units`.
        promised = taken if unknown else min(taken, promised)
        beyond = taken - promised
        free = card.free_units if row.takes_pods else 0
    else:
        beyond = free = 0
    own = _count_overuse_of_pods(card, beyond, row.unit_mib or 1)
    return CardTile(
        index=card.index,
        size=card.size_units,
        allocated=promised,
        overuse=own,
        external=beyond - own,
        free=free,
        state=STATES.index(card.state),
        model=models.index(card.model) if card.model else -1,
        pods=len(card.pods),
    )


def _count_overuse_of_pods(card: CardRow, beyond: int, unit_mib: int) -> int:
    """Count the units that the card's own pods use beyond their promises, as far as known."""
    excess_mib = 0
    for pod in card.pods:
        if pod.used_mib is None:
            return beyond
        excess_mib += max(0, pod.used_mib - pod.units * unit_mib)
    return min(beyond, -(-excess_mib // unit_mib))


def sum_cards(tile: NodeTile) -> CardSums:
    total = CardSums()
    for card in tile.cards:
        whole = card.free == card.size > 0
        total += CardSums(
            cards=1,
            size=card.size * tile.unit,
            allocated=card.allocated * tile.unit,
            overuse=(card.overuse + card.external) * tile.unit,
            free=card.free * tile.unit,
            whole=int(whole),
            whole_free=card.free * tile.unit if whole else 0,
            largest=card.free * tile.unit,
            unhealthy=int(card.state == 1),
            cordoned=int(card.state == 2),  # noqa: PLR2004 - as STATES has it
        )
    return total


class PodDetail(msgspec.Struct, frozen=True):
    """A pod's part of a card, as the drawer shows it; see `PodRow`.

    Attributes:
        used: MiB, None if nobody tells.
        held: what holds the pod to its share: `driver`, `mps`, `accounted`; empty if nobody tells.
        compute: percent of the card's compute that it asks for; 0 for none.
    """

    namespace: str
    name: str
    uid: str
    units: int
    share: str
    used: int | None
    held: str
    compute: int


class CardDetail(msgspec.Struct, frozen=True):
    """A card with its pods.

    Attributes:
        used: units, as its words say.
        compute: percent of its compute that pods ask for, None where nobody says.
        compute_limit: percent that it gives away, 0 where nobody says.
    """

    index: int
    uuid: str | None
    model: str | None
    used: int
    compute: int | None
    compute_limit: int
    pods: list[PodDetail]


class NodeDetail(msgspec.Struct, frozen=True):
    """A node with all its pods."""

    node: NodeTile
    cards: list[CardDetail]
    unplaced: list[PodDetail]


def make_node_detail(row: NodeRow, tile: NodeTile) -> NodeDetail:
    return NodeDetail(
        node=tile,
        cards=[
            CardDetail(
                card.index,
                card.uuid,
                card.model,
                card.used_units,
                card.compute_in_use,
                card.compute_limit,
                [_make_pod_detail(pod) for pod in card.pods],
            )
            for card in row.cards
        ],
        unplaced=[_make_pod_detail(pod) for pod in row.pods],
    )


def _make_pod_detail(pod: PodRow) -> PodDetail:
    return PodDetail(
        *(pod.namespace, pod.name, pod.uid, pod.units, pod.share, pod.used_mib, pod.held, pod.compute)
    )
