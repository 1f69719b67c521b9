"""Settings of the queue, checked as a whole: every fault is told at once."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, MIB_PER_GIB, resource_name
from kubeapi.names import LABEL, SUBDOMAIN, is_label, is_subdomain
from scheduler_plugin.cluster.watching import MIN_STALE_S
from scheduler_plugin.errors import PolicyError, SettingsError
from scheduler_plugin.placement.cluster_policies import Policies

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How the queue runs; see `gpupack queue --help`.

    Attributes:
        config: Path of the YAML file, in a mounted ConfigMap as a rule; read again when it changes.
        kubeconfig: Path; None: $KUBECONFIG, else ~/.kube/config, else in-cluster.
        http: HOST:PORT of health, metrics and status; port 0 takes any free one.
        node_policy: As of the extender.
        card_policy: As of the extender.
        unit_mib: MiB a unit; names the resource.
        leader_elect: Take part in an election; only the leader releases pods.
        lease_namespace: Of the Lease.
        lease_name: Of the Lease.
        lease_s: Seconds others wait for a silent leader.
        identity: Of this process in the election.
        write_timeout_s: A write without an answer for so long has failed or never will.
        stale_s: Age of the view, in seconds, from which nothing is released; from 10.
        log_level: One of debug, info, warning, error.
        log_format: text or json.
    """

    config: str
    kubeconfig: str | None = None
    http: str = "127.0.0.1:8911"
    node_policy: str = DEFAULT_NODE_POLICY
    card_policy: str = DEFAULT_CARD_POLICY
    unit_mib: int = MIB_PER_GIB
    leader_elect: bool = False
    lease_namespace: str = "kube-system"
    lease_name: str = "gpupack-queue"
    lease_s: int = 24
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    write_timeout_s: float = 5.0
    stale_s: float = 180.0
    log_level: str = "info"
    log_format: str = "text"

    @property
    def host(self) -> str:
        """Host part of `http`; empty means every address."""
        return self.http.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port part of `http`."""
        return int(self.http.rpartition(":")[2])

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault, one a line.
        """
        faults = [*self._name_faults()]
        colon, port = self.http.rpartition(":")[1:]
        if not (colon and port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
            faults.append(f"http {self.http!r}: allowed is HOST:PORT with a port from 0 to {MAX_PORT}")
        for make in (
            lambda: Policies(self.node_policy),
            lambda: Policies(card_policy_name=self.card_policy),
            lambda: resource_name(self.unit_mib),
        ):
            try:
                make()
            except (PolicyError, AllocatorError) as error:
                faults.append(str(error))
        if not self.stale_s >= MIN_STALE_S:
            faults.append(f"stale limit {self.stale_s:g} s: allowed is {MIN_STALE_S:g} or more")
        if self.kubeconfig is not None and not Path(self.kubeconfig).is_file():
            faults.append(f"kubeconfig {self.kubeconfig!r}: no such file")
        if self.log_level not in LOG_LEVELS:
            faults.append(f"log level {self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")
        if self.log_format not in LOG_FORMATS:
            faults.append(f"log format {self.log_format!r}: allowed are {', '.join(LOG_FORMATS)}")
        if faults:
            raise SettingsError("\n".join(faults))

    def _name_faults(self) -> list[str]:
        faults = []
        if self.lease_s < 1:
            faults.append(f"lease {self.lease_s} s: allowed is a whole number from 1")
        longest = self.lease_s / 3 if self.leader_elect else float("inf")
        if not 0 < self.write_timeout_s < longest:
            faults.append(
                f"write timeout {self.write_timeout_s:g} s: allowed is more than 0"
                + (f" and less than a third of the lease, {longest:g} s" if self.leader_elect else "")
            )
        if self.leader_elect and not is_label(self.lease_namespace):
            faults.append(f"lease namespace {self.lease_namespace!r}: allowed are {LABEL}")
        if self.leader_elect and not is_subdomain(self.lease_name):
            faults.append(f"lease name {self.lease_name!r}: allowed are {SUBDOMAIN}")
        return faults
