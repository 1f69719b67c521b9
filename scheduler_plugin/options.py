"""Reads the options that the extender, the queue and the autoscaler have in common."""

import socket
from typing import Final

from allocator.names import LEADER_LABEL
from kubeapi.client import KubeClient
from kubeapi.leaderlabel import LeaderLabel
from kubeapi.lease import LeaderStatus, LeaseElector, SoleProcess
from kubeapi.lease_follower import LeaseFollower
from kubeapi.process_options import LEASE_GAP_S, ElectionOptions

EVENTS: Final = 10_000
"""Events that wait to be written at most: one for each pod of a large batch, some MiB."""


def make_follower(lease: str | None, client: KubeClient) -> LeaseFollower | None:
    """Make a follower of the Lease whose holder on this host leads; None if no Lease is followed."""
    if lease is None:
        return None
    namespace, _, name = lease.partition("/")
    return LeaseFollower(client, namespace, name, socket.gethostname(), gap_s=LEASE_GAP_S)


def make_elector(
    election: ElectionOptions,
    client: KubeClient,
    follower: LeaseFollower | None = None,
    *,
    since: float = float("-inf"),
) -> LeaseElector | SoleProcess:
    """Take part in an election; where the settings want none, this process leads.

    Args:
        since: Since when it leads without an election, in seconds of the clock.
        follower: Of the Lease that this process must lead with to be elected. Who held ours by following the
            same one stopped before this process began to follow, so nobody waits for it.
    """
    if not election.leader_elect:
        return SoleProcess(since)
    prefix = "" if follower is None else f"{follower.lease}/"
    return LeaseElector(
        client,
        election.lease_namespace,
        election.lease_name,
        prefix + election.identity,
        election.lease_s,
        min(2.0, election.lease_s / 4),
        is_eligible=(lambda: True) if follower is None else (lambda: follower.is_leader),
        has_stopped=lambda holder: bool(prefix) and holder.startswith(prefix),
    )


def make_leader_label(
    election: ElectionOptions, client: KubeClient, elector: LeaderStatus
) -> LeaderLabel | None:
    """Make the keeper of the leader label of this process's pod; None if the settings name no pod."""
    if election.pod_name is None:
        return None
    return LeaderLabel(
        client,
        election.lease_namespace,
        election.pod_name,
        LEADER_LABEL,
        election.lease_name,
        lambda: elector.is_leader,
        election.lease_s / 4,
    )
