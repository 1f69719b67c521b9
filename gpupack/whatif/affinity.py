"""Checks the required half of InterPodAffinity: pods that must run near others, or apart."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from gpupack.whatif.objects import KubeNode, KubePod
from scheduler_plugin.cache.pod_affinity import AffinityTerm, read_affinity, read_anti_affinity


class InterPodAffinity:
    """The pods of a cluster, as the terms of others see them.

    Args:
        living: Pods that have a node and are not over.
    """

    def __init__(self, nodes: Mapping[str, KubeNode], living: Sequence[KubePod]) -> None:
        self._nodes = nodes
        self._living = living

    @cached_property
    def _pods_with_anti_affinity(self) -> list[tuple[KubePod, list[AffinityTerm]]]:
        return [(pod, found) for pod in self._living if (found := read_anti_affinity(pod))]

    def is_wanted_near(self, pod: KubePod) -> bool:
        """Tell whether any other running pod wants this one near."""
        return any(
            term.matches(each, pod)
            for each, found in self._pods_with_affinity
            if each.metadata.uid != pod.metadata.uid
            for term in found
        )

    @cached_property
    def _pods_with_affinity(self) -> list[tuple[KubePod, list[AffinityTerm]]]:
        return [(pod, found) for pod in self._living if (found := read_affinity(pod))]

    def make_node_check(
        self, pod: KubePod, gone: Collection[str] = ()
    ) -> Callable[[str, KubeNode], str] | None:
        """Make a function that says of a node why a pod may not run there.

        Args:
            gone: UIDs of pods to leave out.

        Returns:
            A function of a node's name and object that answers in words, empty for nothing; None where no
            term of anybody matters.
        """
        terms = [term for term in read_affinity(pod) if term.is_readable]
        shunned = [
            (term.topology_key, self._topology_values(term, pod, gone))
            for term in read_anti_affinity(pod)
            if term.is_readable
        ]
        for other, found in self._pods_with_anti_affinity:
            if other.metadata.uid in gone or other.metadata.uid == pod.metadata.uid:
                continue
            shunned += [
                (term.topology_key, {self._topology_value(other.spec.node_name, term.topology_key)})
                for term in found
                if term.is_readable and term.matches(other, pod)
            ]
        near_values = self._values_wanted_near(terms, pod, gone)
        if not shunned and near_values is None:
            return None

        def why(_name: str, node: KubeNode) -> str:
            labels = node.metadata.labels or {}
            if any(key in labels and labels[key] in values for key, values in shunned):
                return "anti-affinity"
            if near_values is not None and any(labels.get(key) not in found for key, found in near_values):
                return "affinity"
            return ""

        return why

    def _values_wanted_near(
        self, terms: Sequence[AffinityTerm], pod: KubePod, gone: Collection[str]
    ) -> list[tuple[str, set[str]]] | None:
        """Find the values of labels where a pod may run that wants others near; None: anywhere."""
        if not terms:
            return None
        matching = [
            other
            for other in self._living
            if other.metadata.uid not in gone
            and other.metadata.uid != pod.metadata.uid
            and all(term.matches(pod, other) for term in terms)
        ]
        if not matching and all(term.matches(pod, pod) for term in terms):
            return None  # the first of a group that wants to be together
        return [
            (
                term.topology_key,
                {self._topology_value(other.spec.node_name, term.topology_key) for other in matching},
            )
            for term in terms
        ]

    def _topology_values(self, term: AffinityTerm, owner: KubePod, gone: Collection[str]) -> set[str]:
        """Values of the term's label on the nodes of the pods that it means."""
        return {
            self._topology_value(each.spec.node_name, term.topology_key)
            for each in self._living
            if each.metadata.uid not in gone
            and each.metadata.uid != owner.metadata.uid
            and term.matches(owner, each)
        }

    def _topology_value(self, node: str, key: str) -> str:
        found = self._nodes.get(node)
        return ((found.metadata.labels or {}) if found is not None else {}).get(key, "")
