"""What policies that learn, or hold pods back, are told by filter and by the state."""

from collections.abc import Iterator

import pytest

from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.registry import PolicyRequest
from tests.cluster_builders import pod, pod_object
from tests.extender_world import World
from tests.other_policies import offered


class Holding:
    """A policy that holds pods back from nodes whose names say so, and notes what it is told."""

    epoch = 3

    def __init__(self) -> None:
        self.told: list[str] = []

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        scores = rows.astype(float)
        for at, row in enumerate(rows.tolist()):
            if view.names[row].startswith("hold"):
                scores[at] = float("inf")
        return scores

    def pending(self, uid: str, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> None:
        self.told.append(f"pending {uid} {len(rows)}")

    def pod_resolved(self, uid: str, ask: PolicyRequest | None) -> None:
        self.told.append(f"settled {uid} {ask.gpu_units if ask else None}")


@pytest.fixture
def policy() -> Iterator[Holding]:
    """The policy, under the name `holding`."""
    one = Holding()
    with offered(NODE_POLICIES, holding=lambda _: one):
        yield one


def test_a_policy_may_hold_a_pod_back(policy: Holding) -> None:
    world = World(policy="holding")
    world.node("hold-1", (16,))
    world.node("hold-2", (16,), (16,))
    found = world.extender.filter(world.body(pod_object("p", 8)), 0)
    assert (found.refused, found.evictable) == ("uid-p", ()), "nobody is evicted for a pod that only waits"
    policy.told.clear()
    answer = world.filter(pod_object("p", 8))
    assert answer["FailedAndUnresolvableNodes"] == {
        "hold-1": "held back by the node policy",
        "hold-2": "no card with 8 GiB free",
    }
    assert policy.told == ["pending uid-p 2"]
    world.node("open", (16,))
    assert world.filter(pod_object("p", 8))["NodeNames"] == ["open"]
    offer = world.offers.get("uid-p")
    assert offer is not None
    assert offer.epoch == 3
    assert world.prioritize(pod_object("p", 8), ["open"]) == {"open": 10}
    policy.epoch += 1
    assert not offer.is_current(world.state.nodes, ["open"])


def test_a_call_for_a_pod_that_is_gone_does_not_count_it_as_waiting_again(policy: Holding) -> None:
    world = World(policy="holding")
    world.node("a", (8,))
    world.filter(pod_object("p", 9))
    world.state.apply_pod(pod("p", 9, version=2), 0)
    world.state.delete_pod(pod("p", 9, version=3), "3", 0)
    world.filter(pod_object("p", 9))
    world.filter(pod_object("q", 9))
    assert policy.told == ["pending uid-p 1", "settled uid-p None", "pending uid-q 1"]


def test_a_policy_that_learns_is_told_of_every_pod_s_end_of_waiting(policy: Holding) -> None:
    world = World(policy="holding")
    state = world.state
    for name in ("bound", "deleted", "vanished", "failed"):
        state.apply_pod(pod(name, 8, version=2), 0)
    state.apply_pod(pod("plain", containers=[{"name": "c"}], version=2), 0)
    assert policy.told == []
    state.apply_pod(pod("bound", 8, version=3, node="n"), 0)
    state.apply_pod(pod("bound", 8, version=4, node="n", phase="Running"), 0)
    state.apply_pod(pod("plain", containers=[{"name": "c"}], version=4, node="n"), 0)
    state.delete_pod(pod("deleted", 8, version=5), "5", 0)
    state.apply_pod(pod("failed", 8, version=6, phase="Failed"), 0)
    state.replace_pods(
        [pod("bound", 8, version=4, node="n"), pod("failed", 8, version=6, phase="Failed")], "7", 0
    )
    state.delete_pod(pod("bound", 8, version=8, node="n"), "8", 0)
    assert policy.told == [
        "settled uid-bound 8",
        "settled uid-deleted None",
        "settled uid-failed None",
        "settled uid-vanished None",
    ]
