"""A pod with cards belongs to a queue of its namespace, whatever is done to its label, gate and mark."""

import pytest

from allocator.names import PLACEHOLDER_SCHEDULER, QUEUE_GATE, QUEUE_NAME
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.config.queues import parse_config
from tests.queue_world import ONE_QUEUE, QueueWorld
from tests.unit.test_queue_claims import used

TEAMS = """
queues:
  - {name: shared, nominalQuota: 16}
  - {name: red, nominalQuota: 16, namespaceSelector: {matchLabels: {team: red}}}
  - {name: blue, nominalQuota: 16, namespaceSelector: {matchLabels: {team: blue}}}
"""
RED = {"team": "red"}
LABELLED = {QUEUE_NAME: "shared"}


def world_of(namespace: dict[str, str], config: str = TEAMS) -> QueueWorld:
    world = QueueWorld(config, n1=(16, 16, 16))
    world.queue.set_namespaces({"default": namespace})
    return world


def take_out(world: QueueWorld, uid: str, label: str = "") -> None:
    """Patch the label, then let the pod go and run."""
    world.change(uid, metadata={"labels": {QUEUE_NAME: label} if label else {}})
    world.change(uid, spec={"schedulingGates": []})
    world.change(uid, spec={"nodeName": "n1"})


@pytest.mark.parametrize("label", ["", "nowhere"])
@pytest.mark.parametrize("namespace", [{}, LABELLED])
def test_a_pod_that_is_taken_out_while_it_waits_counts_where_it_was(
    namespace: dict[str, str], label: str
) -> None:
    world = world_of(namespace)
    take_out(world, world.pod("out", 8, queue="shared"), label)
    assert used(world) == {"shared": 8}
    world.pod("next", 9, queue="shared")
    assert world.admitted() == []


@pytest.mark.parametrize("label", ["", "nowhere", "blue"])
def test_a_pod_that_was_marked_as_requeued_first_counts_too(label: str) -> None:
    world = world_of(RED)
    uid = world.pod("out", 8, queue="red")
    assert world.admitted() == ["out"]
    world.requeue(uid)
    assert used(world) == {}
    world.objects[uid]["metadata"]["annotations"].clear()
    take_out(world, uid, label)
    assert used(world) == {"red": 8}


@pytest.mark.parametrize(
    ("namespace", "label", "counts"),
    [
        pytest.param(RED, "red", {"red": 8}, id="its label"),
        pytest.param(RED, "shared", {"shared": 8}, id="of all namespaces"),
        pytest.param(RED, "", {"red": 8}, id="selected"),
        pytest.param(RED, "nowhere", {"red": 8}, id="selected, for there is no such queue"),
        pytest.param(RED, "blue", {"red": 8}, id="selected, for the other one is not for it"),
        pytest.param(RED | LABELLED, "blue", {"shared": 8}, id="the namespace's label before a selector"),
        pytest.param(RED | {QUEUE_NAME: "blue"}, "", {"red": 8}, id="a label that is not for the namespace"),
        pytest.param(LABELLED, "", {"shared": 8}, id="the namespace's label"),
        pytest.param({}, "", {}, id="no queue of its own"),
        pytest.param({}, "red", {}, id="not for it"),
    ],
)
@pytest.mark.parametrize("claims", [False, True], ids=["pod", "claim"])
@pytest.mark.parametrize("late", [False, True], ids=["namespace first", "pod first"])
def test_a_process_that_starts_anew_knows_the_queue(
    namespace: dict[str, str], label: str, counts: dict[str, int], claims: bool, late: bool
) -> None:
    world = QueueWorld(TEAMS, n1=(16, 16, 16))
    if not late:
        world.queue.set_namespaces({"default": namespace})
    if claims:
        world.claim_pod("p", label)
        world.claim("c", (0, 8), pods=["p"])
    else:
        world.pod("p", 8, queue=label, gates=(), spec={"nodeName": "n1"})
    if late:
        world.queue.set_namespaces({"default": namespace})
    assert used(world) == counts


def test_a_queue_that_is_configured_later_counts_who_ran_outside() -> None:
    world = world_of(RED, ONE_QUEUE)
    world.pod("p", 8, queue="", gates=(), spec={"nodeName": "n1"})
    ended = world.pod("ended", 8, queue="", gates=(), spec={"nodeName": "n1"})
    world.delete(ended)
    assert used(world) == {}
    world.configure(TEAMS)
    assert used(world) == {"red": 8}
    world.configure(ONE_QUEUE)
    world.configure(TEAMS)
    assert used(world) == {"red": 8}


def test_a_pod_outside_that_a_new_list_does_not_have_is_forgotten() -> None:
    world = world_of({})
    uid = world.pod("p", 8, queue="", gates=(), spec={"nodeName": "n1"})
    assert uid in set(world.queue.known_uids)
    world.delete(uid)
    world.queue.set_namespaces({"default": LABELLED})
    assert used(world) == {}
    assert uid not in set(world.queue.known_uids)


def test_a_queue_that_is_away_for_a_while_keeps_its_pods() -> None:
    world = world_of(RED)
    uid = world.run("p", 8, queue="shared")
    world.configure("queues: [{name: red, namespaceSelector: {matchLabels: {team: red}}}]")
    world.change(uid, metadata={"labels": {}})
    assert used(world) == {"shared": 8}
    world.configure(TEAMS)
    assert used(world) == {"shared": 8}


def test_a_pod_with_a_gate_and_no_label_waits_in_the_queue_of_its_namespace() -> None:
    world = world_of(RED)
    uid = world.pod("p", 8, queue="")
    assert world.admitted() == ["p"]
    assert world.queue.queued_pods[uid].charged_queue == "red"


@pytest.mark.parametrize("label", ["blue", "red"])
def test_a_pod_that_names_another_queue_while_it_is_admitted_does_not_start_on_its_quota(label: str) -> None:
    """The API server has the label before the write of the queue that admitted the pod: that is refused."""
    world = world_of(RED)
    uid = world.pod("p", 16, queue="shared")
    assert [member.uid for release in world.queue.admit_workloads(world.now) for member in release.members]
    world.change(uid, metadata={"labels": {QUEUE_NAME: label}})
    assert used(world)["shared"] == 16
    world.queue.record_refused_admission(uid, world.now)
    assert "shared" not in used(world)
    assert world.queue.queued_pods[uid].queue_info.queue == label


@pytest.mark.parametrize("label", ["", "shared"])
def test_a_placeholder_is_in_no_queue(label: str) -> None:
    """It asks a cluster autoscaler for a node, and never runs."""
    world = world_of(LABELLED)
    spec = {"schedulerName": PLACEHOLDER_SCHEDULER}
    uid = world.pod("p", 8, queue=label, gates=(), spec=spec)
    assert used(world) == {}
    assert world.queue.charges.unplaced == set()
    world.change(uid, spec={"nodeName": "n1"})
    assert used(world) == {"shared": 8}


def test_a_pod_that_waits_and_names_a_wrong_queue_is_told_so() -> None:
    world = world_of(RED)
    uid = world.pod("p", 8, queue="blue", gates=(QUEUE_GATE,))
    assert world.admitted() == []
    said = world.queue.refusals.explain(world.queue.queued_pods[uid])
    assert said == 'queue "blue" is not for namespace "default"'


def test_a_pod_that_is_requeued_waits_where_it_was_whatever_its_label_says_by_then() -> None:
    world = world_of(RED)
    uid = world.pod("p", 8, queue="red")
    assert world.admitted() == ["p"]
    world.change(uid, metadata={"labels": {QUEUE_NAME: "nowhere"}})
    world.requeue(uid)
    assert world.admitted() == ["p"]
    assert used(world) == {"red": 8}


@pytest.mark.parametrize(
    ("namespace", "queue"),
    [
        ({"team": "red", "tier": "gold"}, "both"),
        ({"tier": "gold", "team": "blue"}, "gold"),
        ({"team": "blue"}, "not-green"),
        ({"team": "green"}, ""),
        ({"team": "green", "tier": "gold"}, "gold"),
    ],
)
def test_the_first_queue_that_selects_a_namespace_is_its_own(namespace: dict[str, str], queue: str) -> None:
    selectors = {
        "both": "{matchLabels: {team: red, tier: gold}}",
        "gold": "{matchLabels: {tier: gold}}",
        "not-green": "{matchExpressions: [{key: team, operator: NotIn, values: [green]}]}",
        "red": "{matchLabels: {team: red}}",
    }
    queues = "".join(f"- {{name: {name}, namespaceSelector: {each}}}\n" for name, each in selectors.items())
    membership = QueueMembership(parse_config("queues.yaml", f"queues:\n{queues}"))
    assert membership.set_namespace("default", namespace)
    assert membership.find_queue("default", "") == queue
