"""Finds which MIG instances fit on a card, and where: the geometry of A100, H100 and H200; pure.

Source: NVIDIA's Multi-Instance GPU User Guide, "Supported MIG Profiles". A card has 8 slices of memory and 7
of compute units. An instance of each profile takes memory slices that begin at certain ones only. So
3g.40gb + 3g.40gb fill an H100, and 7 of 1g.10gb leave one slice of memory to nobody.

A GPU instance can be divided into compute instances, which share its memory ("MIG Device Names"):
`1c.3g.40gb` is one compute slice of a 3g.40gb. Compute instances that follow one another in a request are put
into the same GPU instance as long as they fit.

The memory of an instance is the driver's to say. Here it is the card's by slices, which is 1 to 3 % more than
drivers were seen to give. For the H200 it is the 16 GiB a slice that they give.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MEMORY_SLICES: Final = 8
INSTANCE_PREFIX: Final = "MIG-"

_MEDIA: Final = "+me"
_PART: Final = re.compile(r"([1-7])c\.(?=[1-7]g\.)")
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


class PartitionError(ValueError):
    """Instances that no such card can have."""


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """An instance to be created: its profile, and the memory slice that it begins at, None for any."""

    profile: str
    start: int | None = None

    @property
    def gpu_profile(self) -> str:
        """Profile of the GPU instance that it is, or is a part of."""
        return _PART.sub("", self.profile)

    @property
    def part(self) -> int | None:
        """Compute slices of a part of a GPU instance, None for a whole one."""
        found = _PART.match(self.profile)
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class MigInstance:
    """An instance of a card.

    Attributes:
        uuid: the same for as long as profile and place are.
        start: the memory slice that it begins at, which numbers its GPU instance.
        memory_mib: MiB that processes can use; parts of one GPU instance share them.
        part: number of its compute instance there.
    """

    uuid: str
    profile: str
    start: int
    memory_mib: int
    part: int = 0


def place_instances(
    card: str,
    model: str,
    schedulable_mib: int,
    wanted: Sequence[InstanceRequest],
    kept: Sequence[MigInstance] = (),
) -> tuple[MigInstance, ...]:
    """Place instances, keeping existing ones where they are if possible.

    Raises:
        PartitionError: the card cannot be partitioned, or not like this; says what is allowed.
    """
    board = _board(model, schedulable_mib)
    for instance in wanted:
        _check(instance, board, model)
    groups = _grouped(wanted)
    if sum(group[0].profile.endswith(_MEDIA) for group in groups) > 1:
        raise PartitionError(f"{board.names[0]}{_MEDIA} twice; allowed: one on a card")
    largest_first = sorted(
        groups, key=lambda group: (group[0].start is None, -board.shapes[group[0].gpu_profile].memory)
    )
    before = {(InstanceRequest(instance.profile).gpu_profile, instance.start) for instance in kept}
    whole = [InstanceRequest(group[0].gpu_profile, group[0].start) for group in largest_first]
    places = _place(whole, board.shapes, before, frozenset())
    if places is None:
        names = " + ".join(instance.profile for instance in wanted)
        slices = sum(board.shapes[instance.profile].memory for instance in whole)
        raise PartitionError(
            f"{names} have no room: they take {slices} of {MEMORY_SLICES} memory slices; allowed to begin at "
            + ", ".join(f"{name}: {_starts(shape)}" for name, shape in board.shapes.items())
        )
    return tuple(
        _instance(
            card, instance.profile, start, number, _memory_mib(board, instance.gpu_profile, schedulable_mib)
        )
        for group, start in sorted(zip(largest_first, places, strict=True), key=lambda each: each[1])
        for number, instance in enumerate(group)
    )


def smallest_profile(model: str, schedulable_mib: int) -> str:
    """Name the smallest instance that a card can have.

    Raises:
        PartitionError: the card cannot be partitioned.
    """
    return _board(model, schedulable_mib).names[0]


def _check(instance: InstanceRequest, board: _Board, model: str) -> None:
    shape = board.shapes.get(instance.gpu_profile)
    if shape is None or (instance.part is not None and instance.part >= int(instance.gpu_profile[0])):
        raise PartitionError(
            f"{instance.profile[:64]!r}; allowed on {model} are {', '.join(board.shapes)}, and parts of them "
            f"with fewer compute slices, as 1c.{board.names[3]}"
        )
    if instance.start not in {None, *shape.starts}:
        starts = ", ".join(map(str, shape.starts))
        raise PartitionError(f"{instance.profile} at memory slice {instance.start}; allowed: {starts}")


def _grouped(wanted: Sequence[InstanceRequest]) -> list[list[InstanceRequest]]:
    """Put what is wanted into GPU instances; all but parts of one are alone in theirs."""
    groups: list[list[InstanceRequest]] = []
    for instance in wanted:
        if groups and _fits(groups[-1], instance):
            groups[-1].append(instance)
        else:
            groups.append([instance])
    return groups


def _fits(group: Sequence[InstanceRequest], instance: InstanceRequest) -> bool:
    """Return True if an instance can be one more part of a GPU instance."""
    parts = [each.part for each in (*group, instance)]
    return (
        None not in parts
        and (group[0].gpu_profile, group[0].start) == (instance.gpu_profile, instance.start)
        and sum(part or 0 for part in parts) <= int(instance.gpu_profile[0])
    )


def _instance(card: str, profile: str, start: int, number: int, memory_mib: int) -> MigInstance:
    name = f"{card} {start} {profile}" if number == 0 else f"{card} {start} {profile} {number}"
    return MigInstance(f"{INSTANCE_PREFIX}{uuid.uuid5(_NAMESPACE, name)}", profile, start, memory_mib, number)


def _board(model: str, schedulable_mib: int) -> _Board:
    for board in _BOARDS:
        fits = schedulable_mib <= board.most_gib * 1024 and board.model in re.split(r"[^A-Za-z0-9]+", model)
        if fits:
            return board
    known = ", ".join(f"{board.model} of {board.most_gib} GB" for board in _BOARDS)
    raise PartitionError(f"{model} of {schedulable_mib} MiB; allowed: {known}")


def _memory_mib(board: _Board, profile: str, schedulable_mib: int) -> int:
    shape = board.shapes[profile]
    whole = shape.memory == MEMORY_SLICES
    each_mib = board.slice_mib or schedulable_mib // MEMORY_SLICES
    return schedulable_mib if whole else min(schedulable_mib, shape.memory * each_mib)


def _place(
    wanted: Sequence[InstanceRequest],
    shapes: Mapping[str, _Shape],
    kept: set[tuple[str, int]],
    taken: frozenset[int],
) -> tuple[int, ...] | None:
    """Find a start slice for each instance, trying the places of `kept` first; None if impossible."""
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
