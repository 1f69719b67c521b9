"""Settings of the extender, checked as a whole: every fault is told at once."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import (
    DEFAULT_CARD_POLICY,
    DEFAULT_NODE_POLICY,
    MIB_PER_GIB,
    SCHEDULER_NAME,
    resource_name,
)
from kubeapi.addresses import HttpAddress, address_faults, is_loopback
from scheduler_plugin.cache.watcher import MIN_STALE_S
from scheduler_plugin.errors import PolicyError, SettingsError
from scheduler_plugin.options import list_election_faults, list_follower_faults, list_process_faults
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies import NODE_POLICIES, list_names
from scheduler_plugin.scheduling.policies.registry import ranks_plain_pods

MAX_SHORTLIST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Settings(HttpAddress):
    """How the extender runs; see `gpupack scheduler --help`.

    Attributes:
        kubeconfig: Path; None: $KUBECONFIG, else ~/.kube/config, else in-cluster.
        http: HOST:PORT to serve on; port 0 takes any free one.
        metrics_http: HOST:PORT of a second listener, which has no verbs and no TLS; None for none.
        node_policy: Ranks nodes for pods that name no policy of their own.
        node_policy_parameters: Its parameters, text by name.
        card_policy: Chooses cards for pods that name no policy of their own.
        rank_all_pods: Rank nodes for pods that ask for no card, too, where kube-scheduler asks about them.
        shortlist: Nodes that filter returns at most; 0 returns all that fit.
        unit_mib: MiB a unit; names the resource.
        tls_cert: PEM file; with `tls_key` the server speaks TLS only.
        tls_key: PEM file.
        tls_client_ca: PEM file; verbs are then answered to clients with a certificate of these authorities.
        anonymous_auth: Answer the verbs to everybody who reaches an address that is not loopback.
        leader_elect: Take part in an election; only the leader answers the verbs.
        lease_namespace: Of the Lease.
        lease_name: Of the Lease.
        lease_s: Seconds others wait for a silent leader.
        identity: Of this process in the election.
        pod_name: This process's pod; while it leads, the pod has the label gpupack.io/leader, and readiness
            says nothing of who leads. None for no label.
        bind_timeout_s: T: a Binding without an answer for so long has failed or never will.
        stale_s: Age of the cache, in seconds, from which filter answers with an error; from 10.
        commit: Bind the pods of batch mode that a queue hands over (the verb /commit).
        follow_lease: NAMESPACE/NAME of the Lease of the kube-scheduler in this process's pod; pods of batch
            mode are bound while that one leads. None: this process leads, or takes part in an election.
        preemption: Evict pods of smaller priority where kube-scheduler's own preemption sees no need.
        log_level: One of debug, info, warning, error.
        log_format: text or json.
    """

    kubeconfig: str | None = None
    http: str = "127.0.0.1:8910"
    metrics_http: str | None = None
    node_policy: str = DEFAULT_NODE_POLICY
    node_policy_parameters: Mapping[str, str] = field(default_factory=dict)
    card_policy: str = DEFAULT_CARD_POLICY
    rank_all_pods: bool = False
    shortlist: int = 16
    unit_mib: int = MIB_PER_GIB
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    anonymous_auth: bool = False
    leader_elect: bool = False
    lease_namespace: str = "kube-system"
    lease_name: str = f"{SCHEDULER_NAME}-extender"
    lease_s: int = 15
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    pod_name: str | None = None
    bind_timeout_s: float = 4.0
    stale_s: float = 180.0
    commit: bool = False
    follow_lease: str | None = None
    preemption: bool = True
    log_level: str = "info"
    log_format: str = "text"

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault, one a line.
        """
        of_http = list(address_faults("http", self.http))
        faults = [
            *(of_http or self._exposure_faults()),
            *(address_faults("metrics http", self.metrics_http) if self.metrics_http is not None else ()),
            *self._policy_faults(),
            *self._tls_faults(),
            *self._number_faults(),
            *list_election_faults(self, "bind timeout", self.bind_timeout_s),
            *list_follower_faults(self.follow_lease, "bind timeout", self.bind_timeout_s),
            *list_process_faults(self.kubeconfig, self.log_level, self.log_format),
        ]
        if faults:
            raise SettingsError("\n".join(faults))

    def _policy_faults(self) -> list[str]:
        faults = []
        try:
            policy = ClusterPolicies(self.node_policy, parameters=self.node_policy_parameters).cluster_policy
            if self.rank_all_pods and not ranks_plain_pods(policy):
                able = ", ".join(name for name in list_names() if ranks_plain_pods(NODE_POLICIES.made(name)))
                faults.append(f"rank all pods with node policy {self.node_policy}; allowed: {able}")
        except PolicyError as error:
            faults.append(str(error))
        try:
            ClusterPolicies(card_policy_name=self.card_policy)
        except AllocatorError as error:
            faults.append(str(error))
        try:
            resource_name(self.unit_mib)
        except AllocatorError as error:
            faults.append(str(error))
        return faults

    def _exposure_faults(self) -> list[str]:
        """Find out whether somebody could bind and evict pods whom nobody meant to let."""
        if self.tls_client_ca is not None and self.anonymous_auth:
            return [f"anonymous auth with TLS client CA {self.tls_client_ca!r}; allowed: one of the two"]
        if self.tls_client_ca is not None or self.anonymous_auth or is_loopback(self.http):
            return []
        allowed = "a loopback address, a client CA (--tls-client-ca-file), or --anonymous-auth where all may"
        return [f"http {self.http!r}: whoever reaches it could bind and evict pods; allowed: {allowed}"]

    def _tls_faults(self) -> list[str]:
        if (self.tls_cert is None) != (self.tls_key is None):
            return ["TLS certificate and key; allowed: both files or none"]
        if self.tls_client_ca is not None and self.tls_cert is None:
            return [f"TLS client CA {self.tls_client_ca!r}: allowed with a TLS certificate and key only"]
        files = (("certificate", self.tls_cert), ("key", self.tls_key), ("client CA", self.tls_client_ca))
        return [
            f"TLS {what} {path!r}: no such file"
            for what, path in files
            if path is not None and not Path(path).is_file()
        ]

    def _number_faults(self) -> list[str]:
        faults = []
        if not 0 <= self.shortlist <= MAX_SHORTLIST:
            faults.append(f"shortlist {self.shortlist}; allowed: 0 (all) to {MAX_SHORTLIST} nodes")
        if not self.stale_s >= MIN_STALE_S:
            faults.append(f"stale limit {self.stale_s:g} s; allowed: {MIN_STALE_S:g} or more")
        return faults
