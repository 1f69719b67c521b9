"""Which MIG instances fit on a card, and where: the geometry of A100, H100 and H200; pure.

Source: NVIDIA's Multi-Instance GPU User Guide, "Supported MIG Profiles". A card has 8 slices of memory and 7
of compute units; an instance of each profile takes memory slices that begin at certain ones only. So
3g.40gb + 3g.40gb fill an H100, and 7 of 1g.10gb leave one slice of memory to nobody.

The memory of an instance is the driver's to say. Here it is the card's by slices, which is 1 to 3 % more than
drivers were seen to give, and for the H200 the 16 GiB a slice that they give.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MEMORY_SLICES: Final = 8

_MEDIA: Final = "+me"
_NAMESPACE: Final = uuid.UUID("6b1b7f0e-5a0c-4c39-9d4e-0d0a4f6e4d47")


@dataclass(frozen=True, slots=True)
class _Shape:
    """Memory slices of an instance and those that it may begin at."""

    memory: int
    starts: tuple[int, ...]


# 1g, 1g with twice the memory, 2g, 3g, 4g, 7g: the same on all boards below.
_SHAPES: Final = (
    _Shape(1, tuple(range(7))),
    _Shape(2, (0, 2, 4, 6)),
    _Shape(2, (0, 2, 4)),
    _Shape(4, (0, 4)),
    _Shape(4, (0,)),
    _Shape(8, (0,)),
)


@dataclass(frozen=True, slots=True)
class _Board:
    """A card that can be partitioned: a word of its model, its GiB at most, and its profiles' names."""

    model: str
    most_gib: int
    names: tuple[str, ...]
    slice_mib: int | None = None

    @property
    def shapes(self) -> Mapping[str, _Shape]:
        """By profile; the smallest exists with media extensions too, once on a card."""
        named = dict(zip(self.names, _SHAPES, strict=True))
        return {**named, self.names[0] + _MEDIA: _SHAPES[0]}


_OF_80: Final = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_BOARDS: Final = (
    _Board("A100", 40, ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")),
    _Board("A100", 80, _OF_80),
    _Board("H100", 80, _OF_80),
    _Board("H200", 141, ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"), 16 * 1024),
)


class LayoutError(ValueError):
    """A layout that no such card can have."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An instance to be created: its profile, and the memory slice that it begins at, None for any."""

    profile: str
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a card.

    Attributes:
        uuid: the same for as long as profile and place are.
        profile: its name, `3g.40gb`.
        start: the memory slice that it begins at.
        memory_mib: MiB that processes can use.
    """

    uuid: str
    profile: str
    start: int
    memory_mib: int


def partition(
    card: str, model: str, schedulable_mib: int, wanted: Sequence[Wanted], kept: Sequence[Instance] = ()
) -> tuple[Instance, ...]:
    """Place the instances of a layout, those that are there already where they are if that is possible.

    Args:
        card: UUID of the card.
        model: name of the card's model.
        schedulable_mib: MiB of the whole card that processes can use.
        wanted: the layout; empty for MIG mode without instances.
        kept: the instances so far.

    Returns:
        The instances by place.

    Raises:
        LayoutError: the card cannot be partitioned, or not like this; says what is allowed.
    """
    board = _board(model, schedulable_mib)
    for one in wanted:
        shape = board.shapes.get(one.profile)
        if shape is None:
            raise LayoutError(f"{one.profile[:64]!r}; allowed on {model} are {', '.join(board.shapes)}")
        if one.start not in {None, *shape.starts}:
            raise LayoutError(
                f"{one.profile} at memory slice {one.start}; allowed are {', '.join(map(str, shape.starts))}"
            )
    if sum(one.profile.endswith(_MEDIA) for one in wanted) > 1:
        raise LayoutError(f"{board.names[0]}{_MEDIA} twice; allowed is one on a card")
    largest_first = sorted(wanted, key=lambda one: (one.start is None, -board.shapes[one.profile].memory))
    before = {(one.profile, one.start) for one in kept}
    places = _place(largest_first, board.shapes, before, frozenset())
    if places is None:
        names = " + ".join(one.profile for one in wanted)
        slices = sum(board.shapes[one.profile].memory for one in wanted)
        raise LayoutError(
            f"{names} have no room: they take {slices} of {MEMORY_SLICES} memory slices; allowed to begin at "
            + ", ".join(f"{name}: {_starts(shape)}" for name, shape in board.shapes.items())
        )
    placed = zip((one.profile for one in largest_first), places, strict=True)
    return tuple(
        Instance(
            f"MIG-{uuid.uuid5(_NAMESPACE, f'{card} {start} {profile}')}",
            profile,
            start,
            _memory_mib(board, board.shapes[profile], schedulable_mib),
        )
        for profile, start in sorted(placed, key=lambda each: each[1])
    )


def _board(model: str, schedulable_mib: int) -> _Board:
    for board in _BOARDS:
        fits = schedulable_mib <= board.most_gib * 1024 and board.model in re.split(r"[^A-Za-z0-9]+", model)
        if fits:
            return board
    known = ", ".join(f"{board.model} of {board.most_gib} GB" for board in _BOARDS)
    raise LayoutError(f"{model} of {schedulable_mib} MiB; allowed are {known}")


def _memory_mib(board: _Board, shape: _Shape, schedulable_mib: int) -> int:
    whole = shape.memory == MEMORY_SLICES
    each_mib = board.slice_mib or schedulable_mib // MEMORY_SLICES
    return schedulable_mib if whole else min(schedulable_mib, shape.memory * each_mib)


def _place(
    wanted: Sequence[Wanted],
    shapes: Mapping[str, _Shape],
    kept: set[tuple[str, int]],
    taken: frozenset[int],
) -> tuple[int, ...] | None:
    """Find a start for each, None where there is no way; tries places of `kept` first."""
    if not wanted:
        return ()
    first, shape = wanted[0], shapes[wanted[0].profile]
    starts = shape.starts if first.start is None else (first.start,)
    for start in sorted(starts, key=lambda at: ((first.profile, at) not in kept, at)):
        slices = frozenset(range(start, start + shape.memory))
        if taken & slices:
            continue
        rest = _place(wanted[1:], shapes, kept, taken | slices)
        if rest is not None:
            return (start, *rest)
    return None


def _starts(shape: _Shape) -> str:
    return "/".join(map(str, shape.starts))
