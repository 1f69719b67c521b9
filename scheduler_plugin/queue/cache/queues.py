"""The queues: their waiting workloads, what they have, and what they may have. Pure."""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.queue.cache.queued_pods import Gang, QueuedPod
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, WaitingWorkloads
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.config.queues import QueueConfig, QueueForm
from scheduler_plugin.queue.config.quota import Cohort, QuotaState, find_cohorts
from scheduler_plugin.scheduling.policies.fractions import CPU, GPU, MEMORY
from scheduler_plugin.scheduling.policies.remaining import find_dominant_class


class QueueState:
    """A queue with what waits in it and what is charged to it.

    Attributes:
        form: Its configuration; None: pods name the queue but it is not configured, so they wait.
        admitted: What its pods are charged that were admitted and have not ended, by UID.
        claimed: Units by UID of the claims of its pods.
        count_slots: Its usage is counted in pods (slots), not in units.
        cluster: Resources of the whole cluster if queues are ordered by dominant share; else None.
    """

    def __init__(self, name: str, form: QueueForm | None, *, count_slots: bool) -> None:
        self.name = name
        self.form = form
        self.waiting: WaitingWorkloads[Needs] = WaitingWorkloads()
        self.admitted: dict[str, Amounts] = {}
        self.claimed: dict[str, int] = {}
        self.count_slots = count_slots
        self.cluster: Amounts | None = None
        self._charges = NOTHING

    @property
    def weight(self) -> float:
        return self.form.weight if self.form is not None else 1.0

    @property
    def units(self) -> int:
        """Units of its admitted pods, and of claims."""
        return self._charges.units

    @property
    def dominant(self) -> tuple[str, float]:
        """Dominant resource and share of the queue; empty and 0 unless dominant shares order the queues."""
        return ("", 0.0) if self.cluster is None else find_dominant(self._charges, self.cluster)

    @property
    def allocated(self) -> float:
        """Usage that orders queues: dominant share if configured, pods if there are slots, else units."""
        if self.cluster is not None:
            return self.dominant[1]
        return len(self.admitted) if self.count_slots else self.units

    @property
    def is_open(self) -> bool:
        return self.form is not None and self.form.stop_policy == "None"

    def is_next(self, workload: QueuedWorkload[Needs]) -> bool:
        """Return True if a workload is next: the oldest of a strict queue, else the oldest of its group.

        One that waits for the first stage of its job is in no group, and never next.
        """
        if self.form is not None and self.form.is_strict:
            oldest = self.waiting.get_oldest()
            return oldest is not None and oldest.uid == workload.uid
        return self.waiting.is_first_of_group(workload)

    def charge_pod(self, uid: str, has: Amounts) -> int:
        """Count an admitted pod; return the units added."""
        if uid in self.admitted:
            return 0
        self.admitted[uid] = has
        self._charges = self._charges.add(has)
        return has.units

    def uncharge_pod(self, uid: str) -> int:
        """Stop counting a pod; return the units taken off."""
        has = self.admitted.pop(uid, NOTHING)
        self._charges = self._charges.subtract(has)
        return has.units

    def charge_claim(self, uid: str, units: int) -> int:
        """Set the units that a claim is charged with, 0 to stop; return the units added."""
        added = units - self.claimed.pop(uid, 0)
        if units:
            self.claimed[uid] = units
        self._charges = self._charges.add(Amounts(units=added))
        return added


class Queues:
    """All queues. A queue that is removed from the configuration keeps its pods: they wait until it is back.

    Attributes:
        overtaken: UIDs of workloads whose reserved quota was once borrowed by younger workloads of their
            queue: the younger ones borrow nothing more.
    """

    def __init__(self, config: QueueConfig) -> None:
        self._known: dict[str, QueueState] = {}
        self._cohorts: dict[str, Cohort] = {}
        self._reserved: dict[str, tuple[str, int]] = {}
        self._reserved_in: dict[int, int] = {}
        self.overtaken: set[str] = set()
        self._cluster: Amounts | None = None
        self.configure(config)

    def __getitem__(self, name: str) -> QueueState:
        """Return a queue; one that is not configured is created, and its pods wait."""
        queue = self._known.get(name)
        if queue is None:
            queue = self._known[name] = QueueState(name, None, count_slots=self._count_slots)
            queue.cluster = self._cluster
        return queue

    def __iter__(self) -> Iterator[QueueState]:
        return iter(self._known.values())

    def configure(self, config: QueueConfig) -> None:
        """Apply another configuration; whatever waits or runs stays."""
        self._count_slots = config.slots is not None
        self._by_dominant_share = config.fair_sharing == "dominant"
        self.set_cluster(self._cluster or NOTHING)
        for name in [*config.queues, *self._known]:
            queue = self[name]
            queue.form = config.queues.get(name)
            queue.count_slots = self._count_slots
        for name in list(self._known):
            self.forget_if_unused(name)
        roots = find_cohorts(((name, form.cohort) for name, form in config.queues.items()), config.parents)
        accounts: dict[str, dict[str, QuotaState]] = {}
        for name, root in roots.items():
            accounts.setdefault(root, {})[name] = QuotaState(config.queues[name].quota, self[name].units)
        cohorts = {root: Cohort(members) for root, members in accounts.items()}
        self._cohorts = {name: cohorts[root] for name, root in roots.items()}
        self.reserve_quota({})

    def set_cluster(self, cluster: Amounts) -> None:
        """Set the resources of the whole cluster, of which dominant shares are fractions."""
        cluster_or_none = cluster if self._by_dominant_share else None
        if cluster_or_none != self._cluster:
            self._cluster = cluster_or_none
            for queue in self._known.values():
                queue.cluster = cluster_or_none

    def forget_if_unused(self, name: str) -> None:
        """Drop an empty queue that is not configured: pods may name any number of such queues."""
        queue = self._known.get(name)
        if (
            queue is not None
            and queue.form is None
            and not queue.admitted
            and not queue.claimed
            and not queue.waiting.has_workloads
        ):
            del self._known[name]

    def get_cohort(self, name: str) -> Cohort | None:
        return self._cohorts.get(name)

    def allows_units(self, name: str, units: int, workload_uid: str = "") -> bool:
        """Return True if quotas allow a workload that many more units; see `compute_headroom`."""
        if name not in self._cohorts:
            return False
        most = self.compute_headroom(name, workload_uid)
        return most is None or units <= most

    def compute_headroom(self, name: str, workload_uid: str = "") -> int | None:
        """Return how many more units quotas allow a workload of a configured queue; None: no limit.

        Args:
            workload_uid: UID of the workload; quota reserved for it is available to it.
        """
        cohort = self._cohorts.get(name)
        most = None if cohort is None else cohort.compute_headroom(name)
        if cohort is None or most is None or not self._reserved:
            return most
        uid, own = self._reserved.get(name, ("", 0))
        account = cohort.accounts[name]
        nominal_left = (account.quota.nominal or 0) - account.used
        if uid == workload_uid:
            # If each left it to the others, none would start.
            others = self._sum_reserved_ahead(name, cohort)
        else:
            others = self._reserved_in.get(id(cohort), 0) - own
            most = (min(most, nominal_left) if uid in self.overtaken else most) - own
        if others:
            # What is its own a queue has whatever others wait for.
            most = min(most, max(cohort.compute_free(name) - others, nominal_left))
        return most

    def _sum_reserved_ahead(self, name: str, cohort: Cohort) -> int:
        """Add up the units reserved in a cohort for queues that precede this one in `reserve_quota`."""
        ahead = takewhile(lambda other: other != name, self._reserved)
        return sum(self._reserved[other][1] for other in ahead if self._cohorts[other] is cohort)

    @property
    def reserved_quota(self) -> Mapping[str, tuple[str, int]]:
        """Reserved quota by queue: UID of the long waiting workload, and its units."""
        return self._reserved

    def reserve_quota(self, reservations: Mapping[str, tuple[str, int]]) -> None:
        """Reserve quota for exactly these workloads, against others of the queue and against borrowers.

        Args:
            reservations: By queue with a nominal quota: the UID of a workload and its units, which are within
                that quota. Earlier entries take precedence.
        """
        self._reserved = {name: each for name, each in reservations.items() if name in self._cohorts}
        self._reserved_in = {}
        for name, (_, units) in self._reserved.items():
            cohort = id(self._cohorts[name])
            self._reserved_in[cohort] = self._reserved_in.get(cohort, 0) + units

    def unreserve_quota(self, name: str, workload_uid: str) -> None:
        """End the quota reservation of a workload, if it has one."""
        if self._reserved.get(name, ("", 0))[0] == workload_uid:
            self.reserve_quota({other: each for other, each in self._reserved.items() if other != name})

    def set_waiting(
        self, waiter: QueuedPod | Gang, name: str, workload: QueuedWorkload[Needs] | None
    ) -> None:
        """Let a pod or gang wait in a queue as this workload, and in no other; None: it does not wait."""
        if waiter.waiting_queue:
            waiting = self[waiter.waiting_queue].waiting
            if workload is not None and waiter.waiting_queue == name and waiting.get(waiter.uid) == workload:
                return
            waiting.remove(waiter.uid)
            self.forget_if_unused(waiter.waiting_queue)
            waiter.waiting_queue = ""
        if workload is not None:
            self[name].waiting.add(workload)
            waiter.waiting_queue = name

    def charge_pod(self, name: str, uid: str, has: Amounts) -> None:
        self._add_units(name, self[name].charge_pod(uid, has))

    def uncharge_pod(self, name: str, uid: str) -> None:
        queue = self._known.get(name)
        if queue is not None:
            self._add_units(name, -queue.uncharge_pod(uid))

    def charge_claim(self, name: str, uid: str, units: int) -> None:
        """Set the units that a claim is charged with in a queue, 0 to stop."""
        self._add_units(name, self[name].charge_claim(uid, units))
        self.forget_if_unused(name)

    def _add_units(self, name: str, units: int) -> None:
        cohort = self._cohorts.get(name)
        if units and cohort is not None:
            cohort.add_units(name, units)


def find_dominant(has: Amounts, total: Amounts) -> tuple[str, float]:
    """Find the resource of which a queue has the largest fraction, and that fraction: its dominant share.

    Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.

    Of equal fractions the first in the order of these names counts. A resource that the cluster lacks does
    not count.

    Returns:
        `gpu-memory`, `cpu` or `memory`, and a fraction; an empty name and 0 if the queue uses nothing.
    """
    own, totals = ({GPU: each.units, CPU: each.cpu_milli, MEMORY: each.memory_bytes} for each in (has, total))
    name = find_dominant_class(own, totals)
    return (name, own[name] / totals[name]) if own[name] and totals[name] > 0 else ("", 0.0)
