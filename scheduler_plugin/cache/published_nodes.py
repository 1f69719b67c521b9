"""The words, inventory and accounted pods of a node, read whole or refused with a reason.

Words stay on the Node when their daemon ends, and an idle daemon writes nothing for days, so their age says
nothing. The kubelet's own figure does: it writes 0 as the resource's allocatable when it has lost the
plugin's stream, or has restarted and waits for the plugin. It then refuses every pod that asks for units.

On a Node without the resource the kubelet has not reported it yet. kube-scheduler, which counts the
resource's sum, offers no such node. Whether the kubelet itself is alive is checked by kube-scheduler too.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from allocator.errors import PackingError, QuantityError
from allocator.names import (
    NODE_CARDS,
    NODE_CORDON,
    NODE_HOLDS,
    PERCENT_RESOURCE,
    resource_name,
)
from allocator.packing import NodeWords, read_node
from allocator.quantity import recall_integer
from allocator.records import (
    CardRecord,
    Holds,
    add_instances,
    load_cordon,
    load_holds,
    load_inventory,
    read_links,
)
from allocator.request import MAX_UNITS
from kubeapi.objects import Node
from scheduler_plugin.cache.claim_charges import serves_claims

_MAX_ACCOUNTED: Final = 8 * MAX_UNITS
"""Units of pods on one card that are counted at most: anybody may have written `holds`."""

_NO_HOLDS: Final = Holds(-1, frozenset())


class Exclusion(IntEnum):
    """Why no card of a node can be used, whatever the pod asks for."""

    NONE = 0
    VACANT = 1
    NO_WORDS = 2
    CORRUPT = 3
    OTHER_UNIT = 4
    NO_PLUGIN = 5


class PublishedNode(msgspec.Struct, frozen=True):
    """A node's words, inventory and accounted pods.

    Attributes:
        exclusion: NONE, or the reason why nothing can be used; everything else is empty then.
        holds: The pods that the words contain.
        sizes: Units by card.
        used: Units by card; the size if the card is unhealthy or cordoned. More than the size if pods have
            more, as on a card that became smaller: words stop at the size, `holds` do not.
        evictable: Units by card that pods can have at all; 0 if the card is unhealthy or cordoned.
        uuids: UUIDs by card; empty if the node publishes no inventory, as are the next four.
        indexes: The driver's indexes by card, as people know the cards.
        models: Names of the models by card.
        numa: NUMA nodes by card, -1 where not known.
        links: NVLinks of each card to each; empty if there are none.
        compute_limit: Percent of each card's compute that pods may ask for; 0 if the words do not say it.
        compute_used: Percent by card, the limit if the card is unhealthy or cordoned; empty with limit 0.
        percent: False if the kubelet says that it has no percent to give.
        serves_claims: True if pods get their cards by claims there. Claims wait for the daemon, and the
            kubelet offers no units, so that no pod starts without a claim.
    """

    exclusion: Exclusion = Exclusion.NONE
    revision: int = 0
    holds: Holds = _NO_HOLDS
    sizes: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    evictable: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    numa: tuple[int, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()
    compute_limit: int = 0
    compute_used: tuple[int, ...] = ()
    percent: bool = True
    serves_claims: bool = False


class NodeAnnotations(msgspec.Struct, frozen=True):
    """What the annotations of a node say beside its words; `faults` names those that cannot be read.

    Attributes:
        inventory: Cards in the order of the words; empty if there is none that can be read.
        holds: None if there are none that can be read.
        cordoned: UUIDs of cordoned cards and of their instances; empty if none can be read.
        out_of_service: Positions of unhealthy or cordoned cards.
        faults: What is wrong, by annotation.
    """

    inventory: Sequence[CardRecord]
    holds: Holds | None
    cordoned: frozenset[str]
    out_of_service: frozenset[int]
    faults: Mapping[str, str]


def read_annotations(annotations: Mapping[str, str], words: NodeWords) -> NodeAnnotations:
    faults: dict[str, str] = {}
    cordoned: frozenset[str] = frozenset()
    inventory: Sequence[CardRecord] = ()
    holds: Holds | None = None
    try:
        if NODE_CORDON in annotations:
            cordoned = load_cordon(annotations[NODE_CORDON])
    except PackingError as error:
        faults[NODE_CORDON] = str(error)
    try:
        if NODE_CARDS in annotations:
            inventory = load_inventory(annotations[NODE_CARDS], words)
    except PackingError as error:
        faults[NODE_CARDS] = str(error)
    try:
        if NODE_HOLDS in annotations:
            holds = load_holds(annotations[NODE_HOLDS])
    except PackingError as error:
        faults[NODE_HOLDS] = str(error)
    if cordoned:
        cordoned = add_instances(cordoned, ((record.uuid, record.parent) for record in inventory))
    out = frozenset([at for at, card in enumerate(inventory) if not card.healthy or card.uuid in cordoned])
    return NodeAnnotations(inventory, holds, cordoned, out, faults)


def find_exclusion(node: Node, words: NodeWords, said: NodeAnnotations) -> Exclusion:
    """Find why no card can be used of a node that offers its words."""
    if NODE_HOLDS in said.faults or NODE_CARDS in said.faults or max(words.sizes, default=0) > MAX_UNITS:
        return Exclusion.CORRUPT
    in_service = len(said.out_of_service) < len(words.sizes)
    if in_service and not serves_claims(node) and _offers_none(node, resource_name(words.layout.unit_mib)):
        return Exclusion.NO_PLUGIN
    return Exclusion.NONE


def read_published(node: Node, unit_mib: int) -> PublishedNode:
    """Read a node."""
    try:
        words = read_node(node.status.allocatable or {})
    except PackingError:
        return PublishedNode(Exclusion.CORRUPT)
    if words is None:
        return PublishedNode(Exclusion.NO_WORDS)
    if words.layout.unit_mib != unit_mib:
        return PublishedNode(Exclusion.OTHER_UNIT)
    said = read_annotations(node.metadata.annotations or {}, words)
    exclusion = find_exclusion(node, words, said)
    if exclusion is not Exclusion.NONE:
        return PublishedNode(exclusion)
    claims, holds = serves_claims(node), said.holds or _NO_HOLDS
    inventory, out = said.inventory, said.out_of_service
    # If a cordon cannot be read the daemon keeps the last one, of which only its words tell: they are full.
    all_known = NODE_CORDON not in said.faults
    cards = list(enumerate(zip(words.sizes, _count_overuse(words, holds), strict=True)))
    return PublishedNode(
        revision=words.revision,
        holds=holds,
        sizes=words.sizes,
        used=tuple(size if card in out else used for card, (size, used) in cards),
        evictable=tuple(size if all_known and card not in out else 0 for card, (size, _) in cards),
        uuids=tuple(record.uuid for record in inventory),
        indexes=tuple(record.index for record in inventory),
        models=tuple(record.model for record in inventory),
        numa=tuple(-1 if record.numa is None else record.numa for record in inventory),
        links=_read_links(inventory),
        compute_limit=words.compute_limit,
        compute_used=tuple(
            words.compute_limit if card in out else used for card, used in enumerate(words.compute_used)
        ),
        percent=claims or not _offers_none(node, PERCENT_RESOURCE),
        serves_claims=claims,
    )


def _count_overuse(words: NodeWords, holds: Holds) -> Sequence[int]:
    """Count used units by card: those of the words, and on a full card all units of its pods.

    The end of such a pod frees nothing as long as the others have more than the card's size.
    """
    used = list(words.used)
    full = {card for card, size in enumerate(words.sizes) if used[card] >= size}
    if not full:
        return used
    held = dict.fromkeys(full, 0)
    for units in holds.units.values():
        for card in full.intersection(units):
            held[card] += units[card]
    for card, units_held in held.items():
        used[card] = max(used[card], min(units_held, _MAX_ACCOUNTED))
    return used


def _offers_none(node: Node, resource: str) -> bool:
    """Return True if the kubelet says that it has nothing of a resource to give."""
    allocatable = (node.status.allocatable or {}).get(resource)
    try:
        return allocatable is not None and recall_integer(allocatable) <= 0
    except QuantityError:
        return False


def _read_links(inventory: Sequence[CardRecord]) -> tuple[tuple[int, ...], ...]:
    if not any(record.links for record in inventory):
        return ()
    return tuple(read_links(record.links, len(inventory)) for record in inventory)
