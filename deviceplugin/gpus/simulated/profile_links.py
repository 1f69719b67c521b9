"""NVLinks of simulated cards: the part `nvlink` of a profile, in the form of NVIDIA's `nvml-mock`.

nvlink:
  links_per_gpu: 12
  switches: [{bdf: "0000:01:00.0"}]                    # every card reaches every other one with so many

nvlink:
  device_links:                                        # or link by link, as with bridges
    - {index: 0, links: [{link: 0, remote_index: 1}, {link: 1, remote_index: 1}]}
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from deviceplugin.gpus.api.links import count_links
from deviceplugin.gpus.api.source import GpuCard

_Count = Annotated[int, Meta(ge=0, le=36)]
_Index = Annotated[int, Meta(ge=0, le=63)]


class _Link(Struct, frozen=True):
    remote_index: _Index | None = None


class _LinkedDevice(Struct, frozen=True):
    index: _Index
    links: tuple[_Link, ...] = ()


class NvLink(Struct, frozen=True):
    """The part `nvlink`."""

    links_per_gpu: _Count = 0
    switches: tuple[Any, ...] = ()
    device_links: tuple[_LinkedDevice, ...] = ()


def add_links(cards: Sequence[GpuCard], form: NvLink, faults: list[str]) -> list[GpuCard]:
    """Give the cards their links; links to cards that are not there are faults."""
    uuids = {card.index: card.uuid for card in cards}
    direct: dict[str, list[str]] = {}
    for number, device in enumerate(form.device_links):
        for at, link in enumerate(device.links):
            for field, index in (("index", device.index), (f"links[{at}].remote_index", link.remote_index)):
                if index is not None and index not in uuids:
                    faults.append(
                        f"nvlink.device_links[{number}].{field}: {index}; allowed: the devices' index"
                    )
            if link.remote_index == device.index:
                faults.append(
                    f"nvlink.device_links[{number}].links[{at}]: leads from card {device.index} to itself"
                )
            if device.index in uuids and link.remote_index in uuids:
                direct.setdefault(uuids[device.index], []).append(uuids[link.remote_index])
    switched = dict.fromkeys(uuids.values(), form.links_per_gpu if form.switches else 0)
    links = count_links(uuids.values(), direct, switched)
    return [replace(card, links=links[card.uuid]) for card in cards]
