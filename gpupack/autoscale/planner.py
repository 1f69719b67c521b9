"""Decides which placeholder pods ask for which nodes, from nodes, pods and shapes alone."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from allocator.names import NODE_HOST, NODE_LABEL
from gpupack.autoscale.packing import NewNode, Packer
from gpupack.autoscale.placeholders import MORE, Placeholder, make_placeholder
from gpupack.autoscale.shapes import (
    GROUP_LABELS,
    CardSet,
    Shape,
    Shapes,
    has_startup_taint,
    learn_shapes,
    leave_out_claims,
    read_card_sets,
)
from gpupack.autoscale.sum_view import (
    NodeVerdicts,
    SumView,
    count_nodes_by_sums,
    pack_by_sums,
)
from gpupack.autoscale.waiting_pods import (
    SENTENCES,
    EquivalentPods,
    Outcome,
    WaitingPod,
    group_by_kind,
    list_waiting_pods,
)
from gpupack.inventory.objects import is_chosen_for_daemon
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import GangMembers, find_gang_key, place_together
from gpupack.whatif.objects import list_stood_for
from gpupack.whatif.what_if import WhatIf
from kubeapi.names import is_label_value
from kubeapi.selectors import HOSTNAME
from scheduler_plugin.cache.amounts import Amounts, sum_amounts
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.scheduling.node_fit import can_run_on

STARTING_S: Final = 900.0
"""A node that is younger and takes no pods yet counts as starting; a cluster autoscaler waits as long."""

MANY_EXCLUDED: Final = 20
"""Longest list of nodes that a message names where a label keeps them out."""

MOST_EXCLUDED: Final = 500
"""Nodes that a placeholder names as full though they look free, at most."""


HELD_BACK: Final = "a node is added for pods that it has to be near to, or apart from: they have to run first"
CLAIMS_LEFT_OUT: Final = "nodes that serve claims are left out, for they offer nothing to an autoscaler"


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How placeholders are planned.

    Attributes:
        grace_s: How long a pod has to be refused on every node before a node is asked for.
        most: Placeholders at most at one time; 0: no node is asked for.
        host_label: Label by whose values placeholders avoid nodes that only look free.
        learns_from_nodes: Whether it takes a new node to offer what the nodes of its group do. Karpenter goes
            by its types of machines, none of which offers compute.
    """

    grace_s: float = 15.0
    most: int = 20
    host_label: str = HOSTNAME
    patience_s: float = STARTING_S
    learns_from_nodes: bool = True

    @property
    def refusal(self) -> Outcome:
        return Outcome.LIMIT if self.most else Outcome.OFF


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What is done for one pod that waits, or why nothing is."""

    pod: WaitingPod
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Plan:
    """A plan: the placeholders that should be there, and why no others.

    Attributes:
        pods: What is said of each pod that waits for cards, by UID.
        unlabelled: Values of `PlanRules.host_label`, by name of the nodes that need it and lack it.
    """

    placeholders: tuple[Placeholder, ...]
    pods: Mapping[str, PodOutcome]
    shapes: tuple[Shape, ...] = ()
    starting: tuple[str, ...] = ()
    unlabelled: Mapping[str, str] = field(default_factory=dict)

    def counts(self) -> Counter[Outcome]:
        return Counter(each.outcome for each in self.pods.values())


class _Outcomes:
    """The outcome for each pod, by UID."""

    def __init__(self) -> None:
        self.pods: dict[str, PodOutcome] = {}

    def note(self, pod: WaitingPod, outcome: Outcome, text: str = "") -> None:
        self.pods[pod.uid] = PodOutcome(pod, outcome, text or SENTENCES[outcome])

    def note_all(self, pods: Iterable[WaitingPod], outcome: Outcome, text: str = "") -> None:
        for pod in pods:
            self.note(pod, outcome, text)

    def sort_out(self, pods: Iterable[WaitingPod]) -> list[WaitingPod]:
        """Keep the pods that kube-scheduler found unschedulable, and that nothing else holds up."""
        unschedulable = []
        for pod in pods:
            if pod.record.is_gated:
                self.note(pod, Outcome.GATED)
            elif pod.record.nominated:
                self.note(pod, Outcome.RESERVED)
            elif not pod.pod.status.is_unschedulable:
                self.note(pod, Outcome.NOT_TRIED)
            else:
                unschedulable.append(pod)
        return unschedulable


@dataclass
class Planner:
    """Plans again and again; remembers since when each pod has been refused everywhere.

        unknown -> refused (grace) -> asked for -> bound, gone, or taken by some node: forgotten

    For a new leader the grace time is over of the pods for which placeholders are there already.
    """

    rules: PlanRules = field(default_factory=PlanRules)
    declared: Sequence[Shape] = ()
    _refused_at: dict[str, float] = field(default_factory=dict)
    _has_planned: bool = False
    _verdicts: NodeVerdicts = field(default_factory=NodeVerdicts)

    def plan(self, cluster: Cluster, now_s: float, wall_s: float) -> Plan:
        """Say which placeholders there should be.

        Args:
            wall_s: Seconds since 1970, for the age of nodes.
        """
        outcomes = _Outcomes()
        # 1. Leave out pods that wait for something else than cards, and those that a node takes.
        kinds = group_by_kind(cluster, outcomes.sort_out(list_waiting_pods(cluster)))
        refused = list(_keep_without_node(cluster, kinds))
        pods = {pod.uid: pod for kind in refused for pod in kind.pods}
        known = pods.keys()
        if not self._has_planned:
            self._refused_at = dict.fromkeys(find_asked_before(cluster, pods), now_s - self.rules.grace_s)
            self._has_planned = True
        self._refused_at = {uid: self._refused_at.get(uid, now_s) for uid in known}
        outcomes.note_all((pod for kind in kinds for pod in kind.pods if pod.uid not in known), Outcome.FITS)
        if not refused:
            return Plan((), outcomes.pods)
        # 2. Find what an autoscaler does by itself: of pods that fit by sums it does nothing.
        keys = frozenset[str]().union(*(kind.label_keys for kind in refused))
        card_sets = read_card_sets(cluster)
        addable = leave_out_claims(cluster, card_sets)
        shapes = Shapes([*self.declared, *learn_shapes(cluster, keys, addable)], cluster.unit_mib)
        view = SumView(cluster, self._verdicts, kinds)
        sums = pack_by_sums(view.copy(), kinds, partial(self._find_most_compute, shapes))
        short = [pair for pair in sums.short if self._is_expected(pair[0], now_s)]
        # 3. Pack all that are refused on new nodes, by cards.
        packer = Packer(shapes, CLAIMS_LEFT_OUT if len(addable) < len(card_sets) else "")
        due = self._keep_due(refused, packer, outcomes, sums.fit_by_sum, now_s)
        starting = find_starting_nodes(cluster, card_sets, wall_s)
        nodes = packer.pack(due, self.rules.most + len(starting) + len(short))
        # 4. Ask for those of them that do not come anyway.
        maker = _PlaceholderMaker(
            cluster, shapes, packer, sums.fit_by_sum, short, starting, self.rules.host_label
        )
        wanted = maker.wanted(nodes)
        placeholders = self._make_placeholders(maker, wanted, outcomes, view)
        packed = {pod.uid for node in nodes for pod, _ in node.pods}
        for pod in (pod for kind in due for pod in kind.pods if pod.uid not in outcomes.pods):
            if pod.uid in packer.held_back:
                outcomes.note(pod, Outcome.COVERED, HELD_BACK)
            else:
                outcomes.note(pod, Outcome.COVERED if pod.uid in packed else self.rules.refusal)
        return Plan(
            tuple(placeholders),
            outcomes.pods,
            tuple(shapes.by_name.values()),
            tuple(sorted(starting)),
            maker.unlabelled,
        )

    def _keep_due(
        self,
        refused: Sequence[EquivalentPods],
        packer: Packer,
        outcomes: "_Outcomes",
        fit_by_sum: frozenset[str],
        now_s: float,
    ) -> list[EquivalentPods]:
        """Keep the pods that need a new node now, and that one of the shapes takes."""
        due = []
        for kind in refused:
            if not packer.shapes_for(kind):
                outcomes.note_all(kind.pods, Outcome.NO_SHAPE, packer.why_no_shape())
                continue
            pods = []
            for pod in kind.pods:
                if pod.uid not in fit_by_sum:
                    outcomes.note(pod, Outcome.SUM_SHORT)
                    pods.append(pod)
                elif now_s - self._refused_at[pod.uid] < self.rules.grace_s:
                    outcomes.note(pod, Outcome.GRACE)
                else:
                    pods.append(pod)
            if pods:
                due.append(replace(kind, pods=pods))
                packer.share_shapes(due[-1], kind)
        return due

    def _make_placeholders(
        self, maker: "_PlaceholderMaker", wanted: Sequence[NewNode], outcomes: "_Outcomes", view: SumView
    ) -> list[Placeholder]:
        placeholders: list[Placeholder] = []
        for node in wanted:
            fit_by_sum = [pod for pod, _ in node.pods if pod.uid in maker.fit_by_sum]
            if len(placeholders) >= self.rules.most:
                outcomes.note_all(fit_by_sum, self.rules.refusal)
                continue
            made = maker.placeholder(node, view)
            outcomes.note_all(fit_by_sum, Outcome.NO_LABEL if made is None else Outcome.ASKED)
            if made is not None:
                placeholders.append(made)
        return placeholders

    def _find_most_compute(self, shapes: Shapes, kind: EquivalentPods) -> int:
        """Find the percent of compute of a new node for these pods, as far as the autoscaler knows."""
        if not self.rules.learns_from_nodes:
            return 0
        allowed = (shape for shape in shapes.by_name.values() if _allows_shape(shape, kind))
        return max((shape.compute for shape in allowed), default=0)

    def _is_expected(self, pod: WaitingPod, now_s: float) -> bool:
        """Tell whether the autoscaler, which sees the need of a pod, will still add a node for it."""
        since = self._refused_at.get(pod.uid, now_s)
        return now_s - since < self.rules.patience_s


def find_asked_before(cluster: Cluster, pods: Mapping[str, WaitingPod]) -> set[str]:
    """Find the pods, given by UID, for which placeholders stand that are in the cluster already."""
    living = (pod for pod in cluster.pods.values() if not pod.metadata.is_terminating)
    named = {name for pod in living for name in list_stood_for(pod)}
    if any(name.startswith(MORE) for name in named):
        return set(pods)
    return {uid for uid, waiting in pods.items() if waiting.pod.full_name in named}


def _keep_without_node(cluster: Cluster, kinds: Sequence[EquivalentPods]) -> Iterator[EquivalentPods]:
    """Keep the pods that no node takes, and of a gang those for which its other pods leave no room."""
    unplaced = _find_unplaced(cluster, kinds)
    for kind in kinds:
        if not _has_node(cluster, kind):
            yield kind
        elif pods := [pod for pod in kind.pods if pod.uid in unplaced]:
            yield replace(kind, pods=pods)


def _find_unplaced(cluster: Cluster, kinds: Sequence[EquivalentPods]) -> set[str]:
    """Find the UIDs of the pods that would be left over if all pods of their gang were placed at once."""
    gangs: defaultdict[tuple[str, str], dict[GangMembers, list[WaitingPod]]] = defaultdict(dict)
    for kind in kinds:
        by_gang: defaultdict[tuple[str, str], list[WaitingPod]] = defaultdict(list)
        for pod in kind.pods:
            key = find_gang_key(cluster, pod.pod)
            if key is not None:
                by_gang[key].append(pod)
        for key, pods in by_gang.items():
            gangs[key][_make_members(cluster, kind, len(pods))] = pods
    unplaced: set[str] = set()
    for parts in gangs.values():
        for members, left in place_together(cluster, list(parts)):
            pods = parts[members]
            unplaced |= {pod.uid for pod in pods[len(pods) - left :]}
    return unplaced


def _make_members(cluster: Cluster, kind: EquivalentPods, pods: int) -> GangMembers:
    query = cluster.make_query(kind.request, kind.requirements)
    return GangMembers(query, kind.requirements, pods)


def _has_node(cluster: Cluster, kind: EquivalentPods) -> bool:
    return WhatIf(cluster, cluster.make_query(kind.request, kind.requirements), kind.requirements).has_node()


def find_starting_nodes(
    cluster: Cluster, card_sets: Mapping[str, CardSet], wall_s: float
) -> dict[str, CardSet]:
    """Find the nodes that will take pods once their parts have started, with their cards where known.

    A node without published cards counts as ours with the label of the DaemonSet, the startup taint, or a
    label that nodes with cards have.
    """
    nodes = cluster.state.nodes
    types: dict[tuple[str, str], CardSet] | None = None
    starting: dict[str, CardSet] = {}
    for name, node in cluster.nodes.items():
        usable = bool(nodes.usable[nodes.rows[name]])
        if usable and node.ready is not False and not has_startup_taint(node):
            continue
        if wall_s - node.metadata.created_at >= STARTING_S:
            continue
        if usable:
            starting[name] = card_sets[name]
            continue
        types = _map_group_labels(cluster, card_sets) if types is None else types
        labels = node.metadata.labels or {}
        likely = next((types[pair] for pair in labels.items() if pair in types), None)
        if likely is not None:
            starting[name] = likely
        elif has_startup_taint(node) or is_chosen_for_daemon(node):
            starting[name] = ()
    return starting


def _map_group_labels(cluster: Cluster, card_sets: Mapping[str, CardSet]) -> dict[tuple[str, str], CardSet]:
    """Map labels and values to cards where all nodes with that label have the same ones."""
    found: dict[tuple[str, str], CardSet] = {}
    mixed = set()
    for name, card_set in card_sets.items():
        node = cluster.nodes[name]
        labels = node.metadata.labels or {}
        for key in GROUP_LABELS:
            if key in labels and found.setdefault((key, labels[key]), card_set) != card_set:
                mixed.add((key, labels[key]))
    return {pair: card_set for pair, card_set in found.items() if pair not in mixed}


@dataclass(frozen=True)
class _PlaceholderMaker:
    """A maker of placeholders, given the nodes that pods need by their cards."""

    cluster: Cluster
    shapes: Shapes
    packer: Packer
    fit_by_sum: frozenset[str]
    short: Sequence[tuple[WaitingPod, EquivalentPods]]
    starting: Mapping[str, CardSet]
    host_label: str = HOSTNAME
    labelled: dict[tuple[str, frozenset[str]], RowArray] = field(default_factory=dict)
    unlabelled: dict[str, str] = field(default_factory=dict)

    def wanted(self, nodes: Sequence[NewNode]) -> list[NewNode]:
        """Leave out the nodes that come anyway.

        Pods need `k` nodes by their cards. Nodes that are starting come anyway. So do nodes that the
        autoscaler adds for pods whose need it sees, for which it uses starting nodes first:

            asked for = k - max(starting, nodes for pods that are short by sums)

        Nodes are requested only for pods whose need the autoscaler does not see: for the others it adds nodes
        itself.
        """
        by_card_set: defaultdict[CardSet, list[NewNode]] = defaultdict(list)
        for node in nodes:
            by_card_set[node.shape.card_set].append(node)
        found: list[NewNode] = []
        for card_set, there in by_card_set.items():
            coming = max(self._starting(card_set), self._added_for_short(card_set))
            hidden = [node for node in there if any(pod.uid in self.fit_by_sum for pod, _ in node.pods)]
            found += hidden[: max(0, len(there) - coming)]
        return found

    def _starting(self, card_set: CardSet) -> int:
        return sum(known in {(), card_set} for known in self.starting.values())

    def _added_for_short(self, card_set: CardSet) -> int:
        """Count the nodes with these cards that the autoscaler adds without us."""
        most = 0
        for shape in self.shapes.by_cards[card_set]:
            pods = (kind for _, kind in self.short if _allows_shape(shape, kind))
            most = max(most, count_nodes_by_sums(pods, self.shapes.amounts(shape.name)))
        return most

    def placeholder(self, node: NewNode, view: SumView) -> Placeholder | None:
        """Make the pod that asks for a node; None if the autoscaler might add a useless node for it."""
        shape = node.shape
        amounts = sum_amounts(kind.amounts for _, kind in node.pods)
        # It is one pod, which asks for units, whatever its pods ask for.
        amounts = amounts._replace(pods=1, units=max(shape.offered, amounts.units), percent=0)
        labels = self._labels(node, self._useless(node, amounts))
        if labels is None:
            return None
        hidden = self._looking_free(node, amounts, labels, view)
        if len(hidden) > MANY_EXCLUDED:
            others = [each for each in self.shapes.by_name.values() if each.card_set != shape.card_set]
            narrower = self._labels(node, others)
            if narrower:
                labels, hidden = narrower, self._looking_free(node, amounts, narrower, view)
        if len(hidden) > MOST_EXCLUDED:
            return None
        hosts = sorted(self._host(name) for name in hidden)
        return make_placeholder(node, amounts, labels, {self.host_label: hosts}, self.cluster.state.resource)

    def _host(self, name: str) -> str:
        """Find the label value by which a node is excluded; a missing label has to be written first."""
        there = self.cluster.nodes[name].metadata.get_label(self.host_label)
        if self.host_label == HOSTNAME:
            return there or name
        value = host_value(name)
        if there != value:
            self.unlabelled[name] = value
        return value

    def _useless(self, node: NewNode, amounts: Amounts) -> list[Shape]:
        """Find the shapes that take a placeholder by their sums but whose cards do not take its pods."""
        return [
            shape
            for shape in self.shapes.by_name.values()
            if shape.card_set != node.shape.card_set
            and amounts.fits_in(self.shapes.amounts(shape.name))
            and all(_allows_shape(shape, kind) for _, kind in node.pods)
            and not self.packer.takes_all(shape.name, node.pods)
        ]

    def _labels(self, node: NewNode, others: Sequence[Shape]) -> Mapping[str, Collection[str]] | None:
        """Find the label that keeps a placeholder from nodes of other shapes; None if there is none."""
        if not others:
            return {}
        own = [
            shape
            for shape in self.shapes.by_cards[node.shape.card_set]
            if self.packer.takes_all(shape.name, node.pods)
        ]
        for key in _list_label_keys(own):
            values = {shape.labels[key] for shape in own if key in shape.labels}
            if values and all(shape.labels.get(key) not in values for shape in others):
                return {key: sorted(values)}
        return None

    def _looking_free(
        self, node: NewNode, amounts: Amounts, labels: Mapping[str, Collection[str]], view: SumView
    ) -> list[str]:
        """Name the nodes that take a placeholder by their sums, and refuse its pods."""
        there = view.keep_fitting(view.rows, amounts)
        for rules in {kind.rules for _, kind in node.pods} if len(there) else ():
            there = there[np.isin(there, view.find_allowed(rules))]
        for key, values in labels.items():
            there = there[np.isin(there, self._find_labelled(view, key, frozenset(values)))]
        return view.list_names(there)

    def _find_labelled(self, view: SumView, key: str, values: frozenset[str]) -> RowArray:
        rows = self.labelled.get((key, values))
        if rows is None:
            nodes = (self.cluster.nodes[name] for name in view.list_names(view.rows))
            found = [node.metadata.get_label(key) in values for node in nodes]
            rows = self.labelled[key, values] = view.rows[np.array(found, dtype=np.bool_)]
        return rows


def host_value(name: str) -> str:
    """Write a node's name as the value of a label: one that is too long for that as a digest."""
    return name if is_label_value(name) else hashlib.sha256(name.encode()).hexdigest()[:32]


def _list_label_keys(shapes: Sequence[Shape]) -> list[str]:
    """List the labels that could tell shapes from others, the likeliest first."""
    keys = {key for shape in shapes for key in shape.labels} - {HOSTNAME, NODE_LABEL, NODE_HOST}
    return [*(key for key in GROUP_LABELS if key in keys), *sorted(keys - set(GROUP_LABELS))]


def _allows_shape(shape: Shape, kind: EquivalentPods) -> bool:
    """Return True if the rules of pods, not their cards, allow a shape."""
    return can_run_on(shape.node.traits, kind.rules)
