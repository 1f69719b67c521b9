"""Which pods advise may move, and what kube-scheduler looks at besides the cards."""

import json
from dataclasses import replace

import pytest

from allocator.place import Placement
from allocator.request import ContainerRequest, PodRequest
from gpupack.diagnose import explain_pod
from gpupack.rebalance import verified_moves
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.candidates import find_fullest_rows
from gpupack.rebalance.goals import StartGoal
from gpupack.rebalance.movable_pods import MovablePods
from gpupack.rebalance.moved_cluster import apply_moves
from gpupack.rebalance.plan_state import Destination, PlanState
from gpupack.rebalance.planning import NEAR_NODES, SearchLimits
from gpupack.rebalance.search import order_moves
from gpupack.whatif import Cluster, FitQuestion, answer_fit
from gpupack.whatif.gangs import GangMembers, can_fit_together
from gpupack.whatif.kube_checks import require_of_any_pod
from gpupack.whatif.rendering import format_advice, format_why
from gpupack.whatif.what_if import PodCardUsage
from kubeapi.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from kubeapi.selectors import LabelSelector
from tests.ask_world import Node, Pod, World

# One move lets a whole card become free, that of the pod `small` or of the pod `large`.
NODES = (Node("a", (16,)), Node("b", (16,)), Node("c", (16,), foreign=(4,)))
PODS = (Pod("small", 3, "a", (0,), labels=(("app", "x"),)), Pod("large", 5, "b", (0,)))
WORLD = World(NODES, PODS)


def cluster(change=None, **more):
    return replace(WORLD, **more).changed(small=change).cluster


def moved(cluster, limits=None):
    return [move.pod for move in advise_start(cluster, FitQuestion(16), 1, limits).moves]


def test_the_smallest_pod_moves():
    assert moved(cluster()) == ["small"]


def test_a_node_that_a_pod_leaves_has_the_compute_of_the_others_and_of_the_pod_where_it_comes():
    pods = (Pod("leaves", 3, "a", (0,), compute=30), Pod("stays", 3, "a", (0,), compute=20))
    before = World((Node("a", (16,)), Node("b", (16,))), pods).cluster
    movable = MovablePods(before, PodCardUsage(before)).find("uid-leaves")
    assert movable is not None
    there = Destination("b", Placement((("main", ((0, 3),)),), {0: 3}, {0: 30}))
    then = apply_moves(before, [(movable, there)])
    free = {name: then.state.nodes.compute_free[row, 0] for name, row in then.state.nodes.rows.items()}
    assert free == {"a": 80, "b": 70}


def goes_to(node, units, compute):
    return Destination(node, Placement((("main", ((0, units),)),), {0: units}, {0: compute}))


ASKED = PodRequest((ContainerRequest("main", 4, "main", 50),))


def test_a_place_costs_the_pods_whose_compute_it_takes():
    # One pod of 4 GiB and 50 percent fits on each. After 20 percent more only b has room for it.
    pods = (Pod("x", 8, "a", (0,), compute=40), Pod("y", 4, "b", (0,), compute=30))
    found = World((Node("a", (16,)), Node("b", (16,))), pods).cluster
    goal = StartGoal(PlanState(found, PodCardUsage(found)), ASKED, require_of_any_pod(), {"a": 1, "b": 1})

    losses = {node: goal.compute_loss(goes_to(node, 4, 20)) for node in ("a", "b")}

    assert losses == {"a": (1, 4), "b": (0, 8)}


def test_as_many_pods_move_at_least_as_have_the_compute_that_is_short():
    """One was said to be enough, because the memory is free."""
    pods = (Pod("x", 1, "a", (0,), compute=50), Pod("y", 1, "a", (0,), compute=50))
    found = World((Node("a", (16,)), Node("b", (4,))), pods).cluster

    advice = advise_start(found, FitQuestion(8, compute=100))

    assert (advice.at_least, {move.pod for move in advice.moves}) == (2, {"x", "y"})
    assert not any("fewer" in note for note in advice.notes)


@pytest.mark.parametrize(("asked", "moves", "fit"), [(20, 1, 1), (30, 2, 2), (100, 2, 1)])
def test_pods_that_move_give_what_a_card_gives_beyond_its_limit_once(asked, moves, fit):
    """The limit was lowered while they ran, and the words stop at it: 80 and 80 percent of 100."""
    pods = tuple(Pod(name, 1, "a", (0,), compute=80) for name in ("x", "y"))
    found = World((Node("a", (16,)), Node("b", (4,)), Node("c", (4,))), pods).cluster

    advice = advise_start(found, FitQuestion(8, compute=asked))

    assert (advice.at_least, len(advice.moves), advice.after.pods) == (moves, moves, fit)


def test_a_pod_moves_once_the_compute_of_its_place_is_free():
    pods = (Pod("x", 1, "a", (0,), compute=60), Pod("y", 1, "b", (0,), compute=60))
    found = World((Node("a", (16,)), Node("b", (16,)), Node("c", (16,))), pods).cluster
    movable = MovablePods(found, PodCardUsage(found))
    moves = [(movable.find("uid-x"), goes_to("b", 1, 60)), (movable.find("uid-y"), goes_to("c", 1, 60))]

    ordered, singly = order_moves(PlanState(found, PodCardUsage(found)), moves)

    assert [(each.uid, destination.node) for each, destination in ordered] == [("uid-y", "c"), ("uid-x", "b")]
    assert singly


def test_pods_of_a_gang_with_most_compute_are_placed_first_among_those_of_one_size():
    found = World((Node("a", (16, 16)),)).cluster
    kinds = [
        GangMembers(found.make_query(request, require_of_any_pod()), require_of_any_pod(), 1)
        for percent in (30, 40, 70, 60)
        for request in [PodRequest((ContainerRequest("main", 4, "main", percent),))]
    ]
    assert can_fit_together(found, kinds)


def test_percent_of_a_card_counts_as_its_units_where_pods_of_a_gang_are_sorted():
    """25 percent of a card of 16 are 4 units; placed first, they leave one of the others no room."""
    found = World((Node("a", (16, 16)),)).cluster
    containers = [ContainerRequest("main", units, "main") for units in (10, 8, 6, 4, 25)]
    requests = [PodRequest((container,), percent=container.units == 25) for container in containers]
    kinds = [
        GangMembers(found.make_query(request, require_of_any_pod()), require_of_any_pod(), 1)
        for request in requests
    ]
    assert can_fit_together(found, kinds)


def test_of_many_nodes_those_are_tried_that_have_the_compute():
    """A pod is tried on so many of them only: the fullest ones had none left."""
    full = (Pod("full", 8, "a", (0,), compute=100),)
    found = World((Node("a", (16,)), Node("b", (16,))), full).cluster
    query = found.make_query(ASKED, require_of_any_pod())

    assert [found.state.nodes.names[row] for row in find_fullest_rows(found, query)] == ["b"]


def test_new_pods_tolerate_nothing_so_tainted_and_cordoned_nodes_are_no_places_for_them():
    # Cheapest would be to move `small` off the tainted node, and a whole card is free on another one.
    nodes = (
        replace(NODES[0], taints=("team", "gpu")),
        *NODES[1:],
        Node("d", (16,), taints=("gpu",)),
        Node("e", (16,), cordoned=True),
        Node("g", (16,), ready=False),
    )

    advice = advise_start(cluster(nodes=nodes), FitQuestion(16))

    assert (advice.before.pods, advice.after.pods) == (0, 1)
    assert [(move.pod, move.target.node) for move in advice.moves] == [("large", "c")]
    left_out = [note for note in advice.notes if "left out" in note]
    assert left_out == [
        "1 node (g) is left out: not Ready",
        "2 nodes are left out: new pods do not tolerate the taints gpu:NoSchedule, team:NoSchedule",
        "1 node (e) is left out: cordoned",
    ]
    enough = advise_start(cluster(nodes=(*nodes, Node("f", (16,)))), FitQuestion(16))
    assert (enough.before.pods, enough.moves) == (1, ())
    assert list(enough.notes) == left_out


def owner(kind):
    return lambda pod: pod["metadata"]["ownerReferences"][0].update(kind=kind)


def annotate(name, value):
    return lambda pod: pod["metadata"]["annotations"].update({name: value})


def label(name, value):
    return lambda pod: pod["metadata"].setdefault("labels", {}).update({name: value})


def of_worker_group(pod):
    label("leaderworkerset.sigs.k8s.io/name", "llm")(pod)
    label("leaderworkerset.sigs.k8s.io/group-index", "0")(pod)


def near(pod):
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}
    pod["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.mark.parametrize(
    ("change", "why_not"),
    [
        (owner("DaemonSet"), "it belongs to a DaemonSet"),
        (lambda pod: pod["metadata"].pop("ownerReferences"), "no controller replaces it"),
        (annotate("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), "safe-to-evict: false"),
        (annotate("karpenter.sh/do-not-disrupt", "true"), "do-not-disrupt: true"),
        (annotate("kubernetes.io/config.mirror", "x"), "no controller replaces it"),
        (lambda pod: pod["metadata"].update(deletionTimestamp="2026-11-01T00:00:00Z"), "being deleted"),
        (lambda pod: pod["spec"].update(priority=2_000_000_000), "its priority is 2000000000"),
        (
            lambda pod: pod["spec"].update(volumes=[{"persistentVolumeClaim": {"claimName": "data"}}]),
            "the volume of claim data could keep it",
        ),
        (
            lambda pod: pod["spec"].update(
                topologySpreadConstraints=[{"whenUnsatisfiable": "DoNotSchedule"}]
            ),
            "topology spread could keep it",
        ),
        (near, "want to be near each other"),
        (owner("Job"), "not known that Job app only makes it again"),
        (owner("PyTorchJob"), "not known that PyTorchJob app only makes it again"),
        (annotate("gpupack.io/gang", "train"), 'together with the other pods of gang "train"'),
        (label("scheduling.x-k8s.io/pod-group", "train"), 'together with the other pods of gang "train"'),
        (of_worker_group, 'together with the other pods of gang "llm-0"'),
        (
            label("gpupack.io/queue-name", "research"),
            'queue "research" would have to admit its successor, and the queue was not read',
        ),
    ],
)
def test_a_pod_that_must_not_be_moved_stays(change, why_not):
    found = cluster(change)

    assert "small" not in moved(found)
    (note,) = [note for note in advise_empty(found, "a/0").notes if "stays" in note]
    assert why_not in note


def budget(allowed, name="pdb"):
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodDisruptionBudgetSpec(LabelSelector({"app": "x"})),
        status=PodDisruptionBudgetStatus(allowed),
    )


def test_a_budget_keeps_its_pods():
    assert moved(World(NODES, PODS, (budget(0),)).cluster) == ["large"]
    assert moved(World(NODES, PODS, (budget(1),)).cluster) == ["small"]


def test_a_budget_counts_over_all_moves_and_may_stand_in_a_file():
    labelled = tuple(replace(pod, labels=(("app", "x"),)) for pod in PODS)
    nodes = (*NODES, Node("d", (16,), foreign=(4,)))
    two = advise_start(World(nodes, labelled, (budget(2),)).cluster, FitQuestion(16), 2)
    one = advise_start(World(nodes, labelled, (budget(1),)).cluster, FitQuestion(16), 2)
    assert (len(two.moves), len(one.moves)) == (2, 1)

    told = json.loads(World(nodes, labelled).text)
    told["items"].append(
        {
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "pdb", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {"disruptionsAllowed": 0},
        }
    )
    assert not advise_start(Cluster.from_json(json.dumps(told)), FitQuestion(16), 2).moves


def test_priorities_decide_between_pods_that_would_do_and_a_limit_keeps_higher_ones():
    pods = (replace(PODS[0], priority=100), PODS[1])
    assert moved(cluster(pods=pods)) == ["large"]
    pods = (replace(PODS[0], priority=100), replace(PODS[1], priority=200))
    assert moved(cluster(pods=pods)) == ["small"]
    assert moved(cluster(pods=pods), SearchLimits(max_priority=50)) == []


def test_a_moved_pod_goes_only_where_its_selector_taints_and_anti_affinity_allow():
    nodes = (*NODES[:2], replace(NODES[2], taints=("gpu",)))
    # Only b is left for `small`.
    assert moved(cluster(nodes=nodes)) == ["small"]
    assert advise_start(cluster(nodes=nodes), FitQuestion(16)).moves[0].target.node == "b"

    def apart(pod):
        term = {"topologyKey": "host", "labelSelector": {}}
        pod["spec"]["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }

    hosts = tuple(replace(node, labels=(("host", node.name),)) for node in NODES)
    assert advise_start(cluster(apart, nodes=hosts), FitQuestion(16)).moves[0].target.node == "c"


def test_processes_of_others_that_fill_a_card_are_not_taken_for_room():
    world = World((Node("a", (16,), foreign=(14,)), Node("b", (16,))), (Pod("p", 6, "a", (0,)), Pod("w", 6)))
    # The words say 16 of 16, of which the pod has 6: nobody knows what is free without it.
    blocked = world.but(Pod("x", 16, "b", (0,), owned=False))

    answer = explain_pod(blocked.cluster, "default", "w")

    assert [way.kind for way in answer.ways_out] == ["pods-end"]
    assert answer.ways_out[0].pods[0].pod == "x"


def test_the_fewest_pods_end_wherever_they_are():
    pods = (Pod("a1", 4, "a", (0,)), Pod("a2", 4, "a", (0,)), Pod("b1", 12, "b", (0,)), Pod("w", 14))

    answer = explain_pod(World(NODES[:2], pods).cluster, "default", "w")

    # On a less is missing, and both would have to go.
    (way,) = [way for way in answer.ways_out if way.kind == "pods-end"]
    assert (way.node, [pod.pod for pod in way.pods], way.fewest) == ("b", ["b1"], True)


def test_one_large_pod_moves_rather_than_two_small_ones():
    nodes = (
        Node("a", (32,), model="A"),
        Node("b", (16,), model="A"),
        Node("c", (32, 8), model="B"),
        Node("d", (16,), model="A"),
    )
    world = World(nodes, (Pod("large", 32, "a", (0,)), Pod("s", 3, "b", (0,)), Pod("t", 3, "d", (0,))))

    advice = advise_start(world.cluster, FitQuestion(16, model="A"), 2)

    assert [move.pod for move in advice.moves] == ["large"]
    assert (advice.after.pods, advice.at_least) == (2, 1)


@pytest.fixture
def nodes_of_more_than_are_all_tried():
    return (*NODES, *(Node(f"n{number:02}", (16,), foreign=(14,)) for number in range(NEAR_NODES)))


def test_of_a_list_as_short_as_any_has_to_be_nothing_is_noted(nodes_of_more_than_are_all_tried):
    asked = cluster(nodes=nodes_of_more_than_are_all_tried)

    for advice in (advise_empty(asked, "a/0"), advise_start(asked, FitQuestion(16))):
        assert (len(advice.moves), advice.at_least) == (1, 1)
        assert not [note for note in advice.notes if "list" in note]


def test_a_list_that_may_not_be_the_shortest_says_how_many_moves_are_needed(
    nodes_of_more_than_are_all_tried,
):
    # `big` has room on c only, and there once `one` has left it.
    nodes = (Node("a", (16,)), Node("c", (16,)), *nodes_of_more_than_are_all_tried[3:])
    pods = (Pod("big", 15, "a", (0,)), Pod("one", 2, "c", (0,)))

    advice = advise_empty(cluster(nodes=nodes, pods=pods), "a/0")

    assert (len(advice.moves), advice.at_least) == (2, 1)
    assert "a list of fewer moves may exist: at least 1 move is needed" in advice.notes
    assert "\n\n\n" not in format_advice(advice)


def test_where_fewer_start_than_asked_for_the_text_says_so(nodes_of_more_than_are_all_tried):
    nodes = tuple(
        replace(node, foreign=(9,)) if node.name == "c" else node for node in nodes_of_more_than_are_all_tried
    )

    advice = advise_start(cluster(nodes=nodes), FitQuestion(16), 2)

    assert (len(advice.moves), advice.after.pods) == (1, 1)
    assert advice.text.endswith("; no list was found that lets all 2 start")


def test_in_a_large_cluster_why_says_who_finds_moves(monkeypatch):
    waits = Pod("w", 32, count=2, model="*A100*")
    nodes = (Node("a", (16, 16)), Node("b", (16,)))
    pods = (*PODS, waits)
    small = explain_pod(cluster(nodes=nodes, pods=pods), "default", "w")
    assert "moves" in {way.kind for way in small.ways_out}
    assert not [note for note in small.notes if "advise" in note]

    monkeypatch.setattr(verified_moves, "MOST_NODES", 1)
    large = explain_pod(cluster(nodes=nodes, pods=pods), "default", "w")

    assert "moves" not in {way.kind for way in large.ways_out}
    command = "`gpupack advise --for 32 --cards 2 --model '*A100*'` looks for them"
    assert large.notes == (f"moves of other pods are not looked for here above 1 nodes: {command}",)
    assert command in format_why(large)


def test_pods_near_each_other_and_the_first_of_them():
    hosts = tuple(replace(node, labels=(("zone", node.name),)) for node in NODES)
    everything = json.loads(World(hosts, (*PODS, Pod("w", 2, labels=(("app", "y"),)))).text)
    waiting = everything["items"][-1]
    near(waiting)
    assert explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w").fits == ("a",)

    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "y"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    waiting["spec"]["affinity"] = {"podAffinity": required}
    assert explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w").fits == ("a", "b", "c")

    waiting["spec"]["affinity"] = {}
    everything["items"][3]["spec"]["affinity"] = {"podAntiAffinity": required}  # of `small`, on a
    answer = explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w")
    assert answer.fits == ("b", "c")
    assert answer.nodes[0].reason == "PodAffinity"


def test_other_resources_ports_and_the_number_of_pods():
    everything = json.loads(World(NODES[:2], (*PODS, Pod("w", 2))).text)
    a, b = everything["items"][:2]
    running, _, waiting = everything["items"][2:]
    a["status"]["allocatable"]["rdma/ib"] = "1"
    waiting["spec"]["containers"][0]["resources"]["limits"]["rdma/ib"] = "1"
    asked = Cluster.from_json(json.dumps(everything))
    assert explain_pod(asked, "default", "w").fits == ("a",)

    running["spec"]["containers"][0]["resources"]["limits"]["rdma/ib"] = "1"
    answer = explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w")
    assert {group.reason for group in answer.nodes} == {"OtherResource"}
    assert "pods-end" in {way.kind for way in answer.ways_out}

    b["status"]["allocatable"] |= {"rdma/ib": "5", "pods": "1"}
    answer = explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w")
    told = {group.reason: group.text for group in answer.nodes}
    assert told == {
        "OtherResource": "the most rdma/ib that a node has left is 0, asked 1",
        "Pods": "the node has as many pods as it may have, 1",
    }

    b["status"]["allocatable"]["pods"] = "2"
    for pod in (everything["items"][3], waiting):
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    answer = explain_pod(Cluster.from_json(json.dumps(everything)), "default", "w")
    assert {group.reason for group in answer.nodes} == {"OtherResource", "Ports"}


def lose_card(card, left):
    """A change of a node: a card is unhealthy, and the kubelet offers what is left."""

    def change(node):
        cards = json.loads(node["metadata"]["annotations"]["gpupack.io/cards"])
        cards[card]["healthy"] = False
        node["metadata"]["annotations"]["gpupack.io/cards"] = json.dumps(cards)
        node["status"]["allocatable"]["gpupack.io/gpu-memory-gib"] = str(left)

    return change


def test_kube_schedulers_sum_counts_pods_on_unhealthy_cards():
    world = World((Node("a", (8, 8)),), (Pod("p", 8, "a", (0,)), Pod("w", 8)))
    found = world.changed(a=lose_card(0, 8)).cluster

    answer = explain_pod(found, "default", "w")

    assert [group.reason for group in answer.nodes] == ["NodeSum"]
    assert answer_fit(found, FitQuestion(8)).pods == 0


def of_revision(revision, kind="Deployment"):
    label, (owner, name) = {
        "Deployment": ("pod-template-hash", ("ReplicaSet", f"chat-{revision}")),
        "Rollout": ("rollouts-pod-template-hash", ("ReplicaSet", f"chat-{revision}")),
        "DaemonSet": ("controller-revision-hash", ("DaemonSet", "chat")),
    }[kind]
    owners = [{"kind": owner, "name": name, "uid": name, "controller": True}]
    return lambda item: item["metadata"].update(labels={label: revision}, ownerReferences=owners)


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        ("Deployment", "strategy Recreate, or maxSurge 0 ends it first"),
        ("Rollout", "ready: maxSurge 0 ends it first"),
        ("DaemonSet", "ready: maxSurge 0 ends it first"),
    ],
)
@pytest.mark.parametrize(("asked", "blocking"), [(4, ["old1"]), (16, ["old1", "old2"])])
def test_a_rollout_that_waits_for_its_own_old_pod_is_told_so(asked, blocking, kind, cure):
    """Its end was advised, as of any pod; what made it would have made it again."""
    pods = (Pod("old1", 8, "a", (0,)), Pod("old2", 8, "a", (0,)), Pod("new", asked))
    old = of_revision("aaa", kind)
    world = World((Node("a", (16,)),), pods).changed(old1=old, old2=old, new=of_revision("bbb", kind))

    answer = explain_pod(world.cluster, "default", "new")

    ways = {way.kind: way for way in answer.ways_out}
    assert [pod.pod for pod in ways["rollout"].pods] == blocking
    assert f"its own {kind} chat has the cards on node a" in ways["rollout"].text
    assert ways["rollout"].text.endswith(cure)
    assert "pods-end" not in ways


def test_pods_of_the_same_revision_and_of_other_deployments_are_no_rollout():
    pods = (Pod("same", 8, "a", (0,)), Pod("else", 8, "a", (0,)), Pod("new", 8))
    world = World((Node("a", (16,)),), pods).changed(same=of_revision("bbb"), new=of_revision("bbb"))

    answer = explain_pod(world.cluster, "default", "new")

    assert "pods-end" in {way.kind for way in answer.ways_out}
    assert "rollout" not in {way.kind for way in answer.ways_out}


def test_a_pod_on_a_lost_card_frees_the_sum_before_two_healthy_ones_do():
    """Its end frees no card, and it was left out: two pods that compute were to end in its place."""
    pods = (Pod("lost", 16, "a", (2,)), Pod("x", 8, "a", (0,)), Pod("y", 8, "a", (0,)), Pod("w", 16))
    world = World((Node("a", (16, 16, 16)),), pods).changed(a=lose_card(2, 32))

    answer = explain_pod(world.cluster, "default", "w")

    (end,) = [way for way in answer.ways_out if way.kind == "pods-end"]
    assert [pod.pod for pod in end.pods] == ["lost"]
