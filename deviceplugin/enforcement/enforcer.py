"""Limits every container to what it was given: sets the limit of its cgroup as soon as that exists.

What a container was given stands in the kubelet's checkpoint, so nothing is kept here. A daemon that starts
reads the limits that stand, and sets those that do not. A cgroup that goes takes its limits with it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.enforcement.card_workers import PerCardWorkers
from deviceplugin.enforcement.cgroup_watch import CgroupWatch
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.limit_plan import plan_limits
from deviceplugin.enforcement.limit_setter import LimitJob, LimitOutcome
from deviceplugin.enforcement.limit_state import ContainerLimit, LimitedPod
from deviceplugin.host.cgroups import parse_pod_uid
from deviceplugin.host.containers import (
    PodFolders,
    list_container_cgroups,
    parse_log_name,
    read_container_cgroups,
)
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

RESCAN_S: Final = 5.0
"""How often everything is checked again, for what was missed and for limits that somebody changed."""

BLIND_RESCAN_S: Final = 0.25
"""How often new cgroups are searched where the kernel does not report them."""

SLICE: Final = 2
SLICE_S: Final = 0.01
"""How long limits of pods are read at a stretch, before what happened meanwhile has its turn."""

RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 5.0
TELL_AFTER: Final = 5
"""Failures after which an Event is written; a driver may be busy for a moment."""


class Enforcer:
    """Follows the checkpoint and the cgroups, and keeps limits in force.

    Args:
        limit_capability: On which cards limits are held, and by whom.
        names: container names by ID, of the pod with that UID in cgroups, as far as they are known.
        container_logs: the kubelet's folder of links to containers' logs; need not exist.
        tell: called once for each fault, with the UID of the pod, the container and what is wrong with its
            limit.

    Attributes:
        repaired: limits in force that somebody had changed.
    """

    def __init__(
        self,
        account: LedgerService,
        limit_capability: LimitCapability,
        granted_memory: GrantedMemory,
        names: Callable[[str], Mapping[str, str]],
        *,
        cgroup_root: Path,
        container_logs: Path,
        tell: Callable[[str, str, str], None] = lambda *_: None,
        rescan_s: float = RESCAN_S,
    ) -> None:
        self._account = account
        self._limit_capability = limit_capability
        self._names = names
        self._granted_memory = granted_memory
        self._logs = container_logs
        self._tell = tell
        self._rescan_s = rescan_s
        self._folders = PodFolders(cgroup_root)
        self._holders: set[Path] = set()
        self._pods: dict[str, LimitedPod] = {}
        self._uids: dict[Path, str] = {}
        self._logged: dict[str, str] = {}
        self._unnamed: dict[str, str] = {}
        self._workers: PerCardWorkers | None = None
        self._passes = Stepper(self._pass)
        self._dirty: set[str] = set()
        self._account_changed = True
        self._rescans = Stepper(self._rescan_again)
        self._watch = CgroupWatch(self._on_folder, self._rescans.wake)
        self.faults = 0
        self.repaired = 0
        account.subscribe(self._on_account)

    @property
    def problem(self) -> str | None:
        """Why new cgroups are not seen at once; None while they are."""
        return self._watch.problem

    def list_limits(self) -> Iterator[ContainerLimit]:
        for pod in self._pods.values():
            yield from pod.limits.values()

    async def run(self) -> None:
        driver = self._limit_capability.driver
        if driver is None:
            return
        self._workers = PerCardWorkers(driver, self._on_outcome)
        self._watch.retry()
        with suppress(OSError):  # the next look reads them
            self._read_logs()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rescans.run())
                group.create_task(self._check_limits_repeatedly())
                group.create_task(self._passes.run())
        finally:
            self._watch.close()
            await self._workers.stop()

    # What happened; all of it only wakes the loop.

    def _on_account(self) -> None:
        self._account_changed = True
        self._passes.wake()

    def _on_folder(self, folder: Path, name: str) -> None:
        if folder == self._logs:
            self._on_log(name)
        elif folder in self._holders:
            uid = parse_pod_uid(name)
            if uid is None:
                self._rescans.wake()
            elif uid not in self._pods:
                # The kubelet wrote its checkpoint before it made the pod's cgroup.
                self._account.read_checkpoint()
                self._account_changed = True
            self._dirty.update({uid} if uid else ())
        elif folder in self._uids:
            self._dirty.add(self._uids[folder])
        self._passes.wake()

    def _on_log(self, name: str) -> None:
        entry = parse_log_name(name)
        if entry is None:
            return
        if (self._logs / name).is_symlink():
            self._logged[entry[0]] = entry[1]
            uid = self._unnamed.get(entry[0])
            if uid is not None:
                self._dirty.add(uid)
        else:
            self._logged.pop(entry[0], None)

    def _read_logs(self) -> None:
        """Learn which cgroup belongs to which container from the kubelet's existing links."""
        if not self._watch.watch(self._logs):
            return
        links = (path for path in self._logs.iterdir() if path.is_symlink())
        found = dict(entry for path in links if (entry := parse_log_name(path.name)) is not None)
        before, self._logged = self._logged, found
        self._dirty |= {self._unnamed[each] for each in found.keys() - before.keys() & self._unnamed.keys()}
        self._passes.wake()

    # One look.

    async def _pass(self) -> None:
        changed, self._account_changed = self._account_changed, False
        dirty, self._dirty = self._dirty, set()
        if changed:
            dirty |= self._follow_ledger()
        for uid in dirty & self._pods.keys():
            try:
                self._plan_pod(uid, self._pods[uid])
            except OSError as error:
                # Keep what is known of its cgroups; the next full rescan finds the differences.
                self._watch.record_read(error)
                asyncio.get_running_loop().call_later(BLIND_RESCAN_S, self._rescans.wake)
        for uid in set(self._unnamed.values()) - dirty if changed else ():
            if uid in self._pods:
                self._name(uid, self._pods[uid])

    async def _rescan_again(self) -> float:
        """Look for other cgroups, beside the quick passes."""
        unread: OSError | None = None
        try:
            await self._rescan()
        except OSError as error:
            unread = error
        self._watch.record_read(unread)
        return self._rescan_s if self.problem is None else min(self._rescan_s, BLIND_RESCAN_S)

    async def _rescan(self) -> None:
        """Find the pods that have other cgroups than were seen last."""
        self._watch.retry()
        if self._watch.problem is not None:
            # The kubelet wrote its checkpoint before it made the pod's cgroup. It may be unwatched, too.
            self._account.read_checkpoint()
        holders = set(await asyncio.to_thread(self._folders.list_parents))
        for gone in self._holders - holders:
            self._watch.unwatch(gone)
        self._holders = {folder for folder in holders if self._watch.watch(folder)}
        # In a thread: with hundreds of pods this takes milliseconds, and the kubelet may ask meanwhile.
        known = {uid: pod.folder for uid, pod in self._pods.items() if pod.folder is not None}
        found, unread = await asyncio.to_thread(read_container_cgroups, known)
        for uid, pod in self._pods.items():
            if pod.folder is None or (uid in found and pod.cgroups != found[uid]):
                self._dirty.add(uid)
        self._passes.wake()
        if unread is not None:
            raise unread
        if self._unnamed:
            self._read_logs()

    async def _check_limits_repeatedly(self) -> None:
        while True:
            await self._check_limits()
            await asyncio.sleep(self._rescan_s)

    async def _check_limits(self) -> None:
        """Read every limit, a few at a time, and set those that were changed."""
        self._limit_capability.probe_in_background()
        for number, uid in enumerate(list(self._pods)):
            if number % SLICE == 0:
                await asyncio.sleep(SLICE_S if number else 0)
            pod = self._pods.get(uid)
            for limit in pod.limits.values() if pod is not None else ():
                self._submit(limit, urgent=False)

    def _follow_ledger(self) -> set[str]:
        """Read what containers were given; return the pods that are new or were given something else."""
        regranted = set()
        granted = self._granted_memory.read()
        for uid, grants in granted.items():
            pod = self._pods.setdefault(uid, LimitedPod())
            if pod.grants is not grants:
                pod.grants = grants
                regranted.add(uid)
        for uid in self._pods.keys() - granted.keys():
            pod = self._pods.pop(uid)
            for cgroup in list(pod.cgroups):
                self._forget(pod, cgroup)
            self._leave(pod)
        return regranted

    def _plan_pod(self, uid: str, pod: LimitedPod) -> None:
        """Find the cgroups of a pod, and plan their limits."""
        if pod.folder is None or not pod.folder.is_dir():
            self._leave(pod)
            pod.folder = self._folders.find_pod(uid)
        if pod.folder is not None:
            # The watch comes first, so that no cgroup is missed between the two.
            self._watch.watch(pod.folder)
            self._uids[pod.folder] = uid
        found = list_container_cgroups(pod.folder) if pod.folder is not None else {}
        for cgroup in pod.cgroups.keys() - found.keys():
            self._forget(pod, cgroup)
        pod.cgroups = found
        for cgroup in found:
            self._plan(uid, pod, cgroup, self._container(uid, pod, cgroup))

    def _name(self, uid: str, pod: LimitedPod) -> None:
        """Plan the limits of cgroups whose container the pod's status now names."""
        names = self._names(uid)
        if names is pod.status_names:
            return
        pod.status_names = names
        for cgroup in pod.cgroups:
            if cgroup not in pod.container_names:
                container = self._container(uid, pod, cgroup)
                if container is not None:
                    self._plan(uid, pod, cgroup, container)

    def _container(self, uid: str, pod: LimitedPod, cgroup: Path) -> str | None:
        """Find the container of a cgroup; once known it is kept, even if the status names the next one."""
        known = pod.container_names.get(cgroup)
        if known is None:
            identifier = pod.cgroups[cgroup]
            known = self._names(uid).get(identifier) or self._logged.get(identifier)
            if known is None:
                self._unnamed[identifier] = uid
            else:
                self._unnamed.pop(identifier, None)
                pod.container_names[cgroup] = known
        return known

    def _leave(self, pod: LimitedPod) -> None:
        if pod.folder is not None:
            self._watch.unwatch(pod.folder)
            self._uids.pop(pod.folder, None)
            pod.folder = None

    def _forget(self, pod: LimitedPod, cgroup: Path) -> None:
        self._unnamed.pop(pod.cgroups.pop(cgroup), None)
        pod.container_names.pop(cgroup, None)
        for key in [key for key in pod.limits if key[0] == cgroup]:
            del pod.limits[key]
            if self._workers is not None:
                self._workers.discard(key[1], cgroup)

    def _plan(self, uid: str, pod: LimitedPod, cgroup: Path, container: str | None) -> None:
        """Compare what a cgroup should have with what is planned, and begin what differs."""
        planned = plan_limits(pod.grants, container)
        for uuid, want in planned.items():
            limit = pod.limits.get((cgroup, uuid))
            if limit is not None and limit.wanted == want and limit.container == container:
                continue
            if limit is None:
                limit = pod.limits[cgroup, uuid] = ContainerLimit(uid, container, uuid, cgroup, want)
            limit.container, limit.wanted, limit.failures = container, want, 0
            self._submit(limit, urgent=True)
        for key in [key for key in pod.limits if key[0] == cgroup and key[1] not in planned]:
            del pod.limits[key]

    def _submit(self, limit: ContainerLimit, *, urgent: bool) -> None:
        if self._workers is not None and self._limit_capability.get_support(limit.uuid).can_limit:
            self._workers.submit(limit.uuid, LimitJob(limit.cgroup, limit.wanted), urgent=urgent)

    # What became of it.

    def _find(self, uuid: str, cgroup: Path) -> ContainerLimit | None:
        uid = self._uids.get(cgroup.parent)
        pod = self._pods.get(uid) if uid is not None else None
        return pod.limits.get((cgroup, uuid)) if pod is not None else None

    def _on_outcome(self, uuid: str, outcome: LimitOutcome) -> None:
        limit = self._find(uuid, outcome.cgroup)
        if limit is None:
            return
        before, limit.outcome = limit.outcome, outcome
        if outcome.fault is None:
            self._record_limit(limit, before, outcome)
        elif outcome.fault == "gone":
            limit.outcome = before
            self._dirty.add(limit.uid)
            self._passes.wake()
        else:
            self._not_held(limit, before, outcome)

    def _record_limit(
        self, limit: ContainerLimit, before: LimitOutcome | None, outcome: LimitOutcome
    ) -> None:
        reading = outcome.reading
        hard_mib = reading.hard_mib if reading is not None else None
        limit.failures = 0
        if not limit.is_in_force:
            # The limit was planned again while the driver worked; a job for the new plan is queued.
            return
        if before is None or before.fault is not None or before.reading is None:
            log.info("memory limit in force", **limit.log_fields, mib=hard_mib)
        elif before.reading.hard_mib != outcome.was_mib:
            self.repaired += 1
            log.warning("memory limit set again", **limit.log_fields, mib=hard_mib, stood=outcome.was_mib)

    def _not_held(self, limit: ContainerLimit, before: LimitOutcome | None, outcome: LimitOutcome) -> None:
        self.faults += 1
        limit.failures += 1
        if before is None or before.problem != outcome.problem:
            log.warning("memory limit not in force", **limit.log_fields, error=outcome.problem)
        final = outcome.fault in {"refused", "unsupported", "forbidden"}
        if limit.failures == (1 if final else TELL_AFTER) and limit.container is not None:
            self._tell(limit.uid, limit.container, outcome.problem)
        if outcome.fault in {"unsupported", "forbidden"}:
            self._limit_capability.probe_in_background()
        elif outcome.fault == "failed":
            delay_s = min(LONGEST_RETRY_S, RETRY_S * 2 ** min(limit.failures - 1, 10))
            asyncio.get_running_loop().call_later(delay_s, self._again, limit)

    def _again(self, limit: ContainerLimit) -> None:
        if self._find(limit.uuid, limit.cgroup) is limit and not limit.is_in_force:
            self._submit(limit, urgent=True)
