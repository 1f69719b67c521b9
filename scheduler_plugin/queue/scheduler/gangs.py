"""Gangs: pods that are admitted together or not at all. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from scheduler_plugin.queue.cache.queued_pods import Gang, GangState, Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.scheduler.equivalence_backoff import EquivalenceBackoff, make_gang_template


class Gangs:
    """All gangs. Each waits as one workload in its queue's queue, when all of its pods could.

    Args:
        pods: All pods by UID, kept up to date by the queue.
        queues: Whose queues they wait in.

    Attributes:
        equivalence_backoff: Gangs that are held back after one like them was refused.
    """

    def __init__(self, pods: Mapping[str, QueuedPod], queues: Queues) -> None:
        self._queued_pods = pods
        self._queues = queues
        self._known: dict[str, Gang] = {}
        self.equivalence_backoff: EquivalenceBackoff[Gang] = EquivalenceBackoff()

    def get(self, uid: str) -> Gang | None:
        """A gang by its UID, see `QueuedPod.gang`."""
        return self._known.get(uid)

    def update_pod(self, pod: QueuedPod, *, ready: bool) -> None:
        """Take a pod into its gang, or what is new about it.

        Args:
            ready: The pod could wait in a queue.
        """
        gang = self._known.setdefault(pod.gang, Gang(pod.gang))
        gang.members[pod.uid] = None
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
        """Take a pod out of its gang when it names another one now, or none."""
        if pod.gang and pod.queue_info.gang != gang:
            self.remove_pod(pod)

    def remove_pod(self, pod: QueuedPod, *, succeeded: bool = False) -> None:
        """Take a pod out of its gang; one that succeeded counts on as bound, for nobody makes it again."""
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
            del self._known[gang.uid]

    def record_admission(self, uid: str, now: float) -> None:
        """A workload was admitted; it may be one of a gang."""
        gang = self._known.get(uid)
        if gang is not None:
            # The rest of a gang has the time that the gang had.
            gang.behind_since = now if gang.behind_since is None else gang.behind_since
            gang.waiting_queue = ""
            gang.unbound |= gang.ready_uids
            gang.ready_uids = {uid for uid in gang.ready_uids if self._queued_pods[uid].phase is Phase.GATED}
            gang.binding = True
            self.equivalence_backoff.record_admission(gang, now)

    def record_unschedulable(self, pod: QueuedPod, now: float) -> None:
        """kube-scheduler found no node for an admitted pod: its gang keeps its room, others like it wait."""
        self._record_gang_refusal(self._known[pod.gang], now)

    def find_again(self, now: float) -> None:
        """Take gangs as a new process takes them: what is not bound has `gangWithin` from now."""
        for gang in self._known.values():
            if gang.behind_since is not None:
                gang.behind_since = now
                self._record_stay(gang)

    def retry_due(self, now: float) -> None:
        for gang in self.equivalence_backoff.pop_due(now):
            self._update_waiting(gang)

    def list_waiting(self) -> Iterator[Gang]:
        return (gang for gang in self._known.values() if gang.waiting_queue)

    def list_half_admitted(self) -> list[tuple[str, QueuedWorkload[Needs]]]:
        """Gangs of which a part is admitted, and the rest can be: queues and workloads, the oldest first."""
        gangs = [gang for gang in self.list_waiting() if gang.state is GangState.IN_PART]
        workloads = [
            (gang.waiting_queue, self._queues[gang.waiting_queue].waiting.get(gang.uid)) for gang in gangs
        ]
        return sorted(
            ((queue, workload) for queue, workload in workloads if workload is not None),
            key=lambda each: each[1].age_key,
        )

    def find_half_bound(self, now: float, within_s: float) -> Iterator[tuple[list[QueuedPod], str]]:
        """Pods of gangs that have been bound in part for so long, and why they must go.

        Such pods are named each time that so long has passed: the API server may have refused to let them go.
        """
        for gang in list(self._known.values()):
            if gang.behind_since is None or now - gang.behind_since < within_s:
                continue
            self._record_stay(gang)
            if gang.behind_since is None:
                continue
            gang.behind_since = now
            pods = [self._queued_pods[uid] for uid in gang.members]
            late = [pod for pod in pods if pod.phase is Phase.ADMITTED]
            admitted = [pod for pod in pods if pod.phase is not Phase.GATED]
            bound = sum(pod.phase is Phase.BOUND for pod in pods)
            size = pods[0].queue_info.gang_size
            # A bound pod that nobody makes again would be lost; it keeps its room, and nothing is said of it.
            going = [
                each
                for each in (late if gang.state is GangState.WHOLE else admitted)
                if (each.queue_info.has_controller and not each.queue_info.ending) or _has_room(each)
            ]
            if any(each.phase is Phase.BOUND for each in going):
                self.begin_removal(gang.uid, now)
            if going:
                self._record_gang_refusal(gang, now)
                yield going, f"{bound} of {size} pods of its gang are bound after {within_s:g} s"

    def begin_removal(self, uid: str, now: float) -> None:
        """Record that the bound pods of a gang are being removed: until they are gone none joins them."""
        gang = self._known.get(uid)
        if gang is not None:
            gang.state, gang.behind_since = GangState.LEAVING, now
            self._update_waiting(gang)

    def record_refused_removal(self, pod: QueuedPod) -> None:
        """Record that the API server refused to remove a bound pod: until the next try others may join it."""
        gang = self._known.get(pod.gang)
        if gang is not None:
            self._record_stay(gang)

    def _record_stay(self, gang: Gang) -> None:
        """Record that what is left of a gang is not being removed, as far as is known."""
        if gang.state is GangState.LEAVING:
            gang.state = GangState.IN_PART
            self._update_waiting(gang)

    def _record_gang_refusal(self, gang: Gang, now: float) -> None:
        if self.equivalence_backoff.record_refusal(gang, now):
            for other in list(self._known.values()):
                if other.waiting_queue and other.template == gang.template:
                    self._update_waiting(other)

    def _update_state(self, gang: Gang, pods: Sequence[QueuedPod]) -> None:
        """Find a gang's state, and since when something of it is behind."""
        if all(pod.phase is Phase.GATED for pod in pods):
            gang.state, gang.behind_since = GangState.WAITING, None
            gang.unbound.clear()
            gang.succeeded = 0
        elif gang.state is not GangState.LEAVING:
            behind = [pod for pod in pods if pod.phase is not Phase.BOUND]
            # In the place of a pod that is being deleted another one may be there already.
            bound = sum(pod.phase is Phase.BOUND and not pod.queue_info.ending for pod in pods)
            gang.state = GangState.IN_PART
            if bound + gang.succeeded >= pods[0].queue_info.gang_size:
                gang.state = GangState.WHOLE
                behind = [pod for pod in behind if pod.phase is Phase.ADMITTED]
            if not behind:
                gang.behind_since = None
            elif gang.behind_since is None:
                gang.behind_since = min(pod.admitted_at for pod in behind)

    def _update_waiting(self, gang: Gang) -> None:
        """Let a gang wait as one workload when all of its pods can, and its rest when all of that can."""
        pods = [self._queued_pods[uid] for uid in gang.members]
        admitted = [pod for pod in pods if pod.phase is not Phase.GATED]
        size = pods[0].queue_info.gang_size if pods else 0
        self._update_state(gang, pods)
        gang.fault = gang.explain_disagreement(pods)
        # What is made again in the place of pods that end comes before they have.
        count = sum(not pod.queue_info.ending for pod in pods)
        if not gang.fault and count > size:
            gang.fault = f"it has {count} pods and gpupack.io/gang-size is {size}"
        goes = bool(pods) and not gang.fault
        is_complete = len(gang.ready_uids) == len(pods) == size
        goes = goes and (is_complete or self._can_join(gang, pods, admitted))
        workload = self._make_workload(gang, pods) if goes else None
        if gang.waiting_queue:
            waiting = self._queues[gang.waiting_queue].waiting
            if (
                workload is not None
                and waiting.get(gang.uid) == workload
                and gang.waiting_queue == pods[0].queue_info.queue
            ):
                return
            waiting.remove(gang.uid)
            self._queues.forget_if_unused(gang.waiting_queue)
            gang.waiting_queue = ""
        if workload is not None:
            gang.waiting_queue = pods[0].queue_info.queue
            gang.wait_start = min(pod.wait_start for pod in pods if pod.uid in gang.ready_uids)
            self._queues[gang.waiting_queue].waiting.add(workload)

    def _can_join(self, gang: Gang, pods: Sequence[QueuedPod], admitted: Sequence[QueuedPod]) -> bool:
        """Tell whether those that are ready may join the others, which were admitted before.

        To a gang that is whole they go one by one. In other gangs the rest goes together.
        """
        if not gang.ready_uids or gang.state is GangState.LEAVING:
            return False
        rest = gang.state is GangState.WHOLE or len(gang.ready_uids) + len(admitted) == len(pods)
        return rest and any(not pod.queue_info.ending for pod in admitted)

    def _make_workload(self, gang: Gang, pods: list[QueuedPod]) -> QueuedWorkload[Needs] | None:
        """The workload that waits for those that are ready; None where others like it were refused."""
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
    """Tell whether a pod has room that it does not use yet."""
    return pod.phase is Phase.ADMITTED and not pod.capacity_freed
