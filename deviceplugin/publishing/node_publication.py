"""Decides what the own Node should say, and when, and makes the one patch that says it; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from allocator.cards import CardAmounts
from allocator.names import COMPUTE_RESOURCE, NODE_CARDS, NODE_HOLDS, PACKED_PREFIX, PACKED_REVISION
from allocator.packing import PAYLOAD_BITS, NodeWords, node_resources
from allocator.quantity import canonical
from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.option_values import PUBLISH_GAP_S

SETTLE_S: Final = 1.0
"""How long a gain waits for the checkpoint to show whose it is, so that words and holds change together."""

LAST_REVISION: Final = (1 << PAYLOAD_BITS) - 2
"""The highest that is written or kept: one more still fits, so that it shows what came to the end."""

# It seldom changes.
_dump_cards: Final = lru_cache(maxsize=1)(dump_cards)


PublishedClaims = Mapping[str, Mapping[str, CardAmounts]]
"""What the Node's `holds` says of claims: what they have by card, by their UID. See `allocator.records`."""


@dataclass(frozen=True, slots=True)
class NodePublication:
    """What the Node should say, or said.

    Attributes:
        words: of revision 0, whatever revision the Node has.
        accounted_pods: units by the card's position, by UID, of the pods that the words contain.
        seen_version: resourceVersion that the words take into account.
        claims: prepared claims that the words contain, see `Holds`.
        offered_compute: percent of compute over all cards, see `offer_compute` in `allocator.ledger.charges`;
            None where the resource is not offered.
    """

    words: NodeWords
    accounted_pods: Mapping[str, Mapping[int, int]]
    inventory: tuple[CardRecord, ...]
    seen_version: int
    claims: Mapping[str, Mapping[int, CardAmounts]] = field(default_factory=dict)
    offered_compute: int | None = None


def publish_reason(wanted: NodePublication, node: NodeObject, owed: int) -> str | None:
    """Tell why the Node must be patched.

    Args:
        owed: resourceVersion that its `seen` must reach, 0 for none.

    Returns:
        None when the Node says it all, else the most urgent of these:

        - `lost`: words are missing, corrupt, of other cards, or have no revision after theirs. Or the Node
          offers another sum of compute, or `seen` has versions that are still to come, as after an etcd
          restore.
        - `released`: units or pods are gone, or a pod vanished that the scheduler still counts.
        - `gained`: anything else.
    """
    words, holds = node.read_words(), node.read_accounted_pods()
    if words is None or holds is None or words.revision > LAST_REVISION or holds.seen > wanted.seen_version:
        return "lost"
    if _describe_cards(words) != _describe_cards(wanted.words):
        return "lost"
    if not node.offers_compute(wanted.offered_compute):
        return "lost"
    if _released(wanted, words, holds, owed):
        return "released"
    if (
        replace(words, revision=0) != wanted.words
        or _holds_differ(wanted, holds)
        or node.read_cards() != wanted.inventory
    ):
        return "gained"
    return None


def changes_since(wanted: NodePublication, written: NodePublication, owed: int) -> str | None:
    """Find what is new since the last patch, whatever the Node says: `released`, `gained` or None.

    Other cards than before are as urgent as units that are free again.
    """
    if _describe_cards(wanted.words) != _describe_cards(written.words):
        return "released"
    if _released(wanted, written.words, _holds(written), owed):
        return "released"
    return None if replace(written, seen_version=wanted.seen_version) == wanted else "gained"


def _describe_cards(words: NodeWords) -> tuple[object, ...]:
    """Return what the words say of the cards themselves, whoever uses them."""
    return words.layout, words.sizes, words.compute_limit


def _released(wanted: NodePublication, words: NodeWords, holds: Holds, owed: int) -> bool:
    now = (*wanted.words.used, *wanted.words.compute_used)
    less = any(new < before for new, before in zip(now, (*words.used, *words.compute_used), strict=True))
    gone = holds.uids - wanted.accounted_pods.keys() or holds.claims.keys() - wanted.claims.keys()
    return less or holds.seen < owed or bool(gone)


def _holds(wanted: NodePublication) -> Holds:
    pods = wanted.accounted_pods
    return Holds(wanted.seen_version, frozenset(pods), pods, wanted.claims)


def _holds_differ(wanted: NodePublication, holds: Holds) -> bool:
    return replace(holds, seen=wanted.seen_version) != _holds(wanted)


def differences(wanted: NodePublication, node: NodeObject, owed: int) -> list[str]:
    """Name the resources and annotations for which `publish_reason` wants the Node patched."""
    words, holds = node.read_words(), node.read_accounted_pods()
    differing = []
    if words is None or replace(words, revision=0) != wanted.words:
        differing.append(f"{PACKED_PREFIX}*")
    elif words.revision > LAST_REVISION:
        differing.append(PACKED_REVISION)
    if not node.offers_compute(wanted.offered_compute):
        differing.append(COMPUTE_RESOURCE)
    if holds is None or _holds_differ(wanted, holds) or not owed <= holds.seen <= wanted.seen_version:
        differing.append(NODE_HOLDS)
    if node.read_cards() != wanted.inventory:
        differing.append(NODE_CARDS)
    return differing


def due_s(
    reason: str, since_s: float, last_s: float, *, settled: bool, gap_s: float = PUBLISH_GAP_S
) -> float:
    """Compute when to patch, in the same seconds as the arguments."""
    if reason != "gained":
        return since_s
    return max(last_s + gap_s, since_s if settled else since_s + SETTLE_S)


def make_status_patch(wanted: NodePublication, node: NodeObject, revision: int) -> dict[str, Any]:
    """Write the merge patch of nodes/status: words, revision, inventory and holds, all at once.

    Capacity and allocatable are equal, or the kubelet would make them so.

    Args:
        node: the Node as known; packed resources of it that are not ours any more are removed.
    """
    resources: dict[str, int | str | None] = dict.fromkeys(sorted(node.list_published_keys()))
    resources.update(node_resources(replace(wanted.words, revision=revision)))
    if wanted.offered_compute is not None:
        resources[COMPUTE_RESOURCE] = canonical(wanted.offered_compute)
    annotations = {
        NODE_HOLDS: dump_holds(_holds(wanted)),
        NODE_CARDS: _dump_cards(wanted.inventory),
    }
    return {
        "metadata": {"annotations": annotations},
        "status": {"capacity": resources, "allocatable": resources},
    }


def place_claims(claims: PublishedClaims, uuids: Sequence[str]) -> dict[str, dict[int, CardAmounts]]:
    """Map what prepared claims have to positions of cards, without cards that are gone."""
    position = {uuid: number for number, uuid in enumerate(uuids)}
    return {
        uid: {position[uuid]: amounts for uuid, amounts in cards.items() if uuid in position}
        for uid, cards in claims.items()
    }


def make_last_patch(node: NodeObject, revision: int) -> dict[str, Any] | None:
    """Make the last patch of a stopping daemon: every card full and unhealthy; None if nothing is offered.

    `holds` stays as it is: it alone says who has something. That no card is healthy keeps preemption from
    evicting pods for room that would not come. The compute that the Node offers stays, too: a kubelet that
    starts would fail running pods if it were less.
    """
    words, cards = node.read_words(), node.read_cards()
    if words is None:
        return None
    full = (words.compute_limit,) * len(words.compute_used)
    resources = node_resources(replace(words, used=words.sizes, compute_used=full, revision=revision))
    inventory = [msgspec.structs.replace(card, healthy=False) for card in cards or ()]
    return {
        "metadata": {"annotations": {NODE_CARDS: dump_cards(inventory)} if inventory else {}},
        "status": {"capacity": resources, "allocatable": resources},
    }


def next_revision(previous: int, node: NodeObject, now_ms: int) -> int:
    """Revisions only grow, over restarts and re-created Nodes; at the end of the word they start again."""
    words = node.read_words()
    latest = max(previous, words.revision if words is not None else 0, now_ms)
    return (latest if latest < LAST_REVISION else now_ms) + 1
