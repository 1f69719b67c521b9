"""A second reading of a node's packed words, written from the format's description and nothing else.

The product has its own decoder; the tests use this one so that a mistake in it cannot hide itself.
"""

import json
from dataclasses import dataclass
from typing import Any

PREFIX = "gpupack.io/packed-"
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
PAYLOAD_BITS = 53


@dataclass(frozen=True, slots=True)
class CardState:
    """One card as its Node object shows it; amounts in units, compute in percent."""

    uuid: str
    size: int
    used: int
    healthy: bool
    compute: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a Node object says about its cards, and which pods its words contain."""

    revision: int
    unit_mib: int
    cards: tuple[CardState, ...]
    holds: frozenset[str]

    @property
    def used(self) -> list[int]:
        return [card.used for card in self.cards]

    @property
    def compute(self) -> list[int]:
        """Percent of compute that is given away, by card."""
        return [card.compute for card in self.cards]

    @property
    def used_by_uuid(self) -> dict[str, int]:
        return {card.uuid: card.used for card in self.cards if card.used}


def integer(quantity: str) -> int:
    """A canonical whole quantity of the API server ("5k") as an integer."""
    return int(quantity[:-1]) * SUFFIXES[quantity[-1]] if quantity[-1] in SUFFIXES else int(quantity)


def node_state(node: dict[str, Any]) -> NodeState | None:
    """Read a Node object; None where it carries no words."""
    capacity = {key.removeprefix(PREFIX): integer(value) for key, value in _ours(node, "capacity").items()}
    allocatable = {
        key.removeprefix(PREFIX): integer(value) for key, value in _ours(node, "allocatable").items()
    }
    if "layout" not in capacity:
        return None
    assert capacity == allocatable, f"capacity and allocatable differ: {capacity} {allocatable}"
    layout = capacity["layout"]
    version = layout & 0xF
    assert version in {1, 2}, f"layout version {version}"
    bits, count, unit_mib = layout >> 4 & 0x3F, layout >> 10 & 0x3FF, layout >> 20
    annotations = node["metadata"].get("annotations", {})
    inventory = json.loads(annotations.get("gpupack.io/cards", "[]"))
    assert len(inventory) == count, f"{count} cards in the words, {len(inventory)} in the inventory"
    sizes, used = (_decode(capacity, kind, bits, count) for kind in ("size", "used"))
    compute = [0] * count
    if version > 1:
        compute = _decode(capacity, "compute-used", capacity["compute-limit"].bit_length(), count)
    cards = [
        CardState(entry["uuid"], size, taken, entry["healthy"], percent)
        for entry, size, taken, percent in zip(inventory, sizes, used, compute, strict=True)
    ]
    holds = json.loads(annotations.get("gpupack.io/holds", '{"uids": []}'))["uids"]
    return NodeState(capacity["revision"], unit_mib, tuple(cards), frozenset(holds))


def _ours(node: dict[str, Any], part: str) -> dict[str, str]:
    return {key: value for key, value in node["status"].get(part, {}).items() if key.startswith(PREFIX)}


def _decode(values: dict[str, int], kind: str, bits: int, count: int) -> list[int]:
    per_word = PAYLOAD_BITS // bits
    return [
        values[f"{kind}-{card // per_word}"] >> card % per_word * bits & (1 << bits) - 1
        for card in range(count)
    ]
