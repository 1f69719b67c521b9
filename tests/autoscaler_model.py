"""A cluster autoscaler that adds cards up, a scheduler that looks at cards, and nodes that take a while.

Written without the code under test: plain loops over plain values.
"""

import itertools
from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from allocator.names import PLACEHOLDER_LABEL, STARTUP_TAINT
from gpupack.autoscale.placeholders import MESSAGE, find_changes
from gpupack.autoscale.planner import Planner, PlanRules
from gpupack.autoscale.scale_down import find_node_changes, find_nodes_to_keep
from gpupack.whatif.cluster import Cluster
from kubeapi.objects import SCHEDULED
from kubeapi.pod_scheduled import make_refusal
from tests.ask_world import Node, Pod
from tests.autoscale_world import UNSCHEDULABLE
from tests.cluster_builders import MEMORY

NAMESPACE = "gpupack-system"
LOOP_S = 10
UNNEEDED_S = 600
TYPE = "node.kubernetes.io/instance-type"
START = 1_700_000_000


def written(second: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(START + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Group:
    """Machines of one type: sizes of their cards, cores, taints, how many there may be."""

    name: str
    sizes: tuple[int, ...]
    cpu: int = 40
    taints: tuple[str, ...] = ()
    most: int = 1000

    def node(self, name: str) -> Node:
        labels = (("kubernetes.io/hostname", name), (TYPE, self.name))
        return Node(name, self.sizes, taints=self.taints, labels=labels, cpu=self.cpu)


@dataclass
class Machine:
    """A machine of the cloud; `seen`: its Node is there; `usable`: its daemon has published cards."""

    name: str
    group: Group
    bought: int
    seen: int
    usable: int
    used: bool = False
    kept: bool = False
    annotations: dict = field(default_factory=dict)
    unneeded_since: int | None = None
    removed: int = 0


@dataclass
class Wants:
    """A pod as the autoscaler sees it."""

    units: int
    cpu: int
    selector: dict
    terms: list
    tolerates: set
    priority: int = 0
    name: str = ""

    def allows(self, labels: dict, taints) -> bool:
        if any(labels.get(key) != value for key, value in self.selector.items()):
            return False
        if not set(taints) <= self.tolerates:
            return False
        return not self.terms or any(all(_holds(e, labels) for e in term) for term in self.terms)


def _holds(expression: dict, labels: dict) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    return value in values if expression["operator"] == "In" else value not in values


@dataclass
class Cloud:
    """Everything, second by second.

    Attributes:
        running: Pods with their node and cards.
        waiting: Pods without, in the order in which they came; those that were refused.
        bought: How many machines were ever bought.
    """

    groups: list[Group]
    random: Random
    helped: bool = True
    guarded: bool = True
    grace_s: float = 15.0
    scale_down: bool = False
    machines: dict[str, Machine] = field(default_factory=dict)
    running: dict[str, Pod] = field(default_factory=dict)
    waiting: dict[str, Pod] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    placeholders: dict[str, dict] = field(default_factory=dict)
    bought: int = 0
    removed: list[Machine] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    now: int = 0

    def __post_init__(self) -> None:
        self.planner = Planner(PlanRules(grace_s=self.grace_s))
        self.plan = None
        self.freed: list[str] = []
        self.numbers = itertools.count(1)

    # The cloud.

    def add(self, group: Group, *, delay: bool = True) -> Machine:
        name = f"{group.name}-{next(self.numbers)}"
        seen = self.now + (self.random.randrange(20, 90) if delay else 0)
        usable = seen + (self.random.randrange(10, 60) if delay else 0)
        machine = self.machines[name] = Machine(name, group, self.now if delay else -10_000, seen, usable)
        return machine

    def usable(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.usable <= self.now]

    # kube-scheduler with our extender.

    def free(self, machine: Machine) -> list[int]:
        return [
            size - units
            for size, units in zip(
                machine.group.sizes, machine.group.node(machine.name).used(self.running.values()), strict=True
            )
        ]

    def schedule(self) -> None:
        for name, pod in sorted(self.waiting.items(), key=lambda item: -item[1].priority):
            best = None
            for machine in self.usable():
                if not set(machine.group.taints) <= set(pod.tolerates):
                    continue
                cpu = sum(each.cpu for each in self.running.values() if each.node == machine.name)
                if cpu + pod.cpu > machine.group.cpu:
                    continue
                free = self.free(machine)
                cards = sorted((units, card) for card, units in enumerate(free) if units >= pod.each)
                if len(cards) >= pod.count:
                    left = sum(free) - pod.units
                    if best is None or left < best[0]:
                        best = (left, machine, tuple(card for _, card in cards[: pod.count]))
            if best is None:
                self.refused.add(name)
                continue
            _, machine, cards = best
            del self.waiting[name]
            self.refused.discard(name)
            self.running[name] = replace(pod, node=machine.name, cards=cards)
            machine.used = True

    # gpupack autoscale.

    def objects(self) -> list[dict]:
        pods = list(self.running.values())
        items = []
        for machine in self.machines.values():
            if machine.seen > self.now:
                continue
            made = machine.group.node(machine.name).object(pods)
            made["metadata"]["creationTimestamp"] = written(max(machine.bought, -9_000))
            made["metadata"]["annotations"] |= machine.annotations
            if machine.usable > self.now:
                made["metadata"]["annotations"] = {}
                amounts = {"cpu": str(machine.group.cpu), "memory": "100Gi", "pods": "110"}
                made["status"] = {"allocatable": amounts, "capacity": amounts}
                made["spec"]["taints"].append({"key": STARTUP_TAINT, "effect": "NoSchedule"})
            items.append(made)
        items += [pod.object() for pod in pods]
        for name, pod in self.waiting.items():
            made = pod.object()
            if name in self.refused:
                made["status"]["conditions"] = UNSCHEDULABLE
            items.append(made)
        return [*items, *self.placeholders.values()]

    def help(self) -> None:
        """One pass of gpupack autoscale, and what it writes."""
        items = self.objects()
        if not any(item["kind"] == "Node" for item in items):
            return
        cluster = Cluster.from_json(msgspec.json.encode({"kind": "List", "items": items}), unit_mib=1024)
        self.plan = self.planner.plan(cluster, float(self.now), float(START + self.now))
        changes = find_changes(self.plan.placeholders, cluster.pods.values(), NAMESPACE)
        for pod in changes.delete:
            del self.placeholders[pod.metadata.name]
        for name, placeholder in changes.create.items():
            condition = {"type": SCHEDULED, **make_refusal("Unschedulable", MESSAGE, START + self.now)}
            made = {**placeholder.manifest(NAMESPACE, 1), "status": {"conditions": [condition]}}
            made["metadata"] |= {"name": name, "uid": name}
            self.placeholders[name] = made
        if self.guarded:
            kept = find_nodes_to_keep(cluster, self.freed)
            self.freed = [name for name in cluster.nodes if name not in kept]
            for change in find_node_changes(cluster.nodes.values(), kept):
                annotations = self.machines[change.name].annotations
                for key, value in change.annotations.items():
                    if value is None:
                        annotations.pop(key, None)
                    else:
                        annotations[key] = value
            for machine in self.machines.values():
                machine.kept = "cluster-autoscaler.kubernetes.io/scale-down-disabled" in machine.annotations

    # The cluster autoscaler.

    def wants(self) -> list[Wants]:
        found = [_of_pod(pod) for name, pod in self.waiting.items() if name in self.refused]
        found += [_of_placeholder(each) for each in self.placeholders.values()]
        return sorted(found, key=lambda each: -each.priority)

    def sums(self) -> dict[str, list[int]]:
        """Units and cores that every machine has left; those that are starting count as the others."""
        left = {
            machine.name: [sum(machine.group.sizes), machine.group.cpu] for machine in self.machines.values()
        }
        for pod in self.running.values():
            left[pod.node][0] -= pod.units
            left[pod.node][1] -= pod.cpu
        return left

    def autoscale(self) -> None:
        left = self.sums()
        options = self.decide(left)[1]
        if options:
            group, number = self.random.choice(options)
            for _ in range(number):
                self.add(group)
            self.bought += number
        if self.scale_down:
            self._scale_down(left)

    def decide(self, left: dict[str, list[int]] | None = None) -> tuple[set[str], list[tuple[Group, int]]]:
        """The pods that fit nodes by their sums, and for the others how many nodes of each group would do."""
        left = self.sums() if left is None else left
        wants = self.wants()
        rest = [wanted for wanted in wants if not self._seat(wanted, left)]
        options = []
        for group in self.groups:
            count = sum(machine.group == group for machine in self.machines.values())
            fitting = [
                wanted
                for wanted in rest
                if wanted.allows({TYPE: group.name}, group.taints)
                and wanted.units <= sum(group.sizes)
                and wanted.cpu <= group.cpu
            ]
            if fitting and count < group.most:
                options.append((group, min(_bins(fitting, group), group.most - count)))
        short = {wanted.name for wanted in rest}
        return {wanted.name for wanted in wants if wanted.name not in short}, options

    def _seat(self, wanted: Wants, left: dict[str, list[int]]) -> bool:
        for machine in self.machines.values():
            if not wanted.allows(
                {TYPE: machine.group.name, "kubernetes.io/hostname": machine.name}, machine.group.taints
            ):
                continue
            amounts = left[machine.name]
            if amounts[0] >= wanted.units and amounts[1] >= wanted.cpu:
                amounts[0] -= wanted.units
                amounts[1] -= wanted.cpu
                return True
        return False

    def _scale_down(self, left: dict[str, list[int]]) -> None:
        for machine in list(self.machines.values()):
            pods = [pod for pod in self.running.values() if pod.node == machine.name]
            busy = sum(pod.cpu for pod in pods) / machine.group.cpu
            others = {name: list(amounts) for name, amounts in left.items() if name != machine.name}
            needed = machine.usable > self.now or machine.kept or busy >= 0.5 or not self._fit(pods, others)
            if needed:
                machine.unneeded_since = None
            elif machine.unneeded_since is None:
                machine.unneeded_since = self.now
            elif self.now - machine.unneeded_since >= UNNEEDED_S:
                machine.removed = self.now
                self.removed.append(machine)
                self.evicted |= {pod.name for pod in pods}
                del self.machines[machine.name]
                for pod in pods:
                    del self.running[pod.name]
                    self.waiting[pod.name] = replace(pod, node="", cards=())
                return

    def _fit(self, pods: list[Pod], left: dict[str, list[int]]) -> bool:
        there = self.machines
        for pod in pods:
            wanted = _of_pod(pod)
            for name, amounts in left.items():
                if (
                    there[name].usable <= self.now
                    and wanted.allows({TYPE: there[name].group.name}, there[name].group.taints)
                    and amounts[0] >= pod.units
                    and amounts[1] >= pod.cpu
                ):
                    amounts[0] -= pod.units
                    amounts[1] -= pod.cpu
                    break
            else:
                return False
        return True

    # Time.

    def step(self) -> None:
        """Ten seconds."""
        self.now += LOOP_S
        self.schedule()
        if self.helped:
            self.help()
        self.autoscale()


def _of_pod(pod: Pod) -> Wants:
    return Wants(pod.units, pod.cpu, dict(pod.selector), [], set(pod.tolerates), pod.priority, pod.name)


def _of_placeholder(made: dict) -> Wants:
    assert PLACEHOLDER_LABEL in made["metadata"]["labels"]
    assert any(each["reason"] == "Unschedulable" for each in made["status"]["conditions"])
    spec = made["spec"]
    (resources,) = (container["resources"]["requests"] for container in spec["containers"])
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return Wants(
        int(resources[MEMORY]),
        -(-int(resources["cpu"].removesuffix("m")) // 1000),
        spec.get("nodeSelector", {}),
        [term["matchExpressions"] for term in terms],
        {each["key"] for each in spec.get("tolerations", [])},
        name=made["metadata"]["name"],
    )


def _bins(wanted: list[Wants], group: Group) -> int:
    bins: list[list[int]] = []
    for each in sorted(wanted, key=lambda w: -max(w.units / sum(group.sizes), w.cpu / group.cpu)):
        for amounts in bins:
            if amounts[0] >= each.units and amounts[1] >= each.cpu:
                amounts[0] -= each.units
                amounts[1] -= each.cpu
                break
        else:
            bins.append([sum(group.sizes) - each.units, group.cpu - each.cpu])
    return len(bins)


def fewest_nodes(pods: list[Pod], group: Group) -> int:
    """The fewest nodes on which anybody has put pods by cards: of many orders, the best."""
    random = Random(1)
    orders = [sorted(pods, key=lambda pod: (-pod.each * pod.count, -pod.units))]
    orders += [random.sample(pods, len(pods)) for _ in range(200)]
    return min(_count(order, group) for order in orders)


def _count(pods: list[Pod], group: Group) -> int:
    nodes: list[tuple[list[int], list[int]]] = []
    for pod in pods:
        for cards, cpu in nodes:
            fitting = sorted((units, card) for card, units in enumerate(cards) if units >= pod.each)
            if len(fitting) >= pod.count and cpu[0] >= pod.cpu:
                break
        else:
            cards, cpu = list(group.sizes), [group.cpu]
            nodes.append((cards, cpu))
            fitting = sorted((units, card) for card, units in enumerate(cards) if units >= pod.each)
        for _, card in fitting[: pod.count]:
            cards[card] -= pod.each
        cpu[0] -= pod.cpu
    return len(nodes)
