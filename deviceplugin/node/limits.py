"""Holds every container to what it was given: sets the limit of its cgroup as soon as that exists.

What a container was given stands in the kubelet's book, so nothing is kept here: a daemon that starts reads
the limits that stand, and sets those that do not. A cgroup that goes takes its limits with it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.gpus.limits import Enforcement, MemoryLimits, Support
from deviceplugin.node.account import Account
from deviceplugin.node.containers import PodFolders, containers, logged, uid_of
from deviceplugin.node.holding import Job, Outcome
from deviceplugin.node.inotify import Inotify
from deviceplugin.node.lanes import Lanes
from deviceplugin.node.limit_plan import Grants, Wanted, wanted
from deviceplugin.node.notices import Notices, silent

log = structlog.get_logger(__name__)

RESCAN_S: Final = 5.0
"""How often everything is looked at again, for what was missed and for limits that somebody changed."""

BLIND_RESCAN_S: Final = 0.25
"""The same where the kernel tells of no new cgroup."""

RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 5.0
TELL_AFTER: Final = 5
"""Failures after which people are told; a driver may be busy for a moment."""

NO_LIMITS: Final = Support(held=False, reason="the source of cards has no memory limits")
SWITCHED_OFF: Final = Support(held=False, reason="--memory-limits off")


@dataclass(slots=True, eq=False)
class Limit:
    """The limit of one container's cgroup on one card.

    Attributes:
        uid: of the pod, as the kubelet knows it.
        container: its name, None while it is not known whose cgroup this is.
        uuid: of the card.
        cgroup: the container's.
        wanted: what is to stand there.
        outcome: of the last attempt, None before the first.
        failures: attempts since it held last.
    """

    uid: str
    container: str | None
    uuid: str
    cgroup: Path
    wanted: Wanted
    outcome: Outcome | None = None
    failures: int = 0

    @property
    def in_force(self) -> bool:
        """Whether the limit was read back."""
        return self.outcome is not None and self.outcome.fault is None


@dataclass(slots=True, eq=False)
class _Pod:
    """A pod that was given memory: the book's IDs, what they mean, its cgroup once there is one."""

    ids: Mapping[str, frozenset[str]]
    grants: Grants
    folder: Path | None = None
    cgroups: dict[Path, str] = field(default_factory=dict)
    limits: dict[tuple[Path, str], Limit] = field(default_factory=dict)


class Enforcer:
    """Follows the book and the cgroups, and keeps limits in force.

    Args:
        account: the ledger, which has the book.
        limits: the driver; None: nobody can.
        names: container names by ID, of the pod with that UID in cgroups, as far as they are known.
        mode: `auto`, `off` or `require`.
        unit_mib: MiB a unit.
        cgroup_root: where the host's cgroups are mounted.
        container_logs: the kubelet's folder of links to containers' logs; need not exist.
        notices: told what people should know.
        rescan_s: see `RESCAN_S`.

    Attributes:
        fallback: how a card is held on which the driver holds nothing.
        faults: attempts that failed so far.
        repaired: limits in force that somebody had changed.
    """

    def __init__(
        self,
        account: Account,
        limits: MemoryLimits | None,
        names: Callable[[str], Mapping[str, str]],
        *,
        mode: str = "auto",
        unit_mib: int,
        cgroup_root: Path,
        container_logs: Path,
        notices: Notices | None = None,
        rescan_s: float = RESCAN_S,
    ) -> None:
        self._account = account
        self._driver = limits
        self._names = names
        self._mode = mode
        self._unit_mib = unit_mib
        self._logs = container_logs
        self._notices = notices or silent()
        self._rescan_s = rescan_s
        self._cards = tuple(card.uuid for card in account.ledger.installed)
        self._supports: dict[str, Support] = {}
        self._folders = PodFolders(cgroup_root)
        self._holders: set[Path] = set()
        self._pods: dict[str, _Pod] = {}
        self._uids: dict[Path, str] = {}
        self._logged: dict[str, str] = {}
        self._inotify = Inotify(self._on_folder, self._on_lost)
        self._lanes: Lanes | None = None
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._account_changed = True
        self._rescan_due = True
        self.fallback: Callable[[str], Enforcement] = lambda _: Enforcement.ACCOUNTED
        self.faults = 0
        self.repaired = 0
        account.follow(self._on_account)

    # What others ask.

    def support(self, uuid: str) -> Support:
        """Tell whether limits are held on a card, and why not."""
        return self._supports.get(uuid, NO_LIMITS)

    def enforcement(self, uuid: str) -> Enforcement:
        """Tell how the memory of a card's containers is held."""
        return Enforcement.DRIVER if self.support(uuid).held else self.fallback(uuid)

    def container_envs(self, shares_mib: Mapping[str, int]) -> Mapping[str, str]:
        """Name the variables for the vendor's toolkit; none where the driver does not hold all the cards."""
        if self._driver is None or not shares_mib or not all(self.support(u).held for u in shares_mib):
            return {}
        return self._driver.container_envs(min(shares_mib.values()))

    def limits(self) -> Iterator[Limit]:
        """List the limits of all containers' cgroups that there are."""
        for pod in self._pods.values():
            yield from pod.limits.values()

    # Life.

    async def begin(self) -> None:
        """Ask what the driver can do on each card; with `require` the others are offered to nobody."""
        before = dict(self._supports)
        found = await asyncio.to_thread(self._ask)
        if found == before:
            return
        self._supports = found
        for uuid in self._cards:
            if found[uuid] != before.get(uuid):
                self._tell_support(uuid, found[uuid])
        if self._mode == "require":
            self._account.withhold({uuid: str(found[uuid]) for uuid in self._cards if not found[uuid].held})
        self._account.changed()

    async def run(self) -> None:
        """Keep limits in force until cancelled."""
        if self._mode == "off" or self._driver is None:
            return
        self._lanes = Lanes(self._driver, self._cards, self._on_outcome)
        watching = self._open_watch()
        pause_s = self._rescan_s if watching else min(self._rescan_s, BLIND_RESCAN_S)
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._pass()
                timer = loop.call_later(pause_s, self._on_lost)
                await self._wake.wait()
                timer.cancel()
        finally:
            self._inotify.close()
            await self._lanes.close()

    def _ask(self) -> dict[str, Support]:
        if self._mode == "off":
            return dict.fromkeys(self._cards, SWITCHED_OFF)
        if self._driver is None:
            return dict.fromkeys(self._cards, NO_LIMITS)
        return {uuid: self._driver.support(uuid) for uuid in self._cards}

    def _tell_support(self, uuid: str, support: Support) -> None:
        if support.held:
            log.info("memory limits are held by the driver", card=uuid)
        elif self._mode == "require":
            log.error("card is not offered: --memory-limits require", card=uuid, reason=str(support))
            self._notices.limits_unavailable(uuid, str(support))
        else:
            log.info("memory is accounted, not limited", card=uuid, reason=str(support))

    # What happened; all of it only wakes the loop.

    def _on_account(self) -> None:
        self._account_changed = True
        self._wake.set()

    def _on_lost(self) -> None:
        self._rescan_due = True
        self._wake.set()

    def _on_folder(self, folder: Path, name: str) -> None:
        if folder == self._logs:
            self._on_log(name)
        elif folder in self._holders:
            uid = uid_of(name)
            if uid is None:
                self._rescan_due = True
            elif uid not in self._pods:
                # The kubelet wrote its book before it made the pod's cgroup.
                self._account.refresh()
                self._account_changed = True
            self._dirty.update({uid} if uid else ())
        elif folder in self._uids:
            self._dirty.add(self._uids[folder])
        self._wake.set()

    def _on_log(self, name: str) -> None:
        found = logged(name)
        if found is None:
            return
        if (self._logs / name).is_symlink():
            self._logged[found[0]] = found[1]
            self._account_changed = True
        else:
            self._logged.pop(found[0], None)

    def _open_watch(self) -> bool:
        try:
            self._inotify.open()
        except OSError as error:
            log.warning("new cgroups are looked for, the kernel does not tell of them", error=str(error))
            return False
        try:
            self._inotify.watch(self._logs)
        except OSError:
            log.debug("no links to containers' logs", folder=str(self._logs))
        else:
            for path in self._logs.iterdir():
                self._on_log(path.name)
        return True

    # One look.

    async def _pass(self) -> None:
        self._wake.clear()
        rescan, self._rescan_due = self._rescan_due, False
        changed, self._account_changed = self._account_changed, False
        dirty, self._dirty = self._dirty, set()
        if rescan:
            await self.begin()
            await asyncio.to_thread(self._folders.look)
            self._watch_holders()
        if changed or rescan:
            dirty |= self._follow_book()
        if rescan:
            dirty |= self._pods.keys()
        for uid in dirty:
            if uid in self._pods:
                self._look(uid, self._pods[uid])
        for uid, pod in self._pods.items() if changed or dirty else ():
            self._plan(uid, pod)
        if rescan:
            for limit in self.limits():
                self._submit(limit, urgent=False)

    def _watch_holders(self) -> None:
        holders = set(self._folders.holders())
        for gone in self._holders - holders:
            self._inotify.unwatch(gone)
        self._holders = {folder for folder in holders if self._watched(folder)}

    def _watched(self, folder: Path) -> bool:
        try:
            self._inotify.watch(folder)
        except OSError:
            return False
        return True

    def _follow_book(self) -> set[str]:
        """Take what the containers were given now; tells which pods are new or were given something else."""
        facts, news = self._account.ledger.facts, set()
        for uid, held in facts.held.items():
            pod = self._pods.get(uid)
            if pod is not None and pod.ids == held.ids:
                continue
            grants = {
                name: {uuid: units * self._unit_mib for uuid, units in facts.by_card(ids).items()}
                for name, ids in held.ids.items()
            }
            if pod is None:
                self._pods[uid] = _Pod(dict(held.ids), grants)
            else:
                pod.ids, pod.grants = dict(held.ids), grants
            news.add(uid)
        for uid in self._pods.keys() - facts.held.keys():
            pod = self._pods.pop(uid)
            for cgroup in list(pod.cgroups):
                self._forget(pod, cgroup)
            self._leave(pod)
        return news

    def _look(self, uid: str, pod: _Pod) -> None:
        """See which cgroups a pod has; the watch comes first, so that none is missed between the two."""
        if pod.folder is None or not pod.folder.is_dir():
            self._leave(pod)
            pod.folder = self._folders.find(uid)
            if pod.folder is not None and self._watched(pod.folder):
                self._uids[pod.folder] = uid
        found = {path: name for name, path in containers(pod.folder)} if pod.folder is not None else {}
        for cgroup in pod.cgroups.keys() - found.keys():
            self._forget(pod, cgroup)
        pod.cgroups = found

    def _leave(self, pod: _Pod) -> None:
        if pod.folder is not None:
            self._inotify.unwatch(pod.folder)
            self._uids.pop(pod.folder, None)
            pod.folder = None

    def _forget(self, pod: _Pod, cgroup: Path) -> None:
        del pod.cgroups[cgroup]
        for key in [key for key in pod.limits if key[0] == cgroup]:
            del pod.limits[key]
            if self._lanes is not None:
                self._lanes.drop(key[1], cgroup)

    def _plan(self, uid: str, pod: _Pod) -> None:
        """Compare what a pod's cgroups should have with what is planned, and begin what differs."""
        names: Mapping[str, str] | None = None
        for cgroup, identifier in pod.cgroups.items():
            names = self._names(uid) if names is None else names
            container = names.get(identifier) or self._logged.get(identifier)
            planned = wanted(pod.grants, container)
            for uuid, want in planned.items():
                limit = pod.limits.get((cgroup, uuid))
                if limit is not None and limit.wanted == want and limit.container == container:
                    continue
                if limit is None:
                    limit = pod.limits[cgroup, uuid] = Limit(uid, container, uuid, cgroup, want)
                limit.container, limit.wanted, limit.failures = container, want, 0
                self._submit(limit, urgent=True)
            for key in [key for key in pod.limits if key[0] == cgroup and key[1] not in planned]:
                del pod.limits[key]

    def _submit(self, limit: Limit, *, urgent: bool) -> None:
        if self._lanes is not None and self.support(limit.uuid).held:
            self._lanes.add(limit.uuid, Job(limit.cgroup, limit.wanted), urgent=urgent)

    # What became of it.

    def _find(self, uuid: str, cgroup: Path) -> Limit | None:
        uid = self._uids.get(cgroup.parent)
        pod = self._pods.get(uid) if uid is not None else None
        return pod.limits.get((cgroup, uuid)) if pod is not None else None

    def _on_outcome(self, uuid: str, outcome: Outcome) -> None:
        limit = self._find(uuid, outcome.cgroup)
        if limit is None:
            return
        before, limit.outcome = limit.outcome, outcome
        if outcome.fault is None:
            self._held(limit, before, outcome)
        elif outcome.fault == "gone":
            limit.outcome = before
            self._dirty.add(limit.uid)
            self._wake.set()
        else:
            self._not_held(limit, before, outcome)

    def _held(self, limit: Limit, before: Outcome | None, outcome: Outcome) -> None:
        reading = outcome.reading
        hard_mib = reading.hard_mib if reading is not None else None
        limit.failures = 0
        if hard_mib not in limit.wanted.accepted:
            # It was planned anew while the driver worked; the next job is on its way.
            return
        if before is None or before.fault is not None or before.reading is None:
            log.info("memory limit in force", **self._shown(limit), mib=hard_mib)
        elif before.reading.hard_mib != outcome.was_mib:
            self.repaired += 1
            log.warning("memory limit set again", **self._shown(limit), mib=hard_mib, stood=outcome.was_mib)

    def _not_held(self, limit: Limit, before: Outcome | None, outcome: Outcome) -> None:
        self.faults += 1
        limit.failures += 1
        if before is None or before.problem != outcome.problem:
            log.warning("memory limit not in force", **self._shown(limit), error=outcome.problem)
        final = outcome.fault in {"refused", "unsupported"}
        if limit.failures == (1 if final else TELL_AFTER) and limit.container is not None:
            self._notices.limit_not_held(limit.uid, limit.container, outcome.problem)
        if outcome.fault == "unsupported":
            self._rescan_due = True
            self._wake.set()
        elif outcome.fault == "failed":
            delay_s = min(LONGEST_RETRY_S, RETRY_S * 2 ** min(limit.failures - 1, 10))
            asyncio.get_running_loop().call_later(delay_s, self._again, limit)

    def _again(self, limit: Limit) -> None:
        if self._find(limit.uuid, limit.cgroup) is limit and not limit.in_force:
            self._submit(limit, urgent=True)

    @staticmethod
    def _shown(limit: Limit) -> dict[str, object]:
        return {"pod": limit.uid, "container": limit.container, "card": limit.uuid}


def limit_modes() -> Sequence[str]:
    """Name what `--memory-limits` allows."""
    return ("auto", "off", "require")
