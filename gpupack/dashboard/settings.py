"""How the dashboard runs."""

import ipaddress
from dataclasses import dataclass

from gpupack.errors import InputError
from kubeapi.addresses import HttpAddress, address_faults
from kubeapi.names import LABEL, is_label
from scheduler_plugin.options import list_process_faults

ANY_HOST = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(HttpAddress):
    """How the dashboard runs.

    Attributes:
        http: HOST:PORT to listen on; port 0 for any.
        allowed_hosts: names that a browser may use for us besides localhost and IP addresses; `*` for any.
        kubeconfig: path, None for the usual places.
        context: of the kubeconfig, None for its current one.
        namespace: whose pods to read, None for all.
        queue_url: of the queue, None to ask through the API server.
        queue_namespace: of the queue's Service.
        queue_service: its name.
        history: file that keeps the trend and the use, None for none.
    """

    http: str = "127.0.0.1:8913"
    allowed_hosts: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    queue_url: str | None = None
    queue_namespace: str = "gpupack-system"
    queue_service: str = "gpupack-queue"
    history: str | None = None

    def check(self) -> None:
        """Check everything.

        Raises:
            InputError: lists every fault, one a line.
        """
        faults = [
            *address_faults("http", self.http),
            *list_process_faults(self.kubeconfig, "info", "text"),
            *(
                f"{what} {name!r}; allowed: {LABEL}"
                for what, name in (
                    ("namespace", self.namespace),
                    ("queue namespace", self.queue_namespace),
                    ("queue service", self.queue_service),
                )
                if name is not None and not is_label(name)
            ),
        ]
        if self.queue_url is not None and not self.queue_url.startswith(("http://", "https://")):
            faults.append(f"queue URL {self.queue_url!r}; allowed: http://HOST:PORT")
        if faults:
            raise InputError("\n".join(faults))


def host_is_allowed(header: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a browser that names us so may be answered.

    A page of somebody else's can make its own name stand for our address (DNS rebinding) and would then read
    ours; it cannot do so with localhost, nor with an address.

    Args:
        header: `Host` of the request.
        allowed: further names; `*` for any.
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
