"""Settings of the dashboard."""

import ipaddress
from dataclasses import dataclass

from allocator.names import QUEUE_SERVICE, SYSTEM_NAMESPACE
from gpupack.errors import InputError
from kubeapi.addresses import find_address_faults
from kubeapi.names import LABEL, is_label
from kubeapi.options import find_faults, option
from kubeapi.process_options import (
    kubeconfig_option,
    list_kubeconfig_faults,
    list_tls_faults,
    log_format_option,
    log_level_option,
)
from kubeapi.urls import find_url_faults

ANY_HOST = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the dashboard. Each field with an option is one of `gpupack dashboard`."""

    http: str = option(
        "127.0.0.1:8913",
        metavar="HOST:PORT",
        help="Listen there. Other addresses than loopback show the page to others.",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        name="allowed-host",
        repeat=True,
        metavar="NAME",
        help="A further name by which browsers may reach the page, `*` for any; may be repeated.",
    )
    namespace: str | None = option(None, short="-n", help="Read pods of this namespace only; default: all.")
    queue_url: str | None = option(
        None, metavar="URL", help="Of `gpupack queue`; default: through the API server."
    )
    queue_namespace: str = option(SYSTEM_NAMESPACE, help="Of the queue's Service.")
    queue_service: str = QUEUE_SERVICE
    daemon_port: int | None = option(
        None,
        metavar="PORT",
        least=1,
        most=65535,
        help="Of the node daemons, to ask their pods directly what cards do; default: through the API "
        "server.",
    )
    teams_http: str | None = option(
        None, metavar="HOST:PORT", help="Answer members of namespaces there (docs/teams.md)."
    )
    teams_tls_cert: str | None = option(
        None, name="teams-tls-cert-file", metavar="FILE", help="PEM; with the key, that port speaks TLS only."
    )
    teams_tls_key: str | None = option(None, name="teams-tls-key-file", metavar="FILE", help="PEM.")
    kubeconfig: str | None = kubeconfig_option()
    context: str | None = None
    log_level: str = log_level_option("warning")
    log_format: str = log_format_option()

    def check(self) -> None:
        faults = [
            *find_address_faults("--http", self.http),
            *list_kubeconfig_faults(self.kubeconfig),
            *find_faults(self),
            *(
                f"{what} {name!r}; allowed: {LABEL}"
                for what, name in (
                    ("--namespace", self.namespace),
                    ("--queue-namespace", self.queue_namespace),
                    ("queue service", self.queue_service),
                )
                if name is not None and not is_label(name)
            ),
        ]
        if self.queue_url is not None:
            faults += find_url_faults("--queue-url", self.queue_url)
        faults += self._find_teams_faults()
        if faults:
            raise InputError("\n".join(faults))

    def _find_teams_faults(self) -> list[str]:
        files = (self.teams_tls_cert, self.teams_tls_key)
        faults = list(list_tls_faults("--teams-tls", *files))
        if self.teams_http is None:
            alone = "--teams-tls-cert-file and --teams-tls-key-file: allowed with --teams-http only"
            return [*faults, alone] if any(files) else faults
        faults += find_address_faults("--teams-http", self.teams_http)
        if self.namespace is not None:
            faults.append("--teams-http with --namespace; allowed: one of the two, for sums need all pods")
        return faults


def host_is_allowed(header: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a request with this `Host` may be answered; `*` allows any.

    A page of somebody else's can make its own name stand for our address (DNS rebinding), and then read ours.
    With localhost or an address it cannot.
    """
    if ANY_HOST in allowed:
        return True
    name = header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in {each.lower() for each in allowed}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
