"""`gpupack top --watch`: prints the rows whenever they have changed, until interrupted."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from allocator.claims import CLAIMS_PATH, ClaimObject
from allocator.names import SYSTEM_NAMESPACE
from gpupack.inventory.fetching import connect
from gpupack.inventory.objects import CLAIMS_NOT_READ, NodesAndPods
from gpupack.inventory.records import NodeRow
from gpupack.inventory.rendering import RenderOptions, format_lines
from gpupack.inventory.rows import build_rows
from gpupack.inventory.telemetry import TelemetryByNode, add_telemetry, fetch_telemetry
from gpupack.inventory.watched_kind import WatchedKind
from gpupack.terminal import takes_control_sequences
from kubeapi.client import KubeClient
from kubeapi.objects import Node, Pod
from kubeapi.paths import NODES_PATH, PODS_PATH
from scheduler_plugin.cache.claim_charges import serves_claims

T = TypeVar("T", bound=Node | Pod | ClaimObject)

GAP_S: Final = 0.2
"""Changes within so long are shown together; nobody reads faster."""

LOOK_S: Final = 1.0
"""How often the screen is refreshed while it may be out of date: a new connection need not bring news."""

TELEMETRY_S: Final = 5.0
"""Time between two requests for telemetry; node daemons measure as often."""

_HOME: Final = "\x1b[H\x1b[2J\x1b[?7l"
"""Clear the screen, and cut long lines at its edge instead of wrapping them."""
_WRAP: Final = "\x1b[?7h"


class WatchedObjects(WatchedKind[T]):
    """Keeps all objects of one kind, by namespace and name; None before the first list."""

    def __init__(self, client: KubeClient, path: str, kind: type[T], changed: Callable[[], None]) -> None:
        super().__init__(client, path, kind, self._keep_all, self._keep, self._forget, changed)
        self.objects: dict[tuple[str, str], T] | None = None

    def _keep_all(self, items: Sequence[T]) -> None:
        self.objects = {_key(item): item for item in items}

    def _keep(self, item: T) -> None:
        if self.objects is not None:
            self.objects[_key(item)] = item

    def _forget(self, item: T) -> None:
        if self.objects is not None:
            self.objects.pop(_key(item), None)


def _key(item: Node | Pod | ClaimObject) -> tuple[str, str]:
    return getattr(item.metadata, "namespace", ""), item.metadata.name


async def watch(
    kubeconfig: str | None,
    names: Sequence[str],
    options: RenderOptions,
    *,
    context: str | None = None,
    telemetry: bool = False,
    daemons_in: str = SYSTEM_NAMESPACE,
    gap_s: float = GAP_S,
) -> None:
    """Write the rows to standard output, now and after every change, until it is closed or we are cancelled.

    On a terminal each state takes the place of the one before; else they follow each other.

    Args:
        telemetry: also what cards do, asked again every `TELEMETRY_S` seconds.

    Raises:
        InputError: a name that no node has.
        KubeApiError: the cluster cannot be read at the start; later this is said below the rows.
    """
    changed = asyncio.Event()
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, changed.set)
    async with await connect(kubeconfig, context) as client:
        nodes = WatchedObjects(client, NODES_PATH, Node, changed.set)
        pods = WatchedObjects(client, PODS_PATH, Pod, changed.set) if options.pods else None
        claims = WatchedObjects(client, CLAIMS_PATH, ClaimObject, changed.set)
        tasks = [asyncio.create_task(view.run()) for view in (nodes, pods) if view is not None]
        screen = _Screen(nodes, pods, claims, names, options)
        if telemetry:
            tasks.append(asyncio.create_task(_follow_telemetry(client, screen, changed.set, daemons_in)))
        try:
            with _closed(changed.set) as closed:
                while not closed():
                    changed.clear()
                    screen.draw()
                    if screen.wants_claims:
                        screen.wants_claims = False
                        tasks.append(asyncio.create_task(claims.run()))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S if screen.old else None):
                            await changed.wait()
                    await asyncio.sleep(gap_s)
        except BrokenPipeError:
            _forget_stdout()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _follow_telemetry(
    client: KubeClient, screen: "_Screen", changed: Callable[[], None], namespace: str
) -> None:
    """Ask again and again what the cards do that are shown, until cancelled."""
    while True:
        nodes = screen.nodes_with_cards
        if nodes:
            screen.telemetry = await fetch_telemetry(client, nodes, namespace)
            changed()
        await asyncio.sleep(TELEMETRY_S if nodes else LOOK_S)


class _Screen:
    """Draws what is new.

    Attributes:
        old: the last output may be out of date, and says so.
        wants_claims: a node serves ResourceClaims, and they are not watched yet.
    """

    def __init__(
        self,
        nodes: WatchedObjects[Node],
        pods: WatchedObjects[Pod] | None,
        claims: WatchedObjects[ClaimObject],
        names: Sequence[str],
        options: RenderOptions,
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._claims = claims
        self._asked_for_claims = self.wants_claims = False
        self._names = names
        self._options = options
        self._terminal = takes_control_sequences()
        self._last: object = None
        self.old = False
        self.nodes_with_cards: list[str] = []
        self.telemetry = TelemetryByNode()

    def draw(self) -> None:
        """Write the state if it is complete and not what was written last.

        Raises:
            InputError: a name that no node has, at the first time.
            KubeApiError: there is nothing to show, and this is why.
        """
        views: list[WatchedObjects[Node] | WatchedObjects[Pod]] = [self._nodes]
        if self._pods is not None:
            views.append(self._pods)
        error = next((view.error for view in views if view.error is not None), None)
        if any(view.objects is None for view in views):
            if error is not None:
                raise error
            return
        rows = self._rows()
        self.nodes_with_cards = [row.node for row in rows if row.cards]
        body, footer = format_lines(add_telemetry(rows, self.telemetry), self._options)
        if self.telemetry.problem and self._options.output != "json":
            footer.append(self.telemetry.problem)
        hides_claims = self._claims.objects is None and self._claims.error is not None
        if hides_claims and self._options.output != "json":
            footer.append(CLAIMS_NOT_READ)
        self.old = error is not None
        if error is not None:
            footer.append(f"not up to date: {error}")
        # Where lines are cut depends on the terminal, so its size counts as news.
        state = (body, footer, _height() if self._terminal else None)
        if state != self._last:
            self._write(body, footer)
            self._last = state

    def _rows(self) -> list[NodeRow]:
        nodes = self._nodes.objects or {}
        there = [name for name in self._names if ("", name) in nodes]
        if self._last is None:
            there = list(self._names)
        elif self._names and not there:
            return []
        pods = None if self._pods is None else list((self._pods.objects or {}).values())
        if pods is not None and not self._asked_for_claims:
            self.wants_claims = self._asked_for_claims = any(map(serves_claims, nodes.values()))
        claims = list((self._claims.objects or {}).values())
        return build_rows(NodesAndPods(list(nodes.values()), pods, claims), there)

    def _write(self, body: list[str], footer: list[str]) -> None:
        if self._terminal:
            text = _HOME + "\n".join(_cut(body, footer)) + "\n" + _WRAP
        else:
            text = "\n".join([*([""] if self._last is not None else []), *body, *footer]) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()


def _height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError):
        return 24


def _cut(body: list[str], footer: list[str]) -> list[str]:
    """Leave lines out of the middle so that the header and the sums stay in sight."""
    room = _height() - 1 - len(footer)
    if len(body) <= max(room, 2):
        return [*body, *footer]
    kept = max(room - 1, 1)
    return [*body[:kept], f"... {len(body) - kept} more lines: name nodes to see them", *footer]


@contextmanager
def _closed(tell: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Call `tell` when standard output has no reader any more; a pipe reports that before the next write."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def closed() -> None:
        loop.remove_reader(descriptor)
        gone.set()
        tell()

    try:
        descriptor = sys.stdout.fileno()
        watched = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):  # none, or not a file of the system
        watched = False
    if watched:
        # The end that is written to becomes readable in one case only: the other end was closed.
        loop.add_reader(descriptor, closed)
    try:
        yield gone.is_set
    finally:
        if watched:
            loop.remove_reader(descriptor)


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would complain about the pipe."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
