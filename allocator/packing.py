"""Bit-packed card usage: one integer describes one dimension of all cards of a node.

Card i of a node sits in word `i // cards_per_word`, field `i % cards_per_word`, and a field is `bits` wide;
no card straddles two words. A word carries 53 bits: the API server refuses quantities whose thousandfold
overflows int64, and 53 bits are exact in JSON. Whatever does not decode is rejected, never masked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, Self, get_args

from allocator.errors import PackingError, QuantityError, shown
from allocator.names import (
    MAX_UNIT_MIB,
    PACKED_COMPUTE_LIMIT,
    PACKED_COMPUTE_USED_PREFIX,
    PACKED_LAYOUT,
    PACKED_PREFIX,
    PACKED_REVISION,
    PACKED_SIZE_PREFIX,
    PACKED_USED_PREFIX,
)
from allocator.quantity import parse_integer

PAYLOAD_BITS: Final = 53
MAX_COMPUTE_LIMIT: Final = 1000
"""Largest percent of a card's compute that a node may give away, see `NodeWords.compute_limit`."""

LayoutVersion = Literal[1, 2]
"""1 says sizes and used units; 2 says used compute as well. A reader knows both, the node writes 2."""

MAX_NODE_CARDS: Final = (1 << 10) - 1
"""Most cards that the words of a node can name."""

# The header, low bits first: 4 version, 6 width, 10 card count, 24 unit in MiB.
_BITS_AT: Final = 4
_CARDS_AT: Final = 10
_UNIT_AT: Final = 20
_HEADER_BITS: Final = 44


def width(max_units: int) -> int:
    """Return the bits a field needs for values up to `max_units`, at least 1.

    Raises:
        PackingError: the value is negative or needs more than 53 bits.
    """
    if not 0 <= max_units < 1 << PAYLOAD_BITS:
        raise PackingError(f"card size of {max_units} units; allowed: 0 to {(1 << PAYLOAD_BITS) - 1}")
    return max(1, max_units.bit_length())


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout is how a node's words are divided: field of 1..53 bits, 0..1023 cards, unit of 1..16777215 MiB.

    Attributes:
        version: which words there are, see `LayoutVersion`.

    Raises:
        PackingError: a part is out of its range.
    """

    bits: int
    cards: int
    unit_mib: int
    version: LayoutVersion = 1

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("field width", self.bits, 1, PAYLOAD_BITS),
            ("card count", self.cards, 0, MAX_NODE_CARDS),
            ("unit in MiB", self.unit_mib, 1, MAX_UNIT_MIB),
        ):
            if not low <= value <= high:
                raise PackingError(f"layout with {name} {value}; allowed: {low} to {high}")

    @classmethod
    def from_header(cls, header: int) -> Self:
        """Read a layout header.

        Raises:
            PackingError: an unknown version, bits beyond the header, or a part out of its range.
        """
        if not 0 <= header < 1 << _HEADER_BITS:
            raise PackingError(f"layout header {header}; allowed: {_HEADER_BITS} bits, not negative")
        version = next((known for known in get_args(LayoutVersion) if known == header & 0xF), None)
        if version is None:
            raise PackingError(f"layout header {header} has version {header & 0xF}; allowed: 1 or 2")
        return cls(
            header >> _BITS_AT & 0x3F, header >> _CARDS_AT & MAX_NODE_CARDS, header >> _UNIT_AT, version
        )

    @property
    def header(self) -> int:
        """The layout as one integer: `version | bits << 4 | cards << 10 | unit_mib << 20`."""
        return self.version | self.bits << _BITS_AT | self.cards << _CARDS_AT | self.unit_mib << _UNIT_AT

    @property
    def cards_per_word(self) -> int:
        """Fields in one word."""
        return PAYLOAD_BITS // self.bits

    @property
    def word_count(self) -> int:
        """Words that hold one value for every card."""
        return -(-self.cards // self.cards_per_word)


def encode(values: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Pack one value per card into words.

    Raises:
        PackingError: not exactly one value per card, or a value outside 0..2^bits-1.
    """
    if len(values) != layout.cards:
        raise PackingError(f"{len(values)} values for {layout.cards} cards; allowed: one for each card")
    for card, value in enumerate(values):
        if not 0 <= value < 1 << layout.bits:
            raise PackingError(
                f"card {card} has value {value}; allowed: 0 to {(1 << layout.bits) - 1}, {layout.bits} bits"
            )
    step = layout.cards_per_word
    return tuple(
        sum(value << field * layout.bits for field, value in enumerate(values[start : start + step]))
        for start in range(0, layout.cards, step)
    )


def decode(words: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Unpack words into one value per card; the exact inverse of `encode`.

    Raises:
        PackingError: the wrong number of words, a negative word, or bits set beyond the word's last card.
    """
    if len(words) != layout.word_count:
        raise PackingError(
            f"{len(words)} words for {layout.cards} cards of {layout.bits} bits; allowed: {layout.word_count}"
        )
    step, mask = layout.cards_per_word, (1 << layout.bits) - 1
    values: list[int] = []
    for index, word in enumerate(words):
        fields = min(step, layout.cards - index * step)
        if not 0 <= word < 1 << fields * layout.bits:
            raise PackingError(
                f"word {index} is {word}; allowed: {fields} cards of {layout.bits} bits, not negative"
            )
        values.extend(word >> field * layout.bits & mask for field in range(fields))
    return tuple(values)


@dataclass(frozen=True, slots=True)
class NodeWords:
    """A node's published state, decoded: what each card has and what of it is used, and a revision.

    Attributes:
        sizes: units of each card.
        used: used units of each card.
        compute_limit: percent of its compute that each card gives away in all, 1 to 1000. 0 in version 1 of
            the layout: nothing is known of compute, and the node gives none away.
        compute_used: percent of its compute that is given away of each card; empty in version 1.

    Raises:
        PackingError: Not one value for each card, one that does not fit the layout, more used than there is,
            a limit that does not go with the layout's version, or a revision outside 0..2^53-1.
    """

    layout: Layout
    sizes: tuple[int, ...]
    used: tuple[int, ...]
    revision: int
    compute_limit: int = 0
    compute_used: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.revision < 1 << PAYLOAD_BITS:
            raise PackingError(f"revision {self.revision}; allowed: {PAYLOAD_BITS} bits, not negative")
        _check_compute_limit(self.layout, self.compute_limit)
        computed = self.layout.cards if self.compute_limit else 0
        for name, values, count in (
            ("sizes", self.sizes, self.layout.cards),
            ("used values", self.used, self.layout.cards),
            ("values of used compute", self.compute_used, computed),
        ):
            if len(values) != count:
                raise PackingError(f"{len(values)} {name} for {count} cards; allowed: one for each card")
        top = (1 << self.layout.bits) - 1
        for card, (size, used) in enumerate(zip(self.sizes, self.used, strict=True)):
            if not 0 <= used <= size <= top:
                raise PackingError(
                    f"card {card} has {used} of {size} units used; allowed: 0 <= used <= size <= {top}"
                )
        for card, compute in enumerate(self.compute_used):
            if not 0 <= compute <= self.compute_limit:
                raise PackingError(
                    f"card {card} has {compute} percent of compute used; allowed: 0 to {self.compute_limit}"
                )

    @classmethod
    def of(
        cls,
        unit_mib: int,
        sizes: Sequence[int],
        used: Sequence[int],
        revision: int,
        compute_limit: int = 0,
        compute_used: Sequence[int] = (),
    ) -> Self:
        """Build the record with the narrowest layout that holds the sizes, of version 2 with a limit."""
        layout = Layout(width(max(sizes, default=0)), len(sizes), unit_mib, 2 if compute_limit else 1)
        return cls(layout, tuple(sizes), tuple(used), revision, compute_limit, tuple(compute_used))


def _check_compute_limit(layout: Layout, limit: int) -> None:
    low, high = (0, 0) if layout.version == 1 else (1, MAX_COMPUTE_LIMIT)
    if not low <= limit <= high:
        raise PackingError(f"compute limit {limit}; allowed: {low} to {high} percent")


@lru_cache(maxsize=64)
def _compute_layout(layout: Layout, limit: int) -> Layout:
    """Return how the words of used compute are divided: as the others, by fields that hold the limit."""
    return replace(layout, bits=width(limit))


def node_resources(words: NodeWords) -> dict[str, int]:
    """Write a node's state as extended resources: layout, words, compute limit, revision."""
    resources = {PACKED_LAYOUT: words.layout.header}
    rows = [(PACKED_SIZE_PREFIX, words.sizes, words.layout), (PACKED_USED_PREFIX, words.used, words.layout)]
    if words.compute_limit:
        resources[PACKED_COMPUTE_LIMIT] = words.compute_limit
        layout = _compute_layout(words.layout, words.compute_limit)
        rows.append((PACKED_COMPUTE_USED_PREFIX, words.compute_used, layout))
    for prefix, values, layout in rows:
        for index, word in enumerate(encode(values, layout)):
            resources[f"{prefix}{index}"] = word
    resources[PACKED_REVISION] = words.revision
    return resources


def read_node(resources: Mapping[str, str | int]) -> NodeWords | None:
    """Read a node's state from its capacity or allocatable; None if it has none of our words.

    Raises:
        PackingError: words are missing, superfluous, not whole numbers, or do not decode.
    """
    ours = {name: value for name, value in resources.items() if name.startswith(PACKED_PREFIX)}
    if not ours:
        return None
    layout = recall_layout(_integer(ours, PACKED_LAYOUT))
    sizes = _words(ours, PACKED_SIZE_PREFIX, layout)
    used = _words(ours, PACKED_USED_PREFIX, layout)
    revision = _integer(ours, PACKED_REVISION)
    if layout.version == 1:
        return NodeWords(layout, sizes, used, revision)
    limit = _integer(ours, PACKED_COMPUTE_LIMIT)
    _check_compute_limit(layout, limit)
    compute = _words(ours, PACKED_COMPUTE_USED_PREFIX, _compute_layout(layout, limit))
    return NodeWords(layout, sizes, used, revision, limit, compute)


recall_layout: Final = lru_cache(maxsize=64)(Layout.from_header)
"""`Layout.from_header`, remembered: a cluster has few different layouts."""


@lru_cache(maxsize=64)
def _name_words(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{index}" for index in range(count))


def _words(resources: Mapping[str, str | int], prefix: str, layout: Layout) -> tuple[int, ...]:
    expected = _name_words(prefix, layout.word_count)
    superfluous = [name for name in resources if name.startswith(prefix) and name not in expected]
    if superfluous:
        raise PackingError(
            f"resource {shown(min(superfluous))} is not in the layout; allowed: {layout.word_count} words"
        )
    try:
        return decode([_integer(resources, name) for name in expected], layout)
    except PackingError as error:
        raise PackingError(f"{prefix}*: {error}") from error


def _integer(resources: Mapping[str, str | int], name: str) -> int:
    if name not in resources:
        raise PackingError(f"resource {name} is missing; allowed: a complete set of words")
    try:
        return parse_integer(resources[name])
    except QuantityError as error:
        raise PackingError(f"resource {name}: {error}") from error
