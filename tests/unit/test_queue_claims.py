"""Claims in quotas: what pods have that ask by ResourceClaims counts in their queue."""

from allocator.names import NODE_SERVES, SERVES_CLAIMS
from scheduler_plugin.queue.controller.status import WaitReason, explain_pod, report_queues
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.cluster_builders import MEMORY
from tests.queue_world import TWO_QUEUES, QueueWorld

OWN = "queues: [{name: a, nominalQuota: 16}, {name: b, nominalQuota: 16}]"


def world_of_claims(config: str = OWN) -> QueueWorld:
    return QueueWorld(config, n1=(16, 16, 16))


def used(world: QueueWorld) -> dict[str, int]:
    return {queue.name: queue.used for queue in report_queues(world.queue, world.now) if queue.used}


def test_a_claim_counts_in_the_queue_that_its_pod_names_until_it_is_let_go() -> None:
    world = world_of_claims()
    world.claim_pod("p", "a")
    world.claim("c", (0, 10), pods=["p"])
    assert used(world) == {"a": 10}
    uid = world.pod("waits", 8)
    assert not world.admitted()
    said = explain_pod(world.queue, world.queue.queued_pods[uid], world.now)
    assert said.reason is WaitReason.QUOTA
    assert said.message == "it needs 8 units; queue a uses 10 units, 10 of them by claims, of its quota of 16"
    world.claim("c")
    assert used(world) == {}
    assert world.admitted() == ["waits"]


def test_whichever_is_seen_first_pod_or_claim() -> None:
    world = world_of_claims()
    world.claim("c", (0, 10), pods=["p"])
    assert used(world) == {}
    world.claim_pod("p", "a")
    assert used(world) == {"a": 10}
    world.delete("uid-p")
    assert used(world) == {}


def test_a_pod_that_names_none_has_the_queue_of_its_namespace() -> None:
    world = world_of_claims()
    world.claim_pod("p")
    world.claim("c", (0, 10), pods=["p"])
    world.queue.set_namespaces({"default": {"gpupack.io/queue-name": "b"}})
    assert used(world) == {"b": 10}
    world.queue.set_namespaces({"other": {"gpupack.io/queue-name": "a"}})
    world.queue.set_namespaces({"default": None})
    assert used(world) == {}


def test_a_claim_that_pods_share_counts_once_for_the_first_that_names_a_queue() -> None:
    world = world_of_claims()
    for name, queue in (("p", ""), ("q", "b"), ("r", "a")):
        world.claim_pod(name, queue)
    world.claim("c", (0, 10), pods=["p", "q", "r"])
    assert used(world) == {"b": 10}
    world.claim("c", (0, 10), pods=["r"])
    assert used(world) == {"a": 10}


def test_what_the_extender_wrote_for_a_pod_counts_by_its_pod_alone() -> None:
    world = world_of_claims()
    uid = world.pod("p", 8)
    world.decide()
    world.claim("c", (0, 8), pods=["p"], of_pod="p")
    world.bind(uid)
    assert used(world) == {"a": 8}


def test_a_pod_that_asks_in_both_ways_counts_for_both() -> None:
    world = world_of_claims()
    world.pod("p", 4, spec={"resourceClaims": [{"name": "card"}]})
    world.decide()
    world.claim("c", (0, 8), pods=["p"])
    assert used(world) == {"a": 12}
    world.delete("uid-p")
    assert used(world) == {}


def test_all_of_a_card_and_parts_of_units_count_as_in_the_account() -> None:
    world = world_of_claims()
    world.claim_pod("p", "a")
    world.claim("whole", (0, None), node="late", pods=["p"])
    world.claim("parts", (1, "1500Mi"), (2, 2), pods=["p"])
    assert used(world) == {"a": 2 + 2}
    world.node("late", (12,))
    assert used(world) == {"a": 12 + 2 + 2}


def test_a_queue_for_other_namespaces_counts_none() -> None:
    world = world_of_claims("queues: [{name: a, namespaceSelector: {matchLabels: {team: a}}}]")
    world.claim_pod("p", "a")
    world.claim("c", (0, 10), pods=["p"])
    assert used(world) == {}
    world.queue.set_namespaces({"default": {"team": "a"}})
    assert used(world) == {"a": 10}


def test_a_queue_that_is_configured_later_has_what_it_had_before() -> None:
    world = world_of_claims("queues: [{name: other}]")
    world.claim_pod("p", "a")
    world.claim("c", (0, 10), pods=["p"])
    world.configure(OWN)
    world.pod("waits", 8)
    assert (used(world), world.admitted()) == ({"a": 10}, [])
    world.configure("queues: [{name: a, namespaceSelector: {matchLabels: {team: a}}}]")
    assert used(world) == {}
    world.configure("queues: [{name: other}]")
    world.lose_claim("c")
    assert [queue.name for queue in world.queue.queues] == ["other"]


def test_a_claim_that_is_gone_counts_no_more() -> None:
    world = world_of_claims()
    world.claim_pod("p", "a")
    world.claim("c", (0, 10), pods=["p"])
    world.lose_claim("c")
    assert used(world) == {}


def test_what_claims_have_beyond_the_quota_is_borrowed_and_may_be_more_than_all_quotas() -> None:
    world = world_of_claims(TWO_QUEUES)
    world.claim_pod("p", "a")
    world.claim("c", (0, 16), (1, 8), pods=["p"])
    a, b = report_queues(world.queue, world.now)
    assert (a.used, a.claimed, a.borrowed, b.lent, a.running) == (24, 24, 8, 8, 0)
    world.pod("first", 8, queue="b")
    world.pod("second", 8, queue="b")
    assert world.admitted() == ["first"]
    world.claim("more", (2, 8), pods=["p"])
    assert used(world) == {"a": 32, "b": 8}
    world.lose_claim("c")
    assert world.admitted() == ["second"]


def test_reclaim_evicts_pods_for_what_claims_borrowed_and_never_a_pod_with_a_claim() -> None:
    world = world_of_claims(TWO_QUEUES + "\nreclaim: evict")
    by_limits = world.run("limits", 8, queue="a")
    world.claim_pod("p", "a", spec={"nodeName": "n1"})
    world.claim("c", (1, 16), pods=["p"])
    world.pod("lender", 16, queue="b")
    (plan,) = Reclaimer(world.queue).find_plans(world.now)
    assert [pod.uid for pod in plan.victims] == [by_limits]
    world.delete(by_limits)
    assert world.admitted() == ["lender"]


def test_nobody_is_evicted_where_claims_alone_have_what_a_lender_needs() -> None:
    world = world_of_claims(TWO_QUEUES + "\nreclaim: evict")
    world.run("limits", 4, queue="a")
    world.claim_pod("p", "a", spec={"nodeName": "n1"})
    world.claim("c", (1, 16), (2, 4), pods=["p"])
    world.pod("lender", 16, queue="b")
    assert not world.admitted()
    assert Reclaimer(world.queue).find_plans(world.now) == []


def test_a_pod_that_has_a_claim_is_told_what_is_free_where_claims_are_served() -> None:
    """Its claim was made for a Binding that failed; no node with the device plugin may take it."""
    world = QueueWorld(OWN)
    world.node("plugin", (16,))
    world.node("claims", (16,), (12,), extra={NODE_SERVES: SERVES_CLAIMS})
    made = {"requestMappings": [{"resourceName": MEMORY}]}
    uid = world.pod("p", 8, status={"extendedResourceClaimStatus": made})
    assert not world.admitted()
    said = explain_pod(world.queue, world.queue.queued_pods[uid], world.now)
    assert said.message == "it needs 8 units on one card; the largest free card has 4"
