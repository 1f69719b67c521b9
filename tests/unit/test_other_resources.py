"""Further resources of nodes and pods: what is read, what is counted, and the formulas with more classes."""

import random
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest

from allocator.names import COMPUTE_RESOURCE
from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.cache.amounts import NOTHING, ONE_POD, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.pods import sum_other_requests
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.placing import score_nodes
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make_policy
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest, get_other_resources
from tests.cluster_builders import container, node, pod
from tests.other_policies import offered
from tests.policy_view import ask, view

DISK, NIC = "ephemeral-storage", "example.com/nic"


def plain(name: str = "main", restart: str | None = None, **lists: dict[str, str]) -> dict[str, object]:
    made: dict[str, object] = {"name": name, "resources": lists}
    return made if restart is None else {**made, "restartPolicy": restart}


@pytest.mark.parametrize(
    ("options", "amounts"),
    [
        ({"containers": [container()]}, ()),
        ({"containers": [plain(requests={NIC: "2", "pods": "1"})]}, ((NIC, 2),)),
        ({"containers": [plain(limits={DISK: "1Ki"})]}, ((DISK, 1024),)),
        ({"containers": [plain(limits={DISK: "2Ki"}, requests={DISK: "1Ki"})]}, ((DISK, 1024),)),
        ({"containers": [plain(requests={DISK: "1", NIC: "0"})] * 2}, ((DISK, 2),)),
        ({"containers": [plain()], "init": [plain(requests={NIC: "3"})]}, ((NIC, 3),)),
        (
            {
                "containers": [plain(requests={NIC: "1"})],
                "init": [plain("side", "Always", requests={NIC: "1"}), plain(requests={NIC: "2"})],
            },
            ((NIC, 3),),
        ),
        ({"containers": [plain()], "spec": {"overhead": {DISK: "5"}}}, ((DISK, 5),)),
        ({"containers": [plain()], "spec": {"resources": {"requests": {"hugepages-2Mi": "4Mi"}}}}, None),
        ({"containers": [plain(requests={DISK: "much"})]}, ()),
        ({"containers": [plain(requests={DISK: "1E"})] * 2}, ((DISK, 2 << 53),)),
    ],
    ids=[
        *("none", "extended", "limit", "request", "two containers", "init", "sidecar", "overhead"),
        *("whole pod", "unreadable", "too much"),
    ],
)
def test_what_a_pod_requests(options: dict[str, Any], amounts: tuple[tuple[str, int], ...] | None) -> None:
    expected = (("hugepages-2Mi", 4 << 20),) if amounts is None else amounts
    assert sum_other_requests(pod("p", **options)) == expected


def amounts_of(state: ClusterState) -> dict[str, tuple[list[int], list[int]]]:
    nodes = state.nodes
    return {
        name: (nodes.other_capacity[:, row].tolist(), nodes.other_used[:, row].tolist())
        for name, row in nodes.rows.items()
    }


def asks(nic: int) -> list[dict[str, object]]:
    return [container(resources={NIC: str(nic), DISK: "1Ki"})]


def test_what_nodes_have_and_their_pods_use_is_counted() -> None:
    state = ClusterState()
    state.set_other_resources([DISK, NIC])
    state.apply_pod(pod("early", node="n", version=1, containers=asks(1)), 0.0)
    state.apply_node(node("n", version=2, resources={NIC: "8", DISK: "1Mi", "other.io/x": "1"}), 0.0)
    state.apply_node(node("m", version=3, resources={NIC: "rubbish"}), 0.0)
    assert amounts_of(state) == {"n": ([1 << 20, 8], [1024, 1]), "m": ([0, 0], [0, 0])}
    version = int(state.nodes.version[state.nodes.rows["n"]])
    state.apply_pod(pod("q", version=4, containers=asks(2)), 0.0)
    take = state.assume("uid-q", "n", None, 0.0)
    assert amounts_of(state)["n"][1] == [2048, 3]
    assert int(state.nodes.version[state.nodes.rows["n"]]) > version
    state.forget(take, 0.0)
    assert amounts_of(state)["n"][1] == [1024, 1]
    state.assume("uid-q", "n", None, 0.0)
    state.apply_pod(pod("q", node="n", version=5, containers=asks(2)), 0.0)
    assert amounts_of(state)["n"][1] == [2048, 3]
    state.delete_node("n", "6", 0.0)
    state.delete_pod(pod("early", node="n", version=7, containers=asks(1)), "7", 0.0)
    assert amounts_of(state) == {"m": ([0, 0], [0, 0])}
    state.apply_node(node("n", version=8, resources={NIC: "4"}), 0.0)
    assert amounts_of(state)["n"] == ([0, 4], [1024, 2])
    state.apply_pod(pod("q", node="n", version=9, phase="Succeeded", containers=asks(2)), 0.0)
    assert amounts_of(state)["n"] == ([0, 4], [0, 0])


def test_a_node_that_is_not_there_yet_keeps_what_its_pods_use() -> None:
    """Also where they request nothing else."""
    state = ClusterState()
    state.set_other_resources([NIC])
    state.apply_pod(pod("p", node="n", containers=[plain(requests={NIC: "2"})]), 0.0)
    state.apply_node(node("n", version=2, resources={NIC: "8"}), 0.0)
    assert amounts_of(state) == {"n": ([8], [2])}


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_same_whenever_somebody_wants_to_see_it(seed: int) -> None:
    rng = random.Random(seed)
    early, late = ClusterState(), ClusterState()
    early.set_other_resources([DISK, NIC])
    for version in range(1, 200):
        name = f"n{rng.randrange(6)}"
        uid = f"p{rng.randrange(30)}"
        where = rng.choice(("", name))
        phase = rng.choice(("Running", "Running", "Failed"))
        made_node = node(name, version=version, resources={NIC: str(rng.randrange(9))})
        made_pod = pod(uid, version=version, node=where, phase=phase, containers=asks(rng.randrange(4)))
        change = rng.randrange(5)
        for state in (early, late):
            if change == 0:
                state.apply_node(made_node, 0.0)
            elif change == 1:
                state.delete_node(name, str(version), 0.0)
            elif change == 2:
                state.delete_pod(made_pod, str(version), 0.0)
            else:
                state.apply_pod(made_pod, 0.0)
    late.set_other_resources([DISK, NIC])
    assert amounts_of(late) == amounts_of(early)
    version = late.nodes.version.copy()
    late.set_other_resources([DISK, NIC])
    assert (late.nodes.version == version).all()
    late.set_other_resources([])
    assert not late.nodes.other_resources


def test_rows_that_come_and_go() -> None:
    nodes = NodeArrays(rows=1, cards=1)
    nodes.amounts.set_other_resources([NIC])
    for name in ("a", "b", "c"):
        row = nodes.add_node(name)
        nodes.amounts.set_capacity(row, Amounts(others=((NIC, 8),)))
        nodes.amounts.set_requested(row, Amounts(others=((NIC, 1 << 62),)))
    copied = nodes.copy()
    nodes.remove_node("b")
    assert nodes.other_capacity[0].tolist()[:3] == [8, 0, 8]
    assert copied.other_capacity[0].tolist()[:3] == [8, 8, 8]
    assert int(copied.other_used[0, 0]) == 1 << 60


def cluster(rng: random.Random, rows: int) -> NodeArrays:
    nodes = NodeArrays(rows=rows, cards=2)
    nodes.amounts.set_other_resources([NIC, DISK])
    for number in range(rows):
        row = nodes.add_node(f"n{number}")
        cpu, memory = rng.choice((0, 40)), rng.randrange(1, 99)
        used_cpu, used_memory = rng.randrange(cpu + 1), rng.randrange(memory + 1)
        nodes.set_cards(row, [16, 16], [rng.randrange(17), rng.randrange(17)])
        has = [(NIC, rng.choice((0, 8))), (DISK, rng.choice((0, 1 << 40)))]
        used = tuple((name, rng.randrange(each + 1)) for name, each in has)
        nodes.amounts.set_capacity(row, Amounts(110, cpu, memory, others=tuple(has)))
        nodes.amounts.set_requested(row, Amounts(0, used_cpu, used_memory, others=used))
    return nodes


@pytest.mark.parametrize("seed", range(20))
def test_the_formulas_with_five_classes(seed: int) -> None:
    """Classes are in the policy's order, whatever the view's is; of a node without one it is dropped."""
    rng = random.Random(seed)
    nodes = cluster(rng, 12)
    amounts = {NIC: rng.randrange(4), DISK: rng.randrange(1 << 30), "a.b/c": 1}
    asked = Amounts(1, rng.randrange(4), rng.randrange(9), others=tuple(amounts.items()))
    ask = PolicyRequest(asked, (CardDemand(3, 1),))
    named = {"resources": f"{DISK},{NIC},nobody.has/it"}
    rows = np.flatnonzero(nodes.usable)
    weights = [Fraction(part, 21) for part in range(1, 7)]
    given = {"weights": ",".join(map(str, weights)), "parts": "W0", "threshold": "0"}
    weighted = make_policy("weighted-balance", named | given).score(nodes, ask, rows)
    varied = make_policy("balanced", named).score(nodes, ask, rows)
    meant = make_policy("least-requested", named).score(nodes, ask, rows)
    for at, row in enumerate(rows.tolist()):
        columns = [
            (nodes.cpu_capacity[row], nodes.cpu_used[row] + ask.cpu_milli, weights[0]),
            (nodes.memory_capacity[row], nodes.memory_used[row] + ask.memory_bytes, weights[1]),
            (nodes.gpu_capacity[row], nodes.gpu_used[row] + 3, weights[2]),
            (nodes.other_capacity[1, row], nodes.other_used[1, row] + amounts[DISK], weights[3]),
            (nodes.other_capacity[0, row], nodes.other_used[0, row] + amounts[NIC], weights[4]),
        ]
        there = [(int(used) / int(has), float(weight)) for has, used, weight in columns if has]
        fractions = [fraction for fraction, _ in there]
        mean = sum(fractions) / len(fractions)
        assert meant[at] == pytest.approx(mean, abs=1e-11)
        assert varied[at] == pytest.approx(
            sum((fraction - mean) ** 2 for fraction in fractions) / len(fractions), abs=1e-11
        )
        level = sum(weight * (fraction - mean) ** 2 for fraction, weight in there)
        expected = sqrt(level / sum(weight for _, weight in there))
        assert weighted[at] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("resources", "expected"), [({}, "a"), ({"resources": COMPUTE_RESOURCE}, "b")])
def test_compute_is_a_class_of_its_own_for_who_names_it(resources: dict[str, str], expected: str) -> None:
    """The example of docs/policies/balanced.md: on b memory and compute are used alike then."""
    nodes = view({"a": (0, 0, [16], 0, 0, [8], [0]), "b": (0, 0, [16], 0, 0, [8], [50])})
    request = ask(0, 0, (4, 1, 20))
    rows = np.flatnonzero(nodes.usable)
    for name in ("balanced", "weighted-balance"):
        policy = make_policy(name, {**resources, **({"threshold": "0"} if name != "balanced" else {})})
        scores = policy.score(nodes, request, rows)
        assert nodes.names[int(rows[np.argmin(scores)])] == expected
    waiting: Any = make_policy("weighted-balance", resources)
    waiting.waiting(nodes, [(ask(0, 0, (4, 1, 110)), ["waits"])])
    assert waiting.pending_by_class[3:] == ((1,) if resources else ())


def test_scores_follow_when_others_are_seen() -> None:
    nodes = NodeArrays(rows=1, cards=1)
    nodes.amounts.set_other_resources([NIC])
    row = nodes.add_node("n")
    nodes.amounts.set_capacity(row, Amounts(110, 10, 10, others=((NIC, 10),)))
    nodes.amounts.set_requested(row, Amounts(others=((NIC, 8),)))
    nodes.set_cards(row, [10], [0])
    policy, rows = make_policy("least-requested", {"resources": NIC}), np.array([row])
    assert policy.score(nodes, PolicyRequest(NOTHING, ()), rows).tolist() == pytest.approx([0.2])
    nodes.amounts.set_other_resources([DISK, NIC])
    assert policy.score(nodes, PolicyRequest(NOTHING, ()), rows).tolist() == [0.0]
    nodes.amounts.set_capacity(row, Amounts(110, 10, 10, others=((DISK, 10), (NIC, 10))))
    nodes.amounts.set_requested(row, Amounts(others=((NIC, 4),)))
    assert policy.score(nodes, PolicyRequest(NOTHING, ()), rows).tolist() == pytest.approx([0.1])


def test_a_class_that_pods_wait_for_counts() -> None:
    nodes = NodeArrays(rows=1, cards=1)
    nodes.amounts.set_other_resources([NIC])
    row = nodes.add_node("n")
    nodes.amounts.set_capacity(row, Amounts(110, 10, 10, others=((NIC, 4),)))
    nodes.amounts.set_requested(row, Amounts(0, 20, others=((NIC, 2),)))
    nodes.set_cards(row, [10], [0])
    policy: Any = make_policy("weighted-balance", {"resources": NIC})
    waiting = [
        (PolicyRequest(Amounts(others=((NIC, 3),)), ()), ["a", "b"]),
        (PolicyRequest(Amounts(0, 0, 11, others=((NIC, 3),)), ()), ["c"]),
        (PolicyRequest(Amounts(others=((NIC, 2),)), ()), ["fits, and asks for no cpu"]),
    ]
    policy.waiting(nodes, waiting)
    assert policy.pending_by_class == (0, 1, 0, 3)


class Sees:
    """A policy of a plug-in that wants to see a resource."""

    epoch = 0
    other_resources = ("a.b/c",)

    def score(self, _view: Any, _ask: PolicyRequest, rows: Any) -> Any:
        return np.zeros(len(rows))


def test_what_policies_want_to_see() -> None:
    with offered(NODE_POLICIES, sees=lambda _: Sees()):
        policies = ClusterPolicies("balanced", parameters={"resources": f"{NIC}, {DISK}"})
        told: list[Any] = []
        policies.resources_changed.connect(told.append)
        assert policies.other_resources == (DISK, NIC)
        policies.get_policy(PodRequest((), node_policy="sees"))
        assert told == [("a.b/c", DISK, NIC)]
        policies.configure("fragmentation", {"weighted-balance": {"resources": DISK}})
        # Those of the beginning hold where a configuration says nothing else of the policy.
        assert told[1:] == [(DISK, NIC)]
        policies.configure("balanced", {"balanced": {}})
        assert told[2:] == [()]


def test_compute_is_a_class_on_a_node_with_cards_of_several_models_too() -> None:
    """Such a node is scored by the cards that the pod would get, and their compute was left out."""
    nodes = NodeArrays()
    for name, models in (("even", ("A100", "A100")), ("mixed", ("A100", "L40S", "A100"))):
        row = nodes.add_node(name)
        nodes.set_cards(
            row, [16] * len(models), [0, 16, 0][: len(models)] if name == "mixed" else [0, 0], models=models
        )
        nodes.amounts.set_capacity(row, Amounts(110, 40, 99))
    policy = make_policy("least-requested", {"resources": COMPUTE_RESOURCE})
    two = PodRequest((ContainerRequest("main", 16, "main", 50),), cards=2)
    query = ClusterPolicies().make_request(nodes, two, ONE_POD)
    rows = np.flatnonzero(nodes.usable)
    even, mixed = score_nodes(policy, nodes, query, rows)
    # gpu-memory and compute, of 2 and of 3 cards; cpu and memory are not asked for.
    assert even == pytest.approx((16 / 32 + 100 / 200) / 4)
    assert mixed == pytest.approx(((16 + 16) / 48 + 100 / 300) / 4)


def test_compute_is_a_class_that_no_list_of_nodes_has_a_column_for() -> None:
    """`gpupack simulate` asked for the column, and no trace has one."""
    policy = make_policy("balanced", {"resources": f"{NIC},{COMPUTE_RESOURCE}"})
    assert get_other_resources(policy) == (NIC,)
