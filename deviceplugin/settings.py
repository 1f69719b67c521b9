"""Settings of the node daemon, checked as a whole: every fault is told at once."""

from dataclasses import dataclass, fields
from pathlib import Path

from allocator.errors import AllocatorError
from allocator.names import (
    DEFAULT_CARD_POLICY,
    LARGEST_NUMBER,
    MAX_UNIT_MIB,
    MIB_PER_GIB,
    PERCENT_RESOURCE,
    resource_name,
)
from allocator.packing import MAX_COMPUTE_LIMIT
from allocator.request import WHOLE
from deviceplugin import option_values as values
from deviceplugin.errors import NodeSettingsError
from deviceplugin.gpus.api.provider import GpuProvider
from deviceplugin.gpus.nvidia.vendor import IGNORED_XIDS, parse_xids
from deviceplugin.gpus.sources import SOURCES, find_profile_faults, list_names_with_mps
from kubeapi.addresses import find_address_faults
from kubeapi.names import SUBDOMAIN, is_subdomain
from kubeapi.options import find_faults, option
from kubeapi.process_options import (
    kubeconfig_option,
    list_kubeconfig_faults,
    log_format_option,
    log_level_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the node daemon. Each field is an option of `gpupack node`, which its help explains."""

    node_name: str = option(env="NODE_NAME", help="Name of the Node object, required. Also $NODE_NAME.")
    gpus: str = option("nvml", allowed=SOURCES, help="Where cards come from.")
    profile: str | None = option(
        None, metavar="NAME|FILE", help="Simulated cards: a shipped profile or a YAML file."
    )
    serve: str = option(
        values.DEVICE_PLUGIN,
        allowed=values.SERVES,
        help="How pods get their cards here: dra serves ResourceClaims, on Kubernetes 1.36 or later.",
    )
    unit_mib: int = option(
        MIB_PER_GIB, least=1, most=MAX_UNIT_MIB, help="MiB of one unit; names the resource."
    )
    compute_limit_percent: int = option(
        WHOLE,
        least=1,
        most=MAX_COMPUTE_LIMIT,
        help="Percent of a card's compute that containers are given in all; beyond 100 their shares overlap.",
    )
    kubeconfig: str | None = kubeconfig_option()
    device_plugin_dir: Path = option(
        Path("/var/lib/kubelet/device-plugins"),
        help="Folder of the kubelet's device plugin sockets and of its checkpoint of devices. Kubernetes has "
        "it there whatever the kubelet's --root-dir is.",
    )
    kubelet_dir: Path = option(
        Path("/var/lib/kubelet"),
        help="The kubelet's --root-dir, with its PodResources socket and its folders of plugins.",
    )
    http: str = option("127.0.0.1:8911", help="HOST:PORT of /healthz /readyz /metrics.")
    card_policy: str = option(DEFAULT_CARD_POLICY, help="For pods nobody assigned a card.")
    device_list_strategy: tuple[str, ...] = option(
        (values.ENVVAR,),
        allowed=values.STRATEGIES,
        metavar="LIST",
        help="How containers are told their cards: envvar, volume-mounts, cdi-annotations, cdi-cri.",
    )
    cdi_dirs: tuple[Path, ...] = option(
        values.CDI_FOLDERS,
        metavar="LIST",
        help="Folders of CDI specifications; one of ours is written into the last where cards lack one.",
    )
    driver_dir: Path | None = option(
        None,
        help="Folder of the host with NVIDIA's driver, which containers get as /usr/local/nvidia where no "
        "runtime brings it.",
    )
    pass_device_specs: bool = option(
        False, help="Give the kubelet the cards' device nodes too: for its static cpu manager."
    )
    advise_frameworks: bool = option(
        False, help="Where nothing holds a container to its share, set variables of JAX and TensorFlow."
    )
    cgroup_root: Path = option(Path("/sys/fs/cgroup"), help="Where the host's cgroups are mounted.")
    memory_limits: str = option(
        values.AUTO,
        allowed=values.MODES,
        help="Let the driver hold containers to their shares: where it can, nowhere, or offer no other "
        "cards.",
    )
    sharing: str = option(
        values.TIME_SLICING,
        allowed=values.SHARINGS,
        help="With mps, gpupack mps holds containers to their shares where the driver does not.",
    )
    mps_root: Path = option(Path("/run/gpupack/mps"), help="Folder of the host where gpupack mps is met.")
    mps_threads: bool = option(
        False, help="Limit the multiprocessors of containers that ask for no compute like their memory."
    )
    compute_limits: str = option(
        values.AUTO,
        allowed=(values.AUTO, values.REQUIRE),
        help="Let MPS hold containers to the compute that they ask for: where it can, or refuse the others.",
    )
    over_use_mib: int = option(
        values.DEFAULT_TOLERANCE_MIB,
        least=0,
        most=LARGEST_NUMBER,
        help="MiB beyond its share that a container may use before an Event tells of it.",
    )
    evict_over_use_after_s: float = option(
        0.0,
        least=0,
        zero_means="never",
        help="Evict a pod that uses more for so many seconds; 0: never. Needs the component evict-over-use.",
    )
    container_logs: Path = option(
        Path("/var/log/containers"),
        help="The kubelet's links to containers' logs: their names tell containers of a pod apart.",
    )
    ignored_xids: frozenset[int] = option(
        IGNORED_XIDS,
        metavar="LIST",
        parse=parse_xids,
        help="XID errors that leave a card healthy: those that are the application's fault.",
    )
    quiet_s: float = option(
        values.DEFAULT_QUIET_S, least=0, help="Seconds without trouble after which a card is healthy again."
    )
    publish_gap_s: float = option(
        values.PUBLISH_GAP_S,
        least=0,
        help="Seconds between two patches of the Node that bring gains only; releases go out at once.",
    )
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    @property
    def resource(self) -> str:
        return resource_name(self.unit_mib)

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's socket that is asked which pods it takes up, and to clean its checkpoint."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def provider(self) -> GpuProvider:
        return SOURCES[self.gpus]

    @property
    def endpoint(self) -> str:
        """Base of our socket's file name in the device plugin folder."""
        return f"{self.resource.replace('/', '-')}.sock"

    @property
    def percent_endpoint(self) -> str:
        """Base of the file name of the socket for percent of cards."""
        return f"{PERCENT_RESOURCE.replace('/', '-')}.sock"

    def check(self) -> None:
        faults = self.faults()
        if not self.device_plugin_dir.is_dir():
            faults.append(
                f"--device-plugin-dir {str(self.device_plugin_dir)!r}; allowed: a folder that exists"
            )
        if faults:
            raise NodeSettingsError(tuple(faults))

    def faults(self) -> list[str]:
        """List the faults, but for a kubelet that is not here: `gpupack node --check` finds that itself."""
        return [
            *find_faults(self),
            *self._name_faults(),
            *find_profile_faults(self.gpus, self.profile),
            *self._sharing_faults(),
            *self._place_faults(),
        ]

    def shown(self) -> dict[str, object]:
        """Return the settings as plain values for the log; none of them is secret."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def _name_faults(self) -> list[str]:
        faults = []
        if not is_subdomain(self.node_name):
            faults.append(f"--node-name {self.node_name!r}; allowed: the name of a Node object, {SUBDOMAIN}")
        from allocator.policy import card_policy

        try:
            card_policy(self.card_policy)
        except AllocatorError as error:
            faults.append(f"--card-policy: {error}")
        return faults

    def _sharing_faults(self) -> list[str]:
        faults = []
        if self.sharing == values.MPS and not self.mps_root.is_absolute():
            faults.append(f"--mps-root {str(self.mps_root)!r}; allowed: a path from / on")
        elif self.sharing == values.MPS and self.gpus in SOURCES and not self.provider.mps_program:
            faults.append(f"--sharing mps: allowed with --gpus {' or '.join(list_names_with_mps())} only")
        if self.mps_threads and self.sharing != values.MPS:
            faults.append("--mps-threads: allowed with --sharing mps only")
        if self.compute_limits == values.REQUIRE and self.sharing != values.MPS:
            faults.append("--compute-limits require: allowed with --sharing mps only")
        return faults

    def _place_faults(self) -> list[str]:
        faults = list(list_kubeconfig_faults(self.kubeconfig))
        if self.driver_dir is not None and not self.driver_dir.is_absolute():
            faults.append(f"--driver-dir {str(self.driver_dir)!r}; allowed: a path from / on")
        return [*faults, *find_address_faults("--http", self.http)]


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
