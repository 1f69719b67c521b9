"""What is true at a moment, or would be if some pods were gone: by the promises, not by the queue's code."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.config.quota import find_cohorts
from tests.property.kernel.api import named_node

from .cluster import Cluster
from .world import Pod, World

Group = tuple[Pod, ...]
"""Pods that are evicted together."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to start as a whole: a pod, or the pods of a gang that are on no node.

    Attributes:
        uid: As the queue names it.
        pods: Its pods.
        rest: Others of the gang are on nodes.
    """

    uid: str
    pods: tuple[Pod, ...]
    rest: bool = False

    @property
    def queue(self) -> str:
        return self.pods[0].spec.queue

    @property
    def units(self) -> int:
        return sum(pod.spec.units for pod in self.pods)

    @property
    def age(self) -> tuple[int, str]:
        """Place in its queue: by the second of its creation."""
        return min((int(pod.created), pod.uid) for pod in self.pods)[0], self.uid

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(pod.uid for pod in self.pods)

    @property
    def key(self) -> str:
        return alike(self.pods[0])


def alike(pod: Pod) -> str:
    """What a pod has in common with those that kube-scheduler would treat alike, gangs whoever made them."""
    spec = pod.spec
    if pod.gang:
        return f"gang of {spec.size}, {spec.queue} {spec.units} {spec.model}"
    return f"{spec.owner} {spec.queue} {spec.units} {spec.model}"


class Truth:
    """The cluster as it is.

    Args:
        without: UIDs of pods that are taken for gone.
    """

    def __init__(
        self, world: World, cluster: Cluster, config: QueueConfig, without: Collection[str] = ()
    ) -> None:
        self._world, self._config = world, config
        self._roots = find_cohorts(
            ((name, form.cohort) for name, form in config.queues.items()), config.parents
        )
        self._free = {name: world.free(name, set(without)) for name in world.nodes}
        self._slots = count_slots_left(world, config, without)
        self.used = dict.fromkeys(config.queues, 0)
        self.settled = True
        for pod in world.pods.values():
            if not pod.counts or pod.uid in without or is_blocked(world, pod):
                continue
            if pod.spec.queue in self.used:
                self.used[pod.spec.queue] += pod.spec.units
            if not pod.node:
                # On its way to a node.
                self.settled = self._put([pod], self._free, self._slots) and self.settled

    def allows(self, queue: str, units: int) -> bool:
        """Whether a queue may have so many units more within its own quota, and the others have left them."""
        return self.is_own(queue, units) and self.over(queue, units) <= 0

    def is_own(self, queue: str, units: int) -> bool:
        """Whether a queue's own quota covers so many units more."""
        nominal = self._config.queues[queue].nominal_quota
        return nominal is None or self.used[queue] + units <= nominal

    def over(self, queue: str, units: int) -> int:
        """Units by which a cohort would have more than all its quotas, with so many more for a queue."""
        if self._config.queues[queue].nominal_quota is None:
            return -1
        total = units
        for name, form in self._config.queues.items():
            if self._roots[name] != self._roots[queue] or form.nominal_quota is None:
                continue
            total += self.used[name] - form.nominal_quota
            if name != queue and form.lending_limit is not None:
                total += max(0, form.nominal_quota - self.used[name] - form.lending_limit)
        return total

    def exceeds(self, queue: str) -> str:
        """Say which quota is exceeded that a queue counts in, empty for none."""
        form = self._config.queues.get(queue)
        if form is None or form.nominal_quota is None:
            return ""
        if form.borrowing_limit is not None and self.used[queue] > form.nominal_quota + form.borrowing_limit:
            return f"{queue} has {self.used[queue]} units of {form.nominal_quota} and {form.borrowing_limit}"
        if self.over(queue, 0) > 0:
            return f"the cohort of {queue} has {self.over(queue, 0)} units more than its quotas: {self.used}"
        return ""

    def has_room(self, pods: Sequence[Pod]) -> bool:
        """Whether cards are free for all of these pods at once; they ask alike."""
        return self._put(pods, {name: list(cards) for name, cards in self._free.items()}, dict(self._slots))

    def _put(self, pods: Iterable[Pod], free: dict[str, list[int]], slots: dict[str, int]) -> bool:
        """Place pods on the fullest cards that can take them; pods of one kind find room if there is any."""
        return all(self._put_one(pod, free, slots) for pod in pods)

    def _put_one(self, pod: Pod, free: dict[str, list[int]], slots: dict[str, int]) -> bool:
        fits = [
            (units, name, card)
            for name in self._nodes(pod)
            if slots.get(name, 1) > 0
            for card, units in enumerate(free[name])
            if units >= pod.spec.units
        ]
        if fits:
            _, name, card = min(fits)
            free[name][card] -= pod.spec.units
            if name in slots:
                slots[name] -= 1
        return bool(fits)

    def _nodes(self, pod: Pod) -> Iterator[str]:
        """Nodes where a pod may go; one that nobody makes again only where an admission named a node."""
        named = "" if pod.spec.owner else named_node(pod.raw)
        for name in self._world.nodes:
            if (
                name not in self._world.cordoned
                and pod.spec.model in {"", self._world.models[name]}
                and named in {"", name}
            ):
                yield name

    def fits_empty(self, pods: Sequence[Pod]) -> bool:
        """Whether the cards of an empty cluster would have room for these pods at once."""
        slots = count_slots(self._world, self._config)
        return self._put(pods, {name: list(self._world.nodes[name]) for name in self._world.nodes}, slots)

    def fits_on(self, pod: Pod, node: str) -> bool:
        """Whether a card of a node is free for a pod, and a slot."""
        may = node in self._nodes(pod) and self._slots.get(node, 1) > 0
        return may and max(self._free[node]) >= pod.spec.units

    def borrowed(self, lender: str, priority: int) -> list[Group]:
        """Pods with which others of the cohort exceed their own quota, whom an eviction may end, by gang.

        Of the smallest priority first, then the youngest.
        """
        found: list[Group] = []
        for name, form in self._config.queues.items():
            if name == lender or self._roots[name] != self._roots.get(lender) or form.nominal_quota is None:
                continue
            left = self.used[name] - form.nominal_quota
            for group in sorted(self._groups(name), key=_must_go_key):
                if left <= 0:
                    break
                if all(pod.node and pod.spec.owner not in self._world.budgets for pod in group):
                    left -= sum(pod.spec.units for pod in group)
                    if max(pod.spec.priority for pod in group) <= priority:
                        found.append(group)
        return sorted(found, key=_must_go_key)

    def _groups(self, queue: str) -> list[Group]:
        """What a queue has, the pods of a gang together."""
        groups: dict[str, Group] = {}
        for pod in self._world.pods.values():
            if pod.spec.queue == queue and pod.counts and not pod.spec.claims and not pod.ending:
                key = pod.gang or pod.uid
                groups[key] = (*groups.get(key, ()), pod)
        return list(groups.values())


def count_slots(world: World, config: QueueConfig) -> dict[str, int]:
    """Slots of each node; empty where there are no slots."""
    if config.slots is None:
        return {}
    forms = (config.slots.local, config.slots.free)
    return {
        name: sum(
            form.count
            for form in forms
            if form.node_selector is None or form.node_selector.matches(world.labels.get(name, {}))
        )
        for name in world.nodes
    }


def count_slots_left(world: World, config: QueueConfig, without: Collection[str] = ()) -> dict[str, int]:
    """Slots of each node that no pod sits in; empty where there are no slots."""
    left = count_slots(world, config)
    for pod in world.pods.values() if left else ():
        if pod.counts and pod.node and pod.uid not in without:
            left[pod.node] -= 1
    return left


def _must_go_key(group: Group) -> tuple[int, int, str]:
    created, uid = min((int(pod.created), pod.uid) for pod in group)
    return max(pod.spec.priority for pod in group), -created, uid


def is_blocked(world: World, pod: Pod) -> bool:
    """Whether kube-scheduler finds no node for a pod whatever the queue does."""
    return not pod.node and bool(pod.spec.owner) and pod.spec.owner in world.blocked


def _group_priority(world: World, gang: str) -> int:
    group = world.groups.get(gang)
    return (group.spec.priority or 0) if group is not None else 0


def jobs(world: World) -> Iterator[Job]:
    """All that is on no node and could start as a whole, admitted or not; pods with claims ask nobody."""
    gangs: dict[str, list[Pod]] = {}
    for pod in world.pods.values():
        if pod.gang and not pod.ended:
            gangs.setdefault(pod.gang, []).append(pod)
        elif not pod.node and not pod.ending and not pod.ended and not pod.spec.claims:
            yield Job(pod.uid, (pod,))
    for name, pods in gangs.items():
        waits = tuple(pod for pod in pods if not pod.node)
        if any(pod.spec.grouped and pod.spec.priority != _group_priority(world, name) for pod in pods):
            # kube-scheduler starts no pod of a PodGroup that has another priority than one of its pods.
            continue
        if waits and len(pods) == pods[0].spec.size and not any(pod.ending for pod in pods):
            yield Job(f"gang default/{name}", waits, rest=len(waits) < len(pods))
