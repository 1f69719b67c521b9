"""The queue as a whole: pods come, are released in order, run and end."""

import pytest

from allocator.names import QUEUE_GATE
from allocator.records import Assignment
from scheduler_plugin.queue import explain
from scheduler_plugin.queue.lending import Case
from scheduler_plugin.queue.queue import FORGOTTEN_FROM
from scheduler_plugin.queue.reclaim import Reclaimer
from tests.queue_world import ONE_QUEUE, QueueWorld

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
TWO = "queues: [{name: a, cohort: all, nominalQuota: 16}, {name: b, cohort: all, nominalQuota: 16}]"


@pytest.fixture
def world() -> QueueWorld:
    """One node with two cards of 16 units, one queue."""
    world = QueueWorld()
    world.node("n1", (16, 16))
    return world


def test_pods_are_released_by_age_as_long_as_a_card_can_take_them(world: QueueWorld) -> None:
    """The sum would suffice for the last one, no card does."""
    for i, name in enumerate(("third", "second", "first")):
        world.pod(name, 10, created=100 - i)
    assert world.released() == ["first", "second"]
    assert world.released() == []


def test_what_was_released_and_is_not_bound_keeps_its_room(world: QueueWorld) -> None:
    """Also when a pod comes that would fit beside nothing else."""
    world.pod("one", 16)
    world.pod("two", 16)
    world.decide()
    world.pod("three", 16)
    assert world.released() == []


def test_a_pod_that_ends_makes_room_for_the_next(world: QueueWorld) -> None:
    """As soon as the state knows."""
    uids = [world.pod(name, 16, created=i) for i, name in enumerate(("one", "two", "three"))]
    assert world.released() == ["one", "two"]
    for uid in uids[:2]:
        world.bind(uid)
    world.delete(uids[0])
    assert world.released() == ["three"]


def test_a_pod_that_does_not_fit_does_not_hold_up_smaller_ones(world: QueueWorld) -> None:
    """In a queue of strategy BestEffortFIFO."""
    world.pod("large", 17, created=1)
    world.pod("small", 4, created=2)
    assert world.released() == ["small"]


def test_a_strict_queue_waits_for_its_oldest() -> None:
    """Strategy StrictFIFO."""
    world = QueueWorld("queues: [{name: a, strategy: StrictFIFO}]")
    world.node("n1", (16, 16))
    large = world.pod("large", 17, created=1)
    world.pod("small", 4, created=2)
    assert world.released() == []
    world.delete(large)
    assert world.released() == ["small"]


def test_shares_follow_the_weights() -> None:
    """Of 12 pods that fit, nine are of the tenant that is worth three times as much."""
    world = QueueWorld("queues: [{name: a, weight: 3}, {name: b}]")
    world.node("n1", (12, 12), cpu="100", memory="1000Gi")
    for i in range(24):
        world.pod(f"a{i}", 2, queue="a")
        world.pod(f"b{i}", 2, queue="b")
    names = world.released()
    assert sorted(name[0] for name in names) == ["a"] * 9 + ["b"] * 3


def test_idle_quota_is_lent_and_no_more() -> None:
    """a has 16 of its own and 16 that b does not use; the lending limit of b keeps 4."""
    world = QueueWorld(TWO.replace("}]", ", lendingLimit: 12}]"))
    world.node("n1", (16, 16))
    for i in range(10):
        world.pod(f"p{i}", 4, queue="a")
    releases = world.decide()
    assert len(releases) == 7
    assert [release.borrowed for release in releases] == [0, 0, 0, 0, 4, 4, 4]


def test_a_borrowing_limit_holds() -> None:
    """a may borrow 4 of the 16 that are idle."""
    world = QueueWorld(TWO.replace("}, {", ", borrowingLimit: 4}, {"))
    world.node("n1", (16, 16))
    for i in range(10):
        world.pod(f"p{i}", 4, queue="a")
    assert len(world.released()) == 5


def test_the_lender_gets_its_quota_back_as_borrowers_end() -> None:
    """Before the borrower gets any more."""
    world = QueueWorld(TWO)
    world.node("n1", (16, 16))
    uids = [world.pod(f"a{i}", 4, queue="a", created=i) for i in range(10)]
    assert len(world.released()) == 8
    world.pod("b0", 4, queue="b", created=99)
    for uid in uids[:8]:
        world.bind(uid)
    assert world.released() == []
    world.delete(uids[0])
    assert world.released() == ["b0"]


def test_a_stopped_queue_releases_nothing() -> None:
    """Until it is started again."""
    world = QueueWorld("queues: [{name: a, stop: Hold}]")
    world.node("n1", (16, 16))
    world.pod("one")
    assert world.released() == []
    world.configure("queues: [{name: a}]")
    assert world.released() == ["one"]


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        ({"queue": "nobody"}, 'queue "nobody" does not exist: allowed are a'),
        ({"queue": ""}, "label gpupack.io/queue-name is missing: allowed are a"),
        ({"gates": (QUEUE_GATE, "example.com/other")}, "it waits for the scheduling gates example.com/other"),
        (
            {"gang": "g"},
            "annotation gpupack.io/gang-size is missing: allowed is a whole number from 1 to 1024",
        ),
        ({"gang": "g", "size": "0x2"}, 'annotation gpupack.io/gang-size is "0x2"'),
        ({"size": 2}, "annotation gpupack.io/gang-size without gpupack.io/gang"),
        ({"annotations": {"gpupack.io/cards": "x"}}, 'annotation gpupack.io/cards is "x"'),
        ({"annotations": {"gpupack.io/node-policy": "best"}}, 'annotation gpupack.io/node-policy is "best"'),
        ({"units": 0}, "it asks for no gpupack.io/gpu-memory-gib"),
    ],
)
def test_a_pod_with_something_wrong_waits_and_the_others_go_on(
    world: QueueWorld, pod: dict[str, object], says: str
) -> None:
    """And the queue can say why."""
    uid = world.pod("wrong", **pod)  # type: ignore[arg-type]
    world.pod("right")
    assert world.released() == ["right"]
    assert says in world.queue.refusal(world.queue.entries[uid])


def test_a_foreign_gate_is_waited_for(world: QueueWorld) -> None:
    """The pod is released once nobody else holds it."""
    uid = world.pod("one", gates=("example.com/other", QUEUE_GATE))
    assert world.released() == []
    world.change(uid, spec={"schedulingGates": [{"name": QUEUE_GATE}]})
    assert world.released() == ["one"]


def test_a_queue_is_for_the_namespaces_that_it_selects() -> None:
    """A namespace that gets the label lets its pods in."""
    world = QueueWorld("queues: [{name: a, namespaceSelector: {matchLabels: {team: x}}}]")
    world.node("n1", (16, 16))
    world.pod("one")
    assert world.released() == []
    world.queue.set_namespace("default", {"team": "x"})
    assert world.released() == ["one"]


def test_labels_taints_and_affinity_of_nodes_count() -> None:
    """A pod is released for a node that kube-scheduler will allow, or not at all."""
    world = QueueWorld()
    world.node("n1", (16, 16), spec={"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})
    world.node("n2", (16, 16), labels={"zone": "z1"}, spec={"unschedulable": True})
    world.pod("one", 1, spec={"nodeSelector": {"zone": "z1"}})
    two = world.pod("two", 1)
    world.pod("three", 1, spec={"tolerations": [{"key": "k", "operator": "Exists"}]})
    assert world.released() == ["three"]
    assert world.state.taken("uid-three").node == "n1"  # type: ignore[union-attr]
    world.node("n2", (16, 16), labels={"zone": "z1"})
    assert sorted(world.released()) == ["one", "two"]
    assert world.state.taken(two).node == "n2"  # type: ignore[union-attr]


def test_the_second_stage_of_a_job_waits_for_the_first(world: QueueWorld) -> None:
    """A pod without data waits for those of its job that read data; a failed one does not count as done."""
    first = world.pod("map", 1, data="d", job="j")
    world.pod("reduce", 1, job="j")
    assert world.released() == ["map"]
    world.bind(first)
    assert world.released() == []
    world.change(first, status={"phase": "Failed"})
    assert world.released() == []
    world.delete(first)
    assert world.released() == ["reduce"]


def test_data_that_is_near_comes_first_and_locality_is_relaxed_when_nobody_is_near() -> None:
    """u's data is on n1 and goes there although n2 is as good."""
    world = QueueWorld(policy="least-requested")
    world.node("n1", (16,), labels={"topology.kubernetes.io/rack": "r1"})
    world.node("n2", (16,), labels={"topology.kubernetes.io/rack": "r2", "data.gpupack.io/d": ""})
    near = world.pod("near", 4, data="d", created=9)
    far = world.pod("far", 4, data="nowhere", created=1)
    releases = {release.task.uid: release for release in world.decide()}
    assert not releases[near].relaxed
    assert releases[near].members[0].node == "n2"
    assert releases[far].relaxed
    assert list(releases) == [near, far]


def test_slots_bound_what_runs_on_a_node_and_are_lent_between_types() -> None:
    """One local and one free slot on each card."""
    world = QueueWorld("queues: [{name: a}]\nslots: {per: card, local: {count: 1}, free: {count: 1}}")
    world.node("n1", (16,))
    uids = [world.pod(f"f{i}", 1, created=i) for i in range(3)]
    releases = world.decide()
    assert [(release.task.uid, release.case) for release in releases] == [(uids[0], 2), (uids[1], 3)]
    world.bind(uids[0])
    world.delete(uids[0])
    assert world.released() == ["f2"]


@pytest.mark.parametrize(
    ("labels", "cards", "local", "free"),
    [({}, 4, 4, 0), ({"pool": "batch"}, 4, 4, 4), ({"pool": "batch"}, 3, 4, 3), ({"pool": "other"}, 1, 2, 0)],
)
def test_slots_are_of_a_share_of_the_cards_and_on_the_nodes_that_are_selected(
    labels: dict[str, str], cards: int, local: int, free: int
) -> None:
    """Half of the cards, rounded up, has two local slots each; every card of some nodes a free one."""
    world = QueueWorld(
        "queues: [{name: a}]\nslots: {per: card, local: {count: 2, shareOfCards: 50},"
        " free: {count: 1, nodeSelector: {matchLabels: {pool: batch}}}}"
    )
    world.node("n1", (16,) * cards, labels=labels)
    for number in range(20):
        world.pod(f"p{number}", 1, created=number)
    cases = [release.case for release in world.decide()]
    assert cases == [Case.FREE_FOR_FREE] * free + [Case.LOCAL_LENT_TO_FREE] * local


def test_a_gang_is_released_whole_or_not_at_all() -> None:
    """Three pods of 10 units need three cards."""
    world = QueueWorld()
    world.node("n1", (16, 16))
    for i in range(3):
        world.pod(f"g{i}", 10, gang="g", size=3)
    world.pod("small", 4)
    assert world.released() == ["small"]
    assert [take for uid in ("uid-g0", "uid-g1", "uid-g2") if (take := world.state.taken(uid))] == []
    world.node("n2", (16,))
    assert sorted(world.released()) == ["g0", "g1", "g2"]


def test_a_gang_waits_for_its_last_pod(world: QueueWorld) -> None:
    """And is complete with it."""
    world.pod("g0", gang="g", size=2)
    assert world.released() == []
    world.pod("g1", gang="g", size=2)
    assert sorted(world.released()) == ["g0", "g1"]


def test_a_gang_whose_pods_disagree_waits(world: QueueWorld) -> None:
    """It says on what."""
    world.pod("g0", gang="g", size=2)
    world.pod("g1", gang="g", size=3)
    assert world.released() == []
    assert "disagree on gpupack.io/gang-size: 2, 3" in world.queue.gangs.get("gang default/g").fault  # type: ignore[union-attr]


def test_a_gang_that_is_half_bound_is_taken_back(world: QueueWorld) -> None:
    """All of its pods that a controller makes again are removed."""
    owner = [{"uid": "u", "controller": True}]
    uids = [world.pod(f"g{i}", 16, gang="g", size=2) for i in range(2)]
    for uid in uids:
        world.change(uid, metadata={"ownerReferences": owner})
    world.decide()
    world.bind(uids[0])
    world.now = 299
    assert world.queue.expire(world.now) == []
    world.now = 300
    back = world.queue.expire(world.now)
    assert {(each.entry.uid, each.remove) for each in back} == {(uid, True) for uid in uids}
    assert "1 of 2 pods of its gang are bound" in back[0].why


def test_a_release_that_finds_no_card_gives_its_room_back_at_once(world: QueueWorld) -> None:
    """kube-scheduler knows reasons that the queue does not."""
    uid = world.pod("one", 16)
    world.pod("two", 16)
    world.decide()
    world.pod("three", 15)
    world.change(uid, status=UNSCHEDULABLE)
    assert world.released() == ["three"]
    (back,) = world.queue.expire(world.now)
    assert (back.entry.uid, back.why, back.remove) == (uid, "kube-scheduler found no node for it", False)
    assert world.queue.expire(world.now) == []
    world.now = 120
    assert [back.why for back in world.queue.expire(world.now)] == [
        "not bound within 120 s of its release"
    ] * 2


def test_of_pods_that_are_alike_one_is_tried_at_a_time_after_kube_scheduler_refused_one() -> None:
    """It refuses for a reason that the queue cannot see, so there is room and quota for all of them."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 160}]")
    world.node("n1", (16,))
    uids = [world.pod(f"p{i}", 16, created=i) for i in range(50)]
    at = []
    while world.now < 600:
        for name in world.released():
            at.append(world.now)
            world.change(f"uid-{name}", status=UNSCHEDULABLE)
        world.now += 1
    assert at == [0, 10, 30, 70, 150, 310]
    held = world.queue.entries[uids[-1]]
    message = explain.why(world.queue, held, world.now).message
    assert message.startswith("pod default/p0 asks for the same and could not be bound")
    world.pod("other", 15, created=99)
    assert world.released() == ["other"], "another one goes at once"
    world.delete("uid-other")
    world.bind_to(uids[0], "n1")
    world.delete(uids[0])
    assert world.released() == ["p6"], "once one is bound all may go that fit"


def test_quota_is_never_exceeded_by_pods_that_are_bound_late() -> None:
    """kube-scheduler may bind what it once refused at any time."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 32}]")
    world.node("n1", (16,))
    first = world.pod("first", 16)
    world.decide()
    world.change(first, status=UNSCHEDULABLE)
    for units in (15, 14, 13):
        world.pod(f"p{units}", units)
    assert world.released() == ["p15"]
    assert world.queue.tenants["a"].units == 31
    world.delete("uid-p15")
    world.bind_to(first, "n1")
    assert world.queue.tenants["a"].units == 16


def test_in_batch_mode_what_kube_scheduler_refused_is_removed_too() -> None:
    """It is pinned to its node; it is asked again until it is gone."""
    world = QueueWorld("mode: batch\nqueues: [{name: a}]")
    world.node("n1", (16,))
    uid = world.pod("p", 16)
    world.change(uid, metadata={"ownerReferences": [{"uid": "set", "controller": True}]})
    world.decide()
    world.change(uid, status=UNSCHEDULABLE)
    found = []
    for world.now in range(140):
        found += [(world.now, back.remove, back.again) for back in world.queue.expire(world.now)]
    assert found == [(0, False, False), (120, True, False), (125, True, True), (135, True, True)]
    world.delete(uid)
    assert world.queue.expire(500) == []


def test_a_release_that_is_not_bound_in_time_gives_its_room_back(world: QueueWorld) -> None:
    """Two minutes, unless configured."""
    uid = world.pod("one", 16)
    world.decide()
    world.now = 119
    assert world.queue.expire(world.now) == []
    world.now = 120
    (back,) = world.queue.expire(world.now)
    assert (back.entry.uid, back.remove) == (uid, False)
    assert world.state.taken(uid) is None
    assert world.queue.expire(world.now) == []


def test_a_release_that_the_api_server_refuses_waits_again(world: QueueWorld) -> None:
    """With nothing taken, and is released once more after a pause, longer each time."""
    uid = world.pod("one", 16)
    for pause_s in (1, 2, 4):
        (release,) = world.queue.decide(world.now)
        world.queue.not_released(release.task.uid, world.now, "no")
        assert world.state.taken(uid) is None
        assert world.queue.tenants["a"].units == 0
        assert world.queue.refusal(world.queue.entries[uid]) == "the API server refuses its release: no"
        world.now += pause_s - 0.1
        assert not list(world.queue.decide(world.now))
        world.now += 0.1
    (release,) = world.queue.decide(world.now)
    world.queue.not_released(uid, world.now)
    assert not world.queue.refusal(world.queue.entries[uid]), "it had changed: nobody refuses it"
    assert not list(world.queue.decide(world.now))
    world.now += 8
    assert world.released() == ["one"]


def test_a_release_that_was_not_written_yet_is_not_late(world: QueueWorld) -> None:
    """Its time begins when the API server shows it without its gate."""
    uid = world.pod("one", 16)
    list(world.queue.decide(world.now))
    world.now = 500
    assert world.queue.expire(world.now) == []
    world.change(uid, spec={"schedulingGates": []})
    world.now = 619
    assert world.queue.expire(world.now) == []
    world.now = 620
    assert len(world.queue.expire(world.now)) == 1


def test_room_is_kept_for_a_pod_that_waited_too_long() -> None:
    """Small pods that come and go do not starve a large one; before that they pass it."""
    world = QueueWorld()
    world.node("n1", (16, 16))
    small = [world.pod(f"s{i}", 8, created=i) for i in range(4)]
    assert len(world.released()) == 4
    for uid in small:
        world.bind(uid)
    large = world.pod("large", 16, created=5)
    world.delete(small.pop())
    world.pod("s4", 8, created=6)
    assert world.released() == ["s4"], "it passes while there is time"
    world.now = 600
    ((entry, node),) = world.queue.keep_room(world.now)
    assert (entry.uid, node) == (large, "n1")
    world.bind("uid-s4")
    book = world.state.books["n1"]
    (held,) = world.queue.room.kept.pods(large)[large].cards
    inside = [uid for uid, pod in book.pods.items() if held in book_cards(book.uuids, pod.assigned)]
    world.delete(inside[0])
    world.pod("s5", 8, created=7)
    assert world.released() == [], "the room on the kept card is not for s5"
    world.delete(inside[1])
    assert world.released() == ["large"]


def book_cards(uuids: tuple[str, ...], assigned: Assignment | None) -> list[int]:
    """Positions of the cards that a pod was bound with."""
    return [uuids.index(uuid) for shares in (assigned or {}).values() for uuid, _ in shares]


def test_everything_is_found_again_after_a_restart() -> None:
    """Another queue that is told of the same objects knows the same."""
    world = QueueWorld(TWO)
    world.node("n1", (16, 16))
    for i in range(6):
        world.pod(f"a{i}", 4, queue="a", created=i)
    world.pod("b0", 4, queue="b", created=50)
    world.decide()
    world.bind("uid-a0")
    again = QueueWorld(TWO)
    again.node("n1", (16, 16))
    for raw in world.objects.values():
        again.objects[raw["metadata"]["uid"]] = raw
        again._send(raw)
    for name in ("a", "b"):
        assert again.queue.tenants[name].units == world.queue.tenants[name].units
        assert len(again.queue.tenants[name].waiting) == len(world.queue.tenants[name].waiting)


def reclaimed(world: QueueWorld) -> list[tuple[str, str, list[str]]]:
    """What the reclaimer wants to be done: lender, node and names of victims."""
    found = Reclaimer(world.queue).find(world.now)
    return [(each.tenant, each.node, [world.name(v.uid) for v in each.victims]) for each in found]


def borrowed() -> tuple[QueueWorld, list[str]]:
    """Four pods of a fill the node, two of them on what is b's."""
    world = QueueWorld(f"{TWO}\nreclaim: evict")
    world.node("n1", (16, 16))
    uids = [world.pod(f"a{i}", 8, queue="a", created=i) for i in range(4)]
    world.decide()
    for uid in uids:
        world.bind(uid)
    return world, uids


def test_a_lender_gets_its_room_back_by_eviction_and_no_more_than_needed() -> None:
    """The youngest borrowed pod goes, and none without `reclaim: evict`."""
    world, _ = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    assert world.released() == []
    assert reclaimed(world) == [("b", "n1", ["a3"])]
    world.configure(TWO)
    assert reclaimed(world) == []


def test_nobody_is_evicted_for_what_is_beyond_the_lenders_own_quota() -> None:
    """b uses its 16 units and wants more."""
    world = QueueWorld(f"{TWO}\nreclaim: evict")
    world.node("n1", (16, 16))
    uids = [world.pod(f"a{i}", 8, queue="a", created=i) for i in range(2)]
    uids += [world.pod(f"b{i}", 8, queue="b", created=i) for i in range(2)]
    assert len(world.released()) == 4
    for uid in uids:
        world.bind(uid)
    world.pod("b2", 8, queue="b", created=50)
    assert reclaimed(world) == []


def test_a_victim_has_no_larger_priority_than_who_waits() -> None:
    """The youngest has one, so the next older one would go, but that one is not borrowed."""
    world = QueueWorld(f"{TWO}\nreclaim: evict")
    world.node("n1", (16, 16))
    uids = [world.pod(f"a{i}", 16, queue="a", created=i, spec={"priority": 5}) for i in range(2)]
    world.decide()
    for uid in uids:
        world.bind(uid)
    world.pod("b0", 16, queue="b", created=50)
    assert reclaimed(world) == []


def test_a_drained_queue_removes_its_pods_until_they_are_gone(world: QueueWorld) -> None:
    """Stop HoldAndDrain; a PodDisruptionBudget may protect them for a while. Also those without room."""
    drain = "queues: [{name: a, stop: HoldAndDrain}]"
    uids = [world.pod("one"), world.pod("two")]
    world.decide()
    world.bind(uids[0])
    world.change(uids[1], status=UNSCHEDULABLE)
    world.queue.expire(0)
    world.configure(drain)
    assert sorted((back.entry.uid, back.remove, back.again) for back in world.queue.expire(0)) == [
        (uids[0], True, False),
        (uids[1], True, False),
    ]
    assert world.queue.expire(4) == []
    assert {(back.entry.uid, back.again) for back in world.queue.expire(5)} == {(uid, True) for uid in uids}
    world.change(uids[0], metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    world.delete(uids[1])
    assert world.queue.expire(100) == []
    third = world.pod("three")
    world.configure(ONE_QUEUE)
    assert world.queue.expire(101) == []
    world.now = 101
    assert world.released() == ["three"]
    world.configure(drain)
    assert [(back.entry.uid, back.again) for back in world.queue.expire(102)] == [(third, False)]


def test_nobody_else_is_evicted_until_the_lender_has_what_was_freed() -> None:
    """The victim is gone and its node has not said so yet; much later another one is looked for."""
    world, uids = borrowed()
    world.node("n1", (16, 16), [16, 16], holds=uids)
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find(0)
    world.delete(found.victims[0].uid)
    assert world.released() == [], "the words are as they were"
    assert reclaimer.find(14) == []
    assert len(reclaimer.find(15)) == 1


def test_whom_a_disruption_budget_protects_is_passed_over_for_the_next_youngest() -> None:
    """At once, as nobody went; where both are protected, they are asked again later and later."""
    world, uids = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    asked = []
    for now in range(100):
        for found in reclaimer.find(now):
            (victim,) = found.victims
            asked.append((now, victim.record.name))
            if victim.uid in uids:
                reclaimer.refused("b", victim.uid, now)
    names = [name for _, name in asked]
    assert names == ["a3", "a2", "a1", "a0"] * 3
    assert [at for at, _ in asked] == [0, 1, 2, 3, 15, 16, 17, 18, 45, 46, 47, 48]


def test_when_one_of_two_victims_is_protected_what_the_other_frees_is_awaited() -> None:
    """Else one more would go than needed."""
    world, _ = borrowed()
    world.pod("b0", 16, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find(0)
    gone, stays = found.victims
    reclaimer.refused("b", stays.uid, 0)
    world.delete(gone.uid)
    assert reclaimer.find(1) == []
    assert world.released() == []
    (found,) = reclaimer.find(15)
    assert stays in found.victims, "its card is half free, and it is asked again"


def test_a_victim_whose_eviction_had_no_answer_may_be_going() -> None:
    """Another one is not evicted at once: that could be one more than needed."""
    world, _ = borrowed()
    world.pod("b0", 8, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    (found,) = reclaimer.find(0)
    reclaimer.refused("b", found.victims[0].uid, 0, stays=False)
    assert [len(reclaimer.find(now)) for now in (1, 14, 15)] == [0, 0, 1]


def test_needs_of_pods_that_are_gone_are_forgotten(world: QueueWorld) -> None:
    """Pods of a thousand kinds come and go; what is remembered of them does not stay."""
    for number in range(1000):
        uid = world.pod(f"p{number}", 1, spec={"nodeSelector": {"kind": str(number)}})
        world.queue.room.fits(world.queue.entries[uid].wants)  # type: ignore[arg-type]
        world.delete(uid)
        world.queue.forget_unused()
    assert len(world.queue._shapes) <= FORGOTTEN_FROM
    assert len(world.queue.room._masks) <= FORGOTTEN_FROM + 1
