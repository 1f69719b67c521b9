"""`gpupack cordon` and `uncordon`: keep cards of a node free of new pods, and give them back.

Which cards are meant and what the annotations become is decided on plain values; only `Cordoner` talks to the
API server. The Node is read and patched with its resourceVersion, so that two people at once lose nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allocator.errors import PackingError, shown
from allocator.names import NODE_CARDS, NODE_CORDON, NODE_CORDON_REASONS, NODE_HOLDS
from allocator.records import (
    CardRecord,
    dump_cordon_reasons,
    load_cards,
    load_cordon,
    load_cordon_reasons,
    load_holds,
)
from gpupack.errors import InputError
from gpupack.inventory.objects import make_unknown_node_error
from gpupack.node_changes import change_node
from kubeapi.errors import NotFound
from kubeapi.objects import WritableNode
from kubeapi.paths import make_node_path

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

MAX_REASON: Final = 256
"""Characters of a reason: it is for people, and stands in every copy of the Node."""


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """The cards that a user wants to cordon or uncordon.

    Attributes:
        cards: index, UUID or the beginning of one; empty: all cards.
    """

    cordon: bool
    cards: tuple[str, ...] = ()
    reason: str = ""

    def check(self) -> None:
        if len(self.reason) > MAX_REASON or not self.reason.isprintable():
            raise InputError(
                f"--reason {shown(self.reason, 64)}; allowed: at most {MAX_REASON} characters on one line"
            )


@dataclass(frozen=True, slots=True)
class CordonOutcome:
    """The result for one card.

    Attributes:
        index: the driver's number, None for a card that is not there any more.
        pods: how many pods hold memory there and run on.
        cordoned_with: UUID of the whole card with which an instance stays cordoned; else empty.
    """

    uuid: str
    index: int | None
    changed: bool
    pods: int = 0
    cordoned_with: str = ""


@dataclass(frozen=True, slots=True)
class CordonChange:
    """The change to write: new annotations, None removing one, and the outcome for each card."""

    annotations: dict[str, str | None]
    outcomes: tuple[CordonOutcome, ...]


def decide_change(node: str, annotations: Mapping[str, str], request: CordonRequest) -> CordonChange:
    """Decide what the Node's annotations become.

    Raises:
        InputError: no gpupack there, no such card, or a cordon that cannot be read.
    """
    try:
        cards = load_cards(annotations[NODE_CARDS])
        before = _cordoned(annotations, anew=not request.cordon and not request.cards)
    except KeyError as error:
        raise InputError(
            f"node {node} has no annotation {NODE_CARDS}: no gpupack node daemon has run there, and only "
            "that knows the cards"
        ) from error
    except PackingError as error:
        raise InputError(f"node {node}: {error}") from error
    named = _named(node, cards, request, before)
    after = before | set(named) if request.cordon else before - set(named)
    pods = _pods(annotations, cards)
    indexes = {card.uuid: card.index for card in cards}
    whole = {card.uuid: card.parent for card in cards if card.parent in after}
    outcomes = tuple(
        CordonOutcome(
            uuid,
            indexes.get(uuid),
            (uuid in before) != request.cordon,
            pods[uuid],
            "" if request.cordon else whole.get(uuid, ""),
        )
        for uuid in named
    )
    old = _reasons(annotations)
    reasons = {uuid: text for uuid, text in old.items() if uuid in after}
    if request.cordon and request.reason:
        reasons |= dict.fromkeys(named, request.reason)
    wanted: dict[str, str | None] = {}
    if after != before or (not after and NODE_CORDON in annotations):
        wanted[NODE_CORDON] = ",".join(sorted(after)) or None
    if reasons != old or (not reasons and NODE_CORDON_REASONS in annotations):
        wanted[NODE_CORDON_REASONS] = dump_cordon_reasons(reasons) if reasons else None
    return CordonChange(wanted, outcomes)


def _cordoned(annotations: Mapping[str, str], *, anew: bool) -> frozenset[str]:
    """Read the cordon; if all of it will be replaced, an unreadable one counts as empty."""
    try:
        return load_cordon(annotations.get(NODE_CORDON, ""))
    except PackingError:
        if not anew:
            raise
        return frozenset()


def _named(
    node: str, cards: Sequence[CardRecord], request: CordonRequest, before: frozenset[str]
) -> list[str]:
    """Return the UUIDs that a request names, each once; all faults are reported together."""
    if not request.cards:
        return [card.uuid for card in cards] if request.cordon else sorted(before)
    # The whole cards of instances, which are no cards of the node; what has vanished can be given back.
    others = {card.parent for card in cards if card.parent} | (set() if request.cordon else before)
    others.difference_update(card.uuid for card in cards)
    names = [(str(card.index), card.uuid) for card in cards] + [("", uuid) for uuid in sorted(others)]
    named: dict[str, None] = {}
    problems = []
    for text in request.cards:
        found = match_cards(text, names)
        if len(found) == 1:
            named[names[found[0]][-1]] = None
            continue
        problem = f"{shown(text)} is {'no card' if not found else f'the name of {len(found)} cards'}"
        problems.append(f"{problem} of node {node}")
    if problems:
        there = ", ".join(" ".join(filter(None, card)) for card in names)
        raise InputError(
            f"{'; '.join(problems)}; allowed: an index, a UUID or its beginning, of {there or 'none'}"
        )
    return list(named)


def match_cards(text: str, names: Sequence[Sequence[str]]) -> list[int]:
    """Find which cards a text may mean; `names` is what each is called, its UUID last, empty for none."""
    exact = [card for card, known in enumerate(names) if text and text in known]
    begins = text and not text.isdigit()  # a number is that of a card, and never the beginning of a UUID
    return exact or [card for card, known in enumerate(names) if begins and known[-1].startswith(text)]


def _pods(annotations: Mapping[str, str], cards: Sequence[CardRecord]) -> Counter[str]:
    """Count the pods that hold memory on each card or its instances, as far as the node publishes that."""
    counts: Counter[str] = Counter()
    try:
        holds = load_holds(annotations[NODE_HOLDS])
    except (KeyError, PackingError):
        return counts
    for units in holds.units.values():
        has = [cards[position] for position in units if position < len(cards)]
        counts.update({card.uuid for card in has} | {card.parent for card in has})
    return counts


def _reasons(annotations: Mapping[str, str]) -> dict[str, str]:
    """Read the reasons; unreadable ones count as none and are overwritten: they are for people only."""
    try:
        return dict(load_cordon_reasons(annotations.get(NODE_CORDON_REASONS, "{}")))
    except PackingError:
        return {}


class Cordoner:
    """Cordons cards of one cluster."""

    def __init__(self, client: "KubeClient", *, dry_run: bool = False) -> None:
        self._client = client
        self._dry_run = dry_run

    async def apply(self, node: str, request: CordonRequest) -> tuple[CordonOutcome, ...]:
        """Cordon or uncordon cards.

        Raises:
            InputError: as `decide_change`, or no Node has the name.
            KubeApiError: the API server refused, or the Node changed again and again meanwhile.
        """
        request.check()
        if not node:  # its path is that of the list
            raise make_unknown_node_error([node])

        async def change(seen: WritableNode) -> tuple[CordonOutcome, ...]:
            wanted = decide_change(node, seen.metadata.annotations or {}, request)
            if wanted.annotations and not self._dry_run:
                metadata = {
                    "resourceVersion": seen.metadata.resource_version,
                    "annotations": wanted.annotations,
                }
                await self._client.patch(make_node_path(node), {"metadata": metadata})
            return wanted.outcomes

        try:
            return await change_node(self._client, node, change)
        except NotFound as error:
            raise make_unknown_node_error([node]) from error
