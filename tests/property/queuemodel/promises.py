"""The promises of docs/queue/measured.md: some are asked of every write, others of a calm world."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from scheduler_plugin.queue.cache.queued_pods import GangState
from scheduler_plugin.queue.config.queues import QueueConfig, parse_config
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.scheduler.admission import AdmittedWorkload
from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.queue.scheduler.reclaim import ReclaimPlan
from tests.property.kernel.api import named_node
from tests.property.kernel.history import ViolationError

from .cluster import GRACE_S, Cluster
from .process import Process
from .truth import Group, Job, Truth, alike, count_slots_left, is_blocked, jobs
from .world import DATA, RACK, Pod, World

START_S: Final = 420.0
"""Who fits starts within this time: the longest pause after refusals is 300 s."""

EVICTED_FOR_S: Final = GRACE_S + 60.0
"""For whom others are evicted starts within this time."""

OLD_S: Final = 60.0
"""A configuration so long ago may still be what an admission was decided by."""

MESSAGE: Final = 1024
"""Characters that an Event may have."""

MOST_CANDIDATES: Final = 9
"""Of more borrowed pods not all sets are looked at."""

ADMISSIONS: Final = 4
"""Times that a pod may be admitted within a minute: pauses after refusals are 10 s, 20 s and so on."""

IN_VAIN: Final = 2
"""Rounds of evictions within ten minutes for a pod that kube-scheduler or the API server refuses."""


@dataclass(slots=True)
class Round:
    """Evictions for one pod or gang.

    Attributes:
        job: It.
        victims: UIDs of the pods.
        at: When, seconds.
        excused: Why it may have been in vain, empty for no reason.
    """

    job: Job
    victims: tuple[str, ...]
    at: float
    excused: str = ""


@dataclass(slots=True)
class Bounds:
    """How long things may take in this history.

    Attributes:
        gang_s: Of a gang between its first admit and its last Binding.
        oldest_s: Of the oldest pod of a queue that its own quota covers; infinite: some pods run for ever.
    """

    gang_s: float
    oldest_s: float


@dataclass(slots=True)
class Promises:
    """Watches one history.

    Attributes:
        calm: Nothing is disturbed from now on.
        judged: Rounds of evictions of which it could be told whether they are the fewest.
        judged_near: Releases away from data of which it could be told whether there was room near it.
    """

    world: World
    cluster: Cluster
    process: Process
    bounds: Bounds
    calm: bool = False
    calm_since: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    _configs: list[tuple[float, QueueConfig]] = field(default_factory=list)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _blocked: dict[str, tuple[float, float]] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _troubled: set[str] = field(default_factory=set)
    _checked: int = 0
    judged: int = 0
    judged_near: int = 0
    _releases: dict[str, list[float]] = field(default_factory=dict)

    # At any time.

    def configured(self, text: str) -> None:
        self._configs.append((self.world.now, parse_config("model", text)))

    def wrote(self, verb: str, pod: Pod) -> None:
        """A write was carried out: no admission, and no Binding of batch mode, exceeds a quota or a card."""
        if verb == "bind":
            self._check_cards(pod)
            self._check_slots(pod)
            if not pod.spec.batch:
                return
        elif not pod.counts or pod.node:
            return
        self._check_again(pod)
        configs = [config for at, config in self._configs[:-1] if self._next(at) > self.world.now - OLD_S]
        wrongs = [self._exceeded(config, pod) for config in [*configs, self._configs[-1][1]]]
        if all(wrongs):
            raise ViolationError(f"the release of {pod.name} exceeds a quota: {wrongs[-1]}")

    def _check_cards(self, pod: Pod) -> None:
        free = self.world.free(pod.node)
        if min(free) < 0:
            raise ViolationError(f"{pod.name} is bound to {pod.node}, which has {free} free on its cards")

    def _check_slots(self, pod: Pod) -> None:
        """No node has more pods than slots, but for those that nobody held back."""
        left = count_slots_left(self.world, self.process.config)
        on = [each for each in self.world.pods.values() if each.node == pod.node]
        if left.get(pod.node, 0) < 0 and all(each.spec.gated for each in on):
            names = ", ".join(each.name for each in on)
            raise ViolationError(
                f"{pod.name} is bound to {pod.node}, which has {left[pod.node]} slots left: {names}"
            )

    def admitted(self, release: AdmittedWorkload, taken: Collection[str]) -> None:
        """A pod is about to be released: in its turn, and near its data, if there is room.

        Args:
            taken: Nodes for which others were released in the same round.
        """
        self._check_turn(release)
        self._check_stage(release)
        pods = [pod for pod in self.world.pods.values() if pod.uid == release.members[0].uid]
        quiet = self.process.knows_all and self.cluster.is_still
        if len(release.members) > 1 or not pods or not pods[0].spec.data or not quiet:
            return
        near = [node for node in self.world.nodes if self._has_near(node, pods[0].spec.data)]
        moving = any(pod.ending or (pod.counts and not pod.node) for pod in self.world.pods.values())
        if release.members[0].node in near or moving or self._kept_any():
            return
        self.judged_near += 1
        truth = Truth(self.world, self.cluster, self.process.config)
        member = release.members[0]
        # Nodes that have rejected one like it come last for a while.
        passed = {*taken, *self.process.queue.admission.rejected_nodes._until.get(member.requirements, ())}
        better = [node for node in near if node not in passed and truth.fits_on(pods[0], node)]
        if better:
            where = release.members[0].node
            raise ViolationError(f"{pods[0].name} is released for {where}, its data is near {better}")

    def _check_turn(self, release: AdmittedWorkload) -> None:
        """A strict queue lets nobody go before its oldest, but for the rest of a gang that runs in part."""
        queue = self.process.queue.queues[release.queue]
        gang = self.process.queue.gangs.get(release.workload.uid)
        if gang is not None and gang.state is GangState.IN_PART:
            return
        if self.process.config.queues[release.queue].queueing_strategy != "StrictFIFO":
            return
        waits = [each for each in queue.waiting if not queue.waiting.waits_for_stage(each.uid)]
        older = [each.uid for each in waits if each.age_key < release.workload.age_key]
        if older:
            raise ViolationError(f"{release.workload.uid} is released before {older} of its strict queue")

    def _check_stage(self, release: AdmittedWorkload) -> None:
        """A second stage begins when all of the first have succeeded; a process knows of what it has seen."""
        uids = {member.uid for member in release.members}
        for pod in self.world.pods.values():
            stage = self.world.stages.get(pod.job)
            if pod.uid not in uids or pod.spec.data or stage is None:
                continue
            needed = stage.size if self.process.began <= stage.since else 1
            if stage.succeeded < needed:
                raise ViolationError(
                    f"{pod.name} is released, {stage.succeeded} of {needed} pods of its first stage succeeded"
                )

    def _has_near(self, node: str, data: str) -> bool:
        labels = self.world.labels
        rack = labels[node][RACK]
        beside = set().union(*(each for name, each in labels.items() if each[RACK] == rack))
        return {f"{DATA}{name}" for name in data.split(",")} <= beside

    def _check_again(self, pod: Pod) -> None:
        """Nobody is admitted again and again, taken back each time."""
        times = self._releases.setdefault(pod.uid, [])
        times.append(self.world.now)
        if self.calm and sum(at > max(self.calm_since, self.world.now - 60.0) for at in times) > ADMISSIONS:
            raise ViolationError(f"{pod.name} was admitted more than {ADMISSIONS} times within a minute")

    def _next(self, at: float) -> float:
        """When the configuration after one came into force."""
        return min((other for other, _ in self._configs if other > at), default=self.world.now)

    def _exceeded(self, config: QueueConfig, pod: Pod) -> str:
        truth = Truth(self.world, self.cluster, config)
        blocked = [each for each in self.world.pods.values() if each.counts and is_blocked(self.world, each)]
        for each in blocked:
            if each.spec.queue in truth.used:
                truth.used[each.spec.queue] += each.spec.units
        for each in self.world.pods.values():
            if each.loose > self.world.now - OLD_S and each.counts and each.spec.queue in truth.used:
                # When the admission was decided the queue did not know of it, perhaps.
                truth.used[each.spec.queue] -= each.spec.units
        return truth.exceeds(pod.spec.queue)

    def reclaimed(self, queue: Queue, reclaim: ReclaimPlan, *, alone: bool) -> None:
        """Pods are about to be evicted: they are the fewest, and those who borrowed."""
        job = next((job for job in jobs(self.world) if job.uid == reclaim.uid), None)
        if job is None or not reclaim.victims:
            return
        victims = tuple(sorted(victim.uid for victim in reclaim.victims))
        self._check_gangs(victims)
        self.rounds.append(Round(job, victims, self.world.now))
        if not self.calm:
            self._troubled.add(job.uid)
        truth = Truth(self.world, self.cluster, self.process.config)
        moving = any(pod.ending or (pod.counts and not pod.node) for pod in self.world.pods.values())
        kept = {
            *queue.capacity.reservations.workload_uids,
            *(uid for uid, _ in queue.queues.reserved_quota.values()),
        } - {job.uid}
        # Whom the API server has refused to evict is left out for a while.
        protected = self.process.controller._reclaimer._borrowed._protected
        spared = any(protected.is_paused(pod.uid) for pod in self.world.pods.values())
        # Only pods of its own are waited for that have ended.
        spared |= self.world.ends_claims(OLD_S)
        disturbed = moving or kept or not alone or self.world.budgets or self.world.was_skewed or spared
        if disturbed or not truth.settled or not self.process.knows_what_runs:
            return
        self.judged += 1
        priority = min(pod.spec.priority for pod in job.pods)
        may_go = truth.borrowed(job.queue, priority)
        wrong = set(victims) - _uids(may_go)
        if wrong:
            raise ViolationError(f"{sorted(wrong)} are evicted for {reclaim.uid} and have not borrowed")
        if not self._is_enough(job, victims):
            raise ViolationError(
                f"{victims} are evicted for {reclaim.uid} in vain: that does not let it start"
            )
        if len(may_go) <= MOST_CANDIDATES:
            self._check_fewest(job, victims, may_go)

    def _check_gangs(self, victims: Collection[str]) -> None:
        """No gang loses a part only."""
        pods = self.world.pods.values()
        gangs = {pod.gang for pod in pods if pod.uid in victims and pod.gang}
        pending = self.process.controller._reclaimer._borrowed.pending.values()
        going = set(victims).union(*(each.uids for each in pending))
        stay = [pod.name for pod in pods if pod.gang in gangs and pod.node and not (pod.ended or pod.ending)]
        stay = [name for name in stay if self.world.pods[name].uid not in going]
        if stay and self.process.knows_what_runs:
            raise ViolationError(f"{sorted(victims)} are evicted, and {stay} of their gang stay")

    def _check_fewest(self, job: Job, victims: tuple[str, ...], may_go: Sequence[Group]) -> None:
        """Fewer would not do; nor would others that come before these, for a single pod.

        Args:
            may_go: All that may go, those that should go last last.
        """
        is_gang = len(job.pods) > 1
        last = [at for at, group in enumerate(may_go) if group[0].uid in victims][::-1]
        for count in range(len(may_go) + 1):
            for others in combinations(enumerate(may_go), count):
                uids = tuple(_uids(group for _, group in others))
                fewer = len(uids) < len(victims) - (1 if is_gang else 0)
                before = len(uids) == len(victims) and not is_gang and [at for at, _ in others][::-1] < last
                if (fewer or before) and self._is_enough(job, uids):
                    what = "would do" if fewer else "come before them"
                    raise ViolationError(f"{victims} are evicted for {job.uid}, {uids} {what}")

    def _is_enough(self, job: Job, gone: tuple[str, ...]) -> bool:
        """Whether a job can start without some pods, even if they are made again within their own quotas."""
        before = Truth(self.world, self.cluster, self.process.config, job.uids)
        truth = Truth(self.world, self.cluster, self.process.config, (*gone, *job.uids))
        for name, used in before.used.items():
            nominal = self.process.config.queues[name].nominal_quota or 0
            truth.used[name] = max(truth.used[name], min(used, nominal))
        return truth.allows(job.queue, job.units) and truth.has_room(job.pods)

    # While nothing is disturbed.

    def begin_calm(self) -> None:
        self.calm, self.calm_since = True, self.world.now
        self._since.clear()
        for each in self.rounds:
            each.excused = "trouble"

    def observe(self) -> None:
        """Look at the world: from time to time, not at every moment."""
        self._notice()
        if not self.calm:
            return
        now = Truth(self.world, self.cluster, self.process.config)
        lasting: set[tuple[str, str]] = set()
        for job in jobs(self.world):
            if any(not pod.waits for pod in job.pods):
                # Admitted, and on no node yet.
                truth = Truth(self.world, self.cluster, self.process.config, job.uids)
            else:
                truth = now
            for what, bound in self._wrong(job, truth):
                lasting.add((what, job.uid))
                self._lasts(what, job.uid, bound, f"{job.queue}, {job.units} units")
            if not truth.settled:
                # Somebody has no room: what others wait for is seen when that has been taken back.
                lasting |= {key for key in self._since if key[1] == job.uid}
        for gang, what in self._partial_gangs():
            lasting.add((what, gang))
            self._lasts(what, gang, self.bounds.gang_s, "")
        for key in [key for key in self._since if key not in lasting]:
            del self._since[key]
        self._check_rounds()
        self._check_said()
        if self.process.knows_all and self.cluster.is_still:
            self._check_counts()

    def _notice(self) -> None:
        """Remember whom kube-scheduler has refused."""
        now = self.world.now
        for pod in self.world.pods.values():
            if pod.spec.owner in self.world.blocked:
                first, _ = self._blocked.get(alike(pod), (now, now))
                self._blocked[alike(pod)] = (first, now + 20 + min(400.0, 2 * (now - first) + 20))
            for condition in pod.raw["status"].get("conditions", ()):
                if condition["status"] == "False":
                    self._refused.add(alike(pod))

    def _lasts(self, what: str, who: str, bound: float, more: str) -> None:
        since = self._since.setdefault((what, who), self.world.now)
        if self.world.now - since > bound:
            raise ViolationError(
                f"{who} ({more}) {what} for {self.world.now - since:.0f} s; {self._why(who)}"
            )

    def _why(self, uid: str) -> str:
        queue = self.process.queue
        found = [
            f"{each.name} {each.reason}: {each.message}"
            for each in status.explain_waiting(queue, self.world.now)
        ]
        return "; ".join(found)[:2000]

    def _wrong(self, job: Job, truth: Truth) -> list[tuple[str, float]]:
        """What must not last for a job, and how long it may."""
        form = self.process.config.queues.get(job.queue)
        if form is None or form.stop_policy != "None" or self._held(job):
            return []
        if any(self._is_odd(pod) or pod.uid in self.world.forbidden for pod in job.pods):
            return []
        if form.queueing_strategy == "StrictFIFO" and (
            self.world.was_skewed or job.uid != _oldest(self.world, job.queue)
        ):
            return []
        found = []
        start_s = START_S * (1 + self._refused_like(job))
        if not truth.settled:
            pass
        elif truth.allows(job.queue, job.units) and truth.has_room(job.pods) and not self._kept(job):
            found.append(("fits its own quota and a card and waits", start_s))
        elif self._could_reclaim(job, truth) and not self._kept(job):
            found.append(("could have what others borrowed and waits", start_s))
        if self.bounds.oldest_s < 1e9 and job.uid == self._first(truth, job.queue):
            found.append(("is the oldest that its own quota covers and waits", self.bounds.oldest_s))
        return found

    def _is_odd(self, pod: Pod) -> bool:
        """Tell whether a pod may wait for what its annotations say; its stage may be forgotten in between."""
        stage = self.world.stages.get(pod.job)
        if stage is None or pod.spec.data:
            return stage is None and bool(pod.spec.notes)
        return stage.succeeded < stage.size or self.process.began > stage.since

    def _refused_like(self, job: Job) -> int:
        """Gangs like it that cannot be admitted whole: each is tried in turn with the others."""
        pods = [pod for pod in self.world.pods.values() if pod.uid in self.world.forbidden and pod.gang]
        return len({pod.gang for pod in pods if alike(pod) == job.key})

    def _held(self, job: Job) -> bool:
        """Whether kube-scheduler refuses it, or has a moment ago: the pause is as long as it did, at most."""
        return self.world.now < self._blocked.get(job.key, (0.0, 0.0))[1]

    def _kept(self, job: Job) -> bool:
        """Whether something is kept for somebody else who waits long."""
        queue = self.process.queue
        others = [uid for uid in queue.capacity.reservations.workload_uids if uid != job.uid]
        return bool(others) or any(uid != job.uid for uid, _ in queue.queues.reserved_quota.values())

    def _could_reclaim(self, job: Job, truth: Truth) -> bool:
        if self.process.config.reclaim != "evict" or not truth.is_own(job.queue, job.units):
            return False
        if job.uid in self._troubled or job.rest or _find_named_node(job):
            return False
        if job.key in self._refused or self._is_behind_refused(job):
            return False
        form = self.process.config.queues[job.queue]
        if form.nominal_quota is None or self.cluster.silent:
            return False
        may_go = truth.borrowed(job.queue, min(pod.spec.priority for pod in job.pods))
        return self._is_enough(job, tuple(_uids(may_go)))

    def _is_behind_refused(self, job: Job) -> bool:
        """Tell whether kube-scheduler has refused an older pod of the queue that asks for the same."""
        pod = job.pods[0]
        asks = (pod.spec.queue, pod.spec.units, pod.spec.model)
        return any(
            each.waits
            and (each.spec.queue, each.spec.units, each.spec.model) == asks
            and each.created <= pod.created
            and alike(each) in self._refused
            for each in self.world.pods.values()
        )

    def _first(self, truth: Truth, queue: str) -> str:
        """UID of the oldest that waits and could run if all others ended."""
        form = self.process.config.queues[queue]
        found = [
            job
            for job in jobs(self.world)
            if job.queue == queue
            and self.world.forbidden.isdisjoint(job.uids)
            and not job.rest
            and not self._held(job)
            and (form.nominal_quota is None or job.units <= form.nominal_quota)
            and truth.fits_empty(job.pods)
        ]
        return min(found, key=lambda job: job.age).uid if found else ""

    def _partial_gangs(self) -> list[tuple[str, str]]:
        """Gangs of which a part is admitted, or bound, and not the rest; they may have run whole before."""
        gangs: dict[str, list[Pod]] = {}
        for pod in self.world.pods.values():
            if pod.gang and not pod.ended:
                gangs.setdefault(pod.gang, []).append(pod)
        found = []
        truth = Truth(self.world, self.cluster, self.process.config)
        for name, pods in gangs.items():
            out = [pod for pod in pods if pod.counts]
            rest = [pod for pod in pods if not pod.node]
            if not out or not rest or len(pods) != pods[0].spec.size or pods[0].spec.queue not in truth.used:
                continue
            form = self.process.config.queues[pods[0].spec.queue]
            if form.stop_policy != "None" or pods[0].spec.owner in self.world.budgets:
                continue
            waits = [pod for pod in rest if pod.waits]
            units = sum(pod.spec.units for pod in waits)
            blocked = self.world.now < self._blocked.get(alike(pods[0]), (0.0, 0.0))[1]
            blocked = blocked or any(pod.uid in self.world.forbidden for pod in waits)
            must_go = bool(pods[0].spec.owner)
            fits = truth.allows(form.name, units) and truth.has_room(waits) and not self._kept_any()
            if must_go or (fits and not blocked):
                # What is made again begins anew.
                first = min(pods, key=lambda pod: (pod.created, pod.uid))
                found.append((f"{name} with {first.uid}", "is admitted in part"))
        return found

    def _kept_any(self) -> bool:
        return bool(self.process.queue.capacity.reservations) or bool(
            self.process.queue.queues.reserved_quota
        )

    def _check_rounds(self) -> None:
        """For whom others were evicted starts soon, or who is older or has a claim does."""
        now = self.world.now
        for each in self.rounds:
            if each.excused or now - each.at < EVICTED_FOR_S:
                continue
            each.excused = "judged"
            pods = [self.world.pods.get(pod.name) for pod in each.job.pods]
            waits = [pod for pod in pods if pod is not None and pod.waits]
            stays = [pod for pod in self.world.pods.values() if pod.uid in each.victims]
            denied = not self.world.forbidden.isdisjoint(each.job.uids)
            if waits and not stays and alike(waits[0]) not in self._refused and not denied:
                older = [pod for pod in self.world.pods.values() if _took_since(pod, each)]
                if not older:
                    raise ViolationError(f"{each.victims} were evicted for {each.job.uid}, which waits still")
        for each in self.rounds:
            same = [other for other in self.rounds if other.job.key == each.job.key]
            near = [other for other in same if 0 <= other.at - each.at < 600 and each.at > self.calm_since]
            refused = all(is_blocked(self.world, pod) for pod in each.job.pods)
            if len(near) > IN_VAIN and (refused or not self.world.forbidden.isdisjoint(each.job.uids)):
                raise ViolationError(f"{len(near)} rounds of evictions for {each.job.key}, which is refused")

    def _check_said(self) -> None:
        """What people read is bounded, and nothing in it moves their cursor."""
        for said in self.process.said[self._checked :]:
            if len(said.message) > MESSAGE or not said.message.isprintable():
                raise ViolationError(f"an Event says {said.message[:80]!r}, {len(said.message)} characters")
        self._checked = len(self.process.said)

    def check_status(self) -> None:
        """`gpupack queue status` shows nothing that moves a cursor, and nothing without an end."""
        for each in status.explain_waiting(self.process.queue, self.world.now):
            if len(each.message) > MESSAGE or not each.message.isprintable():
                raise ViolationError(f"the status says {each.message[:80]!r}, {len(each.message)} characters")

    def _check_counts(self) -> None:
        queue, counted, there = self.process.queue, dict[str, int](), dict[str, int]()
        for queue_state in queue.queues:
            if queue_state.units:
                counted[queue_state.name] = queue_state.units
        for pod in self.world.pods.values():
            if pod.counts:
                there[pod.spec.queue] = there.get(pod.spec.queue, 0) + pod.spec.units
        if counted != there:
            raise ViolationError(f"the queue counts {counted}, there are {there}")


def _uids(groups: Iterable[Group]) -> set[str]:
    return {pod.uid for group in groups for pod in group}


def _find_named_node(job: Job) -> str:
    """Find the node for which a pod waits that nobody makes again: an admission named it; empty for none."""
    return named_node(job.pods[0].raw) if len(job.pods) == 1 and not job.pods[0].spec.owner else ""


def _took_since(pod: Pod, round_: Round) -> bool:
    """Tell whether an older pod of the lender's queue, or one with a claim, was bound since a round began."""
    is_older = pod.spec.queue == round_.job.queue and pod.created <= max(
        other.created for other in round_.job.pods
    )
    return (is_older or pod.spec.claims) and round_.at <= pod.bound < float("inf")


def _oldest(world: World, queue: str) -> str:
    return min((job for job in jobs(world) if job.queue == queue), key=lambda job: job.age).uid
