"""Pods that ask for percent of a card: queued, counted by the card's size, placed and reclaimed as others."""

from typing import Any

import pytest

from allocator.names import PERCENT_RESOURCE, POD_CARDS
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.cluster_builders import in_percent
from tests.queue_world import QueueWorld

COHORT = "queues: [{name: a, cohort: x, nominalQuota: 16}, {name: b, cohort: x, nominalQuota: 16}]"
NEVER = "it needs 40 units; queue a can never have more than 16"


def ask(world: QueueWorld, name: str, percent: int, *, cards: int = 1, **more: Any) -> str:
    """A gated pod that asks for a share of one card, or of several."""
    notes = {POD_CARDS: str(cards)} if cards > 1 else {}
    return world.pod(name, containers=[in_percent(percent * cards)], annotations=notes, **more)


def used(world: QueueWorld, queue: str = "a") -> int:
    return world.queue.queues[queue].units


def test_a_pod_counts_for_what_it_has_of_the_card_that_it_gets() -> None:
    world = QueueWorld(policy="best-fit", large=(80,))
    uid = ask(world, "half", 50)
    assert world.admitted() == ["half"]
    assert used(world) == 40
    assert world.queue.list_planned_cards(uid) == ["GPU-large-0"]
    world.bind(uid)
    assert used(world) == 40
    world.delete(uid)
    assert used(world) == 0


def test_what_its_node_accounts_on_every_card_that_it_may_have_is_not_charged() -> None:
    """So it is after a kubelet has lost its checkpoint; others would be evicted for it."""
    world = QueueWorld(policy="best-fit", large=(80, 80))
    uid = ask(world, "half", 50)
    world.decide()
    world.bind(uid)
    world.node("large", (80, 80), (40, 40), holds={uid: {0: 40, 1: 40}})
    world.change(uid)
    assert used(world) == 40


def test_of_cards_of_several_sizes_the_tightest_wins() -> None:
    """Half of a card leaves nothing of the small one."""
    config = "nodePolicy: best-fit\nnodePolicyParameters: {best-fit: {mode: pick}}"
    world = QueueWorld(f"queues: [{{name: a}}]\n{config}")
    world.node("large", (80,), (20,))
    world.node("small", (16,), (8,))
    uid = ask(world, "half", 50)
    world.decide()
    assert world.queue.list_planned_cards(uid) == ["GPU-small-0"]


def test_bound_elsewhere_it_counts_for_what_it_has_there() -> None:
    """kube-scheduler chose the smaller card."""
    world = QueueWorld(policy="least-requested", large=(80,))
    uid = ask(world, "half", 50)
    world.decide()
    world.node("small", (16,))
    world.bind(uid, node="small")
    assert used(world) == 8


def test_quota_decides_by_the_size_of_the_card() -> None:
    """Of 16 units half of a card of 80 is too much, half of one of 16 is not."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 16}]", large=(80,))
    uid = ask(world, "p0", 50)
    assert world.admitted() == []
    (why,) = status.explain_waiting(world.queue, 0)
    assert (why.reason, why.message) == ("NeverFits", NEVER)
    world.node("small", (16,))
    ask(world, "p1", 50)
    ask(world, "p2", 50)
    releases = world.decide()
    assert [member.node for each in releases for member in each.members] == ["small", "small"]
    assert used(world) == 16
    world.delete(uid)
    assert used(world) == 8


def test_no_share_is_counted_on_a_node_whose_kubelet_serves_none() -> None:
    """Half of its card of 16 would be within the quota of 16."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 16}]", large=(80,))
    world.node("old", (16,), resources={PERCENT_RESOURCE: "0"})
    ask(world, "half", 50)
    assert world.admitted() == []
    (why,) = status.explain_waiting(world.queue, 0)
    assert (why.reason, why.message) == ("NeverFits", NEVER)


def test_the_largest_free_share_that_a_pod_is_told_is_one_that_fits() -> None:
    """49 % of 44 units count for 21."""
    world = QueueWorld(n=(44,))
    world.pod("other", 23)
    assert world.admitted() == ["other"]
    ask(world, "half", 50)
    assert world.admitted() == []
    (why,) = status.explain_waiting(world.queue, 0)
    assert why.message == "it needs 50 percent of one card; the largest free card has 49"
    ask(world, "less", 49)
    assert world.admitted() == ["less"]


def test_a_full_small_card_and_a_large_one_beyond_the_quota() -> None:
    """There is room, and no quota for it there."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 16}, {name: b}]", small=(16,), large=(80,))
    world.pod("b0", 16, queue="b", spec={"nodeSelector": {"size": "small"}})
    world.node("small", (16,), labels={"size": "small"})
    assert world.admitted() == ["b0"]
    ask(world, "a0", 50)
    assert world.admitted() == []
    (why,) = status.explain_waiting(world.queue, 0)
    assert (why.reason, why.message) == (
        "Quota",
        "it needs 40 units; queue a uses 0 units of its quota of 16",
    )


def test_a_card_whose_kubelet_serves_no_percent_is_not_the_largest_free_one() -> None:
    """31 % of 16 units count for the 4 that are free on the other node."""
    world = QueueWorld(n=(16,))
    world.node("old", (16,), resources={PERCENT_RESOURCE: "0"})
    world.pod("other", 12, spec={"nodeName": "n"}, gates=())
    ask(world, "half", 50)
    assert world.admitted() == []
    (why,) = status.explain_waiting(world.queue, 0)
    assert why.message == "it needs 50 percent of one card; the largest free card has 31"


@pytest.mark.parametrize(("percent", "fits"), [(50, 2), (34, 3), (25, 4), (51, 1), (100, 1)])
def test_shares_are_admitted_by_the_words(percent: int, fits: int) -> None:
    """Not more than fit on the card, whatever stands beside them."""
    world = QueueWorld(n=(79,))
    for number in range(6):
        ask(world, f"p{number}", percent, created=number)
    assert len(world.admitted()) == fits
    (why, *_) = status.explain_waiting(world.queue, 0)
    assert why.reason == "NoRoom"
    assert f"it needs {percent} percent of one card; the largest free card has" in why.message


def test_units_and_percent_share_a_card() -> None:
    world = QueueWorld(n=(16,))
    world.pod("units", 9, created=1)
    ask(world, "half", 50, created=2)
    ask(world, "less", 40, created=3)
    assert world.admitted() == ["units", "less"]
    assert used(world) == 9 + 6


def test_a_gang_of_shares_is_released_whole() -> None:
    world = QueueWorld("queues: [{name: a, nominalQuota: 24}]", n=(16,))
    for number in range(2):
        ask(world, f"g{number}", 50, gang="g", size=3)
    world.pod("g2", 16, gang="g", size=3)
    assert world.admitted() == []
    world.node("m", (16,))
    assert world.admitted() == [], "it needs 32 units"
    world.configure("queues: [{name: a, nominalQuota: 32}]")
    assert sorted(world.admitted()) == ["g0", "g1", "g2"]
    assert used(world) == 32


def test_shares_of_several_cards() -> None:
    world = QueueWorld(n=(16, 80))
    uid = ask(world, "both", 50, cards=2)
    assert world.admitted() == ["both"]
    assert used(world) == 8 + 40
    world.bind(uid)
    assert used(world) == 48


def test_after_a_restart_it_counts_for_the_same() -> None:
    """Admitted and not bound: as soon as its room is found again. Bound: by the cards of its Binding."""
    world = QueueWorld(policy="best-fit", n=(16, 80))
    uids = [ask(world, f"p{number}", 50, created=number) for number in range(4)]
    world.decide()
    world.bind(uids[0])
    before = used(world)
    again = QueueWorld(policy="best-fit")
    for raw in world.objects.values():
        again.objects[raw["metadata"]["uid"]] = raw
        again._send(raw)
    again.node("n", (16, 80))
    assert again.admitted() == []
    assert (before, used(again)) == (96, 96)


def test_a_pod_that_waits_again_before_it_had_cards_counts_for_nothing() -> None:
    """Counted still, it would stand in its own way: the quota is for one of them."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 8}]")
    world.node("n", (16,), (16,))
    uid = ask(world, "half", 50, gates=())
    assert world.admitted() == []
    assert used(world) == 8
    world.requeue(uid)
    assert used(world) == 0
    assert world.admitted() == []
    assert used(world) == 0
    world.node("n", (16,))
    assert world.admitted() == ["half"]


def test_what_is_lent_is_taken_back_for_a_share_and_of_a_share() -> None:
    world = QueueWorld(f"{COHORT}\nreclaim: evict", n=(16, 16))
    uids = [ask(world, f"a{number}", 50, created=number) for number in range(4)]
    world.decide()
    world.bind(*uids)
    assert used(world) == 32
    ask(world, "b0", 50, queue="b", created=50)
    assert world.admitted() == []
    (found,) = Reclaimer(world.queue).find_plans(0)
    assert [(found.queue, world.name(victim.uid)) for victim in found.victims] == [("b", "a3")]


def test_room_is_kept_for_a_share_that_waits_long() -> None:
    """Where its quota lets it be."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 16}, {name: b}]", large=(80,), small=(16,))
    world.pod("b0", 80, queue="b", created=0)
    world.pod("b1", 16, queue="b", created=0)
    world.decide()
    ask(world, "a0", 100, created=1)
    world.now = 600
    ((pod, node),) = world.queue.update_reservations(world.now)
    assert (world.name(pod.uid), node) == ("a0", "small")


def test_a_share_near_its_data_that_another_tenant_can_pay() -> None:
    """The node with the data has a card that is too large for a's quota; b's pod goes there, a's far away."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 16}, {name: b, nominalQuota: 80}]")
    world.node("large", (80,), labels={"data.gpupack.io/d": ""})
    world.node("small", (16,))
    for queue in "ab":
        ask(world, f"{queue}0", 50, queue=queue, data="d")
    went = {m.uid: (m.node, each.relaxed) for each in world.decide() for m in each.members}
    assert went == {"uid-a0": ("small", True), "uid-b0": ("large", False)}
