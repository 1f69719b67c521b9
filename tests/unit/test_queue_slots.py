"""Slots: how many pods of a type may be on a node or card, and which type borrows from which."""

import json

import pytest

from allocator.names import POD_NODE_POLICY, POD_PLANNED
from scheduler_plugin.queue.cache.lending import SlotMatch
from scheduler_plugin.queue.cache.queued_pods import RequeueWrite
from scheduler_plugin.queue.cache.waiting import SlotType
from scheduler_plugin.queue.controller.status import explain_waiting
from tests.cluster_builders import in_percent
from tests.queue_world import ONE_QUEUE, UNSCHEDULABLE, QueueWorld

SLOTS = f"{ONE_QUEUE}\nslots: {{per: node, local: {{count: 1}}, free: {{count: 1}}}}"
HERE = {"data.gpupack.io/d": ""}


def test_slots_bound_what_runs_on_a_node_and_are_lent_between_types() -> None:
    """One local and one free slot on each card."""
    world = QueueWorld("queues: [{name: a}]\nslots: {per: card, local: {count: 1}, free: {count: 1}}")
    world.node("n1", (16,))
    uids = [world.pod(f"f{i}", 1, created=i) for i in range(3)]
    releases = world.decide()
    assert [(release.workload.uid, release.slot_match) for release in releases] == [
        (uids[0], 2),
        (uids[1], 3),
    ]
    world.bind(uids[0])
    world.delete(uids[0])
    assert world.admitted() == ["f2"]


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
    cases = [release.slot_match for release in world.decide()]
    assert cases == [SlotMatch.FREE_FOR_FREE] * free + [SlotMatch.LOCAL_LENT_TO_FREE] * local


def test_a_pod_without_data_is_free_also_in_a_gang_with_data() -> None:
    """Its class is its own, before it is bound as after."""
    world = QueueWorld("queues: [{name: a}]\nslots: {per: node, local: {count: 2}, free: {count: 2}}")
    world.node("n1", (16,), labels=HERE)
    uids = [world.pod("g0", data="d", gang="G", size=2), world.pod("g1", gang="G", size=2)]
    world.decide()
    idle = [[world.queue.slots.count_idle("n1", kind) for kind in SlotType]]
    world.bind(*uids)
    idle.append([world.queue.slots.count_idle("n1", kind) for kind in SlotType])
    assert idle == [[1, 1], [1, 1]]


def nodes_of(world: QueueWorld) -> dict[str, str]:
    """Where the pods go that are admitted now, and whether that is written into them."""
    return {
        world.name(member.uid): f"{member.node}{'' if release.names_node else '?'}"
        for release in world.decide()
        for member in release.members
    }


def test_slots_near_the_data_are_offered_before_any_is_offered_to_pods_whose_data_is_elsewhere() -> None:
    """Both nodes are idle, and n1 comes first by its name."""
    world = QueueWorld(SLOTS, n1=(16,))
    world.node("n2", (16,), labels=HERE)
    for number in range(5):
        world.pod(f"m{number}", 1, data="d", created=number)
    releases = world.decide()
    assert [(each.members[0].node, each.slot_match, each.relaxed) for each in releases] == [
        ("n2", SlotMatch.LOCAL_FOR_LOCAL, False),
        ("n2", SlotMatch.FREE_LENT_TO_LOCAL, False),
        ("n1", SlotMatch.LOCAL_FOR_LOCAL, True),
        ("n1", SlotMatch.FREE_LENT_TO_LOCAL, True),
    ]


@pytest.mark.parametrize(("policy", "node"), [("least-requested", "n1"), ("best-fit", "n2")])
def test_of_nodes_with_an_idle_slot_the_node_policy_chooses(policy: str, node: str) -> None:
    """Nodes became known in another order; the pod's own policy counts, too."""
    world = QueueWorld(SLOTS)
    for name, used in (("n3", 5), ("n2", 12), ("n1", 0)):
        world.node(name, (16,), (used,))
    world.pod("p", 4, annotations={POD_NODE_POLICY: policy})
    assert nodes_of(world) == {"p": node}
    world.pod("q", 4, annotations={POD_NODE_POLICY: policy})
    world.pod("r", 4, annotations={POD_NODE_POLICY: policy})
    assert node not in nodes_of(world).values(), "no slot is idle there"


def test_a_policy_holds_pods_back_also_where_there_are_slots() -> None:
    world = QueueWorld(
        f"{SLOTS}\nnodePolicy: weighted-balance\n"
        "nodePolicyParameters: {weighted-balance: {on-no-improvement: hold, hold-rounds: 1, threshold: 1}}"
    )
    world.node("n1", (16,), (6,))
    world.pod("p", 1, cpu="0", memory="40Gi")
    assert not nodes_of(world)
    world.now += 1
    assert nodes_of(world) == {"p": "n1"}


def test_a_slot_of_the_own_type_comes_before_one_that_is_lent_wherever_it_is() -> None:
    """n1 is first by its name, and has a slot of the other type only."""
    world = QueueWorld(
        f"{ONE_QUEUE}\nslots: {{per: node, local: {{count: 1}}, free: {{count: 1,"
        " nodeSelector: {matchLabels: {pool: batch}}}}"
    )
    world.node("n1", (16,))
    world.node("n2", (16,), labels={"pool": "batch"})
    for number in range(3):
        world.pod(f"p{number}", 1, created=number)
    releases = world.decide()
    assert [(each.members[0].node, each.slot_match) for each in releases] == [
        ("n2", SlotMatch.FREE_FOR_FREE),
        ("n1", SlotMatch.LOCAL_LENT_TO_FREE),
        ("n2", SlotMatch.LOCAL_LENT_TO_FREE),
    ]


def test_a_slot_is_not_relaxed_while_another_queue_has_a_pod_for_a_slot_near_its_data() -> None:
    """The first queue's data is nowhere: its turn is lent, and it has what is left over."""
    world = QueueWorld(SLOTS.replace("{name: a}", "{name: a}, {name: b}"), n1=(16,))
    world.node("n2", (16,), labels=HERE)
    world.pod("far", 1, data="nowhere", created=0)
    world.pod("near", 1, queue="b", data="d", created=9)
    assert nodes_of(world) == {"near": "n2", "far": "n1"}


def test_the_node_is_named_where_slots_or_data_decide_it() -> None:
    """Else kube-scheduler chooses: where nothing depends on it, and where the data is elsewhere anyway."""
    world = QueueWorld(n1=(16,))
    world.node("n2", (16,), labels=HERE)
    world.pod("plain", 1)
    world.pod("near", 1, data="d")
    world.pod("far", 1, data="nowhere")
    for number in range(2):
        world.pod(f"g{number}", 1, data="d" if number else "", gang="g", size=2)
    found = nodes_of(world)
    assert found.pop("plain").endswith("?")
    assert found.pop("far").endswith("?")
    assert found == dict.fromkeys(("near", "g0", "g1"), "n2")
    world.configure(f"{ONE_QUEUE}\nlocality: {{enabled: false}}")
    world.pod("anywhere", 1, data="d")
    assert nodes_of(world)["anywhere"].endswith("?")
    world.configure(SLOTS)
    world.node("n3", (16,))
    world.pod("slot", 1)
    assert nodes_of(world) == {"slot": "n3"}


def test_a_pod_whose_node_was_named_is_made_again_where_a_controller_does_that() -> None:
    """It could be bound nowhere else. Without a controller it waits again, for that node."""
    world = QueueWorld(SLOTS, n1=(16,))
    names = ("owned", "bare")
    for name in names:
        owner = {"ownerReferences": [{"uid": "o", "controller": True}]} if name == "owned" else {}
        world.pod(name, 1, metadata=owner)
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}
    for release in world.queue.admit_workloads(world.now):
        uid = release.workload.uid
        world.objects[uid]["metadata"]["annotations"][POD_PLANNED] = "GPU-1"
        world.change(uid, spec={"schedulingGates": [], "affinity": {"nodeAffinity": required}})
    world.now = 121.0
    backs = {world.name(back.queued_pod.uid): back.write for back in world.queue.find_requeues(world.now)}
    assert backs == {"owned": RequeueWrite.REMOVE, "bare": RequeueWrite.MARK}


def test_a_slot_stays_with_a_release_until_that_is_taken_back() -> None:
    """kube-scheduler may bind the pod until then, and nobody else counts slots."""
    world = QueueWorld(SLOTS, n1=(16,))
    first, _, _ = (world.pod(f"p{number}", 1 + number, created=number) for number in range(3))
    assert world.admitted() == ["p0", "p1"]
    world.change(first, status=UNSCHEDULABLE)
    assert world.admitted() == []
    world.requeue_pods()
    assert world.admitted() == ["p2"]


def test_a_slot_stays_with_a_release_also_in_a_queue_that_begins_after_it() -> None:
    world = QueueWorld(SLOTS, n1=(16,))
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}
    for number in range(2):
        uid = world.pod(
            f"p{number}",
            1,
            gates=(),
            created=number,
            annotations={POD_PLANNED: "GPU-n1-0"},
            spec={"affinity": {"nodeAffinity": required}},
        )
        world.change(uid, status=UNSCHEDULABLE)
    world.pod("late", 1, created=2)
    assert world.admitted() == []
    world.now = 121.0
    world.requeue_pods()
    assert "late" in world.admitted()


def test_where_cards_are_kept_for_a_pod_a_slot_is_kept_too() -> None:
    """Small pods that come and go take the cards beside it, and would take the slot that it needs."""
    world = QueueWorld(f"{ONE_QUEUE}\nslots: {{per: node, local: {{count: 2}}, free: {{count: 1}}}}")
    world.node("n1", (16, 16))
    small = [world.pod(f"s{number}", 8, created=number) for number in range(3)]
    assert world.admitted() == ["s0", "s1", "s2"]
    world.bind(*small)
    large = world.pod("large", 16, created=3)
    world.pod("late", 8, created=4)
    world.now = 600.0
    assert [pod.uid for pod, _ in world.queue.update_reservations(world.now)] == [large]
    (kept,) = world.queue.capacity.reservations.get_by_pod(large)[large].cards
    record = world.state.node_records["n1"]
    on_kept = {uid for uid in small if record.uuids[kept] in str(record.pods[uid].assigned)}
    world.delete(next(uid for uid in small if uid not in on_kept))
    assert world.admitted() == [], "a slot is idle, and late would fit on the other card"
    waits = {each.name: each.message for each in explain_waiting(world.queue, world.now)}
    assert waits["late"] == "the slots that it would take are kept free for pods that wait longer"
    for uid in on_kept:
        world.delete(uid)
    assert world.admitted() == ["large", "late"], "the slot was kept until the card was free, and no longer"


POOL = {"pool": "batch"}
IN_POOL = f"{{nodeSelector: {{matchLabels: {json.dumps(POOL)}}}, count: 1}}"
SLOTS_IN_POOL = f"{ONE_QUEUE}\nslots: {{per: node, local: {IN_POOL}, free: {IN_POOL}}}\nkeepRoomAfter: 1m"


def test_cards_are_reserved_where_the_nodes_that_a_pod_fits_on_have_no_idle_slot() -> None:
    """Two small pods take both slots of n2 whenever one is idle; n1 has room, but not for this queue."""
    world = QueueWorld(SLOTS_IN_POOL, n1=(16,))
    world.node("n2", (16,), labels=POOL)
    small = [world.pod(f"s{i}", 4, created=i) for i in range(3)]
    assert len(world.admitted()) == 2
    world.bind(*small[:2])
    large = world.pod("large", 16, created=1)
    world.now = 600
    assert [(pod.uid, node) for pod, node in world.queue.update_reservations(world.now)] == [(large, "n2")]
    world.delete(small[0])
    assert world.admitted() == [], "the card is reserved"
    world.delete(small[1])
    assert world.admitted() == ["large"]


def test_a_gang_gets_no_reservation_on_a_node_with_too_few_slots() -> None:
    """Its three pods fit on the cards of n1, which has two slots."""
    world = QueueWorld(f"{SLOTS}\nkeepRoomAfter: 1m", n1=(16,), n2=(16,))
    for uid in [world.pod(f"s{i}", 16, created=i) for i in range(2)]:
        world.decide()
        world.bind(uid)
    for i in range(3):
        world.pod(f"g{i}", 4, gang="g", size=3, created=10)
    world.now = 600
    kept = sorted(node for _, node in world.queue.update_reservations(world.now))
    assert kept in (["n1", "n1", "n2"], ["n1", "n2", "n2"])


@pytest.mark.parametrize("gang", ["", "g"])
def test_who_fits_only_on_nodes_without_slots_is_told_so(gang: str) -> None:
    """A pod, and the pods of a gang."""
    world = QueueWorld(SLOTS_IN_POOL, n1=(16, 16))
    world.node("n2", (8, 8), labels=POOL)
    for i in range(2 if gang else 1):
        world.pod(f"p{i}", 12, gang=gang, size=2 if gang else "")
    world.decide()
    told = {(why.reason, why.message) for why in explain_waiting(world.queue, world.now)}
    assert told == {("NeverFits", "no node that could take it has slots")}


def test_a_gang_whose_hardest_pod_fits_only_where_no_slot_is_idle_is_not_told_of_a_turn() -> None:
    world = QueueWorld("queues: [{name: a}]\nslots: {per: node, local: {count: 0}, free: {count: 2}}")
    world.node("n1", (16, 8))
    world.node("n2", (4, 4))
    for i in range(2):
        world.run(f"s{i}", 8, created=i)
    world.pod("g0", 8, gang="g", size=2, created=10)
    world.pod("g1", 4, gang="g", size=2, created=10)
    assert world.admitted() == []
    told = {(why.name, why.reason, why.message) for why in explain_waiting(world.queue, world.now)}
    assert told == {
        ("g0", "NoRoom", "no node that it fits on has an idle slot"),
        ("g1", "NoRoom", "cards for 2 waiting pods of its gang are not free at once"),
    }


def test_a_share_that_quota_allows_only_where_no_slot_is_idle_is_told_so() -> None:
    """Half of the large card, whose node has a slot, is more than the quota has left."""
    world = QueueWorld(
        "queues: [{name: a, nominalQuota: 12}]\nslots: {per: node, local: {count: 0}, free: {count: 1}}"
    )
    world.node("small", (8, 8))
    world.run("s", 8)
    world.node("large", (16,))
    world.pod("half", containers=[in_percent(50)])
    assert world.admitted() == []
    (why,) = explain_waiting(world.queue, world.now)
    assert (why.reason, why.message) == ("NoRoom", "no node that it fits on has an idle slot")


@pytest.mark.parametrize("config", [SLOTS, ONE_QUEUE])
def test_nodes_that_are_gone_are_forgotten_with_their_last_pod(config: str) -> None:
    """An autoscaler gives each node a new name."""
    world = QueueWorld(config)
    world.node("n1", (16,))
    uid = world.run("p")
    world.lose_node("n1")
    assert list(world.queue.slots.nodes) == ["n1"], "its pod may run on"
    world.delete(uid)
    assert not world.queue.slots.nodes
