"""Settings of the queue, checked as a whole: every fault is told at once."""

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, MIB_PER_GIB, resource_name
from kubeapi.addresses import HttpAddress, address_faults
from scheduler_plugin.cache.watcher import MIN_STALE_S
from scheduler_plugin.errors import PolicyError, SettingsError
from scheduler_plugin.options import list_election_faults, list_follower_faults, list_process_faults
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

INDEXED: Final = {"best-fit": {"mode": "pick"}}
"""The queue makes its candidates itself: best-fit finds a node through its index."""


@dataclass(frozen=True, slots=True)
class QueueSettings(HttpAddress):
    """How the queue runs; see `gpupack queue --help`.

    Attributes:
        config: Path of the YAML file, in a mounted ConfigMap as a rule; read again when it changes.
        kubeconfig: Path; None: $KUBECONFIG, else ~/.kube/config, else in-cluster.
        http: HOST:PORT of health, metrics and status; port 0 takes any free one.
        node_policy: As of the extender.
        node_policy_parameters: Its parameters, text by name.
        card_policy: As of the extender.
        unit_mib: MiB a unit; names the resource.
        leader_elect: Take part in an election; only the leader releases pods.
        lease_namespace: Of the Lease.
        lease_name: Of the Lease.
        lease_s: Seconds others wait for a silent leader.
        identity: Of this process in the election.
        pod_name: This process's pod; while it leads, the pod has the label gpupack.io/leader, and readiness
            says nothing of who leads. None for no label.
        committer: URL of the scheduler that binds pods of batch mode; None: nobody binds them.
        follow_lease: NAMESPACE/NAME of the Lease of the kube-scheduler in this process's pod, with which it
            leads, in place of an election. None: it follows none.
        write_timeout_s: A write without an answer for so long has failed or never will.
        stale_s: Age of the view, in seconds, from which nothing is released; from 10.
        log_level: One of debug, info, warning, error.
        log_format: text or json.
    """

    config: str
    kubeconfig: str | None = None
    http: str = "127.0.0.1:8914"
    node_policy: str = DEFAULT_NODE_POLICY
    node_policy_parameters: Mapping[str, str] = field(default_factory=dict)
    card_policy: str = DEFAULT_CARD_POLICY
    unit_mib: int = MIB_PER_GIB
    leader_elect: bool = False
    lease_namespace: str = "kube-system"
    lease_name: str = "gpupack-queue"
    lease_s: int = 24
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    pod_name: str | None = None
    committer: str | None = None
    follow_lease: str | None = None
    write_timeout_s: float = 4.0
    stale_s: float = 180.0
    log_level: str = "info"
    log_format: str = "text"

    @property
    def longest_write_s(self) -> float:
        """Seconds for which what a process before this one has decided may take effect.

        The committer sends what it was handed within a write's time, and that takes effect within another.
        """
        return self.write_timeout_s * (1 if self.committer is None else 2)

    def policies(self) -> ClusterPolicies:
        """Make the policies of the process, which its configuration may change.

        Raises:
            PolicyError: of this package or of allocator.
        """
        return ClusterPolicies(self.node_policy, self.card_policy, self.node_policy_parameters, INDEXED)

    def policy_faults(
        self, node_policy: str | None, parameters: Mapping[str, Mapping[str, str]]
    ) -> list[str]:
        """Say what is wrong with the node policies of a configuration; None: it names none."""
        try:
            self.policies().configure(node_policy, parameters)
        except PolicyError as error:
            return [f"nodePolicy: {error}"]
        return []

    def _list_follower_faults(self) -> Iterator[str]:
        if self.follow_lease is not None and self.leader_elect:
            yield f"follow lease {self.follow_lease!r} with an election; allowed: one of the two"
        yield from list_follower_faults(self.follow_lease, "write timeout", self.write_timeout_s)

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault, one a line.
        """
        faults = [
            *list_election_faults(self, "write timeout", self.write_timeout_s),
            *self._list_follower_faults(),
            *address_faults("http", self.http),
            *list_process_faults(self.kubeconfig, self.log_level, self.log_format),
        ]
        for make in (
            lambda: ClusterPolicies(self.node_policy, parameters=self.node_policy_parameters),
            lambda: ClusterPolicies(card_policy_name=self.card_policy),
            lambda: resource_name(self.unit_mib),
        ):
            try:
                make()
            except (PolicyError, AllocatorError) as error:
                faults.append(str(error))
        if not self.stale_s >= MIN_STALE_S:
            faults.append(f"stale limit {self.stale_s:g} s; allowed: {MIN_STALE_S:g} or more")
        if faults:
            raise SettingsError("\n".join(faults))
