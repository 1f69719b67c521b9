"""Checks names by Kubernetes' rules."""

import re
from typing import Final

SUBDOMAIN: Final = (
    "lower case letters, digits, '-' and '.', up to 253, each part begun and ended by a letter or digit"
)
LABEL: Final = "lower case letters, digits and '-', up to 63, begun and ended by a letter or digit"
LABEL_KEY: Final = "letters, digits, '-', '_' and '.', up to 63, after a domain and '/' or without"
LABEL_VALUE: Final = (
    "letters, digits, '-', '_' and '.', up to 63, begun and ended by a letter or digit, or empty"
)

_MAX_SUBDOMAIN: Final = 253
MAX_LABEL: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_subdomain(name: str) -> bool:
    """Tell whether most objects may have this name: a DNS subdomain as of RFC 1123."""
    return len(name) <= _MAX_SUBDOMAIN and all(_LABEL.fullmatch(part) for part in name.split("."))


def is_label(name: str) -> bool:
    """Tell whether a namespace may have this name: a DNS label as of RFC 1123."""
    return len(name) <= MAX_LABEL and _LABEL.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    """Tell whether a label or a taint may have this key."""
    domain, slash, name = key.rpartition("/")
    return (not slash or is_subdomain(domain)) and bool(name) and is_label_value(name)


def is_label_value(value: str) -> bool:
    """Tell whether a label or a taint may have this value."""
    return not value or (len(value) <= MAX_LABEL and _QUALIFIED.fullmatch(value) is not None)
