"""Models the cluster that is asked about: nodes and pods as the extender's own state."""

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from allocator.claims import ClaimObject
from allocator.errors import AllocatorError, RequestError, shown
from allocator.names import MIB_PER_GIB, PACKED_LAYOUT, PERCENT_RESOURCE, QUEUE_NAME, unit_of_resource
from allocator.packing import recall_layout
from allocator.quantity import parse_integer
from allocator.request import PodRequest
from allocator.texts import list_some
from gpupack.errors import InputError
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.whatif.kube_checks import HostRequirements, KubeSchedulerChecks, find_selected_labels
from gpupack.whatif.objects import load_objects
from gpupack.whatif.queue_rules import QueueRules
from gpupack.whatif.unknown_requests import drop_unknown_policies
from kubeapi.objects import Node, Pod, PodDisruptionBudget
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.gang_names import read_gang_key
from scheduler_plugin.cache.pod_groups import PodGroups
from scheduler_plugin.cache.pods import PodRecord, parse_pod_request, read_pod
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.request import SchedulingRequest

if TYPE_CHECKING:
    from gpupack.inventory.records import NodeRow

QUEUE_NOT_READ: Final = "was not read"

_NAMED: Final = 5
_COMPARED: Final = 2000
"""Most names that are compared with one that does not exist."""


T = TypeVar("T")


class DerivedValue(Generic[T]):
    """What follows from a cluster's objects: computed once, and anew after a change."""

    def __init__(self, compute: "Callable[[Any], T]") -> None:
        self._compute = compute

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, cluster: "Cluster", _owner: type) -> T:
        derived = cluster.derived
        if self._name not in derived:
            derived[self._name] = self._compute(cluster)
        found: T = derived[self._name]
        return found


@dataclass(repr=False)
class Cluster:
    """Nodes and pods of one moment, and what filter knows of them.

    Invariant: `state` is what the extender would have if it had read the same lists more than
    `charges.TOMBSTONE_S` ago. So pods that ended count only while their node's words still hold them. In
    `state` pods are without policies that are not known here, see `drop_unknown_policies`. `pods` has them
    as they are.

    Attributes:
        unit_mib: MiB of a unit; nodes whose words are of another unit take no pods.
        budgets: PodDisruptionBudgets; None if they were not read.
        source: What was asked, for messages.
        claims: ResourceClaims by UID; those that are allocated count until their nodes hold them.
        queue: By what the queue decides, or why that is not known, in words that follow "the queue".
        derived: Each `DerivedValue` that was asked for since the last change, by name.
    """

    nodes: dict[str, Node]
    pods: dict[str, Pod]
    unit_mib: int
    budgets: DisruptionBudgets | None = None
    source: str = "the cluster"
    claims: dict[str, ClaimObject] = field(default_factory=dict)
    queue: QueueRules | str = QUEUE_NOT_READ
    pod_groups: PodGroups[Pod] = field(default_factory=PodGroups)
    coscheduling_groups: PodGroups[Pod] = field(default_factory=partial(PodGroups, keeps_deleted=True))
    derived: dict[str, Any] = field(init=False, default_factory=dict, compare=False)
    state: ClusterState = field(init=False)
    policies: ClusterPolicies = field(init=False)

    def __post_init__(self) -> None:
        self.state = ClusterState(self.unit_mib)
        self.policies = ClusterPolicies()
        self.state.node_failed.connect(lambda _name, _error: None)  # the row says that its words are corrupt
        # Pods first: with the nodes their charges are computed at once, and not anew for each list.
        self.state.replace_pods([drop_unknown_policies(pod) for pod in self.pods.values()], "", 0.0)
        self.state.replace_nodes(list(self.nodes.values()), "", 0.0)
        self.state.claims.replace(list(self.claims.values()), "", 0.0)
        self.state.expire_tombstones(TOMBSTONE_S)

    def __repr__(self) -> str:
        """Return one line: thousands of nodes and pods are nothing to read."""
        counts = f"{len(self.nodes)} nodes, {len(self.pods)} pods"
        return f"<Cluster of {self.source}: {counts}, units of {self.unit_mib} MiB>"

    @classmethod
    def from_objects(
        cls,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        *,
        unit_mib: int | None = None,
        budgets: Sequence[PodDisruptionBudget] | None = None,
        source: str = "the cluster",
        claims: Sequence[ClaimObject] = (),
        pod_groups: PodGroups[Pod] | None = None,
        coscheduling_groups: PodGroups[Pod] | None = None,
    ) -> "Cluster":
        """Build it from lists.

        Args:
            unit_mib: MiB of a unit; None: what most nodes publish, 1024 where none does.
        """
        by_name = {node.metadata.name: node for node in nodes}
        by_uid: dict[str, Pod] = {}
        for pod in pods:
            pod.metadata.uid = pod.metadata.uid or pod.full_name
            by_uid[pod.metadata.uid] = pod
        known = None
        if budgets is not None:
            known = DisruptionBudgets()
            known.replace(budgets, "")
        return cls(
            by_name,
            by_uid,
            unit_mib or UnitCounter(by_name.values()).most_common_mib or MIB_PER_GIB,
            known,
            source,
            {claim.metadata.uid: claim for claim in claims},
            pod_groups=PodGroups() if pod_groups is None else pod_groups,
            coscheduling_groups=PodGroups() if coscheduling_groups is None else coscheduling_groups,
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, unit_mib: int | None = None) -> "Cluster":
        """Build it from the output of `kubectl get nodes,pods -A -o json`.

        Raises:
            InputError: the text is something else.
        """
        found = load_objects(text)
        return cls.from_objects(
            found.nodes,
            found.pods,
            unit_mib=unit_mib,
            budgets=found.budgets or None,
            source="the file",
            claims=found.claims,
        )

    def with_objects(
        self, nodes: dict[str, Node], pods: dict[str, Pod], unit_mib: int | None = None
    ) -> "Cluster":
        """Make a cluster of other nodes and pods, of which everything else is known as of this one."""
        unit_mib = self.unit_mib if unit_mib is None else unit_mib
        groups = self.pod_groups, self.coscheduling_groups
        return Cluster(nodes, pods, unit_mib, self.budgets, self.source, self.claims, self.queue, *groups)

    def in_unit_of(self, pod: Pod) -> "Cluster":
        """Make a view of the cluster in the unit that a pod asks in, else in that of its node."""
        unit_mib = read_requested_unit(pod) or self._units.get_unit(pod.spec.node_name)
        return self.in_unit(unit_mib or self.unit_mib)

    def in_unit(self, unit_mib: int) -> "Cluster":
        """Make a view of the cluster for pods that ask in units of a given size in MiB."""
        if unit_mib == self.unit_mib:
            return self
        if unit_mib not in self._units.units:
            # Who creates pods may ask in millions of units: one that no node publishes costs no look at all.
            view = Cluster({}, {}, unit_mib, self.budgets, self.source)
            view.pod_groups, view.coscheduling_groups = self.pod_groups, self.coscheduling_groups
            view.nodes, view.pods, view.claims = self.nodes, self.pods, self.claims
            view.derived["unreadable_nodes"] = self.unreadable_nodes
            return view
        if unit_mib not in self._views:
            self._views[unit_mib] = self.with_objects(self.nodes, self.pods, unit_mib)
        return self._views[unit_mib]

    @DerivedValue
    def _units(self) -> "UnitCounter":
        return UnitCounter(self.nodes.values())

    @DerivedValue
    def _views(self) -> "dict[int, Cluster]":
        """Clusters that `in_unit` has made since the last change: a large one takes a second."""
        return {}

    # Changes, for those who watch; `now` is in seconds of a clock that only grows, None: the machine's.

    def put_node(self, node: Node, now: float | None = None) -> None:
        self.nodes[node.metadata.name] = node
        self.state.apply_node(node, _at(now))
        self._expire_and_forget(now)

    def drop_node(self, name: str, resource_version: str, now: float | None = None) -> None:
        self.nodes.pop(name, None)
        self.state.delete_node(name, resource_version, _at(now))
        self._expire_and_forget(now)

    def put_pod(self, pod: Pod, now: float | None = None) -> None:
        self.pods[pod.metadata.uid] = pod
        self.state.apply_pod(drop_unknown_policies(pod), _at(now))
        self._expire_and_forget(now)

    def drop_pod(self, pod: Pod, resource_version: str, now: float | None = None) -> None:
        self.pods.pop(pod.metadata.uid, None)
        self.state.delete_pod(pod, resource_version, _at(now))
        self._expire_and_forget(now)

    def put_claim(self, claim: ClaimObject, now: float | None = None) -> None:
        self.claims[claim.metadata.uid] = claim
        self.state.claims.apply(claim, _at(now))
        self._expire_and_forget(now)

    def drop_claim(self, claim: ClaimObject, resource_version: str, now: float | None = None) -> None:
        self.claims.pop(claim.metadata.uid, None)
        self.state.claims.delete(claim, resource_version, _at(now))
        self._expire_and_forget(now)

    def _expire_and_forget(self, now: float | None) -> None:
        self.state.expire_tombstones(_at(now))
        self.derived.clear()

    # Questions.

    @DerivedValue
    def rows(self) -> RowArray:
        """Rows of all nodes, in the order of their names."""
        nodes = self.state.nodes
        return np.array([nodes.rows[name] for name in nodes.index.sorted_names], dtype=np.intp)

    def keep_accepted_rows(self, rows: RowArray, rejections: Container[str]) -> RowArray:
        """Keep the rows of nodes that are not among the rejected ones, given by name."""
        names = self.state.nodes.names
        return rows[[names[row] not in rejections for row in rows.tolist()]]

    @DerivedValue
    def kube_checks(self) -> KubeSchedulerChecks:
        return KubeSchedulerChecks(self.nodes, self.pods, self.state)

    @DerivedValue
    def selected_labels(self) -> frozenset[str] | None:
        return find_selected_labels(self.pods.values())

    @DerivedValue
    def pods_by_gang(self) -> Mapping[tuple[str, str], Sequence[Pod]]:
        """Pods of gangs, by `read_gang_key`."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.pods.values():
            key = read_gang_key(pod)
            if key is not None:
                found.setdefault(key, []).append(pod)
        return found

    @property
    def has_words(self) -> bool:
        """Whether any node publishes cards in this unit."""
        return bool(self.state.nodes.usable.any())

    @DerivedValue
    def unreadable_nodes(self) -> tuple[str, ...]:
        return self._list_excluded(Exclusion.CORRUPT)

    @property
    def first_unreadable_node(self) -> str:
        """The first unreadable node, and what is wrong with its words: "gpu-a: layout says ..."."""
        from gpupack.inventory.objects import NodesAndPods  # noqa: PLC0415
        from gpupack.inventory.rows import build_rows  # noqa: PLC0415

        name = self.unreadable_nodes[0]
        error = build_rows(NodesAndPods([self.nodes[name]], []), [name])[0].error
        return f"{name}: {error or 'see gpupack top'}"

    def list_omissions(self, *, named: bool = True) -> tuple[str, ...]:
        """List what an answer about all nodes leaves out, or took long for; `named`: with names of nodes."""
        notes = []
        if self.unreadable_nodes:
            first = f" (first: {self.first_unreadable_node})" if named else ""
            notes.append(
                f"{_are(len(self.unreadable_nodes), len(self.nodes))} left out: "
                f"{'its' if len(self.unreadable_nodes) == 1 else 'their'} packed words cannot be read{first}"
            )
        without = self._list_excluded(Exclusion.NO_WORDS)
        if without:
            first = f" (first: {without[0]})" if named else ""
            notes.append(
                f"{_are(len(without), len(self.nodes))} left out: "
                f"no gpupack daemon has published cards there{first}"
            )
        if self.lacks_claims:
            notes.append(CLAIMS_NOT_READ)
        notes += self.note_kept_cards() if named else ()
        return (*notes, *self.policies.warnings)

    def note_kept_cards(self, asker: str = "") -> list[str]:
        """Name the pods that filter keeps cards for, and refuses these to others; not that with the UID."""
        pods = (self.state.pods[uid] for uid in self.state.nominated - {asker})
        kept = sorted(f"{pod.full_name} on {pod.nominated}" for pod in pods if pod.can_be_scheduled)
        what = "cards that are kept for pods for which others are evicted count as free here"
        return [f"{what}: {list_some(kept, 3)}"] if kept else []

    @property
    def lacks_claims(self) -> bool:
        """Whether there must be claims on nodes that serve them, and none were read."""
        if self.claims:
            return False
        records = self.state.node_records
        serving = {name for name, record in records.items() if record.serves_claims}
        # A pod that asks by its limits has one there, too.
        return any(records[name].holds or records[name].pods for name in serving) or any(
            pod.spec.resource_claims and pod.spec.node_name in serving and not pod.has_ended
            for pod in self.pods.values()
        )

    def _list_excluded(self, reason: Exclusion) -> tuple[str, ...]:
        nodes = self.state.nodes
        return tuple(nodes.names[row] for row in self.rows[nodes.exclusion[self.rows] == reason].tolist())

    def get_record(self, pod: Pod) -> PodRecord:
        """Return the record of a pod; a cluster in a unit that no node publishes keeps none."""
        return self.state.pods.get(pod.metadata.uid) or read_pod(pod, self.state.resource)

    def find_pod(self, namespace: str, name: str) -> Pod:
        """Find a pod.

        Raises:
            InputError: there is no such pod; says whether there is such a namespace, where the name is, and
                which names there are like it.
        """
        elsewhere = set()
        there = []
        for pod in self.pods.values():
            if pod.metadata.name == name:
                if pod.metadata.namespace == namespace:
                    return pod
                elsewhere.add(pod.metadata.namespace)
            if pod.metadata.namespace == namespace:
                there.append(pod.metadata.name)
        where = f"{self.source} has no pod {shown(name)} in namespace {shown(namespace)}"
        if elsewhere:
            more = f"; pods of that name are in {', '.join(sorted(elsewhere)[:_NAMED])}: use -n"
        elif not there:
            more = ", and no pod at all in that namespace"
        else:
            begun = sorted(other for other in there if name and other.startswith(name))
            near = begun[:_NAMED] or get_close_matches(name, there[:_COMPARED], _NAMED)
            more = f"; did you mean {', '.join(map(shown, near))}?" if near else ""
        raise InputError(where + more)

    def find_queue(self, pod: Pod) -> str:
        """Find the queue that has to admit a pod, or one in its place; empty: none."""
        label = pod.metadata.get_label(QUEUE_NAME) or ""
        return label if isinstance(self.queue, str) else self.queue.find_queue(pod.metadata.namespace, label)

    def read_request(self, pod: Pod) -> PodRequest | None:
        """Read what a pod asks of cards, None: nothing.

        Raises:
            RequestError: it asks for what cannot be given.
        """
        found = parse_pod_request(drop_unknown_policies(pod), self.state.resource)
        if found.error:
            raise RequestError(found.error)
        return found.request

    def make_query(self, request: PodRequest, requirements: HostRequirements) -> SchedulingRequest:
        return self.policies.make_request(self.state.nodes, request, requirements.amounts)

    def list_waiting_pods(self) -> list[Pod]:
        """List the pods that wait and ask for cards, in whatever unit, by namespace and name."""
        found = [
            pod
            for uid, record in self.state.pods.items()
            if record.is_waiting and (pod := self.pods.get(uid)) is not None and self.asks_for_cards(pod)
        ]
        return sorted(found, key=lambda pod: pod.full_name)

    def asks_for_cards(self, pod: Pod) -> bool:
        """Return True if a pod asks for GPU memory in any unit, or waits with a request that is refused."""
        record = self.state.pods.get(pod.metadata.uid)
        is_refused = record is not None and record.is_waiting and bool(record.error)
        return is_refused or read_requested_unit(pod) is not None

    def build_inventory(self) -> "list[NodeRow]":
        """Build the nodes, their cards and the pods on them, as `gpupack top` shows them."""
        from gpupack.inventory.objects import NodesAndPods  # noqa: PLC0415
        from gpupack.inventory.rows import build_rows  # noqa: PLC0415

        nodes, pods, claims = (list(each.values()) for each in (self.nodes, self.pods, self.claims))
        return build_rows(NodesAndPods(nodes, pods, claims))  # type: ignore[arg-type]


def _are(some: int, of: int) -> str:
    return f"{some} of {of} nodes {'is' if some == 1 else 'are'}"


def _at(now: float | None) -> float:
    return time.monotonic() if now is None else now


class UnitCounter:
    """Counts the nodes that publish their words in each unit."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._unit_by_node: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        for node in nodes:
            self.put(node)

    def put(self, node: Node) -> None:
        self.drop(node.metadata.name)
        text = (node.status.allocatable or {}).get(PACKED_LAYOUT)
        if text is not None:
            with suppress(AllocatorError):
                unit = recall_layout(parse_integer(text)).unit_mib
                self._unit_by_node[node.metadata.name] = unit
                self._counts[unit] += 1

    def drop(self, name: str) -> None:
        unit = self._unit_by_node.pop(name, None)
        if unit is not None:
            self._counts[unit] -= 1

    def get_unit(self, name: str) -> int | None:
        """Return the MiB of the unit of a node's words; None if it publishes none that can be read."""
        return self._unit_by_node.get(name)

    @property
    def units(self) -> frozenset[int]:
        return frozenset(+self._counts)

    @property
    def most_common_mib(self) -> int | None:
        """MiB of the unit that most nodes publish; None if none does."""
        counts = +self._counts
        return max(counts, key=lambda unit: (counts[unit], unit == MIB_PER_GIB, unit), default=None)


def read_requested_unit(pod: Pod) -> int | None:
    """Read the MiB of the unit that a pod asks in; 0: in percent; None: it asks for no GPU memory."""
    names = pod.spec.requested_resources
    percent = 0 if PERCENT_RESOURCE in names else None
    return next((unit for name in names if (unit := unit_of_resource(name)) is not None), percent)
