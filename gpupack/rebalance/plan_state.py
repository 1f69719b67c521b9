"""Cards, and what else nodes have left, as a list of moves changes them.

A plan state knows what filter and kube-scheduler would say after some pods have ended and started elsewhere.
What it finds is asked of them again before anybody sees it (`moved_cluster`).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from allocator.cards import Card as DeviceCard
from allocator.place import Placement, place
from allocator.selector import Selector
from gpupack.rebalance.card_choices import list_card_choices
from gpupack.rebalance.movable_pods import MovablePod
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.what_if import PodCardUsage
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.cards import build_charged_cards
from scheduler_plugin.scheduling.request import SchedulingRequest
from scheduler_plugin.scheduling.scratch_node import ScratchNode, Undo

if TYPE_CHECKING:
    from allocator.request import PodRequest
    from gpupack.whatif.kube_checks import HostRequirements
    from kubeapi.selectors import NodeRules

Card = tuple[str, int]
"""A node and the position of a card."""

MOST_CHOICES: Final = 400
"""Choices of cards that are tried for a pod on a node; only pods on many different cards have more."""

NOTHING: Final[frozenset[Card]] = frozenset()


@dataclass(frozen=True, slots=True)
class Destination:
    """A node, and the cards there that a pod gets."""

    node: str
    placement: Placement


class _MovedPod:
    """What a plan keeps of a pod that moves.

    Attributes:
        offered: Whether scheduler and filter offer it a node, by name.
        stands_alone: No other pod keeps it off a node, by its port or by what it wants near or far.
    """

    def __init__(self, cluster: Cluster, movable: MovablePod) -> None:
        what_if = movable.make_what_if(cluster)
        self.query: SchedulingRequest = what_if.query
        self.requirements: HostRequirements = what_if.requirements
        gone = frozenset({movable.uid})
        near = cluster.kube_checks.make_affinity_filter(self.requirements, gone)
        self.stands_alone = near is None and not self.requirements.ports
        self.offered: dict[str, bool] = {}
        self.amounts = self.requirements.amounts.with_sums(self.query.request)
        self.kind = 0

        self.is_offered_on: Callable[[str], bool] = lambda node: (
            cluster.kube_checks.is_open(self.requirements, node, gone)
            and (near is None or not near.find_refusal(cluster.nodes[node].metadata.labels or {}))
        )


class PlanState:
    """The free amounts, changed by pods that go and come.

    Args:
        closed: Cards that no pod may be moved to.

    Attributes:
        stamps: How often something changed on each node that pods went from or to, by name.
        all_choices: Whether pods on several cards may go to any of them.
    """

    def __init__(self, cluster: Cluster, usage: PodCardUsage, closed: frozenset[Card] = NOTHING) -> None:
        self.cluster = cluster
        self._usage = usage
        self.all_choices = True
        self._names: dict[str, tuple[bool, ...]] = {}
        self.closed_cards = closed
        self._nodes: dict[str, ScratchNode] = {}
        self._undos: list[tuple[str, Undo]] = []
        self._moved_pods: dict[str, _MovedPod] = {}
        self.stamps: dict[str, int] = {}
        self._free: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._kinds: dict[tuple[PodRequest, str], int] = {}
        self._offered: dict[tuple[int, NodeRules], dict[str, bool]] = {}

    @property
    def changed_nodes(self) -> Collection[str]:
        return self.stamps.keys()

    # What is free.

    def get_stamp(self, node: str) -> int:
        """Tell how often something changed on a node; what follows from its cards holds while this does."""
        return self.stamps.get(node, 0)

    def get_free_units(self, node: str) -> tuple[int, ...]:
        stamp = self.stamps.get(node, 0)
        known = self._free.get(node)
        if known is None or known[0] != stamp:
            known = self._free[node] = stamp, self._read_free_units(node)
        return known[1]

    def _read_free_units(self, node: str) -> tuple[int, ...]:
        if node in self._nodes:
            return tuple([card.free_units for card in self._nodes[node].cards])
        # Most nodes of a large cluster stay as they are.
        nodes = self.cluster.state.nodes
        row = nodes.rows[node]
        return tuple(nodes.free[row, : nodes.cards[row]].tolist())

    def get_free_compute(self, node: str) -> tuple[int, ...]:
        """List the percent of compute that a node's cards have free, less than 0 where pods have more."""
        nodes = self.cluster.state.nodes
        row = nodes.rows[node]
        free = nodes.compute_free[row, : nodes.cards[row]].tolist()
        # Most nodes of a large cluster stay as they are, and only where nothing is left pods may have more.
        if node not in self._nodes and (not nodes.compute_limit[row] or min(free, default=1) > 0):
            return tuple(free)
        return tuple([card.compute_free for card in self._get_node(node).cards])

    def has_cards(self, destination: Destination) -> bool:
        """Tell whether what a pod gets in a place is free there."""
        free, compute = self.get_free_units(destination.node), self.get_free_compute(destination.node)
        placement = destination.placement
        return all(free[card] >= units for card, units in placement.charge.items()) and all(
            compute[card] >= percent for card, percent in placement.compute.items()
        )

    def get_left(self, node: str) -> Amounts:
        """Return what a node has left besides cards."""
        known = self._nodes.get(node)
        return self.cluster.kube_checks.get_left(node) if known is None else known.left

    def _get_node(self, node: str) -> ScratchNode:
        known = self._nodes.get(node)
        if known is None:
            nodes = self.cluster.state.nodes
            cards = build_charged_cards(nodes, nodes.rows[node])
            counted = map(self._usage.get_pod_cards(node).count_all_compute, cards)
            known = self._nodes[node] = ScratchNode(counted, self.get_left(node))
        return known

    # Pods that go and come.

    def remove_pod(self, movable: MovablePod) -> None:
        change, amounts = self._get_node(movable.node).remove_pod, self._get_moved_pod(movable).amounts
        self._keep_undo(movable.node, change(amounts, movable.units, movable.compute))

    def place_pod(self, movable: MovablePod, destination: Destination) -> None:
        change, placement = self._get_node(destination.node).add_pod, destination.placement
        amounts = self._get_moved_pod(movable).amounts
        self._keep_undo(destination.node, change(amounts, placement.charge, placement.compute))

    def _keep_undo(self, node: str, undo: Undo) -> None:
        self._count_change(node)
        self._undos.append((node, undo))

    def _count_change(self, node: str) -> None:
        self.stamps[node] = self.stamps.get(node, 0) + 1

    @property
    def changes(self) -> int:
        """How many changes there are, for `undo_to`."""
        return len(self._undos)

    def undo_to(self, changes: int) -> None:
        """Take back all but the first changes."""
        while len(self._undos) > changes:
            node, undo = self._undos.pop()
            undo()
            self._count_change(node)

    def _get_moved_pod(self, movable: MovablePod) -> _MovedPod:
        known = self._moved_pods.get(movable.uid)
        if known is None:
            known = self._moved_pods[movable.uid] = _MovedPod(self.cluster, movable)
            key = (known.query.request, known.query.policy_request.card_policy)
            known.kind = self._kinds.setdefault(key, len(self._kinds))
            if known.stands_alone:
                # Pods that ask alike are offered the same nodes.
                known.offered = self._offered.setdefault(
                    (known.kind, known.requirements.rules), known.offered
                )
        return known

    def get_query(self, movable: MovablePod) -> SchedulingRequest:
        return self._get_moved_pod(movable).query

    def get_kind(self, movable: MovablePod) -> int:
        """Number what pods ask of cards: those with one number have the same places on a node."""
        return self._get_moved_pod(movable).kind

    # Seats.

    def is_offered(self, movable: MovablePod, node: str) -> bool:
        """Tell whether a node is one for a pod that has ended, whatever is left there."""
        pod = self._get_moved_pod(movable)
        if node not in pod.offered:
            nodes = self.cluster.state.nodes
            row = nodes.rows[node]
            usable = nodes.uuids[row] and nodes.mask_offering(pod.query.request)[row]
            pod.offered[node] = bool(usable) and pod.is_offered_on(node)
        return pod.offered[node]

    def has_host_capacity(self, movable: MovablePod, node: str) -> bool:
        return self._get_moved_pod(movable).amounts.fits_in(self.get_left(node))

    def can_take(self, movable: MovablePod, node: str) -> bool:
        """Return True if a node is one for a pod that has ended, and has what it needs besides cards."""
        return self.is_offered(movable, node) and self.has_host_capacity(movable, node)

    def list_destinations(self, movable: MovablePod, node: str) -> Iterator[Destination]:
        """Give the places on a node that takes a pod which has ended; not that which it comes from.

        A pod may go to any cards; without `all_choices` those of one that asks for more than one are chosen
        by the card policy. Cards of a node that do not differ are one place.
        """
        query = self.get_query(movable)
        cards = tuple(
            card if self._is_open(node, at) else card.with_free_units(0)
            for at, card in enumerate(self._get_node(node).cards)
        )
        request = query.request
        own = movable.units if node == movable.node else {}
        several = len(request.demands) > 1 or request.cards > 1
        found: Iterable[Placement]
        if several and not self.all_choices:
            placement = place(cards, request, query.policy_request.card_policy)
            found = () if placement is None else (placement,)
        else:
            found = list_card_choices(cards, request, own, self._named)
        for placement in islice(found, MOST_CHOICES):
            if placement.charge != own:
                yield Destination(node, placement)

    def _named(self, card: DeviceCard) -> Hashable:
        """Find which of the pods that name cards by UUID could have this one."""
        known = self._names.get(card.uuid)
        if known is None:
            known = self._names[card.uuid] = tuple(each.admits_uuid(card.uuid) for each in self._naming)
        return known

    @cached_property
    def _naming(self) -> list[Selector]:
        """Selectors of pods that name cards by UUID."""
        requests = {id(pod.request): pod.request for pod in self.cluster.state.pods.values()}.values()
        selectors = {each.selector for each in requests if each is not None}
        return [each for each in selectors if each.uuids or each.excluded_uuids]

    def _is_open(self, node: str, card: int) -> bool:
        nodes = self.cluster.state.nodes
        return (node, card) not in self.closed_cards and bool(nodes.evictable[nodes.rows[node], card])
