"""Preemption for a PodGroup: for all of its waiting pods, or for nobody."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeapi.objects import PodGroup
from scheduler_plugin.cache.group_holds import HOLD_S
from scheduler_plugin.preemption.nominations import RESERVED_AFTER_EVICTION_S
from tests.examples import examples
from tests.preemption_world import BUDGET_SAYS_NO, PreemptionWorld

NODES = {"n1": (0, 5, 1), "n2": (0, 5, 1)}
"""Pods of two nodes of one card: card, units, priority."""


class GangWorld(PreemptionWorld):
    """A gang that waits for the cards of two nodes, each with a pod of smaller priority."""

    def __init__(self, *, cpu: str = "40") -> None:
        super().__init__()
        self.failed: list[str] = []
        self.preemptor.failed.connect(lambda pod, why: self.failed.append(f"{pod.name}: {why}"))
        for name, where in NODES.items():
            self.node(name, (8,), cpu=cpu, **{f"low-{name}": where})

    def group(self, members: int = 2, min_count: int = 2, units: int = 5, **options: Any) -> None:
        constraints = {"topology": [{"key": "zone"}]} if options.pop("topology", False) else None
        raw = {
            "metadata": {"name": "g", "namespace": "default"},
            "spec": {
                "priority": options.get("spec", {}).get("priority", 10),
                "schedulingPolicy": {"gang": {"minCount": min_count}},
                "schedulingConstraints": constraints,
            },
        }
        self.state.pod_groups.put_group(msgspec.convert(raw, PodGroup))
        for at in range(members):
            self.member(at, units, **options)

    def member(self, at: int, units: int = 5, **options: Any) -> None:
        spec = {"priority": 10, "schedulingGroup": {"podGroupName": "g"}, **options.pop("spec", {})}
        self.create(f"g-{at}", units, spec=spec, **options)

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/default/pods/{name}"

    def ask(self, *names: str, nodes: list[str] | None = None) -> dict[str, list[str]]:
        """What kube-scheduler does with a group: until one pod of it is refused."""
        answers: dict[str, list[str]] = {}
        for name in names or ("g-0", "g-1"):
            answers[name] = self.filter(self.api.pods[self.path(name)], nodes)
            if not answers[name]:
                break
        return answers

    async def attempt(self, *names: str) -> list[str]:
        """An attempt, the rest after it, and one round; returns who is evicted."""
        self.ask(*names)
        await self.settle(HOLD_S)
        return sorted(self.api.evicted)

    @property
    def kept(self) -> dict[str, str]:
        return {each.uid.removeprefix("uid-"): each.node for each in self.state.reservations}


@pytest.fixture
def world() -> GangWorld:
    return GangWorld()


async def test_pods_are_evicted_for_all_of_a_gang_at_once(world: GangWorld) -> None:
    world.group()
    assert await world.attempt() == ["low-n1", "low-n2"]
    assert world.kept == {"g-0": "n1", "g-1": "n2"}
    assert world.api.nominated == [], "kube-scheduler places the gang anew each time"
    single = world.create("single", 5, spec={"priority": 10})
    world.vanish("low-n1")
    world.vanish("low-n2")
    assert world.filter(single) == []
    answers = world.ask()
    assert sorted(answers["g-0"] + answers["g-1"]) == ["n1", "n2"]


async def test_after_the_first_eviction_the_others_follow(world: GangWorld) -> None:
    """kube-scheduler asks again meanwhile: one pod passes, and the next one is refused."""
    world.group()
    first = [True]

    def see_evicted(*_: object) -> None:
        if first.pop():
            world.vanish("low-n1")
            first.append(False)
            assert world.ask()["g-0"] == ["n1"]
        else:
            first.append(False)

    world.preemptor.evicted.connect(see_evicted)
    assert await world.attempt() == ["low-n1", "low-n2"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("too few pods may go", ()),
        ("too few pods", ("g-0",)),
        ("a gate", ()),
        ("no group", ()),
        ("another size", ()),
        ("a port", ()),
        ("other nodes", ()),
        ("never preempts", ()),
        ("one never preempts", ()),
        ("another priority", ()),
        ("topology", ()),
        ("cpu", ()),
        ("shunned there", ()),
        ("shunned in the zone", ()),
        ("kube-scheduler preempts", ()),
    ],
)
async def test_nobody_is_evicted_for_a_gang_that_could_not_start(change: str, names: tuple[str, ...]) -> None:
    world = GangWorld(cpu="4" if change == "cpu" else "40")
    if change == "too few pods may go":
        world.run("n2", "high", 0, 3, 10)
        world.publish("n2")
    if change.startswith("shunned"):
        key = "kubernetes.io/hostname" if change == "shunned there" else "zone"
        term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "train"}}}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        world.create("shy", 0, node="n1", containers=[], spec={"affinity": affinity})
    world.group(
        members=1 if change == "too few pods" else 2,
        units=6 if change == "too few pods may go" else 5,
        topology=change == "topology",
        spec={"preemptionPolicy": "Never"} if change == "never preempts" else {},
        cpu="5" if change == "cpu" else "1",
        labels={"app": "train"},
        status={"nominatedNodeName": "n1"} if change == "kube-scheduler preempts" else {},
    )
    if change == "another size":
        world.member(2, 3)
    if change == "one never preempts":
        world.member(2, spec={"preemptionPolicy": "Never"})
    if change == "another priority":
        world.member(2, spec={"priority": 11})
    if change == "a gate":
        world.member(2, spec={"schedulingGates": [{"name": "wait"}]})
    if change == "other nodes":
        world.member(2, spec={"nodeSelector": {"pool": "a"}})
    if change == "a port":
        ports = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]
        world.api.pods[world.path("g-1")]["spec"]["containers"][0] |= ports[0]
    if change == "no group":
        world.state.pod_groups.delete_group(("default", "g"))
    assert await world.attempt(*names) == []
    assert world.kept == {}


@pytest.mark.parametrize(
    "other", [{"priority": 11}, {"schedulerName": "other"}, {"preemptionPolicy": "Never"}], ids=str
)
async def test_nobody_is_evicted_for_a_gang_one_of_whose_bound_pods_differs(
    world: GangWorld, other: dict[str, Any]
) -> None:
    world.group()
    world.member(2, 0, containers=[], node="n1", spec=other)
    assert await world.attempt() == []


async def test_what_keeps_others_away_and_goes_is_no_hindrance(world: GangWorld) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "train"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.api.pods[world.path("low-n1")]["spec"]["affinity"] = affinity
    world.see(world.api.pods[world.path("low-n1")])
    world.create("equal", 0, node="n1", containers=[], spec={"affinity": affinity, "priority": 10})
    world.group(labels={"app": "train"})
    assert await world.attempt() == ["low-n1", "low-n2"]


async def test_pods_that_are_bound_count_and_the_others_get_a_place(world: GangWorld) -> None:
    world.group(members=3, min_count=3)
    world.node("n3", (8,))
    world.run("n3", "g-0", 0, 5, 10, spec={"schedulingGroup": {"podGroupName": "g"}})
    world.publish("n3")
    assert await world.attempt("g-1") == ["low-n1", "low-n2"]
    assert world.kept == {"g-1": "n1", "g-2": "n2"}


async def test_a_pod_that_needs_no_victim_goes_where_it_was_offered_a_node(world: GangWorld) -> None:
    """kube-scheduler offers that node to no other pod of the gang, by the sum."""
    world.node("n3", (8,))
    world.group()
    assert world.ask("g-0", nodes=["n1", "n2", "n3"]) == {"g-0": ["n3"]}
    assert world.ask("g-1", nodes=["n1", "n2"]) == {"g-1": []}
    assert await world.evicted(HOLD_S) == ["low-n1"]
    assert world.kept == {"g-0": "n3", "g-1": "n1"}


async def test_more_pods_than_min_count_get_a_place_where_there_is_one(world: GangWorld) -> None:
    world.group(members=3, min_count=2)
    assert await world.attempt() == ["low-n1", "low-n2"]
    assert len(world.kept) == 2


@pytest.mark.parametrize(
    ("cpu", "evicted", "kept"),
    [("20", ["x", "y"], {"g-0": "n3", "g-1": "n3"}), ("21", ["low-n1", "x"], {"g-0": "n3", "g-1": "n1"})],
)
async def test_two_pods_on_one_node_share_what_its_victims_leave(
    world: GangWorld, cpu: str, evicted: list[str], kept: dict[str, str]
) -> None:
    world.node("n3", (8, 8), x=(0, 5, 0), y=(1, 5, 0))
    world.group(cpu=cpu)
    assert await world.attempt() == evicted, "x and y have a smaller priority than the others"
    assert world.kept == kept
    assert len({(each.node, *each.amounts) for each in world.state.reservations}) == 2


async def test_budgets_count_all_victims_of_a_gang_together(world: GangWorld) -> None:
    for name in NODES:
        world.api.pods[world.path(f"low-{name}")]["metadata"]["labels"] = {"app": "web"}
        world.version += 1
        world.api.pods[world.path(f"low-{name}")]["metadata"]["resourceVersion"] = str(world.version)
        world.see(world.api.pods[world.path(f"low-{name}")])
    world.budget("web", 1)
    world.group()
    assert await world.attempt() == []
    world.budget("web", 2)
    world.now += 60
    assert await world.attempt() == ["low-n1", "low-n2"]


async def test_a_refused_eviction_gives_up_what_is_kept_for_all(world: GangWorld) -> None:
    world.group()
    world.api.faults["low-n1/eviction"] = [BUDGET_SAYS_NO]
    assert await world.attempt() == []
    assert world.kept == {}
    assert [line.partition(":")[0] for line in world.failed] == ["g-0"]
    assert await world.attempt() == [], "all of the gang rests"


async def test_after_a_restart_a_gang_gets_the_cards_of_pods_that_are_leaving(world: GangWorld) -> None:
    world.group()
    await world.attempt()
    for uid in [f"uid-{name}" for name in world.kept]:
        world.state.reservations.remove_reservation(uid)
    world.restart()
    assert await world.attempt() == ["low-n1", "low-n2"], "nobody a second time"
    assert world.kept == {"g-0": "n1", "g-1": "n2"}


async def test_a_gang_that_does_not_take_its_cards_loses_them(world: GangWorld) -> None:
    world.group()
    await world.attempt()
    world.vanish("low-n1")
    world.vanish("low-n2")
    await world.settle(0)
    await world.settle(RESERVED_AFTER_EVICTION_S)
    assert world.kept == {}


UNITS = st.integers(3, 8)


@examples(400)
@given(
    pods=st.lists(st.tuples(UNITS, st.sampled_from((0, 1, 3))), min_size=4, max_size=6),
    per_node=st.integers(1, 3),
    size=st.integers(2, 4),
    spare=st.integers(0, 2),
    units=UNITS,
)
def test_whoever_is_evicted_makes_room_for_a_gang_that_starts(
    pods: list[tuple[int, int]], per_node: int, size: int, spare: int, units: int
) -> None:
    """Each card has one pod."""
    world = GangWorld()
    for name in NODES:
        world.vanish(f"low-{name}")
        del world.nodes[name]
    for at in range(0, len(pods), per_node):
        some = pods[at : at + per_node]
        there = {f"p{at + card}": (card, *pod) for card, pod in enumerate(some)}
        world.node(f"m{at}", (8,) * len(some), **there)
    names = [f"g-{at}" for at in range(size)]
    least = max(2, size - spare)
    world.group(size, least, units, spec={"priority": 2})

    evicted = asyncio.run(world.attempt(*names))

    assert all(world.state.pods[f"uid-{name}"].priority < 2 for name in evicted)
    for name in evicted:
        world.vanish(name)
    if evicted:
        passed = [bool(world.filter(world.api.pods[world.path(name)])) for name in names]
        assert sum(passed) >= least
