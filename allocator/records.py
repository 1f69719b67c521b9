"""Reads, checks and writes the JSON of gpupack's annotations.

Pod annotations: `assigned` and `allocation`. Node annotations: `holds`, `cards`, the comma list `cordon` and
its `cordon-reasons`. Anybody may have written them, so loading checks everything and says what is wrong.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from allocator.cards import CardAmounts, pair_amounts
from allocator.errors import AllocatorError, PackingError, RequestError, shown
from allocator.ids import UUID_PATTERN, is_card_uuid
from allocator.names import (
    LARGEST_NUMBER,
    NODE_CARDS,
    NODE_CORDON,
    NODE_CORDON_REASONS,
    NODE_HOLDS,
    POD_ALLOCATION,
    POD_ASSIGNED,
)
from allocator.packing import NodeWords
from allocator.request import PodRequest

Assignment = Mapping[str, tuple[tuple[str, int], ...]]
"""Container name -> pairs of a card's UUID and units on it."""


DETACHED: Final = "detached"
"""`CardRecord.driver` while the daemon has nothing of the driver open."""

_CUT: Final = 256
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_Natural = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
_Units = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]
_Text = Annotated[str, Meta(min_length=1)]
_Uuid = Annotated[str, Meta(pattern=rf"^(?:{UUID_PATTERN})\Z")]
_Parent = Annotated[str, Meta(pattern=rf"^(?:{UUID_PATTERN})?\Z")]
_Links = Annotated[str, Meta(pattern=r"^[0-9a-z]*\Z")]
_Version = Annotated[str, Meta(pattern=r"^[0-9]{1,20}\Z")]
_Shares = Annotated[tuple[tuple[_Uuid, _Units], ...], Meta(min_length=1)]
_Assignment = dict[_Text, _Shares]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the containers of the pod `uid` got; `memory` by container and card, where known."""

    uid: str
    containers: Assignment
    memory: Mapping[str, Mapping[str, "MemoryRecord"]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Holds:
    """The annotation `gpupack.io/holds`: the pods and claims whose units a node's words contain.

    Attributes:
        seen: resourceVersion of the newest pod event that the words take into account.
        uids: pods whose units the words certainly contain.
        units: by those pods' UIDs: units by position of the card in the words. Empty if a daemon of a
            version that did not write them wrote the annotation.
        claims: by UID of the ResourceClaims that the words certainly contain: what they have by position of
            the card. Claims that the extender writes for a pod are not among them: the pod's UID stands for
            those. A claim that is allocated anew has other cards.
    """

    seen: int
    uids: frozenset[str]
    units: Mapping[str, Mapping[int, int]] = field(default_factory=dict, hash=False)
    claims: Mapping[str, Mapping[int, CardAmounts]] = field(default_factory=dict, hash=False)


class MemoryRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A container's use of a card, as of lately.

    Attributes:
        held: what limits its memory, as `CardRecord.held`; `accounted` where its limit is not in force.
        used: MiB; None if unknown.
        compute: percent of the time in which it kept the card busy; None if unknown.
        compute_held: what limits its compute, as `held`; empty if it asks for none, or nobody says.
    """

    held: str
    used: _Natural | None = None
    compute: _Natural | None = None
    compute_held: str = ""


class CardRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A card in the inventory; the fields with a default are not written where they are empty.

    Attributes:
        index: the driver's.
        links: NVLinks to each card of the node in the order of the words, one digit of base 36 each. Empty
            where there are none. Readers that do not know it pass it over.
        held: what limits its containers' memory: `driver`, `mps`, `accounted`, or what a later version knows.
            Empty if a daemon of a version without the field wrote the record.
        memory_mode: `numa` where the operating system manages the card's memory; empty if the driver does.
        driver: `detached` while the daemon has let the card's driver go; else empty.
        parent: UUID of the whole card that this is an instance of; empty for a whole card.
    """

    uuid: _Uuid
    index: _Natural
    model: str
    mib: _Natural
    numa: _Natural | None
    healthy: bool
    links: _Links = ""
    held: str = ""
    memory_mode: str = ""
    driver: str = ""
    parent: _Parent = ""


class _Allocation(msgspec.Struct, frozen=True, gc=False):
    uid: _Text
    containers: _Assignment
    memory: dict[_Text, dict[_Uuid, MemoryRecord]] = {}


class _Holds(msgspec.Struct, frozen=True, gc=False):
    seen: _Version
    uids: list[_Text]
    units: list[dict[_Natural, _Units]] | UnsetType = UNSET
    claims: dict[_Text, dict[_Natural, _Units]] = {}
    claims_compute: dict[_Text, dict[_Natural, _Units]] = {}


@dataclass(frozen=True, slots=True)
class _Annotation(Generic[T]):
    """An annotation on the wire: its decoder, the error for invalid values, and what is allowed."""

    name: str
    error: type[AllocatorError]
    decoder: msgspec.json.Decoder[T]
    allowed: str

    def decoded(self, text: str) -> T:
        """Decode a value; an error names the annotation, the value and what is wrong with it."""
        try:
            return self.decoder.decode(text)
        except msgspec.ValidationError as error:
            raise self.rubbish(text, str(error)) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self.rubbish(text, "not JSON") from error

    def rubbish(self, text: str, problem: str) -> AllocatorError:
        return self.error(
            f"annotation {self.name} is {shown(text, _CUT)}: {problem}; allowed: {self.allowed}"
        )


_ASSIGNED: Final = _Annotation(
    POD_ASSIGNED,
    RequestError,
    msgspec.json.Decoder(_Assignment),
    '{"<container>": [["<card UUID>", <units>], ...], ...}, a card once in a container',
)
_ALLOCATION: Final = _Annotation(
    POD_ALLOCATION,
    RequestError,
    msgspec.json.Decoder(_Allocation),
    '{"uid": "<UID>", "containers": {"<container>": [["<card UUID>", <units>], ...], ...}}',
)
_HOLDS: Final = _Annotation(
    NODE_HOLDS,
    PackingError,
    msgspec.json.Decoder(_Holds),
    '{"seen": "<resourceVersion>", "uids": ["<UID>", ...]}, with "units" one {"<card>": <units>} a UID',
)
_CARDS: Final = _Annotation(
    NODE_CARDS,
    PackingError,
    msgspec.json.Decoder(tuple[CardRecord, ...]),
    'a list of {"uuid", "index", "model", "mib", "numa", "healthy"}, may have "links", each UUID once',
)
_REASONS: Final = _Annotation(
    NODE_CORDON_REASONS,
    PackingError,
    msgspec.json.Decoder(dict[_Uuid, str]),
    '{"<card UUID>": "<why>", ...}',
)


def dump_assigned(assignment: Assignment) -> str:
    return _compact(assignment)


def load_assigned(text: str) -> Assignment:
    """Read `gpupack.io/assigned`.

    Raises:
        RequestError: not a mapping of containers to lists of [card UUID, units].
    """
    return _checked(_ASSIGNED.decoded(text), _ASSIGNED, text)


def dump_allocation(
    uid: str, assignment: Assignment, memory: Mapping[str, Mapping[str, MemoryRecord]] = MappingProxyType({})
) -> str:
    """Write `gpupack.io/allocation` for the pod `uid`, with what is known of its memory."""
    record: dict[str, object] = {"uid": uid, "containers": assignment}
    if memory:
        record["memory"] = msgspec.to_builtins(memory)
    return _compact(record)


def load_allocation(text: str) -> Allocation:
    """Read `gpupack.io/allocation`, of whatever pod; see `read_own_allocation`.

    Raises:
        RequestError: not {"uid", "containers"} with containers as in `load_assigned`.
    """
    record = _ALLOCATION.decoded(text)
    return Allocation(record.uid, _checked(record.containers, _ALLOCATION, text), record.memory)


def read_own_allocation(text: str | None, uid: str) -> Allocation | None:
    """Read the `gpupack.io/allocation` of a pod; None if it has none, or one that is unreadable or copied."""
    try:
        allocation = None if text is None else load_allocation(text)
    except RequestError:
        return None
    return allocation if allocation is not None and allocation.uid == uid else None


def dump_holds(holds: Holds) -> str:
    """Write `gpupack.io/holds`, UIDs sorted so that equal values are equal texts.

    `units` is a list parallel to `uids`, left out where nothing is known. `claims` and
    `claims_compute` are left out where there are none.

    Raises:
        PackingError: units of a pod that is not held.
    """
    uids = sorted(holds.uids)
    record: dict[str, object] = {"seen": str(holds.seen), "uids": uids}
    if not holds.units.keys() <= holds.uids:
        unheld = sorted(holds.units.keys() - holds.uids)
        raise PackingError(f"units of {shown(unheld)}; allowed: pods that are held")
    if holds.units:
        units = (holds.units.get(uid, {}) for uid in uids)
        record["units"] = [dict(sorted(each.items())) if len(each) > 1 else each for each in units]
    if holds.claims:
        record["claims"] = _list_claims(holds, 0)
    if compute := {uid: cards for uid, cards in _list_claims(holds, 1).items() if cards}:
        record["claims_compute"] = compute
    return _compact(record)


def _list_claims(holds: Holds, at: int) -> dict[str, dict[int, int]]:
    return {
        uid: {card: amounts[at] for card, amounts in sorted(cards.items()) if amounts[at]}
        for uid, cards in sorted(holds.claims.items())
    }


def load_holds(text: str) -> Holds:
    """Read `gpupack.io/holds`.

    Raises:
        PackingError: not {"seen": "<number>", "uids": [text, ...]}, or "units" that is no list of objects
            {"<position of a card>": units} parallel to the UIDs.
    """
    record = _HOLDS.decoded(text)
    uids = frozenset(record.uids)
    units: Mapping[str, Mapping[int, int]] = {}
    if record.units is not UNSET:
        if len(record.units) != len(record.uids) or len(uids) != len(record.uids):
            raise _HOLDS.rubbish(text, f"units of {len(record.units)} pods beside {len(uids)} UIDs")
        units = dict(zip(record.uids, record.units, strict=True))
    compute = record.claims_compute
    claims = {uid: pair_amounts(claimed, compute.get(uid, {})) for uid, claimed in record.claims.items()}
    return Holds(int(record.seen), uids, units, claims)


def dump_cards(records: Sequence[CardRecord]) -> str:
    """Write the node's `gpupack.io/cards`, in the order of its words."""
    return _compact(msgspec.to_builtins(records))


def load_cards(text: str) -> tuple[CardRecord, ...]:
    """Read the node's `gpupack.io/cards`.

    Raises:
        PackingError: not a list of cards, or a UUID twice.
    """
    records = _CARDS.decoded(text)
    if len({record.uuid for record in records}) != len(records):
        raise _CARDS.rubbish(text, "a UUID stands twice")
    return records


def load_inventory(text: str, words: NodeWords) -> tuple[CardRecord, ...]:
    """Read the node's `gpupack.io/cards`, which says of each card of the words what these do not.

    Raises:
        PackingError: as `load_cards`, or there is not one record for each card.
    """
    records, cards = load_cards(text), words.layout.cards
    if len(records) != cards:
        raise PackingError(
            f"annotation {NODE_CARDS} has {len(records)} cards; allowed: the {cards} of the words"
        )
    return records


def write_links(links: Sequence[int]) -> str:
    """Write a card's NVLinks to each card of its node; empty if there are none."""
    return "".join(_DIGITS[min(count, len(_DIGITS) - 1)] for count in links) if any(links) else ""


def read_links(text: str, cards: int) -> tuple[int, ...]:
    """Read a card's NVLinks; none if the text is not of so many cards, for they only break ties."""
    return tuple(_DIGITS.index(digit) for digit in text) if len(text) == cards else ()


def load_cordon(text: str) -> frozenset[str]:
    """Read `gpupack.io/cordon`, a comma list of card UUIDs; empty entries are left out.

    Raises:
        PackingError: an entry that cannot be a UUID.
    """
    uuids = frozenset(entry.strip() for entry in text.split(",")) - {""}
    for uuid in sorted(uuids):
        if not is_card_uuid(uuid):
            raise PackingError(
                f"annotation {NODE_CORDON} holds {shown(uuid)}; allowed: a comma list of card UUIDs"
            )
    return uuids


def add_instances(cordon: frozenset[str], parents: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Add the instances of cordoned cards to a cordon: an instance is cordoned with its card.

    Args:
        parents: the UUID of an instance and that of its whole card, each; what has no such card may be there.
    """
    return cordon.union(uuid for uuid, parent in parents if parent in cordon)


def dump_cordon_reasons(reasons: Mapping[str, str]) -> str:
    """Write `gpupack.io/cordon-reasons`, sorted, so that equal values are equal texts."""
    return _compact(dict(sorted(reasons.items())))


def load_cordon_reasons(text: str) -> Mapping[str, str]:
    """Read `gpupack.io/cordon-reasons`: why each card is cordoned.

    Raises:
        PackingError: not a mapping of card UUIDs to text.
    """
    return _REASONS.decoded(text)


def charge(
    request: PodRequest,
    assignment: Assignment,
    sizes: Mapping[str, int] = MappingProxyType({}),
    *,
    partly: bool = False,
) -> dict[str, int]:
    """Add up what a pod costs on each card that its assignment names.

    Args:
        sizes: units of the node's cards by UUID; what a pod that asks for percent costs depends on them.
        partly: percent of a card that is not among `sizes` may be any number of units: the card is gone.

    Returns:
        Units by card UUID: of a pod whose ordinary init containers ask, the effective units on its one card.

    Raises:
        RequestError: the assignment names other containers, units or numbers of cards than the request.
    """
    expected = {container.name for container in request.containers}
    if assignment.keys() != expected:
        raise _mismatch(f"containers {shown(sorted(assignment))}", f"{shown(sorted(expected))}")
    costs: dict[str, int] = {}
    for container in request.containers:
        shares = assignment[container.name]
        # A bound pod is charged again whenever its node changes: no generator, which costs twice as much.
        agrees = len({uuid for uuid, _ in shares}) == request.cards
        for uuid, share in shares:
            due = request.units_of(container, sizes.get(uuid, 0))
            agrees = agrees and (share == due or (partly and request.percent and uuid not in sizes))
            costs[uuid] = costs.get(uuid, 0) + share
        if not agrees:
            each = container.units // request.cards
            raise _mismatch(
                f"container {shown(container.name)} with {shown(list(shares))}",
                f"{each} {'percent' if request.percent else 'units'} on each of {request.cards} cards",
            )
    if request.same_cards and len(costs) != request.cards:
        allowed = "one card" if request.cards == 1 else f"the same {request.cards} cards"
        raise _mismatch(f"cards {shown(sorted(costs))}", f"{allowed} for all containers")
    if not request.shared:
        return costs
    return {uuid: request.demands[0].units_on(sizes.get(uuid, 0)) for uuid in costs}


def charge_assigned_compute(request: PodRequest, assignment: Assignment) -> dict[str, int]:
    """Add up the percent of compute that a pod costs, by UUID, on cards that `charge` agrees with."""
    return request.charge_compute(
        [uuid for uuid, _ in assignment[demand.containers[0]]] for demand in request.demands
    )


def _checked(assignment: Assignment, annotation: _Annotation[Any], text: str) -> Assignment:
    """Check what types cannot say: a card stands once in a container."""
    for shares in assignment.values():
        if len(shares) > 1 and len({uuid for uuid, _ in shares}) != len(shares):
            raise annotation.rubbish(text, "a card stands twice in a container")
    return assignment


def _mismatch(seen: str, allowed: str) -> RequestError:
    return RequestError(f"annotation {POD_ASSIGNED} names {seen}; allowed: {allowed}")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
