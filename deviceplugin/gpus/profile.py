"""Profiles of simulated GPUs: YAML in the form of NVIDIA's `nvml-mock`, read into typed values.

What the form has beyond our needs (clocks, fans, ...) is passed over. The faults of a profile are reported at
once, each with its path; a profile with a fault yields nothing.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.errors import ProfileError
from deviceplugin.gpus.source import GpuCard, GpuProcess, sysfs_bus_id

VERSIONS = ("1", "1.0")
MAX_CARDS = 64
MAX_PROCESSES = 1024
MAX_FAULTS = 32
MAX_FILE_BYTES = 1 << 18

# Modes whose samples fail, with what the driver says then; the others only make news.
LOST_MODES: Mapping[str, str] = {"lost": "GPU is lost", "fallen_off_bus": "GPU has fallen off the bus"}
FAILURE_MODES = ("lost", "fallen_off_bus", "ecc_uncorrectable")

_MIB = 1 << 20
_MAX_BYTES = 1 << 44
_MAX_PID = 1 << 22
_MAX_XID = 999
_CUT = 64
_MAX_DIGITS = 64
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]{0,47}")
_BUS_ID = re.compile(r"[0-9a-f]{4}(?:[0-9a-f]{4})?:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_MISSING = object()
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxdict, _BRIEF.maxset = 2, 4, 4, 4
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 2 * _CUT


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure to simulate.

    Attributes:
        mode: one of FAILURE_MODES.
        after_calls: samples of the card that succeed before it trips.
        xid: code of the XID error that comes with it, None for none.
    """

    mode: str
    after_calls: int
    xid: int | None


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """One card of a profile: what it is, MiB in use without any pod, who uses them, how it fails."""

    card: GpuCard
    used_mib: int
    processes: tuple[GpuProcess, ...]
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Profile:
    """A node's simulated cards, by index."""

    name: str
    driver_version: str
    cards: tuple[SimulatedCard, ...]


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with gpupack, sorted."""
    folder = resources.files("deviceplugin.gpus") / "profiles"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_profile(name_or_file: str) -> Profile:
    """Load a profile by its shipped name, else from the file of that path.

    Raises:
        ProfileError: it cannot be read or has faults; all of them are named.
    """
    names = shipped_profiles()
    if name_or_file in names:
        text = (resources.files("deviceplugin.gpus") / "profiles" / f"{name_or_file}.yaml").read_text("utf-8")
        return parse_profile(name_or_file, text)
    path = Path(name_or_file)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ProfileError(name_or_file, (f"larger than {MAX_FILE_BYTES} bytes",))
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shipped = f"allowed are a readable YAML file or one of {', '.join(names)}"
        raise ProfileError(name_or_file[:256], (f"cannot be read: {reason}; {shipped}",)) from error
    return parse_profile(name_or_file, text)


def parse_profile(name: str, text: str) -> Profile:
    """Read a profile from YAML text.

    Args:
        name: what to call it in messages.
        text: the YAML document.

    Raises:
        ProfileError: the text has faults; all of them are named, up to MAX_FAULTS.
    """
    try:
        document = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a safe loader that refuses more)
    except Exception as error:  # the loader lets KeyError, IndexError, OverflowError and more through
        one_line = " ".join((str(error) or type(error).__name__).split())
        raise ProfileError(name, (f"not YAML: {one_line[:256]}",)) from error
    reader = _Reader()
    profile = reader.profile(name, document)
    if reader.faults:
        faults = list(reader.faults)
        if len(faults) > MAX_FAULTS:
            faults[MAX_FAULTS:] = [f"and {len(faults) - MAX_FAULTS} more faults"]
        raise ProfileError(name, tuple(faults))
    return profile


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases, which make gigabytes of a few lines, and without endless numbers."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "found an alias (allowed are none)", mark)
        return super().compose_node(parent, index)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        if len(node.value) > _MAX_DIGITS:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"found a number of {len(node.value)} characters (allowed are {_MAX_DIGITS})",
                node.start_mark,
            )
        whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _PlainLoader.construct_number)


class _Reader:
    """Reads one document; notes every fault once, in the order found, and goes on with a stand-in value."""

    def __init__(self) -> None:
        self.faults: dict[str, None] = {}

    def profile(self, name: str, document: Any) -> Profile:
        root = self._mapping("profile", document)
        version = root.get("version", _MISSING)
        if not isinstance(version, str | int | float) or str(version) not in VERSIONS:
            self._fault("version", version, f"allowed is {VERSIONS[-1]}")
        system = self._mapping("system", root.get("system"))
        driver = self._text("system.driver_version", system.get("driver_version", "simulated"))
        defaults = self._mapping("device_defaults", root.get("device_defaults"))
        entries = self._list("devices", root.get("devices", _MISSING))
        if isinstance(root.get("devices"), list) and not 1 <= len(entries) <= MAX_CARDS:
            self._fault("devices", f"{len(entries)} entries", f"allowed are 1 to {MAX_CARDS}")
        numa = self._numa(self._mapping("pcie_topology", root.get("pcie_topology")))
        cards = [
            self._card(f"devices[{at}]", self._mapping(f"devices[{at}]", entry), defaults, len(entries), numa)
            for at, entry in enumerate(entries[:MAX_CARDS])
        ]
        devices = [entry if isinstance(entry, dict) else {} for entry in entries[:MAX_CARDS]]
        self._unique("index", [device.get("index") for device in devices])
        self._unique("uuid", [device.get("uuid") for device in devices])
        self._unique("pci.bus_id", [card.card.bus_id or None for card in cards])
        known = {card.card.bus_id for card in cards}
        for bus_id, (path, _) in numa.items():
            if bus_id not in known:
                self._fault(path, bus_id, "allowed are the devices' pci.bus_id")
        return Profile(name, driver, tuple(sorted(cards, key=lambda card: card.card.index)))

    def _card(
        self,
        path: str,
        device: Mapping[str, Any],
        defaults: Mapping[str, Any],
        count: int,
        numa: Mapping[str, tuple[str, int | None]],
    ) -> SimulatedCard:
        def pick(*keys: str) -> tuple[str, Any]:
            """Find a field in the device, else in the defaults, with the path to name in a fault."""
            for prefix, node in ((path, device), ("device_defaults", defaults)):
                value: Any = node
                for depth, key in enumerate(keys):
                    section = ".".join((prefix, *keys[:depth]))
                    value = (self._mapping(section, value) if depth else value).get(key, _MISSING)
                    if value is _MISSING or value is None:
                        break
                if value is not _MISSING and value is not None:
                    return ".".join((prefix, *keys)), value
            return ".".join((path, *keys)), _MISSING

        total = self._whole(*pick("memory", "total_bytes"), _MIB, _MAX_BYTES)
        reserved = self._whole(*pick("memory", "reserved_bytes"), 0, max(0, total - _MIB), default=0)
        used = self._whole(*pick("memory", "used_bytes"), 0, max(0, total - reserved), default=0)
        index = self._whole(f"{path}.index", device.get("index", _MISSING), 0, max(0, count - 1))
        uuid = self._text(f"{path}.uuid", device.get("uuid", _MISSING))
        if uuid and not _UUID.fullmatch(uuid):
            self._fault(f"{path}.uuid", uuid, "allowed are GPU- and at most 48 letters, digits and dashes")
        bus_path, bus_value = pick("pci", "bus_id")
        bus_id = self._bus_id(bus_path, bus_value) if bus_value is not _MISSING else ""
        mig_path, mig = pick("mig", "mode_current")
        if mig not in (_MISSING, "disabled", False):
            self._fault(mig_path, mig, "allowed is disabled: simulated cards have no MIG instances")
        model_path, model = pick("name")
        card = GpuCard(
            index=index,
            uuid=uuid,
            model=self._text(model_path, model),
            total_mib=total // _MIB,
            reserved_mib=-(-reserved // _MIB),
            numa=numa[bus_id][1] if bus_id in numa else None,
            bus_id=bus_id,
            minor=self._whole(f"{path}.minor_number", device.get("minor_number", _MISSING), 0, 255, index),
        )
        processes = self._processes(*pick("processes"))
        return SimulatedCard(card, -(-used // _MIB), processes, self._failure(*pick("failure")))

    def _processes(self, path: str, value: Any) -> tuple[GpuProcess, ...]:
        found = []
        items = self._list(path, [] if value is _MISSING else value)
        if len(items) > MAX_PROCESSES:
            self._fault(path, f"{len(items)} entries", f"allowed are up to {MAX_PROCESSES}")
        for at, item in enumerate(items[:MAX_PROCESSES]):
            entry = self._mapping(f"{path}[{at}]", item)
            pid = self._whole(f"{path}[{at}].pid", entry.get("pid", _MISSING), 1, _MAX_PID)
            used = entry.get("used_memory_mib")
            if used is not None:
                used = self._whole(f"{path}[{at}].used_memory_mib", used, 0, _MAX_BYTES // _MIB)
            found.append(GpuProcess(pid, used))
        return tuple(found)

    def _failure(self, path: str, value: Any) -> Failure | None:
        if value is _MISSING:
            return None
        entry = self._mapping(path, value)
        mode = entry.get("mode", "healthy")
        if mode == "healthy":
            return None
        if mode not in FAILURE_MODES:
            self._fault(f"{path}.mode", mode, f"allowed are healthy, {', '.join(FAILURE_MODES)}")
        after = self._whole(f"{path}.after_calls", entry.get("after_calls", _MISSING), 0, 1 << 31, 0)
        xid = self._mapping(f"{path}.xid", entry.get("xid")).get("code")
        if xid is not None:
            xid = self._whole(f"{path}.xid.code", xid, 1, _MAX_XID)
        return Failure(str(mode), after, xid)

    def _numa(self, topology: Mapping[str, Any]) -> dict[str, tuple[str, int | None]]:
        """Map bus ids to where the file names them and their NUMA node (None for -1, unknown)."""
        found: dict[str, tuple[str, int | None]] = {}
        roots = self._list("pcie_topology.root_complexes", topology.get("root_complexes") or [])
        for at, item in enumerate(roots):
            path = f"pcie_topology.root_complexes[{at}]"
            entry = self._mapping(path, item)
            node = self._whole(f"{path}.numa_node", entry.get("numa_node", _MISSING), -1, 1023)
            for slot, device in enumerate(self._list(f"{path}.devices", entry.get("devices", _MISSING))):
                bus_path = f"{path}.devices[{slot}]"
                bus_id = self._bus_id(bus_path, device)
                if bus_id in found:
                    self._fault(bus_path, bus_id, f"already in {found[bus_id][0]}")
                elif bus_id:
                    found[bus_id] = (bus_path, node if node >= 0 else None)
        return found

    def _unique(self, field: str, values: Sequence[Any]) -> None:
        first: dict[int | str, int] = {}
        for at, value in enumerate(values):
            if not isinstance(value, int | str):
                continue
            if value not in first:
                first[value] = at
            else:
                self._fault(f"devices[{at}].{field}", value, f"already that of devices[{first[value]}]")

    def _bus_id(self, path: str, value: Any) -> str:
        text = self._text(path, value)
        if text and not _BUS_ID.fullmatch(text):
            self._fault(path, text, "allowed is a PCI address such as 0000:1a:00.0")
        return sysfs_bus_id(text)

    def _mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._fault(path, value, "allowed is a mapping")
            return {}
        return value

    def _list(self, path: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            self._fault(path, value, "allowed is a list")
            return []
        return value

    def _text(self, path: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self._fault(path, value, "allowed is text")
            return ""
        return value

    def _whole(self, path: str, value: Any, low: int, high: int, default: int | None = None) -> int:
        if value is _MISSING and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._fault(path, value, f"allowed are whole numbers from {low} to {high}")
            return low
        return value

    def _fault(self, path: str, value: Any, allowed: str) -> None:
        if value is _MISSING:
            seen = "missing"
        else:
            text = _BRIEF.repr(value)
            seen = text if len(text) <= _CUT else text[:_CUT] + "..."
        self.faults[f"{path}: {seen}; {allowed}"] = None
