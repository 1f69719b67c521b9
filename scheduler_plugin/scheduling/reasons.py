"""Reasons for which filter refuses a node: one table, from which every place that names a reason takes it.

The text that kube-scheduler writes into a pod depends on the request's shape alone: a pod whose text changes
is queued again at once. Numbers that change belong to `gpupack why`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from allocator.card_rules import NO_RULES, CardRules
from allocator.names import MIB_PER_GIB, POD_CONTAINERS, POD_MIXED_MODELS
from allocator.request import Demand
from scheduler_plugin.cache.node_arrays import Exclusion

REQUEUED: Final = "its admission was taken back: it waits in its queue again"
"""Said of every node to kube-scheduler, which tries pods that the queue has requeued like any other."""


class FilterReason(IntEnum):
    """Reason for which filter refuses a node. A smaller one is closer to taking the pod.

    `why`, metrics and the queue name the smallest one where nodes are refused for several.
    """

    NONE = 0
    HELD_BACK = 1
    NOT_FREE = 2
    CARD_RULES = 3
    TOO_SMALL = 4
    NOT_ADMITTED = 5
    NO_SUCH_CARD = 6
    NO_PLUGIN = 7
    CORRUPT_WORDS = 8
    OTHER_UNIT = 9
    UNKNOWN_NODE = 10
    NO_WORDS = 11

    @property
    def metric_label(self) -> str:
        """Label `reason` of metrics: `not_free`."""
        return self.name.lower()

    @property
    def json_name(self) -> str:
        """Name in JSON answers: `NotFree`."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class ReasonWording:
    """ReasonWording is every text of one reason; its metric label and JSON name are made of its own name.

    Attributes:
        event: Text in the pod's condition and Events; None where the text names the request.
        sentence: What `why` says; `{unit}` is the unit of memory. None where it has the numbers of the nodes.
        exclusion: Exclusion of the whole node in the cache that is told by this reason.
        freed_by_ends: The end of other pods can make the node take the pod.
    """

    event: str | None
    sentence: str | None
    exclusion: Exclusion | None = None
    freed_by_ends: bool = False


REASONS: Final = {
    FilterReason.HELD_BACK: ReasonWording(
        "held back by the node policy", "held back by the node policy for now", freed_by_ends=True
    ),
    FilterReason.NOT_FREE: ReasonWording(None, None, freed_by_ends=True),
    FilterReason.CARD_RULES: ReasonWording(None, None, freed_by_ends=True),
    FilterReason.TOO_SMALL: ReasonWording(None, None, freed_by_ends=True),
    FilterReason.NOT_ADMITTED: ReasonWording(None, None, freed_by_ends=True),
    FilterReason.NO_SUCH_CARD: ReasonWording(
        "no card of the cluster that the pod's gpu-model and gpu-uuid admit", None, freed_by_ends=True
    ),
    FilterReason.NO_PLUGIN: ReasonWording(
        "the node's kubelet has no gpupack device plugin at the moment",
        "the kubelet has no gpupack device plugin now: is the daemon running there?",
        Exclusion.NO_PLUGIN,
    ),
    FilterReason.CORRUPT_WORDS: ReasonWording(
        "corrupt gpupack words on the node",
        "the packed words of the node cannot be read: see gpupack top",
        Exclusion.CORRUPT,
    ),
    FilterReason.OTHER_UNIT: ReasonWording(
        "gpupack words of another unit on the node",
        "the node counts in another unit than {unit}",
        Exclusion.OTHER_UNIT,
    ),
    FilterReason.UNKNOWN_NODE: ReasonWording(
        "node not known to the gpupack scheduler yet", "the node is not known yet", Exclusion.VACANT
    ),
    FilterReason.NO_WORDS: ReasonWording(
        "no gpupack words on the node",
        "no GPU memory is offered there: no gpupack daemon has published cards",
        Exclusion.NO_WORDS,
    ),
}
"""Every reason with its wording, those of nodes first that come closest to taking the pod."""


def format_memory(units: int, unit_mib: int) -> str:
    """Write an amount of GPU memory for people: in GiB where it is whole, else in MiB."""
    mib = units * unit_mib
    return f"{mib // MIB_PER_GIB} GiB" if mib % MIB_PER_GIB == 0 else f"{mib} MiB"


def format_amount(demand: Demand, unit_mib: int) -> str:
    """Write what a demand takes of each card: "8 GiB", "50 percent"."""
    return f"{demand.per_card} percent" if demand.percent else format_memory(demand.per_card, unit_mib)


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


def format_event_text(
    reason: FilterReason, demands: Sequence[Demand], unit_mib: int, rules: CardRules = NO_RULES
) -> str:
    """Say why a node cannot take a pod.

    Args:
        reason: What was found.
        demands: What the pod asks for, in order.
        unit_mib: MiB a unit.
        rules: What its cards have to keep together.
    """
    fixed = REASONS[reason].event
    if fixed is not None:
        return fixed
    if reason is FilterReason.CARD_RULES:
        return f"no {format_rules(demands, rules, unit_mib)}"
    if len(demands) > 1:
        what = format_demands(demands, unit_mib)
        return {
            FilterReason.NOT_ADMITTED: "no cards that the pod's gpu-model and gpu-uuid admit",
            FilterReason.TOO_SMALL: f"no healthy cards that hold {what} together",
        }.get(reason, f"no cards with {what} free")
    cards, each = demands[0].cards, format_amount(demands[0], unit_mib)
    if cards == 1:
        return {
            FilterReason.NOT_ADMITTED: "no card that the pod's gpu-model and gpu-uuid admit",
            FilterReason.TOO_SMALL: f"no healthy card {_format_card_size(demands[0], unit_mib)}",
        }.get(reason, f"no card with {each} free")
    return {
        FilterReason.NOT_ADMITTED: f"no {cards} cards that the pod's gpu-model and gpu-uuid admit",
        FilterReason.TOO_SMALL: f"no {cards} healthy cards {_format_card_size(demands[0], unit_mib)}",
    }.get(reason, f"no {cards} cards with {each} free each")
