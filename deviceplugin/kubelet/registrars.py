"""The registrars of all our resources, as one."""

from collections.abc import Iterator, Sequence
from typing import Protocol


class Registers(Protocol):
    """Keeps one plugin registered with the kubelet."""

    @property
    def is_registered(self) -> bool: ...

    @property
    def registrations(self) -> int: ...

    async def run(self) -> None: ...


class Registrars:
    """The node is served when each resource is registered.

    Attributes:
        expectation: what a kubelet does that is going to register them, for people who gave wrong folders.
    """

    def __init__(self, registrars: Sequence[Registers], expectation: str) -> None:
        self._registrars = tuple(registrars)
        self.expectation = expectation

    def __iter__(self) -> Iterator[Registers]:
        return iter(self._registrars)

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet listens to all our lists of devices."""
        return all(registrar.is_registered for registrar in self)

    @property
    def registrations(self) -> int:
        return sum(registrar.registrations for registrar in self)
