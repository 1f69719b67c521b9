"""Fields of settings that are options of a command: what stands in help, checks and the reference page.

A process has one dataclass of settings. `option` makes a field of it with all that is known of the option.
The command line makes its options of the fields, and `find_faults` checks their values.
"""

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

_KEY: Final = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """Option is what a command says and checks of one field.

    Attributes:
        help: The line in `--help`; empty for none.
        metavar: What stands for the value in `--help`; empty takes the allowed values, if there are any.
        allowed: The values, or those of each entry of a list; empty for any.
        env: Environment variable that gives the value too; empty for none.
        least: Least number; None for any.
        most: Largest number; None for any.
        zero_means: What 0 means, in words; empty where it is a number as others.
        parse: Reads the text of the command line; None reads it by the field's type.
    """

    help: str = ""
    metavar: str = ""
    allowed: Collection[str] = ()
    env: str = ""
    least: float | None = None
    most: float | None = None
    zero_means: str = ""
    parse: Callable[[str], Any] | None = None


def option(default: Any = MISSING, **known: Any) -> Any:
    """Make a field of settings that is an option of the process' command.

    Args:
        default: Its value by default; left out where one must be given.
        **known: See `Option`.
    """
    return field(default=default, metadata={_KEY: Option(**known)})


def read_option(of: Field[Any]) -> Option | None:
    """Return what is known of a field's option; None where it has none."""
    found: Option | None = of.metadata.get(_KEY)
    return found


def name_option(name: str) -> str:
    """Name the option of a field, `--over-use-mib`."""
    return f"--{name.replace('_', '-')}"


def find_faults(settings: Any) -> list[str]:
    """Find every value that its option does not allow, a line each, in the order of the fields."""
    faults = []
    for each in fields(settings):
        known = read_option(each)
        if known is not None:
            faults += _find_faults(name_option(each.name), getattr(settings, each.name), known)
    return faults


def _find_faults(name: str, value: Any, known: Option) -> list[str]:
    if known.allowed and isinstance(value, tuple):
        if value and all(entry in known.allowed for entry in value):
            return []
        return [f"{name} {','.join(value)!r}; allowed: a comma list of {', '.join(known.allowed)}"]
    if known.allowed and value not in known.allowed:
        return [f"{name} {value!r}; allowed: {', '.join(known.allowed)}"]
    if known.least is not None and not known.least <= value < float("inf"):
        return [f"{name} {value}; allowed: {_describe_range(known)}"]
    if known.most is not None and value > known.most:
        return [f"{name} {value}; allowed: {_describe_range(known)}"]
    return []


def _describe_range(known: Option) -> str:
    least = f"{known.least} ({known.zero_means})" if known.zero_means else f"{known.least}"
    return f"{least} or more" if known.most is None else f"{least} to {known.most}"
