"""Shapes of nodes that an autoscaler can add, learned from nodes that exist or declared in a file."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from allocator.cards import Card
from allocator.errors import QuantityError, shown
from allocator.names import COMPUTE_RESOURCE, NODE_LABEL, STARTUP_TAINT
from allocator.packing import MAX_NODE_CARDS
from allocator.quantity import format_memory, parse_bytes, parse_milli, recall_integer
from allocator.request import WHOLE, PodRequest
from gpupack.autoscale.waiting_pods import with_compute
from gpupack.errors import InputError
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import HostRequirements
from kubeapi.bounded_yaml import load_yaml
from kubeapi.names import LABEL_KEY, LABEL_VALUE, is_label_key, is_label_value
from kubeapi.objects import Node, Pod
from kubeapi.selectors import HOSTNAME, Taint
from scheduler_plugin.cache.amounts import NOTHING, Amounts, read_amount, sum_amounts
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.empty_nodes import make_empty_node
from scheduler_plugin.cache.pods import is_other_resource
from scheduler_plugin.scheduling.node_fit import DEFAULT_MAX_PODS
from scheduler_plugin.scheduling.scratch_node import ScratchNode

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"

DAEMON_SET_POD_ANNOTATION: Final = "cluster-autoscaler.kubernetes.io/daemonset-pod"

GROUP_LABELS: Final = (
    INSTANCE_TYPE,
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "karpenter.sh/nodepool",
    "nvidia.com/gpu.product",
)
"""Labels that tell nodes with other cards apart on the usual clouds, in the order in which they are tried."""

PASSING_TAINTS: Final = (
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.cilium.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/",
)
"""How the keys of taints begin that a node has for a while only: a new node is thought to be without them."""

CARD_POLICY: Final = "most-used"
"""Packs tightest; kube-scheduler may need a further node where another policy spreads pods."""

_EXAMPLES: Final = 16
"""Nodes of a shape that stand for all of its nodes."""

MOST_SHAPES: Final = 64
MOST_GIB: Final = 16_384
"""GiB of one card at most in a file of shapes; no card has a tenth of it."""

CardSet = tuple[tuple[str, int], ...]
"""Model and units of each card of a node, in order."""


@dataclass(frozen=True)
class Shape:
    """A kind of node that an autoscaler can add.

    Attributes:
        name: For people, and unlike that of every other shape.
        node: Such a node, as it is when all its parts and `pods` have started. A learned one offers the most
            units over all cards that a ready node of the shape offers.
        offered: The fewest units that a ready node of the shape offers: an autoscaler may take that very node
            for its template.
        compute: Percent of compute over all cards that an autoscaler knows such a node to offer: as much as
            each of those does that it was learned from.
        nodes: Names of the nodes that it was learned from.
        pods: Those that every new node has, see `_find_pods_everywhere`; it takes none that must be apart
            from one of them.
    """

    name: str
    node: Node
    card_set: CardSet
    offered: int
    declared: bool = False
    nodes: frozenset[str] = frozenset()
    compute: int = 0
    pods: tuple[HostRequirements, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels or {}

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.node.spec.taints or ()


class Shapes:
    """The known shapes as a cluster of one empty node each, which filter can be asked about."""

    def __init__(self, shapes: Sequence[Shape], unit_mib: int) -> None:
        self.by_name = {shape.name: shape for shape in shapes}
        self.cluster = Cluster({shape.name: shape.node for shape in shapes}, {}, unit_mib)
        self._cards: dict[str, tuple[Card, ...]] = {}

    def cards(self, name: str) -> tuple[Card, ...]:
        found = self._cards.get(name)
        if found is None:
            nodes = self.cluster.state.nodes
            found = self._cards[name] = build_cards(nodes, nodes.rows[name])
        return found

    @cached_property
    def by_cards(self) -> dict[CardSet, list[Shape]]:
        found: dict[CardSet, list[Shape]] = {}
        for shape in self.by_name.values():
            found.setdefault(shape.card_set, []).append(shape)
        return found

    def amounts(self, name: str) -> Amounts:
        """Find what an autoscaler certainly knows an empty node to have."""
        shape, capacity = self.by_name[name], self.cluster.state.node_records[name].capacity
        return with_compute(capacity._replace(units=shape.offered), shape.compute)


def read_card_sets(cluster: Cluster) -> dict[str, CardSet]:
    """Read the cards of all nodes that publish them, by name."""
    nodes = cluster.state.nodes
    rows = cluster.rows[nodes.usable[cluster.rows]]
    # Most nodes are like many others: each kind is written once.
    kinds, which = np.unique(
        np.hstack([nodes.size[rows], nodes.model[rows], nodes.cards[rows][:, None]]),
        axis=0,
        return_inverse=True,
    )
    width = nodes.size.shape[1]
    written = []
    for kind in kinds.tolist():
        models = [nodes.model_names[model] if model >= 0 else "" for model in kind[width : 2 * width]]
        written.append(tuple(sorted(zip(models[: kind[-1]], kind[: kind[-1]], strict=True))))
    return {
        nodes.names[row]: written[at] for row, at in zip(rows.tolist(), which.ravel().tolist(), strict=True)
    }


def leave_out_claims(cluster: Cluster, card_sets: Mapping[str, CardSet]) -> dict[str, CardSet]:
    """Leave out nodes that serve claims: they offer units to no autoscaler, which adds none like them."""
    records = cluster.state.node_records
    return {name: cards for name, cards in card_sets.items() if not records[name].serves_claims}


def learn_shapes(cluster: Cluster, keys: Collection[str], card_sets: Mapping[str, CardSet]) -> list[Shape]:
    """Learn the shapes of the nodes that exist.

    Nodes are of one shape where they have the same cards, taints and labels. Only those labels count that
    waiting pods refer to, or that tell groups of nodes apart. A node with much cpu left beside its DaemonSets
    stands for all of them.

    Args:
        keys: Labels that rules of pods refer to.
    """
    wanted = sorted({*keys, *GROUP_LABELS} - {HOSTNAME})
    groups: dict[tuple[CardSet, tuple[str | None, ...], tuple[Taint, ...]], list[Node]] = {}
    for name, card_set in card_sets.items():
        node = cluster.nodes[name]
        labels = node.metadata.labels or {}
        values = tuple([labels.get(key) for key in wanted])
        groups.setdefault((card_set, values, lasting_taints(node)), []).append(node)
    everywhere = _find_pods_everywhere(cluster)
    empty = {
        name: record.capacity.subtract(
            sum_amounts(cluster.state.pods[uid].amounts for uid in everywhere[name])
        )
        for name, record in cluster.state.node_records.items()
    }
    shapes = []
    for number, ((card_set, _values, taints), members) in enumerate(
        sorted(groups.items(), key=lambda group: str(group[0]))
    ):
        if number >= MOST_SHAPES:
            break
        example = max(members[:_EXAMPLES], key=lambda node: (empty[node.name].cpu_milli, node.name))
        units = [empty[node.name].units for node in members if node.ready is not False]
        offered = [each for each in units if each > 0] or [sum(size for _, size in card_set)]
        amounts = empty[example.name]._replace(units=max(offered), percent=0)
        labels = _common_labels(example, members)
        name = f"{labels.get(INSTANCE_TYPE) or describe_card_set(card_set, cluster.unit_mib)} #{number + 1}"
        requests = (cluster.state.pods[uid].charged for uid in everywhere[example.name])
        shapes.append(
            Shape(
                name,
                _empty_node(
                    name,
                    card_set,
                    cluster.unit_mib,
                    labels,
                    taints,
                    amounts,
                    _learn_compute_limit(cluster, members),
                    [request for request in requests if request is not None],
                ),
                card_set,
                min(offered),
                nodes=frozenset(node.name for node in members),
                compute=min(map(read_offered_compute, members)),
                pods=tuple(HostRequirements.from_pod(cluster.pods[uid]) for uid in everywhere[example.name]),
            )
        )
    return shapes


def _learn_compute_limit(cluster: Cluster, members: Sequence[Node]) -> int:
    """Find the least percent of its compute that a card of the nodes gives away.

    Daemons of older versions publish none: a new node's daemon does.
    """
    nodes = cluster.state.nodes
    limits = (int(nodes.compute_limit[nodes.rows[node.name]]) for node in members)
    return min((limit for limit in limits if limit), default=WHOLE)


def read_offered_compute(node: Node) -> int:
    """Read the percent of compute that a node offers over all cards; 0 where it offers none."""
    return read_amount((node.status.allocatable or {}).get(COMPUTE_RESOURCE), recall_integer)


def _common_labels(example: Node, members: Sequence[Node]) -> dict[str, str]:
    common = set((example.metadata.labels or {}).items())
    for node in members:
        common &= (node.metadata.labels or {}).items()
    return dict(sorted(common))


def lasting_taints(node: Node) -> tuple[Taint, ...]:
    """List the taints that a new node of the same group would keep."""
    taints = (taint for taint in node.spec.taints or () if not taint.key.startswith(PASSING_TAINTS))
    return tuple(sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect)))


def describe_card_set(card_set: CardSet, unit_mib: int) -> str:
    """Write cards for people: "2 x 80 GiB NVIDIA H100"."""
    parts = []
    for model, size in dict.fromkeys(card_set):
        text = format_memory(size, unit_mib)
        parts.append(f"{card_set.count((model, size))} x {text}{f' {model}' if model else ''}")
    return ", ".join(parts)


def is_on_new_nodes(pod: Pod) -> bool:
    """Return True if a new node like the pod's has such a pod, too, so that the pod ends with its node.

    As for Cluster Autoscaler these are static pods and those of DaemonSets (`podsExpectedOnFreshNode`). A pod
    can say by annotation that it counts as a DaemonSet's.
    """
    counts_so = pod.metadata.get_annotation(DAEMON_SET_POD_ANNOTATION) == "true"
    return pod.is_of_daemon_set or pod.is_mirror or counts_so


def _find_pods_everywhere(cluster: Cluster) -> defaultdict[str, list[str]]:
    """Find, by node, the UIDs of pods that are not ending and that a new node like it has, too."""
    found = defaultdict[str, list[str]](list)
    for uid, record in cluster.state.pods.items():
        pod = cluster.pods.get(uid)
        is_everywhere = pod is not None and is_on_new_nodes(pod)
        if is_everywhere and not record.ended and record.grace_ends_at is None:
            found[record.node].append(uid)
    return found


def _empty_node(
    name: str,
    card_set: CardSet,
    unit_mib: int,
    labels: Mapping[str, str],
    taints: tuple[Taint, ...],
    amounts: Amounts,
    compute_limit: int = WHOLE,
    requests: Sequence[PodRequest] = (),
) -> Node:
    """Make a node on whose cards only pods are that ask for this."""
    cards = [(model, size * unit_mib) for model, size in card_set]
    node = ScratchNode(
        [
            Card(at, "", model, size, 0, compute_limit=compute_limit)
            for at, (model, size) in enumerate(card_set)
        ],
        NOTHING,
    )
    for request in requests:
        node.put_pod(request, CARD_POLICY, NOTHING)
    used = [(card.used_units, card.compute_used) for card in node.cards]
    labels = {**labels, NODE_LABEL: "true"}
    return make_empty_node(
        name, cards, unit_mib, amounts, labels, taints, cards_of="new", compute_limit=compute_limit, used=used
    )


# The file of shapes.

_FIELDS: Final = frozenset({"name", "cards", "cpu", "memory", "pods", "labels", "taints", "resources"})
_CARD_FIELDS: Final = frozenset({"count", "model", "mib"})
_EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")


def read_shapes(text: str, unit_mib: int, source: str = "the file of shapes") -> list[Shape]:
    """Read a file of shapes.

    Args:
        text: YAML: `shapes:` with a list of name, cards (count, model, mib), cpu, memory, labels, taints.
        source: Where the text comes from, for messages.

    Raises:
        InputError: lists every fault, one a line, each with its path.
    """
    try:
        document, faults = load_yaml(text)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    if (
        not isinstance(document, dict)
        or set(document) != {"shapes"}
        or not isinstance(document["shapes"], list)
    ):
        raise InputError(f"{source}; allowed: `shapes:` with a list, see docs/howto/autoscaling.md")
    if len(document["shapes"]) > MOST_SHAPES:
        raise InputError(f"{source}: {len(document['shapes'])} shapes; allowed: {MOST_SHAPES} at most")
    shapes: list[Shape] = []
    names: set[str] = set()
    for number, entry in enumerate(document["shapes"]):
        at = f"shapes[{number}]"
        before = len(faults)
        if not isinstance(entry, dict):
            faults.append(f"{at} is {shown(entry)}; allowed: a mapping")
            continue
        faults += [
            f"{at}: {shown(key)} is not known; allowed: {', '.join(sorted(_FIELDS))}"
            for key in entry
            if key not in _FIELDS
        ]
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in names:
            faults.append(f"{at}.name is {shown(name)}; allowed: a name that no other shape has")
        else:
            names.add(name)
        card_set = tuple(sorted(_cards(entry.get("cards"), f"{at}.cards", unit_mib, faults)))
        cpu = _amount(entry, "cpu", at, parse_milli, faults)
        memory = _amount(entry, "memory", at, parse_bytes, faults)
        pods = entry.get("pods", DEFAULT_MAX_PODS)
        if not isinstance(pods, int) or isinstance(pods, bool) or pods < 1:
            faults.append(f"{at}.pods is {shown(pods)}; allowed: a whole number from 1")
            pods = 1
        labels = _labels(entry.get("labels") or {}, f"{at}.labels", faults)
        others = _resources(entry.get("resources") or {}, f"{at}.resources", faults)
        taints = tuple(_taints(entry.get("taints") or [], f"{at}.taints", faults))
        if len(faults) == before:
            total = sum(size for _, size in card_set)
            amounts = Amounts(pods, cpu, memory, others=tuple(sorted(others.items())))
            node = _empty_node(str(name), card_set, unit_mib, labels, taints, amounts)
            shapes.append(Shape(str(name), node, card_set, total, declared=True))
    if faults:
        raise InputError("\n".join(f"{source}: {fault}" for fault in faults))
    return shapes


def _cards(value: Any, at: str, unit_mib: int, faults: list[str]) -> Iterable[tuple[str, int]]:
    if not isinstance(value, list) or not value:
        faults.append(f"{at} is {shown(value)}; allowed: a list with at least one entry")
        return
    total = 0
    for number, entry in enumerate(value):
        here = f"{at}[{number}]"
        if not isinstance(entry, dict) or not set(entry) <= _CARD_FIELDS:
            faults.append(
                f"{here} is {shown(entry)}; allowed: a mapping of {', '.join(sorted(_CARD_FIELDS))}"
            )
            continue
        count, model, mib = entry.get("count", 1), entry.get("model", ""), entry.get("mib")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_NODE_CARDS:
            faults.append(
                f"{here}.count is {shown(count)}; allowed: a whole number from 1 to {MAX_NODE_CARDS}"
            )
            continue
        if not isinstance(model, str):
            faults.append(f"{here}.model is {shown(model)}; allowed: the driver's name of the model")
            continue
        most = MOST_GIB << 10
        if not isinstance(mib, int) or isinstance(mib, bool) or not unit_mib <= mib <= most:
            faults.append(
                f"{here}.mib is {shown(mib)}; allowed: a whole number of MiB from {unit_mib} to {most}"
            )
            continue
        total += count
        if total > MAX_NODE_CARDS:
            faults.append(f"{at}: {total} cards; allowed: {MAX_NODE_CARDS} at most")
            return
        yield from [(model, mib // unit_mib)] * count


def _amount(entry: Mapping[str, Any], key: str, at: str, parse: Any, faults: list[str]) -> int:
    value = entry.get(key)
    amount = _quantity(value, parse)
    if amount is None or amount <= 0:
        faults.append(f"{at}.{key} is {shown(value)}; allowed: a quantity of Kubernetes that is more than 0")
        return 0
    return amount


def _quantity(value: Any, parse: Any) -> int | None:
    """Read an amount as people write it in YAML, where 3.5 is a number; None if it is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return int(parse(str(value)))
    except QuantityError:
        return None


def _resources(value: Any, at: str, faults: list[str]) -> dict[str, int]:
    resources: dict[str, int] = {}
    for name, amount in value.items() if isinstance(value, dict) else [("", value)]:
        read = _quantity(amount, parse_bytes)
        if read is None or read < 0 or not isinstance(name, str) or not name or not is_other_resource(name):
            faults.append(f"{at} has {shown(name)}: {shown(amount)}; allowed: quantities of other resources")
        else:
            resources[name] = read
    return resources


def _labels(value: Any, at: str, faults: list[str]) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    ):
        faults.append(f"{at} is {shown(value)}; allowed: a mapping of text to text")
        return {}
    for key, text in value.items():
        _check_label(key, text, at, faults)
    return dict(value)


def _check_label(key: str, value: str, at: str, faults: list[str]) -> None:
    """Check the key and the value of a label or a taint: the API server takes no placeholder with others."""
    if not is_label_key(key):
        faults.append(f"{at} has the key {shown(key)}; allowed: {LABEL_KEY}")
    if not is_label_value(value):
        faults.append(f"{at} has {shown(key)}: {shown(value)}; allowed: {LABEL_VALUE}")


def _taints(value: Any, at: str, faults: list[str]) -> Iterable[Taint]:
    if not isinstance(value, list):
        faults.append(f"{at} is {shown(value)}; allowed: a list")
        return
    for number, entry in enumerate(value):
        taint = entry if isinstance(entry, dict) else {}
        key, text, effect = taint.get("key"), taint.get("value", ""), taint.get("effect")
        if not (isinstance(key, str) and key and isinstance(text, str) and effect in _EFFECTS):
            faults.append(
                f"{at}[{number}] is {shown(entry)}; allowed: key, value, effect ({', '.join(_EFFECTS)})"
            )
            continue
        _check_label(key, text, f"{at}[{number}]", faults)
        if not key.startswith(PASSING_TAINTS):
            yield Taint(key, text, effect)


def has_startup_taint(node: Node) -> bool:
    """Tell whether a node still has the taint that its daemon takes away."""
    return any(taint.key == STARTUP_TAINT for taint in node.spec.taints or ())
