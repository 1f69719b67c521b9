"""Settings of `gpupack autoscale`, checked as a whole: every fault is told at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.names import MAX_UNIT_MIB, MIB_PER_GIB, NODE_HOST, SYSTEM_NAMESPACE
from gpupack.encodings import to_utf8
from gpupack.errors import InputError
from kubeapi.addresses import find_address_faults
from kubeapi.names import LABEL, is_label
from kubeapi.options import find_faults, option
from kubeapi.process_options import (
    ElectionOptions,
    kubeconfig_option,
    list_election_faults,
    list_kubeconfig_faults,
    log_format_option,
    log_level_option,
)
from scheduler_plugin.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupack.autoscale.planner import PlanRules
    from gpupack.autoscale.shapes import Shape

MOST_PLACEHOLDERS = 500
CLUSTER_AUTOSCALER = "cluster-autoscaler"
KARPENTER = "karpenter"
AUTOSCALERS = (CLUSTER_AUTOSCALER, KARPENTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSettings(ElectionOptions):
    """Settings of `gpupack autoscale`. Each field with an option is one of the command.

    Attributes:
        guard_period_s: Seconds between two looks at which nodes to keep.
        write_timeout_s: A write without an answer for so long has failed or never will.
    """

    kubeconfig: str | None = kubeconfig_option()
    http: str = option("127.0.0.1:8915", help="HOST:PORT of health, metrics, status.")
    unit_mib: int | None = option(
        None, least=1, most=MAX_UNIT_MIB, help="MiB of one unit. Default: what most nodes publish."
    )
    shapes: str | None = option(
        None, metavar="FILE", help="YAML with machine types that may have no node yet."
    )
    autoscaler: str = option(
        CLUSTER_AUTOSCALER,
        allowed=AUTOSCALERS,
        help="Which one adds the nodes with cards. For karpenter, nodes that look free and are full get a "
        "label of ours, by which placeholders exclude them.",
    )
    placeholders: bool = option(True, help="Ask for nodes at all.")
    keep_nodes: bool = option(True, help="Keep nodes from scale-down whose pods have no cards elsewhere.")
    consolidate: bool = option(
        False, help="Say by Events on Nodes which of them few moves would empty; nothing is evicted."
    )
    grace_s: float = option(
        15.0,
        least=0,
        most=3600,
        help="Seconds that a pod has been refused on every node before a node is asked for.",
    )
    most: int = option(
        20, name="max-placeholders", least=1, most=MOST_PLACEHOLDERS, help="Nodes asked for at one time."
    )
    period_s: float = 5.0
    guard_period_s: float = 30.0
    namespace: str = option(SYSTEM_NAMESPACE, help="Of the placeholder pods.")
    leader_elect: bool = option(False, shown=False, help="Only the leader writes.")
    lease_name: str = option("gpupack-autoscale")
    write_timeout_s: float = 5.0
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    def rules(self) -> "PlanRules":
        from gpupack.autoscale.planner import PlanRules
        from kubeapi.selectors import HOSTNAME

        most = self.most if self.placeholders else 0
        learns = self.autoscaler != KARPENTER
        host_label = HOSTNAME if learns else NODE_HOST
        return PlanRules(self.grace_s, most, host_label, learns_from_nodes=learns)

    def declared(self) -> "Sequence[Shape]":
        from gpupack.autoscale.shapes import read_shapes

        if self.shapes is None:
            return ()
        try:
            text = to_utf8(Path(self.shapes).read_bytes()).decode("utf-8")
            return read_shapes(text, self.unit_mib or MIB_PER_GIB, self.shapes)
        except OSError as error:
            raise SettingsError(f"shapes {self.shapes!r}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"shapes {self.shapes!r}: not text in UTF-8") from error
        except InputError as error:
            raise SettingsError(str(error)) from error

    def check(self) -> None:
        faults = [
            *list_election_faults(self, "write timeout", self.write_timeout_s),
            *find_address_faults("--http", self.http),
            *list_kubeconfig_faults(self.kubeconfig),
            *find_faults(self),
        ]
        if self.consolidate and not self.keep_nodes:
            faults.append("--consolidate with --no-keep-nodes; allowed: both, or neither")
        if not is_label(self.namespace):
            faults.append(f"--namespace {self.namespace!r}; allowed: {LABEL}")
        if faults:
            raise SettingsError("\n".join(faults))
        self.declared()
