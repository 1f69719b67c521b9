"""Filter and kube-scheduler's rules, asked about a pod that is changed, or about cards that are."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from allocator.cards import CardAmounts, add_amounts, pair_amounts
from allocator.place import Placement
from allocator.podcards import ByPosition, published_units
from allocator.request import PodRequest
from allocator.texts import name_cards
from gpupack.whatif.answers import NodeCards
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import count_by_node
from gpupack.whatif.gangs import GangMembers, can_fit_together, find_rows
from gpupack.whatif.kube_checks import HostRequirements
from kubeapi.objects import Pod
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.claim_charges import sum_shares
from scheduler_plugin.cache.pod_cards import PodCards, read_pod_cards
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.ranking import rank_best
from scheduler_plugin.scheduling.request import SchedulingRequest


@dataclass(frozen=True)
class WhatIf:
    """The pod of a question, as it is or changed.

    Attributes:
        requirements: What it asks for besides.
        pods: Pods of its gang that ask for the same, itself one of them: it is taken where all fit at once.
        others: Pods of its gang that ask for something else, which have to fit beside them.
    """

    cluster: Cluster
    query: SchedulingRequest
    requirements: HostRequirements
    pods: int = 1
    others: tuple[GangMembers, ...] = ()

    @property
    def is_alone(self) -> bool:
        return self.pods == 1 and not self.others

    @property
    def subject(self) -> str:
        """Name who starts, in words."""
        if self.is_alone:
            return "it"
        count = self.pods + sum(kind.pods for kind in self.others)
        return f"all {count} pods of its gang" if self.others else f"all {count} such pods of its gang"

    @property
    def fits_phrase(self) -> str:
        return "fits" if self.is_alone else f"fits for {self.subject} at once"

    def with_request(self, request: PodRequest) -> "WhatIf":
        return replace(self, query=self.cluster.make_query(request, self.requirements))

    def rank_nodes(self, *, only: RowArray | None = None) -> list[str]:
        """Rank the nodes that take it now, best first by the node policy."""
        nodes = self.cluster.state.nodes
        kept = self.find_rows(only=only)
        if not len(kept):
            return []
        scores = score_nodes(self.cluster.policies.get_policy(self.query.request), nodes, self.query, kept)
        return [
            nodes.names[row] for row in kept[rank_best(scores, nodes.name_rank[kept], len(kept))].tolist()
        ]

    def find_rows(self, *, leaving: Collection[str] = (), only: RowArray | None = None) -> RowArray:
        """Find the rows of the nodes that take it once pods of these UIDs are gone, in no order."""
        kept = self._find_rows(leaving, only)
        if self.is_alone or not len(kept):
            return kept
        everywhere = kept if only is None else self._find_rows(leaving, None)
        if self._count_at_once(everywhere, leaving) < self.pods:
            return kept[:0]
        return kept if self.can_fit_with_others(leaving) else kept[:0]

    def count_at_once(self) -> int:
        return self._count_at_once(self._find_rows((), None), ())

    def can_fit_with_others(self, leaving: Collection[str] = ()) -> bool:
        """Tell whether room is found for its pods and for those that ask for something else."""
        mine = GangMembers(self.query, self.requirements, self.pods)
        return not self.others or can_fit_together(self.cluster, (mine, *self.others), leaving)

    def _count_at_once(self, rows: RowArray, leaving: Collection[str]) -> int:
        counts = count_by_node(self.cluster, self.query, self.requirements, rows, self.pods, leaving)
        return min(self.pods, sum(counts.values()))

    def filter_rows(self, rows: RowArray) -> RowArray:
        """Keep the rows whose cards take one such pod, in their order."""
        return rows[filter_nodes(self.cluster.state.nodes, self.query, rows)]

    def has_node(self) -> bool:
        """Tell whether any node takes one such pod now; quicker than `find_rows` where many do."""
        left, count = self.filter_rows(self.cluster.rows), 16
        while len(left):
            if len(self._find_rows((), left[:count])):
                return True
            left, count = left[count:], count * 4
        return False

    def _find_rows(self, leaving: Collection[str], only: RowArray | None) -> RowArray:
        return find_rows(self.cluster, self.query, self.requirements, leaving, only)

    def choose_cards(self, node: str) -> Placement | None:
        """Choose the pod's cards on a node as bind does; None if it does not fit."""
        nodes = self.cluster.state.nodes
        policy = self.cluster.policies.get_policy(self.query.request)
        return place_by_policy(policy, nodes, nodes.rows[node], self.query)


@contextmanager
def without_pods(cluster: Cluster, usage: "PodCardUsage", pods: Iterable[PodRecord]) -> Iterator[None]:
    """Show filter the cards as if some pods had ended, for a while."""
    by_node: dict[str, list[PodRecord]] = {}
    for pod in pods:
        if pod.node in cluster.nodes:
            by_node.setdefault(pod.node, []).append(pod)
    charges: dict[int, dict[int, CardAmounts]] = {}
    for node, gone in by_node.items():
        on_node = charges.setdefault(cluster.state.nodes.rows[node], {})
        add_amounts(on_node, pair_amounts({}, usage.get_freed_compute(*gone)), -1)
        for pod in gone:
            add_amounts(on_node, pair_amounts(usage.get_freed_units(pod), {}), -1)
    with cluster.state.nodes.with_charges(charges):
        yield


class PodCardUsage:
    """What pods have on the cards of their nodes, and what would be free without them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_node: dict[str, PodCards] = {}

    def get_units(self, record: PodRecord) -> ByPosition:
        """Get the units of a pod by card position; empty where its cards are not known."""
        return self.get_pod_cards(record.node).units.get(record.uid, {})

    def get_freed_units(self, record: PodRecord) -> ByPosition:
        """Get the units that certainly become free when a pod goes, by card position."""
        return self.get_pod_cards(record.node).get_freed_units(record.uid)

    def get_freed_compute(self, *records: PodRecord) -> ByPosition:
        """Get the percent of compute that certainly becomes free when pods of a node go, by card position."""
        return self.get_pod_cards(records[0].node).get_freed_compute(*(record.uid for record in records))

    def list_pods(self, node: str) -> list[PodRecord]:
        node_record = self._cluster.state.node_records.get(node)
        found = (
            [] if node_record is None else [pod for pod in node_record.pods.values() if self.get_units(pod)]
        )
        return sorted(found, key=lambda pod: (pod.namespace, pod.name))

    def list_claim_pods(self, node: str) -> list[tuple[Pod, ByPosition]]:
        """List the pods of a node with cards by claims, with the units of these, by namespace and name.

        A card that another pod of the claim has stands with 0 units.
        """
        record = self._cluster.state.node_records.get(node)
        if record is None:
            return []
        units: dict[str, Counter[int]] = {
            uid: Counter(published_units(held or {}, record.sizes))
            for uid, held in record.holds.items()
            if uid not in record.pods
        }
        for claim in record.claims.values():
            users = sorted(uid for uid in claim.pods if self._is_on(uid, node))
            cards = sum_shares(claim.shares, record.uuids, record.sizes)
            is_held = any(uid in record.holds for uid in users)
            for uid in users:
                units.setdefault(uid, Counter()).update(dict.fromkeys(cards, 0))
            if users:
                # The pod for which it was prepared may be gone, and others of the claim run on.
                has = record.find_missing(claim) if is_held else cards
                units[users[0]].update({card: count for card, (count, _) in has.items()})
        found = [(self._cluster.pods[uid], of_pod) for uid, of_pod in units.items() if self._is_on(uid, node)]
        return sorted(found, key=lambda pair: pair[0].full_name)

    def _is_on(self, uid: str, node: str) -> bool:
        """Tell whether a pod is on a node and has not ended."""
        pod = self._cluster.pods.get(uid)
        return pod is not None and pod.spec.node_name == node and not pod.has_ended

    def get_pod_cards(self, node: str) -> PodCards:
        known = self._by_node.get(node)
        if known is None:
            known = self._by_node[node] = self._read_pod_cards(node)
        return known

    def _read_pod_cards(self, node: str) -> PodCards:
        state = self._cluster.state
        node_record = state.node_records.get(node)
        if node_record is None or node_record.row < 0 or not node_record.sizes:
            return PodCards({}, frozenset())
        return read_pod_cards(state.nodes, node_record)


def list_card_numbers(cluster: Cluster, node: str, cards: Collection[int]) -> tuple[int, ...]:
    """List the driver's numbers of cards, as people know them."""
    return tuple(map(cluster.state.node_records[node].get_card_number, sorted(cards)))


def list_node_cards(cluster: Cluster, node: str, cards: Collection[int]) -> NodeCards:
    """List cards of a node by number and UUID."""
    uuids = cluster.state.node_records[node].uuids
    return NodeCards(
        node,
        list_card_numbers(cluster, node, cards),
        tuple(uuids[card] for card in sorted(cards)) if uuids else (),
    )


def describe_node_cards(records: Mapping[str, NodeRecord], place: NodeCards) -> str:
    """Name a node and cards of it: "node a card 0"; cards that share a number by their UUIDs."""
    names = [records[place.node].name_card(number, uuid) for number, uuid in place.list_cards()]
    return f"node {place.node} {name_cards(names)}" if names else f"node {place.node}, card not known"
