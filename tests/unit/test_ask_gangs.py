"""`gpupack why` of a gang: whether all of its pods fit at once, and what would let all of them start."""

import pytest

from allocator.names import POD_GANG, POD_GANG_SIZE
from gpupack.diagnose.why import explain_pod
from gpupack.whatif import FitQuestion, answer_fit
from gpupack.whatif.fit import count_fit
from gpupack.whatif.gangs import find_gang
from gpupack.whatif.kube_checks import HostRequirements
from tests.ask_world import Node, Pod, World


def member(name, units=30, *, gang="g", size=4, **more):
    return Pod(name, units, policies=((POD_GANG, gang), (POD_GANG_SIZE, str(size))), **more)


def gang(number=4, units=30, **more):
    return tuple(member(f"g{at}", units, size=number, **more) for at in range(number))


def ask(nodes, pods, name="g0"):
    return explain_pod(World(tuple(nodes), tuple(pods)).cluster, "default", name)


END_OF_ONE = (
    "the end of one pod frees the cards for all 2 such pods of its gang on node a: default/other (10 GiB)"
)


def ways(answer):
    return {way.kind: way.text for way in answer.ways_out}


def test_of_a_gang_of_which_three_pods_can_ever_run_nothing_is_promised_for_one():
    """It said that 13 GiB in place of 30 fit, and that the end of one pod frees the cards."""
    nodes = (Node("a", (39, 39)), Node("b", (39, 16)))
    other = Pod("other", 26, "a", (0,))

    answer = ask(nodes, (*gang(), other))

    assert (answer.state, answer.fits) == ("pending", ())
    assert answer.text == (
        "waits: its gang starts together, and 2 of its 4 pods fit at once now; "
        "no more than 3 could even if all other pods ended, as nodes and cards are now"
    )
    assert set(ways(answer)) == {"smaller-request"}
    # Two of 19 GiB share a card of 39.
    assert answer.ways_out[0].units == 19
    assert "fits for all 4 such pods of its gang at once now" in ways(answer)["smaller-request"]


def test_empty_nodes_hold_no_more_of_a_gang_than_their_sum_lets_in():
    """`fit --gang` counted so; why looked at the cards only, as if the second pod had to wait for others."""
    halved = World((Node("a", (39, 39)),), gang(2)).changed(
        a=lambda node: node["status"]["allocatable"].update({"gpupack.io/gpu-memory-gib": "39"})
    )
    assert explain_pod(halved.cluster, "default", "g0").text == (
        "waits: its gang starts together, and 1 of its 2 pods fit at once now; "
        "no more than 1 could even if all other pods ended, as nodes and cards are now"
    )
    assert answer_fit(halved.cluster, FitQuestion(30, gang=2)).pods_on_empty_nodes == 1


def test_a_gang_that_fits_at_once_fits():
    answer = ask((Node("a", (39, 39)), Node("b", (39, 39))), gang())
    assert (answer.state, answer.fits) == ("fits", ("a", "b"))


@pytest.mark.parametrize(
    ("blocker", "kind", "text"),
    [
        (
            Pod("other", 10, "a", (0,), owned=False),
            "pods-end",
            END_OF_ONE,
        ),
        (
            Pod("other", 10, "a", (0,)),
            "moves",
            "one move lets all 2 such pods of its gang start, the first on node a:",
        ),
    ],
    ids=["ends", "moves"],
)
def test_ways_out_are_for_all_of_the_gang(blocker, kind, text):
    nodes = (Node("a", (39, 39)), Node("b", (16,)))
    assert ways(ask(nodes, (*gang(2), blocker)))[kind] == text


def test_no_end_of_one_pod_is_told_where_it_lets_only_a_part_start():
    nodes = (Node("a", (39,)), Node("b", (39,)))
    pods = (Pod("x", 39, "a", (0,)), Pod("y", 39, "b", (0,)))
    assert "pods-end" not in ways(ask(nodes, (*gang(2), *pods)))
    assert "pods-end" in ways(ask(nodes, (*gang(1), *pods)))


@pytest.mark.parametrize(
    ("nodes", "more", "fit"),
    [
        ((Node("a", (39, 39), cpu=5),), {"cpu": 4}, 1),
        ((Node("a", (39, 39), cpu=8),), {"cpu": 4}, 2),
        ((Node("a", (39, 39), taints=("t",)), Node("b", (39,))), {}, 1),
    ],
    ids=["processor", "enough-processor", "taint"],
)
def test_what_a_node_has_besides_cards_counts_for_each_pod(nodes, more, fit):
    answer = ask(nodes, gang(2, **more))
    if fit == 2:
        assert answer.state == "fits"
    else:
        assert f"{fit} of its 2 pods fit at once now" in answer.text
    if "t" in nodes[0].taints:
        assert ways(answer)["toleration"].startswith("node a has the cards for all 2 such pods of its gang")


def test_a_host_port_is_there_once_a_node():
    def with_port(made):
        made["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]

    answer = changed_ask((Node("a", (39, 39)),), gang(2), with_port)
    assert "1 of its 2 pods fit at once now; no more than 1 could" in answer.text


def test_pods_that_want_to_be_apart_are_one_a_node():
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "g"}}}]
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    def apart(made):
        made["spec"]["affinity"] = rule

    pods = gang(2, labels=(("app", "g"),))
    answer = changed_ask((Node("a", (39, 39)),), pods, apart)
    assert "1 of its 2 pods fit at once now; no more than 1 could" in answer.text


def test_a_node_without_the_label_keeps_no_pods_apart():
    """kube-scheduler goes by the label alone; a port of the host is one, whatever labels there are."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "g"}}}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def apart(made):
        made["spec"]["affinity"] = rule

    def port(made):
        made["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]

    def bare(made):
        made["metadata"]["labels"] = {}

    for change, fits in ((apart, True), (port, False)):
        world = World((Node("a", (39, 39)),), tuple(gang(2, labels=(("app", "g"),))))
        cluster = world.changed(a=bare, g0=change, g1=change).cluster
        assert (explain_pod(cluster, "default", "g0").state == "fits") is fits


def changed_ask(nodes, pods, change):
    world = World(tuple(nodes), tuple(pods)).changed(**{pod.name: change for pod in pods})
    return explain_pod(world.cluster, "default", "g0")


def test_who_is_of_the_gang():
    waiting = member("g0")
    pods = (
        waiting,
        member("g1"),
        member("g2", 8),
        member("g3", node="a", cards=(0,)),
        member("h", gang="h"),
        member("far", namespace="other"),
    )
    cluster = World((Node("a", (39, 39)),), pods).cluster
    found = find_gang(cluster, cluster.find_pod("default", "g0"))
    assert (found.size, found.pods, [kind.pods for kind in found.others]) == (4, 2, [1])
    # Pods that are not there yet ask for the same, as far as anybody knows.
    missing = World((Node("a"),), (waiting,)).cluster
    assert find_gang(missing, missing.find_pod("default", "g0")).pods == 4
    for odd in (member("g0", size="many"), member("g0", gang=""), member("g0", size=1)):
        alone = World((Node("a"),), (odd,)).cluster
        assert find_gang(alone, alone.find_pod("default", "g0")) is None


def succeed(pod):
    pod["status"]["phase"] = "Succeeded"


def ask_for_no_cards(pod):
    pod["spec"]["containers"][0]["resources"] = {}


@pytest.mark.parametrize(
    ("pods", "changes", "count"),
    [
        ((*gang(3)[:2], member("g2", size=3, node="a", cards=(0,), held=False)), {"g2": succeed}, 2),
        (
            (*gang(3)[:2], member("g2", size=3, node="a", cards=(0,), held=False, owned=False)),
            {"g2": succeed},
            3,
        ),
        ((*gang(3)[:2], member("g2", size=3)), {"g2": ask_for_no_cards}, 3),
    ],
    ids=["succeeded", "succeeded-in-another-run", "without-cards"],
)
def test_pods_of_a_gang_are_missing_as_for_the_queue(pods, changes, count: int) -> None:
    """Of those that have succeeded others were expected, and one without cards stood for one with some."""
    cluster = World((Node("a", (39, 39)),), pods).changed(**changes).cluster
    assert find_gang(cluster, cluster.find_pod("default", "g0")).pods == count


def test_a_pod_that_is_being_deleted_is_none_of_a_gang():
    def delete(pod):
        pod["metadata"] |= {"deletionTimestamp": "2026-11-01T00:00:00Z", "finalizers": ["a/b"]}

    pods = (*gang(2), member("old", size=2))
    cluster = World((Node("a", (39, 39)),), pods).changed(old=delete).cluster
    assert explain_pod(cluster, "default", "g0").state == "fits"


def with_other_resource(pod):
    pod["spec"]["containers"][0]["resources"]["limits"]["rdma/ib"] = "1"


def with_host_port(pod):
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]


def required(kind):
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    def change(pod):
        pod["spec"]["affinity"] = {kind: terms}

    return change


with_affinity, with_anti_affinity = required("podAffinity"), required("podAntiAffinity")


@pytest.mark.parametrize("more", [with_other_resource, with_host_port, with_anti_affinity])
def test_pods_of_a_gang_that_differ_in_what_they_ask_beside_cards_are_not_alike(more):
    """Those of the one that was asked about counted for all: its gang fitted, and never started."""
    cluster = World((Node("a", (39, 39)),), gang(2)).changed(g1=more).cluster
    found = find_gang(cluster, cluster.find_pod("default", "g0"))
    assert (found.pods, [kind.pods for kind in found.others]) == (1, [1])


@pytest.mark.parametrize(
    ("changes", "labels", "alike"),
    [
        ({"g0": with_affinity, "g1": with_anti_affinity}, ("", ""), 1),
        ({"g0": with_anti_affinity, "g1": with_anti_affinity}, ("index", "index"), 2),
        ({"g0": with_anti_affinity, "g1": with_anti_affinity}, ("app", "app"), 1),
        ({"db": with_anti_affinity}, ("app", "index"), 1),
        ({"db": with_anti_affinity}, ("index", "index"), 2),
    ],
    ids=["near-and-far", "index", "own-terms", "another-pod-s-terms", "nobody-s-label"],
)
def test_labels_tell_pods_of_a_gang_apart_where_somebody_selects_by_them(changes, labels, alike):
    members = [
        member(f"g{at}", size=2, labels=((label, f"{at}"),) if label else ())
        for at, label in enumerate(labels)
    ]
    pods = (*members, Pod("db", 1, "a", (0,)))
    cluster = World((Node("a", (39, 39)),), pods).changed(**changes).cluster
    assert find_gang(cluster, cluster.find_pod("default", "g0")).pods == alike


NO_ROOM = "no room was found for all of its {} pods at once"
NEVER = "; the cards could not hold them even if all other pods ended, as nodes and cards are now"


def test_a_mixed_gang_that_has_room_once_others_have_ended_is_not_said_never_to_have_any():
    pods = (*gang(2)[:1], member("g1", 20, size=2), Pod("other", 20, "a", (0,)))
    assert ask((Node("a", (39, 39)),), pods).text.endswith(NO_ROOM.format(2))
    assert ask((Node("a", (39, 39)),), pods[:2]).state == "fits"


def test_a_mixed_gang_says_which_pods_it_counted():
    answer = ask((Node("a", (39,)),), (*gang(3)[:2], member("g2", 100, size=3)))
    assert "1 of its 2 pods like it fit at once now" in answer.text


@pytest.mark.parametrize(
    ("name", "others", "text", "smaller"),
    [
        (
            "g0",
            (100,),
            (
                "its pod of 100 GiB fits nowhere now; it could not even if all other pods ended, "
                "as nodes and cards are now"
            ),
            None,
        ),
        (
            "g2",
            (100,),
            (
                "its pod like it fits nowhere now; it could not even if all other pods ended, "
                "as nodes and cards are now"
            ),
            9,
        ),
        ("g0", (20,), NO_ROOM.format(3) + NEVER, 19),
        ("g2", (20,), NO_ROOM.format(3) + NEVER, 9),
        ("g0", (9, 9), "", None),
        ("g0", (9, 10), NO_ROOM.format(4) + NEVER, 29),
    ],
    ids=["never", "never-itself", "not-together", "not-the-small-one", "together", "a-unit-short"],
)
def test_pods_of_a_gang_that_ask_for_different_things_have_to_fit_together(name, others, text, smaller):
    """It said that a node takes the one that was asked about, and of the others nothing."""
    size = 2 + len(others)
    pods = [member(f"g{at}", units, size=size) for at, units in enumerate((30, 30, *others))]
    answer = ask((Node("a", (39, 39)),), pods, name)
    if not text:
        assert (answer.state, answer.fits) == ("fits", ("a",))
        return
    assert (answer.state, answer.fits) == ("pending", ())
    assert answer.text == f"waits: its gang starts together, and {text}"
    assert [way.units for way in answer.ways_out if way.kind == "smaller-request"] == (
        [smaller] if smaller else []
    )


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"cpu": 4}, False),
        ({"ports": [{"hostPort": 80}]}, False),
        ({"ports": [{"hostPort": 80}], "first": {"hostIP": "10.0.0.1"}}, False),
        ({"ports": [{"hostPort": 80}], "first": {"protocol": "UDP"}}, True),
        ({"apart": True}, False),
    ],
    ids=["cards", "processor", "port", "port-of-all-addresses", "port-of-another-protocol", "apart"],
)
def test_pods_of_a_gang_that_ask_for_different_things_share_what_else_a_node_has(change, fits):
    def odd(made):
        if "ports" in change:
            more = change.get("first", {}) if made["metadata"]["name"] == "g0" else {}
            made["spec"]["containers"][0]["ports"] = [{**port, **more} for port in change["ports"]]
        if change.get("apart") and made["metadata"]["name"] == "g1":
            terms = [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "g"}}}
            ]
            rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
            made["spec"]["affinity"] = rule

    cpu = change.get("cpu", 0)
    pods = [
        member(f"g{at}", units, size=2, cpu=cpu, labels=(("app", "g"),)) for at, units in enumerate((30, 8))
    ]
    answer = changed_ask((Node("a", (39, 39), cpu=7),), pods, odd)
    assert (answer.state == "fits") is fits, answer.text


def test_what_cannot_be_read_is_alike_only_with_itself():
    bad = Pod("g1", 30, policies=((POD_GANG, "g"), (POD_GANG_SIZE, "2"), ("gpupack.io/cards", "x")))
    cluster = World((Node("a", (39, 39)),), (member("g0", size=2), bad)).cluster
    found = find_gang(cluster, cluster.find_pod("default", "g0"))
    assert (found.pods, found.others) == (1, ())
    assert found.refused.startswith("default/g1 is refused: annotation gpupack.io/cards")
    answer = explain_pod(cluster, "default", "g0")
    assert (answer.state, answer.fits, answer.ways_out) == ("pending", (), ())
    assert "its gang starts together, and pod default/g1 is refused" in answer.text


def test_a_gang_in_the_way_ends_as_a_whole_wherever_its_pods_are() -> None:
    """It named one pod of the gang: the three others would have kept their cards for nothing."""
    nodes = (Node("a", (39,)), Node("b", (39, 39)), Node("c", (39,), cordoned=True))
    train = [
        member(f"t{at}", 20, gang="train", node=node, cards=(card,), owned=False)
        for at, (node, card) in enumerate((("a", 0), ("b", 0), ("b", 1), ("c", 0)))
    ]
    (way,) = [way for way in ask(nodes, (Pod("w", 30), *train), "w").ways_out if way.kind == "pods-end"]
    assert (way.node, [pod.pod for pod in way.pods]) == ("a", ["t0", "t1", "t2", "t3"])
    assert way.text == (
        "the end of 4 pods frees the cards on node a: default/t0 (20 GiB), default/t1 (20 GiB), "
        "default/t2 (20 GiB), default/t3 (20 GiB); a gang ends as a whole"
    )


def test_a_gang_in_the_way_ends_as_a_whole_though_a_node_of_it_was_deleted() -> None:
    """Its pods stay for a while; why ended with a KeyError."""
    train = [
        member(f"t{at}", 20, gang="train", size=2, node=node, cards=(0,), owned=False)
        for at, node in enumerate(("a", "deleted"))
    ]
    (way,) = [
        way
        for way in ask((Node("a", (39,)),), (Pod("w", 30), *train), "w").ways_out
        if way.kind == "pods-end"
    ]
    assert [pod.pod for pod in way.pods] == ["t0", "t1"]


@pytest.mark.parametrize(("alone", "pods"), [(10, 2), (0, 7)], ids=["two others", "a large gang"])
def test_the_fewest_pods_end_counting_all_pods_of_a_gang(alone: int, pods: int) -> None:
    """A card of 39 has one pod of a gang of seven, another one two pods that stand alone, or none."""
    small = (8,) * 6
    nodes = (Node("a", (39, *small)), Node("b", (39,), foreign=(0 if alone else 39,)))
    others = [Pod(f"o{at}", alone, "b", (0,), owned=False) for at in (0, 1) if alone]
    train = [member(f"t{at}", 8, gang="train", size=7, node="a", cards=(at,), owned=False) for at in range(7)]
    answer = ask(nodes, (Pod("w", 39), *train, *others), "w")
    (way,) = [way for way in answer.ways_out if way.kind == "pods-end"]
    assert len(way.pods) == pods
    assert way.fewest is bool(alone)


def by_zone(kind, app):
    """Want to be near, or far from, pods of an app by their zone."""
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return lambda pod: pod["spec"].update(
        affinity={kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    )


@pytest.mark.parametrize(
    ("kind", "app", "size", "told"),
    [
        ("podAffinity", "g", 2, True),
        ("podAffinity", "g", 1, False),
        ("podAntiAffinity", "x", 2, False),
        ("podAntiAffinity", "g", 2, False),
    ],
    ids=["near", "alone", "others", "far"],
)
def test_affinity_within_a_gang_is_a_note(kind: str, app: str, size: int, told: bool) -> None:
    """A gang whose pods must be in one zone fitted in two, and no word was said."""
    pods = gang(size, 16, labels=(("app", "g"),))
    nodes = [Node(name, (16,), labels=(("zone", name),)) for name in "ab"]
    world = World(tuple(nodes), pods).changed(**{pod.name: by_zone(kind, app) for pod in pods})
    answer = explain_pod(world.cluster, "default", "g0")
    assert answer.state == "fits"
    assert any("pod affinity within its gang" in note for note in answer.notes) == told


@pytest.mark.parametrize("units", [(30, 30, 30), (30, 20, 10)], ids=["alike", "different requests"])
def test_pods_that_want_to_be_apart_by_zone_are_one_a_zone(units: tuple[int, ...]) -> None:
    """They counted as one a node: three fitted into two zones."""
    nodes = [Node(f"n{at}", (39, 39), labels=(("zone", zone),)) for at, zone in enumerate("aab")]
    for size, state in ((2, "fits"), (3, "pending")):
        pods = [
            member(f"g{at}", each, size=size, labels=(("app", "g"),)) for at, each in enumerate(units[:size])
        ]
        assert changed_ask(nodes, pods, by_zone("podAntiAffinity", "g")).state == state


def test_fit_counts_pods_that_want_to_be_apart_by_zone_once_a_zone() -> None:
    """A node without the label is in no zone, and takes as many as its cards do."""
    nodes = [Node(f"n{at}", (39, 39), labels=(("zone", zone),)) for at, zone in enumerate("aabb")]
    waiting = Pod("w", 30, labels=(("app", "g"),))
    for more, pods in (((), 2), ((Node("bare", (39, 39)),), 4)):
        cluster = World((*nodes, *more), (waiting,)).changed(w=by_zone("podAntiAffinity", "g")).cluster
        pod = cluster.find_pod("default", "w")
        found = count_fit(cluster, cluster.read_request(pod), HostRequirements.from_pod(pod), gang=9)
        assert (found.pods, found.missing_pods, found.pods_on_empty_nodes) == (pods, 9 - pods, pods)


@pytest.mark.parametrize("size", [1, 2])
def test_the_end_of_a_pod_that_keeps_a_gang_out_of_a_zone_opens_all_nodes_there(size: int) -> None:
    """On the other nodes of the zone it counted as if it stayed."""
    zone = (("zone", "z"),)
    nodes = (Node("a", (16,), labels=zone), Node("b", (16,), labels=zone))
    pods = (*gang(size, 16, labels=(("app", "g"),)), Pod("y", 16, "a", (0,), owned=False))
    cluster = World(nodes, pods).changed(y=by_zone("podAntiAffinity", "g")).cluster
    (way,) = [way for way in explain_pod(cluster, "default", "g0").ways_out if way.kind == "pods-end"]
    assert [pod.pod for pod in way.pods] == ["y"]


def test_a_gang_fits_nowhere_by_the_end_of_the_pods_that_it_wants_to_be_near() -> None:
    """Nodes of a zone that the last pod of its database had left counted as if that were still there."""
    zones = [(("zone", zone),) for zone in "abb"]
    nodes = [
        Node(name, sizes, labels=zone)
        for name, sizes, zone in zip("abc", ((16, 1), (16,), (8,)), zones, strict=True)
    ]
    db = {"labels": (("app", "db"),), "owned": False}
    ends = [
        member("t0", 16, gang="train", node="a", cards=(0,), owned=False),
        member("t1", 8, gang="train", node="c", cards=(0,), **db),
    ]
    pods = (*gang(2, 16), *ends, Pod("db", 1, "a", (1,), **db))
    near = by_zone("podAffinity", "db")
    cluster = World(tuple(nodes), pods).changed(g0=near, g1=near).cluster
    assert "pods-end" not in ways(explain_pod(cluster, "default", "g0"))


@pytest.mark.parametrize("cpu", [0, 4])
def test_the_end_of_a_gang_gives_back_what_its_pods_have_on_all_of_its_nodes(cpu: int) -> None:
    """But on the node that was asked about, sums and processor counted as if the pods stayed."""
    nodes = [Node(name, (16,), cpu=4) for name in "ab"]
    train = [
        member(f"t{at}", 16, gang="train", size=2, node=node, cards=(0,), cpu=cpu, owned=False)
        for at, node in enumerate("ab")
    ]
    answer = ask(nodes, (*gang(2, 16, cpu=1), *train))
    (way,) = [way for way in answer.ways_out if way.kind == "pods-end"]
    assert [pod.pod for pod in way.pods] == ["t0", "t1"]


@pytest.mark.parametrize(("size", "app", "fewest"), [(39, "w", False), (8, "x", True)])
def test_fewest_is_not_claimed_where_a_pod_elsewhere_may_keep_a_node_closed(
    size: int, app: str, fewest: bool
) -> None:
    """The end of the pod whose anti-affinity closes the zone of node b would have done alone."""
    a, b = (("zone", "a"),), (("zone", "b"),)
    nodes = (
        Node("a", (39,), labels=a),
        Node("b", (size,), labels=b),
        Node("c", (8,), labels=b, cordoned=True),
    )
    others = [Pod(f"o{at}", 15, "a", (0,), owned=False) for at in (0, 1)]
    pods = (Pod("w", 30, labels=(("app", "w"),)), *others, Pod("keeper", 8, "c", (0,), owned=False))
    cluster = World(nodes, pods).changed(keeper=by_zone("podAntiAffinity", app)).cluster
    (way,) = [way for way in explain_pod(cluster, "default", "w").ways_out if way.kind == "pods-end"]
    assert ([pod.pod for pod in way.pods], way.fewest) == (["o0", "o1"], fewest)


def test_pods_of_its_own_gang_are_not_ended_for_a_pod() -> None:
    nodes = (Node("a", (39,)),)
    pods = (member("g0", 30, size=2), member("g1", 30, size=2, node="a", cards=(0,), owned=False))
    assert "pods-end" not in ways(ask(nodes, pods))
