"""Settings of `gpupack autoscale`, checked as a whole: every fault is told at once."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allocator.errors import AllocatorError
from allocator.names import MIB_PER_GIB, NODE_HOST, resource_name
from gpupack.autoscale.planner import PlanRules
from gpupack.autoscale.shapes import HOSTNAME, Shape, read_shapes
from gpupack.errors import InputError
from kubeapi.addresses import HttpAddress, address_faults
from kubeapi.names import LABEL, is_label
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.options import list_election_faults, list_process_faults

MOST_PLACEHOLDERS = 500
AUTO = "auto"
CLUSTER_AUTOSCALER = "cluster-autoscaler"
KARPENTER = "karpenter"
AUTOSCALERS = (AUTO, CLUSTER_AUTOSCALER, KARPENTER)


@dataclass(frozen=True, slots=True)
class AutoscaleSettings(HttpAddress):
    """How `gpupack autoscale` runs; see its `--help`.

    Attributes:
        kubeconfig: Path; None: $KUBECONFIG, else ~/.kube/config, else in-cluster.
        http: HOST:PORT of health, metrics and status; port 0 takes any free one.
        unit_mib: MiB a unit; None: what most nodes publish.
        shapes: Path of a YAML file of shapes; None: shapes are learned from nodes alone.
        autoscaler: Which one adds nodes: it decides what a placeholder may say. auto: what the API server
            serves tells.
        placeholders: Ask for nodes.
        keep_nodes: Keep nodes from scale-down whose pods have no cards elsewhere.
        consolidate: Say which nodes few moves would empty; nothing is evicted.
        grace_s: Seconds that a pod has been refused everywhere before a node is asked for.
        most: Placeholder pods at most at one time.
        period_s: Seconds between two passes at most.
        guard_period_s: Seconds between two looks at which nodes to keep.
        namespace: Of the placeholder pods.
        leader_elect: Take part in an election; only the leader writes.
        lease_namespace: Of the Lease.
        lease_name: Of the Lease.
        lease_s: Seconds others wait for a silent leader.
        identity: Of this process in the election.
        pod_name: As of the queue.
        write_timeout_s: A write without an answer for so long has failed or never will.
        log_level: One of debug, info, warning, error.
        log_format: text or json.
    """

    kubeconfig: str | None = None
    http: str = "127.0.0.1:8915"
    unit_mib: int | None = None
    shapes: str | None = None
    autoscaler: str = AUTO
    placeholders: bool = True
    keep_nodes: bool = True
    consolidate: bool = False
    grace_s: float = 15.0
    most: int = 20
    period_s: float = 5.0
    guard_period_s: float = 30.0
    namespace: str = "gpupack-system"
    leader_elect: bool = False
    lease_namespace: str = "kube-system"
    lease_name: str = "gpupack-autoscale"
    lease_s: int = 24
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    pod_name: str | None = None
    write_timeout_s: float = 5.0
    log_level: str = "info"
    log_format: str = "text"

    def rules(self, autoscaler: str) -> PlanRules:
        """Write how placeholders are planned for an autoscaler."""
        most = self.most if self.placeholders else 0
        host_label = NODE_HOST if autoscaler == KARPENTER else HOSTNAME
        return PlanRules(grace_s=self.grace_s, most=most, host_label=host_label)

    def declared(self) -> Sequence[Shape]:
        """Read the file of shapes.

        Raises:
            SettingsError: it cannot be read, or has faults.
        """
        if self.shapes is None:
            return ()
        try:
            text = Path(self.shapes).read_text(encoding="utf-8")
            return read_shapes(text, self.unit_mib or MIB_PER_GIB, self.shapes)
        except OSError as error:
            raise SettingsError(f"shapes {self.shapes!r}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"shapes {self.shapes!r}: not text in UTF-8") from error
        except InputError as error:
            raise SettingsError(str(error)) from error

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault, one a line.
        """
        faults = [
            *list_election_faults(self, "write timeout", self.write_timeout_s),
            *address_faults("http", self.http),
            *list_process_faults(self.kubeconfig, self.log_level, self.log_format),
        ]
        if not 0 <= self.grace_s <= 3600:  # noqa: PLR2004 - an hour
            faults.append(f"grace {self.grace_s:g} s; allowed: 0 to 3600 seconds")
        if not 1 <= self.most <= MOST_PLACEHOLDERS:
            faults.append(f"max placeholders {self.most}; allowed: 1 to {MOST_PLACEHOLDERS}")
        if self.autoscaler not in AUTOSCALERS:
            faults.append(f"autoscaler {self.autoscaler!r}; allowed: {', '.join(AUTOSCALERS)}")
        if self.consolidate and not self.keep_nodes:
            faults.append("consolidate without keep nodes; allowed: both, or neither")
        if not is_label(self.namespace):
            faults.append(f"namespace {self.namespace!r}; allowed: {LABEL}")
        if self.unit_mib is not None:
            try:
                resource_name(self.unit_mib)
            except AllocatorError as error:
                faults.append(str(error))
        if faults:
            raise SettingsError("\n".join(faults))
        self.declared()
