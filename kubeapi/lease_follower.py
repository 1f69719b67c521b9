"""Leadership by another process's Lease: a process in the holder's pod leads together with it.

kube-scheduler writes its host name, which in a pod is the pod's name, and a random part into the Lease. A
process beside it in the same pod reads that, and takes part in no election of its own.

Invariant: whenever `is_leader` is True, nobody else can take the Lease for at least `gap_s` more, clocks of
equal rate given. A renewal is dated at the last read that did not show it yet, which was before it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.lease import read_lease
from kubeapi.objects import LeaseSpec
from kubeapi.paths import make_leases_path, quote_segment

log = structlog.get_logger(__name__)


class LeaseFollower:
    """Follows a Lease for as long as `run` runs.

    Attributes:
        gap_s: Seconds between `is_leader` turning False by itself and the earliest next leader.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        host: str,
        *,
        gap_s: float,
        read_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare; nothing is sent before `run`.

        Args:
            host: Host name of the holder that this process leads with; what follows in its identity is
                after an underscore.
            gap_s: See the attribute; more than a write of the leader may take.
            read_s: Seconds between two reads, and the time-out of each.
        """
        self._client = client
        self._path = f"{make_leases_path(namespace)}/{quote_segment(name)}"
        self.lease = f"{namespace}/{name}"
        self._host = host
        self.gap_s = gap_s
        self._read_s = read_s
        self._clock = clock
        self._sleep = sleep
        self._seen: LeaseSpec | None = None
        self._seen_at = clock()
        self._until: float | None = None
        self._since: float | None = None

    @property
    def is_leader(self) -> bool:
        return self._until is not None and self._clock() < self._until

    @property
    def since(self) -> float | None:
        """See `LeaseElector.since`."""
        return self._since if self.is_leader else None

    async def run(self) -> None:
        """Read the Lease until cancelled; an unreadable one renews nothing."""
        while True:
            began = self._clock()
            try:
                spec = read_lease(await self._client.get(self._path, timeout_s=self._read_s)).spec
            except KubeApiError as error:
                log.debug("lease not read", path=self._path, error=str(error))
            else:
                self._apply_lease(spec, began)
            await self._sleep(self._read_s)

    def _apply_lease(self, spec: LeaseSpec, began: float) -> None:
        before, self._seen = self._seen, spec
        seen_at, self._seen_at = self._seen_at, began
        if (spec.holder_identity or "").partition("_")[0] != self._host:
            self._until = None
            return
        same_holder = before is not None and before.holder_identity == spec.holder_identity
        if not same_holder or before is None or before.renew_time == spec.renew_time:
            # When it was renewed is not known before a renewal is seen.
            return
        was_leader = self.is_leader
        self._until = seen_at + float(spec.lease_duration_seconds or 0) - self.gap_s
        if not was_leader and self.is_leader:
            self._since = self._clock()
            log.info("leading with the holder of the lease", holder=spec.holder_identity)
