"""The JSON that travels in annotations, and its values.

Pod annotations: `assigned` and `allocation`. Node annotations: `holds`, `cards` and the comma list `cordon`.
Anybody may have written them, so loading checks everything and says what is wrong.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from allocator.cards import Card
from allocator.errors import AllocatorError, PackingError, RequestError, shown
from allocator.ids import is_card_uuid
from allocator.names import NODE_CARDS, NODE_CORDON, NODE_HOLDS, POD_ALLOCATION, POD_ASSIGNED
from allocator.packing import NodeWords
from allocator.request import PodRequest

Assignment = Mapping[str, tuple[tuple[str, int], ...]]
"""Container name -> pairs of a card's UUID and units on it."""

LARGEST_NUMBER: Final = (1 << 31) - 1
"""The largest number in a record: units, MiB, or an index."""

_CUT: Final = 256


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the containers of the pod `uid` really got."""

    uid: str
    containers: Assignment


@dataclass(frozen=True, slots=True)
class Holds:
    """What a node's words contain.

    Attributes:
        seen: resourceVersion of the newest pod event that the words take into account.
        uids: pods whose units the words certainly contain.
        units: by UID, units by the card's position in the words; empty where the release before wrote it.
    """

    seen: int
    uids: frozenset[str]
    units: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardRecord:
    """A card in the inventory: UUID, driver's index, model, schedulable MiB, NUMA node if known, health."""

    uuid: str
    index: int
    model: str
    mib: int
    numa: int | None
    healthy: bool


def dump_assigned(assignment: Assignment) -> str:
    """Write `gpupack.io/assigned`."""
    return _compact(assignment)


def load_assigned(text: str) -> Assignment:
    """Read `gpupack.io/assigned`.

    Raises:
        RequestError: not a mapping of containers to lists of [card UUID, units].
    """
    try:
        return _assignment(_json(text))
    except _ShapeError as error:
        raise _rubbish(RequestError, POD_ASSIGNED, text, error) from error


def dump_allocation(uid: str, assignment: Assignment) -> str:
    """Write `gpupack.io/allocation` for the pod `uid`."""
    return _compact({"uid": uid, "containers": assignment})


def load_allocation(text: str) -> Allocation:
    """Read `gpupack.io/allocation`; the caller compares the UID, for annotations get copied.

    Raises:
        RequestError: not {"uid", "containers"} with containers as in `load_assigned`.
    """
    try:
        record = _object(_json(text), "uid", "containers")
        return Allocation(_text(record["uid"], "uid"), _assignment(record["containers"]))
    except _ShapeError as error:
        raise _rubbish(RequestError, POD_ALLOCATION, text, error) from error


def dump_holds(holds: Holds) -> str:
    """Write `gpupack.io/holds`, UIDs sorted so that equal values are equal texts."""
    uids = sorted(holds.uids)
    record: dict[str, object] = {"seen": str(holds.seen), "uids": uids}
    if holds.units:
        record["units"] = [
            {str(card): units for card, units in sorted(holds.units[uid].items())} for uid in uids
        ]
    return _compact(record)


def load_holds(text: str) -> Holds:
    """Read `gpupack.io/holds`.

    Raises:
        PackingError: not {"seen": "<number>", "uids": [text, ...]}.
    """
    try:
        record = _object(_json(text), "seen", "uids")
        uids = [_text(uid, "uid") for uid in _list(record["uids"], "uids")]
        return Holds(_version(record["seen"]), frozenset(uids), _units(uids, record.get("units")))
    except _ShapeError as error:
        raise _rubbish(PackingError, NODE_HOLDS, text, error) from error


def dump_cards(records: Sequence[CardRecord]) -> str:
    """Write the node's `gpupack.io/cards`, in the order of its words."""
    return _compact([asdict(record) for record in records])


def load_cards(text: str) -> tuple[CardRecord, ...]:
    """Read the node's `gpupack.io/cards`.

    Raises:
        PackingError: not a list of cards, or a UUID twice.
    """
    try:
        return _inventory(_json(text))
    except _ShapeError as error:
        raise _rubbish(PackingError, NODE_CARDS, text, error) from error


def load_cordon(text: str) -> frozenset[str]:
    """Read `gpupack.io/cordon`, a comma list of card UUIDs; empty entries are left out.

    Raises:
        PackingError: an entry that cannot be a UUID.
    """
    uuids = frozenset(entry.strip() for entry in text.split(",")) - {""}
    for uuid in sorted(uuids):
        if not is_card_uuid(uuid):
            raise PackingError(
                f"annotation {NODE_CORDON} holds {shown(uuid)}: allowed is a comma list of card UUIDs"
            )
    return uuids


def join_cards(
    words: NodeWords, inventory: Sequence[CardRecord], cordoned: frozenset[str] = frozenset()
) -> tuple[Card, ...]:
    """Join a node's words with its inventory into cards, in the order of the words.

    Raises:
        PackingError: the inventory does not have one record per card.
    """
    if len(inventory) != words.layout.cards:
        raise PackingError(
            f"annotation {NODE_CARDS} has {len(inventory)} cards: "
            f"allowed are the {words.layout.cards} of the words"
        )
    return tuple(
        Card(
            index=record.index,
            uuid=record.uuid,
            model=record.model,
            size_units=size,
            used_units=used,
            healthy=record.healthy,
            cordoned=record.uuid in cordoned,
            numa=record.numa,
        )
        for record, size, used in zip(inventory, words.sizes, words.used, strict=True)
    )


def charge(request: PodRequest, assignment: Assignment) -> dict[str, int]:
    """Add up what a pod costs on each card that its assignment names.

    Returns:
        Units by card UUID: of a pod whose ordinary init containers ask, the effective units on its one card.

    Raises:
        RequestError: the assignment names other containers, units or numbers of cards than the request.
    """
    expected = {container.name: container.units for container in request.containers}
    if set(assignment) != set(expected):
        raise _mismatch(f"containers {shown(sorted(assignment))}", f"{shown(sorted(expected))}")
    costs: dict[str, int] = {}
    for container in request.containers:
        shares = assignment[container.name]
        units = container.units // request.cards
        if len({uuid for uuid, _ in shares}) != request.cards or any(share != units for _, share in shares):
            raise _mismatch(
                f"container {shown(container.name)} with {shown(list(shares))}",
                f"{units} units on each of {request.cards} cards",
            )
        for uuid, share in shares:
            costs[uuid] = costs.get(uuid, 0) + share
    if not request.shared:
        return costs
    if len(costs) != 1:
        raise _mismatch(f"cards {shown(sorted(costs))}", "one card for all containers")
    return dict.fromkeys(costs, request.effective_units)


class _ShapeError(Exception):
    """What is wrong with a decoded text; becomes an error that names the annotation."""


def _rubbish(kind: type[AllocatorError], annotation: str, text: str, problem: _ShapeError) -> AllocatorError:
    return kind(f"annotation {annotation} is {shown(text, _CUT)}: {problem}")


def _mismatch(seen: str, allowed: str) -> RequestError:
    return RequestError(f"annotation {POD_ASSIGNED} names {seen}: allowed is {allowed}")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _ShapeError("not JSON") from error


def _object(value: Any, *keys: str) -> dict[str, Any]:
    """Check for an object with at least these keys; others are left for later versions."""
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        raise _ShapeError(f"allowed is an object with {', '.join(keys)}")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _ShapeError(f"{name} is not a list")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise _ShapeError(f"{name} is not a non-empty text")
    return value


def _number(value: Any, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST_NUMBER:
        raise _ShapeError(f"{name} is not a whole number from {least} to {LARGEST_NUMBER}")
    return value


def _version(value: Any) -> int:
    text = _text(value, "seen")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 64))):
        raise _ShapeError("seen is not a resourceVersion")
    return int(text)


def _uuid(value: Any) -> str:
    if not isinstance(value, str) or not is_card_uuid(value):
        raise _ShapeError("a card UUID is not one")
    return value


def _units(uids: Sequence[str], value: Any) -> dict[str, dict[int, int]]:
    if value is None:
        return {}
    found = _list(value, "units")
    if len(found) != len(uids):
        raise _ShapeError("units does not have one entry for each UID")
    return {
        uid: {_position(card): _number(units, "units", 0) for card, units in _object(entry).items()}
        for uid, entry in zip(uids, found, strict=True)
    }


def _position(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _ShapeError("a card's position is not a number")
    return int(text)


def _assignment(value: Any) -> Assignment:
    if not isinstance(value, dict):
        raise _ShapeError("allowed is an object of containers")
    return {_text(name, "container"): _shares(shares) for name, shares in value.items()}


def _shares(value: Any) -> tuple[tuple[str, int], ...]:
    pairs = [_list(pair, "a card's share") for pair in _list(value, "a container's share")]
    if not pairs or any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004 (a pair)
        raise _ShapeError("allowed is a list of [card UUID, units] for each container")
    shares = tuple((_uuid(uuid), _number(units, "units", 1)) for uuid, units in pairs)
    if len({uuid for uuid, _ in shares}) != len(shares):
        raise _ShapeError("a card stands twice in a container")
    return shares


def _inventory(value: Any) -> tuple[CardRecord, ...]:
    records = tuple(_card(item) for item in _list(value, "the inventory"))
    if len({record.uuid for record in records}) != len(records):
        raise _ShapeError("a UUID stands twice")
    return records


def _card(value: Any) -> CardRecord:
    record = _object(value, "uuid", "index", "model", "mib", "numa", "healthy")
    if not isinstance(record["model"], str):
        raise _ShapeError("model is not a text")
    if not isinstance(record["healthy"], bool):
        raise _ShapeError("healthy is not true or false")
    return CardRecord(
        uuid=_uuid(record["uuid"]),
        index=_number(record["index"], "index", 0),
        model=record["model"],
        mib=_number(record["mib"], "mib", 0),
        numa=None if record["numa"] is None else _number(record["numa"], "numa", 0),
        healthy=record["healthy"],
    )
