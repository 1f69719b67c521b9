"""The registrars of all our resources, as one."""

from collections.abc import Iterator, Sequence

from deviceplugin.kubelet.registration import Registrar


class Registrars:
    """The node is served when each resource is registered.

    Args:
        registrars: one for each resource.
    """

    def __init__(self, registrars: Sequence[Registrar]) -> None:
        self._registrars = tuple(registrars)

    def __iter__(self) -> Iterator[Registrar]:
        """Each of them."""
        return iter(self._registrars)

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet listens to all our lists of devices."""
        return all(registrar.is_registered for registrar in self)

    @property
    def registrations(self) -> int:
        """How often the kubelet has listened anew, to all of them together."""
        return sum(registrar.registrations for registrar in self)
