"""Reasons for which filter refuses a node: an enum of all that is said of each.

The text that kube-scheduler writes into a pod depends on the request's shape alone: a pod whose text changes
is queued again at once. Numbers that change belong to `gpupack why`.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from typing import Final, Self

from allocator.card_rules import NO_RULES, CardRules
from allocator.names import POD_CONTAINERS, POD_MIXED_MODELS
from allocator.quantity import format_memory
from allocator.request import Demand
from scheduler_plugin.cache.published_nodes import Exclusion

REQUEUED: Final = "it was requeued: it waits in its queue again"
"""Said of every node to kube-scheduler, which tries pods that the queue has requeued like any other."""

EventText = Callable[[Sequence[Demand], CardRules, int], str]
"""Writes why a node cannot take a pod, from its demands, the rules of its cards, and the MiB of a unit."""


def format_amount(demand: Demand, unit_mib: int) -> str:
    """Write what a demand takes of each card: "8 GiB", "50 percent", "8 GiB and 30 percent of compute"."""
    memory = f"{demand.per_card} percent" if demand.percent else format_memory(demand.per_card, unit_mib)
    return f"{memory} and {demand.compute} percent of compute" if demand.compute else memory


def _format_card_size(demand: Demand, unit_mib: int) -> str:
    what = format_amount(demand, unit_mib)
    return f"of which {what} is a unit" if demand.percent else f"of {what} or more"


def format_demands(demands: Sequence[Demand], unit_mib: int) -> str:
    """Write what a pod asks of cards: "8 GiB", "2 x 8 GiB + 4 GiB", "50 percent"."""
    return " + ".join(
        format_amount(demand, unit_mib)
        if demand.cards == 1
        else f"{demand.cards} x {format_amount(demand, unit_mib)}"
        for demand in demands
    )


def format_rules(demands: Sequence[Demand], rules: CardRules, unit_mib: int) -> str:
    """Write what a pod asks of cards together: "3 x 8 GiB on cards of one model"."""
    parts = [format_demands(demands, unit_mib)]
    if rules.same_model:
        parts.append("on cards of one model" if len(demands) == 1 else "with one model for each container")
    if rules.apart:
        parts.append(f"on cards of their own, as {POD_CONTAINERS} says")
    text = " ".join(parts)
    return f"{text} ({POD_MIXED_MODELS}: true allows several models)" if rules.same_model else text


def _name_not_free(demands: Sequence[Demand], _rules: CardRules, unit_mib: int) -> str:
    if len(demands) > 1:
        return f"no cards with {format_demands(demands, unit_mib)} free"
    cards, amount = demands[0].cards, format_amount(demands[0], unit_mib)
    return f"no card with {amount} free" if cards == 1 else f"no {cards} cards with {amount} free each"


def _name_compute_not_free(demands: Sequence[Demand], rules: CardRules, unit_mib: int) -> str:
    return f"{_name_not_free(demands, rules, unit_mib)}: compute is short"


def _name_card_rules(demands: Sequence[Demand], rules: CardRules, unit_mib: int) -> str:
    return f"no {format_rules(demands, rules, unit_mib)}"


def _name_too_small(demands: Sequence[Demand], _rules: CardRules, unit_mib: int) -> str:
    if len(demands) > 1:
        return f"no healthy cards that hold {format_demands(demands, unit_mib)} together"
    cards, size = demands[0].cards, _format_card_size(demands[0], unit_mib)
    return f"no healthy card {size}" if cards == 1 else f"no {cards} healthy cards {size}"


def _name_not_admitted(demands: Sequence[Demand], _rules: CardRules, _unit_mib: int) -> str:
    cards = "cards" if len(demands) > 1 else "card" if demands[0].cards == 1 else f"{demands[0].cards} cards"
    return f"no {cards} that the pod's gpu-model and gpu-uuid admit"


class Cure(StrEnum):
    """What makes a node take the pod that filter has refused there."""

    TIME = "time"
    PODS_END = "the end of other pods"
    OTHER_REQUEST = "another request"
    DAEMON = "the node's daemon"


class FilterReason(IntEnum):
    """Reason for which filter refuses a node. The first one is closest to taking the pod.

    `why`, metrics and the queue name the first one where nodes are refused for several. Code that lists
    reasons takes them from here, so a new one is a member, and the condition in
    `filtering.explain_rejections`.

    Attributes:
        event_text: Text in the pod's condition and Events, or what writes it.
        sentence: What `why` and docs/ask.md say; `{unit}` is the unit of memory. `why` says more where
            `gpupack.whatif.node_results` has numbers of the nodes.
        cures: What can make the node take the pod, the likeliest first. `why` looks for pods whose end helps
            on the nodes that it can help.
        exclusion: Exclusion of the whole node in the cache that is told by this reason; None: the cards
            decide.
    """

    event_text: str | EventText
    sentence: str
    cures: tuple[Cure, ...]
    exclusion: Exclusion | None

    HELD_BACK = "held back by the node policy", "held back by the node policy for now", (Cure.TIME,)
    NOT_FREE = (
        _name_not_free,
        "the cards are there, and others have them",
        (Cure.PODS_END, Cure.OTHER_REQUEST),
    )
    COMPUTE_NOT_FREE = (
        _name_compute_not_free,
        "cards have the memory free, and others have their compute",
        (Cure.PODS_END, Cure.OTHER_REQUEST),
    )
    CARD_RULES = (
        _name_card_rules,
        "there is room, but not by the pod's rules: cards of one model for each container, or of its own",
        (Cure.OTHER_REQUEST, Cure.PODS_END),
    )
    TOO_SMALL = _name_too_small, "no healthy card is large enough, even empty", (Cure.OTHER_REQUEST,)
    NOT_ADMITTED = (
        _name_not_admitted,
        "the pod's gpu-model or gpu-uuid admits no card of the node",
        (Cure.OTHER_REQUEST,),
    )
    NO_SUCH_CARD = (
        "no card of the cluster that the pod's gpu-model and gpu-uuid admit",
        "the pod's gpu-model or gpu-uuid admits no card of the cluster",
        (Cure.OTHER_REQUEST,),
    )
    NO_COMPUTE = (
        "no compute of its cards published by the node",
        "the node does not publish the compute of its cards: its daemon is of an older version",
        (Cure.DAEMON, Cure.OTHER_REQUEST),
    )
    NO_CLAIMS = (
        "no claims served by the node, and the pod has one",
        "the pod has a claim since a Binding failed, and the node serves none: another pod may run there",
        (Cure.OTHER_REQUEST,),
    )
    NO_PLUGIN = (
        "the node's kubelet has no gpupack device plugin at the moment",
        "the kubelet has no gpupack device plugin now: is the daemon running there?",
        (Cure.DAEMON,),
        Exclusion.NO_PLUGIN,
    )
    CORRUPT_WORDS = (
        "corrupt gpupack words on the node",
        "the packed words of the node cannot be read: see gpupack top",
        (Cure.DAEMON,),
        Exclusion.CORRUPT,
    )
    OTHER_UNIT = (
        "gpupack words of another unit on the node",
        "the node counts in another unit than {unit}",
        (Cure.OTHER_REQUEST, Cure.DAEMON),
        Exclusion.OTHER_UNIT,
    )
    UNKNOWN_NODE = (
        "node not known to the gpupack scheduler yet",
        "the node is not known yet",
        (Cure.TIME,),
        Exclusion.VACANT,
    )
    NO_WORDS = (
        "no gpupack words on the node",
        "no GPU memory is offered there: no gpupack daemon has published cards",
        (Cure.DAEMON,),
        Exclusion.NO_WORDS,
    )

    def __new__(
        cls,
        event_text: str | EventText,
        sentence: str,
        cures: tuple[Cure, ...],
        exclusion: Exclusion | None = None,
    ) -> Self:
        reason = int.__new__(cls, number := len(cls.__members__) + 1)
        reason._value_ = number
        reason.event_text, reason.sentence = event_text, sentence
        reason.cures, reason.exclusion = cures, exclusion
        return reason

    @classmethod
    def from_code(cls, code: int) -> Self:
        """Return the reason of a code of `filtering.explain_rejections`."""
        return tuple(cls)[code - 1]

    @property
    def metric_label(self) -> str:
        return self.name.lower()

    @property
    def json_name(self) -> str:
        return self.name.title().replace("_", "")


def format_event_text(
    reason: FilterReason, demands: Sequence[Demand], unit_mib: int, rules: CardRules = NO_RULES
) -> str:
    """Say why a node cannot take a pod."""
    text = reason.event_text
    return text if isinstance(text, str) else text(demands, rules, unit_mib)
