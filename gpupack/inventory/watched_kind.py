"""Follows the objects of one kind, and says whether they are up to date."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.reflect import Kind, Reflector, Sink

T = TypeVar("T")


class WatchedKind(Sink[T]):
    """Gives objects of one kind to those who keep them."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[T],
        replace: Callable[[Sequence[T]], None],
        put: Callable[[T], None],
        drop: Callable[[T], None],
        changed: Callable[[], None],
    ) -> None:
        self._reflector: Reflector[T] = Reflector(client, path, kind, self)
        self._replace = replace
        self._put = put
        self._drop = drop
        self._changed = changed
        self._error: KubeApiError | None = None
        self._failed_after: float | None = None
        self.listed = False

    async def run(self) -> None:
        await self._reflector.run()

    @property
    def error(self) -> KubeApiError | None:
        """Fault that keeps the objects from being up to date; None once the server answers again."""
        return self._error if self._reflector.last_contact == self._failed_after else None

    def replace(self, items: Sequence[T], _resource_version: str) -> None:
        self._error, self.listed = None, True
        self._replace(items)
        self._changed()

    def event(self, kind: Kind, item: T, _resource_version: str) -> None:
        (self._drop if kind == "DELETED" else self._put)(item)
        self._changed()

    def disconnected(self, error: KubeApiError) -> None:
        self._error, self._failed_after = error, self._reflector.last_contact
        self._changed()
