"""CDI: the names by which a container runtime knows the cards, and our own specification if there is none.

The vendor's toolkit writes a specification (nvidia-ctk: nvidia.yaml) with all that a container needs, driver
libraries included. Where there is none we write one of device nodes alone. Its kind is our own: two files
that define the same device make it unusable, and the vendor's may come later. Our file stays from then on,
because the kubelet remembers the names of containers that run.

The kubelet keeps a container's names for the life of its pod, and ours bring no driver libraries. So a
specification of the vendor that is being written, is away for a moment, or is not there yet after the machine
has started does not count as none:

    names of the vendor's were seen    they stay until the folders have lacked them for `KEPT_S`
    none were seen, and no file is ours    the daemon waits for them before it serves, `WAIT_S` at most
    there is a file of ours    that wait is over: the folder is empty after each start of the machine

Form: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from deviceplugin.containers.device_nodes import DEVICES, node_paths
from deviceplugin.errors import is_absent
from deviceplugin.files import update_file
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.option_values import CDI_FOLDERS

log = structlog.get_logger(__name__)

KIND: Final = "gpupack.io/gpu"
FILE_NAME: Final = "gpupack.json"
VERSION: Final = "0.5.0"
"""The oldest version with names that begin with a digit; containerd 1.7 and CRI-O 1.28 read up to 0.6."""

LOOK_S: Final = 10.0

KEPT_S: Final = 60.0
"""How long a card keeps the vendor's name after specifications have lost it."""

WAIT_S: Final = 60.0
"""Longest wait for the vendor's first specification."""

Devices = Mapping[str, frozenset[str]]
"""Devices of a specification by name: the paths of their device nodes."""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class CdiNames:
    """Knows the cards' names; `refresh` blocks, the rest does not.

    Args:
        folders: folders of specifications, those that do not exist are passed over; ours goes into the last
            one.
        devices: folder of the machine's device nodes; None for cards that are none of its, whose vendor has
            no toolkit here.

    Attributes:
        is_waiting: a card has no name yet, and the vendor's specification may still come.
    """

    def __init__(
        self,
        vendor: Vendor,
        folders: Sequence[Path] = CDI_FOLDERS,
        devices: Path | None = DEVICES,
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vendor = vendor
        self._folders = tuple(folders)
        self._devices = devices
        self._clock = clock
        self._wait_until_s = clock() + (wait_s if devices is not None else 0.0)
        self._names: dict[str, str] = {}
        self._vendor_names: dict[str, tuple[str, float]] = {}
        self.is_waiting = False
        self._reported: dict[str, str] = {}
        self._read: dict[Path, tuple[tuple[int, int, int], Devices]] = {}

    def name_cards(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Name cards, `nvidia.com/gpu=GPU-...`; by the vendor's kind and UUID where nothing else is known."""
        return tuple(self._names.get(uuid) or f"{self._vendor.cdi_kind}={uuid}" for uuid in uuids)

    def refresh(self, cards: Sequence[GpuCard]) -> None:
        """Read the existing specifications, and write ours if a card is missing from them."""
        there = [folder for folder in self._folders if folder.is_dir()]
        if not there:
            self.is_waiting = self.is_waiting and self._clock() < self._wait_until_s
            self._warn_once("folders", "no folder of CDI specifications here: the vendor's names are used")
            return
        found = {name: nodes for folder in there for name, nodes in self._devices_in(folder).items()}
        names = self._keep_vendor_names(match_device_names(cards, found, self._vendor), found)
        ours = there[-1] / FILE_NAME
        lacking = [card for card in cards if card.uuid not in names and card.error is None]
        self.is_waiting = bool(lacking) and not ours.exists() and self._clock() < self._wait_until_s
        if self.is_waiting:
            return
        if lacking or ours.exists():
            spec = make_spec(cards, self._vendor, self._devices)
            self._write(ours, spec)
            mine = {device["name"] for device in spec["devices"]}
            for card in lacking:
                if name_device(card.uuid) in mine:
                    names[card.uuid] = f"{KIND}={name_device(card.uuid)}"
                else:
                    self._warn_once(card.uuid, f"no CDI specification has card {card.uuid}")
        self._names = names

    def _keep_vendor_names(self, names: Mapping[str, str], devices: Devices) -> dict[str, str]:
        """Add the names that specifications had a moment ago; a device that they have may be another card."""
        now_s = self._clock()
        kept = {
            uuid: (name, seen_s)
            for uuid, (name, seen_s) in self._vendor_names.items()
            if now_s - seen_s < KEPT_S and name.partition("=")[2] not in devices
        }
        self._vendor_names = kept | {uuid: (name, now_s) for uuid, name in names.items()}
        return {uuid: name for uuid, (name, _) in self._vendor_names.items()}

    def _devices_in(self, folder: Path) -> Devices:
        """Read the vendor's devices from a folder's specifications.

        What cannot be read now, as without a file descriptor left or half-written, has what was read of it
        last.
        """
        devices: dict[str, frozenset[str]] = {}
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            self._warn_once(str(folder), f"CDI folder {folder} cannot be read: {error}")
            paths = sorted(path for path in self._read if path.parent == folder)
        for path in paths:
            if path.suffix not in {".json", ".yaml", ".yml"} or path.name == FILE_NAME:
                continue
            try:
                devices.update(self._devices_of(path))
            except (OSError, ValueError) as error:
                self._warn_once(str(path), f"CDI specification {path} cannot be read: {error}")
                if not (isinstance(error, OSError) and is_absent(error)) and path in self._read:
                    devices.update(self._read[path][1])
        return devices

    def _devices_of(self, path: Path) -> Devices:
        """Read a specification, unless it was read before: NVIDIA's takes a second to parse."""
        status = path.stat()
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._read.get(path)
        if known is None or known[0] != signature:
            text = path.read_text("utf-8", "replace")
            # Rubbish is not parsed again.
            self._read[path] = signature, known[1] if known is not None else {}
            known = self._read[path] = signature, read_device_nodes(text, self._vendor.cdi_kind)
        return known[1]

    def _write(self, path: Path, spec: Mapping[str, Any]) -> None:
        text = json.dumps(spec, indent=2) + "\n"
        try:
            if update_file(path, text.encode()):
                log.info("CDI specification written", path=str(path), devices=len(spec["devices"]))
        except OSError as error:
            self._warn_once(str(path), f"CDI specification {path} cannot be written: {error}")

    def _warn_once(self, about: str, problem: str) -> None:
        if self._reported.get(about) != problem:
            log.warning("CDI", problem=problem)
            self._reported[about] = problem


async def refresh_repeatedly(names: CdiNames, cards: Callable[[], Sequence[GpuCard]]) -> None:
    """Look again and again until cancelled: toolkits write their specification when it suits them."""
    while True:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(lambda: names.refresh(cards()))


def read_device_nodes(text: str, kind: str) -> Devices:
    """Read a specification's devices; none if it is of another kind.

    Raises:
        ValueError: it is no specification.
    """
    from kubeapi.bounded_yaml import load_yaml  # noqa: PLC0415 (only where CDI is used)

    spec, _ = load_yaml(text)
    if not isinstance(spec, dict) or "kind" not in spec or not isinstance(spec.get("devices") or [], list):
        raise ValueError("no CDI specification")
    if spec.get("kind") != kind:
        return {}
    devices = [device for device in spec.get("devices") or [] if isinstance(device, dict)]
    return {str(device["name"]): _nodes_of(device) for device in devices if "name" in device}


def _nodes_of(device: Mapping[str, Any]) -> frozenset[str]:
    edits = device.get("containerEdits")
    nodes = edits.get("deviceNodes") if isinstance(edits, dict) else None
    nodes = nodes if isinstance(nodes, list) else []
    return frozenset(str(node["path"]) for node in nodes if isinstance(node, dict) and "path" in node)


def match_device_names(cards: Sequence[GpuCard], devices: Devices, vendor: Vendor) -> dict[str, str]:
    """Name cards by the devices that the vendor's specifications have: UUIDs, else indexes.

    An index is the driver's from when the specification was written, often at boot. Where a card has gone
    since, the index is another card's by now. So the device is taken that has the card's own node. The index
    decides where a device has no nodes of cards, or the card's own node is not known.

    Indexes are not used where a card is partitioned: ours count the instances.
    """
    kind = vendor.cdi_kind
    names = {
        card.uuid: f"{kind}={card.uuid}"
        for card in cards
        if card.uuid in devices and not _is_of_another_card(devices[card.uuid], card, vendor)
    }
    if names or any(card.parent is not None for card in cards):
        return names
    numbered = {name: nodes for name, nodes in devices.items() if name.isdecimal()}
    by_node = {node: name for name, nodes in numbered.items() for node in nodes if vendor.is_card_node(node)}
    chosen = {}
    for card in cards:
        node, index = vendor.name_card_node(card.minor), str(card.index)
        name = by_node.get(node)
        if name is None and index in numbered and not (node and index in by_node.values()):
            name = index
        if name is not None:
            chosen[card.uuid] = f"{kind}={name}"
    return chosen


def _is_of_another_card(nodes: frozenset[str], card: GpuCard, vendor: Vendor) -> bool:
    """Return True if a device of a card's UUID has nodes of other cards only: it is from before a reboot."""
    node = vendor.name_card_node(card.minor)
    return bool(node) and node not in nodes and any(map(vendor.is_card_node, nodes))


def name_device(uuid: str) -> str:
    return _NOT_IN_NAMES.sub("_", uuid)


def make_spec(cards: Sequence[GpuCard], vendor: Vendor, devices: Path | None) -> dict[str, Any]:
    """Write our specification: one device for each whole card, of its device nodes."""
    found = []
    for card in cards:
        if card.error is not None or card.parent is not None:
            continue
        # A device must change something; people see by the variable what a container was started with.
        edits: dict[str, Any] = {"env": [f"GPUPACK_CDI_CARD_{card.index}={card.uuid}"]}
        nodes = node_paths(card, vendor, devices)
        if nodes:
            edits["deviceNodes"] = [{"path": node} for node in nodes]
        found.append({"name": name_device(card.uuid), "containerEdits": edits})
    return {"cdiVersion": VERSION, "kind": KIND, "devices": found}
