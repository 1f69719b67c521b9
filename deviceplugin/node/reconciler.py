"""Keeps the ledger in step with the kubelet's list and with the cgroups of pods that ended."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from allocator.ledger import Listed
from allocator.names import unit_of_resource
from deviceplugin.errors import PodResourcesError, UnitInUseError
from deviceplugin.kubelet.podresources import PodResourcesList
from deviceplugin.node.account import Account
from deviceplugin.node.views import PodView

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the kubelet is asked, in seconds.

    Attributes:
        soon_s: after something happened that the list should show; doubles while it does not.
        unsettled_s: at most, while it does not or while a pod that ended still has processes.
        slow_s: when nothing happens.
    """

    soon_s: float = 0.1
    unsettled_s: float = 1.0
    slow_s: float = 5.0


PACE: Final = Pace()

BREATH_S: Final = 0.002
"""Pause between parts of a round that each take the loop a while: an Allocate gets its turn in between."""


class PodResources(Protocol):
    """The kubelet's list; `podresources.PodResourcesClient` in earnest."""

    async def list(self) -> PodResourcesList:
        """Ask for what every container holds now."""


class Cgroups(Protocol):
    """Which pods still run something; `cgroups.PodCgroups` in earnest. Blocking."""

    def alive(self, uids: Collection[str]) -> frozenset[str]:
        """Return those of `uids` that have a container left."""


class Reconciler:
    """Asks the kubelet soon after an Allocate or a pod's start or end, and slowly at all times.

    Args:
        account: the ledger.
        view: the own node's pods.
        resource: name of our extended resource.
        kubelet: the list.
        cgroups: the containers.
        pace: waits.

    Attributes:
        listed: set once the kubelet has answered for the first time.
        errors: failed questions so far.
    """

    def __init__(
        self,
        account: Account,
        view: PodView,
        resource: str,
        kubelet: PodResources,
        cgroups: Cgroups,
        *,
        pace: Pace = PACE,
    ) -> None:
        self._account = account
        self._view = view
        self._resource = resource
        self._kubelet = kubelet
        self._cgroups = cgroups
        self._pace = pace
        self._wake = asyncio.Event()
        self._kubelet_id: object = None
        self._failing = False
        self.listed = asyncio.Event()
        self.errors = 0
        account.follow(self._on_change)

    def kubelet_restarted(self) -> None:
        """Stop believing what the kubelet's list lacks until it has been asked anew."""
        log.info("kubelet restarted, charges stay until both its list and the API server say otherwise")
        self._account.ledger.kubelet_restarted()
        self._account.changed()

    async def run(self) -> None:
        """Reconcile until cancelled.

        Raises:
            UnitInUseError: containers hold IDs of another unit's resource.
        """
        delay_s = self._pace.soon_s
        while True:
            self._wake.clear()
            await self._once()
            ledger = self._account.ledger
            if ledger.wants_view():
                self._view.want_list()
            unsettled = ledger.wants_list() or bool(ledger.doubtful())
            delay_s = min(self._pace.unsettled_s, delay_s * 2) if unsettled else self._pace.slow_s
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            delay_s = self._pace.soon_s
            # Several Allocates of one pod make one question, and no burst makes more than a few a second.
            await asyncio.sleep(self._pace.soon_s)

    async def _once(self) -> None:
        """One question to the kubelet and, for pods that ended, one look at the cgroups."""
        mark = self._account.ledger.mark(self._account.now_s())
        try:
            answer = await self._kubelet.list()
        except PodResourcesError as error:
            self.errors += 1
            if not self._failing:
                log.warning("the kubelet does not list its pods' devices", error=str(error))
            self._failing = True
            return
        if self._failing:
            log.info("the kubelet lists its pods' devices again")
        self._failing = False
        if self._kubelet_id is not None and answer.kubelet != self._kubelet_id:
            self._kubelet_id = answer.kubelet
            self.kubelet_restarted()
            return
        self._kubelet_id = answer.kubelet
        await asyncio.sleep(BREATH_S)
        self._check_units(answer)
        before = self._fingerprint()
        self._account.ledger.listed(
            [
                Listed(namespace, name, container, frozenset(devices[self._resource]))
                for (namespace, name, container), devices in answer.entries.items()
                if self._resource in devices
            ],
            mark,
        )
        self.listed.set()
        if self._fingerprint() != before:
            self._account.changed()
        await asyncio.sleep(BREATH_S)
        if await self._look_at_cgroups():
            self._account.changed()

    async def _look_at_cgroups(self) -> bool:
        """Tell the ledger of pods that have no container left; returns whether there were any."""
        doubtful = self._account.ledger.doubtful()
        if not doubtful:
            return False
        names = {uid: self._view.cgroup_uid(uid) for uid in doubtful}
        alive = await asyncio.to_thread(self._cgroups.alive, frozenset(names.values()))
        ended = [uid for uid, cgroup_uid in names.items() if cgroup_uid not in alive]
        for uid in ended:
            log.info("pod ended", uid=uid)
            self._account.ledger.containers_ended(uid)
        return bool(ended)

    def _check_units(self, answer: PodResourcesList) -> None:
        for (namespace, name, _), devices in answer.entries.items():
            for resource in devices:
                if resource != self._resource and unit_of_resource(resource) is not None:
                    raise UnitInUseError(
                        f"pod {namespace}/{name} holds {resource}, this daemon offers {self._resource}: "
                        "a unit is changed on a drained node only, drain this one first"
                    )

    def _fingerprint(self) -> tuple[object, ...]:
        ledger = self._account.ledger
        return (ledger.used(), ledger.holds(), ledger.wants_list(), ledger.doubtful())

    def _on_change(self) -> None:
        if self._account.ledger.wants_list() or self._account.ledger.doubtful():
            self._wake.set()
