"""From GPUs as the driver shows them to cards in units, and whether a kubelet can take them as devices."""

from collections.abc import Callable, Sequence
from typing import Final

from allocator.cards import Card
from allocator.ids import device_id
from allocator.records import CardRecord, write_links
from deviceplugin.errors import DeviceListError
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuCard

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Longest message that a kubelet reads; it gets the whole list of devices in one."""

NUMA_MODE: Final = "numa"
"""Name of the mode in which the operating system manages a card's memory."""

_DEVICE_BYTES: Final = 2 + 2 + (2 + len("Unhealthy"))
"""What a device adds to the list besides its ID: a key and a length for itself, its ID and its health.

All are weighed as unhealthy, the longer word: a list that was accepted stays acceptable when cards fail.
"""


def cards_in_units(gpus: Sequence[GpuCard], unit_mib: int) -> tuple[Card, ...]:
    """Turn GPUs into cards, in word order; a card that cannot be used has no units and is unhealthy.

    Args:
        unit_mib: MiB a unit; what is left over on a card is lost.
    """
    return tuple(
        Card(
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            size_units=0 if gpu.error else gpu.schedulable_mib // unit_mib,
            used_units=0,
            healthy=gpu.error is None,
            numa=gpu.numa,
            links=links,
        )
        for gpu, links in zip(gpus, _links(gpus), strict=True)
    )


def _links(gpus: Sequence[GpuCard]) -> list[tuple[int, ...]]:
    """Write each card's links by the position of the other one; empty if it has none."""
    found = [dict(gpu.links) for gpu in gpus]
    return [tuple(links.get(gpu.uuid, 0) for gpu in gpus) if links else () for links in found]


def check_units(gpus: Sequence[GpuCard], unit_mib: int) -> None:
    """Refuse a unit larger than every card, or one whose list of devices is too long for the kubelet.

    Raises:
        DeviceListError: names the largest, or the smallest unit in MiB that would fit.
    """
    largest_mib = max((gpu.schedulable_mib for gpu in gpus if gpu.error is None), default=unit_mib)
    if largest_mib < unit_mib:
        raise DeviceListError(
            f"unit of {unit_mib} MiB: no card holds one; allowed here are units of up to {largest_mib} MiB"
        )
    weight_bytes = list_bytes(cards_in_units(gpus, unit_mib))
    if weight_bytes > MAX_MESSAGE_BYTES:
        raise DeviceListError(
            f"unit of {unit_mib} MiB: the list of devices would have {weight_bytes} bytes, a kubelet takes "
            f"{MAX_MESSAGE_BYTES}: allowed here are units of {smallest_unit(gpus)} MiB or more"
        )


def smallest_unit(gpus: Sequence[GpuCard]) -> int:
    """Find the smallest unit in MiB whose list of devices a kubelet can take."""
    low, high = 1, max((gpu.schedulable_mib for gpu in gpus), default=0) + 1
    while low < high:
        middle = (low + high) // 2
        if list_bytes(cards_in_units(gpus, middle)) <= MAX_MESSAGE_BYTES:
            high = middle
        else:
            low = middle + 1
    return low


def list_bytes(cards: Sequence[Card]) -> int:
    """Weigh the message that lists all units of the cards, without making it."""
    total = 0
    for card in cards:
        digits, first = 1, 0
        while first < card.size_units:
            last = min(card.size_units, 10**digits)
            total += (last - first) * (_DEVICE_BYTES + len(device_id(card.uuid, first)))
            digits, first = digits + 1, last
    return total


def card_records(
    cards: Sequence[Card],
    gpus: Sequence[GpuCard],
    enforcement: Callable[[str], Enforcement] = lambda _: Enforcement.ACCOUNTED,
    driver: str = "",
) -> tuple[CardRecord, ...]:
    """Describe the cards for people and selectors, in word order."""
    return tuple(
        CardRecord(
            card.uuid,
            card.index,
            card.model,
            gpu.schedulable_mib,
            card.numa,
            card.healthy,
            write_links(card.links),
            enforcement(card.uuid).value,
            "" if gpu.memory_node is None else NUMA_MODE,
            driver,
            gpu.parent or "",
        )
        for card, gpu in zip(cards, gpus, strict=True)
    )
