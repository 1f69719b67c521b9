"""The device nodes that go with cards, as far as the machine has them.

A MIG instance has three kinds: its card's own node, those of every card, and one for each of two
capabilities: access to the GPU instance, and to the compute instance. Source: NVIDIA's MIG User Guide,
"Device Nodes and Capabilities". The kernel tells the minor number of a capability in

    /proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<N>[/ci<M>]/access     of instances that there are
    /proc/driver/nvidia-caps/mig-minors                                      of all that there could be

The first folder is hidden from containers except for instances that were there when they began.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.gpus.api.container_grant import DeviceNode
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.api.vendor import Vendor

log = structlog.get_logger(__name__)

DEVICES: Final = Path("/dev")
DRIVERS: Final = Path("/proc/driver")

_MINOR: Final = re.compile(r"^DeviceFileMinor: *([0-9]+)$", re.MULTILINE)


def node_paths(card: GpuCard, vendor: Vendor, devices: Path | None, drivers: Path = DRIVERS) -> list[str]:
    """List a card's existing nodes: its own, those of every card, and those of an instance's capabilities.

    Args:
        devices: folder of the machine's device nodes, `/dev`; None for cards that are none of its.
        drivers: where the kernel's drivers show their files, `/proc/driver`.
    """
    if devices is None:
        return []
    if card.parent is not None:
        needed = [vendor.name_card_node(card.minor), *capability_nodes(card, vendor, drivers)]
        if not all(path and _is_there(path, devices) for path in needed):
            return []
        return [needed[0], *(path for path in vendor.control_nodes if _is_there(path, devices)), *needed[1:]]
    wanted = (vendor.name_card_node(card.minor), *vendor.control_nodes)
    return [path for path in wanted if path and _is_there(path, devices)]


def capability_nodes(card: GpuCard, vendor: Vendor, drivers: Path = DRIVERS) -> list[str]:
    """Name the nodes of the two capabilities of a MIG instance; empty for one that is not known."""
    instance = f"gi{card.gpu_instance}"
    places = instance, f"{instance}/ci{card.compute_instance}"
    return [vendor.name_capability_node(_minor(drivers, f"gpu{card.minor}", place)) for place in places]


def _minor(drivers: Path, card: str, place: str) -> int | None:
    """Read the minor number of a capability; None if the kernel tells none."""
    try:
        text = (drivers / f"nvidia/capabilities/{card}/mig/{place}/access").read_text("ascii", "replace")
        found = _MINOR.search(text)
    except OSError:
        found = None
    if found is None:
        try:
            table = (drivers / "nvidia-caps/mig-minors").read_text("ascii", "replace")
        except OSError:
            return None
        found = re.search(rf"^{card}/{place}/access ([0-9]+)$", table, re.MULTILINE)
    return None if found is None else int(found[1])


def _is_there(path: str, devices: Path) -> bool:
    return (devices / path.removeprefix("/dev/")).exists()


class DeviceNodes:
    """Names the nodes of cards by UUID."""

    def __init__(
        self,
        vendor: Vendor,
        cards: Callable[[], Sequence[GpuCard]],
        devices: Path | None = DEVICES,
        drivers: Path = DRIVERS,
    ) -> None:
        self._vendor = vendor
        self._cards = cards
        self._devices = devices
        self._drivers = drivers
        self._reported: set[str] = set()

    def list_nodes(self, uuids: Sequence[str]) -> tuple[DeviceNode, ...]:
        """List the nodes of some cards, each once."""
        found: dict[str, None] = {}
        for card in self._cards():
            if card.uuid in uuids:
                paths = node_paths(card, self._vendor, self._devices, self._drivers)
                found.update(dict.fromkeys(paths))
                if card.parent is not None and self._devices is not None and not paths:
                    self._warn(card)
        return tuple(DeviceNode(path) for path in found)

    def _warn(self, card: GpuCard) -> None:
        """Say once that an instance's nodes are not given, and what brings them."""
        if card.uuid not in self._reported:
            self._reported.add(card.uuid)
            paths = capability_nodes(card, self._vendor, self._drivers)
            log.warning(
                "device nodes of a MIG instance are not here, so that the kubelet is given none: restart "
                "this daemon's pod, whose container has those of instances that were there when it began",
                card=card.uuid,
                nodes=[path or "of unknown number" for path in paths],
            )
