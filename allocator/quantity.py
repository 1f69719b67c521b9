"""Kubernetes quantities, read exactly.

The API server prints quantities in a canonical form: 1000 comes back as "1k". So every suffix has to be
understood. A float would lose units silently.
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final, Literal

from allocator.errors import QuantityError, shown
from allocator.names import MIB_PER_GIB

MAX_LENGTH: Final = 64
MAX_EXPONENT: Final = 64
_QUICK_LENGTH: Final = 20
LIMIT: Final = 1 << 63
"""Quantities lie strictly between minus and plus this; Kubernetes would cap them, we refuse."""

_DECIMAL_EXPONENTS: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_POWERS: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
# The common suffixes, for the quick way: in ones and in thousandths.
_ONES: Final = {
    **{suffix: 10**exponent for suffix, exponent in _DECIMAL_EXPONENTS.items() if exponent >= 0},
    **{suffix: 1024**power for suffix, power in _BINARY_POWERS.items()},
}
_MILLIS: Final = {"m": 1, **{suffix: 1000 * multiplier for suffix, multiplier in _ONES.items()}}
_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))"
)
_ALLOWED: Final = (
    "allowed: a decimal number below 2^63 with one of the suffixes n u m k M G T P E Ki Mi Gi Ti Pi Ei "
    "or an exponent"
)

Style = Literal["binary", "decimal", "exponent"]


def parse_quantity(value: str | int) -> Fraction:
    """Read a quantity as an exact number.

    Raises:
        QuantityError: not a quantity, or not strictly between -2^63 and 2^63.
    """
    return _parse(value)[0]


def parse_integer(value: str | int) -> int:
    """Read a quantity that must be whole.

    Raises:
        QuantityError: as `parse_quantity`, or a fraction is left.
    """
    whole = _quick(value, _ONES)
    if whole is not None:
        return whole
    number = parse_quantity(value)
    if number.denominator != 1:
        raise QuantityError(f"quantity {shown(value)}; allowed: a whole number")
    return number.numerator


def parse_milli(value: str | int) -> int:
    """Read a quantity in thousandths, rounded up: the CPU's "250m" is 250, "1" is 1000.

    Raises:
        QuantityError: as `parse_quantity`.
    """
    milli = _quick(value, _MILLIS)
    return ceil(parse_quantity(value) * 1000) if milli is None else milli


def parse_bytes(value: str | int) -> int:
    """Read a quantity in bytes, rounded up.

    Raises:
        QuantityError: as `parse_quantity`.
    """
    whole = _quick(value, _ONES)
    return ceil(parse_quantity(value)) if whole is None else whole


recall_integer: Final = lru_cache(maxsize=1024)(parse_integer)
recall_milli: Final = lru_cache(maxsize=4096)(parse_milli)
recall_bytes: Final = lru_cache(maxsize=4096)(parse_bytes)
"""`recall_milli`, `recall_bytes` and `recall_integer` remember amounts: a cluster has few different ones."""


def format_memory(units: int, unit_mib: int) -> str:
    """Write an amount of GPU memory for people: in GiB where it is whole, else in MiB."""
    mib = units * unit_mib
    return f"{mib // MIB_PER_GIB} GiB" if mib % MIB_PER_GIB == 0 else f"{mib} MiB"


def canonical(value: str | int) -> str:
    """Write a quantity as the API server does: "1000" is "1k", "0.5" is "500m", "1024Mi" is "1Gi".

    What is finer than a billionth is rounded up, away from zero. The suffix is the largest one that leaves a
    whole number, of the family in which the value was written. A binary suffix is used only from 1024 on.

    Raises:
        QuantityError: as `parse_quantity`.
    """
    number, style = _parse(value)
    scaled = ceil(abs(number) * 10**9)
    sign = "-" if number < 0 else ""
    if scaled == 0:
        return "0"
    whole, rest = divmod(scaled, 10**9)
    if style == "binary" and not rest and whole >= 1024:  # noqa: PLR2004 (the first binary suffix)
        power = 0
        while whole % 1024 == 0 and power < len(_BINARY_POWERS):
            whole //= 1024
            power += 1
        return f"{sign}{whole}{_suffix(_BINARY_POWERS, power) if power else ''}"
    exponent = -9
    while scaled % 1000 == 0:
        scaled //= 1000
        exponent += 3
    if style == "exponent":
        return f"{sign}{scaled}e{exponent}" if exponent else f"{sign}{scaled}"
    return f"{sign}{scaled}{_suffix(_DECIMAL_EXPONENTS, exponent)}"


def _suffix(table: dict[str, int], value: int) -> str:
    return next(suffix for suffix, power in table.items() if power == value)


def _quick(value: str | int, multipliers: dict[str, int]) -> int | None:
    """Read digits and a suffix of the table without fractions; None sends the rest to the full parser."""
    if not isinstance(value, str) or not value.isascii() or not 0 < len(value) <= _QUICK_LENGTH:
        return None
    digits = value if value.isdigit() else value.rstrip("mkKMGTPEi")
    multiplier = multipliers.get(value[len(digits) :])
    if multiplier is None or not digits.isdigit():
        return None
    number = int(digits) * multiplier
    return number if number < LIMIT * multipliers[""] else None


def _parse(value: str | int) -> tuple[Fraction, Style]:
    """Read a quantity and the family of suffixes it was written in."""
    style: Style = "decimal"
    if isinstance(value, int) and not isinstance(value, bool):
        number = Fraction(value)
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= MAX_LENGTH else None
        if match is None or not (match["whole"] or match["part"]):
            raise QuantityError(f"quantity {shown(value)}; {_ALLOWED}")
        part = match["part"] or ""
        number = Fraction(int(f"{match['whole']}{part}"), 10 ** len(part))
        if match["sign"] == "-":
            number = -number
        if match["exponent"] is not None:
            style = "exponent"
            exponent = int(match["exponent"])
            if abs(exponent) > MAX_EXPONENT:
                raise QuantityError(f"quantity {shown(value)}; {_ALLOWED}")
            number *= Fraction(10) ** exponent
        elif match["suffix"] in _BINARY_POWERS:
            style = "binary"
            number *= 1024 ** _BINARY_POWERS[match["suffix"]]
        else:
            number *= Fraction(10) ** _DECIMAL_EXPONENTS[match["suffix"]]
    if abs(number) >= LIMIT:
        raise QuantityError(f"quantity {shown(value)}; {_ALLOWED}")
    return number, style
