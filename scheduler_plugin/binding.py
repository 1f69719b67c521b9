"""Bind: takes the cards, sends the Binding, and settles what an answer, or none, means."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
import structlog

from allocator.names import POD_ASSIGNED
from kubeapi.client import pod_path
from kubeapi.errors import Conflict, KubeApiError, NotFound
from scheduler_plugin.commit import Commitment, Committer
from scheduler_plugin.errors import CommitError
from scheduler_plugin.objects import PodLite
from scheduler_plugin.protocol import BindArgs

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


class Binder:
    """Carries out bind calls.

    Args:
        committer: Takes the cards.
        api: The API server.
        clock: Monotonic seconds.
        timeout_s: T, how long a Binding may take effect after it was sent.
        leadership: None when nobody else can be binding.
        sleep: Waits, as asyncio.sleep.
    """

    def __init__(
        self,
        committer: Committer,
        api: BindingApi,
        clock: Callable[[], float],
        timeout_s: float,
        leadership: Leadership | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.committer = committer
        self.api = api
        self.clock = clock
        self.timeout_s = timeout_s
        self.leadership = leadership
        self.sleep = sleep

    async def bind(self, args: BindArgs) -> str:
        """Bind a pod.

        Returns:
            Empty when it is bound, else why not, in words.
        """
        try:
            await self._wait_for_fence()
            # No await between here and the first request: the cards are taken before anybody else looks.
            commitment = self.committer.begin(
                args.pod_namespace, args.pod_name, args.pod_uid, args.node, self.clock()
            )
        except CommitError as error:
            return str(error)
        try:
            return await self._send(commitment)
        except asyncio.CancelledError:
            self._doubt(commitment)
            raise

    async def _wait_for_fence(self) -> None:
        """Refuse without leadership; after taking it, let the former leader's last Bindings end."""
        if self.leadership is None:
            return
        since = self.leadership.since
        if since is not None:
            wait_s = since + self.timeout_s - self.clock()
            if wait_s > 0:
                await self.sleep(wait_s)
        if not self.leadership.is_leader:
            raise CommitError("this gpupack scheduler is not the leader; the leader binds")

    async def _send(self, commitment: Commitment) -> str:
        pod = commitment.pod
        annotations = {} if commitment.assigned is None else {POD_ASSIGNED: commitment.assigned}
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
            if error.maybe_done or isinstance(error, Conflict):
                return await self._look(commitment, error)
            self._roll_back(commitment)
            return f"Binding refused: {error.message}"
        return ""

    async def _look(self, commitment: Commitment, error: KubeApiError) -> str:
        """Read the pod again: the Binding may have been done all the same."""
        pod = commitment.pod
        definite = not error.maybe_done
        if not definite:
            self._doubt(commitment)
        try:
            current = _decode_pod(
                await self.api.get(pod_path(pod.namespace, pod.name), timeout_s=self.timeout_s)
            )
        except NotFound:
            current = PodLite()
        except (KubeApiError, msgspec.MsgspecError) as problem:
            log.warning("pod not read after a Binding without answer", pod=pod.name, error=str(problem))
            current = None
        now = self.clock()
        if current is not None and current.metadata.uid == pod.uid:
            self.committer.state.apply_pod(current, now)
            if current.spec.node_name == commitment.node and not definite:
                return ""
        if definite:
            self._roll_back(commitment)
            return f"Binding refused: {error.message}"
        return f"Binding without an answer, its cards stay taken until its outcome is known: {error.message}"

    def _doubt(self, commitment: Commitment) -> None:
        if commitment.take is not None:
            self.committer.state.doubt(commitment.take, self.clock() + self.timeout_s)

    def _roll_back(self, commitment: Commitment) -> None:
        if commitment.take is not None:
            self.committer.state.roll_back(commitment.take, self.clock())
