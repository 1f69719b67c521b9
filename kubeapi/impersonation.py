"""As whom a kubeconfig's user acts: `as`, `as-uid`, `as-groups` and `as-user-extra`, in kubectl's headers."""

import string
from collections.abc import Iterator, Mapping
from typing import Final

from kubeapi.errors import ConfigError

Headers = tuple[tuple[str, str], ...]
"""Names and values; a name may stand there several times."""

_NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Characters of a header's name (RFC 9110, section 5.6.2), without the one that begins an escape."""


def make_impersonation_headers(source: str, user: Mapping[str, object]) -> Headers:
    """Write the headers for a user of a kubeconfig; empty if the user acts as nobody else.

    Raises:
        ConfigError: a value cannot be used, or only details of somebody are given and no name.
    """
    name, uid = (_check_value(f"{source}: {key}", user.get(key)) for key in ("as", "as-uid"))
    groups = _check_values(f"{source}: as-groups", user.get("as-groups"))
    extra = user.get("as-user-extra") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{source}: as-user-extra {extra!r}; allowed: a map of lists of text")
    more = [
        (f"Impersonate-Extra-{''.join(_escape_key(str(key)))}", value)
        for key, values in extra.items()
        for value in _check_values(f"{source}: as-user-extra {key!r}", values)
    ]
    if name:
        uids = [("Impersonate-Uid", uid)] if uid else []
        return (("Impersonate-User", name), *uids, *(("Impersonate-Group", group) for group in groups), *more)
    for key, given in (("as-uid", uid), ("as-groups", groups), ("as-user-extra", more)):
        if given:
            raise ConfigError(
                f"{source}: {key} {user[key]!r} and no as: allowed with the name of a user in as"
            )
    return ()


def _check_values(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{name} {value!r}; allowed: a list of text")
    return [_check_value(name, item) for item in value]


def _check_value(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigError(f"{name} {value!r}; allowed: text on one line")
    return value


def _escape_key(key: str) -> Iterator[str]:
    """Write a key as part of a header's name: other bytes in per cent and two digits."""
    for character in key:
        if character in _NAME_CHARACTERS:
            yield character
        else:
            yield from (f"%{byte:02X}" for byte in character.encode())
