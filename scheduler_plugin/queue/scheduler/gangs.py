"""Gangs: pods that are admitted together or not at all. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from allocator.errors import shown
from allocator.names import POD_GANG_SIZE
from scheduler_plugin.cache.gang_names import MAX_GANG
from scheduler_plugin.cache.pod_groups import GroupKey, PodGroups
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.queued_pods import Gang, GangState, Phase, QueuedPod, make_gang_uid
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.scheduler.equivalence_backoff import EquivalenceBackoff, make_gang_template


class Gangs:
    """All gangs. A gang waits as a single workload in its queue once all of its pods are ready.

    Attributes:
        equivalence_backoff: Gangs that are held back after an equivalent one was refused.
    """

    def __init__(
        self, pods: Mapping[str, QueuedPod], queues: Queues, pod_groups: PodGroups[PodRecord]
    ) -> None:
        self._queued_pods = pods
        self._queues = queues
        self._pod_groups = pod_groups
        self._outside: dict[str, GroupKey] = {}
        self._known: dict[str, Gang] = {}
        self._gangs_by_succeeded: dict[str, str] = {}
        self.equivalence_backoff: EquivalenceBackoff[Gang] = EquivalenceBackoff()

    def get(self, uid: str) -> Gang | None:
        return self._known.get(uid)

    def update_pod(self, pod: QueuedPod, *, ready: bool) -> None:
        """Add a pod to its gang, or update it."""
        gang = self._known.setdefault(pod.gang, Gang(pod.gang))
        gang.members[pod.uid] = None
        gang.group = pod.record.scheduling_group
        if ready:
            gang.ready_uids.add(pod.uid)
        else:
            gang.ready_uids.discard(pod.uid)
        if pod.phase is Phase.BOUND:
            gang.unbound.discard(pod.uid)
        self._update_waiting(gang)
        if gang.binding and pod.phase is Phase.BOUND and not gang.unbound:
            gang.binding = False
            for other in self.equivalence_backoff.record_binding(gang):
                self._update_waiting(other)

    def move_pod(self, pod: QueuedPod, gang: str) -> None:
        if pod.gang and pod.queue_info.gang != gang:
            self.remove_pod(pod)

    def remove_pod(self, pod: QueuedPod, *, succeeded: bool = False) -> None:
        """Remove a pod from its gang; a succeeded pod still counts as bound, because it is not replaced."""
        gang = self._known.get(pod.gang)
        if gang is None:
            return
        gang.succeeded += succeeded
        gang.members.pop(pod.uid, None)
        gang.ready_uids.discard(pod.uid)
        gang.unbound.discard(pod.uid)
        self._update_waiting(gang)
        if not gang.unbound:
            # Its last pod without a node was not bound, but is gone.
            gang.binding = False
        if not gang.members:
            self.equivalence_backoff.remove(gang)
            self._forget_if_unused(gang)

    def record_success(self, uid: str, gang_uid: str, owner: str) -> None:
        """Record that a pod has succeeded; it counts for its gang even if all other pods are made again."""
        if uid not in self._gangs_by_succeeded:
            self._gangs_by_succeeded[uid] = gang_uid
            gang = self._known.setdefault(gang_uid, Gang(gang_uid))
            gang.succeeded_owners[uid] = owner
            self._update_waiting(gang)

    def forget_success(self, uid: str) -> None:
        """Forget a deleted pod that had succeeded; it counts as long as other pods of its run exist."""
        gang = self._known.get(self._gangs_by_succeeded.pop(uid, ""))
        if gang is not None:
            del gang.succeeded_owners[uid]
            self._update_waiting(gang)
            self._forget_if_unused(gang)

    def _forget_if_unused(self, gang: Gang) -> None:
        if not gang.members and not gang.succeeded_owners:
            del self._known[gang.uid]

    def set_outside(self, uid: str, group: GroupKey | None) -> None:
        """Set the PodGroup of a pod that is in no queue, None for none: its gang's size depends on it."""
        before = self._outside.pop(uid, None)
        if before is not None:
            self.update_group(before)
        if group is not None:
            self._outside[uid] = group
            self.update_group(group)

    @property
    def outside_uids(self) -> Collection[str]:
        """UIDs of the pods that name a PodGroup and are in no queue."""
        return self._outside.keys()

    def count_missing(self, gang: Gang) -> int:
        """Count the pods that kube-scheduler lacks for the minCount of a PodGroup: it tries none without."""
        if not self._pod_groups.ends_together(gang.group):
            return 0
        counted = sum(self._queued_pods[uid].record.is_counted_in_group for uid in gang.members)
        return max(0, gang.size - counted)

    def ends_together(self, gang: Gang) -> bool:
        """Return True unless the pods of a gang are known to be of use without each other."""
        return gang.group is None or self._pod_groups.ends_together(gang.group, gang.size)

    def starts_one_by_one(self, gang: Gang) -> bool:
        """Return True for a PodGroup whose pods need only lose their gates together."""
        return gang.group is not None and not self._pod_groups.ends_together(gang.group)

    def update_group(self, key: GroupKey) -> None:
        """Process the gang of a PodGroup again, because that or a pod of it has changed."""
        gang = self._known.get(make_gang_uid(*key))
        if gang is not None:
            self._update_waiting(gang)

    @property
    def succeeded_uids(self) -> Collection[str]:
        """UIDs of the pods that have succeeded and still exist."""
        return self._gangs_by_succeeded.keys()

    def record_admission(self, uid: str, now: float) -> None:
        """Record that a workload was admitted, which may be a gang's."""
        gang = self._known.get(uid)
        if gang is not None:
            # The rest of a gang has the time that the gang had.
            gang.countdown_since = now if gang.countdown_since is None else gang.countdown_since
            gang.waiting_queue = ""
            gang.unbound |= gang.ready_uids
            gang.ready_uids = {uid for uid in gang.ready_uids if self._queued_pods[uid].phase is Phase.GATED}
            gang.binding = True
            self.equivalence_backoff.record_admission(gang, now)

    def record_unschedulable(self, pod: QueuedPod, now: float) -> None:
        self._record_gang_refusal(self._known[pod.gang], now)

    def find_again(self, now: float) -> None:
        """Rebuild the state of gangs as after a restart: unbound pods have `gangWithin` from now."""
        for gang in self._known.values():
            if gang.countdown_since is not None:
                gang.countdown_since = now
                self._record_stay(gang)

    def retry_due(self, now: float) -> None:
        for gang in self.equivalence_backoff.pop_due(now):
            self._update_waiting(gang)

    def list_waiting(self) -> Iterator[Gang]:
        return (gang for gang in self._known.values() if gang.waiting_queue)

    def list_half_admitted(self) -> list[tuple[str, QueuedWorkload[Needs]]]:
        """List queue and workload of partly admitted gangs whose rest can be admitted, the oldest first."""
        gangs = [gang for gang in self.list_waiting() if gang.state is GangState.IN_PART]
        workloads = [
            (gang.waiting_queue, self._queues[gang.waiting_queue].waiting.get(gang.uid)) for gang in gangs
        ]
        return sorted(
            ((queue, workload) for queue, workload in workloads if workload is not None),
            key=lambda each: each[1].age_key,
        )

    def find_half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[QueuedPod], str]]:
        """Give the pods of gangs that have been partly bound for `within_s`, and why they must go.

        They are given again after each further `within_s`, because the API server may have refused their
        removal.
        """
        for gang in list(self._known.values()):
            if gang.countdown_since is None or now - gang.countdown_since < within_s:
                continue
            self._record_stay(gang)
            if gang.countdown_since is None:
                continue
            gang.countdown_since = now
            pods = [self._queued_pods[uid] for uid in gang.members]
            late = [pod for pod in pods if pod.phase is Phase.ADMITTED]
            admitted = [pod for pod in pods if pod.phase is not Phase.GATED]
            # As in what is said of a gang that waits, pods of its PodGroup that are in no queue count.
            counted = (
                self._pod_groups.list_counted(gang.group) if gang.group else [pod.record for pod in pods]
            )
            bound, size = sum(bool(pod.node) for pod in counted), max(gang.size + gang.outside, len(counted))
            # A bound pod that nobody makes again would be lost; it keeps its room, and nothing is said of it.
            going = [
                each
                for each in (late if gang.state is GangState.WHOLE else admitted)
                if each.can_be_removed or _has_room(each)
            ]
            if any(each.phase is Phase.BOUND for each in going):
                self.begin_removal(gang.uid, now)
            if going:
                self._record_gang_refusal(gang, now)
                yield going, f"{bound} of {size} pods of its gang are bound after {within_s:g} s"

    def begin_removal(self, uid: str, now: float) -> None:
        """Record that the bound pods of a gang are being removed; no pod joins it until they are gone."""
        gang = self._known.get(uid)
        if gang is not None and self.ends_together(gang):
            gang.state, gang.countdown_since = GangState.LEAVING, now
            self._update_waiting(gang)

    def record_refused_removal(self, pod: QueuedPod) -> None:
        """Record that the API server refused to remove a bound pod; others may join it until the next try."""
        gang = self._known.get(pod.gang)
        if gang is not None:
            self._record_stay(gang)

    def _record_stay(self, gang: Gang) -> None:
        """Record that the remaining pods of a gang are not being removed, as far as is known."""
        if gang.state is GangState.LEAVING:
            gang.state = GangState.IN_PART
            self._update_waiting(gang)

    def _record_gang_refusal(self, gang: Gang, now: float) -> None:
        if self.equivalence_backoff.record_refusal(gang, now):
            for other in list(self._known.values()):
                if other.waiting_queue and other.template == gang.template:
                    self._update_waiting(other)

    def _update_state(self, gang: Gang, pods: Sequence[QueuedPod]) -> None:
        """Compute a gang's state, how many of its pods have succeeded, and whether a countdown runs."""
        owners = {pod.queue_info.owner for pod in pods if pod.queue_info.has_controller}
        kept = sum(owner in owners for owner in gang.succeeded_owners.values())
        if all(pod.phase is Phase.GATED for pod in pods):
            gang.state, gang.countdown_since = GangState.WAITING, None
            gang.unbound.clear()
            gang.succeeded = kept
        elif gang.state is not GangState.LEAVING:
            behind = [pod for pod in pods if pod.phase is not Phase.BOUND]
            # In the place of a pod that is being deleted another one may be there already.
            bound = sum(pod.phase is Phase.BOUND and not pod.queue_info.ending for pod in pods)
            gang.state = GangState.IN_PART
            gang.succeeded = max(gang.succeeded, kept)
            if bound + gang.succeeded >= gang.size:
                gang.state = GangState.WHOLE
                behind = [pod for pod in behind if pod.phase is Phase.ADMITTED]
            if not behind:
                gang.countdown_since = None
            elif gang.countdown_since is None:
                gang.countdown_since = min(pod.admitted_at for pod in behind)

    def _update_waiting(self, gang: Gang) -> None:
        """Queue a gang as one workload once all of its pods are ready, and its rest once all of that is."""
        pods = [self._queued_pods[uid] for uid in gang.members]
        admitted = [pod for pod in pods if pod.phase is not Phase.GATED]
        wrong_group = "" if gang.group is None else self._read_group(gang, gang.group)
        if gang.group is None:
            gang.size, gang.outside = pods[0].queue_info.gang_size if pods else 0, 0
        self._update_state(gang, pods)
        gang.fault = gang.explain_disagreement(pods) or wrong_group
        # What is made again in the place of pods that end comes before they have.
        count = sum(not pod.queue_info.ending for pod in pods)
        if not gang.fault and gang.group is None and count > gang.size:
            gang.fault = f"it has {count} pods and {POD_GANG_SIZE} is {gang.size}"
        goes = bool(pods) and not gang.fault
        is_complete = len(gang.ready_uids) == len(pods) and len(pods) + gang.succeeded >= gang.size
        goes = goes and (is_complete or self._can_join(gang, pods, admitted))
        goes = goes and not self.count_missing(gang)
        workload = self._make_workload(gang, pods) if goes else None
        if workload is not None:
            gang.wait_start = min(pod.wait_start for pod in pods if pod.uid in gang.ready_uids)
        self._queues.set_waiting(gang, pods[0].queue_info.queue if pods else "", workload)

    def _read_group(self, gang: Gang, key: GroupKey) -> str:
        """Read the size of a gang from its PodGroup; return why kube-scheduler would try none of its pods.

        kube-scheduler counts all pods of the PodGroup, also those that ask for no cards or are in no queue.
        Without a PodGroup the size stays as it was.
        """
        groups = self._pod_groups
        if missing := groups.explain_missing(key):
            return f"{missing}: kube-scheduler tries no pod of it before it is there"
        counted = groups.list_counted(key)
        outside = [pod for pod in counted if pod.uid not in gang.members]
        least, name = groups.get_min_count(key), shown(key[1])
        gang.outside = min(len(outside), least - 1)
        gang.size = least - gang.outside
        if least > MAX_GANG:
            return f"minCount of PodGroup {name} is {least}; allowed: 1 to {MAX_GANG}"
        said = {self._queued_pods[uid].queue_info.gang_size for uid in gang.members} - {0}
        if said and not groups.ends_together(key):
            # kube-controller-manager makes such a PodGroup for every Job, also where the pods ask for more.
            least = gang.size = max(said)
            gang.outside = 0
        if said - {least}:
            both = f"annotation {POD_GANG_SIZE} is {min(said - {least})}, and PodGroup {name}"
            return f"{both} lets {least} pods start together; allowed: the same, or no annotation"
        gated = next((pod for pod in outside if pod.is_gated and not pod.node), None)
        if gated is not None:
            held = f"pod {gated.name} of PodGroup {name} has a scheduling gate"
            return f"{held}: kube-scheduler tries no pod of it before that is gone"
        return groups.explain_disagreement(key, counted)

    def _can_join(self, gang: Gang, pods: Sequence[QueuedPod], admitted: Sequence[QueuedPod]) -> bool:
        """Return True if the ready pods may join the pods of their gang that were admitted before.

        Pods join a WHOLE gang one by one; in other gangs, and in PodGroups, the rest goes together.
        """
        if not gang.ready_uids or gang.state is GangState.LEAVING:
            return False
        one_by_one = gang.state is GangState.WHOLE and gang.group is None
        rest = one_by_one or len(gang.ready_uids) + len(admitted) == len(pods)
        return rest and any(not pod.queue_info.ending for pod in admitted)

    def _make_workload(self, gang: Gang, pods: list[QueuedPod]) -> QueuedWorkload[Needs] | None:
        """Make the workload of the ready pods; None if equivalent gangs are held back."""
        workload = gang.make_workload(pods)
        gang.waiting_since = workload.waiting_since
        if gang.state is GangState.IN_PART:
            # Its rest, which asks for less, must not wait for others, nor make others wait that ask for that.
            if gang.template is None:
                self.equivalence_backoff.set_template(gang, make_gang_template(pods))
            return workload
        self.equivalence_backoff.set_template(
            gang, make_gang_template([pod for pod in pods if pod.uid in gang.ready_uids])
        )
        return None if self.equivalence_backoff.is_held_back(gang) else workload


def _has_room(pod: QueuedPod) -> bool:
    return pod.phase is Phase.ADMITTED and not pod.capacity_freed
