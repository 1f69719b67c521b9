"""Requests read from pods, and the one line that each mistake gets."""

import pytest

from allocator.errors import RequestError
from allocator.names import COMPUTE_RESOURCE, POD_CARD_POLICY, POD_CARDS, POD_CONTAINERS, POD_GPU_MODEL
from allocator.policies import CARD_POLICIES
from allocator.request import (
    MAX_UNITS,
    ContainerRequest,
    Demand,
    PodRequest,
    parse_admitted,
    parse_pod,
)
from allocator.selector import Selector
from tests.other_policies import offered

GIB = "gpupack.io/gpu-memory-gib"
PREFIX = "gpupack.io/"


def container(name, limit=None, request=None, **fields):
    """Make a container as the API shows it; `request` defaults to the limit, as Kubernetes does it."""
    request = limit if request is None else request
    resources = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    if limit is not None:
        resources["limits"][GIB] = limit
    if request is not None:
        resources["requests"][GIB] = request
    return {"name": name, "resources": resources, **fields}


def sidecar(name, limit):
    return container(name, limit, restartPolicy="Always")


def parse(containers, init=(), **annotations):
    keyed = {PREFIX + name.replace("_", "-"): value for name, value in annotations.items()}
    return parse_pod(keyed, list(init), list(containers), GIB)


@pytest.mark.parametrize(
    ("init", "mains", "asking"),
    [
        ([], [container("main", "8")], [("main", 8, "main")]),
        ([], [container("main", 8)], [("main", 8, "main")]),
        ([], [container("main", "1k")], [("main", 1000, "main")]),
        (
            [],
            [container("a", "3"), container("quiet"), container("b", "5")],
            [("a", 3, "main"), ("b", 5, "main")],
        ),
        ([], [container("zero", "0"), container("b", "5")], [("b", 5, "main")]),
        (
            [container("prepare", "6"), sidecar("proxy", "1"), container("quiet")],
            [container("main", "4")],
            [("prepare", 6, "init"), ("proxy", 1, "sidecar"), ("main", 4, "main")],
        ),
        ([container("i", "2", restartPolicy="Never")], [], [("i", 2, "init")]),
        ([], [container("top", str(MAX_UNITS))], [("top", MAX_UNITS, "main")]),
    ],
)
def test_containers_that_ask(init, mains, asking):
    assert parse(mains, init) == PodRequest(tuple(ContainerRequest(*fields) for fields in asking))


@pytest.mark.parametrize(
    "containers",
    [
        [],
        [container("a")],
        [container("a", "0")],
        [{"name": "bare"}],
        [{"name": "nulls", "resources": None}],
        [{"name": "nulls", "resources": {"limits": None, "requests": None}}],
        [
            {
                "name": "other",
                "resources": {"limits": {"gpupack.io/gpu-memory-512mib": "4", "nvidia.com/gpu": "1"}},
            }
        ],
    ],
)
def test_pods_that_do_not_ask(containers):
    assert parse(containers, cards="rubbish") is None


def with_compute(made, percent):
    for amounts in made["resources"].values():
        amounts[COMPUTE_RESOURCE] = percent
    return made


def test_compute_is_percent_of_each_card():
    mains = [
        with_compute(container("a", "4"), "30"),
        container("b", "4"),
        with_compute(container("c", "2"), 0),
    ]
    request = parse(mains, cards="2")
    assert request.containers == (
        ContainerRequest("a", 4, "main", 30),
        ContainerRequest("b", 4, "main"),
        ContainerRequest("c", 2, "main"),
    )
    assert [demand.need for demand in request.demands] == [(2, 2, 30), (2, 2, 0), (1, 2, 0)]
    assert request.charge_compute([["x", "y"], ["y", "z"], ["x", "z"]]) == {"x": 30, "y": 30}
    assert parse([container("m", "8")]).charge_compute([["x"]]) == {}


@pytest.mark.parametrize(
    ("init", "containers", "compute"),
    [([container("i", "9")], None, 80), ([container("i", "9")], "same-card", 80), ([], "same-card", 60)],
)
def test_compute_of_containers_on_the_same_cards_is_that_of_the_peak(init, containers, compute):
    init = [with_compute(each, "80") for each in init]
    mains = [with_compute(container(name, "4"), "30") for name in "ab"]
    request = parse_pod({POD_CONTAINERS: containers} if containers else {}, init, mains, GIB)
    assert [demand.compute for demand in request.demands] == [compute]


def test_compute_beside_percent_of_a_card():
    percent = {"gpupack.io/gpu-percent": "50", COMPUTE_RESOURCE: "20"}
    request = parse([{"name": "m", "resources": {"limits": percent}}])
    assert (request.percent, request.containers[0].compute) == (True, 20)


def test_compute_that_an_admitted_pod_cannot_ask_for_is_none():
    """The kubelet gave the pod its memory, whatever it says of compute."""
    mains = [with_compute(container("m", "8"), "300")]
    request, said = parse_admitted({POD_CARDS: "2"}, [], mains, GIB)
    assert (request.cards, request.effective_units, request.asks_compute) == (2, 8, False)
    assert COMPUTE_RESOURCE in str(said)


def test_a_limit_alone_counts_as_request_too():
    assert parse([{"name": "m", "resources": {"limits": {GIB: "8"}}}]).effective_units == 8


def test_annotations():
    request = parse(
        [container("m", "8")],
        cards="2",
        node_policy="best-fit",
        card_policy="most-used",
        gpu_model="*H100*,!*PCIe*",
        gpu_uuid="!GPU-dead",
    )
    assert request == PodRequest(
        (ContainerRequest("m", 8, "main"),),
        cards=2,
        selector=Selector(("*h100*",), ("*pcie*",), (), ("GPU-dead",)),
        node_policy="best-fit",
        card_policy="most-used",
    )


def test_defaults():
    request = parse([container("m", "8")])
    assert (request.cards, request.node_policy, request.card_policy) == (1, None, None)
    assert request.selector.admits_all


@pytest.mark.parametrize("units", ["1", "64"])
def test_one_card_takes_any_request(units):
    assert parse([container("m", units)], [container("i", "3")], cards="1").cards == 1


def test_node_policies_are_the_scheduler_s_to_judge():
    # A node that knows fewer policies than the scheduler must still read the other annotations.
    request = parse([container("m", "8")], cards="2", node_policy="mine")
    assert (request.node_policy, request.cards) == ("mine", 2)


def test_card_policies_are_those_registered():
    with offered(CARD_POLICIES, own=lambda _: CARD_POLICIES.make("most-used")):
        assert parse([container("m", "8")], card_policy="own").card_policy == "own"
    with pytest.raises(RequestError, match=f'card-policy is "own"; allowed: {CARD_POLICIES.allowed}$'):
        parse([container("m", "8")], card_policy="own")


@pytest.mark.parametrize(
    ("annotations", "cards", "problem"),
    [
        ({POD_CARDS: "2"}, 2, None),
        ({POD_CARDS: "2", POD_CARD_POLICY: "mine"}, 2, POD_CARD_POLICY),
        ({POD_CARDS: "3", POD_CARD_POLICY: "mine"}, 1, POD_CARDS),
        ({POD_CARDS: "2", POD_CARD_POLICY: "mine", POD_GPU_MODEL: ""}, 1, POD_CARD_POLICY),
    ],
)
def test_a_pod_that_a_kubelet_has_keeps_its_cards_without_a_policy_that_is_not_known(
    annotations, cards, problem
):
    request, said = parse_admitted(annotations, [], [container("m", "8")], GIB)
    assert (request.cards, request.effective_units, request.card_policy) == (cards, 8, None)
    assert (said is None) if problem is None else str(said).startswith(f"annotation {problem} is ")
    assert parse_admitted(annotations, [], [container("m", "8Gi")], GIB)[0] is None


LIMITS = f"allowed: a whole number of units from 0 to {MAX_UNITS}, without a suffix such as Gi"


def check_mistake(message, containers, init=(), **annotations):
    for _attempt in range(2):
        with pytest.raises(RequestError) as caught:
            parse(containers, init, **annotations)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("16Gi", '"16Gi"'),
        ("1.5", '"1.5"'),
        ("-1", '"-1"'),
        ("8 GB", '"8 GB"'),
        ("", '""'),
        (True, "True"),
        pytest.param("x" * 500, f'"{"x" * 63}...', id="long"),
        (MAX_UNITS + 1, f"{MAX_UNITS + 1}"),
    ],
)
def test_a_limit_is_a_whole_number_of_units(limit, said):
    check_mistake(f'container "m" has limit {GIB}: {said}; {LIMITS}', [container("m", limit)])


@pytest.mark.parametrize(
    ("containers", "init", "message"),
    [
        pytest.param(
            [with_compute(container("m", "4"), "101")],
            [],
            f'has limit {COMPUTE_RESOURCE}: "101"; allowed: a whole number of percent from 0 to 100, '
            "without a suffix such as Gi",
            id="more than all compute",
        ),
        pytest.param(
            [container("n", "4"), with_compute(container("m", "0"), "30")],
            [],
            f"asks for {COMPUTE_RESOURCE}: 30 alone; allowed: beside {GIB} or gpupack.io/gpu-percent",
            id="compute without memory",
        ),
        ([container("m", "8", "soup")], [], f'has request {GIB}: "soup"; {LIMITS}'),
        (
            [container("m", "8", "4")],
            [],
            f'requests {GIB}: "4" with limit "8"; allowed: a request equal to the limit',
        ),
        (
            [container("m", None, "4")],
            [],
            f'requests {GIB}: "4" with no limit; allowed: a request equal to the limit',
        ),
        pytest.param(
            [container("b", "x")], [container("m", "y")], f'has limit {GIB}: "y"; {LIMITS}', id="first"
        ),
    ],
)
def test_mistakes_of_a_container(containers, init, message):
    check_mistake(f'container "m" {message}', containers, init)


@pytest.mark.parametrize(
    ("annotations", "limits", "message"),
    [
        ({"cards": "2"}, "9", 'cards is "2", container "0" asks for 9 units; {multiple}'),
        ({"cards": "4"}, "85", 'cards is "4", container "1" asks for 5 units; {multiple}'),
        ({"card_policy": "best\nfit"}, "8", 'card-policy is "best\\nfit"; allowed: {policies}'),
        (
            {"gpu_model": "a,,b"},
            "8",
            (
                'gpu-model is "a,,b"; allowed: a comma list of non-empty patterns, * for any text, '
                "one leading ! to exclude"
            ),
        ),
        (
            {"cards": "0", "card_policy": "random"},
            "8",
            'cards is "0"; allowed: a whole number from 1 to 64',
        ),
    ],
    ids=["indivisible", "second indivisible", "card policy", "model", "the first annotation"],
)
def test_mistakes_of_annotations(annotations, limits, message):
    allowed = {
        "multiple": "allowed: a multiple of the number of cards",
        "policies": CARD_POLICIES.allowed,
    }
    containers = [container(str(number), limit) for number, limit in enumerate(limits)]
    check_mistake(f"annotation gpupack.io/{message.format(**allowed)}", containers, **annotations)


def test_an_init_container_has_one_card():
    check_mistake(
        'annotation gpupack.io/cards is "2"; allowed: 1 where an init container, here "i", asks for '
        "GPU memory and is not a sidecar",
        [container("m", "8")],
        [sidecar("s", "2"), container("i", "4")],
        cards="2",
    )


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "65", "99", "100", "2.0", "1e1", "two", " 2", "2 ", "02", "+2", "٢"]
)
def test_card_counts_refused(text):
    with pytest.raises(RequestError, match=r"allowed: a whole number from 1 to 64$"):
        parse([container("m", "64")], cards=text)


@pytest.mark.parametrize("cards", [1, 2, 8, 64])
def test_card_counts_allowed(cards):
    assert parse([container("m", "64")], cards=str(cards)).demands == (Demand(("m",), 64 // cards, cards),)


def pod(*containers, cards=1):
    return PodRequest(tuple(ContainerRequest(*fields) for fields in containers), cards)


# Kubernetes: the larger of every init container with the sidecars before it, and mains with all sidecars.
@pytest.mark.parametrize(
    ("request_", "units"),
    [
        (pod(("m", 4, "main")), 4),
        (pod(("m", 4, "main"), ("n", 3, "main")), 7),
        (pod(("i", 6, "init"), ("m", 4, "main")), 6),
        (pod(("i", 6, "init"), ("j", 9, "init"), ("m", 4, "main")), 9),
        (pod(("i", 6, "init"), ("m", 4, "main"), ("n", 4, "main")), 8),
        (pod(("s", 2, "sidecar"), ("m", 4, "main")), 6),
        (pod(("s", 2, "sidecar"), ("i", 5, "init"), ("m", 4, "main")), 7),
        (pod(("i", 5, "init"), ("s", 2, "sidecar"), ("m", 4, "main")), 6),
        (pod(("s", 2, "sidecar"), ("i", 5, "init"), ("t", 3, "sidecar"), ("m", 1, "main")), 7),
        (pod(("s", 2, "sidecar"), ("i", 5, "init"), ("t", 3, "sidecar"), ("m", 9, "main")), 14),
    ],
)
def test_effective_units(request_, units):
    assert request_.effective_units == units


def test_demands_of_separate_containers():
    request = pod(("s", 2, "sidecar"), ("a", 4, "main"), ("b", 6, "main"), cards=2)
    assert not request.shared
    assert request.demands == (Demand(("s",), 1, 2), Demand(("a",), 2, 2), Demand(("b",), 3, 2))


def test_one_demand_where_an_init_container_asks():
    request = pod(("i", 5, "init"), ("s", 2, "sidecar"), ("m", 4, "main"))
    assert request.shared
    assert request.demands == (Demand(("i", "s", "m"), 6, 1),)
