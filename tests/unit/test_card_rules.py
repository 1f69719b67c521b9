"""Cards of one model by default, and where several containers go: read, chosen, said."""

from dataclasses import replace

import numpy as np
import pytest

from allocator.card_rules import CardRules
from allocator.cards import Card
from allocator.errors import RequestError
from allocator.names import POD_CARDS, POD_CONTAINERS, POD_MIXED_MODELS, resource_name
from allocator.place import place
from allocator.records import charge
from allocator.request import ContainerRequest, Demand, PodRequest, parse_pod
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.fit_counts import count_most_pods
from scheduler_plugin.scheduling.placing import place_by_policy, score_nodes
from scheduler_plugin.scheduling.reasons import FilterReason, format_event_text
from tests.cluster_builders import container, in_percent

GIB = resource_name(1024)
MIXED = ("A100", "L40S", "A100", "L40S", "L40S")
POLICIES = ("least-used", "most-used", "fragmentation")


def request(*units: int, **fields: object) -> PodRequest:
    made = tuple(ContainerRequest(f"c{number}", each, "main") for number, each in enumerate(units))
    return PodRequest(made, **fields)  # type: ignore[arg-type]


def computing(*containers: tuple[int, int], cards: int = 1, **fields: object) -> PodRequest:
    """Containers that ask for units of each card, and for compute."""
    made = (
        ContainerRequest(f"c{at}", units * cards, "main", compute)
        for at, (units, compute) in enumerate(containers)
    )
    return PodRequest(tuple(made), cards, **fields)  # type: ignore[arg-type]


def cards(models: tuple[str, ...], free: tuple[int, ...], size: int = 40) -> list[Card]:
    return [
        Card(at, f"GPU-{at}", model, size, size - units)
        for at, (model, units) in enumerate(zip(models, free, strict=True))
    ]


def nodes(*rows: tuple[tuple[str, ...], tuple[int, ...]], size: int = 40) -> NodeArrays:
    made = NodeArrays()
    for number, (models, free) in enumerate(rows):
        row = made.add_node(f"n{number}")
        made.set_cards(
            row,
            [size] * len(free),
            [size - units for units in free],
            uuids=[f"GPU-{number}-{at}" for at in range(len(free))],
            models=models,
        )
    return made


def parse(annotations: dict[str, str], *containers: dict, init: tuple[dict, ...] = ()) -> PodRequest:
    found = parse_pod(annotations, init, containers, GIB)
    assert found is not None
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("free", "count", "models"),
    [
        pytest.param((40, 40, 40, 40, 40), 3, {"L40S"}, id="only one model has three"),
        pytest.param((40, 40, 40, 4, 4), 2, {"A100"}, id="only one model has two free"),
        pytest.param((4, 40, 40, 40, 4), 2, {"L40S"}, id="the best single cards are of two models"),
        pytest.param((40, 40, 4, 4, 4), 2, None, id="two free, of two models"),
    ],
)
def test_cards_of_a_container_are_of_one_model(policy, free, count, models):
    node = cards(MIXED, free)
    asked = request(8 * count, cards=count)
    placement = place(node, asked, policy)
    assert (None if placement is None else {node[at].model for at in placement.charge}) == models
    mixed = place(node, replace(asked, mixed_models=True), policy)
    assert mixed is not None
    assert len(mixed.charge) == count


def test_of_several_models_the_one_whose_cards_cost_least_together_is_taken():
    node = cards(MIXED, (40, 30, 10, 29, 28))
    assert place(node, request(16, cards=2), "least-used").charge == {1: 8, 3: 8}
    assert place(node, request(16, cards=2), "most-used").charge == {0: 8, 2: 8}


def test_cards_whose_model_nobody_knows_are_of_one():
    assert place(cards(("", "", ""), (9, 9, 9)), request(24, cards=3), "least-used") is not None


def test_each_container_has_its_own_model():
    """Two containers with two cards each: A100 and L40S."""
    node = cards(MIXED, (10, 10, 10, 10, 4))
    placement = place(node, request(20, 20, cards=2), "least-used")
    assert {name: {node[at].model for at, _ in shares} for name, shares in placement.containers} in (
        {"c0": {"A100"}, "c1": {"L40S"}},
        {"c0": {"L40S"}, "c1": {"A100"}},
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_where_the_containers_go(policy):
    node = cards(("A100",) * 3, (40, 40, 40))
    together = place(node, request(8, 4, places="same-card"), policy)
    assert sorted(together.charge.values()) == [12]
    assert [units for _, ((_, units),) in together.containers] == [8, 4]
    apart = place(node, request(8, 4, places="apart"), policy)
    assert sorted(apart.charge.values()) == [4, 8]
    assert place(cards(("A100",) * 2, (12, 11)), request(8, 4, places="same-card"), policy).charge == {0: 12}
    assert place(cards(("A100",) * 2, (11, 11)), request(8, 4, places="same-card"), policy) is None
    assert place(cards(("A100",) * 2, (40, 3)), request(8, 4, places="apart"), policy) is None
    # The container that comes first would like the only card that the second can have.
    assert place(cards(("A100",) * 2, (9, 5)), request(4, 8, places="apart"), policy).charge == {0: 8, 1: 4}


def test_containers_on_the_same_cards_share_all_of_them():
    asked = request(16, 8, cards=2, places="same-card")
    assert asked.demands == (Demand(("c0", "c1"), 12, 2),)
    placement = place(cards(("A100",) * 3, (12, 11, 12)), asked, "least-used")
    assert placement.charge == {0: 12, 2: 12}
    assigned = {"c0": (("a", 8), ("b", 8)), "c1": (("a", 4), ("b", 4))}
    assert charge(asked, assigned) == {"a": 12, "b": 12}
    with pytest.raises(RequestError, match="the same 2 cards for all containers"):
        charge(asked, assigned | {"c1": (("a", 4), ("c", 4))})


def test_shares_on_the_same_card_are_rounded_down_each_by_itself():
    """Half of 39 twice is 38: both fit beside a card that has one unit in use."""
    asked = parse({POD_CONTAINERS: "same-card"}, in_percent(50, "a"), in_percent(50, "b"))
    assert asked.demands[0].units_on(39) == 38
    assert place([Card(0, "a", "A100", 39, 1)], asked, "least-used").charge == {0: 38}
    assert charge(asked, {"a": (("x", 19),), "b": (("x", 19),)}, {"x": 39}) == {"x": 38}


@pytest.mark.parametrize(
    ("annotations", "containers", "init", "text"),
    [
        ({POD_MIXED_MODELS: "yes"}, [container("a", 1)], [], 'mixed-models is "yes"; allowed: true or false'),
        (
            {POD_CONTAINERS: "together"},
            [container("a", 1)],
            [],
            'gpupack.io/containers is "together"; allowed: same-card or apart',
        ),
        (
            {POD_CONTAINERS: "apart"},
            [container("a", 1)],
            [container("i", 1)],
            'is "apart"; allowed: same-card where an init container, here "i", asks for GPU memory',
        ),
        (
            {POD_CONTAINERS: "same-card"},
            [in_percent(60, "a"), in_percent(50, "b")],
            [],
            "110 together; allowed: 100 for each of 1 card",
        ),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(annotations, containers, init, text):
    with pytest.raises(RequestError, match=text):
        parse_pod(annotations, init, containers, GIB)


def test_annotations_are_read():
    assert not parse({}, container("a", 2)).rules.same_model
    assert parse({POD_CARDS: "2"}, container("a", 2)).rules == CardRules(same_model=True)
    both = {POD_CARDS: "2", POD_MIXED_MODELS: "true", POD_CONTAINERS: "apart"}
    assert parse(both, container("a", 2), container("b", 2)).rules == CardRules(apart=True)
    assert parse({POD_CONTAINERS: "apart"}, container("a", 2)).rules == CardRules()
    assert parse({POD_MIXED_MODELS: "false", POD_CARDS: "2"}, container("a", 2)).rules.same_model


@pytest.mark.parametrize(
    ("asked", "free", "code"),
    [
        pytest.param(request(16, cards=2), (40, 40, 4, 4, 4), FilterReason.CARD_RULES, id="two models now"),
        pytest.param(request(16, cards=2), (4, 4, 4, 4, 4), FilterReason.NOT_FREE, id="nothing now"),
        pytest.param(request(32, cards=4), (4, 4, 4, 4, 4), FilterReason.CARD_RULES, id="never of one model"),
        pytest.param(request(48, cards=6), (4, 4, 4, 4, 4), FilterReason.TOO_SMALL, id="never at all"),
        pytest.param(request(4, 8, places="apart"), (40, 3, 3, 3, 3), FilterReason.CARD_RULES, id="one card"),
    ],
)
def test_the_reason_says_what_is_in_the_way(asked, free, code):
    made = nodes((MIXED, free))
    query = ClusterPolicies().make_request(made, asked, ONE_POD)
    rows = np.array([0])
    assert not filter_nodes(made, query, rows)[0]
    assert explain_rejections(made, query, rows).tolist() == [code]


def test_the_text_names_the_rule_and_the_annotation():
    two = request(16, cards=2)
    assert format_event_text(FilterReason.CARD_RULES, two.demands, 1024, two.rules) == (
        "no 2 x 8 GiB on cards of one model (gpupack.io/mixed-models: true allows several models)"
    )
    apart = request(8, 4, places="apart")
    assert format_event_text(FilterReason.CARD_RULES, apart.demands, 1024, apart.rules) == (
        "no 8 GiB + 4 GiB on cards of their own, as gpupack.io/containers says"
    )


@pytest.mark.parametrize("node_policy", ["fragmentation", "best-fit", "balanced", "least-requested"])
@pytest.mark.parametrize("card_policy", POLICIES)
@pytest.mark.parametrize(
    "asked",
    [
        request(16, cards=2),
        request(16, 8, cards=2),
        request(4, 8, places="apart"),
        request(16, 16, cards=2, places="apart"),
        request(50, 60, percent=True, places="apart"),
        request(100, cards=2, percent=True),
        computing((4, 50)),
        computing((8, 50), cards=2),
        computing((4, 50), (4, 40), (4, 0)),
        computing((4, 50), (8, 60), places="apart"),
        computing((10, 20), (10, 30), (10, 50), percent=True, places="same-card"),
    ],
    ids=str,
)
def test_every_policy_scores_and_places_what_filter_lets_through(node_policy, card_policy, asked):
    made = nodes(
        (MIXED, (40, 40, 40, 40, 40)),
        (MIXED, (9, 40, 8, 40, 3)),
        (("A100",) * 4, (8, 40, 30, 20)),
        (("A100", "L40S"), (40, 40)),
    )
    for row in range(4):
        count = int(made.cards[row])
        made.set_assumed(row, [0] * count, [0 if at % 2 else 60 for at in range(count)])
    policies = ClusterPolicies(node_policy=node_policy, card_policy_name=card_policy)
    query = policies.make_request(made, asked, ONE_POD)
    rows = np.arange(4, dtype=np.intp)
    rows = rows[filter_nodes(made, query, rows)]
    assert rows.size
    policy = policies.get_policy(asked)
    assert np.isfinite(score_nodes(policy, made, query, rows)).all()
    for row in rows.tolist():
        placement = place_by_policy(policy, made, row, query)
        assert placement is not None
        free = made.compute_free[row].tolist()
        assert all(percent <= free[at] for at, percent in placement.compute.items())
        models = made.model[row].tolist()
        chosen = [[at for at, _ in shares] for _, shares in placement.containers]
        assert all(len({models[at] for at in each}) == 1 for each in chosen)
        if asked.rules.apart:
            assert len(set().union(*chosen)) == sum(map(len, chosen))


def test_pods_that_fit_at_once_are_counted_by_the_rules():
    made = nodes((MIXED, (40, 40, 40, 40, 40)))

    def count(asked: PodRequest, *, emptied: bool = False) -> int:
        query = ClusterPolicies().make_request(made, asked, ONE_POD)
        there = made.as_emptied() if emptied else made
        return int(count_most_pods(there, query, np.array([0]))[0])

    assert count(request(120, cards=3)) == 1
    assert count(request(80, cards=2)) == 2
    assert count(request(120, cards=3), emptied=True) == 1
    assert count(request(160, cards=4), emptied=True) == 0
    assert count(request(160, cards=4, mixed_models=True)) == 1
    assert count(request(40, 40, places="apart")) == 2


def test_pods_that_fit_at_once_are_counted_by_the_compute_of_all_their_containers() -> None:
    """Each container by itself would fit twice on the two cards; together they ask for 180 of 200 percent."""
    made = nodes((("A100", "A100"), (40, 40)))
    query = ClusterPolicies().make_request(made, computing((4, 90), (4, 90)), ONE_POD)
    for there in (made, made.as_emptied()):
        assert count_most_pods(there, query, np.array([0])).tolist() == [1]
