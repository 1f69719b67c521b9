"""Placing ahead with shared lists: the decisions of scoring all nodes for each pod."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from allocator.names import DEFAULT_NODE_POLICY
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.best_fit import BestFit
from scheduler_plugin.scheduling.policies.registry import is_scored_by_row
from tests.cluster_builders import in_percent
from tests.queue_world import ONE_QUEUE, QueueWorld

UNITS = (4, 8, 10, 20, 40, 80)


PICKS = f"{ONE_QUEUE}\nnodePolicyParameters: {{best-fit: {{mode: pick, limit: 2, fallback: largest}}}}"


BATCH = f"{ONE_QUEUE}\nmode: batch"


def world(seed: int, policy: str, config: str = ONE_QUEUE) -> QueueWorld:
    """A random cluster, and pods of a few shapes that wait."""
    rng = random.Random(seed)
    made = QueueWorld(config, policy=policy)
    for number in range(30):
        made.node(f"n{number:02}", (80,) * 4, [rng.choice((0, 0, 10, 40, 76)) for _ in range(4)])
    for number in range(150):
        made.pod(f"p{number:03}", rng.choice(UNITS), annotations=rng.choice(({}, {"gpupack.io/cards": "2"})))
    return made


def placed(made: QueueWorld, seed: int) -> list[tuple[str, str]]:
    """Where every pod goes, while other pods end and nodes change."""
    rng = random.Random(-seed)
    found: list[tuple[str, str]] = []
    for at, release in enumerate(made.queue.admit_workloads(0.0)):
        found += [(member.uid, member.node) for member in release.members]
        if at % 7 == 0:
            assumed = made.state.get_assumed(rng.choice(found)[0])
            if assumed is not None:
                made.state.forget(assumed, 0.0)
        if at % 31 == 0:
            made.node(f"n{rng.randrange(32):02}", (80,) * 4, [rng.choice((0, 40, 76)) for _ in range(4)])
        if at % 71 == 0:
            # Another node takes its row; what was placed there is gone with it.
            made.lose_node(rng.choice(list(made.state.nodes.rows)))
            made.node(f"m{at:03}", (80,) * 4, [rng.choice((0, 40)) for _ in range(4)])
    return found


BY_ROW = [name for name in NODE_POLICIES.names() if is_scored_by_row(NODE_POLICIES.made(name))]


def test_the_default_policy_has_lists() -> None:
    assert DEFAULT_NODE_POLICY in BY_ROW


@pytest.mark.parametrize("policy", NODE_POLICIES.names())
@pytest.mark.parametrize("seed", range(2))
def test_the_same_as_one_by_one(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = world(seed, policy)
    with_lists = placed(shared, seed)
    assert len(with_lists) > 100
    lists = shared.queue.admission.placer.lists
    assert lists < len(with_lists) / 2 if policy in BY_ROW else lists == 0
    monkeypatch.setattr(FreeCapacity, "is_scored_by_row", lambda *_: False)
    assert with_lists == placed(world(seed, policy), seed)


@pytest.mark.parametrize("policy", BY_ROW)
def test_what_is_scored_by_row_does_not_depend_on_other_rows(policy: str) -> None:
    """Old scores and new ones of one list are compared."""
    made = QueueWorld(policy=policy)
    for name, size in (("n1", 16), ("n2", 40), ("n3", 7)):
        made.node(name, (size, size), (3, 5))
    made.pod("p", 4)
    capacity = made.queue.admission.capacity
    requirements = made.queue.queued_pods["uid-p"].requirements
    assert requirements is not None
    rows = np.arange(2)
    before = capacity.score_rows(requirements, rows), capacity.get_policy_epoch(requirements)
    made.node("n3", (640, 640, 640), cpu="900", memory="9Ti")
    after = capacity.score_rows(requirements, rows), capacity.get_policy_epoch(requirements)
    assert before[1] == after[1]
    assert before[0].tolist() == after[0].tolist()


@pytest.mark.parametrize("policy", BY_ROW)
def test_a_node_in_the_row_of_a_deleted_one_gets_pods(policy: str) -> None:
    """Each change of the row counts as a version, so the versions alone do not tell the two nodes apart."""
    made = QueueWorld(policy=policy, n1=(8,), n2=(8,))
    made.pod("p1", 8)
    made.pod("p2", 8)
    assert made.admitted() == ["p1", "p2"]
    made.lose_node("n2")
    made.node("n3", (8,))
    made.pod("p3", 8)
    (release,) = made.decide()
    assert release.members[0].node == "n3"


def test_the_nodes_that_come_next_are_in_the_order_of_now() -> None:
    """The list of the pod before is older than what has happened to its nodes."""
    made = QueueWorld("queues: [{name: a}]\nmode: batch", policy="least-requested")
    for name in ("n1", "n2", "n3", "n4"):
        made.node(name, (16,))
    made.pod("p1", 4)
    (first,) = made.decide()
    assert (first.members[0].node, first.members[0].others) == ("n1", ("n2", "n3", "n4"))
    made.node("n2", (16,), (8,))
    made.pod("p2", 4)
    (second,) = made.decide()
    assert (second.members[0].node, second.members[0].others) == ("n3", ("n4", "n1", "n2"))


@pytest.mark.parametrize(
    "config", [f"{BATCH}\nslots: {{per: node, local: {{count: 1}}, free: {{count: 1}}}}", ONE_QUEUE]
)
def test_no_nodes_come_next_where_slots_decide_or_kube_scheduler_binds(config: str) -> None:
    made = QueueWorld(config, n1=(16,), n2=(16,))
    made.pod("p", 4)
    (release,) = made.decide()
    assert release.members[0].others == ()


@pytest.mark.parametrize("seed", range(2))
def test_a_policy_that_picks_is_asked_for_one_node_and_scores_none(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It searches its index, and finds what it would score best."""
    scored = []

    def score(*arguments: Any) -> Any:
        scored.append(arguments)
        return all_scores(*arguments)

    all_scores = BestFit.score
    monkeypatch.setattr(BestFit, "score", score)
    picked = placed(world(seed, "best-fit", PICKS), seed)
    assert len(picked) > 100
    assert not scored
    monkeypatch.setattr(BestFit, "picks", False)
    assert placed(world(seed, "best-fit", PICKS), seed) == picked
    assert scored


@pytest.mark.parametrize("percent", [0, 40])
@pytest.mark.parametrize(
    ("policy", "config"),
    [*((name, BATCH) for name in NODE_POLICIES.names()), ("best-fit", f"{PICKS}\nmode: batch")],
)
def test_the_next_nodes_are_those_that_come_first_without_the_ones_before(
    policy: str, config: str, percent: int
) -> None:
    """Whatever policy there is, also for pods that ask for percent."""

    def made(without: Sequence[str]) -> QueueWorld:
        rng = random.Random(4)
        world = QueueWorld(config, policy=policy)
        for number in range(12):
            used = [rng.choice((0, 10, 40, 70)) for _ in range(4)]
            spec = {"unschedulable": f"n{number:02}" in without}
            world.node(f"n{number:02}", (80,) * 4, used, spec=spec)
        world.pod("p", 12, containers=[in_percent(percent)] if percent else None)
        return world

    (release,) = made(()).decide()
    (member,) = release.members
    found = [member.node, *member.others]
    assert len(found) == 4
    for count in range(1, 4):
        (again,) = made(found[:count]).decide()
        assert again.members[0].node == found[count]


@pytest.mark.parametrize("seed", range(2))
def test_where_pods_fit_is_followed_through_every_change(seed: int) -> None:
    """What is remembered, and renewed where a row has changed, is what is found from nothing."""
    made = world(seed, "best-fit")
    rng = random.Random(seed)
    requirements = {
        pod.requirements for pod in made.queue.queued_pods.values() if pod.requirements is not None
    }
    for at, _ in enumerate(made.queue.admit_workloads(0.0)):
        change = rng.randrange(4)
        name = f"n{rng.randrange(30):02}"
        if change == 0:
            made.node(name, (80,) * 4, [rng.choice((0, 40, 76)) for _ in range(4)])
        elif change == 1:
            made.node(name, (80,) * 4, spec={"unschedulable": rng.random() < 0.5})
        elif change == 2 and name in made.state.nodes.rows:
            made.lose_node(name)
        if at % 5 == 0:
            fresh = FreeCapacity(made.state, made.queue.capacity.policies)
            for node, facts in made.queue.capacity.facts.items():
                fresh.set_facts(node, facts)
            for each in requirements:
                assert fresh.mask_fits(each).tolist() == made.queue.capacity.mask_fits(each).tolist()
