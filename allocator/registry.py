"""Policies by name: the one place that knows which there are, makes them, and says what they are for.

A policy of gpupack is one `Entry` in the list of its registry. Policies of other packages come through the
registry's entry-point group, see `allocator.installed`. A registry looks for them when it is first asked for
all names, or for a name that is not gpupack's own. So no command has to remember it, and one that needs none
loses no time. A package that cannot be used is then named wherever a name is unknown. Commands whose options
name policies look when they start, and end there with what is wrong.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from allocator.errors import shown

Parameters = Mapping[str, str]
"""Text by parameter name, as given on the command line."""

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""What a policy may be called; manifests/policies/pod-annotations.yaml has it, too."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[P_co]):
    """A policy that can be had by its name.

    Attributes:
        name: What settings and pod annotations say: lower case letters and digits, `-` between them.
        make: Builds the policy from its parameters; must work without any, for pods name policies so.
        parameters: Names that `make` takes; None: only `make` knows.
        package: Package that it comes from, with its version; empty: gpupack.
    """

    name: str
    make: Callable[[Parameters], P_co]
    summary: str
    parameters: tuple[str, ...] | None = ()
    package: str = ""


class Registry(Generic[P]):
    """Policies of one kind.

    Args:
        group: Entry-point group in which other packages offer theirs.
        find: Gives what other packages offer, or what is wrong with that.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        error: type[Exception],
        lacks: Callable[[object], str],
        find: "Callable[[Registry[P]], Iterable[Entry[P] | Exception]]",
    ) -> None:
        self.kind = kind
        self.group = group
        self.error = error
        self._lacks = lacks
        self._find = find
        self._entries: dict[str, Entry[P]] = {}
        self._made: dict[str, P] = {}
        self._loaded = False
        self._faults: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return self._entry(name) is not None

    def register(self, *entries: Entry[P]) -> None:
        """Add policies.

        Raises:
            Exception: Error of the registry's kind: a name that is taken, or that is none.
        """
        for entry in entries:
            if not is_name(entry.name):
                raise self.error(
                    f"{self._called(entry)}; allowed: names of lower case letters, digits and single `-`"
                )
            other = self._entries.get(entry.name)
            if other is not None:
                raise self.error(f"{self._called(entry)}: the name is taken by {other.package or 'gpupack'}")
            self._entries[entry.name] = entry

    def adopt(self, entries: Iterable[Entry[P]]) -> None:
        """Replace the policies of other packages; each must be made without parameters.

        Raises:
            Exception: as `register` and `make`.
        """
        self._loaded, self._faults = True, ()
        for name in [name for name, entry in self._entries.items() if entry.package]:
            del self._entries[name]
            self._made.pop(name, None)
        for entry in entries:
            self._adopt(entry)

    def load_packages(self) -> tuple[str, ...]:
        """Take other packages' policies in place of those found before; return what is wrong, a line each."""
        self.adopt(())
        faults = []
        for found in self._find(self):
            try:
                if isinstance(found, Exception):
                    raise found
                self._adopt(found)
            except self.error as error:
                faults.append(str(error))
        self._faults = tuple(faults)
        return self._faults

    def _adopt(self, entry: Entry[P]) -> None:
        self.register(entry)
        try:
            self.made(entry.name)
        except self.error:
            del self._entries[entry.name]
            raise

    def configure(self, name: str, parameters: Parameters) -> None:
        """Make a policy with parameters; `made` returns this one from now on."""
        self._made[name] = self.make(name, parameters)

    def names(self) -> tuple[str, ...]:
        if not self._loaded:
            self.load_packages()
        return tuple(sorted(self._entries))

    def entries(self) -> tuple[Entry[P], ...]:
        return tuple(self._entries[name] for name in self.names())

    @property
    def allowed(self) -> str:
        """List the names for a message, and say why others may be missing."""
        return "; ".join([", ".join(self.names()), *self._faults])

    def made(self, name: str) -> P:
        """Return the policy of a name, made once."""
        policy = self._made.get(name)
        if policy is None:
            policy = self._made[name] = self.make(name)
        return policy

    def make(self, name: str, parameters: Parameters | None = None) -> P:
        """Build a policy.

        Raises:
            Exception: Error of the registry's kind: an unknown name, parameters that the policy refuses,
                or something made that is no policy. For an unknown name it lists what exists.
        """
        entry = self._entry(name)
        if entry is None:
            raise self.error(f"{self.kind} {shown(name)}; allowed: {self.allowed}")
        given = dict(parameters or {})
        self._check_names(entry, given)
        try:
            policy = entry.make(given)
        except self.error:
            raise
        except Exception as error:
            told = (
                f" with {', '.join(f'{key}={shown(value)}' for key, value in given.items())}" if given else ""
            )
            raise self.error(f"{self._called(entry)} cannot be made{told}: {one_line(error)}") from error
        lacking = self._lacks(policy)
        if lacking:
            raise self.error(f"{self._called(entry)} is a {type(policy).__name__} without {lacking}")
        return policy

    def _entry(self, name: str) -> Entry[P] | None:
        entry = self._entries.get(name)
        if entry is None and not self._loaded:
            self.load_packages()
            entry = self._entries.get(name)
        return entry

    def _check_names(self, entry: Entry[P], given: Parameters) -> None:
        if entry.parameters is None:
            return
        unknown = sorted(set(given) - set(entry.parameters))
        if unknown and not entry.parameters:
            raise self.error(
                f"{self._called(entry)} takes no parameters, got {', '.join(map(shown, unknown))}"
            )
        if unknown:
            raise self.error(
                f"{self._called(entry)}: parameter {shown(unknown[0])} does not exist; "
                f"allowed: {', '.join(entry.parameters)}"
            )

    def called(self, name: str) -> str:
        """Name a policy that exists, and its package, for messages."""
        return self._called(self._entries[name])

    def _called(self, entry: Entry[P]) -> str:
        return f"{self.kind} {shown(entry.name)}" + (f" of {entry.package}" if entry.package else "")


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def one_line(error: BaseException) -> str:
    return shown_line(f"{type(error).__name__}: {error}")


def shown_line(text: str, limit: int = 256) -> str:
    """Write a text of others on one line, cut at `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}..."
