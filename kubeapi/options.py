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
    """What a command says and checks of one field.

    Attributes:
        metavar: What stands for the value in `--help`; empty takes the allowed values, if there are any.
        allowed: The values, or those of each entry of a list; empty for any.
        env: Environment variable that gives the value too; empty for none.
        zero_means: What 0 means, in words; empty where it is a number as others.
        parse: Reads the text of the command line; None reads it by the field's type.
        name: Name of the option without dashes, where the field's own would say less.
        negative: Name of the option that says no, without dashes; empty for `no-` and the name.
        repeat: The option may be given several times, each time for one entry.
        shown: The default stands in `--help`.
    """

    help: str = ""
    metavar: str = ""
    allowed: Collection[str] = ()
    env: str = ""
    least: float | None = None
    most: float | None = None
    zero_means: str = ""
    parse: Callable[[str], Any] | None = None
    name: str = ""
    short: str = ""
    negative: str = ""
    repeat: bool = False
    shown: bool = True


def option(default: Any = MISSING, **known: Any) -> Any:
    """Make a field of settings that is an option of the process' command.

    Args:
        default: Its value by default; left out where one must be given. A dict stands for a new one each.
    """
    metadata = {_KEY: Option(**known)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def read_option(of: Field[Any]) -> Option | None:
    """Return what is known of a field's option; None where it has none."""
    found: Option | None = of.metadata.get(_KEY)
    return found


def name_option(of: Field[Any]) -> str:
    """Name the option of a field, `--over-use-mib`."""
    known = read_option(of)
    return f"--{(known.name if known else '') or of.name.replace('_', '-')}"


def find_faults(settings: Any) -> list[str]:
    """Find every value that its option does not allow, a line each, in the order of the fields."""
    faults = []
    for each in fields(settings):
        known = read_option(each)
        value = getattr(settings, each.name)
        if known is not None and value is not None:
            faults += _find_faults(name_option(each), value, known)
    return faults


def _find_faults(name: str, value: Any, known: Option) -> list[str]:
    if known.allowed and isinstance(value, tuple):
        if value and all(entry in known.allowed for entry in value):
            return []
        return [f"{name} {','.join(value)!r}; allowed: a comma list of {', '.join(known.allowed)}"]
    if known.allowed and value not in known.allowed:
        return [f"{name} {value!r}; allowed: {', '.join(known.allowed)}"]
    if known.least is not None and not known.least <= value < float("inf"):
        return [f"{name} {value:.16g}; allowed: {_describe_range(known)}"]
    if known.most is not None and value > known.most:
        return [f"{name} {value:.16g}; allowed: {_describe_range(known)}"]
    return []


def _describe_range(known: Option) -> str:
    least = f"{known.least:g} ({known.zero_means})" if known.zero_means else f"{known.least:g}"
    return f"{least} or more" if known.most is None else f"{least} to {known.most:.16g}"
