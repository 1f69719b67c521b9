"""The queues: their waiting workloads, what they have, and what they may have. Pure."""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from scheduler_plugin.queue.cache.waiting import QueuedWorkload, WaitingWorkloads
from scheduler_plugin.queue.capacity.dominant_share import QueueResources, find_dominant
from scheduler_plugin.queue.capacity.requirements import Needs
from scheduler_plugin.queue.config.queues import QueueConfig, QueueForm
from scheduler_plugin.queue.config.quota import Cohort, QuotaState, find_cohorts


class QueueState:
    """QueueState is a queue with what waits in it and what is charged to it.

    Attributes:
        form: Its configuration; None: pods name it and the configuration does not, so they wait.
        waiting: Its workloads.
        admitted: Units by UID of its pods that were admitted and have not ended.
        claimed: Units by UID of the claims of its pods.
        count_slots: What it has is counted in pods, each in a slot, and not in units.
        cluster: All that there is, where its dominant share counts; None: it does not.
    """

    def __init__(self, name: str, form: QueueForm | None, *, count_slots: bool) -> None:
        self.name = name
        self.form = form
        self.waiting: WaitingWorkloads[Needs] = WaitingWorkloads()
        self.admitted: dict[str, int] = {}
        self.claimed: dict[str, int] = {}
        self.count_slots = count_slots
        self.cluster: QueueResources | None = None
        self._charges = QueueResources()
        self._host: dict[str, QueueResources] = {}

    @property
    def weight(self) -> float:
        return self.form.weight if self.form is not None else 1.0

    @property
    def units(self) -> int:
        """Units of its admitted pods, and of claims."""
        return self._charges.units

    @property
    def dominant(self) -> tuple[str, float]:
        """The resource of which it has the largest part, and that part; nothing where that does not count."""
        return ("", 0.0) if self.cluster is None else find_dominant(self._charges, self.cluster)

    @property
    def allocated(self) -> float:
        """Its dominant share where that counts, else pods where there are slots, else units."""
        if self.cluster is not None:
            return self.dominant[1]
        return len(self.admitted) if self.count_slots else self.units

    @property
    def is_open(self) -> bool:
        return self.form is not None and self.form.stop_policy == "None"

    def is_next(self, workload: QueuedWorkload[Needs]) -> bool:
        """Tell whether order lets a waiting workload go: a strict queue its oldest, others each group's."""
        if self.form is not None and self.form.is_strict:
            oldest = self.waiting.get_oldest()
            return oldest is not None and oldest.uid == workload.uid
        return self.waiting.is_first_of_group(workload)

    def charge_pod(self, uid: str, has: QueueResources) -> int:
        """Count an admitted pod; return the units added."""
        if uid in self.admitted:
            return 0
        self.admitted[uid] = has.units
        self._host[uid] = has
        self._charges = self._charges.plus(has)
        return has.units

    def get_charge(self, uid: str) -> QueueResources | None:
        """Get the resources that a pod counts for; None where it is not counted."""
        return self._host.get(uid)

    def uncharge_pod(self, uid: str) -> int:
        """Stop counting a pod; return the units taken off."""
        self.admitted.pop(uid, None)
        has = self._host.pop(uid, QueueResources())
        self._charges = self._charges.plus(has, -1)
        return has.units

    def charge_claim(self, uid: str, units: int) -> int:
        """Count a claim with so many units from now on, with 0 no more; return the units added."""
        added = units - self.claimed.pop(uid, 0)
        if units:
            self.claimed[uid] = units
        self._charges = self._charges.plus(QueueResources(added))
        return added


class Queues:
    """All queues. A queue that the configuration loses keeps its pods: they wait until it is back.

    Attributes:
        overtaken: UIDs of workloads that lost reserved quota once to younger ones of their queue, which had
            borrowed it: those borrow nothing more.
    """

    def __init__(self, config: QueueConfig) -> None:
        self._known: dict[str, QueueState] = {}
        self._cohorts: dict[str, Cohort] = {}
        self._reserved: dict[str, tuple[str, int]] = {}
        self._reserved_in: dict[int, int] = {}
        self.overtaken: set[str] = set()
        self._cluster: QueueResources | None = None
        self.configure(config)

    def __getitem__(self, name: str) -> QueueState:
        """A queue; one that nobody configured is made, and its pods wait."""
        queue = self._known.get(name)
        if queue is None:
            queue = self._known[name] = QueueState(name, None, count_slots=self._count_slots)
            queue.cluster = self._cluster
        return queue

    def __iter__(self) -> Iterator[QueueState]:
        return iter(self._known.values())

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration; everything that waits or runs stays."""
        self._count_slots = config.slots is not None
        self._by_dominant_share = config.fair_sharing == "dominant"
        self.set_cluster(self._cluster or QueueResources())
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

    def set_cluster(self, cluster: QueueResources) -> None:
        """Take all that there is: of that dominant shares are parts, where those count."""
        cluster_or_none = cluster if self._by_dominant_share else None
        if cluster_or_none != self._cluster:
            self._cluster = cluster_or_none
            for queue in self._known.values():
                queue.cluster = cluster_or_none

    def forget_if_unused(self, name: str) -> None:
        """Drop a queue that is not configured and has nothing: pods may name what they like."""
        queue = self._known.get(name)
        if (
            queue is not None
            and queue.form is None
            and not queue.admitted
            and not queue.claimed
            and not queue.waiting.has_workloads
        ):
            del self._known[name]

    def get_form(self, name: str) -> QueueForm | None:
        queue = self._known.get(name)
        return None if queue is None else queue.form

    def get_cohort(self, name: str) -> Cohort | None:
        return self._cohorts.get(name)

    def allows_units(self, name: str, units: int, workload_uid: str = "") -> bool:
        """Tell whether quotas let a workload of a queue have so many units more, see `compute_headroom`."""
        if name not in self._cohorts:
            return False
        most = self.compute_headroom(name, workload_uid)
        return most is None or units <= most

    def compute_headroom(self, name: str, workload_uid: str = "") -> int | None:
        """The most units that quotas let a workload of a configured queue have more; None: no limit.

        Args:
            workload_uid: UID of the workload: what is kept for it is its own.
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
        """Units that are kept in a cohort for queues before this one, in the order of `reserve_quota`."""
        ahead = takewhile(lambda other: other != name, self._reserved)
        return sum(self._reserved[other][1] for other in ahead if self._cohorts[other] is cohort)

    @property
    def reserved_quota(self) -> Mapping[str, tuple[str, int]]:
        """Reserved quota by queue: UID of the workload that waits long, and its units."""
        return self._reserved

    def reserve_quota(self, reservations: Mapping[str, tuple[str, int]]) -> None:
        """Keep quota for these workloads only, from others of the same queue and from borrowers.

        Args:
            reservations: By queue with a nominal quota the UID of a workload, and units that are within that
                quota; those first that have it first.
        """
        self._reserved = {name: each for name, each in reservations.items() if name in self._cohorts}
        self._reserved_in = {}
        for name, (_, units) in self._reserved.items():
            cohort = id(self._cohorts[name])
            self._reserved_in[cohort] = self._reserved_in.get(cohort, 0) + units

    def unreserve_quota(self, name: str, workload_uid: str) -> None:
        """Keep no quota for a workload, if that was done."""
        if self._reserved.get(name, ("", 0))[0] == workload_uid:
            self.reserve_quota({other: each for other, each in self._reserved.items() if other != name})

    def charge_pod(self, name: str, uid: str, has: QueueResources) -> None:
        self._add_units(name, self[name].charge_pod(uid, has))

    def uncharge_pod(self, name: str, uid: str) -> None:
        queue = self._known.get(name)
        if queue is not None:
            self._add_units(name, -queue.uncharge_pod(uid))

    def charge_claim(self, name: str, uid: str, units: int) -> None:
        """Count a claim in a queue with so many units from now on, with 0 no more."""
        self._add_units(name, self[name].charge_claim(uid, units))
        self.forget_if_unused(name)

    def _add_units(self, name: str, units: int) -> None:
        cohort = self._cohorts.get(name)
        if units and cohort is not None:
            cohort.add_units(name, units)
