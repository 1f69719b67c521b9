"""A packed word, decoded step by step; docs/packed-words.md says the same in prose."""

from collections.abc import Iterator, Mapping

from allocator.names import PACKED_LAYOUT, PACKED_USED_PREFIX
from allocator.packing import Layout
from allocator.quantity import parse_integer


def explain_word(resources: Mapping[str, str | int]) -> tuple[list[str], list[int]]:
    """Decode the first word of used units.

    Args:
        resources: a node's capacity or allocatable, with gpupack's words in it.

    Returns:
        The steps in lines for a person, and the units of the word's cards.
    """
    header = parse_integer(resources[PACKED_LAYOUT])
    layout = Layout.from_header(header)
    word = parse_integer(resources[f"{PACKED_USED_PREFIX}0"])
    fields = min(layout.cards_per_word, layout.cards)
    mask = (1 << layout.bits) - 1
    values = [word >> field * layout.bits & mask for field in range(fields)]
    return list(_steps(header, layout, word, values)), values


def _steps(header: int, layout: Layout, word: int, values: list[int]) -> Iterator[str]:
    yield f"{PACKED_LAYOUT} is {header}. From its low bits upwards:"
    yield f"    4 bits: version          {header & 0xF}"
    yield f"    6 bits: bits a card      {header >> 4 & 0x3F}"
    yield f"   10 bits: cards            {header >> 10 & 0x3FF}"
    yield f"   24 bits: MiB a unit       {header >> 20}"
    digits = f"{word:0{len(values) * layout.bits}b}"
    groups = [digits[start : start + layout.bits] for start in range(0, len(digits), layout.bits)]
    yield f"{PACKED_USED_PREFIX}0 is {word}, in groups of {layout.bits} bits: {' '.join(groups)}"
    mask = (1 << layout.bits) - 1
    for card, value in enumerate(values):
        shift = card * layout.bits
        yield f"   card {card}: {word} >> {shift:2} & {mask} = {value:2}   {value} units in use"
