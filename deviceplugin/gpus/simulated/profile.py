"""Profiles of simulated GPUs: YAML in the form of NVIDIA's `nvml-mock`, read into typed values.

What the form has beyond our needs (clocks, fans, ...) is passed over. The first fault of form in every part
of a profile is reported, with its path. Where there is none, all that does not fit together is reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import structlog
from msgspec import Meta, Struct

from allocator.names import MIB
from deviceplugin.errors import ProfileError
from deviceplugin.gpus.api.links import count_links
from deviceplugin.gpus.api.source import GpuCard, GpuProcess, sysfs_bus_id
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia.mig import InstanceRequest, MigInstance, PartitionError, place_instances
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.memory_limits import LimitBehaviour
from deviceplugin.gpus.simulated.script import SimulationScript, read_part, read_script
from kubeapi.bounded_yaml import load_yaml

log = structlog.get_logger(__name__)

VERSIONS: Final = ("1", "1.0")

# Modes whose samples fail, with what the driver says then; the others only make news.
LOST_MODES: Mapping[str, str] = {"lost": "GPU is lost", "fallen_off_bus": "GPU has fallen off the bus"}
FAILURE_MODES = ("lost", "fallen_off_bus", "ecc_uncorrectable")

_PCI_ADDRESS: Final = "^[0-9a-fA-F]{4}(?:[0-9a-fA-F]{4})?:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}[.][0-7]$"

_Text = Annotated[str, Meta(pattern="^[!-~][ -~]*$")]
_Uuid = Annotated[str, Meta(pattern="^[A-Z]{2,4}-[0-9A-Za-z][0-9A-Za-z-]{0,47}$")]
_BusId = Annotated[str, Meta(pattern=_PCI_ADDRESS)]
_Total = Annotated[int, Meta(ge=MIB, le=1 << 44)]
_Bytes = Annotated[int, Meta(ge=0, le=1 << 44)]
_LinkCount = Annotated[int, Meta(ge=0, le=36)]
_CardIndex = Annotated[int, Meta(ge=0, le=63)]


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """A failure to simulate.

    Attributes:
        after_calls: samples of the card that succeed before it trips.
        xid: code of the XID error that comes with it, None for none.
    """

    mode: str
    after_calls: int
    xid: int | None


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card of a profile, with MiB in use without any pod, who uses them, how it fails.

    `instances` is None unless the card is in MIG mode; `wanted_instances` are what they were placed by. With
    `used_has_reserved` the used memory that the driver tells contains the reserved part. Where the operating
    system manages the card's memory it contains `residue_mib` of pages that no process uses.
    """

    card: GpuCard
    used_mib: int
    processes: tuple[GpuProcess, ...]
    failure: SimulatedFailure | None
    instances: tuple[MigInstance, ...] | None = None
    wanted_instances: tuple[InstanceRequest, ...] = ()
    used_has_reserved: bool = False
    residue_mib: int = 0


@dataclass(frozen=True, slots=True)
class DriverBehaviour:
    """A behaviour of the driver that its documents allow, and of what the container has of it.

    Attributes:
        new_instances: MIG instances that are made after the source was opened: `shown`, as to a container
            with NVIDIA_MIG_MONITOR_DEVICES, or `refused`, as to one without.
        mode_change: steps of the script that change MIG mode happen in their time (`anytime`), or wait until
            the source has nothing of the driver open (`when_unused`).
    """

    new_instances: Literal["shown", "refused"] = "shown"
    mode_change: Literal["anytime", "when_unused"] = "anytime"


@dataclass(frozen=True, slots=True)
class Profile:
    """A node's simulated cards, by index."""

    name: str
    driver_version: str
    cards: tuple[SimulatedCard, ...]
    vendor: Vendor = NVIDIA
    script: SimulationScript = field(default_factory=SimulationScript)
    limits: LimitBehaviour = field(default_factory=LimitBehaviour)
    driver: DriverBehaviour = field(default_factory=DriverBehaviour)


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with gpupack, sorted."""
    folder = resources.files(__package__) / "profiles"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_profile(name_or_file: str) -> Profile:
    """Load a profile by its shipped name, else from the file of that path.

    Raises:
        ProfileError: it cannot be read, or has faults.
    """
    names = shipped_profiles()
    if name_or_file in names:
        text = (resources.files(__package__) / "profiles" / f"{name_or_file}.yaml").read_text("utf-8")
        return parse_profile(name_or_file, text)
    path = Path(name_or_file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shipped = f"allowed: a readable YAML file or one of {', '.join(names)}"
        raise ProfileError(name_or_file[:256], (f"cannot be read: {reason}; {shipped}",)) from error
    return parse_profile(name_or_file, text)


# --- the form ---------------------------------------------------------------------------------------------


class _Memory(Struct, frozen=True):
    total_bytes: _Total | None = None
    reserved_bytes: _Bytes | None = None
    used_bytes: _Bytes | None = None
    used_has_reserved: bool | None = None
    numa_node: Annotated[int, Meta(ge=0, le=1023)] | None = None
    residue_bytes: _Bytes | None = None


class _Pci(Struct, frozen=True):
    bus_id: _BusId | None = None


class _Count(Struct, frozen=True):
    profile: str
    count: Annotated[int, Meta(ge=1, le=7)] = 1


class _Placed(Struct, frozen=True):
    profile: str
    placement_start: int | None = None


class _Mig(Struct, frozen=True):
    """MIG mode and its instances, by their number or one by one."""

    mode_current: Literal["enabled", "disabled"] | bool | None = None
    gpu_instances: tuple[_Count, ...] = ()
    instances: tuple[_Placed, ...] = ()

    @property
    def wanted(self) -> tuple[InstanceRequest, ...] | None:
        """Instances to be placed, None without MIG mode."""
        if self.mode_current in {None, "disabled", False}:
            return None
        counted = (InstanceRequest(one.profile) for one in self.gpu_instances for _ in range(one.count))
        return (*counted, *(InstanceRequest(one.profile, one.placement_start) for one in self.instances))


class _Process(Struct, frozen=True):
    pid: Annotated[int, Meta(ge=1, le=1 << 22)]
    used_memory_mib: _Bytes | None = None
    compute_percent: Annotated[int, Meta(ge=0, le=100)] | None = None


class _Xid(Struct, frozen=True):
    code: Annotated[int, Meta(ge=1, le=999)] | None = None


class _Failure(Struct, frozen=True):
    mode: Literal["healthy", "lost", "fallen_off_bus", "ecc_uncorrectable"] = "healthy"
    after_calls: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    xid: _Xid = _Xid()


class _Card(Struct, frozen=True):
    """The fields that a device and the defaults of all devices have in common."""

    name: _Text | None = None
    architecture: _Text | None = None
    memory: _Memory = _Memory()
    pci: _Pci = _Pci()
    mig: _Mig | tuple[str, ...] = _Mig()
    processes: tuple[_Process, ...] | None = None
    failure: _Failure | None = None


class _ProfileDevice(_Card, frozen=True, kw_only=True):
    index: Annotated[int, Meta(ge=0)]
    uuid: _Uuid
    minor_number: Annotated[int, Meta(ge=0, le=255)] | None = None


class _System(Struct, frozen=True):
    driver_version: _Text = "simulated"


class _RootComplex(Struct, frozen=True):
    numa_node: Annotated[int, Meta(ge=-1, le=1023)]
    devices: tuple[_BusId, ...]


class _Topology(Struct, frozen=True):
    root_complexes: tuple[_RootComplex, ...] = ()


class _Link(Struct, frozen=True):
    remote_index: _CardIndex | None = None


class _LinkedDevice(Struct, frozen=True):
    index: _CardIndex
    links: tuple[_Link, ...] = ()


class _NvLink(Struct, frozen=True):
    """With switches every card reaches every other one; else it is said link by link, as with bridges."""

    links_per_gpu: _LinkCount = 0
    switches: tuple[Any, ...] = ()
    device_links: tuple[_LinkedDevice, ...] = ()


class _Vendor(Struct, frozen=True):
    domain: str
    visible_devices: str
    fault: str = "fault"


class _ProfileDocument(Struct, frozen=True):
    version: str | int | float
    devices: Annotated[list[Any], Meta(min_length=1, max_length=64)]
    system: _System | None = None
    device_defaults: Any = None
    pcie_topology: Any = None
    nvlink: Any = None
    vendor: _Vendor | None = None
    script: Any = None
    limits: LimitBehaviour = LimitBehaviour()
    driver: DriverBehaviour = DriverBehaviour()


def parse_profile(name: str, text: str) -> Profile:
    """Read a profile from YAML text.

    Raises:
        ProfileError: the text has faults.
    """
    try:
        raw, faults = load_yaml(text)
    except ValueError as error:
        raise ProfileError(name, (str(error),)) from error
    document = read_part(raw, _ProfileDocument, "", faults)
    if document is None:
        raise ProfileError(name, tuple(faults))
    if str(document.version) not in VERSIONS:
        faults.append(f"version: {document.version}; allowed: {VERSIONS[-1]}")
    vendor = NVIDIA if document.vendor is None else Vendor(**msgspec.structs.asdict(document.vendor))
    faults += [f"vendor.{fault}" for fault in vendor.find_faults()]
    defaults = read_part(document.device_defaults or {}, _Card, "device_defaults", faults)
    topology = read_part(document.pcie_topology or {}, _Topology, "pcie_topology", faults)
    nvlink = read_part(document.nvlink or {}, _NvLink, "nvlink", faults)
    devices = [
        read_part(one, _ProfileDevice, f"devices[{at}]", faults) for at, one in enumerate(document.devices)
    ]
    if faults or defaults is None or topology is None or nvlink is None:
        raise ProfileError(name, tuple(faults))
    numa = {
        sysfs_bus_id(bus_id): root.numa_node if root.numa_node >= 0 else None
        for root in topology.root_complexes
        for bus_id in root.devices
    }
    cards = [
        _simulated(device, defaults, numa, f"devices[{at}]", faults)
        for at, device in enumerate(devices)
        if device is not None
    ]
    _check_together([each.card for each in cards], topology, faults)
    if not faults:
        with_links = _add_links([each.card for each in cards], nvlink, faults)
        cards = [replace(each, card=card) for each, card in zip(cards, with_links, strict=True)]
    script = read_script(document.script or [], {each.card.index: each.card.uuid for each in cards}, faults)
    _check_partitions(script, {each.card.index: each.card for each in cards}, faults)
    if faults:
        raise ProfileError(name, tuple(faults))
    return Profile(
        name,
        (document.system or _System()).driver_version,
        tuple(sorted(cards, key=lambda each: each.card.index)),
        vendor,
        script,
        document.limits,
        document.driver,
    )


def _simulated(
    device: _ProfileDevice, defaults: _Card, numa: Mapping[str, int | None], path: str, faults: list[str]
) -> SimulatedCard:
    """Make a card of a device and, field by field, of the defaults for what it does not say."""

    def number(field: str) -> int:
        own: int | None = getattr(device.memory, field)
        return own if own is not None else getattr(defaults.memory, field) or 0

    total, reserved, used = number("total_bytes"), number("reserved_bytes"), number("used_bytes")
    residue, memory_node = number("residue_bytes"), device.memory.numa_node
    memory_node = defaults.memory.numa_node if memory_node is None else memory_node
    if residue and memory_node is None:
        faults.append(f"{path}.memory.residue_bytes: {residue}; allowed beside a numa_node only")
    model = device.name or defaults.name
    if model is None:
        faults.append(f"{path}.name: missing, there and in device_defaults")
    if total == 0:
        faults.append(f"{path}.memory.total_bytes: missing, there and in device_defaults")
    elif reserved > total - MIB or used + residue > total - reserved:
        faults.append(
            f"{path}.memory: {reserved} bytes reserved and {used + residue} used do not fit into {total}"
        )
    bus_id = sysfs_bus_id(device.pci.bus_id or defaults.pci.bus_id or "")
    card = GpuCard(
        index=device.index,
        uuid=device.uuid,
        model=model or "",
        total_mib=total // MIB,
        reserved_mib=-(-reserved // MIB),
        numa=numa.get(bus_id),
        bus_id=bus_id,
        minor=device.index if device.minor_number is None else device.minor_number,
        memory_node=memory_node,
        architecture=device.architecture or defaults.architecture or "",
    )
    instances = None
    wanted = _instance_requests(device.mig if device.mig != _Mig() else defaults.mig)
    if wanted is not None and not faults:
        try:
            instances = place_instances(card.uuid, card.model, card.schedulable_mib, wanted)
        except PartitionError as error:
            faults.append(f"{path}.mig: {error}")
    has_reserved = device.memory.used_has_reserved
    processes = device.processes if device.processes is not None else defaults.processes or ()
    failure = device.failure or defaults.failure or _Failure()
    return SimulatedCard(
        card,
        -(-used // MIB),
        tuple(GpuProcess(each.pid, each.used_memory_mib, each.compute_percent) for each in processes),
        None
        if failure.mode == "healthy"
        else SimulatedFailure(failure.mode, failure.after_calls, failure.xid.code),
        instances,
        wanted or (),
        bool(defaults.memory.used_has_reserved if has_reserved is None else has_reserved),
        -(-residue // MIB),
    )


def _instance_requests(mig: _Mig | tuple[str, ...]) -> tuple[InstanceRequest, ...] | None:
    return mig.wanted if isinstance(mig, _Mig) else tuple(map(InstanceRequest, mig))


def _check_partitions(script: SimulationScript, cards: Mapping[int, GpuCard], faults: list[str]) -> None:
    """Find steps of the script that partition a card as none can be."""
    for step in script.steps:
        card = cards.get(-1 if step.card is None else step.card)
        if card is not None and isinstance(step.mig, tuple):
            try:
                place_instances(
                    card.uuid, card.model, card.schedulable_mib, list(map(InstanceRequest, step.mig))
                )
            except PartitionError as error:
                faults.append(f"script at {step.at_s:g} s: mig: {error}")


def _check_together(cards: Sequence[GpuCard], topology: _Topology, faults: list[str]) -> None:
    for at, card in enumerate(cards):
        if card.index >= len(cards):
            faults.append(f"devices[{at}].index: {card.index}; allowed: 0 to {len(cards) - 1}")
    faults += _repeated("devices.index", [card.index for card in cards])
    faults += _repeated("devices.uuid", [card.uuid for card in cards])
    faults += _repeated("devices.pci.bus_id", [card.bus_id for card in cards if card.bus_id])
    placed = [sysfs_bus_id(bus_id) for root in topology.root_complexes for bus_id in root.devices]
    faults += _repeated("pcie_topology", placed)
    for bus_id in set(placed) - {card.bus_id for card in cards}:
        faults.append(f"pcie_topology: {bus_id}; allowed: the devices' pci.bus_id")


def _repeated(what: str, values: Sequence[int | str]) -> Iterable[str]:
    return (f"{what}: {value} stands twice" for value in sorted(set(values)) if values.count(value) > 1)


def _add_links(cards: Sequence[GpuCard], form: _NvLink, faults: list[str]) -> list[GpuCard]:
    """Give the cards their links; links to cards that are not there are faults."""
    uuids = {card.index: card.uuid for card in cards}
    direct: dict[str, list[str]] = {}
    for number, device in enumerate(form.device_links):
        for at, link in enumerate(device.links):
            for name, index in (("index", device.index), (f"links[{at}].remote_index", link.remote_index)):
                if index is not None and index not in uuids:
                    faults.append(
                        f"nvlink.device_links[{number}].{name}: {index}; allowed: the devices' index"
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


class ProfileFile:
    """Reads a profile again when its file has changed. What cannot be used is logged once and passed over.

    Args:
        vendor: vendor of the profile so far, which cannot change.
    """

    def __init__(self, name_or_file: str, vendor: Vendor) -> None:
        self._file = None if name_or_file in shipped_profiles() else Path(name_or_file)
        self._vendor = vendor
        self._stamp = self._read_version()

    def changed(self) -> Profile | None:
        """Return the profile if its file was changed since the last call, and can be used."""
        stamp = self._read_version()
        if self._file is None or stamp is None or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            profile = load_profile(str(self._file))
        except ProfileError as error:
            return self._refuse(str(error))
        if profile.vendor != self._vendor:
            return self._refuse(f"vendor: {profile.vendor.domain}; allowed: {self._vendor.domain} now")
        log.info("the profile was changed", profile=str(self._file))
        return profile

    @staticmethod
    def _refuse(error: str) -> None:
        log.warning("the changed profile cannot be used, the cards stay as they were", error=error)

    def _read_version(self) -> tuple[int, int, int] | None:
        """Read a key that differs after a change; None while there is no file."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
