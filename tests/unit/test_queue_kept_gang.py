"""Room that is kept for a gang that waits long: for all pods at once, where the least must become free."""

from typing import Any

import pytest

from scheduler_plugin.queue.capacity import reservation_planner
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.scheduler.admission import AdmissionCycle
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.cluster_builders import in_percent
from tests.queue_world import ONE_QUEUE, TEN_HOURS_S, QueueWorld, long_runners

LONG = 1000.0
"""A pod has waited for longer than `keepRoomAfter`."""


def gang_of(world: QueueWorld, *units: int, **more: Any) -> list[str]:
    return [
        world.pod(f"g{number}", each, created=1, gang="G", size=len(units), **more)
        for number, each in enumerate(units)
    ]


def keep(world: QueueWorld) -> dict[str, str]:
    """What is kept, after it was looked at who waits long: nodes by pod."""
    world.now = max(world.now, LONG)
    world.queue.update_reservations(world.now)
    return kept(world)


def kept(world: QueueWorld) -> dict[str, str]:
    kept_rooms = world.queue.capacity.reservations
    found = {
        uid: each for task in kept_rooms.workload_uids for uid, each in kept_rooms.get_by_pod(task).items()
    }
    return {uid.removeprefix("uid-"): each.node for uid, each in sorted(found.items())}


def three_nodes(config: str = ONE_QUEUE) -> QueueWorld:
    """Nodes of one card each, of which so much is used: 12, 4 and 8 of 16."""
    world = QueueWorld(config)
    for node, used in (("n1", 12), ("n2", 4), ("n3", 8)):
        world.node(node, (16,), (used,))
    return world


def reasons(world: QueueWorld) -> dict[str, str]:
    return {each.name: each.message for each in explain_waiting(world.queue, world.now)}


@pytest.fixture
def world() -> QueueWorld:
    return three_nodes()


def test_the_cards_of_a_node_are_read_once_for_all_pods_of_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang has up to a thousand pods, and others of the process wait meanwhile."""
    world, read = QueueWorld(n1=(16, 16)), list[int]()
    world.node("n1", (16, 16), (16, 16))
    gang_of(world, 4, 4, 4, 4, 4)
    build = reservation_planner.build_charged_cards
    monkeypatch.setattr(
        reservation_planner, "build_charged_cards", lambda nodes, row: read.append(row) or build(nodes, row)
    )
    assert len(keep(world)) == 5
    assert len(read) == 1


def test_room_is_kept_for_all_pods_where_the_least_must_become_free(world: QueueWorld) -> None:
    gang_of(world, 16, 16)
    world.now = 599
    assert world.queue.update_reservations(world.now) == []
    world.now = 601
    told = [(pod.uid, node) for pod, node in world.queue.update_reservations(world.now)]
    assert told == [("uid-g0", "n2"), ("uid-g1", "n3")]
    assert world.queue.update_reservations(world.now) == [], "it is told once"
    world.pod("small", 4, created=700)
    assert world.admitted() == ["small"]
    assert world.state.get_assumed("uid-small").node == "n1", "small pods go elsewhere"  # type: ignore[union-attr]
    world.node("n2", (16,), (0,))
    world.pod("other", 4, created=701)
    assert world.admitted() == [], "what becomes free is not for others"
    world.node("n3", (16,), (0,))
    assert sorted(world.admitted()) == ["g0", "g1"]
    assert kept(world) == {}
    world.node("n1", (16,), (0,))
    assert world.admitted() == ["other"]


def test_pods_of_a_gang_share_cards_and_others_get_nothing_of_them() -> None:
    """One card is enough for three of them; a fourth finds its room on the other one."""
    world = QueueWorld()
    world.node("n1", (16, 16), (15, 16))
    gang_of(world, 5, 5, 5, 5)
    assert keep(world) == dict.fromkeys(("g0", "g1", "g2", "g3"), "n1")
    cards = [each.cards for each in world.queue.capacity.reservations.get_by_pod("gang default/G").values()]
    assert sorted(cards) == [(0,), (0,), (0,), (1,)]
    world.pod("small", 1, created=2)
    assert world.admitted() == []
    world.node("n1", (16, 16), (1, 11))
    assert len(world.admitted()) == 4


def test_a_gang_of_which_only_the_first_pod_fits_is_tried_once_a_decision(
    world: QueueWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was tried for ever, and the controller stood still."""
    gang_of(world, 16, 16)
    keep(world)
    world.node("n2", (16,), (0,))
    tries = []
    pick = AdmissionCycle.pick_workload

    def counted(*arguments: Any) -> Any:
        tries.append(arguments)
        assert len(tries) < 9, "it is tried for ever"
        return pick(*arguments)

    monkeypatch.setattr(AdmissionCycle, "pick_workload", counted)
    assert world.admitted() == []
    assert len(tries) == 2
    assert "; cards of node n2 are reserved for it" in reasons(world)["g0"]


def _lose(world: QueueWorld) -> None:
    world.lose_node("n2")


def _cordon(world: QueueWorld) -> None:
    world.node("n2", (16,), (4,), spec={"unschedulable": True})


def _shrink(world: QueueWorld) -> None:
    world.node("n2", (12,), (4,))


def _taint(world: QueueWorld) -> None:
    world.node("n2", (16,), (4,), spec={"taints": [{"key": "gone", "value": "", "effect": "NoExecute"}]})


def _host(world: QueueWorld) -> None:
    world.node("n2", (16,), (4,), cpu="0")


@pytest.mark.parametrize("change", [_lose, _cordon, _shrink, _taint, _host])
def test_room_is_found_again_when_a_node_goes_or_changes(world: QueueWorld, change: Any) -> None:
    """For all of the gang; never for a part of it."""
    gang_of(world, 16, 16)
    assert keep(world) == {"g0": "n2", "g1": "n3"}
    change(world)
    assert keep(world) == {"g0": "n3", "g1": "n1"}
    world.lose_node("n1")
    assert keep(world) == {}, "there is no room for both any more"
    world.pod("small", 4, created=2)
    assert world.admitted() == ["small"]
    world.node("n4", (16,), (16,))
    assert keep(world) == {"g0": "n3", "g1": "n4"}


def test_a_card_that_is_too_small_for_two_pods_together_does_not_serve_them() -> None:
    world = QueueWorld()
    world.node("n1", (16,), (8,))
    world.node("n2", (16,), (16,))
    gang_of(world, 8, 8)
    assert keep(world) == {"g0": "n1", "g1": "n1"}
    world.node("n1", (12,), (8,))
    assert keep(world) == {"g0": "n1", "g1": "n2"}


def test_pods_that_come_and_go_before_the_release(world: QueueWorld) -> None:
    """Nothing is kept while the gang is not complete; once it is, what it had waited counts."""
    first, _ = gang_of(world, 16, 16)
    keep(world)
    world.delete(first)
    assert keep(world) == {}
    world.pod("again", 16, created=900, gang="G", size=2)
    assert keep(world) == {"again": "n2", "g1": "n3"}, "the others are its pods now"


def test_a_gang_that_gets_smaller_keeps_no_more_than_it_needs(world: QueueWorld) -> None:
    """A pod goes, and the others are told of the new size."""
    gang = gang_of(world, 16, 16, 16)
    assert len(keep(world)) == 3
    world.delete(gang[2])
    for uid in gang[:2]:
        world.objects[uid]["metadata"]["annotations"]["gpupack.io/gang-size"] = "2"
        world.change(uid)
    assert keep(world) == {"g0": "n2", "g1": "n3"}


def test_a_restart_keeps_the_same_room() -> None:
    """How long pods wait is written on them, and what has become free meanwhile is not given away."""
    before = three_nodes()
    gang_of(before, 16, 16)
    keep(before)
    before.node("n3", (16,), (0,))
    after = QueueWorld()
    after.now = LONG
    for node, used in (("n1", 12), ("n2", 4), ("n3", 0)):
        after.node(node, (16,), (used,))
    gang_of(after, 16, 16)
    assert set(keep(after).values()) == set(keep(before).values()) == {"n2", "n3"}


def test_a_pod_with_a_choice_leaves_the_only_node_to_one_without() -> None:
    """Both ways: in what is kept, and when they are admitted."""
    world = QueueWorld()
    world.node("n1", (16,), (0,), labels={"disk": "ssd"})
    world.node("n2", (16,), (4,))
    world.pod("g0", 16, created=1, gang="G", size=2)
    world.pod("g1", 16, created=1, gang="G", size=2, spec={"nodeSelector": {"disk": "ssd"}})
    assert keep(world) == {"g0": "n2", "g1": "n1"}
    world.node("n2", (16,), (0,))
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_nothing_is_kept_for_a_gang_that_never_fits_until_the_cluster_grows(world: QueueWorld) -> None:
    gang_of(world, 16, 16, 16, 16)
    assert keep(world) == {}
    world.node("n4", (16,), (2,))
    assert keep(world) == {"g0": "n4", "g1": "n2", "g2": "n3", "g3": "n1"}


def test_of_a_strict_queue_only_the_oldest_has_room_kept() -> None:
    """Who stands behind a gang that never fits would never be admitted."""
    world = three_nodes("queues: [{name: a, queueingStrategy: StrictFIFO}, {name: b}]")
    gang_of(world, 99, 99)
    world.pod("later", 16, created=2)
    world.pod("other", 16, queue="b", created=2)
    assert keep(world) == {"other": "n2"}


@pytest.mark.parametrize("quota", [31, 32])
def test_no_room_is_kept_beyond_the_quota(quota: int) -> None:
    world = three_nodes(f"queues: [{{name: a, nominalQuota: {quota}}}]")
    gang_of(world, 16, 16)
    assert len(keep(world)) == (2 if quota == 32 else 0)


def test_room_for_shares_is_kept_where_the_quota_lets_them_be() -> None:
    """A whole card of the large node is more than the queue may have."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 40}]")
    world.node("large", (80,), (0,))
    for node in ("s1", "s2"):
        world.node(node, (16,), (15,))
    for number in range(2):
        world.pod(f"g{number}", created=1, gang="G", size=2, containers=[in_percent(100)])
    assert keep(world) == {"g0": "s1", "g1": "s2"}


def test_room_for_shares_that_the_quota_lets_only_one_be_on_a_large_card() -> None:
    """Each could have one, both could not."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 96}]")
    for node, size, used in (("l1", 80, 1), ("l2", 80, 1), ("s1", 16, 15), ("s2", 16, 15)):
        world.node(node, (size,), (used,))
    for number in range(2):
        world.pod(f"g{number}", created=1, gang="G", size=2, containers=[in_percent(100)])
    assert keep(world) == {"g0": "s1", "g1": "s2"}


def test_a_gang_whose_first_stage_has_not_ended_has_nothing_kept(world: QueueWorld) -> None:
    world.pod("data", 16, created=1, data="d", job="j")
    gang_of(world, 16, 16, job="j")
    assert keep(world) == {"data": "n2"}


def test_the_node_that_was_kept_is_the_one_that_batch_mode_names() -> None:
    world = three_nodes("mode: batch\nqueues: [{name: a}]")
    gang_of(world, 16, 16)
    expected = keep(world)
    for node in ("n2", "n3", "n1"):
        world.node(node, (16,), (0,))
    (release,) = world.decide()
    assert {world.name(each.uid): each.node for each in release.members} == expected


def test_processor_and_memory_are_kept_with_the_cards() -> None:
    """Small pods beside them would take the processor, one after the other."""
    world = QueueWorld()
    world.node("n1", (16, 16), (8, 0), cpu="8")
    world.node("n2", (16,), (16,), cpu="0")
    gang_of(world, 16, cpu="6")
    world.pod("many", 4, created=2, cpu="4")
    world.pod("few", 4, created=3, cpu="2")
    world.node("n1", (16, 16), (8, 1), cpu="8")
    assert keep(world) == {"g0": "n1"}
    assert world.admitted() == ["few"]


def test_evicting_for_a_gang_keeps_its_room_once() -> None:
    """What was kept before is given up for what the victims free."""
    queues = "{name: a, cohort: x, nominalQuota: 16}, {name: b, cohort: x, nominalQuota: 32}"
    queues += ", {name: c, cohort: x, nominalQuota: 32}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict")
    for node in ("n1", "n2", "n3"):
        world.node(node, (16,))
    for number in range(3):
        world.pod(f"a{number}", 16, created=number)
        world.admitted()
        world.bind(f"uid-a{number}")
    gang_of(world, 16, 16, queue="b")
    assert keep(world) == {"g0": "n1", "g1": "n2"}
    (reclaim,) = Reclaimer(world.queue).find_plans(world.now)
    victims = [victim.record for victim in reclaim.victims]
    assert {victim.name for victim in victims} == {"a1", "a2"}, "the youngest"
    reclaim.reserve(world.queue)
    assert sorted(kept(world).values()) == sorted(victim.node for victim in victims)
    assert keep(world) == kept(world)
    for victim in reclaim.victims:
        world.delete(victim.uid)
    assert sorted(world.admitted()) == ["g0", "g1"]


def test_a_gang_waits_for_room_to_be_kept_as_long_as_a_single_pod() -> None:
    """As long as pods run, see `patience`: those that run have run for ten hours."""
    world, large = long_runners("\nkeepRoomAtLatest: 4h")
    world.delete(large)
    for number in range(2):
        world.pod(f"g{number}", 16, created=36_000, gang="G", size=2)
    world.now = TEN_HOURS_S + 3.9 * 3600
    assert keep(world) == {}
    world.now = TEN_HOURS_S + 4 * 3600
    assert keep(world) == {"g0": "n1", "g1": "n1"}
