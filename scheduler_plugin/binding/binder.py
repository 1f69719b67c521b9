"""Bind: takes the cards, sends the Binding, and settles what an answer, or none, means."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Protocol

import msgspec
import structlog

from allocator.names import POD_ASSIGNED
from kubeapi.errors import UNREADABLE, Conflict, KubeApiError, NotFound
from kubeapi.events import BUSY_S
from kubeapi.paths import pod_path
from scheduler_plugin.binding.committer import Commitment, Committer
from scheduler_plugin.cache.objects import PodLite
from scheduler_plugin.errors import CommitError

log = structlog.get_logger(__name__)

_decode_pod = msgspec.json.Decoder(PodLite).decode


class BindingApi(Protocol):
    """What bind needs of the API server; `kubeapi.client.KubeClient` has it."""

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str | None = None,
        timeout_s: float = ...,
    ) -> None:
        """Bind a pod."""

    async def get(self, path: str, *, timeout_s: float = ...) -> bytes:
        """Read an object."""
        ...


class Leadership(Protocol):
    """What bind needs of an election; `kubeapi.lease.LeaseElector` has it."""

    @property
    def is_leader(self) -> bool:
        """Whether this process may bind."""
        ...

    @property
    def since(self) -> float | None:
        """When it became the leader, seconds of the clock."""
        ...


class Outcome(Enum):
    """What a pod shows of a Binding that was sent for it."""

    BOUND = auto()
    NOT_BOUND = auto()
    GONE = auto()
    UNKNOWN = auto()


class Binder:
    """Carries out bind calls.

    Invariant: cards taken for a Binding that was sent stay taken until the answer is a definite refusal, the
    pod is seen bound, gone or changed, or it is read unbound after the Binding could no longer take effect.

    The first Binding of a process, of a term as the leader, or after an etcd restore, waits until those of
    the one before can no longer take effect, and until a list of pods made after that shows all that did.

    Args:
        committer: Takes the cards.
        api: The API server.
        clock: Monotonic seconds.
        timeout_s: T, how long a Binding may take effect after it was sent.
        leadership: None when nobody else can be binding.
        refresh: Lists pods anew and returns when the state has the list.
        after_another: Whether a process before this one may have bound. Only the maker of a new cluster can
            know that none did.
        sleep: Waits, as asyncio.sleep.
    """

    def __init__(
        self,
        committer: Committer,
        api: BindingApi,
        clock: Callable[[], float],
        timeout_s: float,
        leadership: Leadership | None = None,
        *,
        refresh: Callable[[], Awaitable[None]],
        after_another: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.committer = committer
        self.api = api
        self.clock = clock
        self.timeout_s = timeout_s
        self.leadership = leadership
        self.refresh = refresh
        self.sleep = sleep
        self._started = clock() if after_another else float("-inf")
        self._begun_anew = float("-inf")
        self._opened: float | None = None
        self._opening = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self._ending = False
        self._sending = 0
        self._sent = float("-inf")

    @property
    def busy(self) -> bool:
        """Whether Bindings are on their way to the API server, or were a moment ago."""
        return self._sending > 0 or self.clock() - self._sent < BUSY_S

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod of this name and UID to a node.

        Returns:
            Empty when it is bound, else why not, in words.
        """
        try:
            # No await between the last check in here and the request.
            commitment = await self._begin(namespace, name, uid, node)
        except CommitError as error:
            return str(error)
        except TimeoutError:
            return "this gpupack scheduler has not listed the pods since it may bind"
        return await self._send_or_doubt(commitment)

    def begin(self, namespace: str, name: str, uid: str, node: str) -> Commitment:
        """Assume the cards of one pod of several, after `open` and before `finish`.

        Raises:
            CommitError: the pod cannot be bound there, or this process may not bind now.
        """
        if self._ending or self._term() != self._opened:
            raise CommitError("this gpupack scheduler may not bind now; it is tried again")
        return self.committer.begin(namespace, name, uid, node, self.clock())

    def abandon(self, commitment: Commitment) -> None:
        """Forget the cards of a pod whose Binding was not sent."""
        self._roll_back(commitment)

    async def finish(self, commitment: Commitment) -> str:
        """Send the Binding of a pod whose cards `begin` has assumed, if this process may bind still.

        Returns:
            Empty when it is bound, else why not, in words; see `is_unsettled`.
        """
        try:
            # No await between this check and the request.
            may_send = not self._ending and self._term() == self._opened
        except CommitError:
            may_send = False
        if not may_send:
            self._roll_back(commitment)
            return "this gpupack scheduler may not bind now; it is tried again"
        if not self._is_open(commitment):
            return "the pod has changed since its cards were chosen; it is tried again"
        return await self._send_or_doubt(commitment)

    def is_unsettled(self, commitment: Commitment) -> bool:
        """Tell whether a Binding may still take effect: its cards are assumed until that is known."""
        return self._is_open(commitment)

    async def _send_or_doubt(self, commitment: Commitment) -> str:
        try:
            return await self._send(commitment)
        except BaseException:
            # Cancelled, or a fault of ours: what became of the Binding is not known.
            self._doubt(commitment)
            raise

    async def _begin(self, namespace: str, name: str, uid: str, node: str) -> Commitment:
        """Take the cards; while this process may not bind yet, hold them, and check again when it may.

        Held they keep the filters that run meanwhile from choosing the same cards for everybody.

        Raises:
            CommitError: the pod cannot be bound there.
            TimeoutError: the pods were not listed in time.
        """

        def begin() -> Commitment:
            if self._ending:
                raise CommitError("this gpupack scheduler is ending; it is tried again with the next one")
            return self.committer.begin(namespace, name, uid, node, self.clock())

        if self._term() == self._opened:
            return begin()
        held = begin()
        try:
            async with asyncio.timeout(2 * self.timeout_s):
                await self.open()
        finally:
            self._roll_back(held)
        return begin()

    def begin_anew(self) -> None:
        """Wait as after a start: what was known of Bindings under way is of a history that is no more."""
        self._begun_anew = self.clock()

    def end(self) -> None:
        """Send no Binding any more: whoever leads next counts on that."""
        self._ending = True

    async def close(self) -> None:
        """Stop waiting for the outcome of Bindings without an answer."""
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    async def open(self) -> None:
        """Wait until this process may bind.

        Raises:
            CommitError: it is not the leader.
        """
        while (term := self._term()) != self._opened:
            async with self._opening:
                if term == self._opened:
                    continue
                wait_s = term + self.timeout_s - self.clock()
                if wait_s > 0:
                    await self.sleep(wait_s)
                if term == self._term():
                    await self.refresh()
                    self._opened = term

    def _term(self) -> float:
        """When this process, or its leadership, or a history after an etcd restore, began.

        Raises:
            CommitError: it is not the leader.
        """
        if self.leadership is None:
            return max(self._started, self._begun_anew)
        since = self.leadership.since
        if since is None or not self.leadership.is_leader:
            raise CommitError("this gpupack scheduler is not the leader; the leader binds")
        return max(since, self._begun_anew)

    async def _send(self, commitment: Commitment) -> str:
        pod = commitment.pod
        annotations = {} if commitment.assigned is None else {POD_ASSIGNED: commitment.assigned}
        self._sending += 1
        try:
            await self.api.bind(
                pod.namespace,
                pod.name,
                pod.uid,
                commitment.node,
                annotations,
                pod.resource_version or None,
                timeout_s=self.timeout_s,
            )
        except KubeApiError as error:
            if error.maybe_done:
                self._doubt(commitment)
                if await self._read(commitment) is Outcome.BOUND:
                    return ""
                return f"Binding without an answer, its cards stay taken for now: {error.message}"
            if isinstance(error, Conflict):
                # What the watch has not brought yet, say that somebody else bound it, counts from now.
                await self._read(commitment)
            self._roll_back(commitment)
            return f"Binding refused: {error.message}"
        finally:
            self._sending -= 1
            self._sent = self.clock()
        return ""

    async def _read(self, commitment: Commitment) -> Outcome:
        """Read the pod into the state, and say what it shows of the Binding."""
        pod = commitment.pod
        try:
            body = await self.api.get(pod_path(pod.namespace, pod.name), timeout_s=self.timeout_s)
            current = _decode_pod(body)
        except NotFound:
            return Outcome.GONE
        except (KubeApiError, *UNREADABLE) as error:
            log.warning("pod not read", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            return Outcome.UNKNOWN
        if current.metadata.uid != pod.uid:
            return Outcome.GONE
        self.committer.state.apply_pod(current, self.clock())
        return Outcome.BOUND if current.spec.node_name == commitment.node else Outcome.NOT_BOUND

    def _doubt(self, commitment: Commitment) -> None:
        """Keep the cards taken, and find out what became of the Binding once it can no longer take effect."""
        if not self._is_open(commitment):
            return
        task = asyncio.create_task(self._settle(commitment))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, commitment: Commitment) -> None:
        """After T ask the pod itself, for the watch may be late; until it is read the cards stay taken.

        A pod that is gone may have been bound before: the watch will say so, and settles the cards. Until it
        does, ask again: whoever said that it is gone need not have been the API server.
        """
        outcome = Outcome.UNKNOWN
        while outcome in {Outcome.UNKNOWN, Outcome.GONE}:
            await self.sleep(self.timeout_s)
            if not self._is_open(commitment):
                return
            outcome = await self._read(commitment)
        if outcome is Outcome.NOT_BOUND:
            self._roll_back(commitment)

    def _is_open(self, commitment: Commitment) -> bool:
        """Whether the cards are taken still."""
        take = commitment.take
        return take is not None and self.committer.state.get_assumed(commitment.pod.uid) is take

    def _roll_back(self, commitment: Commitment) -> None:
        """Give the cards back, unless the pod has been seen bound or gone in the meantime."""
        if commitment.take is not None:
            self.committer.state.forget(commitment.take, self.clock())
