"""Reclaim evicts the fewest that let the asking pod start, at once and not in two rounds."""

import random
from collections.abc import Iterable
from datetime import timedelta
from itertools import combinations

import pytest

from scheduler_plugin.queue.scheduler.borrowed import BorrowedPods
from scheduler_plugin.queue.scheduler.reclaim import MAX_SEARCHES, Reclaimer, ReclaimPlan
from tests.cluster_builders import in_percent
from tests.queue_world import NEW_YEAR, QueueWorld


def world_of(own_a: int, own_b: int, more_a: str = "", more: str = "") -> QueueWorld:
    """Two queues of one cohort; a borrows, b asks."""
    queues = f"{{name: a, cohort: x, nominalQuota: {own_a}{more_a}}}, "
    queues += f"{{name: b, cohort: x, nominalQuota: {own_b}{more}}}"
    return QueueWorld(f"queues: [{queues}]\nreclaim: evict")


def run(world: QueueWorld, units: Iterable[int], queue: str = "a") -> list[str]:
    """Let pods run, each created after the one before; their names."""
    names = []
    for number, each in enumerate(units):
        names.append(f"{queue}{number}")
        uid = world.pod(names[-1], each, queue=queue, created=number)
        assert world.admitted() == [names[-1]]
        world.bind(uid)
    return names


def find(world: QueueWorld, reclaimer: Reclaimer | None = None) -> ReclaimPlan | None:
    found = (reclaimer or Reclaimer(world.queue)).find_plans(world.now)
    assert len(found) <= 1
    return found[0] if found else None


def names(reclaim: ReclaimPlan | None) -> list[str]:
    return [] if reclaim is None else sorted(victim.record.name for victim in reclaim.victims)


def carry_out(world: QueueWorld, reclaim: ReclaimPlan) -> list[str]:
    """Evict one victim after the other, each made again at once; names of all that are admitted meanwhile."""
    reclaim.reserve(world.queue)
    world.queue.update_reservations(world.now)
    admitted = []
    for number, victim in enumerate(reclaim.victims):
        assert victim.requirements is not None
        world.delete(victim.uid)
        world.pod(f"again{number}", victim.requirements.units, queue=victim.queue_info.queue, created=5000)
        admitted += world.admitted()
    return admitted


def test_quota_is_topped_up_where_room_needs_fewer_units() -> None:
    """One pod of 30 leaves room for 40 on its card, and 40 units of quota are missing: two go."""
    world = world_of(60, 60)
    for name in ("n0", "n1"):
        world.node(name, (70,))
    run(world, (30, 30, 30, 30))
    world.pod("b0", 40, queue="b", created=50)
    assert world.admitted() == []
    reclaim = find(world)
    assert len(names(reclaim)) == 2
    assert reclaim is not None
    assert "b0" in carry_out(world, reclaim)


@pytest.mark.parametrize(
    ("running", "lacks", "gone"),
    [
        ((3, 3, 8), 10, ["a1", "a2"]),
        ((8, 3, 3), 10, ["a0", "a2"]),
        ((12, 3, 3, 3), 10, ["a0"]),
        ((12, 3, 3, 3), 3, ["a3"]),
        ((5, 5, 5), 10, ["a1", "a2"]),
        ((3, 3, 3, 3), 10, ["a0", "a1", "a2", "a3"]),
    ],
    ids=["8 first", "8 last", "one large one", "the youngest", "equal ones", "all"],
)
def test_the_fewest_go_where_only_quota_is_missing(
    running: tuple[int, ...], lacks: int, gone: list[str]
) -> None:
    """Cards are more than the quotas count; each victim is needed, and they are enough."""
    world = world_of(0, sum(running))
    for number in range(4):
        world.node(f"n{number}", (32,))
    run(world, running)
    world.pod("b0", lacks, queue="b", created=50)
    assert world.admitted() == []
    reclaim = find(world)
    assert names(reclaim) == gone
    assert reclaim is not None
    assert "b0" in carry_out(world, reclaim)


@pytest.mark.parametrize(
    ("borrowers", "gone"),
    [
        ((("a", 16, 0), ("a", 16, 0)), ["a1"]),
        ((("a", 16, 1), ("a", 16, 0), ("a", 16, 1)), ["a1"]),
        ((("a", 16, 0), ("a", 16, 0), ("c", 16, 0)), ["c2"]),
        ((("c", 16, 0), ("a", 16, 1), ("a", 16, 1)), ["c0"]),
        ((("a", 8, 0), ("a", 8, 0), ("a", 8, 1), ("a", 8, 0)), ["a0", "a1"]),
    ],
    ids=["younger", "smaller priority", "of any queue", "priority before age", "none of a larger priority"],
)
def test_of_equally_many_the_youngest_of_the_smallest_priority_go(
    borrowers: tuple[tuple[str, int, int], ...], gone: list[str]
) -> None:
    """Whatever their nodes are called and whoever has borrowed more."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: c, cohort: x, nominalQuota: 0}"
    world = QueueWorld(
        f"queues: [{queues}, {{name: b, cohort: x, nominalQuota: 64}}]\nreclaim: evict", "best-fit"
    )
    for number in range(sum(units for _, units, _ in borrowers) // 16):
        world.node(f"n{number}", (16,))
    for number, (queue, units, priority) in enumerate(borrowers):
        world.run(f"{queue}{number}", units, queue=queue, created=number, spec={"priority": priority})
    world.pod("b0", 16, queue="b", created=50, spec={"priority": 5})
    assert world.admitted() == []
    assert names(find(world)) == gone


def test_the_fewest_go_of_a_node_with_more_pods_than_sets_are_tried_of() -> None:
    """Two old pods of 8 fill one of its cards; eight pods of 2 fill each of the others."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: b, cohort: x, nominalQuota: 128}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict", "best-fit")
    world.node("n0", (16,) * 8, cpu="400", memory="4000Gi")
    run(world, (8, 8) + (2,) * 56)
    world.pod("b0", 16, queue="b", created=5000)
    assert world.admitted() == []
    reclaim = find(world)
    assert names(reclaim) == ["a0", "a1"]
    assert reclaim is not None
    assert "b0" in carry_out(world, reclaim)


def test_the_card_on_which_the_pod_fits_is_kept_until_the_quota_is_there() -> None:
    """A pod of a third queue would take it while the victim ends, and another round would come."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: b, cohort: x, nominalQuota: 16}, {name: c}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict", n0=(16,), n1=(16,))
    run(world, (16,))
    world.pod("b0", 16, queue="b", created=50)
    assert world.admitted() == []
    reclaim = find(world)
    assert reclaim is not None
    reclaim.reserve(world.queue)
    world.queue.update_reservations(world.now)
    world.pod("c0", 16, queue="c", created=1)
    assert world.admitted() == []
    world.delete("uid-a0")
    assert sorted(world.admitted()) == ["b0", "c0"]


def test_freed_quota_that_its_owner_does_not_lend_is_not_counted() -> None:
    """Each pod of 8 brings the 4 units that its queue had borrowed; 8 are missing, so two go at once."""
    queues = ", ".join(f"{{name: {name}, cohort: x, nominalQuota: 12, lendingLimit: 0}}" for name in "ac")
    world = QueueWorld(f"queues: [{queues}, {{name: b, cohort: x, nominalQuota: 12}}]\nreclaim: evict")
    for number in range(4):
        world.node(f"n{number}", (16,))
    run(world, (8, 8))
    run(world, (8, 8), queue="c")
    world.pod("b0", 12, queue="b", created=50)
    assert world.admitted() == []
    reclaim = find(world)
    assert names(reclaim) == ["a1", "c1"]
    assert reclaim is not None
    assert "b0" in carry_out(world, reclaim)


def test_an_older_pod_that_can_never_run_does_not_switch_reclaim_off() -> None:
    """Its model does not exist; another one is larger than its quota; a gang is too large. Others go on."""
    world = world_of(16, 16)
    world.node("n", (16, 16))
    run(world, (8, 8, 8, 8))
    misspelt = {"gpupack.io/gpu-model": "*H10*"}
    for number in range(3 * MAX_SEARCHES):
        world.pod(f"never{number}", 1 + number, queue="b", created=10 + number, annotations=misspelt)
    world.pod("large", 17, queue="b", created=30)
    for number in range(2):
        world.pod(f"g{number}", 9, queue="b", created=31, gang="g", size=2)
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    reclaimer = Reclaimer(world.queue)
    found = [names(find(world, reclaimer)) for _ in range(5)]
    assert found.count(["a3"]) == 1
    assert found.count([]) == 4


def test_of_a_strict_queue_only_the_oldest_is_looked_at() -> None:
    """Others are not admitted before it, so whoever went for them would go in vain."""
    world = world_of(16, 16, more=", queueingStrategy: StrictFIFO")
    world.node("n", (16, 16))
    run(world, (8, 8, 8, 8))
    world.pod("never", 17, queue="b", created=30)
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    assert find(world) is None


def test_what_is_kept_for_others_does_not_become_room() -> None:
    """Evicting from a card that is kept for another queue's pod lets nobody start."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: b, cohort: x, nominalQuota: 8}, {name: c}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict", n0=(16,))
    world.pod("c-runs", 8, queue="c", created=0)
    assert world.admitted() == ["c-runs"]
    world.bind("uid-c-runs")
    run(world, (8,))
    world.pod("c-waits", 16, queue="c", created=1)
    world.now = 700
    assert [node for _, node in world.queue.update_reservations(world.now)] == ["n0"]
    world.pod("b0", 8, queue="b", created=600)
    assert world.admitted() == []
    assert find(world) is None


def test_a_node_without_a_slot_for_the_pod_is_left_alone() -> None:
    """Both places of the node have pods of c; of a's no pod goes, since b's would not get a place by that."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: b, cohort: x, nominalQuota: 16}, {name: c}"
    slots = "\nslots: {per: node, local: {count: 0}, free: {count: 3}}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict{slots}", n0=(16,))
    run(world, (8,))
    run(world, (1, 1), queue="c")
    world.configure(f"queues: [{queues}]\nreclaim: evict" + slots.replace("3", "2"))
    world.pod("b0", 12, queue="b", created=600)
    assert world.admitted() == []
    assert find(world) is None
    world.configure(f"queues: [{queues}]\nreclaim: evict{slots}")
    assert names(find(world)) == ["a0"]


def test_a_slot_is_reclaimed_where_only_that_is_missing() -> None:
    """The card has room and the quota is there, but no place on the node is left."""
    queues = "{name: a, cohort: x, nominalQuota: 2}, {name: b, cohort: x, nominalQuota: 14}"
    slots = "\nslots: {per: node, local: {count: 0}, free: {count: 2}}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict{slots}", n0=(16,))
    run(world, (2, 2))
    world.pod("b0", 4, queue="b", created=600)
    assert world.admitted() == []
    assert names(find(world)) == ["a1"]
    world.delete("uid-a1")
    assert world.admitted() == ["b0"]


def test_a_share_goes_where_the_fewest_must_go_for_its_quota() -> None:
    """Half of the large card, which is empty, is 16 units; half of the small one is 8."""
    world = world_of(0, 18)
    world.node("tiny", (12,))
    world.node("small", (16,), used=(16,))
    run(world, (4, 4, 4))
    world.node("small", (16,), used=(8,))
    world.node("large", (32,))
    world.pod("b0", queue="b", created=50, containers=[in_percent(50)])
    assert world.admitted() == []
    reclaim = find(world)
    assert names(reclaim) == ["a2"]
    assert reclaim is not None
    assert reclaim.reserved["uid-b0"].node == "small"


@pytest.mark.parametrize("begun", [0.0, 60.0])
def test_pods_that_are_being_deleted_are_awaited_and_nobody_goes_in_their_place(begun: float) -> None:
    """Their room is kept for the lender; where one does not end, others go after all."""
    world = world_of(16, 16)
    world.node("n", (16, 16))
    run(world, (8, 8, 8, 8))
    world.change(
        "uid-a3", metadata={"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    )
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    reclaimer = Reclaimer(world.queue)
    world.now = begun
    reclaim = find(world, reclaimer)
    assert reclaim is not None
    assert names(reclaim) == []
    reclaim.reserve(world.queue)
    world.pod("a4", 8, created=40)
    assert [names(find(world, reclaimer)) for world.now in (begun + 1.0, 89.0, 103.0)] == [[], [], []]
    world.now = 104.0
    assert names(find(world, reclaimer)) == ["a2"]
    world.delete("uid-a3")
    assert world.admitted() == ["b0"]


@pytest.mark.parametrize(
    ("clock_s", "waits_s"),
    [(-1800, 1860), (-3659, 1), (-3660, 0), (600, 3660)],
    ids=["half an hour ago", "nearly late", "late", "clock ahead"],
)
def test_a_pod_deleted_before_the_queue_started_is_awaited_by_its_own_time(
    clock_s: int, waits_s: int
) -> None:
    """Of an hour's grace what is left counts, and never more than that from when it is first seen."""
    world = world_of(16, 16)
    world.node("n", (16, 16))
    for name in run(world, (8, 8, 8, 8)):
        raw = world.objects[f"uid-{name}"]
        world.queue.delete_pod(f"uid-{name}", 0.0)
        ends = NEW_YEAR + timedelta(hours=1, seconds=clock_s)
        deletion = {"deletionTimestamp": f"{ends:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": 3600}
        world.change(raw["metadata"]["uid"], metadata=deletion if name == "a3" else {})
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    borrowed = BorrowedPods(world.queue)
    borrowed.update_pending(0.0)
    leaves = [bool(borrowed.list_leaving(now)) for now in (max(0, waits_s - 1), waits_s)]
    assert leaves == [waits_s > 0, False]


def test_a_pod_deleted_again_with_a_shorter_grace_is_awaited_for_that() -> None:
    """The API server moves the end of the grace period, counted from the first deletion."""
    world = world_of(16, 16)
    world.node("n", (16,))
    (name,) = run(world, (8,))
    borrowed, left = BorrowedPods(world.queue), []
    for world.now, grace_s in ((100.0, 3600), (200.0, 30)):
        ends = NEW_YEAR + timedelta(seconds=100 + grace_s)
        deletion = {"deletionTimestamp": f"{ends:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": grace_s}
        world.change(f"uid-{name}", metadata=deletion)
        left += [bool(borrowed.list_leaving(now)) for now in (189.0, 190.0, 3760.0)]
    assert left == [True, True, False, True, False, False]


@pytest.mark.parametrize("held", [False, True], ids=["not held yet", "held by the words"])
def test_a_pod_that_has_just_ended_makes_room_and_nobody_goes_in_its_place(*, held: bool) -> None:
    """Its quota is free at once, and its node says a moment later that its cards are. Else others go."""
    world = world_of(16, 16)
    world.node("n", (16, 16))
    uids = [f"uid-{name}" for name in run(world, (8, 8, 8, 8))]
    if held:
        world.node("n", (16, 16), [16, 16], holds=uids)
    world.pod("b0", 8, queue="b", created=50)
    world.change("uid-a0", status={"phase": "Succeeded"})
    assert world.admitted() == []
    reclaimer = Reclaimer(world.queue)
    reclaim = find(world, reclaimer)
    assert reclaim is not None
    assert names(reclaim) == []
    reclaim.reserve(world.queue)
    found = {}
    for second in range(1, 20):
        world.now = float(second)
        if reclaim := find(world, reclaimer):
            found[second] = names(reclaim)
    assert found == {15: ["a3"]}
    world.node("n", (16, 16), [8, 16], holds=uids[1:])
    assert world.admitted() == ["b0"]


def test_a_victim_that_never_ends_does_not_stop_reclaim_for_good() -> None:
    """Its node is dead, perhaps; after its grace period and a minute others go."""
    world = world_of(16, 16)
    world.node("n", (16, 16))
    run(world, (8, 8, 8, 8))
    world.pod("b0", 8, queue="b", created=50)
    assert world.admitted() == []
    reclaimer = Reclaimer(world.queue)
    assert names(find(world, reclaimer)) == ["a3"]
    world.change(
        "uid-a3", metadata={"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    )
    found = {}
    for second in range(200):
        world.now = float(second)
        if reclaim := find(world, reclaimer):
            found[second] = names(reclaim)
    assert found == {104: ["a2"]}


def test_a_task_that_is_not_released_after_two_rounds_is_left_for_a_while() -> None:
    """Its node says never that cards are free; pods must not go for it again and again."""
    world = world_of(0, 64)
    world.node("n", (64,))
    held = [f"uid-{name}" for name in run(world, [2] * 32)]
    world.node("n", (64,), [64], holds=held)
    world.pod("b0", 2, queue="b", created=50)
    reclaimer = Reclaimer(world.queue)
    found = []
    for second in range(1000):
        world.now = float(second)
        if reclaim := find(world, reclaimer):
            found.append(second)
            (victim,) = reclaim.victims
            world.delete(victim.uid)
    assert found == [0, 15, 90, 225, 480, 975]


def units_of(world: QueueWorld) -> dict[str, int]:
    """Units of the pods that run or are admitted, by UID."""
    return {uid: has.units for queue in world.queue.queues for uid, has in queue.admitted.items()}


def starts(world: QueueWorld, gone: Iterable[str], units: int) -> bool:
    """Whether b's pod could start with these pods gone, by simple sums over cards and the cohort."""
    gone = set(gone)
    free = {}
    for node, node_record in world.state.node_records.items():
        row = world.state.nodes.rows[node]
        for card, uuid in enumerate(node_record.uuids):
            used = sum(
                share
                for uid, record in node_record.pods.items()
                if uid not in gone
                for shares in (record.assigned or {}).values()
                for at, share in shares
                if at == uuid
            )
            free[uuid] = int(world.state.nodes.size[row, card]) - used
    cohort = world.queue.queues.get_cohort("b")
    assert cohort is not None
    used_units = sum(account.used for account in cohort.accounts.values())
    total = sum(account.quota.nominal or 0 for account in cohort.accounts.values())
    quota = used_units - sum(units_of(world)[uid] for uid in gone) + units <= total
    return quota and any(each >= units for each in free.values())


@pytest.mark.parametrize("seed", range(150))
def test_random_clusters_the_fewest_go_and_the_pod_starts(seed: int) -> None:
    """Every smaller set is tried; and what is evicted and made again does not get in between."""
    rng = random.Random(seed)
    cards = [rng.choice((16, 24)) for _ in range(rng.randint(1, 4))]
    total = int(sum(cards) * rng.choice((0.7, 1, 1)))
    own = rng.randint(4, min(total, 24))
    queues = (
        f"{{name: a, cohort: x, nominalQuota: {total - own}}}, {{name: b, cohort: x, nominalQuota: {own}}}"
    )
    world = QueueWorld(
        f"queues: [{queues}]\nreclaim: evict", policy=rng.choice(("best-fit", "least-requested"))
    )
    for number, size in enumerate(cards):
        world.node(f"n{number}", (size,))
    for number in range(30):
        world.pod(f"a{number:02}", rng.choice((3, 4, 5, 8, 16)), created=number)
    running = [member.uid for release in world.decide() for member in release.members]
    world.bind(*running)
    for uid in [uid for uid in world.objects if uid not in running]:
        world.delete(uid)
    units = rng.randint(1, min(own, max(cards)))
    world.pod("b0", units, queue="b", created=500)
    if world.admitted():
        return
    cohort = world.queue.queues.get_cohort("b")
    assert cohort is not None
    left, borrowed = cohort.accounts["a"].borrowed, []
    for uid in sorted(running, reverse=True):
        if left > 0:
            borrowed.append(uid)
            left -= units_of(world)[uid]
    reclaim = find(world)
    if reclaim is None:
        assert not starts(world, borrowed, units)
        return
    gone = {victim.uid for victim in reclaim.victims}
    assert gone <= set(borrowed)
    assert starts(world, gone, units)
    for count in range(len(gone)):
        assert not any(starts(world, some, units) for some in combinations(borrowed, count))
    # UIDs are in the order of their creation.
    of_as_many = [some for some in combinations(borrowed, len(gone)) if starts(world, some, units)]
    assert sorted(gone) == max(sorted(some) for some in of_as_many)
    assert "b0" in carry_out(world, reclaim)


def test_a_slot_that_is_taken_back_for_one_lender_is_not_counted_on_for_another() -> None:
    """Both are looked for at once; there are cards for both, and one slot."""
    slots = "\nslots: {per: node, local: {count: 0}, free: {count: 2}}"
    queues = ", ".join(f"{{name: {name}, cohort: all, nominalQuota: 8}}" for name in "abc")
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict{slots}", n1=(16, 16))
    uids = [world.pod(f"b{number}", 8, queue="b", created=number) for number in range(2)]
    assert len(world.admitted()) == 2
    world.bind(*uids)
    world.pod("a0", 4, queue="a", created=50)
    world.pod("c0", 4, queue="c", created=51)
    assert world.admitted() == []
    plans = Reclaimer(world.queue).find_plans(world.now)
    assert [(plan.queue, [world.name(each.uid) for each in plan.victims]) for plan in plans] == [
        ("a", ["b1"])
    ]
