"""Reads what one container asks of HAMi, Volcano, gpushare, KAI, Run:ai or NVIDIA's device plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from typing import Any, Final

from allocator.errors import QuantityError, shown
from allocator.names import COMPUTE_RESOURCE, MIB_PER_GIB, PERCENT_RESOURCE
from allocator.quantity import parse_integer

GPU: Final = "nvidia.com/gpu"
SHARED_GPU: Final = "nvidia.com/gpu.shared"
MIG_PREFIX: Final = "nvidia.com/mig-"
HAMI_MIB: Final = "nvidia.com/gpumem"
HAMI_PERCENT: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"
HAMI_PRIORITY: Final = "nvidia.com/priority"
GPUSHARE_MEMORY: Final = "aliyun.com/gpu-mem"
GPUSHARE_COUNT: Final = "aliyun.com/gpu-count"

KAI_FRACTION: Final = "gpu-fraction"
KAI_MIB: Final = "gpu-memory"
KAI_CARDS: Final = "gpu-fraction-num-devices"
KAI_CONTAINER: Final = "gpu-fraction-container-name"
KAI_AMOUNTS: Final = (KAI_FRACTION, KAI_MIB, KAI_CARDS)
"""Annotations of a pod, by which one container of it asks; Run:ai's are the same."""
KAI_COMPUTE: Final = "gpu-sm-percentage"
"""Annotation of a pod: the percent of its cards' multiprocessors that it may use."""

_LIKE_HAMI: Final = {
    "volcano.sh/vgpu-number": GPU,
    "volcano.sh/vgpu-memory": HAMI_MIB,
    "volcano.sh/vgpu-memory-percentage": HAMI_PERCENT,
    "volcano.sh/vgpu-cores": HAMI_CORES,
    "volcano.sh/gpu-number": GPU,
    "volcano.sh/gpu-memory": HAMI_MIB,
    KAI_MIB: HAMI_MIB,
    KAI_FRACTION: HAMI_PERCENT,
    KAI_CARDS: GPU,
    KAI_COMPUTE: HAMI_CORES,
}
"""Names of Volcano, KAI and Run:ai for what HAMi's mean; a fraction of a card is read as percent of it."""

RESOURCES: Final = frozenset(
    {GPU, SHARED_GPU, HAMI_MIB, HAMI_PERCENT, HAMI_CORES, HAMI_PRIORITY, GPUSHARE_MEMORY, GPUSHARE_COUNT}
    | {name for name in _LIKE_HAMI if name not in {*KAI_AMOUNTS, KAI_COMPUTE}}
)
_EXCLUSIVE: Final = (
    (GPUSHARE_MEMORY, GPU),
    (GPUSHARE_MEMORY, SHARED_GPU),
    (GPUSHARE_MEMORY, HAMI_MIB),
    (GPUSHARE_MEMORY, HAMI_PERCENT),
    (GPU, SHARED_GPU),
    (HAMI_MIB, HAMI_PERCENT),
)
WHOLE_PERCENT: Final = 100
_MEMORY: Final = frozenset(
    {GPUSHARE_MEMORY, HAMI_MIB, *(name for name, like in _LIKE_HAMI.items() if like == HAMI_MIB)}
)
_COMPUTE: Final = frozenset({HAMI_CORES, *(name for name, like in _LIKE_HAMI.items() if like == HAMI_CORES)})


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """How to read what manifests leave open.

    Attributes:
        gpushare_unit_mib: MiB of one `aliyun.com/gpu-mem`: 1024, or 1 where its plugin counts MiB.
        gpu_gib: GiB for each `nvidia.com/gpu` or `nvidia.com/gpu.shared` that says no memory; None: none.
    """

    unit_mib: int
    gpushare_unit_mib: int
    gpu_gib: int | None
    scheduler_name: str


@dataclass(frozen=True, slots=True)
class CardRequest:
    """What a container wants in gpupack's terms: memory or percent, all its cards together.

    Attributes:
        units: units of GPU memory; 0 if `percent` says it.
        percent: percent of a card, 100 for each whole one; 0 if `units` says it.
        compute: percent of the compute of each card; 0 if it takes what is left.
    """

    cards: int
    units: int = 0
    percent: int = 0
    compute: int = 0
    notes: tuple[str, ...] = ()

    def list_amounts(self, resource: str) -> dict[str, int]:
        """List what stands in the container's limits, memory first; `resource` counts units."""
        memory = {resource: self.units} if self.units else {PERCENT_RESOURCE: self.percent}
        return memory | ({COMPUTE_RESOURCE: self.compute} if self.compute else {})


class UntranslatableError(ValueError):
    """Raised where gpupack cannot do the same; the message says what to write."""


def is_peer_resource(resource: str) -> bool:
    return resource in RESOURCES or resource.startswith(MIG_PREFIX)


def is_peer_compute(resource: str) -> bool:
    return resource in _COMPUTE


def read_amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    """Read the amounts of the others' resources; the limit counts, as with every extended resource."""
    found: dict[str, Any] = {}
    resources = container.get("resources")
    for field in ("requests", "limits"):
        part = resources.get(field) if isinstance(resources, dict) else None
        if isinstance(part, dict):
            found |= {name: amount for name, amount in part.items() if is_peer_resource(name)}
    return found


def translate_amounts(amounts: Mapping[str, Any], options: MigrationOptions) -> CardRequest | None:
    """Translate the amounts of one container, as `read_amounts` read them; None if it asks for no card.

    Raises:
        UntranslatableError: nothing in gpupack does the same.
    """
    if not amounts:
        return None
    names = {_LIKE_HAMI.get(name, name): name for name in amounts}
    annotated = [name for name in amounts if name in KAI_AMOUNTS]
    mixed = annotated and not amounts.keys() <= {*KAI_AMOUNTS, KAI_COMPUTE}
    if len(names) < len(amounts) or mixed:
        raise UntranslatableError(f"{' and '.join(amounts)} for one container: keep the names of one")
    _refuse_without_peer(names)
    numbers = {like: _number(name, amounts[name]) for like, name in names.items()}
    request = _memory_of(numbers, names, amounts, options)
    compute = numbers.get(HAMI_CORES, 0)
    if request is None or not compute:
        return request
    name = names[HAMI_CORES]
    if compute > WHOLE_PERCENT:
        raise UntranslatableError(f"{name}: {compute}; allowed: 1 to {WHOLE_PERCENT}")
    note = f"{name}: {compute} becomes {COMPUTE_RESOURCE}, which counts everywhere and is held by MPS alone"
    if compute == WHOLE_PERCENT:
        note += f"; for a card alone ask for {PERCENT_RESOURCE}: {WHOLE_PERCENT}"
    return replace(request, compute=compute, notes=(*request.notes, note))


def _memory_of(
    numbers: Mapping[str, int],
    names: Mapping[str, str],
    amounts: Mapping[str, Any],
    options: MigrationOptions,
) -> CardRequest | None:
    if GPUSHARE_MEMORY in numbers:
        return _memory(1, numbers[GPUSHARE_MEMORY] * options.gpushare_unit_mib, options, ())
    # HAMi's webhook sets 1 where only memory or cores are asked for.
    cards = numbers.get(GPU, numbers.get(SHARED_GPU, 1))
    notes: tuple[str, ...] = ()
    if HAMI_PRIORITY in numbers:
        notes = (f"{HAMI_PRIORITY} is left out: gpupack has no priorities among pods on one card",)
    if names.get(HAMI_PERCENT) == KAI_FRACTION:
        notes += _rounded(amounts[KAI_FRACTION], numbers[HAMI_PERCENT])
    if not cards:
        return None
    if numbers.get(HAMI_MIB):
        return _memory(cards, numbers[HAMI_MIB], options, notes)
    if numbers.get(HAMI_PERCENT):
        return _percent(cards, numbers[HAMI_PERCENT], notes, names[HAMI_PERCENT])
    return _without_memory(cards, options, notes, shared=SHARED_GPU in numbers)


def _refuse_without_peer(names: Mapping[str, str]) -> None:
    for name in names:
        if name.startswith(MIG_PREFIX):
            raise UntranslatableError(
                f"{name} is a MIG instance: gpupack lists a card in MIG mode as its instances; ask for the "
                "instance's memory in gpupack.io/gpu-memory-gib"
            )
    if GPUSHARE_COUNT in names:
        raise UntranslatableError(
            f"{GPUSHARE_COUNT}: write the sum of all cards in gpupack.io/gpu-memory-gib and their number in "
            "the annotation gpupack.io/cards"
        )
    for one, other in _EXCLUSIVE:
        if one in names and other in names:
            raise UntranslatableError(f"{names[one]} and {names[other]} for one container: keep one of them")


def _without_memory(
    cards: int, options: MigrationOptions, notes: tuple[str, ...], *, shared: bool
) -> CardRequest | None:
    """Translate cards of which only the number is known."""
    if options.gpu_gib is not None:
        return _memory(cards, options.gpu_gib * MIB_PER_GIB, options, notes)
    if shared:
        raise UntranslatableError(
            f"{SHARED_GPU} is a replica that says no memory: give --gpu-gib, the GiB that each may use"
        )
    whole = (
        f"{GPU}: {cards} becomes {'a whole card' if cards == 1 else f'{cards} whole cards'}; where NVIDIA's "
        "plugin makes replicas (time-slicing, MPS) or HAMi has a default memory, give --gpu-gib instead"
    )
    return _percent(cards, WHOLE_PERCENT, (*notes, whole))


def _memory(
    cards: int, mib_per_card: int, options: MigrationOptions, notes: tuple[str, ...]
) -> CardRequest | None:
    """Ask for memory on each of some cards, rounded up to whole units."""
    if not mib_per_card:
        return None
    units = -(-mib_per_card // options.unit_mib)
    if units * options.unit_mib != mib_per_card:
        notes = (
            *notes,
            f"{mib_per_card} MiB on each card rounded up to {units} units of {options.unit_mib} MiB",
        )
    return CardRequest(cards, units=cards * units, notes=notes)


def _percent(cards: int, percent: int, notes: tuple[str, ...], name: str = HAMI_PERCENT) -> CardRequest:
    if not 1 <= percent <= WHOLE_PERCENT:
        raise UntranslatableError(f"{name}: {percent}; allowed: 1 to {WHOLE_PERCENT}")
    return CardRequest(cards, percent=cards * percent, notes=notes)


def _number(name: str, amount: Any) -> int:
    if name == KAI_FRACTION:
        return _percent_of_fraction(str(amount))
    try:
        number = parse_integer(str(amount))
    except QuantityError as error:
        hint = "; replace the placeholder first, as envsubst does" if "$" in str(amount) else ""
        raise UntranslatableError(f"{name}: {error}{hint}") from error
    if number < 0 or (name in _MEMORY and not str(amount).isdigit()):
        # `8Gi` would be 8 589 934 592 MiB.
        raise UntranslatableError(f"{name}: {shown(str(amount))}; allowed: a whole number without a suffix")
    return number


def _percent_of_fraction(text: str) -> int:
    """Read a fraction of a card as percent of it, rounded up."""
    try:
        percent = Decimal(text) * WHOLE_PERCENT
        is_share = 0 < percent <= WHOLE_PERCENT
    except ArithmeticError:
        is_share = False
    if not is_share:
        raise UntranslatableError(f"{KAI_FRACTION}: {shown(text)}; allowed: a number above 0, up to 1")
    return ceil(percent)


def _rounded(fraction: Any, percent: int) -> tuple[str, ...]:
    if Decimal(str(fraction)) * WHOLE_PERCENT == percent:
        return ()
    return (f"{KAI_FRACTION}: {fraction} rounded up to {percent} percent",)
