"""Which placeholder pods ask for which nodes."""

import cProfile
import json
from itertools import product

import pytest

from allocator.names import (
    COMPUTE_RESOURCE,
    NODE_LABEL,
    PERCENT_RESOURCE,
    PLACEHOLDER_FOR,
    POD_GANG,
    POD_GANG_SIZE,
    STARTUP_TAINT,
)
from gpupack.autoscale.planner import HELD_BACK, Planner, PlanRules
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.autoscale.shapes import read_shapes
from gpupack.autoscale.sum_view import NodeVerdicts, SumView, count_nodes_by_sums, find_apart
from gpupack.autoscale.waiting_pods import group_by_kind, list_waiting_pods
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import find_apart_keys
from kubeapi.selectors import HOSTNAME, Expression, NodeTerm, join_terms
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.pods import is_placeholder
from tests.autoscale_world import (
    NOW,
    WALL_S,
    Node,
    Pod,
    fragments,
    grown,
    of_daemon_set,
    outcomes,
    plan_of,
    replace,
    serve_claims,
    waits,
)
from tests.cluster_builders import MEMORY
from tests.queue_world import pod_group

HCA = "example.com/hca"


def node_terms(placeholder):
    """Its node affinity as the API server reads it."""
    affinity = json.loads(json.dumps(placeholder.spec["affinity"]))["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_a_term_without_conditions_selects_no_node_also_joined_with_another():
    """Joined with another it would have selected what that selects."""
    first, second = (NodeTerm((Expression(key, "Exists"),)) for key in ("a", "b"))
    assert join_terms((first, NodeTerm()), (second,)) == (
        NodeTerm((Expression("a", "Exists"), Expression("b", "Exists"))),
    )


def asked(plan):
    return sorted(
        (int(each.spec["containers"][0]["resources"]["limits"][MEMORY]), *each.stands_for)
        for each in plan.placeholders
    )


def test_a_pod_that_fits_by_the_sum_and_on_no_card_gets_a_placeholder():
    nodes, pods = fragments()
    plan = plan_of(grown(nodes, [*pods, waits("waits", 40)]))

    assert asked(plan) == [(160, "default/waits")]
    assert outcomes(plan) == {"waits": "asked"}
    spec = plan.placeholders[0].spec
    assert spec["schedulerName"] == "gpupack-placeholder"
    assert "affinity" not in spec, "no node has 160 by its sum, so none has to be kept out"


KARPENTER = AutoscaleSettings(autoscaler="karpenter").rules()


@pytest.mark.parametrize(
    ("used", "free", "rules", "outcome"),
    [
        pytest.param(60, 40, None, "asked", id="the sum is there and on no card"),
        pytest.param(80, 40, None, "sum_short", id="the sum is short"),
        pytest.param(60, 10, None, "sum_short", id="of memory"),
        pytest.param(80, 40, KARPENTER, "asked", id="short, and no machine type has it"),
        pytest.param(60, 10, KARPENTER, "asked", id="of memory, and no machine type has it"),
        pytest.param(None, 40, None, "asked", id="a node like those that exist has none"),
    ],
)
def test_what_is_done_for_a_pod_short_of_compute(used, free, rules, outcome):
    """An autoscaler adds a node itself where a sum is short and nodes like the new one offer the resource."""
    nodes, pods = fragments(free=free, publishes_compute=used is not None)
    pods = [replace(pod, compute=used or 0) for pod in pods]
    plan = plan_of(grown(nodes, [*pods, waits("w", 40, compute=60)]), rules=rules)
    assert outcomes(plan) == {"w": outcome}
    assert asked(plan) == ([(160, "default/w")] if outcome == "asked" else [])
    for placeholder in plan.placeholders:
        assert COMPUTE_RESOURCE not in placeholder.spec["containers"][0]["resources"]["limits"]


def test_pods_use_up_the_sum_of_compute_and_new_nodes_are_counted_by_it():
    """80 % are left by the sum, of which `w0` has 60. For the other four, three to a node, two nodes come.

    By cards two go on a node, so that a third one is asked for.
    """
    nodes, pods = fragments(free=40)
    pods = [replace(pod, compute=60) for pod in pods]
    five = [waits(f"w{at}", 8, compute=60) for at in range(5)]
    plan = plan_of(grown(nodes, [*pods, *five]))
    assert outcomes(plan) == {"w0": "asked", **{f"w{at}": "sum_short" for at in range(1, 5)}}
    assert asked(plan) == [(160, "default/w0", "default/w1")]


def test_pods_of_one_size_with_most_compute_are_packed_first():
    """70 and 30, and 60 and 40 percent fit on the two cards of one node; 30 and 40 first leave 60 no room."""
    nodes, pods = fragments(free=40, publishes_compute=False)
    four = [waits(f"w{at}", 8, compute=percent) for at, percent in enumerate((30, 40, 70, 60))]
    plan = plan_of(grown(nodes, [*pods, *four]))
    assert asked(plan) == [(160, *(f"default/w{at}" for at in range(4)))]


def test_percent_of_a_card_counts_as_its_units_where_pods_are_packed():
    """25 percent of a card of 16 are 4 units; packed first, they leave one of the others no room.

    All five fit on one node, which the autoscaler adds by the sums: none is asked for.
    """

    def ask_for_share(item):
        for amounts in item["spec"]["containers"][0]["resources"].values():
            del amounts[MEMORY]
            amounts[PERCENT_RESOURCE] = "25"

    full = [Pod(f"f{card}", 15, "n1", (card,)) for card in (0, 1)]
    five = [waits(f"w{at}", units) for at, units in enumerate((10, 8, 6, 4, 4))]
    changes = {"w4": ask_for_share, "n1": offer({PERCENT_RESOURCE: "200"})}
    plan = plan_of(grown([Node("n1", (16, 16))], [*full, *five], **changes), rules=KARPENTER)
    assert asked(plan) == []
    assert {pod: said for pod, said in outcomes(plan).items() if said != "sum_short"} == {"w4": "covered"}


@pytest.mark.parametrize(
    ("limit", "placeholders", "outcome"),
    [(50, [], "no_shape"), (100, [2, 2], "asked"), (200, [4], "asked")],
)
def test_a_new_node_gives_away_as_much_compute_as_those_of_its_group(limit, placeholders, outcome):
    """Cards of 80 GiB: two of the four pods fit on one by memory."""
    nodes, pods = fragments(free=20, compute_limit=limit)
    four = [waits(f"w{at}", 40, compute=60) for at in range(4)]
    plan = plan_of(grown(nodes, [*pods, *four]), rules=KARPENTER)
    assert [len(names) for _, *names in asked(plan)] == placeholders
    assert set(outcomes(plan).values()) == {outcome}


def test_a_pod_that_asks_for_no_cpu_is_not_short_of_it_where_more_is_requested_than_there_is():
    nodes, pods = fragments(cpu=1)
    pods = [replace(pod, cpu=2) for pod in pods]
    assert outcomes(plan_of(grown(nodes, [*pods, waits("waits", 40)]))) == {"waits": "asked"}


def test_a_pod_that_a_card_can_take_needs_no_node():
    nodes, pods = fragments(free=40)
    assert outcomes(plan_of(grown(nodes, [*pods, waits("waits", 40)]))) == {"waits": "fits"}


def in_group(item):
    item["spec"]["schedulingGroup"] = {"podGroupName": "g"}


@pytest.mark.parametrize("source", ["annotation", "group", "no-gang", "single"])
def test_a_gang_of_which_some_find_cards_gets_nodes_for_the_others(source):
    """Each of its pods has a card by itself, so none was asked for, and the gang waited for ever."""
    nodes, pods = fragments(2)
    pods[:2] = [replace(pod, units=40) for pod in pods[:2]]
    notes = ((POD_GANG, "g"), (POD_GANG_SIZE, "3")) if source == "annotation" else ()
    three = [waits(f"w{at}", 40, policies=notes) for at in range(3)]
    of_group = source in {"group", "no-gang"}
    changes = dict.fromkeys((pod.name for pod in three), in_group) if of_group else {}
    cluster = grown(nodes, [*pods, *three], **changes).cluster
    if of_group:
        cluster.pod_groups.put_group(pod_group("g", 3 if source == "group" else 0))
    plan = plan_of(cluster)
    if source in {"annotation", "group"}:
        assert asked(plan) == [(160, "default/w2")]
        assert outcomes(plan) == {"w0": "fits", "w1": "fits", "w2": "asked"}
    else:
        assert (asked(plan), set(outcomes(plan).values())) == ([], {"fits"})


def test_pods_that_can_share_a_new_node_share_it():
    nodes, pods = fragments(3)
    three = [waits(f"w{at}", 40) for at in range(3)]
    plan = plan_of(grown(nodes, [*pods, *three]))

    assert asked(plan) == [(160, "default/w0", "default/w1", "default/w2")]


def test_requests_are_rounded_up_so_that_sums_need_as_many_nodes_as_cards():
    """Three pods of 50 GiB fit a node of two cards of 80 by the sum, two by cards."""
    nodes, pods = fragments(5, free=30)
    three = [waits(f"w{at}", 50) for at in range(3)]

    assert [each[0] for each in asked(plan_of(grown(nodes, [*pods, *three])))] == [160, 160]


def test_a_new_node_is_filled_with_what_its_daemons_leave_of_its_sum():
    """A placeholder that asks for all 160 would fit no template: the agent has one of them there, too."""
    nodes, pods = fragments(4, free=30)
    agents = [Pod(f"agent-{node.name}", 1, node.name, (0,)) for node in nodes]
    changes = {agent.name: of_daemon_set for agent in agents}
    four = [waits(f"w{at}", 40) for at in range(4)]
    assert [each[0] for each in asked(plan_of(grown(nodes, [*pods, *agents, *four], **changes)))] == [
        159,
        159,
    ]


def test_no_node_is_asked_for_whose_daemons_would_leave_no_card_free_enough():
    """The sum of a new node suffices, yet each one would be added in vain."""
    agent = Pod("agent", 8, "n1", (0,))
    for units, outcome in ((152, "no_shape"), (144, "fits")):
        pods = [agent, waits("waits", units, count=2)]
        plan = plan_of(grown([Node("n1", (80, 80))], pods, agent=of_daemon_set))
        assert outcomes(plan) == {"waits": outcome}
    two = [waits("w1", 76), waits("w2", 76)]
    nodes, pods = fragments(4, free=50)
    agents = [replace(agent, name=f"agent-{node.name}", node=node.name) for node in nodes]
    changes = {pod.name: of_daemon_set for pod in agents}
    assert len(asked(plan_of(grown(nodes, [*pods, *agents, *two], **changes)))) == 2


def test_one_node_with_an_unhealthy_card_does_not_make_new_nodes_smaller():
    """An autoscaler may take another node for its template."""
    nodes, pods = fragments(4, free=30)
    two = [waits("w1", 50), waits("w2", 50)]
    plan = plan_of(grown(nodes, [*pods, *two], n4=offer({MEMORY: "80"})))
    assert asked(plan) == [(100, "default/w1", "default/w2")]
    plan = plan_of(grown(nodes, [*pods, waits("w1", 50)], n4=offer({MEMORY: "80"})))
    assert asked(plan) == [(80, "default/w1")]


def test_a_pod_that_no_new_node_could_take_gets_none_and_is_told():
    nodes, pods = fragments()
    for pod in (waits("waits", 160), waits("waits", 40, model="NVIDIA H200")):
        plan = plan_of(grown([*nodes, Node("n9", (80, 80, 80))], [*pods, pod]))
        assert (asked(plan), outcomes(plan)) == ([], {"waits": "no_shape"})
        (said,) = plan.pods.values()
        assert said.text.endswith("known are nodes of 2 x 80 GiB NVIDIA A100; 3 x 80 GiB NVIDIA A100")


def test_no_node_like_one_that_serves_claims_is_asked_for():
    """To an autoscaler its group offers none of the resource."""
    nodes, pods = fragments()
    large = [Node("d1", (160, 160)), Pod("on-d1-0", 160, "d1", (0,)), Pod("on-d1-1", 160, "d1", (1,))]
    for others, known in ((nodes, "known are nodes of 2 x 80 GiB NVIDIA A100"), ([], "none is declared")):
        there = [pod for pod in pods if others]
        plan = plan_of(grown([*others, large[0]], [*there, *large[1:], waits("waits", 100)], d1=serve_claims))
        assert (asked(plan), outcomes(plan)) == ([], {"waits": "no_shape"})
        (said,) = plan.pods.values()
        assert known in said.text
        assert said.text.endswith(
            "; nodes that serve claims are left out, for they offer nothing to an autoscaler"
        )


def test_a_pod_that_names_its_node_gets_none():
    nodes, pods = fragments()
    pod = waits("waits", 40, selector=(("kubernetes.io/hostname", "n1"),))
    assert outcomes(plan_of(grown(nodes, [*pods, pod]))) == {"waits": "no_shape"}


def name_batch_mode(item):
    item["spec"]["schedulerName"] = "gpupack-batch"


def gate(item):
    item["spec"]["schedulingGates"] = [{"name": "gpupack.io/queue"}]


def nominate(item):
    item["status"]["nominatedNodeName"] = "n1"


def not_tried(item):
    item["status"]["conditions"] = []


def requeue(item):
    item["metadata"]["annotations"]["gpupack.io/requeued"] = "1"


def wait_for_quota(item):
    """As batch mode says it of a pod without a gate."""
    name_batch_mode(item)
    item["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Quota"}]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (gate, "gated"),
        (requeue, "gated"),
        (nominate, "reserved"),
        (not_tried, "not_tried"),
        (wait_for_quota, "not_tried"),
        (name_batch_mode, "asked"),
    ],
)
def test_only_pods_that_wait_for_room_ask_for_a_node(change, outcome):
    nodes, pods = fragments()
    plan = plan_of(grown(nodes, [*pods, waits("waits", 40)], waits=change))
    assert outcomes(plan) == {"waits": outcome}
    assert bool(asked(plan)) == (outcome == "asked")


def test_a_node_is_asked_for_after_the_grace_time_only():
    nodes, pods = fragments()
    world = grown(nodes, [*pods, waits("waits", 40)])
    planner = Planner(PlanRules(grace_s=15.0))

    assert outcomes(planner.plan(world.cluster, 100.0, WALL_S)) == {"waits": "grace"}
    assert outcomes(planner.plan(world.cluster, 114.9, WALL_S)) == {"waits": "grace"}
    assert outcomes(planner.plan(world.cluster, 115.0, WALL_S)) == {"waits": "asked"}
    # Once a node had taken it, the time begins anew.
    free = grown([*nodes, Node("n2", (80, 80))], [*pods, waits("waits", 40)])
    assert outcomes(planner.plan(free.cluster, 116.0, WALL_S)) == {"waits": "fits"}
    assert outcomes(planner.plan(world.cluster, 117.0, WALL_S)) == {"waits": "grace"}


@pytest.mark.parametrize(("named", "outcome"), [("default/waits", "asked"), ("default/other", "grace")])
def test_a_new_leader_does_not_wait_again_for_pods_that_were_asked_for(named, outcome):
    """Else it would delete the placeholder of the leader before, and create it again after the grace time."""
    nodes, pods = fragments()
    world = grown(nodes, [*pods, waits("waits", 40)])
    cluster = with_placeholders(world, **{PLACEHOLDER_FOR: named})

    planner = Planner()
    assert outcomes(planner.plan(cluster, 100.0, WALL_S)) == {"waits": outcome}
    # So it is in the first pass only: a pod that a node could have taken meanwhile waits.
    free = grown([*nodes, Node("n2", (80, 80))], [*pods, waits("waits", 40)])
    assert outcomes(planner.plan(free.cluster, 101.0, WALL_S)) == {"waits": "fits"}
    assert outcomes(planner.plan(cluster, 102.0, WALL_S)) == {"waits": "grace"}


def test_a_new_leader_believes_no_placeholder_that_gpupack_did_not_make():
    nodes, pods = fragments()
    world = grown(nodes, [*pods, waits("waits", 40)])
    cluster = with_placeholders(world)
    for pod in cluster.pods.values():
        if is_placeholder(pod):
            pod.metadata.labels = {}
    assert outcomes(Planner().plan(cluster, 100.0, WALL_S)) == {"waits": "grace"}


def test_where_a_placeholder_names_not_all_of_its_pods_a_new_leader_waits_for_none():
    nodes, pods = fragments()
    world = grown(nodes, [*pods, waits("waits", 40)])
    cluster = with_placeholders(world, **{PLACEHOLDER_FOR: "default/another,and 3 more"})
    assert outcomes(Planner().plan(cluster, 100.0, WALL_S)) == {"waits": "asked"}


def with_placeholders(world, **annotations):
    """The cluster with the placeholders that were planned for it, with other annotations."""
    items = json.loads(world.text)["items"]
    for number, placeholder in enumerate(plan_of(world).placeholders):
        made = placeholder.manifest("gpupack-system", 1)
        made["metadata"] |= {"uid": f"uid-placeholder-{number}"}
        made["metadata"]["annotations"] |= annotations
        items.append(made)
    return Cluster.from_json(json.dumps({"kind": "List", "items": items}), unit_mib=1024)


def test_there_are_no_more_placeholders_than_allowed():
    nodes, pods = fragments(10, free=50)
    many = [waits(f"w{at}", 80) for at in range(10)]
    plan = plan_of(grown(nodes, [*pods, *many]), rules=PlanRules(most=2))

    assert len(plan.placeholders) == 2
    assert sorted(outcomes(plan).values()) == ["asked"] * 4 + ["limit"] * 6


def test_nodes_that_the_autoscaler_adds_by_itself_are_not_asked_for_again():
    """Ten pods of 50 on an empty group of 2 x 80: by sums four nodes, by cards five."""
    full = [Pod(f"f{at}", 80, "n1", (at,)) for at in (0, 1)]
    ten = [waits(f"w{at}", 50) for at in range(10)]
    plan = plan_of(grown([Node("n1", (80, 80))], [*full, *ten]))
    assert asked(plan) == []
    assert set(outcomes(plan).values()) == {"sum_short"}

    # Four nodes came, eight pods run, and by sums the two others fit.
    nodes = [Node(f"n{at}", (80, 80)) for at in range(1, 6)]
    running = [Pod(f"w{at}", 50, f"n{2 + at // 2}", (at % 2,)) for at in range(8)]
    plan = plan_of(grown(nodes, [*full, *running, waits("w8", 50), waits("w9", 50)]))
    assert asked(plan) == [(160, "default/w8", "default/w9")]


def test_the_need_that_an_autoscaler_sees_counts_for_the_nodes_that_hidden_ones_need():
    """One pod fits by the sum of n1; the autoscaler adds a node for the other one, which takes both."""
    nodes, pods = fragments(free=20)
    two = [waits("w1", 40), waits("w2", 40)]
    plan = plan_of(grown(nodes, [*pods, *two]))
    assert (asked(plan), outcomes(plan)) == ([], {"w1": "covered", "w2": "sum_short"})

    # It is trusted for a while only: its group may be as large as it may be.
    plan = plan_of(grown(nodes, [*pods, *two]), waited_s=1000.0)
    assert asked(plan) == [(160, "default/w1", "default/w2")]


def test_a_node_that_starts_is_not_asked_for_again():
    nodes, pods = fragments(labels=(("node.kubernetes.io/instance-type", "a100-2"),))

    def born(labels=(), created=NOW, **spec):
        def change(item):
            item["metadata"] |= {"labels": dict(labels), "creationTimestamp": created, "annotations": {}}
            item["status"] = {"allocatable": {"cpu": "64", "memory": "256Gi"}}
            item["spec"] |= spec

        return change

    def outcome(change):
        world = grown([*nodes, Node("new")], [*pods, waits("waits", 40)], new=change)
        return outcomes(plan_of(world))["waits"]

    assert outcome(born((("node.kubernetes.io/instance-type", "a100-2"),))) == "covered"
    assert outcome(born(((NODE_LABEL, "true"),))) == "covered"
    assert outcome(born(((NODE_LABEL, "dra"),))) == "covered"
    assert outcome(born(taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}])) == "covered"
    assert outcome(born()) == "asked", "a node that is not ours"
    assert outcome(born(((NODE_LABEL, "true"),), created="2020-01-01T00:00:00Z")) == "asked", (
        "it never started"
    )


def test_a_node_that_looks_free_and_is_full_is_kept_out():
    """Processes of others fill its cards: its sum says that all of it is free."""
    nodes, pods = fragments()
    full = Node("n2", (80, 80), foreign=(79, 79))
    plan = plan_of(grown([*nodes, full], [*pods, waits("waits", 40)]))

    assert node_terms(plan.placeholders[0]) == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n2"]}]}
    ]


def test_for_karpenter_a_label_of_ours_keeps_nodes_out():
    """It refuses pods that name kubernetes.io/hostname."""
    nodes, pods = fragments()
    rules = AutoscaleSettings(autoscaler="karpenter").rules()
    alone = plan_of(grown(nodes, [*pods, waits("waits", 40)]), rules=rules)
    assert "affinity" not in alone.placeholders[0].spec
    assert alone.unlabelled == {}

    long_name = "n" * 100
    key = "gpupack.io/host"
    full = [
        Node("n2", (80, 80), foreign=(79, 79)),
        Node("n3", (80, 80), foreign=(79, 79), labels=((key, "n3"),)),
        Node("n4", (80, 80), foreign=(79, 79), labels=((key, "another"),)),
        Node(long_name, (80, 80), foreign=(79, 79)),
    ]
    plan = plan_of(grown([*nodes, *full], [*pods, waits("waits", 40)]), rules=rules)
    (made,) = plan.placeholders
    (expression,) = node_terms(made)[0]["matchExpressions"]
    assert (expression["key"], expression["operator"]) == (key, "NotIn")
    digest = plan.unlabelled[long_name]
    assert 0 < len(digest) <= 63
    assert sorted(expression["values"]) == sorted(["n2", "n3", "n4", digest])
    assert plan.unlabelled == {"n2": "n2", "n4": "n4", long_name: digest}


def test_a_placeholder_has_the_rules_of_its_pods():
    nodes, pods = fragments(taints=("team-b",), labels=(("pool", "g1"), ("zone", "a")))
    pod = waits("waits", 40, tolerates=("team-b", "other"), selector=(("pool", "g1"),), cpu=3)

    expressions = [{"key": "zone", "operator": "In", "values": ["a", "b"]}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    zone = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    def affinity(item):
        item["spec"]["affinity"] = zone

    (made,) = plan_of(grown(nodes, [*pods, pod], waits=affinity)).placeholders
    assert made.spec["nodeSelector"] == {"pool": "g1"}
    assert made.spec["tolerations"] == [
        {"key": "team-b", "operator": "Equal", "value": "", "effect": "NoSchedule"}
    ]
    assert node_terms(made) == [{"matchExpressions": expressions}]
    assert made.spec["containers"][0]["resources"]["requests"]["cpu"] == "3000m"


def test_a_label_keeps_placeholders_from_nodes_that_would_not_help():
    """A pod of two cards; a node with one large card has more by its sum."""
    nodes, pods = fragments(labels=(("pool", "small"),))
    large = Node("big", (192,), labels=(("pool", "large"),))
    there = Pod("there", 100, "big", (0,))
    pod = waits("waits", 80, count=2)
    plan = plan_of(grown([*nodes, large], [*pods, there, pod]))
    (made,) = plan.placeholders
    assert node_terms(made) == [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["small"]}]}
    ]

    nodes, pods = fragments()
    plan = plan_of(grown([*nodes, Node("big", (192,))], [*pods, there, pod]))
    assert (asked(plan), outcomes(plan)) == ([], {"waits": "no_label"})


def test_of_several_shapes_the_one_is_asked_for_that_pods_fill_best():
    nodes, pods = fragments(labels=(("pool", "small"),))
    large = Node("big", (80,) * 8, labels=(("pool", "large"),))
    there = [Pod(f"there-{card}", 60, "big", (card,)) for card in range(8)]
    assert [each[0] for each in asked(plan_of(grown([*nodes, large], [*pods, *there, waits("w", 40)])))] == [
        160
    ]
    eight = [waits(f"w{at}", 80, cpu=1) for at in range(2)]
    assert [each[0] for each in asked(plan_of(grown([*nodes, large], [*pods, *there, *eight])))] == [160]


def stay_apart(item):
    item["metadata"]["labels"] = {"app": "x"}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    item["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def choose(kind, key, app="x"):
    """Make a pod require to be near pods of an app, or apart from them."""

    def change(item):
        item["metadata"]["labels"] = {"app": "x"}
        term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
        item["spec"]["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    return change


def use_port(item):
    item["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]


def ask_for(amounts):
    def change(item):
        for each in item["spec"]["containers"][0]["resources"].values():
            each.update(amounts)

    return change


ask_for_hca = ask_for({HCA: "1"})


def ask_for_percent(item):
    ask_for({PERCENT_RESOURCE: "50"})(item)
    for amounts in item["spec"]["containers"][0]["resources"].values():
        del amounts[MEMORY]


def leave(_item):
    pass


def offer(amounts):
    return lambda item: item["status"]["allocatable"].update(amounts)


def test_pods_that_want_to_be_apart_get_a_node_each():
    nodes, pods = fragments(2)
    world = grown(nodes, [*pods, waits("w1", 30), waits("w2", 30)], w1=stay_apart, w2=stay_apart)
    assert [each[1:] for each in asked(plan_of(world))] == [("default/w1",), ("default/w2",)]


@pytest.mark.parametrize(
    ("units", "named"),
    [
        pytest.param((50, 50), ("w0", "w1"), id="on one node"),
        pytest.param((50, 50, 50), ("w0", "w1"), id="and one too many"),
        pytest.param((40, 50, 60), ("w1", "w2"), id="of different requests"),
    ],
)
def test_pods_that_want_to_be_on_one_host_get_one_node(units, named):
    """A node that is not there had no host name: none was asked for."""
    nodes, pods = fragments(3, free=30)
    waiting = [waits(f"w{at}", each) for at, each in enumerate(units)]
    together = dict.fromkeys([pod.name for pod in waiting], choose("podAffinity", HOSTNAME))
    plan = plan_of(grown(nodes, [*pods, *waiting], **together))
    assert [each[1:] for each in asked(plan)] == [tuple(f"default/{name}" for name in named)]
    rest = {pod.name for pod in waiting} - set(named)
    assert outcomes(plan) == dict.fromkeys(named, "asked") | dict.fromkeys(rest, "covered")
    assert "affinity" not in plan.placeholders[0].spec, "Karpenter refuses pods that name the host's label"


@pytest.mark.parametrize(
    ("of_waiting", "of_there", "term"),
    [
        pytest.param(choose("podAffinity", "zone"), {"app": "x"}, ("In", ["a"]), id="near"),
        pytest.param(choose("podAffinity", "zone", "db"), {"app": "db"}, ("In", ["a"]), id="near others"),
        pytest.param(choose("podAffinity", "zone", "db"), {}, None, id="near to none"),
        pytest.param(choose("podAffinity", "zone"), {}, ("Exists", None), id="the first of a group"),
        pytest.param(choose("podAffinity", HOSTNAME), {"app": "x"}, None, id="on a host that is full"),
        pytest.param(choose("podAntiAffinity", "zone"), {"app": "x"}, ("NotIn", ["a"]), id="apart"),
        pytest.param(choose("podAntiAffinity", HOSTNAME), {"app": "x"}, (), id="apart by host"),
    ],
)
def test_a_new_node_is_where_the_pods_that_run_allow_it(of_waiting, of_there, term):
    """Nodes came in any zone, or none where the pod has to be near another one."""
    nodes, pods = fragments(2)
    nodes = [replace(node, labels=(("zone", zone),)) for node, zone in zip(nodes, "ab", strict=True)]
    there = replace(pods[0], labels=tuple(of_there.items()))
    plan = plan_of(grown(nodes, [there, *pods[1:], waits("w", 40)], w=of_waiting))
    if term is None:
        assert outcomes(plan) == {"w": "no_shape"}
        return
    (made,) = plan.placeholders
    terms = node_terms(made)[0]["matchExpressions"] if "affinity" in made.spec else []
    found = [(each["operator"], each.get("values")) for each in terms if each["key"] == "zone"]
    assert found == ([term] if term else [])


def test_a_new_node_is_where_a_pod_that_runs_wants_it():
    nodes, pods = fragments(2)
    nodes = [replace(node, labels=(("zone", zone),)) for node, zone in zip(nodes, "ab", strict=True)]
    changes = {pods[0].name: choose("podAntiAffinity", "zone")}
    waiting = waits("w", 40, labels=(("app", "x"),))
    (made,) = plan_of(grown(nodes, [*pods, waiting], **changes)).placeholders
    (expression,) = node_terms(made)[0]["matchExpressions"]
    assert expression == {"key": "zone", "operator": "NotIn", "values": ["a"]}


@pytest.mark.parametrize(
    ("kind", "named"), [("podAffinity", ["w0", "w1"]), ("podAntiAffinity", ["w0"])], ids=["near", "apart"]
)
def test_where_pods_choose_their_place_by_each_other_one_node_is_asked_for(kind, named):
    """The next one follows once they run: two nodes at once may be at places that do not do.

    Those that want to be apart were even thought to share a node.
    """
    nodes, pods = fragments(3, free=30)
    nodes = [replace(node, labels=(("zone", zone),)) for node, zone in zip(nodes, "abc", strict=True)]
    changes = dict.fromkeys(("w0", "w1", "w2"), choose(kind, "zone"))
    plan = plan_of(grown(nodes, [*pods, *(waits(name, 50) for name in changes)], **changes))
    assert [list(each[1:]) for each in asked(plan)] == [[f"default/{name}" for name in named]]
    assert outcomes(plan) == {name: "asked" if name in named else "covered" for name in changes}
    assert {said.text for said in plan.pods.values() if said.outcome.value == "covered"} == {HELD_BACK}


def test_a_pod_that_begins_a_group_waits_for_no_pods_of_others():
    nodes, pods = fragments(3, free=30)
    waiting = [waits("o0", 55), waits("o1", 55), waits("w", 50)]
    nodes = [replace(node, labels=(("zone", "a"),)) for node in nodes]
    plan = plan_of(grown(nodes, [*pods, *waiting], w=choose("podAffinity", "zone")))
    assert outcomes(plan) == {"o0": "asked", "o1": "asked", "w": "asked"}
    assert len(plan.placeholders) == 2


def test_a_pod_that_names_one_of_many_places_gets_a_node_there():
    nodes = [Node(f"n{at}", (40, 40), labels=(("rack", f"r{at}"),)) for at in range(70)]
    there = [Pod(f"on-{node.name}-{card}", 20, node.name, (card,)) for node in nodes for card in (0, 1)]
    pod = waits("w", 35, selector=(("rack", "r3"),))
    assert outcomes(plan_of(grown(nodes, [*there, pod]))) == {"w": "asked"}


def test_places_of_which_each_node_has_another_do_not_crowd_out_the_kinds_of_nodes():
    racks = [Node(f"n{at:03d}", (40, 40), labels=(("rack", f"r{at}"),)) for at in range(70)]
    nodes, pods = fragments(1, free=30, labels=(("rack", "r"),))
    there = [Pod(f"on-{node.name}-{card}", 20, node.name, (card,)) for node in racks for card in (0, 1)]
    waiting = [waits("apart", 35), waits("w", 60)]
    plan = plan_of(
        grown([*racks, *nodes], [*there, *pods, *waiting], apart=choose("podAntiAffinity", "rack"))
    )
    assert set(outcomes(plan).values()) == {"asked"}


@pytest.mark.parametrize(
    ("change", "units"),
    [
        pytest.param(use_port, (41, 41, 41), id="a port of the host"),
        pytest.param(use_port, (43, 42, 41), id="a port, and different requests"),
        pytest.param(stay_apart, (41, 41, 41), id="anti-affinity"),
        pytest.param(stay_apart, (43, 42, 41), id="anti-affinity, and different requests"),
        pytest.param(ask_for_hca, (41, 41, 41), id="a further resource"),
    ],
)
def test_an_autoscaler_puts_one_pod_on_a_node_where_the_node_takes_no_second_one(change, units):
    """By its GPU memory a node takes three. One is put on `n1`; for the others two nodes come."""
    there = [Pod(f"there-{card}", 40, "n1", (card,)) for card in range(4)]
    three = [waits(f"w{at}", each) for at, each in enumerate(units)]
    changes = {**dict.fromkeys(("w0", "w1", "w2"), change), "n1": offer({HCA: "1"})}
    plan = plan_of(grown([Node("n1", (80,) * 4)], [*there, *three], **changes))
    assert outcomes(plan) == {"w0": "asked", "w1": "sum_short", "w2": "sum_short"}
    assert len(plan.placeholders) == 1


def test_an_autoscaler_puts_one_of_the_pods_that_want_to_be_apart_by_zone_in_a_zone():
    """It sees by itself that the second one needs a node, which the first one takes as well."""

    def stay_in_other_zones(item):
        stay_apart(item)
        anti_affinity = item["spec"]["affinity"]["podAntiAffinity"]
        anti_affinity["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] = "zone"

    nodes = [Node(name, (80,) * 4, labels=(("zone", "a"),)) for name in ("n1", "n2")]
    there = [Pod(f"on-{node.name}-{card}", 40, node.name, (card,)) for node in nodes for card in range(4)]
    two = [waits("w0", 41), waits("w1", 41)]
    plan = plan_of(grown(nodes, [*there, *two], w0=stay_in_other_zones, w1=stay_in_other_zones))
    assert outcomes(plan) == {"w0": "covered", "w1": "sum_short"}


@pytest.mark.parametrize(
    ("change", "number", "offered", "excluded"),
    [
        pytest.param(use_port, 1, {}, True, id="the port is used there"),
        pytest.param(stay_apart, 1, {}, True, id="a pod there is to be far"),
        pytest.param(ask_for_percent, 1, {PERCENT_RESOURCE: "40"}, True, id="percent is short there"),
        pytest.param(None, 2, {"pods": "5"}, True, id="there is room for one more pod"),
        pytest.param(ask_for_hca, 2, {HCA: "2"}, True, id="a further resource is there for both"),
        pytest.param(ask_for_hca, 2, {HCA: "1"}, False, id="a further resource is there for one"),
    ],
)
def test_a_placeholder_avoids_the_nodes_that_have_enough_for_itself(change, number, offered, excluded):
    """It is one pod that asks for units, without ports and affinity: by sums it may fit where they do not."""
    there = [Pod(f"on-n1-{card}", 55, "n1", (card,)) for card in (0, 1)]
    there += [Pod(f"on-n2-{card}", 40, "n2", (card,)) for card in range(4)]
    pods = [waits(f"w{at}", 50) for at in range(number)]
    changes = {"n1": offer({HCA: "2", PERCENT_RESOURCE: "400"}), "n2": offer(offered)}
    changes |= dict.fromkeys([pod.name for pod in pods], change or leave)
    changes |= {"on-n2-0": change} if change in {use_port, stay_apart} else {}
    world = grown([Node("n1", (80, 80)), Node("n2", (80,) * 4)], [*there, *pods], **changes)
    (made,) = plan_of(world).placeholders
    assert made.stands_for == tuple(f"default/{pod.name}" for pod in pods)
    terms = node_terms(made) if "affinity" in made.spec else []
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n2"]}
    assert terms == ([{"matchExpressions": [expression]}] if excluded else [])


def test_percent_is_asked_for_as_the_units_of_a_node():
    nodes, pods = fragments()
    changes = {"waits": ask_for_percent, "n1": offer({PERCENT_RESOURCE: "400"})}
    assert asked(plan_of(grown(nodes, [*pods, waits("waits", 40)], **changes))) == [(160, "default/waits")]


SHAPES = """
shapes:
  - name: a100-2
    cards: [{count: 2, model: NVIDIA A100, mib: 81920}]
    cpu: 64
    memory: 256Gi
    labels: {pool: gpu}
"""


def test_a_declared_shape_lets_a_group_grow_that_has_no_node_yet():
    """By the sum of n1 the pod of 41 fits, and no card is as large."""
    nodes = [Node("n1", (40, 40), labels=(("pool", "other"),))]
    there = [Pod("there", 20, "n1", (0,)), Pod("there-2", 10, "n1", (1,))]
    pod = waits("waits", 41)
    assert outcomes(plan_of(grown(nodes, [*there, pod]))) == {"waits": "no_shape"}
    plan = plan_of(grown(nodes, [*there, pod]), declared=read_shapes(SHAPES, 1024))
    assert asked(plan) == [(160, "default/waits")]


def test_without_any_node_with_cards_nothing_can_be_learned():
    plan = plan_of(Cluster({}, grown([Node("n1")], [waits("waits", 40)]).cluster.pods, 1024))
    assert outcomes(plan) == {"waits": "no_shape"}
    (said,) = plan.pods.values()
    assert "none is declared (--shapes)" in said.text


def test_many_nodes_that_look_free_are_kept_out_by_a_label_where_there_is_one():
    """Large nodes with 20 free on each of four cards have more by their sums than a small node in all."""
    small = [Node("n1", (40, 40), labels=(("pool", "small"),))]
    large = [Node(f"big-{at:02d}", (80,) * 4, labels=(("pool", "large"),)) for at in range(30)]
    there = [Pod(f"{node.name}-{card}", 60, node.name, (card,)) for node in large for card in range(4)]
    there += [Pod(f"n1-{card}", 20, "n1", (card,)) for card in (0, 1)]

    def expressions(number):
        world = grown([*small, *large[:number]], [*there[: 4 * number], *there[-2:], waits("waits", 35)])
        (made,) = plan_of(world).placeholders
        return node_terms(made)[0]["matchExpressions"]

    names = [node.name for node in large]
    assert expressions(20) == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names[:20]}]
    assert expressions(30) == [{"key": "pool", "operator": "In", "values": ["small"]}]


@pytest.mark.parametrize(
    ("ready", "port", "outcome"),
    [
        pytest.param(True, None, "asked", id="sums-fit"),
        pytest.param(False, None, "asked", id="not-ready-and-not-tainted"),
        pytest.param(True, {"hostPort": 80}, "sum_short", id="the-port-is-used"),
        pytest.param(True, {"hostPort": 80, "protocol": "UDP"}, "asked", id="of-another-protocol"),
    ],
)
def test_an_autoscaler_finds_room_by_sums_where_kube_scheduler_s_rules_do(ready, port, outcome):
    (there,), pods = fragments(1)

    def use_port(item):
        item["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]

    def want_port(item):
        item["spec"]["containers"][0]["ports"] = [port] if port else []

    def take_no_taint(item):
        item["spec"]["taints"] = []

    changes = {pods[0].name: use_port, "w": want_port, there.name: take_no_taint}
    world = grown([replace(there, ready=ready)], [*pods, waits("w", 30)], **changes)
    assert outcomes(plan_of(world)) == {"w": outcome}


@pytest.mark.parametrize("change", [use_port, stay_apart], ids=["port", "anti-affinity"])
def test_no_new_node_takes_a_pod_that_must_be_apart_from_what_runs_on_every_node(change):
    """It was thought that an autoscaler sees the need of a node: it knows that none would do."""

    def run_everywhere(item):
        of_daemon_set(item)
        change(item)

    world = grown(
        [Node("n1", (80,))], [Pod("agent", 1, "n1", (0,)), waits("w", 30)], agent=run_everywhere, w=change
    )
    assert outcomes(plan_of(world)) == {"w": "no_shape"}


@pytest.mark.parametrize(
    ("units", "change", "expected"),
    [
        ([], leave, 0),
        ([1] * 4, leave, 1),
        pytest.param([1] * 5, leave, 2, id="as many pods as a node takes"),
        ([8] * 3, leave, 2),
        pytest.param([4, 4, 12, 12], leave, 2, id="the smaller ones fill what larger ones leave"),
        pytest.param([17], leave, 0, id="too large"),
        pytest.param([1] * 3, ask_for_hca, 3, id="a further resource"),
        pytest.param([1], ask_for({"example.com/fpga": "1"}), 0, id="a further resource that no node has"),
        pytest.param([1] * 3, use_port, 3, id="one port"),
        pytest.param([3, 2, 2], use_port, 3, id="one port, and different requests"),
        pytest.param([3, 2, 2], stay_apart, 3, id="anti-affinity"),
    ],
)
def test_new_nodes_by_sums(units, change, expected):
    pods = [waits(f"w{at}", each) for at, each in enumerate(units)]
    cluster = grown([Node("n1")], pods, **{pod.name: change for pod in pods}).cluster
    kinds = [kind for kind in group_by_kind(cluster, list_waiting_pods(cluster)) for _ in kind.pods]
    node = Amounts(4, 2000, units=16, others=((HCA, 1),))
    assert count_nodes_by_sums(kinds, node) == expected


def keep_apart(labels, selector=None, ports=()):
    def change(item):
        item["metadata"]["labels"] = labels
        item["spec"]["containers"][0]["ports"] = list(ports)
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        if selector is not None:
            item["spec"]["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }

    return change


def kinds_of(changes):
    cluster = grown([Node("n1")], [waits(name, 1) for name in changes], **changes).cluster
    return group_by_kind(cluster, list_waiting_pods(cluster))


def test_kinds_that_must_be_apart():
    changes = {
        "own": keep_apart({"app": "a", "tier": "x"}, {"matchLabels": {"app": "a", "tier": "x"}}),
        "other": keep_apart({"app": "b", "tier": "x"}, {"matchLabels": {"app": "a"}}),
        "expression": keep_apart({"app": "c"}, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
        "all": keep_apart({"app": "d"}, {}),
        "nobody": keep_apart({"app": "e"}, {"matchLabels": {"app": "f"}}),
        "port": keep_apart({"app": "g"}, ports=[{"hostPort": 80}]),
        "at": keep_apart({"app": "h"}, ports=[{"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 90}]),
        "udp": keep_apart({"app": "i"}, ports=[{"hostPort": 90, "protocol": "UDP"}]),
        "plain": keep_apart({"app": "j"}),
    }
    kinds = kinds_of(changes)
    apart = find_apart(kinds)
    for one, other in product(kinds, repeat=2):
        keys = find_apart_keys(one.requirements, other.requirements)
        assert apart[id(one)].get(id(other), frozenset()) == keys
    assert sum(map(len, apart.values())) > len(kinds)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(lambda at: keep_apart({"app": str(at)}, {"matchLabels": {"app": str(at)}}), id="label"),
        pytest.param(lambda at: keep_apart({"app": "x"}, ports=[{"hostPort": 80 + at}]), id="port"),
    ],
)
def test_kinds_that_keep_only_their_own_pods_apart_are_not_compared_with_all_others(rule):
    kinds = kinds_of({f"w{at}": rule(at) for at in range(50)})
    profile = cProfile.Profile()
    apart = profile.runcall(find_apart, kinds)
    assert all(apart[id(kind)].keys() == {id(kind)} for kind in kinds)
    assert sum(each.callcount for each in profile.getstats() if each.code is find_apart_keys.__code__) == 50


@pytest.mark.parametrize(
    ("node", "keys", "kept"),
    [
        ("a1", ["zone"], ["b1", "bare1", "bare2"]),
        ("a1", ["kubernetes.io/hostname"], ["a2", "b1", "bare1", "bare2"]),
        pytest.param("bare1", ["zone"], ["a1", "a2", "b1", "bare1", "bare2"], id="in no zone"),
        pytest.param("a1", ["zone", "rack"], ["bare1", "bare2"], id="one of two keys"),
    ],
)
def test_nodes_at_one_place_with_another(node, keys, kept):
    rack = ("rack", "r")
    labels = {"a1": (("zone", "a"), rack), "a2": (("zone", "a"),), "b1": (("zone", "b"), rack)}
    cluster = grown(Node(name, labels=labels.get(name, ())) for name in ("a1", "a2", "b1", "bare1", "bare2"))
    view = SumView(cluster.cluster, NodeVerdicts())
    (row,) = (row for row in view.rows.tolist() if view.list_names(view.rows[view.rows == row]) == [node])
    assert view.list_names(view.leave_places(view.rows, row, keys)) == kept
