"""Bind: assume the cards, send the Binding, and find out its outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from allocator.names import POD_ASSIGNED
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound, decode_answer
from kubeapi.events import BUSY_S
from kubeapi.lease import LeaderStatus
from kubeapi.objects import Pod, decode_pod
from kubeapi.paths import make_pod_path
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer, PendingBinding
from scheduler_plugin.binding.pod_claims import BoundPodClaim
from scheduler_plugin.cache.pods import read_pod
from scheduler_plugin.errors import CommitError

T = TypeVar("T")

log = structlog.get_logger(__name__)


class BindingOutcome(Enum):
    """What a pod shows of a Binding that was sent for it."""

    BOUND = auto()
    NOT_BOUND = auto()
    GONE = auto()
    UNKNOWN = auto()


class Binder:
    """Carries out bind calls.

    Invariant: once a Binding was sent its cards stay assumed until one of these:

    - The answer is a definite refusal.
    - The pod is seen bound, gone or changed.
    - The pod is read unbound after the Binding could no longer take effect.

    When the process starts, a term as leader begins, or etcd was restored, earlier Bindings may still take
    effect. The first Binding waits until they no longer can, and until a list of pods made after that shows
    those that did.

    Args:
        timeout_s: T, how long a Binding may take effect after it was sent.
        leadership: Whether this process may bind, and since when: an earlier process may have bound before.
        refresh: Lists pods anew and returns when the state has the list.
    """

    def __init__(
        self,
        committer: Committer,
        api: KubeClient,
        clock: Callable[[], float],
        timeout_s: float,
        leadership: LeaderStatus,
        *,
        refresh: Callable[[], Awaitable[None]],
        claims: ClaimWriter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.committer = committer
        self.api = api
        self.clock = clock
        self.timeout_s = timeout_s
        self.leadership = leadership
        self.refresh = refresh
        self.claims = claims
        self.sleep = sleep
        self._fence_restarted_at = float("-inf")
        self._fenced_term: float | None = None
        self._fence_lock = asyncio.Lock()
        self._resolving: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._in_flight = 0
        self._last_sent_at = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether Bindings are on their way to the API server, or were a moment ago."""
        return self._in_flight > 0 or self.clock() - self._last_sent_at < BUSY_S

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod of this name and UID to a node; return why it is not bound, empty if it is."""
        try:
            # No await between the last check in here and the request.
            commitment = await self._assume(namespace, name, uid, node)
        except CommitError as error:
            return str(error)
        except TimeoutError:
            return "this gpupack scheduler has not listed the pods since it may bind"
        return await self._send_or_resolve_later(commitment)

    def begin(
        self, namespace: str, name: str, uid: str, node: str, cards: Collection[str] = ()
    ) -> PendingBinding:
        """Assume the cards of one pod of several, after `wait_for_fence` and before `finish`.

        Raises:
            CommitError: the pod cannot be bound there, or this process may not bind now.
        """
        self._check_may_bind()
        return self.committer.assume(namespace, name, uid, node, self.clock(), cards)

    def abandon(self, commitment: PendingBinding) -> None:
        self._forget(commitment)

    async def finish(self, commitment: PendingBinding) -> str:
        """Send the Binding that `begin` prepared, if this process may; return why the pod is not bound."""
        try:
            # No await between this check and the request.
            self._check_may_send(commitment)
        except CommitError as error:
            self._forget(commitment)
            return str(error)
        if not self.is_unsettled(commitment):
            return "the pod has changed since its cards were chosen; it is tried again"
        return await self._send_or_resolve_later(commitment)

    def is_unsettled(self, commitment: PendingBinding) -> bool:
        """Return True if a Binding may still take effect; until that is known its cards stay assumed."""
        assumed = commitment.assumed
        return assumed is not None and self.committer.state.get_assumed(commitment.pod.uid) is assumed

    async def _send_or_resolve_later(self, commitment: PendingBinding) -> str:
        try:
            return await self._send_binding(commitment)
        except BaseException:
            # Cancelled, or a fault of ours: what became of the Binding is not known.
            self._resolve_later(commitment)
            raise

    async def _assume(self, namespace: str, name: str, uid: str, node: str) -> PendingBinding:
        """Assume the cards, wait until this process may bind, and check again then.

        Assuming first keeps filters that run meanwhile from offering the same cards to every pod.

        Raises:
            CommitError: the pod cannot be bound there.
            TimeoutError: the pods were not listed in time.
        """

        def begin() -> PendingBinding:
            if self._is_stopped:
                raise CommitError("this gpupack scheduler is ending; it is tried again with the next one")
            return self.committer.assume(namespace, name, uid, node, self.clock())

        if self._get_term() == self._fenced_term:
            return begin()
        held = begin()
        try:
            async with asyncio.timeout(2 * self.timeout_s):
                await self.wait_for_fence()
        finally:
            self._forget(held)
        return begin()

    def restart_fence(self) -> None:
        """Require the wait of `wait_for_fence` again, because an etcd restore hides Bindings under way."""
        self._fence_restarted_at = self.clock()

    def stop_binding(self) -> None:
        """Stop sending Bindings for good; the next leader relies on that."""
        self._is_stopped = True

    async def close(self) -> None:
        """Stop waiting for the outcome of Bindings without an answer."""
        for task in self._resolving:
            task.cancel()
        await asyncio.gather(*self._resolving, return_exceptions=True)
        await self.claims.close()

    async def wait_for_fence(self) -> None:
        """Wait until this process may bind.

        Raises:
            CommitError: it is not the leader.
        """
        while (term := self._get_term()) != self._fenced_term:
            async with self._fence_lock:
                if term == self._fenced_term:
                    continue
                wait_s = term + self.timeout_s - self.clock()
                if wait_s > 0:
                    await self.sleep(wait_s)
                if term == self._get_term():
                    await self.refresh()
                    await self._sweep()
                    self._fenced_term = term

    def _get_term(self) -> float:
        """Return when its leadership, or the history after an etcd restore, began."""
        since = self.leadership.since
        if since is None or not self.leadership.is_leader:
            raise CommitError("this gpupack scheduler is not the leader; the leader binds")
        return max(since, self._fence_restarted_at)

    def _check_may_bind(self) -> None:
        """Raise a CommitError if this process does not lead, its fence is not over, or it ends."""
        if self._is_stopped or self._get_term() != self._fenced_term:
            raise CommitError("this gpupack scheduler may not bind now; it is tried again")

    def _check_may_send(self, commitment: PendingBinding) -> None:
        self._check_may_bind()
        if why := commitment.explain_stop():
            raise CommitError(why)

    async def _send_binding(self, commitment: PendingBinding) -> str:
        version = commitment.pod.resource_version
        if commitment.claim is not None:
            write_claim = partial(self._write_claim, commitment, commitment.claim)
            try:
                version = await self._write_pod(commitment, version, write_claim)
            except (CommitError, KubeApiError) as error:
                self._forget(commitment)
                return f"claim of the pod not written: {error}"
        self._in_flight += 1
        try:
            await self._write_pod(commitment, version, partial(self._post_binding, commitment))
        except KubeApiError as error:
            if error.maybe_done:
                self._resolve_later(commitment)
                if await self._read_outcome(commitment) is BindingOutcome.BOUND:
                    return ""
                return f"Binding without an answer, its cards stay taken for now: {error.message}"
            if isinstance(error, Conflict):
                # What the watch has not brought yet, say that somebody else bound it, counts from now.
                await self._read_outcome(commitment)
            self._forget(commitment)
            return f"Binding refused: {error.message}"
        finally:
            self._in_flight -= 1
            self._last_sent_at = self.clock()
        return ""

    async def _write_pod(
        self, commitment: PendingBinding, version: str, write: Callable[[str], Awaitable[T]]
    ) -> T:
        """Make a write that names the pod's resourceVersion, once more if a scheduler has patched its status.

        kube-scheduler may do that between filter and bind.
        """
        try:
            return await write(version)
        except Conflict:
            version = await self._read_newer_version(commitment)
            if not version:
                raise
            return await write(version)

    async def _post_binding(self, commitment: PendingBinding, version: str) -> None:
        pod = commitment.pod
        annotations = {} if commitment.assigned is None else {POD_ASSIGNED: commitment.assigned}
        await self.api.bind(
            pod.namespace,
            pod.name,
            pod.uid,
            commitment.node,
            annotations,
            version or None,
            timeout_s=self.timeout_s,
        )

    async def _read_newer_version(self, commitment: PendingBinding) -> str:
        """Read the resourceVersion with which a write that was refused with 409 can be made once more.

        Returns:
            Empty if the pod has changed in anything else, or if this process may not bind any more.
        """
        assumed = commitment.assumed
        current = await self._read_pod(commitment)
        if not isinstance(current, Pod) or assumed is None or not self.is_unsettled(commitment):
            return ""
        record = read_pod(current, self.committer.state.resource)
        if record.version <= assumed.pod.version or not assumed.is_same_request(record):
            return ""
        try:
            # No await between this check and the request.
            self._check_may_send(commitment)
        except CommitError:
            return ""
        assumed.pod = msgspec.structs.replace(assumed.pod, resource_version=record.resource_version)
        return record.resource_version

    async def _write_claim(self, commitment: PendingBinding, claim: BoundPodClaim, version: str) -> str:
        """Write a pod's claim; returns the pod's resourceVersion after that.

        Raises:
            CommitError: the claim is not this pod's, or this process may not bind any more.
            KubeApiError: a write failed.
        """
        version = await self.claims.write(claim, version)
        if commitment.assumed is not None:
            # From now on a later version means that the Binding will be refused.
            commitment.assumed.record_claim(version)
        self._check_may_send(commitment)
        return version

    async def _sweep(self) -> None:
        """Release what earlier processes allocated to pods that are not bound."""
        records = self.committer.state.node_records.values()
        if any(record.serves_claims for record in records):
            await self.claims.sweep()

    async def _read_outcome(self, commitment: PendingBinding) -> BindingOutcome:
        """Read the pod into the state, and return what it shows of the Binding."""
        current = await self._read_pod(commitment)
        if isinstance(current, BindingOutcome):
            return current
        self.committer.state.apply_pod(current, self.clock())
        return BindingOutcome.BOUND if current.spec.node_name == commitment.node else BindingOutcome.NOT_BOUND

    async def _read_pod(self, commitment: PendingBinding) -> Pod | BindingOutcome:
        """Read the pod; GONE or UNKNOWN if it is not there, or cannot be read."""
        pod = commitment.pod
        try:
            body = await self.api.get(make_pod_path(pod.namespace, pod.name), timeout_s=self.timeout_s)
            current = decode_answer(body, decode_pod, "a Pod")
        except NotFound:
            return BindingOutcome.GONE
        except KubeApiError as error:
            log.warning("pod not read", pod=pod.full_name, error=str(error))
            return BindingOutcome.UNKNOWN
        return current if current.metadata.uid == pod.uid else BindingOutcome.GONE

    def _resolve_later(self, commitment: PendingBinding) -> None:
        if not self.is_unsettled(commitment):
            return
        task = asyncio.create_task(self._resolve(commitment))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, commitment: PendingBinding) -> None:
        """Read the pod itself after T, because the watch may be late; until then its cards stay assumed.

        A pod that is gone may have been bound before; the watch will show that and settle its cards. Until it
        does, read again: the 404 need not have come from the API server.
        """
        outcome = BindingOutcome.UNKNOWN
        while outcome in {BindingOutcome.UNKNOWN, BindingOutcome.GONE}:
            await self.sleep(self.timeout_s)
            if not self.is_unsettled(commitment):
                return
            outcome = await self._read_outcome(commitment)
        if outcome is BindingOutcome.NOT_BOUND:
            self._forget(commitment)

    def _forget(self, commitment: PendingBinding) -> None:
        """Forget the assumed cards, unless the pod was seen bound or gone in the meantime."""
        if commitment.assumed is not None:
            self.committer.state.forget(commitment.assumed, self.clock())
        if commitment.claim is not None:
            self.claims.release(commitment.claim)
