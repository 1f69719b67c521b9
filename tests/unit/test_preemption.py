"""preempt: victims that free a card, and no more of them than needed."""

import json
from typing import Any

import pytest

from allocator.names import NODE_HOLDS, POD_ALLOCATION, POD_ASSIGNED, POD_GANG, POD_GANG_SIZE
from allocator.records import Holds, dump_holds
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import ProtocolError
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import in_percent, node, pod, pod_object, uuid


class World:
    """Nodes with pods on known cards, all held."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.budgets = DisruptionBudgets()
        self.budgets.replace([], "1")
        self.extender = Extender(self.state, ClusterPolicies(), 16, budgets=self.budgets)
        self.version = 1

    def node(
        self, name: str, sizes: tuple[int, ...], pods: dict[str, tuple[int, int, int]], **options: Any
    ) -> None:
        """Pods are (card, units, priority) by name; those whose names begin with "gang" are one."""
        used = [0] * len(sizes)
        for pod_name, (card, units, priority) in pods.items():
            used[card] += units
            self.version += 1
            self.state.apply_pod(
                pod(
                    pod_name,
                    units,
                    node=name,
                    version=self.version,
                    annotations={POD_ASSIGNED: json.dumps({"main": [[uuid(name, card), units]]})}
                    | ({POD_GANG: "g", POD_GANG_SIZE: "2"} if pod_name.startswith("gang") else {}),
                    spec={"priority": priority},
                ),
                0,
            )
        self.version += 1
        holds = [f"uid-{pod_name}" for pod_name in pods]
        self.state.apply_node(node(name, sizes, used, version=self.version, holds=holds, **options), 0)

    def preempt(self, the_pod: dict[str, Any], **victims: list[str]) -> dict[str, list[str]]:
        body = {
            "Pod": the_pod,
            "NodeNameToVictims": None,
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": f"uid-{each}"} for each in pods], "NumPDBViolations": 2}
                for name, pods in victims.items()
            },
        }
        return self.answer(body)

    def answer(self, body: dict[str, Any]) -> dict[str, list[str]]:
        answer = json.loads(self.extender.preempt(json.dumps(body).encode(), 0))
        assert set(answer) == {"NodeNameToMetaVictims"}
        for entry in answer["NodeNameToMetaVictims"].values():
            assert set(entry) == {"Pods", "NumPDBViolations"}
            assert entry["Pods"]
        return {
            name: sorted(each["UID"].removeprefix("uid-") for each in entry["Pods"])
            for name, entry in answer["NodeNameToMetaVictims"].items()
        }


def asking(units: int, priority: int = 10, **options: Any) -> dict[str, Any]:
    return pod_object("p", units, spec={"priority": priority}, **options)


@pytest.fixture
def world() -> World:
    return World()


def test_victims_that_free_a_card_are_kept(world: World) -> None:
    world.node("n", (8, 8), {"a": (0, 8, 1), "b": (1, 8, 2)})
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}


@pytest.mark.parametrize(("alone", "chosen"), [(1, "b"), (3, "gang0")])
def test_victims_that_break_a_gang_are_kept_where_others_cost_more(
    world: World, alone: int, chosen: str
) -> None:
    """kube-scheduler does not know that the pod on the other node has run in vain then."""
    world.node("n", (8, 8), {"gang0": (0, 8, 1), "b": (1, 8, alone)})
    world.node("m", (8,), {"gang1": (0, 8, 1)})
    assert world.preempt(asking(8), n=["gang0"]) == {"n": [chosen]}
    assert world.preempt(asking(8), n=["b"]) == {"n": ["b"]}, "it breaks none"


@pytest.mark.parametrize("units", [8, 0], ids=["with cards", "without cards"])
def test_nobody_goes_whose_gang_is_as_important_as_the_pod(world: World, units: int) -> None:
    """kube-scheduler compares the pod that it names alone; another one of its gang has the priority 10."""
    world.node("n", (8, 8), {"gang0": (0, 8, 1), "b": (1, 8, 10)})
    world.node("m", (8,), {"gang1": (0, units, 10)})
    assert world.preempt(asking(8), n=["gang0"]) == {}
    assert world.preempt(asking(8, priority=11), n=["gang0"]) == {"n": ["b"]}


def test_a_sum_is_no_card(world: World) -> None:
    world.node("n", (8, 8), {"a": (0, 4, 1), "b": (1, 4, 1), "c": (0, 4, 5), "d": (1, 4, 4)})
    assert world.preempt(asking(8), n=["a", "b"]) == {"n": ["b", "d"]}


def test_pods_of_the_same_or_a_larger_priority_stay(world: World) -> None:
    world.node("n", (8,), {"a": (0, 4, 1), "b": (0, 4, 10)})
    world.node("m", (8,), {"c": (0, 4, 1), "d": (0, 4, 11)})
    assert world.preempt(asking(8), n=["a"], m=["c"]) == {}
    assert world.preempt(asking(4), n=["a"], m=["c"]) == {"n": ["a"], "m": ["c"]}


def test_the_smallest_priorities_and_the_fewest_pods_go(world: World) -> None:
    world.node("n", (8, 8, 8), {"a": (0, 8, 3), "b": (1, 4, 2), "c": (1, 4, 2), "d": (2, 8, 2)})
    assert world.preempt(asking(8), n=["b"]) == {"n": ["d"]}
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}


def test_victims_that_are_not_ours_are_kube_scheduler_s_business(world: World) -> None:
    world.node("n", (8, 8), {"a": (0, 8, 1)})
    assert world.preempt(asking(8), n=["web"]) == {"n": ["web"]}
    world.node("m", (8,), {"b": (0, 8, 1)})
    assert world.preempt(asking(8), m=["web"]) == {"m": ["b", "web"]}


def test_victims_needed_for_cpu_stay_victims(world: World) -> None:
    world.node("n", (8, 8), {"a": (0, 4, 1), "b": (0, 4, 2)}, cpu="2")
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}
    assert world.preempt(asking(4, cpu="0"), n=["a", "b"]) == {"n": ["a", "b"]}


def test_nobody_goes_for_cpu_that_is_not_asked_for(world: World) -> None:
    pods = {"a": (0, 8, 3), "b": (1, 4, 2), "c": (1, 4, 2), "d": (2, 8, 2)}
    world.node("n", (8, 8, 8), pods, cpu="1", memory="1Gi")
    assert world.preempt(asking(8, cpu="0", memory="0"), n=["b"]) == {"n": ["d"]}


def test_a_node_where_nothing_helps_is_dropped(world: World) -> None:
    world.node("small", (4,), {"a": (0, 4, 1)})
    world.node("broken", (8,), {"b": (0, 8, 1)}, healthy=(False,))
    world.node("bare", (8,), {"c": (0, 8, 1)})
    world.state.apply_node(node("bare", None, version=99), 0)
    assert world.preempt(asking(8), small=["a"], broken=["b"], bare=["c"], strange=["d"]) == {}


def test_several_cards_and_what_foreign_processes_use(world: World) -> None:
    world.node("n", (8, 8, 8), {"a": (0, 4, 1), "b": (1, 4, 2), "c": (2, 4, 3)})
    two = asking(16, annotations={"gpupack.io/cards": "2"})
    assert world.preempt(two, n=["c"]) == {"n": ["a", "b"]}
    # Four units of the first card belong to nobody we could evict.
    world.state.apply_node(node("n", (8, 8, 8), (8, 4, 4), version=99, holds=["uid-a", "uid-b", "uid-c"]), 0)
    assert world.preempt(two, n=["c"]) == {"n": ["b", "c"]}


def test_the_node_s_word_on_cards_goes_before_the_scheduler_s(world: World) -> None:
    got = json.dumps({"uid": "uid-a", "containers": {"main": [[uuid("n", 1), 8]]}})
    annotations = {POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 8]]}), POD_ALLOCATION: got}
    world.state.apply_pod(pod("a", 8, node="n", version=2, annotations=annotations), 0)
    world.state.apply_node(node("n", (4, 8), (0, 8), version=3, holds=["uid-a"]), 0)
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}


@pytest.mark.parametrize("share", [8, 5], ids=["as it is", "as of when the card was smaller"])
def test_a_pod_with_percent_of_a_card_that_is_gone_frees_its_other_one(world: World, share: int) -> None:
    assigned = json.dumps({"main": [[uuid("n", 0), 3], [uuid("n", 1), share]]})
    made = pod(
        "a",
        node="n",
        version=2,
        containers=[in_percent(200)],
        annotations={"gpupack.io/cards": "2", POD_ASSIGNED: assigned},
    )
    world.state.apply_pod(made, 0)
    holds = dump_holds(Holds(3, frozenset({"uid-a"}), {"uid-a": {0: share}}))
    extra = {NODE_HOLDS: holds}
    world.state.apply_node(node("n", (8,), (share,), version=3, uuids=[uuid("n", 1)], extra=extra), 0)
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}


def test_nobody_is_named_from_a_view_that_cannot_be_trusted(world: World) -> None:
    world.node("n", (8,), {"a": (0, 8, 1)})
    victims = {"n": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}}
    body = json.dumps({"Pod": asking(8), "NodeNameToMetaVictims": victims}).encode()
    assert json.loads(world.extender.preempt(body, 0, "the view is 200 s old")) == {
        "NodeNameToMetaVictims": {}
    }


@pytest.mark.parametrize(
    "annotations",
    [{}, {POD_ASSIGNED: '{"main":[["GPU-elsewhere",8]]}'}, {POD_ASSIGNED: '{"x":[["GPU-n-0",8]]}'}],
    ids=["unknown", "on no card here", "of another request"],
)
def test_a_pod_on_unknown_cards_frees_none(world: World, annotations: dict[str, str]) -> None:
    world.state.apply_pod(pod("a", 8, node="n", version=2, annotations=annotations), 0)
    world.state.apply_node(node("n", (8,), (8,), version=3, holds=["uid-a"]), 0)
    assert world.preempt(asking(8), n=["a"]) == {}


def test_the_form_with_whole_pods(world: World) -> None:
    world.node("n", (8,), {"a": (0, 8, 1)})
    victims = {"n": {"Pods": [pod_object("a", 8)], "NumPDBViolations": 0}, "m": {"Pods": None}}
    assert world.answer({"Pod": asking(8), "NodeNameToVictims": victims}) == {"n": ["a"]}


@pytest.mark.parametrize("victims", [None, {}], ids=repr)
def test_nothing_proposed_nothing_chosen(victims: object) -> None:
    assert World().answer({"Pod": asking(8), "NodeNameToMetaVictims": victims}) == {}


def test_a_pod_that_does_not_ask_is_kube_scheduler_s_business() -> None:
    plain = pod_object("p", containers=[{"name": "c"}])
    assert World().preempt(plain, n=["a"]) == {"n": ["a"]}


def test_a_pod_that_asks_for_what_cannot_be_given_evicts_nobody(world: World) -> None:
    world.node("n", (8,), {"a": (0, 8, 1)})
    assert world.preempt(asking(8, annotations={"gpupack.io/cards": "x"}), n=["a"]) == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"x", 400), (b"{}", 422), (b"[]", 422), (b'{"Pod":{},"NodeNameToMetaVictims":[]}', 422)],
)
def test_rubbish(body: bytes, status: int) -> None:
    with pytest.raises(ProtocolError, match="ExtenderPreemptionArgs") as caught:
        World().extender.preempt(body, 0)
    assert caught.value.status == status


def test_nobody_is_evicted_for_a_pod_that_the_queue_has_requeued(world: World) -> None:
    world.node("n", (16,), {"a": (0, 16, 0)})
    assert world.preempt(asking(8), n=["a"]) == {"n": ["a"]}
    assert world.preempt(asking(8, annotations={"gpupack.io/requeued": "true"}), n=["a"]) == {}
