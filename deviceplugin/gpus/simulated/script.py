"""Reads the `script` of a profile, which says what happens to simulated cards over time, into typed steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

_Seconds = Annotated[float, Meta(ge=0, le=1_000_000)]

ACTIONS: Final = ("xid", "vanish", "return", "mig", "grow", "hang_s", "driver")


class ProcessGrowth(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that grows.

    Attributes:
        to_mib: MiB that it uses in the end, as far as the card has them.
        over_s: seconds that it takes, evenly; 0: at once.
    """

    pid: Annotated[int, Meta(ge=1, le=1 << 22)]
    to_mib: Annotated[int, Meta(ge=0, le=1 << 24)]
    over_s: _Seconds = 0.0


class ScriptStep(Struct, frozen=True, forbid_unknown_fields=True, rename={"returns": "return"}):
    """A thing that happens: exactly one of the actions.

    Attributes:
        at_s: seconds after the node began, or its profile was changed.
        xid: code of a numbered error of the driver, of `card` or, without one, of all cards in turn.
        times: how often that comes.
        over_s: seconds over which those are spread; 0: all at once.
        mig: the card is partitioned anew, into these profiles; `off` ends MIG mode.
        grow: a process on the card grows; of a partitioned card on its first instance.
        hang_s: seconds that every call of the driver takes.
        driver: it is `unloaded`, `loaded` again, or another one takes its place (`exchanged`).
    """

    at_s: _Seconds
    card: Annotated[int, Meta(ge=0)] | None = None
    xid: Annotated[int, Meta(ge=1, le=999)] | None = None
    times: Annotated[int, Meta(ge=1, le=100_000_000)] = 1
    over_s: _Seconds = 0.0
    vanish: bool = False
    returns: bool = False
    mig: tuple[str, ...] | str | None = None
    grow: ProcessGrowth | None = None
    hang_s: _Seconds | None = None
    driver: Literal["unloaded", "loaded", "exchanged"] | None = None

    @property
    def of_the_node(self) -> bool:
        """Whether it needs no card."""
        return self.hang_s is not None or self.xid is not None or self.driver is not None

    @property
    def actions(self) -> tuple[str, ...]:
        said = (
            self.xid is not None,
            self.vanish,
            self.returns,
            self.mig is not None,
            self.grow is not None,
            self.hang_s is not None,
            self.driver is not None,
        )
        return tuple(name for name, there in zip(ACTIONS, said, strict=True) if there)


@dataclass(frozen=True, slots=True)
class SimulationScript:
    """Steps in the order in which they happen."""

    steps: tuple[ScriptStep, ...] = ()

    def due(self, done: int, now_s: float) -> Sequence[ScriptStep]:
        """Return the steps after the first `done` ones that are due at `now_s` seconds."""
        return [step for step in self.steps[done:] if step.at_s <= now_s]

    def next_s(self, done: int) -> float | None:
        """Return the time of the next step, None for never."""
        return self.steps[done].at_s if done < len(self.steps) else None


Form = TypeVar("Form")


def read_part(raw: object, form: type[Form], path: str, faults: list[str]) -> Form | None:
    """Read one part of a profile; None and a fault if it does not have the form."""
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        place = f"{path}{where.rstrip('`')}".lstrip(".") or "profile"
        faults.append(f"{place}: {what[:1].lower()}{what[1:]}")
        return None


def read_script(raw: object, cards: Mapping[int, str], faults: list[str]) -> SimulationScript:
    """Read the list of steps; what is wrong is added to `faults`, each with its path."""
    steps = []
    if not isinstance(raw, list):
        faults.append(f"script: {type(raw).__name__}; allowed: a list of steps")
        return SimulationScript()
    for at, one in enumerate(raw):
        path = f"script[{at}]"
        step = read_part(one, ScriptStep, path, faults)
        if step is None:
            continue
        if len(step.actions) != 1:
            had = " and ".join(step.actions) or "nothing to do"
            faults.append(f"{path}: {had}; allowed: exactly one of {', '.join(ACTIONS)}")
        elif step.card not in cards and (step.card is not None or not step.of_the_node):
            faults.append(f"{path}.card: {step.card}; allowed: {', '.join(map(str, cards))}")
        elif isinstance(step.mig, str) and step.mig != "off":
            faults.append(f"{path}.mig: {step.mig[:64]!r}; allowed: a list of MIG profiles, or off")
        else:
            steps.append(step)
    return SimulationScript(tuple(sorted(steps, key=lambda step: step.at_s)))
