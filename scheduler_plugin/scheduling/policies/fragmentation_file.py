"""A typical workload given in a file, for clusters that know it before the first pod."""

import csv
from pathlib import Path
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import MIB
from allocator.selector import Selector
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest

COLUMNS: Final = ("cpu_milli", "memory_mib", "cards", "units")
MODEL_COLUMN: Final = "gpu_model"
COUNT_COLUMN: Final = "count"

_LARGEST: Final = 10**12


def read_workload(path: str) -> TypicalWorkload:
    """Read pods from a CSV file.

    The columns `cpu_milli`, `memory_mib`, `cards` and `units` (of GPU memory on each card, 0 with no card)
    must be there. `gpu_model` (as the pod annotation writes it) and `count` (pods like this, default 1, or 0
    to leave them out) may.

    Raises:
        PolicyError: it cannot be read or used; the message names the file, the line and the value.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise PolicyError(f"{path}:1: column {missing[0]} is missing; needed: {', '.join(COLUMNS)}")
            workload = TypicalWorkload()
            for row in reader:
                _count(workload, row, f"{path}:{reader.line_num}")
    except (OSError, UnicodeError, csv.Error) as error:
        raise PolicyError(f"workload file {path}: {error}") from error
    if not workload.card_demands() and not workload.shares():
        raise PolicyError(f"workload file {path}: no pod in it asks for a GPU; allowed: one or more")
    return workload


def _count(workload: TypicalWorkload, row: dict[str, str | None], where: str) -> None:
    numbers = [_number(row, column, where) for column in COLUMNS]
    cpu_milli, memory_mib, cards, units = numbers
    count = _number(row, COUNT_COLUMN, where) if row.get(COUNT_COLUMN) else 1
    if (cards == 0) != (units == 0):
        raise PolicyError(f"{where}: cards {cards} with units {units}; allowed: both 0 or both 1 or more")
    try:
        selector = Selector.parse(row.get(MODEL_COLUMN) or None, None)
    except AllocatorError as error:
        raise PolicyError(f"{where}: {error}") from error
    demands = (CardDemand(units, cards),) if cards else ()
    if count:
        workload.add(
            PolicyRequest(Amounts(1, cpu_milli, memory_mib * MIB), demands, selector=selector), count
        )


def _number(row: dict[str, str | None], column: str, where: str) -> int:
    text = row.get(column)
    try:
        value = int(text or "")
    except ValueError:
        value = -1
    if not 0 <= value <= _LARGEST:
        raise PolicyError(f"{where}: {column} is {text!r}; allowed: a whole number from 0 to {_LARGEST}")
    return value
