"""HOST:PORT, as the options of every process that serves write it."""

import ipaddress
from collections.abc import Iterator
from typing import Final

MAX_PORT: Final = 65535


def split_address(address: str) -> tuple[str, int]:
    """Read a HOST:PORT that was checked; an empty host means every address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Tell whether a HOST:PORT that was checked is for this machine's own processes alone."""
    host = split_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_address_faults(name: str, address: str) -> Iterator[str]:
    """Say what is wrong with a HOST:PORT, the value of the option `name`."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        yield f"{name} {address!r}; allowed: HOST:PORT with a port from 0 to {MAX_PORT}"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        yield f"{name} {address!r}; allowed: [HOST]:PORT where the host is an IPv6 address"
