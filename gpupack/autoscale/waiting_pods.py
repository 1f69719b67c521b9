"""Pods that wait for cards, grouped by everything that decides where they may go."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import msgspec

from allocator.names import COMPUTE_RESOURCE
from allocator.request import PodRequest
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import (
    NODE_NAME,
    HostRequirements,
    find_apart_keys,
    wants_near,
)
from kubeapi.objects import Pod
from kubeapi.selectors import HOSTNAME, NodeRules, NodeTerm, join_terms
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.scheduling.pod_affinity import PodAffinityFilter, read_affinity


class Outcome(StrEnum):
    """What `gpupack autoscale` does for a pod that waits, and if nothing, why."""

    ASKED = "asked"
    COVERED = "covered"
    NOT_TRIED = "not_tried"
    GATED = "gated"
    RESERVED = "reserved"
    FITS = "fits"
    GRACE = "grace"
    SUM_SHORT = "sum_short"
    NO_SHAPE = "no_shape"
    NO_LABEL = "no_label"
    LIMIT = "limit"
    OFF = "off"


SENTENCES = {
    Outcome.ASKED: "a placeholder pod asks the cluster autoscaler for a node with the cards",
    Outcome.COVERED: "nodes that are starting, or that are added for other pods, have the cards",
    Outcome.NOT_TRIED: "its scheduler has not found it unschedulable",
    Outcome.GATED: "a scheduling gate holds it, so no node is asked for",
    Outcome.RESERVED: "a node is being kept for it while other pods leave",
    Outcome.FITS: "a node has the cards now",
    Outcome.GRACE: "it was refused a moment ago; a node is asked for after the grace time",
    Outcome.SUM_SHORT: "the cluster autoscaler sees by itself that no node has enough left",
    Outcome.NO_SHAPE: "no node that could be added would take it",
    Outcome.NO_LABEL: "no label tells nodes that would take it from others that would not",
    Outcome.LIMIT: "as many placeholder pods as allowed ask for nodes already",
    Outcome.OFF: "it needs a new node; none is asked for, because of --no-placeholders",
}


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that has no node, as the API server has it and as filter reads it."""

    pod: Pod
    record: PodRecord
    request: PodRequest

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort the pod as schedulers do: the most important first, then the oldest."""
        return (-self.record.priority, self.pod.metadata.created_at, self.pod.full_name)


@dataclass(eq=False)
class EquivalentPods:
    """Waiting pods that may go to the same nodes and ask for the same.

    Attributes:
        pods: In the order of their importance.
    """

    cluster: Cluster
    pods: list[WaitingPod] = field(default_factory=list)

    @property
    def request(self) -> PodRequest:
        return self.pods[0].request

    @cached_property
    def requirements(self) -> HostRequirements:
        return HostRequirements.from_pod(self.pods[0].pod)

    @cached_property
    def affinity(self) -> PodAffinityFilter | None:
        """What they and the pods that run say of each other; None if no term matters."""
        return self.cluster.kube_checks.make_affinity_filter(self.requirements)

    @cached_property
    def rules(self) -> NodeRules:
        """The new nodes that they may run on, by their own rules and by the pods that run.

        A new node has a host name of its own: it is apart from all pods by it, and near to none.
        """
        rules = self.requirements.rules
        conditions = [] if self.affinity is None else self.affinity.list_conditions()
        kept = tuple(each for each in conditions if each.key != HOSTNAME or each.operator == "In")
        return (
            msgspec.structs.replace(rules, terms=join_terms(rules.terms, (NodeTerm(kept),)))
            if kept
            else rules
        )

    def waits_for(self, other: "EquivalentPods") -> bool:
        """Tell whether a pod has to run on a new node first, before it is known which others take these."""
        own, others = self.requirements, other.requirements
        if self.affinity is not None and self.affinity.begins and wants_near(own, others):
            return True
        return bool(find_apart_keys(own, others) - {HOSTNAME, NODE_NAME})

    @cached_property
    def amounts(self) -> Amounts:
        """What each pod asks of a node besides the choice of cards."""
        return self.requirements.amounts.with_sums(self.request)

    @cached_property
    def sums(self) -> Amounts:
        """What an autoscaler adds up of each pod."""
        return with_compute(self.amounts, self.request.effective_compute)

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """Labels that a node needs for them; where they must not be, their placeholder says."""
        rules, pod = self.requirements.rules, self.requirements.pod
        keys = {key for key, _ in rules.selector}
        keys |= {term.topology_key for term in (read_affinity(pod) if pod is not None else ())}
        for term in rules.terms or ():
            keys |= {each.key for each in term.match_expressions or ()}
        return frozenset(keys)


def with_compute(amounts: Amounts, percent: int) -> Amounts:
    """Add compute: to an autoscaler it is one more resource, which kube-scheduler leaves to the extender."""
    return amounts.add(Amounts(others=((COMPUTE_RESOURCE, percent),)))


def list_waiting_pods(cluster: Cluster) -> list[WaitingPod]:
    """List the pods that wait for cards which they can be given, the most important first."""
    records = ((pod, cluster.state.pods[pod.metadata.uid]) for pod in cluster.list_waiting_pods())
    found = [WaitingPod(pod, record, record.request) for pod, record in records if record.request is not None]
    return sorted(found, key=lambda waiting: waiting.order)


def group_by_kind(cluster: Cluster, pods: Iterable[WaitingPod]) -> list[EquivalentPods]:
    kinds: dict[Hashable, EquivalentPods] = {}
    for waiting in pods:
        requirements = HostRequirements.from_pod(waiting.pod)
        key = waiting.request, requirements.make_key(cluster.selected_labels)
        kinds.setdefault(key, EquivalentPods(cluster)).pods.append(waiting)
    return list(kinds.values())
