"""The stand-in kubelet's checkpoint: `kubelet_internal_checkpoint`, in the real one's format.

Written to a file beside it and renamed, as the real one does. The checksum is over the JSON here, not over
what Go prints; it serves the same end: a file that was touched is not believed.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb

CHECKPOINT_NAME: Final = "kubelet_internal_checkpoint"
# The NUMA node of a device whose plugin names none.
_NO_NUMA: Final = "-1"


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds of one resource: IDs, and the answer of the plugin."""

    ids: frozenset[str]
    response: pb.ContainerAllocateResponse


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """What a kubelet keeps on disk: uid -> container -> resource -> held; resource -> healthy IDs."""

    pods: Mapping[str, Mapping[str, Mapping[str, Held]]]
    resources: Mapping[str, frozenset[str]]


def write(folder: Path, checkpoint: CheckpointFile) -> None:
    """Replace the file; a kubelet whose folder is gone only complains, and so nothing happens here."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {_NO_NUMA: sorted(held.ids)},
            "AllocResp": base64.b64encode(held.response.SerializeToString()).decode(),
        }
        for uid, containers in checkpoint.pods.items()
        for container, resources in containers.items()
        for resource, held in resources.items()
    ]
    registered = {resource: sorted(ids) for resource, ids in checkpoint.resources.items()}
    # A Go slice that nothing was put in is null.
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
    new = folder / f".{CHECKPOINT_NAME}"
    try:
        new.write_text(json.dumps({"Data": data, "Checksum": _checksum(data)}))
        new.chmod(0o600)
        new.rename(folder / CHECKPOINT_NAME)
    except FileNotFoundError:
        return


def read(folder: Path) -> CheckpointFile | None:
    """Read the file at the start; None if it is missing or its checksum is wrong."""
    try:
        found = json.loads((folder / CHECKPOINT_NAME).read_text())
        data = found["Data"]
        if found["Checksum"] != _checksum(data):
            return None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    pods: dict[str, dict[str, dict[str, Held]]] = {}
    for entry in data["PodDeviceEntries"] or ():
        ids = frozenset(one for several in entry["DeviceIDs"].values() for one in several)
        response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        held = pods.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})
        held[entry["ResourceName"]] = Held(ids, response)
    resources = {name: frozenset(ids) for name, ids in data["RegisteredDevices"].items()}
    return CheckpointFile(pods, resources)


def _checksum(data: Any) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
