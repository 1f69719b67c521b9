"""A second look at pods that were refused, for those that kube-scheduler would not ask for again.

It tries a refused pod again when something in the cluster changes. Two kinds of pods are left waiting by
that, until the next change anywhere or for five minutes: those for which kube-scheduler read of the change
before us, so that we refused on what was known until then (`patience` waits for such news, but not for
long), and those whose room came free without any change that it could see, as when what was kept for another
pod is given up.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from kubeapi.errors import Conflict, Invalid, KubeApiError, NotFound
from kubeapi.paths import pod_path
from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.cluster.signals import Signal
from scheduler_plugin.commit.binding import Leadership
from scheduler_plugin.http.extender import Asked, Extender, Filtered

AFTER_S: Final = 1.0
"""A refused pod is looked at after so long: by then kube-scheduler asks again itself, as a rule."""

AT_ONCE: Final = 16
"""Pods that are looked at in one round, one round a second."""

REMEMBERED: Final = 256
"""The pods refused last; with more that wait, something changes all the time."""

MOST_BYTES: Final = 16 << 20
"""What the lists of nodes of these pods may take together; most pods are asked about with the same list."""

WRITE_S: Final = 10.0

STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

log = structlog.get_logger(__name__)


class PatchApi(Protocol):
    """What is needed of the API server; `kubeapi.client.KubeClient` has it."""

    async def patch(
        self, path: str, body: Mapping[str, object], content_type: str = ..., *, timeout_s: float = ...
    ) -> bytes:
        """Patch an object."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Refused:
    asked: Asked
    at: float


class SecondLooks:
    """Looks again at refused pods, and has kube-scheduler try those that fit by then.

    Args:
        extender: Answers again.
        api: The API server.
        clock: Monotonic seconds.
        stale: Why the view cannot be trusted; empty when it can.
        leadership: Only the leader asks; None without an election.

    Attributes:
        fits: Says which pod was found to fit.
    """

    def __init__(
        self,
        extender: Extender,
        api: PatchApi,
        clock: Callable[[], float],
        stale: Callable[[], str],
        leadership: Leadership | None = None,
    ) -> None:
        self.fits: Signal[[str]] = Signal()
        self._extender = extender
        self._api = api
        self._clock = clock
        self._stale = stale
        self._leadership = leadership
        self._refused: OrderedDict[str, _Refused] = OrderedDict()
        extender.state.settled.connect(self._settled)

    def note(self, found: Filtered) -> None:
        """A filter call was answered."""
        self._refused.pop(found.refused or found.passed, None)
        if found.asked is not None:
            self._refused[found.refused] = _Refused(found.asked, self._clock())
            while len(self._refused) > REMEMBERED or self._bytes() > MOST_BYTES:
                self._refused.popitem(last=False)

    def _bytes(self) -> int:
        lists = [refused.asked.candidates for refused in self._refused.values()]
        return sum({id(each): each.cost for each in lists}.values())

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await asyncio.sleep(AFTER_S)
            await self.look()

    async def look(self) -> None:
        """Look at the pods that have waited long enough, those not looked at for longest first."""
        if self._leadership is not None and not self._leadership.is_leader:
            return
        now = self._clock()
        due = [(uid, refused) for uid, refused in self._refused.items() if now >= refused.at + AFTER_S]
        for uid, refused in due[:AT_ONCE]:
            await asyncio.sleep(0)  # calls under way come first
            if self._stale():
                return
            if self._refused.get(uid) is not refused:
                continue
            self._refused.move_to_end(uid)
            if self._extender.would_pass(refused.asked, self._clock()):
                del self._refused[uid]
                await self._have_it_tried(uid, refused)

    async def _have_it_tried(self, uid: str, refused: _Refused) -> None:
        """Change the pod, upon which kube-scheduler tries it again.

        `lastProbeTime` of the condition that says why it waits is a field that kube-scheduler leaves empty
        and empties again: nothing of this stays. It may change the status of pods, as kube-scheduler may.
        """
        meta = refused.asked.pod.metadata
        self.fits(uid)
        log.info("pod fits by now, and is tried again", pod=f"{meta.namespace}/{meta.name}")
        probed = {
            "type": "PodScheduled",
            "lastProbeTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        body = {"metadata": {"uid": uid}, "status": {"conditions": [probed]}}
        path = f"{pod_path(meta.namespace, meta.name)}/status"
        try:
            await self._api.patch(path, body, STRATEGIC_PATCH, timeout_s=WRITE_S)
        except KubeApiError as error:
            log.info("pod is not tried again", pod=f"{meta.namespace}/{meta.name}", error=str(error))
            # Gone, or another pod of the name, to which the API server says 422; else it may work later.
            if not isinstance(error, NotFound | Invalid | Conflict):
                self._refused.setdefault(uid, refused)

    def _settled(self, pod: PodRecord) -> None:
        """A pod was seen bound, or is gone."""
        self._refused.pop(pod.uid, None)
