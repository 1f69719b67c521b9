"""`gpupack why` and the dashboard of a PodGroup of Kubernetes: what keeps all of it waiting."""

from typing import Any

import pytest

from allocator.names import POD_CARDS, POD_GANG, POD_GANG_SIZE
from gpupack.autoscale.scale_down import find_nodes_to_keep
from gpupack.diagnose.why import explain_pod
from gpupack.rebalance.advise import advise_empty
from gpupack.whatif.answers import PodExplanation
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.gangs import find_gang, format_gang
from tests.ask_world import Node, Pod, World
from tests.queue_world import pod_group

FEW = "kube-scheduler tries none of them before"
NONE = "kube-scheduler tries none of the group"
BOTH = "Never, PreemptLowerPriority"
DISAGREE = "kube-scheduler starts none of such a group"


def make_cluster(
    *pods: Pod, count: int | None = 3, cards: tuple[int, ...] = (8, 8, 4), **changed: dict[str, Any]
) -> Cluster:
    """The pods are of the PodGroup; `changed` is by name what else stands in a pod's spec."""

    def join(item: Any) -> None:
        item["spec"] |= {
            "schedulingGroup": {"podGroupName": "g"},
            **changed.get(item["metadata"]["name"], {}),
        }

    world = World((Node("n1", cards), Node("n2", (8,), cordoned=True)), pods)
    cluster = world.changed(**{pod.name: join for pod in pods}).cluster
    if count is not None:
        cluster.pod_groups.put_group(pod_group("g", count))
    return cluster


def members(number: int) -> list[Pod]:
    return [Pod(f"g{at}", 5) for at in range(number)]


def ask(cluster: Cluster) -> PodExplanation:
    return explain_pod(cluster, "default", "g0")


def test_cards_for_some_of_a_group_are_not_enough() -> None:
    cluster = make_cluster(*members(3))
    answer = ask(cluster)
    assert (answer.state, answer.fits) == ("pending", ())
    assert answer.text.startswith("waits: its gang starts together, and 2 of its 3 pods fit at once now")
    assert format_gang(cluster, cluster.find_pod("default", "g0")) == "g (3)"


def test_a_group_that_fits_is_tried_again() -> None:
    assert ask(make_cluster(*members(3), cards=(8, 8, 8))).state == "fits"


@pytest.mark.parametrize("pods", [2, 3, 5])
def test_pods_beyond_min_count_need_no_cards_at_once(pods: int) -> None:
    assert ask(make_cluster(*members(pods), count=2)).state == "fits"
    assert ask(make_cluster(*members(pods + 1), count=3)).state == "pending"


@pytest.mark.parametrize("name", ["g0", "g1"])
@pytest.mark.parametrize("odd", [Pod("g2", 8), Pod("g2", 5, policies=((POD_CARDS, "x"),))])
def test_pods_beyond_min_count_need_no_cards_whatever_they_ask_for(odd: Pod, name: str) -> None:
    """All that asked for something else had to fit, and one that is refused kept the group waiting."""
    cluster = make_cluster(Pod("g0", 5), Pod("g1", 8), odd, count=2, cards=(8, 5))
    assert explain_pod(cluster, "default", name).state == "fits"
    short = make_cluster(Pod("g0", 5), Pod("g1", 8), odd, count=3, cards=(8, 5))
    assert explain_pod(short, "default", name).state == "pending"


def test_pods_that_run_already_are_not_asked_for_again() -> None:
    cluster = make_cluster(Pod("g1", 5, "n1", (0,)), Pod("g0", 5), Pod("g2", 5), count=2)
    found = find_gang(cluster, cluster.find_pod("default", "g0"))
    assert found is not None
    assert found.pods == 1
    assert ask(cluster).state == "fits"


def test_pods_of_a_group_without_gang_policy_are_asked_about_one_by_one() -> None:
    cluster = make_cluster(*members(9), count=0)
    assert find_gang(cluster, cluster.find_pod("default", "g0")) is None
    assert ask(cluster).state == "fits"


def test_the_annotation_counts_where_the_group_lets_each_pod_start() -> None:
    notes = ((POD_GANG, "train"), (POD_GANG_SIZE, "3"))
    cluster = make_cluster(*(Pod(f"g{at}", 5, policies=notes) for at in range(3)), count=0)
    assert "its gang starts together, and 2 of its 3 pods fit at once now" in ask(cluster).text


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (
            make_cluster(*members(2)),
            f'2 of the 3 pods are there that PodGroup "g" needs at least: {FEW}',
        ),
        (
            make_cluster(*members(3), count=2, g2={"schedulingGates": [{"name": "x"}]}),
            f'pod g2 of PodGroup "g" is held by scheduling gate x: {NONE} before that is gone',
        ),
        (
            make_cluster(*members(3), count=None),
            'there is no PodGroup "g", and kube-scheduler tries no pod before it is there',
        ),
        (
            make_cluster(*members(2), count=2, g0={"schedulerName": "b"}, g1={"schedulerName": "a"}),
            f'the pods of PodGroup "g" disagree on schedulerName (a, b): {DISAGREE}',
        ),
        (
            make_cluster(*members(3), count=2, g1={"preemptionPolicy": "Never"}),
            f'the pods of PodGroup "g" disagree on preemptionPolicy ({BOTH}): {DISAGREE}',
        ),
        (
            make_cluster(*members(3), g1={"priority": 7}),
            'PodGroup "g" has priority 0, and a pod of it 7: kube-scheduler starts no such group',
        ),
    ],
    ids=["missing", "gate", "no-group", "schedulers", "policies", "priorities"],
)
def test_what_keeps_kube_scheduler_from_trying_a_group_is_told(cluster: Cluster, text: str) -> None:
    """It said that nodes would take the pod, or that its scheduler never asks gpupack."""
    answer = ask(cluster)
    assert (answer.state, answer.text, answer.ways_out) == ("pending", f"waits: {text}", ())


def test_a_gate_of_ones_own_is_told_first() -> None:
    held: dict[str, Any] = {"schedulingGates": [{"name": "x"}]}
    answer = ask(make_cluster(*members(2), g0=held, g1=held))
    assert answer.state == "gated"
    own = "is held by scheduling gate x: kube-scheduler does not try it until that is gone"
    assert answer.text == f'{own}; 2 of the 3 pods are there that PodGroup "g" needs at least: {FEW}'


def test_topology_constraints_are_a_note() -> None:
    cluster = make_cluster(*members(3), cards=(8, 8, 8))
    cluster.pod_groups.put_group(pod_group("g", 3, "zone"))
    note = "not looked at here, and kube-scheduler looks at it: topology constraints of its PodGroup"
    assert note in ask(cluster).notes


def test_groups_that_cannot_be_read_are_a_note() -> None:
    cluster = make_cluster(*members(3), count=None)
    cluster.pod_groups.set_fault("Forbidden")
    answer = ask(cluster)
    assert answer.state == "fits"
    note = 'PodGroups cannot be read (Forbidden): how many pods of gang "g" start together is not known'
    assert note in answer.notes


@pytest.mark.parametrize(("count", "kept"), [(2, ["n1"]), (0, [])], ids=["gang", "no-gang"])
def test_a_node_with_pods_of_a_gang_is_not_drained(count: int, kept: list[str]) -> None:
    running = [Pod(f"g{at}", 4, "n1", (at,)) for at in range(2)]
    cluster = make_cluster(*running, count=count)
    keeps = find_nodes_to_keep(cluster)
    assert [name for name, node in keeps.items() if node.reason == "gang"] == kept


@pytest.mark.parametrize(("count", "moves"), [(2, 0), (0, 1)], ids=["gang", "no-gang"])
def test_a_pod_is_moved_where_its_group_lets_each_pod_run_alone(count: int, moves: int) -> None:
    """Its end was a way out, and a move of it was none, as if it ran together with the others."""
    pods = (Pod("g0", 4, "n1", (0,)), Pod("g1", 4, "n1", (1,)))
    assert len(advise_empty(make_cluster(*pods, count=count), "n1/0").moves) == moves
