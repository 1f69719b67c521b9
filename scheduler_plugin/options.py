"""Options that the extender and the queue have in common: how they are checked, and what is made of them."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from allocator.names import LEADER_LABEL
from kubeapi.client import KubeClient
from kubeapi.leaderlabel import LeaderLabel
from kubeapi.lease import LeaseElector
from kubeapi.lease_follower import LeaseFollower
from kubeapi.names import LABEL, SUBDOMAIN, is_label, is_subdomain

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

LONGEST_LABEL: Final = 63

EVENTS: Final = 10_000
"""Events that wait to be written at most: one for each pod of a large batch, some MiB."""


class ElectionSettings(Protocol):
    """The settings of an election.

    Attributes:
        leader_elect: Take part in one.
        lease_namespace: Of the Lease.
        lease_name: Of the Lease.
        lease_s: Seconds others wait for a silent leader.
        identity: Of this process.
        pod_name: This process's pod, in the Lease's namespace, which shows by a label that it leads; None
            where nobody selects by that label, and readiness says who leads.
    """

    @property
    def leader_elect(self) -> bool: ...
    @property
    def lease_namespace(self) -> str: ...
    @property
    def lease_name(self) -> str: ...
    @property
    def lease_s(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def pod_name(self) -> str | None: ...


def list_process_faults(kubeconfig: str | None, log_level: str, log_format: str) -> Iterator[str]:
    """What is wrong with the options that every process has."""
    if kubeconfig is not None and not Path(kubeconfig).is_file():
        yield f"kubeconfig {kubeconfig!r}: no such file"
    if log_level not in LOG_LEVELS:
        yield f"log level {log_level!r}; allowed: {', '.join(LOG_LEVELS)}"
    if log_format not in LOG_FORMATS:
        yield f"log format {log_format!r}; allowed: {', '.join(LOG_FORMATS)}"


def list_election_faults(election: ElectionSettings, what: str, write_s: float) -> Iterator[str]:
    """What is wrong with an election.

    Args:
        election: Its settings.
        what: Name of the time-out of a leader's writes.
        write_s: That time-out: a write must have ended before another leader's first one.
    """
    if election.lease_s < 1:
        yield f"lease {election.lease_s} s; allowed: a whole number from 1"
    longest = election.lease_s / 3 if election.leader_elect else float("inf")
    if not 0 < write_s < longest:
        yield f"{what} {write_s:g} s; allowed: more than 0" + (
            f" and less than a third of the lease, {longest:g} s" if election.leader_elect else ""
        )
    if election.pod_name is not None and not is_subdomain(election.pod_name):
        yield f"pod name {election.pod_name!r}; allowed: {SUBDOMAIN}"
    if election.pod_name is not None and len(election.lease_name) > LONGEST_LABEL:
        yield (
            f"lease name {election.lease_name!r}: with a pod name it becomes the value of a label, so allowed"
            f" are {LONGEST_LABEL} characters"
        )
    if not (election.leader_elect or election.pod_name is not None):
        return
    if not is_label(election.lease_namespace):
        yield f"lease namespace {election.lease_namespace!r}; allowed: {LABEL}"
    if not is_subdomain(election.lease_name):
        yield f"lease name {election.lease_name!r}; allowed: {SUBDOMAIN}"
    if not election.identity:
        yield "identity is empty; allowed: a name"


GAP_S: Final = 5.0
"""A follower of a Lease stops that long before another one can take it; a write must be over by then."""


def list_follower_faults(lease: str | None, what: str, write_s: float) -> Iterator[str]:
    """What is wrong with following another process's Lease.

    Args:
        lease: NAMESPACE/NAME, None where none is followed.
        what: Name of the time-out of a leader's writes.
        write_s: That time-out.
    """
    if lease is None:
        return
    namespace, _, name = lease.partition("/")
    if not (is_label(namespace) and is_subdomain(name)):
        yield f"follow lease {lease!r}; allowed: NAMESPACE/NAME"
    if not write_s < GAP_S:
        yield f"{what} {write_s:g} s with a lease that is followed; allowed: less than {GAP_S:g} s"


def make_follower(lease: str | None, client: KubeClient) -> LeaseFollower | None:
    """Lead with the holder of a Lease that has this host's name, None where none is followed."""
    if lease is None:
        return None
    namespace, _, name = lease.partition("/")
    return LeaseFollower(client, namespace, name, socket.gethostname(), gap_s=GAP_S)


def make_elector(election: ElectionSettings, client: KubeClient) -> LeaseElector | None:
    """Take part in an election, None where the settings do not want it."""
    if not election.leader_elect:
        return None
    return LeaseElector(
        client,
        election.lease_namespace,
        election.lease_name,
        election.identity,
        election.lease_s,
        min(2.0, election.lease_s / 4),
    )


def make_leader_label(
    election: ElectionSettings, client: KubeClient, elector: LeaseElector | LeaseFollower | None
) -> LeaderLabel | None:
    """Keep the label of the leader on this process's pod, None where the settings name no pod.

    Without an election this process always leads.
    """
    if election.pod_name is None:
        return None
    return LeaderLabel(
        client,
        election.lease_namespace,
        election.pod_name,
        LEADER_LABEL,
        election.lease_name,
        (lambda: elector.is_leader) if elector is not None else (lambda: True),
        election.lease_s / 4,
    )
