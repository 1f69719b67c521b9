"""Leader election on a coordination.k8s.io/v1 Lease, compatible with client-go's.

The Lease object is changed by compare and swap on its resourceVersion, so of two candidates one gets a 409.
Wall clocks are not compared: a candidate waits `leaseDurationSeconds` of its own time after the last change
that it saw.

Invariant: whenever `is_leader` is True, no other candidate can take the Lease for at least `gap_s` more,
clocks of equal rate given. A write that this process begins as leader and bounds by less than `gap_s` is thus
over before another leader's first one.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec
import structlog

from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound, decode_answer
from kubeapi.objects import Lease, LeaseSpec
from kubeapi.paths import make_leases_path, quote_segment

RELEASE_TIMEOUT_S = 2.0

log = structlog.get_logger(__name__)

_decode_lease: Final = msgspec.json.Decoder(Lease).decode


class LeaderStatus(Protocol):
    """Says whether this process may act, of several that could."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def since(self) -> float | None:
        """Seconds of the clock since which this process leads; None while it does not."""
        ...


@dataclass(frozen=True, slots=True)
class SoleProcess:
    """The status of a process that nobody else is beside: it always leads.

    Attributes:
        since: when it began to act; minus infinity where no process can have acted before it.
    """

    since: float = float("-inf")
    is_leader: bool = True
    identity: str = ""
    holder: str = ""

    async def run(self) -> None:
        """Do nothing: nobody is elected."""


SOLE_PROCESS: Final = SoleProcess()


class LeaseElector:
    """Takes part in an election for as long as `run` runs.

    Attributes:
        gap_s: time between `is_leader` turning False by itself and the earliest next leader.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        lease_s: int = 15,
        renew_s: float = 2.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        is_eligible: Callable[[], bool] = lambda: True,
        has_stopped: Callable[[str], bool] = lambda _holder: False,
    ) -> None:
        """Prepare; nothing is sent before `run`.

        Args:
            identity: identity of this process, unique among all candidates and restarts.
            lease_s: whole seconds others wait after the last renewal they saw.
            renew_s: seconds between two tries; at most a third of lease_s.
            is_eligible: whether this process may lead; while not, it gives the Lease up and only watches it.
            has_stopped: whether a holder is known to act no more, so that nobody need wait for it.

        Raises:
            ValueError: lease_s is not a whole number >= 1, or renew_s not within (0, lease_s / 3].
        """
        if lease_s != int(lease_s) or lease_s < 1:
            raise ValueError(f"lease of {lease_s} s: expected a whole number of seconds, at least 1")
        if not 0 < renew_s <= lease_s / 3:
            raise ValueError(f"renewal every {renew_s} s: expected above 0 and at most {lease_s / 3:g}")
        self._client = client
        self._collection = make_leases_path(namespace)
        self._path = f"{self._collection}/{quote_segment(name)}"
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._lease_s = int(lease_s)
        self._renew_s = renew_s
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._uniform = uniform
        self._is_eligible = is_eligible
        self._has_stopped = has_stopped
        self.gap_s = lease_s / 3
        self._deadline_s = lease_s - self.gap_s
        self._renewed_at: float | None = None
        self._since: float | None = None
        self._seen: Lease | None = None
        self._seen_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader now."""
        return (
            self._renewed_at is not None
            and self._clock() < self._renewed_at + self._deadline_s
            and self._is_eligible()
        )

    @property
    def since(self) -> float | None:
        """`clock()` when leadership began, or began anew after a lapse; None while not leading."""
        return self._since if self.is_leader else None

    @property
    def holder(self) -> str:
        """Holder of the Lease when it was last seen; empty when nobody or unknown."""
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    async def run(self) -> None:
        """Take part until cancelled; then give the Lease up at once.

        Let no write that needs leadership be under way when cancelling: the next leader does not wait.
        """
        try:
            while True:
                await self._round()
                await self._sleep(self._uniform(0.8 * self._renew_s, self._renew_s))
        finally:
            await self._release()

    async def _round(self) -> None:
        """Try once to get or keep the Lease; failures are only logged, since the deadline ends leadership."""
        before = self.is_leader
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._try()
        except (KubeApiError, TimeoutError) as error:
            log.warning("lease not renewed", lease=self._name, leader=self.is_leader, error=str(error))
        if self.is_leader != before:
            log.info("leadership", lease=self._name, leader=self.is_leader, holder=self.holder)

    async def _try(self) -> None:
        if not self._is_eligible():
            await self._stand_by()
            return
        if self._seen is not None and self.holder == self.identity:
            try:
                await self._write(self._seen)
            except Conflict:
                log.info("lease changed by another", lease=self._name)
            else:
                return
        try:
            lease = read_lease(await self._client.get(self._path, timeout_s=self._deadline_s))
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            await self._write(Lease(metadata=metadata), create=True)
            return
        self._observe(lease)
        if self.holder in {"", self.identity} or self._expired() or self._has_stopped(self.holder):
            await self._write(lease)
        else:
            self._renewed_at = None

    async def _stand_by(self) -> None:
        if self._seen is not None and self.holder == self.identity:
            await self._release()
            self._seen = None
        with suppress(NotFound):
            self._observe(read_lease(await self._client.get(self._path, timeout_s=self._deadline_s)))

    def _observe(self, lease: Lease) -> None:
        """Restart the wait whenever the record has changed."""
        if self._seen is None or self._seen.spec != lease.spec:
            self._seen_at = self._clock()
        self._seen = lease

    def _expired(self) -> bool:
        duration_s = self._seen.spec.lease_duration_seconds if self._seen else None
        return self._clock() >= self._seen_at + (duration_s or self._lease_s)

    async def _write(self, old: Lease, *, create: bool = False) -> None:
        """Compare and swap; leadership counts from before the request was sent."""
        now = _format_micro_time(self._wall())
        ours = old.spec.holder_identity == self.identity
        taken = 0 if create or ours else 1
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._lease_s,
            acquire_time=old.spec.acquire_time if ours else now,
            renew_time=now,
            lease_transitions=(old.spec.lease_transitions or 0) + taken,
        )
        sent_at = self._clock()
        self._observe(await self._send(old, spec, create=create, timeout_s=self._deadline_s))
        if not (ours and self.is_leader):
            self._since = self._clock()
        self._renewed_at = sent_at

    async def _send(self, old: Lease, spec: LeaseSpec, *, create: bool, timeout_s: float) -> Lease:
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": old.metadata,
                "spec": spec,
            }
        )
        try:
            if create:
                return read_lease(await self._client.post(self._collection, body, timeout_s=timeout_s))
            return read_lease(await self._client.put(self._path, body, timeout_s=timeout_s))
        except Conflict:
            # Another's write, or one of ours that timed out: until it is read again the last renewal counts.
            self._seen = None
            raise
        except NotFound:
            # Removed by hand: anybody may create it now.
            self._seen = None
            self._renewed_at = None
            raise

    async def _release(self) -> None:
        """Write an empty holder, so that the next leader need not wait."""
        seen, self._renewed_at = self._seen, None
        try:
            # Unknown after a conflict, for instance when a renewal was cancelled half-way.
            lease = seen or read_lease(await self._client.get(self._path, timeout_s=RELEASE_TIMEOUT_S))
            if lease.spec.holder_identity != self.identity:
                return
            now = _format_micro_time(self._wall())
            spec = LeaseSpec(
                holder_identity="",
                lease_duration_seconds=1,
                acquire_time=now,
                renew_time=now,
                lease_transitions=lease.spec.lease_transitions,
            )
            await self._send(lease, spec, create=False, timeout_s=RELEASE_TIMEOUT_S)
        except Conflict:
            if seen is not None:
                await self._release()
        except KubeApiError as error:
            log.warning("lease not released", lease=self._name, error=str(error))


def read_lease(body: bytes) -> Lease:
    return decode_answer(body, _decode_lease, "a Lease")


def _format_micro_time(when: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as the API's MicroTime."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
