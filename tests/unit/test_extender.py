"""filter and prioritize as kube-scheduler sees them: JSON in, JSON out."""

import json

import numpy as np
import pytest

from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.cache.pods import read_pod
from scheduler_plugin.errors import ProtocolError
from scheduler_plugin.extender.filter_cache import MAX_NODES, FilterResult
from scheduler_plugin.extender.verbs import Extender
from tests.cluster_builders import container, node_object, pod, pod_object, uuid
from tests.extender_world import World, check


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", (16, 16), (8, 8))
    world.node("b", (16, 16), (4, 0))
    world.node("c", (16, 16), (16, 16))
    return world


def test_nodes_that_fit_come_best_first(world: World) -> None:
    assert world.filter(pod_object("p", 8))["NodeNames"] == ["b", "a"]
    assert world.filter(pod_object("p", 9))["NodeNames"] == ["b"]


def test_when_none_fits_every_node_says_why(world: World) -> None:
    world.node("bare", None)
    world.node("other", (16,), unit_mib=512)
    world.node("foreign", (16,), extra={"gpupack.io/holds": "{"})
    world.node("broken", (80,), healthy=(False,))
    world.node("silent", (80,), allocatable_units=0)
    world.node("large", (80,), (80,))
    answer = world.filter(pod_object("p", 40), [*sorted(world.state.nodes.rows), "unknown"])
    small = "no healthy card of 40 GiB or more"
    assert answer["NodeNames"] == []
    # kube-scheduler's dry run of preemption can do nothing about any of them.
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"] == {
        "large": "no card with 40 GiB free",
        "a": small,
        "b": small,
        "c": small,
        "broken": small,
        "bare": "no gpupack words on the node",
        "other": "gpupack words of another unit on the node",
        "silent": "the node's kubelet has no gpupack device plugin at the moment",
        "foreign": "corrupt gpupack words on the node",
        "unknown": "node not known to the gpupack scheduler yet",
    }
    assert answer["Error"] == ""


def test_unknown_nodes_do_not_disturb_others(world: World) -> None:
    names = ["unknown", "a", "b", "c", "unknown-too"]
    assert world.filter(pod_object("p", 9), names)["NodeNames"] == ["b"]
    assert world.prioritize(pod_object("p", 8), names) == {
        "b": 10,
        "a": 9,
        "c": 0,
        "unknown": 0,
        "unknown-too": 0,
    }


def test_a_shortlist_by_rank() -> None:
    world = World(shortlist=2)
    for index in range(5):
        world.node(f"n{index}", (16,), (index,))
    assert world.filter(pod_object("p", 8))["NodeNames"] == ["n0", "n1"]
    assert world.filter(pod_object("p", 13))["NodeNames"] == ["n0", "n1"]
    everything = Extender(world.state, world.policies, 0)
    answer = json.loads(everything.filter(world.body(pod_object("p")), 0).answer)
    assert answer["NodeNames"] == [f"n{index}" for index in range(5)]


def test_a_pod_with_preferences_gets_every_node_that_fits() -> None:
    world = World(shortlist=1)
    for index in range(3):
        world.node(f"n{index}", (16,), (index * 5,))
    spread = {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}
    assert world.filter(pod_object("p", 8, spec=spread))["NodeNames"] == ["n0", "n1"]


def test_a_pod_s_preferences_are_not_outvoted_unless_it_names_a_policy() -> None:
    world = World(shortlist=1)
    for index in range(3):
        world.node(f"n{index}", (16,), (index,))
    prefers = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    the_pod = pod_object("p", 8, spec={"affinity": prefers})
    names = world.filter(the_pod)["NodeNames"]
    assert world.prioritize(the_pod, names) == {"n0": 0, "n1": 0, "n2": 0}
    the_pod["metadata"]["annotations"] = {"gpupack.io/node-policy": "least-requested"}
    assert world.filter(the_pod)["NodeNames"] == ["n0"]
    assert world.prioritize(the_pod, names) == {"n0": 10, "n1": 9, "n2": 8}


def test_a_nominated_node_is_not_cut_off() -> None:
    world = World(shortlist=1)
    for index in range(3):
        world.node(f"n{index}", (16,), (index * 5,))
    for nominated, expected in (("n1", ["n0", "n1"]), ("n0", ["n0"]), ("n2", ["n0"]), ("gone", ["n0"])):
        the_pod = pod_object("p", 8, status={"nominatedNodeName": nominated})
        assert world.filter(the_pod)["NodeNames"] == expected


def test_whole_nodes_in_whole_nodes_out(world: World) -> None:
    items = [node_object("a"), node_object("b"), node_object("c")]
    body = json.dumps({"Pod": pod_object("p", 9), "Nodes": {"items": items}, "NodeNames": None}).encode()
    answer = check(json.loads(world.extender.filter(body, 0).answer))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [node_object("b")]
    scores = json.loads(world.extender.prioritize(body, 0))
    assert {each["Host"]: each["Score"] for each in scores} == {"a": 0, "b": 10, "c": 0}
    body = json.dumps({"Pod": pod_object("p", 17), "Nodes": {"items": items}, "NodeNames": None}).encode()
    answer = check(json.loads(world.extender.filter(body, 0).answer))
    assert answer["Nodes"]["items"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b", "c"}


def test_no_nodes_no_answer(world: World) -> None:
    assert world.filter(pod_object("p", 8), [])["NodeNames"] == []
    assert world.prioritize(pod_object("p", 8), []) == {}
    body = json.dumps({"Pod": pod_object("p", 8), "Nodes": {}}).encode()
    assert json.loads(world.extender.filter(body, 0).answer)["Nodes"]["items"] == []


def test_a_pod_that_does_not_ask_passes_everywhere(world: World) -> None:
    plain = pod_object("p", containers=[{"name": "c"}])
    assert world.filter(plain)["NodeNames"] == ["a", "b", "c"]
    assert world.prioritize(plain) == {"a": 0, "b": 0, "c": 0}
    zero = pod_object("p", 0)
    assert world.filter(zero)["NodeNames"] == ["a", "b", "c"]
    assert world.filter(plain, ["x", "a"])["NodeNames"] == ["x", "a"]


def test_a_bad_annotation_is_every_node_s_reason(world: World) -> None:
    the_pod = pod_object("p", 8, annotations={"gpupack.io/cards": "-1"})
    answer = world.filter(the_pod)
    reasons = set(answer["FailedAndUnresolvableNodes"].values())
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b", "c"}
    assert len(reasons) == 1
    assert 'gpupack.io/cards is "-1"' in reasons.pop()
    assert world.prioritize(the_pod) == {"a": 0, "b": 0, "c": 0}
    assert world.filter(the_pod, [])["FailedAndUnresolvableNodes"] == {}


def test_the_answer_does_not_change_while_nothing_changes(world: World) -> None:
    the_pod = pod_object("p", 17)
    first = world.extender.filter(world.body(the_pod), 0)
    world.node("a", (16, 16), (9, 8))
    assert world.extender.filter(world.body(the_pod), 1) == first


def test_a_stale_cache_is_an_error_in_words(world: World) -> None:
    answer = world.filter(pod_object("p", 8), stale="not heard for long")
    assert answer["Error"] == "not heard for long"
    assert answer["NodeNames"] is None
    assert world.prioritize(pod_object("p", 8), stale="not heard for long") == {"a": 0, "b": 0, "c": 0}
    assert world.filter(pod_object("p", containers=[]), stale="x")["Error"] == ""


def test_cards_and_selectors_count(world: World) -> None:
    world.node("d", (16, 16), (8, 8), models=("Tesla T4", "Tesla T4"))
    two = {"gpupack.io/cards": "2"}
    assert world.filter(pod_object("p", 20, annotations=two))["NodeNames"] == ["b"]
    assert world.filter(pod_object("p", 8, annotations={"gpupack.io/gpu-model": "*t4"}))["NodeNames"] == ["d"]
    assert world.filter(pod_object("p", 8, annotations={"gpupack.io/gpu-uuid": uuid("b", 1)}))[
        "NodeNames"
    ] == ["b"]
    answer = world.filter(pod_object("p", 34, annotations=two))
    assert answer["FailedAndUnresolvableNodes"]["a"] == "no 2 healthy cards of 17 GiB or more"
    answer = world.filter(pod_object("p", 32, annotations=two))
    assert answer["FailedAndUnresolvableNodes"]["a"] == "no 2 cards with 16 GiB free each"
    answer = world.filter(pod_object("p", 8, annotations={"gpupack.io/gpu-model": "none"}))
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {
        "no card of the cluster that the pod's gpu-model and gpu-uuid admit"
    }


def test_several_containers_are_placed_in_any_way_there_is(world: World) -> None:
    """Least-used alone gives `x` the card that only `y` can have, where `x` is 12 and `y` 13."""
    for sizes in ((8, 12), (12, 13), (13, 12)):
        the_pod = pod_object("p", containers=[container("x", sizes[0]), container("y", sizes[1])])
        assert world.filter(the_pod)["NodeNames"] == ["b"]
        assert world.prioritize(the_pod, ["b"]) == {"b": 10}
    the_pod = pod_object("p", containers=[container("x", 13), container("y", 13)])
    answer = world.filter(the_pod)
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {"no cards with 13 GiB + 13 GiB free"}


def test_prioritize_ranks_densely(world: World) -> None:
    for index in range(12):
        world.node(f"n{index:02d}", (16, 16), (index, 0))
    scores = world.prioritize(pod_object("p", 4))
    assert scores["n00"] == 10
    assert sorted(scores.values(), reverse=True)[:11] == list(range(10, -1, -1))
    assert scores["c"] == 0


def test_prioritize_follows_the_pod_s_own_policy() -> None:
    world = World()
    world.node("a", (16, 16), (0, 0), cpu="1")
    world.node("b", (16, 16), (8, 8), cpu="1")
    assert world.prioritize(pod_object("p", 1)) == {"a": 10, "b": 9}
    assert world.prioritize(pod_object("p", 1, annotations={"gpupack.io/node-policy": "balanced"})) == {
        "a": 9,
        "b": 10,
    }


def test_a_pod_that_starts_keeps_none_of_another_shape_off_that_asks_for_as_much(world: World) -> None:
    world.state.apply_pod(pod("q", 8, node="b", version=50, annotations={"gpupack.io/gpu-model": "*"}), 0)
    assert world.filter(pod_object("p", 8))["NodeNames"] == ["a", "b"]
    assert world.prioritize(pod_object("p", 8)) == {"a": 10, "b": 9, "c": 0}


def test_what_was_answered_is_remembered_until_the_pod_is_bound(world: World) -> None:
    world.filter(pod_object("p", 8))
    offer = world.offers.get("uid-p")
    nodes = world.state.nodes
    assert offer is not None
    assert dict(offer.versions) == {name: int(nodes.version[nodes.rows[name]]) for name in ("b", "a")}
    assert offer.is_current(nodes, ["a", "b"])
    assert not offer.is_current(nodes, ["a", "c"])
    assert not offer.is_current(nodes, ["a", "gone"])
    world.state.apply_pod(pod("p", 8, node="a", version=60), 0)
    assert world.offers.get("uid-p") is None


def test_a_whole_cluster_is_not_remembered_for_a_pod() -> None:
    world = World(shortlist=0)
    for index in range(MAX_NODES + 1):
        world.node(f"n{index:03d}", (16,))
    names = sorted(world.state.nodes.rows)
    assert len(world.filter(pod_object("p", 8), names)["NodeNames"]) == MAX_NODES + 1
    assert world.offers.get("uid-p") is None
    world.filter(pod_object("p", 8), names[1:])
    assert world.offers.get("uid-p") is not None


def test_prioritize_repeats_filter_s_order_while_nothing_changes(world: World) -> None:
    assert world.filter(pod_object("p", 4))["NodeNames"] == ["b", "a"]
    offer = world.offers.get("uid-p")
    assert offer is not None
    # An order of its own shows that it is the remembered one.
    world.offers["uid-p"] = FilterResult(offer.policy, offer.epoch, dict(reversed(offer.versions.items())))
    assert world.prioritize(pod_object("p", 4), ["b", "a"]) == {"a": 10, "b": 9}
    assert world.prioritize(pod_object("p", 4), ["b"]) == {"b": 10}
    assert world.prioritize(pod_object("p", 4), ["c", "b", "a"]) == {"b": 10, "a": 9, "c": 0}
    world.node("a", (16, 16), (7, 8))
    assert world.prioritize(pod_object("p", 4), ["b", "a"]) == {"b": 10, "a": 9}
    world.state.delete_node("a", "99", 0)
    assert world.prioritize(pod_object("p", 4), ["b", "a"]) == {"b": 10, "a": 0}


def test_the_same_names_in_another_order(world: World) -> None:
    for names in (["c", "b", "a"], ["b", "a", "c"], ["c", "b", "a"], ["a", "b"], ["b", "c"], ["c"], ["a"]):
        expected = [name for name in ("b", "a") if name in names]
        assert world.filter(pod_object("p", 8), names)["NodeNames"] == expected
    world.state.delete_node("b", "99", 0)
    assert world.filter(pod_object("p", 8), ["c", "b", "a"])["NodeNames"] == ["a"]


def test_long_lists_are_read_as_arrays(world: World) -> None:
    unknown = [f"unknown-{index:04d}" for index in range(400)]
    for names in ([*unknown, "b", "a"], ["a", *unknown, "b"], ["a", "b", *unknown], ["a", *unknown, "b"]):
        body = world.body(pod_object("p", 8), names)
        assert len(body) > 6000
        assert world.filter(pod_object("p", 8), names)["NodeNames"] == ["b", "a"]
        assert world.filter(pod_object("p", 9), names)["NodeNames"] == ["b"]
        scores = world.prioritize(pod_object("p", 8), names)
        assert (scores["b"], scores["a"], len(scores)) == (10, 9, 402)
        answer = world.filter(pod_object("p", 16), [*unknown, "a"])
        failed = answer["FailedAndUnresolvableNodes"]
        assert failed.pop("a") == "no card with 16 GiB free"
        assert set(failed) == set(unknown)
    world.state.delete_node("b", "99", 0)
    assert world.filter(pod_object("p", 8), ["a", *unknown, "b"])["NodeNames"] == ["a"]


def test_a_long_list_after_rubbish_is_rubbish(world: World) -> None:
    names = [f"unknown-{index:04d}" for index in range(400)]
    body = world.body(pod_object("p", 8), names)
    world.extender.filter(body, 0)
    for bad in (body.replace(b'{"Pod":', b'{"Pod":]', 1), body.replace(b'"Pod"', b'"Pot"', 1)):
        with pytest.raises(ProtocolError):
            world.extender.filter(bad, 0)
    odd = world.body(pod_object("p", 8), [*names, 'quo"te'])
    assert 'quo"te' in json.loads(world.extender.filter(odd, 0).answer)["FailedAndUnresolvableNodes"]


def test_names_that_need_escapes() -> None:
    world = World()
    for name in ('quo"te', "ünï", "n"):
        world.node(name, (16,), inventory=False)
    names = ['quo"te', "ünï", "n", "back\\slash"]
    assert set(world.filter(pod_object("p", 8), names)["NodeNames"]) == set(names[:3])
    assert world.prioritize(pod_object("p", 8), names)["back\\slash"] == 0
    assert set(world.filter(pod_object("p", 17), names)["FailedAndUnresolvableNodes"]) == set(names)


def test_any_layout_of_the_call_is_read(world: World) -> None:
    the_pod = pod_object("p", 9)
    # Text that looks like the field, in a place where it is none.
    tricky = pod_object("p", 9, annotations={"note": '"NodeNames":["a"]}'})
    for call in (
        {"NodeNames": ["a", "b"], "Pod": the_pod, "More": 1},
        {"Pod": the_pod, "NodeNames": ["a", "b"], "Nodes": None},
        {"NodeNames": ["a", "b"], "Pod": tricky},
        {"Pod": tricky, "Nodes": {"items": [node_object("a")]}, "NodeNames": ["a", "b"]},
    ):
        for separators in ((",", ":"), (", ", ": ")):
            body = json.dumps(call, separators=separators).encode()
            assert json.loads(world.extender.filter(body, 0).answer)["NodeNames"] == ["b"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "ExtenderArgs is not JSON"),
        (b"rubbish", 400, "ExtenderArgs is not JSON"),
        (b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":["a"]}', 400, "ExtenderArgs is not JSON"),
        (b'{"Pod":{},"NodeNames":["a"]', 400, "ExtenderArgs is not JSON"),
        (b'{"Pod":{},"NodeNames":["a",]}', 400, "ExtenderArgs is not JSON"),
        (b"[]", 422, "ExtenderArgs of another shape: Expected `object`"),
        (b"{}", 422, "ExtenderArgs without Pod"),
        (b'{"NodeNames":["a"]}', 422, "ExtenderArgs without Pod"),
        (b'{"Nodes":null,"NodeNames":["a"]}', 422, "ExtenderArgs without Pod"),
        (b'{"Pod":{}}', 422, "without NodeNames and Nodes"),
        (b'{"Pod":{},"NodeNames":[1]}', 422, "of another shape: Expected `str`"),
        (b'{"Pod":{"spec":3},"NodeNames":["a"]}', 422, "of another shape: Expected `object`"),
        (b'{"Pod":{},"Nodes":{"items":[3]}}', 422, "Nodes.items of another shape"),
    ],
)
def test_rubbish_is_told_in_one_line(world: World, body: bytes, status: int, message: str) -> None:
    for verb in (world.extender.filter, world.extender.prioritize):
        with pytest.raises(ProtocolError) as caught:
            verb(body, 0)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.status == status


def test_the_queue_has_asked_the_policy_for_a_pod_that_it_placed() -> None:
    world = World(policy="weighted-balance")
    names = ["n1", "n2"]
    for name in names:
        world.node(name, (16,))
    asked: list[int] = []
    policy = world.policies.get_policy(PodRequest((ContainerRequest("main", 8, "main"),)))
    policy.score = lambda _view, _ask, rows: asked.append(len(rows)) or np.full(len(rows), np.inf)  # type: ignore[func-returns-value]
    plan = {"gpupack.io/planned": uuid("n1", 0)}
    assert world.filter(pod_object("p", 8, annotations=plan), ["n1"])["NodeNames"] == ["n1"]
    assert world.filter(pod_object("p", 17, annotations=plan), ["n1"])["NodeNames"] == []
    assert world.filter(pod_object("p", 8, annotations=plan), names)["NodeNames"] == ["n1"]
    assert asked == []
    assert world.filter(pod_object("p", 8), ["n1"])["NodeNames"] == []
    assert asked == [1]
    world.node("n1", (16,), used=(16,))
    passed = world.filter(pod_object("p", 8, annotations=plan), names)["NodeNames"]
    assert passed == ["n2"], "not held back again where its first node has filled up"


def test_a_pod_goes_where_the_queue_had_it_in_mind_while_it_fits_there() -> None:
    """Elsewhere it would take room that the queue keeps for others: large pods would starve."""
    world = World(policy="best-fit")
    world.node("n1", (16,))
    world.node("n2", (16,), used=(8,))
    names = ["n1", "n2"]
    plan = {"gpupack.io/planned": uuid("n1", 0)}
    assert world.filter(pod_object("p", 8, annotations=plan), names)["NodeNames"] == ["n1"]
    gone = {"gpupack.io/planned": uuid("n3", 0)}
    both = sorted(world.filter(pod_object("p", 8), names)["NodeNames"])
    assert sorted(world.filter(pod_object("p", 8, annotations=gone), names)["NodeNames"]) == both
    world.node("n1", (16,), used=(16,))
    assert world.filter(pod_object("p", 8, annotations=plan), names)["NodeNames"] == ["n2"]
    prefers = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}
    world.node("n1", (16,))
    wish = pod_object("p", 8, annotations=plan, spec=prefers)
    assert sorted(world.filter(wish, names)["NodeNames"]) == names, "its own preferences count"


def test_a_requeued_pod_is_placed_nowhere(world: World) -> None:
    """The queue took its release back; one that is bound is what it is."""
    requeued = pod_object("p", 8, annotations={"gpupack.io/requeued": "true"})
    answer = world.filter(requeued)
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {}, "preemption would help nobody"
    why = "it was requeued: it waits in its queue again"
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys("abc", why)
    assert read_pod(pod("p", 8, annotations={"gpupack.io/requeued": "true"}), world.state.resource).is_gated
    bound = read_pod(pod("p", 8, node="a", annotations={"gpupack.io/requeued": "true"}), world.state.resource)
    assert not bound.is_gated
