"""Pods of a PodGroup in filter and bind: a card is held for each of them until its Binding."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from allocator.names import COMPUTE_RESOURCE
from kubeapi.objects import PodGroup
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.group_holds import BINDING_HOLD_S, HOLD_S
from scheduler_plugin.cache.reservations import Reservation
from scheduler_plugin.errors import CommitError
from scheduler_plugin.extender.metrics import Metrics
from scheduler_plugin.extender.pod_events import BOUND_IN_PART, PodReporter
from scheduler_plugin.extender.server import ExtenderService
from scheduler_plugin.extender.verbs import BINDING_REFUSED, GROUP_FAILED, REFUSED_BINDING_S
from scheduler_plugin.preemption.node_victims import view_node
from tests.cluster_builders import container, pod, pod_object
from tests.extender_world import World
from tests.state_world import assigned


class GroupWorld(World):
    """Pods of PodGroups, a clock, and a committer that binds them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.committer = Committer(self.state, self.policies)
        self.pods: dict[str, dict[str, Any]] = {}

    def group(self, name: str, min_count: int, uid: str = "") -> None:
        """Create a PodGroup; 0: with the policy that the pods of a Job have where nothing else is said."""
        policy = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
        metadata = {"name": name, "namespace": "default", "uid": uid}
        raw = {"metadata": metadata, "spec": {"schedulingPolicy": policy}}
        self.state.pod_groups.put_group(msgspec.convert(raw, PodGroup))

    def pod(self, name: str, units: int, group: str = "", *, known: bool = True, **options: Any) -> None:
        spec: dict[str, object] = dict(options.pop("spec", {}))
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        self.pods[name] = pod_object(name, units, spec=spec, **options)
        if known:
            self.state.apply_pod(pod(name, units, spec=spec, **options), self.now)

    def pair(self, group: str = "g") -> None:
        """Two pods of a group that need a card of 8 GiB each."""
        for at in range(2):
            self.pod(f"{group}-{at}", 5, group)

    def ask(self, name: str, *nodes: str) -> str:
        """Call filter; return the node that it gives, or the reason."""
        reply = self.extender.filter(self.body(self.pods[name], nodes or None), self.now)
        self.reply = reply
        answer = json.loads(reply.answer)
        names = answer["NodeNames"] or []
        assert len(names) <= 1 or "schedulingGroup" not in self.pods[name]["spec"]
        return names[0] if names else next(iter(answer["FailedAndUnresolvableNodes"].values()))

    def bind(self, name: str, node: str) -> list[str]:
        """Assume a pod's cards; return their UUIDs."""
        commitment = self.committer.assume("default", name, f"uid-{name}", node, self.now)
        assert commitment.assumed is not None
        assert commitment.assumed.assigned is not None
        return [uuid for shares in commitment.assumed.assigned.values() for uuid, _ in shares]

    def held(self) -> set[tuple[str, str]]:
        self.state.expire_tombstones(self.now)
        return set(self.state.reservations.held)


@pytest.fixture
def world() -> GroupWorld:
    world = GroupWorld()
    world.group("g", 2)
    return world


NOT_FREE = "no card with 5 GiB free"


def test_the_second_pod_is_refused_where_the_sum_suffices_and_no_card_does(world: GroupWorld) -> None:
    world.node("n", (8, 8), (2, 4))
    world.pair()
    assert world.ask("g-0") == "n"
    assert NOT_FREE in world.ask("g-1")
    # The group has failed, so nothing is held for it and a pod on its own gets the card.
    assert world.held() == set()
    world.pod("s", 5)
    assert world.ask("s") == "n"


def test_a_pod_that_is_being_deleted_is_no_third_one(world: GroupWorld) -> None:
    world.node("n", (8, 8), (2, 4))
    world.pair()
    world.pod("g-2", 1, "g", deleted="2026-11-01T00:00:00Z")
    assert world.ask("g-0") == "n"
    assert NOT_FREE in world.ask("g-1")
    assert world.held() == set()


def test_compute_is_held_with_the_cards(world: GroupWorld) -> None:
    """Each pod has the compute of a card for itself; a pod that asks for none goes beside them."""
    world.node("n", (16, 16), compute=(0, 0))
    for name in ("g-0", "g-1", "s"):
        group = "g" if name != "s" else ""
        asks = [container(units=4, resources={COMPUTE_RESOURCE: "60"})]
        world.pod(name, 4, group, containers=asks)
    assert (world.ask("g-0"), world.ask("g-1")) == ("n", "n")
    assert world.ask("s") == "no card with 4 GiB and 60 percent of compute free: compute is short"
    with pytest.raises(CommitError, match="compute is short"):
        world.bind("s", "n")
    assert {*world.bind("g-1", "n"), *world.bind("g-0", "n")} == {"GPU-n-0", "GPU-n-1"}
    assert "compute is short" in world.ask("s")
    world.pod("memory", 4)
    assert world.ask("memory") == "n"


def test_cards_are_held_against_every_other_pod_until_the_binding(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    for name in ("g-0", "g-1"):
        world.pod(name, 5, "g")
        assert world.ask(name) == "n"
    world.pod("s", 5, spec={"priority": 1000})
    assert NOT_FREE in world.ask("s")
    with pytest.raises(CommitError, match="no longer fits"):
        world.bind("s", "n")
    assert {*world.bind("g-1", "n"), *world.bind("g-0", "n")} == {"GPU-n-0", "GPU-n-1"}
    assert world.held() == set()
    assert NOT_FREE in world.ask("s")


def test_a_gang_that_fits_exactly_is_bound_in_any_order(world: GroupWorld) -> None:
    sizes = (3, 8, 5, 7, 6, 4, 2, 9)
    world.node("n", sizes)
    for size in sizes:
        world.pod(f"g-{size}", size, "g")
    asked = sorted(sizes, reverse=True)
    assert {world.ask(f"g-{size}") for size in asked} == {"n"}
    taken = [uuid for size in sizes for uuid in world.bind(f"g-{size}", "n")]
    assert taken == [f"GPU-n-{card}" for card in range(len(sizes))]


def test_two_groups_that_want_the_same_cards_do_not_share_them(world: GroupWorld) -> None:
    world.node("n", (8, 8, 8))
    world.group("h", 2)
    world.pair()
    world.pair("h")
    # Two kube-schedulers ask at the same time.
    assert [world.ask(name) for name in ("g-0", "h-0", "g-1")] == ["n", "n", "n"]
    assert NOT_FREE in world.ask("h-1")
    assert world.held() == {("uid-g-0", "n"), ("uid-g-1", "n")}


def test_a_group_of_more_pods_than_min_count_goes_on_without_the_last(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    for at in range(3):
        world.pod(f"g-{at}", 5, "g")
    assert [world.ask(f"g-{at}") for at in range(2)] == ["n", "n"]
    assert NOT_FREE in world.ask("g-2")
    assert world.held() == {("uid-g-0", "n"), ("uid-g-1", "n")}
    world.bind("g-0", "n"), world.bind("g-1", "n")
    assert NOT_FREE in world.ask("g-2")
    assert world.held() == set()


def test_each_placement_has_holds_of_its_own_until_the_binding_says_which_counts(world: GroupWorld) -> None:
    for zone in "abc":
        world.node(zone, (8, 8) if zone != "b" else (8,))
    world.pair()
    assert [world.ask(name, "a") for name in ("g-0", "g-1")] == ["a", "a"]
    assert world.ask("g-0", "b") == "b"
    assert NOT_FREE in world.ask("g-1", "b")
    assert [world.ask(name, "c") for name in ("g-0", "g-1")] == ["c", "c"]
    # The group has failed in b, and only there.
    assert world.held() == {(f"uid-g-{at}", zone) for at in range(2) for zone in "ac"}
    world.bind("g-1", "a")
    assert world.held() == {("uid-g-0", "a"), ("uid-g-0", "c")}
    world.bind("g-0", "a")
    assert world.held() == set()


def test_a_placement_that_failed_says_nothing_of_the_next(world: GroupWorld) -> None:
    """kube-scheduler's own filters refuse g-0 in zone a, so that g-1 is the first to be asked about there."""
    world.node("a", (8,), (8,))
    world.node("b", (8, 8))
    world.pair()
    assert NOT_FREE in world.ask("g-1", "a")
    assert [world.ask(name, "b") for name in ("g-0", "g-1")] == ["b", "b"]


def test_a_new_cycle_moves_the_hold_of_the_pod_that_is_asked_about(world: GroupWorld) -> None:
    world.node("a", (8,))
    world.node("b", (8,))
    world.pod("g-0", 5, "g")
    world.pod("g-1", 5, "g")
    assert [world.ask("g-0", "a"), world.ask("g-1", "b")] == ["a", "b"]
    assert world.ask("g-0", "a", "b") == "a"
    assert world.held() == {("uid-g-0", "a"), ("uid-g-1", "b")}


def test_a_nominated_node_that_will_not_do_is_no_new_cycle(world: GroupWorld) -> None:
    world.node("a", (8,), (8,))
    world.node("b", (8, 8))
    world.pair()
    assert world.ask("g-0", "b") == "b"
    assert NOT_FREE in world.ask("g-1", "a")
    assert world.ask("g-1", "a", "b") == "b"


def test_a_pod_that_kube_scheduler_knew_first_is_refused_once_its_group_has_failed(world: GroupWorld) -> None:
    """The hold of g-0 is gone by then: were g-2 given its card, the group would be bound in part."""
    world.node("n", (8, 8), (2, 4))
    world.pair()
    world.pod("g-2", 1, "g", known=False)
    assert world.ask("g-0") == "n"
    assert NOT_FREE in world.ask("g-1")
    assert world.ask("g-2") == GROUP_FAILED
    world.pod("g-2", 1, "g")
    # In the next cycle they are three, of which two are enough.
    assert [world.ask("g-0"), world.ask("g-2")] == ["n", "n"]


def test_pods_that_the_extender_does_not_know_yet_keep_their_holds(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    for at in range(4):
        world.pod(f"g-{at}", 5, "g", known=False)
    assert [world.ask(f"g-{at}") for at in range(2)] == ["n", "n"]
    # Two are enough, and while their Bindings are on their way the others are tried again.
    for name in ("g-2", "g-3", "g-2"):
        assert NOT_FREE in world.ask(name)
    assert world.held() == {("uid-g-0", "n"), ("uid-g-1", "n")}


def test_holds_end_some_time_after_the_last_call(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    for name in ("g-0", "g-1"):
        world.pod(name, 5, "g")
        assert world.ask(name) == "n"
        world.now += HOLD_S / 2
    assert len(world.held()) == 2
    world.now += HOLD_S / 2
    assert world.held() == set()


@pytest.mark.parametrize("sign", ["assumed", "nominated"])
def test_holds_last_while_a_binding_of_the_group_is_under_way(world: GroupWorld, sign: str) -> None:
    world.node("n", (8, 8))
    for name in ("g-0", "g-1"):
        world.pod(name, 5, "g")
        assert world.ask(name) == "n"
    if sign == "assumed":
        world.bind("g-0", "n")
    else:
        world.pod("g-0", 5, "g", version=2, status={"nominatedNodeName": "n"})
    world.now += BINDING_HOLD_S - 1
    assert ("uid-g-1", "n") in world.held()
    world.now += 1
    assert world.held() == set()


def test_nothing_is_held_for_a_pod_that_is_gone(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    for name in ("g-0", "g-1"):
        world.pod(name, 5, "g")
        assert world.ask(name) == "n"
    world.state.delete_pod(pod("g-0", 5, spec=world.pods["g-0"]["spec"], version=2), "2", 0)
    assert world.held() == {("uid-g-1", "n")}


def test_without_its_pod_group_nobody_says_that_a_group_has_failed(world: GroupWorld) -> None:
    world.node("n", (8,))
    world.pair("x")
    assert world.ask("x-0") == "n"
    assert NOT_FREE in world.ask("x-1")
    assert world.held() == {("uid-x-0", "n")}
    world.now += HOLD_S
    assert world.held() == set()


def test_a_pod_whose_binding_was_refused_pauses_longer_each_time(world: GroupWorld) -> None:
    world.node("n", (8, 8))
    world.pair()
    for times in range(3):
        assert world.ask("g-0") == "n"
        world.extender.record_bind_failure("uid-g-0", "n", world.now)
        world.now += REFUSED_BINDING_S[0] * 2**times - 0.1
        assert world.ask("g-0") == BINDING_REFUSED
        world.now += 0.1


@pytest.mark.parametrize(("stale", "again"), [("its view is old", "n"), ("", BINDING_REFUSED)])
async def test_a_call_that_is_refused_for_an_old_view_is_no_refused_binding(
    world: GroupWorld, stale: str, again: str
) -> None:
    class Refusing:
        async def bind(self, *_args: str) -> str:
            return "Binding refused"

        async def wait_until(self, *_args: object) -> bool:
            return True

    world.node("n", (8, 8))
    world.pair()
    assert world.ask("g-0") == "n"
    stub: Any = Refusing()
    patience: Any = SimpleNamespace(activity=stub)
    watcher: Any = SimpleNamespace(stale=stale)
    service = ExtenderService(
        world.extender, stub, watcher, Metrics(), lambda: world.now, patience, stub, stub
    )
    call = {"PodName": "g-0", "PodNamespace": "default", "PodUID": "uid-g-0", "Node": "n"}
    assert (stale or "Binding refused") in (await service.bind(msgspec.json.encode(call))).body.decode()
    assert world.ask("g-0") == again


@pytest.mark.parametrize("units", [5, 0], ids=["bound by another scheduler", "asks for no card"])
def test_of_a_pod_that_is_not_asked_about_again_no_refused_binding_is_remembered(
    world: GroupWorld, units: int
) -> None:
    world.node("n", (8, 8))
    world.pair()
    spec = {**world.pods["g-0"]["spec"], "containers": [container("main", units)]}
    world.state.apply_pod(pod("g-0", node="n" if units else "", spec=spec, version=3), world.now)
    world.extender.record_bind_failure("uid-g-0", "n", world.now)
    assert list(world.extender._refused_bindings) == []


def test_the_pods_of_a_group_without_a_gang_policy_are_held_for_but_each_is_on_its_own(
    world: GroupWorld,
) -> None:
    world.node("n", (8, 8), (0, 4))
    world.group("job", 0)
    for name in ("j-0", "j-1"):
        world.pod(name, 5, "job")
    assert world.ask("j-0") == "n"
    reason = world.ask("j-1")
    assert NOT_FREE in reason
    assert world.held() == {("uid-j-0", "n")}
    assert (world.reply.refused, world.reply.evictable) == ("uid-j-1", ("n",))
    assert world.reply.asked_nodes is not None
    assert world.reply.group_in_part is None


@pytest.mark.parametrize(("min_count", "lost"), [(0, 1), (2, 2)], ids=["basic", "gang"])
def test_a_victim_of_a_group_counts_with_its_gang(world: GroupWorld, min_count: int, lost: int) -> None:
    world.node("n", (8, 8))
    world.group("job", min_count)
    for at in range(2):
        world.pod(f"j-{at}", 5, "job", version=at + 2, node="n", annotations=assigned(at, 5))
    query = world.policies.make_request(
        world.state.nodes, world.state.pods["uid-j-0"].charged, world.state.pods["uid-j-0"].amounts
    )
    room = view_node(world.state, "n", query)
    assert room is not None
    assert len(room.list_gang(world.state.pods["uid-j-0"])) == lost


def test_cards_that_a_pod_both_holds_and_has_reserved_count_once(world: GroupWorld) -> None:
    """A pod of a Job for which others were evicted has passed filter."""
    world.node("n", (8,))
    world.group("job", 0)
    world.pod("j-0", 4, "job")
    world.state.reservations.add_reservation(Reservation("uid-j-0", 0, "n", {0: (4, 0)}))
    assert world.ask("j-0") == "n"
    world.pod("s", 4)
    assert world.ask("s") == "n"


def test_a_group_that_is_bound_in_part_is_reported_with_what_to_do(world: GroupWorld) -> None:
    """Its first pod is bound, and somebody else has the card of the second one by now."""
    events: list[tuple[str, str, str]] = []

    def record(ref: Any, kind: str, reason: str, message: str) -> None:
        events.append((f"{ref.kind} {ref.name}", f"{kind} {reason}", message))

    recorder: Any = SimpleNamespace(event=record)
    reporter = PodReporter(world.state, lambda: world.now, recorder)
    world.node("n", (8, 8), (0, 4))
    world.pod("g-1", 5, "g")
    world.pod("g-0", 5, "g")
    world.ask("g-1")
    reporter.report_filter(world.reply)
    assert world.bind("g-1", "n")
    world.ask("g-0")
    reporter.report_filter(world.reply)
    assert not [event for event in events if BOUND_IN_PART in event[1]]
    world.pod("g-1", 5, "g", version=2, node="n", annotations=assigned(0, 5))
    world.pod("g-2", 5, "g", deleted="2026-11-01T00:00:00Z")
    for _ in range(3):
        world.ask("g-0")
        reporter.report_filter(world.reply)
    told = [event for event in events if BOUND_IN_PART in event[1]]
    assert [ref for ref, *_ in told] == ["PodGroup g", "Pod g-1", "Pod g-0"]
    assert {kind for _, kind, _ in told} == {f"Warning {BOUND_IN_PART}"}
    assert told[0][2] == (
        "Only 1 of the 2 pods of PodGroup g that start together are bound. Not bound: g-0, because "
        "0/1 nodes can take 5 GiB: "
        "1 no card with 5 GiB free. Largest free card: 4 GiB on node n; all cards together: 7 GiB. "
        "Make a card free for each, or delete the pods of the group, so that it starts anew."
    )
    world.group("g", 2, uid="of the next run")
    world.ask("g-0")
    reporter.report_filter(world.reply)
    assert len([event for event in events if BOUND_IN_PART in event[1]]) == 2 * len(told)


def test_nobody_waits_or_retries_for_one_pod_of_a_group(world: GroupWorld) -> None:
    world.node("n", (8,), (4,))
    world.pod("g-0", 5, "g")
    world.ask("g-0")
    assert (world.reply.refused, world.reply.asked_nodes) == ("", None)
    assert (world.reply.gang_refused, world.reply.evictable) == ("uid-g-0", ("n",))
    assert world.reply.unschedulable is not None
