"""Options that several processes have: how they reach the API server, how they log, who of them leads."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubeapi.names import LABEL, MAX_LABEL, SUBDOMAIN, is_label, is_subdomain
from kubeapi.options import option

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

LEASE_GAP_S: Final = 5.0
"""A follower of a Lease stops that long before another one can take it; a write must be over by then."""

MIN_STALE_S: Final = 10.0
"""Below this an API server that is slow for a moment, or a lost connection, would look like a stale view."""

KUBECONFIG_HELP: Final = "Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster."


def kubeconfig_option() -> Any:
    return option(None, metavar="FILE", help=KUBECONFIG_HELP)


def log_level_option(default: str = "info") -> Any:
    return option(default, allowed=LOG_LEVELS)


def log_format_option() -> Any:
    return option("text", allowed=LOG_FORMATS)


def follow_lease_option(text: str) -> Any:
    """Make the field of another process's Lease, NAMESPACE/NAME; None follows none."""
    return option(None, metavar="NAMESPACE/NAME", help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions:
    """Options of processes of which one leads.

    Attributes:
        pod_name: This process's pod, in the Lease's namespace. While the process leads, the pod has the label
            gpupack.io/leader, and readiness says nothing of who leads. None for no label.
    """

    leader_elect: bool = option(False, shown=False, help="Only the leader works.")
    lease_namespace: str = option("kube-system")
    lease_name: str = option("gpupack")
    lease_s: int = 24
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    pod_name: str | None = option(
        None,
        metavar="NAME",
        help="Of this process, in the Lease's namespace: the leader's pod gets the label gpupack.io/leader.",
    )


def list_kubeconfig_faults(kubeconfig: str | None) -> Iterator[str]:
    if kubeconfig is not None and not Path(kubeconfig).is_file():
        yield f"--kubeconfig {kubeconfig!r}: no such file"


def list_tls_faults(
    option: str, certificate: str | None, key: str | None, client_ca: str | None = None
) -> Iterator[str]:
    """List what is wrong with a server's PEM files, the values of options whose names begin with `option`."""
    if (certificate is None) != (key is None):
        yield f"{option}-cert-file and {option}-key-file; allowed: both or none"
    for what, path in (("cert", certificate), ("key", key), ("client-ca", client_ca)):
        if path is not None and not Path(path).is_file():
            yield f"{option}-{what}-file {path!r}: no such file"


def list_election_faults(election: ElectionOptions, what: str, write_s: float) -> Iterator[str]:
    """List what is wrong with an election whose leader's writes end after `write_s`, the option `what`."""
    if election.lease_s < 1:
        yield f"lease {election.lease_s} s; allowed: a whole number from 1"
    longest = election.lease_s / 3 if election.leader_elect else float("inf")
    if not 0 < write_s < longest:
        yield f"{what} {write_s:g} s; allowed: more than 0" + (
            f" and less than a third of the lease, {longest:g} s" if election.leader_elect else ""
        )
    if election.pod_name is not None and not is_subdomain(election.pod_name):
        yield f"--pod-name {election.pod_name!r}; allowed: {SUBDOMAIN}"
    if election.pod_name is not None and len(election.lease_name) > MAX_LABEL:
        yield (
            f"--lease-name {election.lease_name!r}, the value of a label where there is a pod name; "
            f"allowed: {MAX_LABEL} characters"
        )
    if not (election.leader_elect or election.pod_name is not None):
        return
    if not is_label(election.lease_namespace):
        yield f"--lease-namespace {election.lease_namespace!r}; allowed: {LABEL}"
    if not is_subdomain(election.lease_name):
        yield f"--lease-name {election.lease_name!r}; allowed: {SUBDOMAIN}"
    if not election.identity:
        yield "identity is empty; allowed: a name"


def list_follower_faults(lease: str | None, what: str, write_s: float) -> Iterator[str]:
    """List what is wrong with following NAMESPACE/NAME; `what` is the option with the time-out of writes."""
    if lease is None:
        return
    namespace, _, name = lease.partition("/")
    if not (is_label(namespace) and is_subdomain(name)):
        yield f"--follow-lease {lease!r}; allowed: NAMESPACE/NAME"
    if not write_s < LEASE_GAP_S:
        yield f"{what} {write_s:g} s with a lease that is followed; allowed: less than {LEASE_GAP_S:g} s"
