"""The second tier: one committer that checks versions and takes cards before anything is sent.

`merge` and `commit` are algorithm 6 for any list of candidates. kube-scheduler names a single node at bind,
so the extender's `Committer` runs the same steps with a list of one.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from allocator.errors import RequestError
from allocator.place import Placement
from allocator.records import Assignment, dump_assigned
from scheduler_plugin.cluster.nodes import NodeArrays
from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.cluster.rules import Take
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.placement.cluster_policies import Policies
from scheduler_plugin.placement.filtering import Misfit, Query, misfits, place_on
from scheduler_plugin.placement.placing import place_with
from scheduler_plugin.placement.policies.registry import NodePolicy
from scheduler_plugin.placement.reasons import reason

_OFFERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that the first tier found.

    Attributes:
        node: Its name.
        score: Lower is better.
        version: Of the node's record that was scored.
        epoch: Of the weights that it was scored with.
    """

    node: str
    score: float
    version: int
    epoch: int = 0


def merge(
    offered: Sequence[Candidate],
    version: Callable[[str], int | None],
    rescore: Callable[[str], float | None],
    *,
    epoch: int = 0,
) -> list[Candidate]:
    """Turn the first tier's list into the order in which to try nodes.

    Args:
        offered: List 1.
        version: The node's latest version, None when it is gone.
        rescore: Filters and scores a node's latest record; None when the pod no longer fits.
        epoch: Of the weights in force; a candidate of another epoch is scored anew.

    Returns:
        Lists 2 and 4 together, by (score, name).
    """
    merged: list[Candidate] = []
    for candidate in offered:
        latest = version(candidate.node)
        if latest is None:
            continue
        if latest == candidate.version and epoch == candidate.epoch:
            merged.append(candidate)
            continue
        score = rescore(candidate.node)
        if score is not None:
            merged.append(replace(candidate, score=score, version=latest, epoch=epoch))
    return sorted(merged, key=lambda candidate: (candidate.score, candidate.node))


def commit(order: Sequence[Candidate], bind: Callable[[str], bool]) -> tuple[str | None, list[str]]:
    """Try candidates in order until one binds.

    Args:
        order: What `merge` returned.
        bind: Binds the pod to a node and updates its record, or says no and leaves it alone.

    Returns:
        The node, None when all failed, and the nodes tried.
    """
    tried: list[str] = []
    for candidate in order:
        tried.append(candidate.node)
        if bind(candidate.node):
            return candidate.node, tried
    return None, tried


@dataclass(frozen=True, slots=True)
class Commitment:
    """What a Binding is made of.

    Attributes:
        pod: The pod, as it was when the cards were taken.
        node: Target.
        assigned: Value of `gpupack.io/assigned`, None where there is nothing to say.
        take: The cards taken in the state, None for a pod that asks for none.
        moved: The node had changed since the filter, and the pod still fits.
    """

    pod: PodRecord
    node: str
    assigned: str | None
    take: Take | None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """One answer of the first tier.

    Attributes:
        policy: What ranked the nodes.
        candidates: The nodes returned, best first.
    """

    policy: NodePolicy
    candidates: tuple[Candidate, ...]

    def still_holds(self, nodes: NodeArrays, candidate: Candidate) -> bool:
        """Tell whether neither the node nor the weights have changed since."""
        row = nodes.rows.get(candidate.node)
        return (
            row is not None
            and candidate.version == nodes.version[row]
            and candidate.epoch == self.policy.epoch
        )


class Offers:
    """The first tier's answers by pod UID, for prioritize and the commit that follow.

    Args:
        limit: Pods that are remembered.
    """

    def __init__(self, limit: int = _OFFERS) -> None:
        self._limit = limit
        self._offers: OrderedDict[str, Offer] = OrderedDict()

    def put(self, uid: str, offer: Offer) -> None:
        """Remember an answer; it replaces the pod's earlier one."""
        self._offers[uid] = offer
        self._offers.move_to_end(uid)
        if len(self._offers) > self._limit:
            self._offers.popitem(last=False)

    def look(self, uid: str) -> Offer | None:
        """A pod's answer."""
        return self._offers.get(uid)

    def take(self, uid: str, node: str) -> tuple[Offer, Candidate] | None:
        """Forget a pod's answer and return the candidate for a node, None where there is none."""
        offer = self._offers.pop(uid, None)
        for candidate in offer.candidates if offer is not None else ():
            if candidate.node == node and offer is not None:
                return offer, candidate
        return None


class Committer:
    """Takes cards for pods, one at a time and without waiting in between.

    Invariant: between `begin` and the Binding's answer the cards are counted in the state, so a filter that
    runs meanwhile sees them taken.

    Args:
        state: The cluster.
        policies: Of the cluster.
        offers: What filter answered.
    """

    def __init__(self, state: ClusterState, policies: Policies, offers: Offers) -> None:
        self.state = state
        self.policies = policies
        self.offers = offers

    def begin(self, namespace: str, name: str, uid: str, node: str, now: float) -> Commitment:
        """Check that a pod fits on a node now, and take the cards.

        Raises:
            CommitError: it cannot be bound there, in words.
        """
        self.state.expire(now)
        pod = self._pod(namespace, name, uid)
        taken = self.offers.take(uid, node)
        if pod.charged is None:
            return Commitment(pod, node, None, None)
        if pod.request is None:
            raise CommitError(f"pod {namespace}/{name}: {pod.error}")
        row = self.state.nodes.rows.get(node)
        if row is None:
            raise CommitError(
                f"node {node} is not known to the gpupack scheduler; allowed is a node it watches"
            )
        try:
            query = self.policies.query(self.state.nodes, pod.request, pod.cpu_milli, pod.memory_bytes)
        except RequestError as error:
            raise CommitError(f"pod {namespace}/{name}: {error}") from error
        moved = taken is None or not taken[0].still_holds(self.state.nodes, taken[1])
        placement = self._place(query, node, row)
        assigned = self._assignment(placement, row)
        text = None if assigned is None else dump_assigned(assigned)
        take = self.state.take(uid, node, assigned, now)
        return Commitment(pod, node, text, take, moved)

    def rescore(self, query: Query, node: str) -> float | None:
        """Filter and score one node's latest record; None when the pod does not fit or is held back."""
        row = self.state.nodes.rows.get(node)
        if row is None or self._choose(query, row) is None:
            return None
        score = self.policies.of(query.request).score(
            self.state.nodes, query.ask, np.array([row], dtype=np.intp)
        )
        return float(score[0])

    def _pod(self, namespace: str, name: str, uid: str) -> PodRecord:
        pod = self.state.pods.get(uid)
        what = f"pod {namespace}/{name} (UID {uid})"
        if pod is None:
            raise CommitError(f"{what} is not in the gpupack scheduler's cache yet; it is tried again")
        if (pod.namespace, pod.name) != (namespace, name):
            raise CommitError(f"{what} is {pod.namespace}/{pod.name} in the gpupack scheduler's cache")
        if pod.node:
            raise CommitError(f"{what} is bound to node {pod.node} already")
        if pod.ended:
            raise CommitError(f"{what} has ended")
        take = self.state.taken(uid)
        if take is not None:
            raise CommitError(
                f"{what} has a Binding to node {take.node} under way whose outcome is not known yet"
            )
        return pod

    def _place(self, query: Query, node: str, row: int) -> Placement:
        """List 2 or list 3: choose the cards on the node's latest record."""
        nodes = self.state.nodes
        busy = node in self.state.busy_nodes(query.wanted)
        placement = None if busy else self._choose(query, row)
        if placement is None:
            misfit = Misfit.BUSY
            if not busy:
                misfit = Misfit(int(misfits(nodes, query, np.array([row], dtype=np.intp))[0]))
            why = reason(misfit, query.ask.demands, self.state.unit_mib)
            raise CommitError(f"node {node} changed since the filter and the pod no longer fits: {why}")
        return placement

    def _choose(self, query: Query, row: int) -> Placement | None:
        """Choose the cards: the node policy's where it chooses any, else the card policy's."""
        policy = self.policies.of(query.request)
        return place_with(policy, self.state.nodes, row, query) or place_on(self.state.nodes, row, query)

    def _assignment(self, placement: Placement, row: int) -> Assignment | None:
        """Name the cards by UUID; None where the node publishes none."""
        uuids = self.state.nodes.uuids[row]
        if not uuids:
            return None
        return {
            container: tuple((uuids[card], units) for card, units in shares)
            for container, shares in placement.containers
        }
