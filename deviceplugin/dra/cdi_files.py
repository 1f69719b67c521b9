"""CDI specifications, one for each prepared claim: what the containers that use it are given."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.containers.cdi import VERSION
from deviceplugin.containers.device_lists import ANNOTATION
from deviceplugin.files import make_folder, remove_file, update_file
from deviceplugin.gpus.api.container_grant import ContainerGrant

KIND: Final = "gpupack.io/claim"

PREFIX: Final = "gpupack.io-claim_"
"""Prefix of the files' names, before the UID of the claim."""


def name_device(claim_uid: str, request: str) -> str:
    """Name the CDI device of one request of a claim; no name of a request has an underscore."""
    return f"{claim_uid}-{request.replace('/', '_')}"


def make_edits(grant: ContainerGrant) -> dict[str, Any]:
    edits: dict[str, Any] = {"env": [f"{name}={value}" for name, value in grant.envs.items()]}
    if grant.devices:
        edits["deviceNodes"] = [
            {"path": node.path, "permissions": node.permissions} for node in grant.devices
        ]
    if grant.mounts:
        edits["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["rbind", "ro" if mount.read_only else "rw"],
            }
            for mount in grant.mounts
        ]
    return edits


def list_vendor_devices(grant: ContainerGrant) -> tuple[str, ...]:
    """List the vendor's own CDI devices that a grant names, in the field or in the annotation."""
    noted = grant.annotations.get(ANNOTATION, "")
    return grant.cdi_devices or tuple(name for name in noted.split(",") if name)


def make_spec(claim_uid: str, grants: Mapping[str, ContainerGrant]) -> dict[str, Any]:
    """Make the specification of a claim.

    Args:
        grants: what a container gets by request. A container has one value of a variable, so all shares
            of a request are in one device.
    """
    devices = [
        {"name": name_device(claim_uid, request), "containerEdits": make_edits(grant)}
        for request, grant in grants.items()
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


class CdiFiles:
    """Writes and removes the files; both block.

    Args:
        folders: folders of specifications, the later one for those that are generated. The folder is made
            where it is missing: it lies below `/var/run`, and is empty after each start of the machine.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folder = folders[-1]

    def write(self, claim_uid: str, spec: Mapping[str, Any]) -> None:
        """Write the file of a claim, unless it is there as it should be."""
        make_folder(self._folder)
        update_file(self._path(claim_uid), json.dumps(spec).encode())

    def remove(self, claim_uid: str) -> None:
        remove_file(self._path(claim_uid))

    def list_claims(self) -> set[str]:
        return {path.stem.removeprefix(PREFIX) for path in self._folder.glob(f"{PREFIX}*.json")}

    def _path(self, claim_uid: str) -> Path:
        return self._folder / f"{PREFIX}{claim_uid}.json"
