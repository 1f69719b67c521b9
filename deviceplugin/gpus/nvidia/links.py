"""NVLinks between the cards, as the driver says them."""

from collections.abc import Mapping
from typing import Any

import pynvml

from deviceplugin.gpus.api.links import Links, count_links
from deviceplugin.gpus.api.source import sysfs_bus_id


def read_links(handles: Mapping[str, Any], bus_ids: Mapping[str, str]) -> dict[str, Links]:
    """Read the links between whole cards; those that the driver does not tell of are none."""
    at = {bus_id: uuid for uuid, bus_id in bus_ids.items() if bus_id}
    direct: dict[str, list[str]] = {}
    switched: dict[str, int] = {}
    for uuid, handle in handles.items():
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                    continue
                other = at.get(sysfs_bus_id(str(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)))
                if other is not None:
                    direct.setdefault(uuid, []).append(other)
                elif _ends_at_a_switch(handle, link):
                    switched[uuid] = switched.get(uuid, 0) + 1
            except pynvml.NVMLError:
                # The card has no more links than this, or none at all.
                break
    return count_links(handles, direct, switched)


def _ends_at_a_switch(handle: Any, link: int) -> bool:
    kind: int = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    return kind == int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
