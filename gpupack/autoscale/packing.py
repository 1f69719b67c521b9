"""Counts the new nodes that pods need: the largest pod first, each on the fullest card that takes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpupack.autoscale.shapes import CARD_POLICY, Shape, Shapes, describe_card_set
from gpupack.autoscale.waiting_pods import SENTENCES, EquivalentPods, Outcome, WaitingPod
from gpupack.whatif.kube_checks import find_apart_keys
from gpupack.whatif.what_if import WhatIf
from kubeapi.selectors import NodeTerm, join_terms
from scheduler_plugin.scheduling.scratch_node import ScratchNode

_NAMED: Final = 5

MOST_TERMS: Final = 32
"""Terms of a placeholder's node affinity at most; pods whose rules together need more share no node."""


@dataclass
class NewNode:
    """A node that does not exist yet, and the pods that fit on its cards together.

    Attributes:
        node: What the pods leave of it.
        terms: The required node affinity of all of them together; None: there is none.
    """

    shape: Shape
    node: ScratchNode
    pods: list[tuple[WaitingPod, EquivalentPods]] = field(default_factory=list)
    terms: tuple[NodeTerm, ...] | None = None

    @property
    def units(self) -> int:
        return sum(card.used_units for card in self.node.cards)

    @property
    def size(self) -> int:
        return sum(card.size_units for card in self.node.cards)

    def take(self, pod: WaitingPod, kind: EquivalentPods) -> bool:
        """Put a pod on the node if everything that it asks for is left; return True if it was put there."""
        requirements = kind.requirements
        if any(find_apart_keys(requirements, other.requirements) for _, other in self.pods):
            return False
        terms = join_terms(self.terms, kind.rules.terms)
        if terms is not None and len(terms) > MOST_TERMS and self.pods:
            return False
        if self.node.put_pod(kind.request, CARD_POLICY, kind.amounts) is None:
            return False
        self.pods.append((pod, kind))
        self.terms = terms
        return True


class Packer:
    """Packs pods on empty nodes of the shapes that are known.

    Args:
        left_out: Nodes that are no shapes, and why, in a sentence; empty if there are none.

    Attributes:
        held_back: UIDs of pods for which a node can be chosen once others run, see `waits_for`.
    """

    def __init__(self, shapes: Shapes, left_out: str = "") -> None:
        self._shapes = shapes
        self._left_out = left_out
        self._taking: dict[int, frozenset[str]] = {}
        self.held_back: set[str] = set()

    def shapes_for(self, kind: EquivalentPods) -> frozenset[str]:
        shapes = self._taking.get(id(kind))
        if shapes is None:
            cluster = self._shapes.cluster
            # These nodes are in a cluster of their own: the pods that run count by the rules.
            requirements = replace(kind.requirements, rules=kind.rules, pod=None)
            what_if = WhatIf(cluster, cluster.make_query(kind.request, requirements), requirements)
            rows = what_if.find_rows().tolist() if cluster.nodes else ()
            known = (self._shapes.by_name[cluster.state.nodes.names[row]] for row in rows)
            shapes = frozenset(
                shape.name
                for shape in known
                if not any(find_apart_keys(kind.requirements, pod) for pod in shape.pods)
            )
            self._taking[id(kind)] = shapes
        return shapes

    def share_shapes(self, kind: EquivalentPods, other: EquivalentPods) -> None:
        """Note that pods of a kind are some of those of another one."""
        self._taking[id(kind)] = self.shapes_for(other)

    def why_no_shape(self) -> str:
        """Say that no node that could be added takes a pod, and which could be added."""
        said = SENTENCES[Outcome.NO_SHAPE]
        more = f"; {self._left_out}" if self._left_out else ""
        if not self._shapes.by_name:
            return f"{said}: no node with cards exists to learn from, and none is declared (--shapes){more}"
        unit_mib = self._shapes.cluster.unit_mib
        there = sorted({describe_card_set(card_set, unit_mib) for card_set in self._shapes.by_cards})
        return f"{said}: known are nodes of {'; '.join(there[:_NAMED])}{more}"

    def pack(self, kinds: Sequence[EquivalentPods], most: int) -> list[NewNode]:
        """Fill new nodes until all pods have one, at most so many.

        Each node is of the shape that the pods left fill best, a smaller one before a larger one.
        """
        largest = int(self._shapes.cluster.state.nodes.size.max(initial=0))
        order = sorted(kinds, key=lambda kind: _make_size_key(kind, largest))
        left = {id(kind): list(kind.pods) for kind in order if self.shapes_for(kind)}
        new_nodes: list[NewNode] = []
        while len(new_nodes) < most and any(left.values()):
            there = [kind for kind in order if left.get(id(kind))]
            names = frozenset().union(*(self.shapes_for(kind) for kind in there))
            nodes = [self._fill(name, there, left) for name in self._examples(names, there)]
            best = max(
                nodes, key=lambda node: (node.units / node.size, -node.size, len(node.pods), node.shape.name)
            )
            taken = {pod.uid for pod, _ in best.pods}
            others = {kind for _, kind in best.pods}
            for kind in there:
                pods = [pod for pod in left[id(kind)] if pod.uid not in taken]
                if any(kind.waits_for(other) for other in others):
                    self.held_back |= {pod.uid for pod in pods}
                    pods = []
                left[id(kind)] = pods
            new_nodes.append(best)
        return new_nodes

    def _examples(self, names: frozenset[str], kinds: Sequence[EquivalentPods]) -> list[str]:
        """Leave out shapes that take the same pods and have the same resources as another one."""
        seen = set()
        found = []
        for name in sorted(names):
            taking = tuple(name in self.shapes_for(kind) for kind in kinds)
            key = (self._shapes.by_name[name].card_set, self._shapes.amounts(name), taking)
            if key not in seen:
                seen.add(key)
                found.append(name)
        return found

    def empty(self, name: str) -> NewNode:
        shapes = self._shapes
        capacity = shapes.cluster.state.node_records[name].capacity
        return NewNode(shapes.by_name[name], ScratchNode(shapes.cards(name), capacity))

    def _fill(self, name: str, kinds: Sequence[EquivalentPods], left: dict[int, list[WaitingPod]]) -> NewNode:
        node = self.empty(name)
        for kind in kinds:
            if name not in self.shapes_for(kind):
                continue
            for pod in left[id(kind)]:
                if not node.take(pod, kind):
                    break
        return node

    def takes_all(self, name: str, pods: Sequence[tuple[WaitingPod, EquivalentPods]]) -> bool:
        """Tell whether an empty node of a shape takes pods together."""
        node = self.empty(name)
        return all(name in self.shapes_for(kind) and node.take(pod, kind) for pod, kind in pods)


def _make_size_key(kind: EquivalentPods, size: int) -> tuple[int, ...]:
    """Make the sort key of kinds on cards of `size` units: what takes most of a node first."""
    most = max(demand.units_on(size) * demand.cards for demand in kind.request.demands)
    return (-most, *kind.request.make_hardness_key(size), -kind.amounts.cpu_milli)
