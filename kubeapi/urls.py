"""URLs of servers, and the proxy on the way to each: the rules of Go's `httpproxy`, which kubectl follows."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

from yarl import URL

from kubeapi.errors import ConfigError

ALLOWED_URLS: Final = "http://HOST[:PORT] and https://HOST[:PORT]"

_PROXIES: Final = {"http": "HTTP_PROXY", "https": "HTTPS_PROXY"}

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_MAPPED_BITS: Final = 96
"""IPv6 addresses with these first bits of `::ffff:0:0` are IPv4 addresses."""


def check_url(name: str, value: object) -> None:
    """Check the URL of a server.

    Raises:
        ConfigError: the value is not a URL that can be asked; the message begins with `name`.
    """
    for fault in find_url_faults(name, value):
        raise ConfigError(fault)


def find_url_faults(name: str, value: object) -> Iterator[str]:
    """Say what is wrong with the URL of a server, the value of `name`."""
    if not _is_url(value):
        shown = "missing" if value is None else repr(value)
        yield f"{name} {shown}; allowed: {ALLOWED_URLS}"


def is_host(value: object) -> bool:
    """Tell whether a name can be looked up: text, no label empty or longer than 63."""
    if not isinstance(value, str) or not value:
        return False
    try:
        return ":" in value or bool(value.encode("idna"))
    except UnicodeError:
        return False


def find_proxy(url: str, environment: Mapping[str, str]) -> str | None:
    """Find the proxy that the environment names for a URL; None for a direct connection.

    HTTPS_PROXY counts for https and HTTP_PROXY for http. Upper case precedes lower case. NO_PROXY lists
    exceptions; localhost and loopback addresses are always direct.

    Raises:
        ConfigError: the variable has something else than the URL of a proxy; a password is not shown.
        ValueError: `url` is not a URL.
    """
    asked = URL(url)
    name, value = _read_variable(environment, _PROXIES[asked.scheme])
    if not value or _is_direct(asked, _read_variable(environment, "NO_PROXY")[1]):
        return None
    proxy = value if "://" in value else f"http://{value}"
    if not _is_url(proxy):
        shown = f"...@{value.rpartition('@')[2]}" if "@" in value else value
        raise ConfigError(f"{name} {shown!r}; allowed: {ALLOWED_URLS}")
    return proxy


def _read_variable(environment: Mapping[str, str], upper: str) -> tuple[str, str]:
    for name in (upper, upper.lower()):
        if value := environment.get(name):
            return name, value
    return upper, ""


def _is_direct(url: URL, no_proxy: str) -> bool:
    host, port = url.raw_host or "", str(url.port or "")
    address = _parse_ip(host.partition("%")[0])
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(entry and _matches_host(entry, host, port, address) for entry in entries)


def _matches_host(entry: str, host: str, port: str, address: _Ip | None) -> bool:
    """Tell whether one entry names a host: a network, an address or a domain, the latter two with a port."""
    network = _parse_network(entry)
    if network is not None:
        return address is not None and address in network
    name, its_port = _split_entry(entry)
    if its_port not in {"", port}:
        return False
    named = _parse_ip(name)
    if named is not None or address is not None:
        return named == address
    return _is_in_domain(host, name)


def _is_in_domain(host: str, name: str) -> bool:
    """Tell whether a host is in a domain; one with a dot first has subdomains only."""
    name = name.removeprefix("*") if name.startswith("*.") else name
    bare = name.removeprefix(".")
    domain = bare if bare.isascii() else _encode_name(bare)
    return bool(name) and (host.endswith(f".{domain}") or (not name.startswith(".") and host == domain))


def _encode_name(name: str) -> str:
    """Write a name as the resolver asks for it, the same where that is not possible."""
    try:
        return URL.build(scheme="http", host=name).raw_host or name
    except ValueError:
        return name


def _split_entry(entry: str) -> tuple[str, str]:
    """Split HOST, HOST:PORT or [ADDRESS]:PORT; the port is empty if there is none."""
    host, colon, port = entry.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        return entry, ""
    if entry.startswith("[") and not host.endswith("]"):
        return entry, ""
    return host.removeprefix("[").removesuffix("]"), port


def _parse_ip(text: str) -> _Ip | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Read an address with the number of its bits that count."""
    host, slash, bits = text.rpartition("/")
    if not (slash and bits.isascii() and bits.isdigit()) or "%" in host:
        return None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None  # noqa: PLR2004
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS))


def _is_url(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return False
    if not value.isascii() or not value.isprintable() or any(sign in value for sign in " ?#"):
        return False
    try:
        url = URL(value, encoded=True)
        return is_host(url.raw_host) and url.port is not None
    except ValueError:
        return False
