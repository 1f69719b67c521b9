"""Settings of the node daemon, checked as a whole: every fault is told at once."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, MIB_PER_GIB, PERCENT_RESOURCE, resource_name
from allocator.policy import card_policy
from allocator.records import LARGEST_NUMBER
from deviceplugin.containers.cdi import FOLDERS
from deviceplugin.containers.device_lists import DEFAULT, STRATEGIES
from deviceplugin.enforcement.limit_capability import AUTO, MODES
from deviceplugin.errors import SettingsError
from deviceplugin.gpus.api.health import DEFAULT_QUIET_S
from deviceplugin.gpus.api.provider import GpuProvider
from deviceplugin.gpus.nvidia.vendor import IGNORED_XIDS
from deviceplugin.gpus.sources import SOURCES, list_names_with_mps
from deviceplugin.monitoring.overuse import DEFAULT_TOLERANCE_MIB
from deviceplugin.publishing.node_publication import GAP_S
from kubeapi.addresses import HttpAddress, address_faults
from kubeapi.names import SUBDOMAIN, is_subdomain

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"
SHARINGS: Final = (TIME_SLICING, MPS)
DEVICE_PLUGIN: Final = "device-plugin"
DRA: Final = "dra"
SERVES: Final = (DEVICE_PLUGIN, DRA)
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(HttpAddress):
    """How the node daemon runs; see `gpupack node --help`.

    Attributes:
        node_name: the Node object that the words go to.
        gpus: `nvml` for real cards, `simulated` for those of a profile.
        profile: name of a shipped profile, or a YAML file; only with simulated cards.
        serve: how pods get their cards on this node: `device-plugin`, or `dra`, by ResourceClaims.
        unit_mib: MiB a unit; names the resource.
        kubeconfig: path; None: $KUBECONFIG, else ~/.kube/config, else in-cluster.
        device_plugin_dir: folder of the kubelet's device plugin sockets and of its book.
        pod_resources_socket: the kubelet's PodResources socket; asked which pods it has taken up, and to
            clean its book.
        http: HOST:PORT for /healthz, /readyz and /metrics; port 0 takes any free one.
        card_policy: chooses cards for pods that nobody assigned and that name no policy of their own.
        device_list_strategy: how containers are told their cards, from `handover.STRATEGIES`.
        cdi_dirs: folders of CDI specifications; one of ours goes into the last that exists.
        pass_device_specs: give the kubelet the cards' device nodes, for its static cpu manager.
        advise_frameworks: give containers that nothing holds to their share settings of JAX and TensorFlow.
        cgroup_root: where the host's cgroups are mounted.
        memory_limits: `auto`: the driver holds containers to their shares where it can; `off`: nowhere;
            `require`: only cards where it does are offered.
        sharing: `time-slicing`, or `mps`: that holds containers to their shares where the driver does not.
        mps_root: folder of the host where `gpupack mps` is met.
        mps_threads: limit a container's share of the multiprocessors as well, with `mps`.
        over_use_mib: MiB that a container may use beyond its promise before people are told.
        evict_over_use_after_s: seconds of such use after which its pod is evicted; 0: never.
        container_logs: the kubelet's folder of links to containers' logs, whose names tell containers apart.
        quiet_s: seconds without trouble after which a card is healthy again.
        ignored_xids: XID errors that leave a card healthy.
        publish_gap_s: least seconds between two patches that bring gains only; releases go out at once.
        log_level: one of debug, info, warning, error.
        log_format: text or json.
    """

    node_name: str
    gpus: str = "nvml"
    profile: str | None = None
    serve: str = DEVICE_PLUGIN
    unit_mib: int = MIB_PER_GIB
    kubeconfig: str | None = None
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    http: str = "127.0.0.1:8911"
    card_policy: str = DEFAULT_CARD_POLICY
    device_list_strategy: tuple[str, ...] = DEFAULT
    cdi_dirs: tuple[Path, ...] = FOLDERS
    pass_device_specs: bool = False
    advise_frameworks: bool = False
    cgroup_root: Path = Path("/sys/fs/cgroup")
    memory_limits: str = AUTO
    sharing: str = TIME_SLICING
    mps_root: Path = Path("/run/gpupack/mps")
    mps_threads: bool = False
    over_use_mib: int = DEFAULT_TOLERANCE_MIB
    evict_over_use_after_s: float = 0.0
    container_logs: Path = Path("/var/log/containers")
    quiet_s: float = DEFAULT_QUIET_S
    ignored_xids: frozenset[int] = IGNORED_XIDS
    publish_gap_s: float = GAP_S
    log_level: str = "info"
    log_format: str = "text"

    @property
    def resource(self) -> str:
        """Name of the extended resource."""
        return resource_name(self.unit_mib)

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's folder, that of device plugins is in it."""
        return self.device_plugin_dir.parent

    @property
    def provider(self) -> GpuProvider:
        """The source of cards that `gpus` names, and its vendor's facts."""
        return SOURCES[self.gpus]

    @property
    def endpoint(self) -> str:
        """What the file name of our socket in the device plugin folder is made of."""
        return f"{self.resource.replace('/', '-')}.sock"

    @property
    def percent_endpoint(self) -> str:
        """The same for the socket of the resource that counts percent of cards."""
        return f"{PERCENT_RESOURCE.replace('/', '-')}.sock"

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault.
        """
        faults = self.faults()
        if not self.device_plugin_dir.is_dir():
            faults.append(
                f"--device-plugin-dir {str(self.device_plugin_dir)!r}; allowed: a folder that exists"
            )
        if faults:
            raise SettingsError(tuple(faults))

    def faults(self) -> list[str]:
        """All that is wrong, but for a kubelet that is not here: `gpupack node --check` finds that itself."""
        faults = [
            *self._name_faults(),
            *self._gpu_faults(),
            *self._sharing_faults(),
            *self._place_faults(),
        ]
        if self.log_level not in LOG_LEVELS:
            faults.append(f"--log-level {self.log_level!r}; allowed: {', '.join(LOG_LEVELS)}")
        if self.log_format not in LOG_FORMATS:
            faults.append(f"--log-format {self.log_format!r}; allowed: {', '.join(LOG_FORMATS)}")
        return faults

    def shown(self) -> dict[str, object]:
        """All settings as plain values for the log; none of them is secret."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def _name_faults(self) -> list[str]:
        faults = []
        if not is_subdomain(self.node_name):
            faults.append(f"--node-name {self.node_name!r}; allowed: the name of a Node object, {SUBDOMAIN}")
        try:
            resource_name(self.unit_mib)
        except AllocatorError as error:
            faults.append(f"--unit-mib: {error}")
        try:
            card_policy(self.card_policy)
        except AllocatorError as error:
            faults.append(f"--card-policy: {error}")
        return faults

    def _gpu_faults(self) -> list[str]:
        faults = []
        if self.gpus not in SOURCES:
            faults.append(f"--gpus {self.gpus!r}; allowed: {', '.join(SOURCES)}")
        elif self.provider.needs_profile and self.profile is None:
            faults.append(f"--profile: required with --gpus {self.gpus}")
        elif not self.provider.needs_profile and self.profile is not None:
            others = " or ".join(name for name, other in SOURCES.items() if other.needs_profile)
            faults.append(f"--profile {self.profile!r}: allowed with --gpus {others} only")
        if self.memory_limits not in MODES:
            faults.append(f"--memory-limits {self.memory_limits!r}; allowed: {', '.join(MODES)}")
        wrong = [name for name in self.device_list_strategy if name not in STRATEGIES]
        if wrong or not self.device_list_strategy:
            faults.append(
                f"--device-list-strategy {','.join(self.device_list_strategy)!r}; allowed: a comma list of "
                f"{', '.join(STRATEGIES)}"
            )
        if not 0 <= self.over_use_mib <= LARGEST_NUMBER:
            faults.append(f"--over-use-mib {self.over_use_mib}; allowed: 0 to {LARGEST_NUMBER}")
        if not 0 <= self.evict_over_use_after_s < float("inf"):
            faults.append(
                f"--evict-over-use-after-s {self.evict_over_use_after_s}; allowed: 0 (never) or more"
            )
        if not 0 <= self.quiet_s < float("inf"):
            faults.append(f"--quiet-s {self.quiet_s}; allowed: 0 or more")
        if not 0 <= self.publish_gap_s < float("inf"):
            faults.append(f"--publish-gap-s {self.publish_gap_s}; allowed: 0 or more")
        return faults

    def _sharing_faults(self) -> list[str]:
        faults = []
        if self.sharing not in SHARINGS:
            faults.append(f"--sharing {self.sharing!r}; allowed: {', '.join(SHARINGS)}")
        elif self.sharing == MPS and not self.mps_root.is_absolute():
            faults.append(f"--mps-root {str(self.mps_root)!r}; allowed: a path from / on")
        elif self.sharing == MPS and self.gpus in SOURCES and not self.provider.mps_program:
            faults.append(f"--sharing mps: allowed with --gpus {' or '.join(list_names_with_mps())} only")
        if self.mps_threads and self.sharing != MPS:
            faults.append("--mps-threads: allowed with --sharing mps only")
        return faults

    def _place_faults(self) -> list[str]:
        faults = []
        if self.serve not in SERVES:
            faults.append(f"--serve {self.serve!r}: allowed are {', '.join(SERVES)}")
        if self.kubeconfig is not None and not Path(self.kubeconfig).is_file():
            faults.append(f"--kubeconfig {self.kubeconfig!r}; allowed: a file that exists")
        return [*faults, *address_faults("--http", self.http)]


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
