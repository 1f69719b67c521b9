"""why, fit and advise against trying everything out, on small clusters."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from allocator.cards import Card
from allocator.names import DEFAULT_CARD_POLICY
from gpupack.diagnose import explain_pod
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.planning import TOGETHER
from gpupack.whatif import FitQuestion, answer_fit
from gpupack.whatif.fit import build_request, count_fit_on_cards
from tests.ask_world import MEMORY, Node, Pod, World, by_extender, can_take, most_pods, offered, seats
from tests.examples import examples

MODELS = ("NVIDIA A100", "NVIDIA L40S")
COMPUTE = st.sampled_from((0, 0, 20, 30, 50, 80))


@st.composite
def worlds(draw, most_nodes=3, most_cards=3, most_pods=6, plain=False):
    nodes = []
    for number in range(draw(st.integers(1, most_nodes))):
        size = draw(st.sampled_from((8, 12)))
        cards = draw(st.integers(1, most_cards))
        nodes.append(
            Node(
                f"n{number}",
                (size,) * cards,
                tuple(draw(st.sampled_from((0,) if plain else (0, 0, 0, 2, size))) for _ in range(cards)),
                model=draw(st.sampled_from(MODELS)),
                taints=() if plain else draw(st.sampled_from(((), (), ("gpu",)))),
                labels=draw(st.sampled_from(((), (("zone", "a"),)))),
                cordoned=False if plain else draw(st.sampled_from((False, False, False, True))),
                cpu=draw(st.sampled_from((4, 40))),
                publishes_compute=draw(st.sampled_from((True, True, True, False))),
            )
        )
    world = World(tuple(nodes))
    for number in range(draw(st.integers(3 if plain else 0, most_pods))):
        node = draw(st.sampled_from(nodes))
        count = draw(st.sampled_from((1, 1, 1, 2)))
        each = draw(st.integers(1, 4 if plain else 6))
        pod = Pod(
            f"p{number}",
            each * count,
            held=plain or draw(st.booleans()),
            owned=plain or draw(st.booleans()),
            count=count,
            cpu=draw(st.integers(0, 1)),
            model=draw(st.sampled_from(("", "", node.model))),
            compute=draw(COMPUTE),
        )
        choices = seats(world, node, pod)
        if choices:
            cards = draw(st.sampled_from(choices))
            world = world.but(replace(pod, node=node.name, cards=cards))
    return world


@st.composite
def mixed(draw, **most):
    """Plain worlds with taints, and pods that are starting: the words do not show them yet."""
    world = draw(worlds(plain=True, **most))
    nodes = tuple(replace(node, taints=draw(st.sampled_from(((), (), ("gpu",))))) for node in world.nodes)
    pods = tuple(
        replace(pod, held=draw(st.booleans()), tolerates=draw(st.sampled_from(((), ("gpu",)))))
        for pod in world.pods
    )
    return replace(world, nodes=nodes, pods=pods)


@st.composite
def waiting(draw):
    count = draw(st.sampled_from((1, 1, 2)))
    return Pod(
        "w",
        draw(st.integers(1, 13)) * count,
        count=count,
        model=draw(st.sampled_from(("", "", "", *MODELS))),
        cpu=draw(st.sampled_from((0, 1, 4))),
        tolerates=draw(st.sampled_from(((), ("gpu",)))),
        selector=draw(st.sampled_from(((), (), (("zone", "a"),)))),
        compute=draw(COMPUTE),
    )


@examples(50)
@given(worlds(), waiting())
def test_why_names_the_nodes_that_take_a_pod_and_every_other_one_in_a_group(world, pod):
    asked = world.but(pod)

    answer = explain_pod(asked.cluster, "default", "w", ways=False)

    expected = can_take(world, pod)
    assert set(answer.fits) == expected
    assert sum(group.count for group in answer.nodes) == len(world.nodes) - len(expected)
    assert answer.state == ("fits" if expected else "pending")
    passed = {name for name in by_extender(world, pod) if offered(world.node(name), pod, world)}
    assert passed == expected


@examples(50)
@given(worlds(), waiting())
def test_each_way_out_lets_the_pod_fit(world, pod):
    answer = explain_pod(world.but(pod).cluster, "default", "w")
    for way in answer.ways_out:
        then, other = _taken(world, pod, way)
        assert way.node in can_take(then, other), way
        assert way.node in by_extender(then, other), way
        if way.kind == "smaller-request":
            larger = replace(pod, units=way.units + pod.count)
            assert larger.units == pod.units or not can_take(world, larger)
        if way.fewest:
            assert not _fewer_ends(world, pod, len(way.pods) - 1)


def _taken(world, pod, way):
    """The cluster and the pod once a way out has been taken."""
    other = {
        "smaller-request": lambda: replace(pod, units=way.units),
        "less-compute": lambda: replace(pod, compute=way.compute),
        "more-cards": lambda: replace(pod, count=way.cards),
        "other-model": lambda: replace(pod, model=""),
        "toleration": lambda: replace(pod, tolerates=tuple(p.split(":")[0] for p in way.taint.split(", "))),
        "node-selector": lambda: replace(pod, selector=()),
    }
    if way.kind in other:
        return world, other[way.kind]()
    if way.kind == "uncordon":
        opened = tuple(
            replace(node, cordoned=node.cordoned and node.name != way.node) for node in world.nodes
        )
        return replace(world, nodes=opened), pod
    if way.kind == "pods-end":
        return world.without(*(each.pod for each in way.pods)), pod
    assert way.kind == "moves"
    return _moved(world, way.moves, together=TOGETHER in way.text), pod


def _fewer_ends(world, pod, most):
    """Whether the end of so many pods of a node would do, where nobody's processes fill a card."""
    for node in world.nodes:
        here = [each.name for each in world.pods if each.node == node.name]
        if any(units >= size for units, size in zip(node.foreign, node.sizes, strict=True)):
            continue
        for count in range(most + 1):
            for group in itertools.combinations(here, count):
                if node.name in can_take(world.without(*group), pod):
                    return True
    return False


def _moved(world, moves, *, together):
    """The world after moves, of which each must be possible once those before it are done.

    Pods that trade places are last: they are ended together, and only where the answer says so.
    """
    moving = {move.pod: world.pod(move.pod) for move in moves}
    for at, move in enumerate(moves):
        pod = moving[move.pod]
        assert (pod.node, pod.cards) == (move.source.node, move.source.cards)
        if pod in world.pods and not _goes(world.without(pod.name), pod, move):
            assert together, move
            together = False
            world = world.without(*(each.pod for each in moves[at:]))
        world = world.without(pod.name)
        assert _goes(world, pod, move), move
        assert move.target.node in by_extender(world, pod), move
        # It runs there before the next one is moved.
        world = world.but(replace(pod, node=move.target.node, cards=move.target.cards, held=True))
    assert not together
    return world


def _goes(world, pod, move):
    goes = world.node(move.target.node)
    return offered(goes, pod, world) and move.target.cards in seats(world, goes, pod)


@examples(50)
@given(worlds(), st.integers(1, 13), st.sampled_from((1, 1, 2, 3)), st.sampled_from(("", *MODELS)), COMPUTE)
def test_fit_counts_what_can_be_placed(world, each, cards, model, compute):
    pod = Pod("f", each * cards, count=cards, model=model, tolerates=("gpu",), compute=compute)

    answer = answer_fit(world.cluster, FitQuestion(each * cards, cards, model, compute=compute))

    request = build_request(FitQuestion(each * cards, cards, compute=compute), MEMORY)
    by_node = {found.node: found.pods for found in answer.nodes}
    tainted = {node.name for node in world.nodes if node.taints}
    assert answer.tolerating_pods == sum(by_node.get(name, 0) for name in tainted)
    assert answer.pods == sum(by_node.values()) - answer.tolerating_pods
    largest = {False: 0, True: 0}  # by whether the pod tolerates taints
    for node in world.nodes:
        able = not node.cordoned and model in {"", node.model}
        free, free_compute = world.free(node), world.free_compute(node)
        room = sum(node.sizes) - sum(each.units for each in world.pods if each.node == node.name)
        most = min(most_pods(world, node, each, cards, compute) if able else 0, room // pod.units)
        if cards > 1 and able:
            # The card policy's choices decide: fewer may fit than if every choice was made well.
            left = [
                Card(at, "", "", size, size - units, compute_used=100 - percent)
                for at, (size, units, percent) in enumerate(zip(node.sizes, free, free_compute, strict=True))
            ]
            most = count_fit_on_cards(left, request, DEFAULT_CARD_POLICY, most)
        assert by_node.get(node.name, 0) == most
        able_units = [
            units
            for units, percent in zip(free, free_compute, strict=True)
            if able and (not compute or percent >= compute)
        ]
        kth = sorted(able_units, reverse=True)[cards - 1 : cards]
        for tolerates in (True,) if node.name in tainted else (False, True):
            largest[tolerates] = max(
                [largest[tolerates], *(min(units, room // cards) * cards for units in kth)]
            )
    assert (answer.largest_units, answer.largest_tolerating_units) == (largest[False], largest[True])


SMALL = {"most_nodes": 2, "most_cards": 3, "most_pods": 5}


@examples(60)
@given(
    worlds(plain=True, **SMALL) | mixed(**SMALL),
    st.sampled_from(((6, 0), (7, 0), (8, 0), (12, 0), (2, 60), (6, 40), (4, 100))),
    st.integers(1, 3),
)
def test_the_moves_let_the_pods_start_and_no_shorter_list_does(world, asked, pods):
    units, compute = asked
    advice = advise_start(world.cluster, FitQuestion(units, compute=compute), pods)

    assert advice.before.pods == _count(world, asked)
    then = _moved(world, advice.moves, together=TOGETHER in advice.notes)
    assert advice.after.pods == _count(then, asked)
    assert advice.gained == advice.after.pods - advice.before.pods
    wanted = max(advice.before.pods, min(pods, advice.after.pods))
    shortest = _shortest(world, asked, wanted)
    assert advice.at_least <= shortest <= len(advice.moves)
    if all(pod.held for pod in world.pods):
        # In so small a cluster the search comes to its end. Where pods are starting, it does not follow all.
        assert len(advice.moves) == shortest
        if advice.after.pods < pods:
            assert _shortest(world, asked, advice.after.pods + 1) is None


def _count(world, asked):
    units, compute = asked
    return sum(
        min(
            most_pods(world, node, units, 1, compute),
            (sum(node.sizes) - sum(each.units for each in world.pods if each.node == node.name)) // units,
        )
        for node in world.nodes
        if not (node.cordoned or node.taints)
    )


def _movable(world):
    found = []
    for pod in world.pods:
        node = world.node(pod.node)
        filled = any(node.foreign[card] >= node.sizes[card] for card in pod.cards)
        if pod.owned and not filled:
            found.append(pod)
    return found


def _shortest(world, asked, wanted):
    """The fewest pods that end and start elsewhere so that so many fit; None: no number of them does."""
    movable = _movable(world)
    for number in range(len(movable) + 1):
        for group in itertools.combinations(movable, number):
            left = world.without(*(pod.name for pod in group))
            if _count(left, asked) >= wanted and _seated(left, group, asked, wanted):
                return number
    return None


def _seated(world, group, asked, wanted):
    if not group:
        return _count(world, asked) >= wanted
    pod, *rest = group
    for node in world.nodes:
        if not offered(node, pod, world):
            continue
        for cards in seats(world, node, pod):
            then = world.but(replace(pod, node=node.name, cards=cards, held=True))
            if _seated(then, rest, asked, wanted):
                return True
    return False


@examples(40)
@given(worlds(most_nodes=2, most_cards=2, most_pods=5, plain=True))
def test_the_moves_empty_a_node_or_a_card(world):
    for what in ("n0", "n0/0"):
        advice = advise_empty(world.cluster, what)
        then = _moved(world, advice.moves, together=TOGETHER in advice.notes)
        left = [pod.name for pod in then.pods if pod.node == "n0" and (what == "n0" or 0 in pod.cards)]
        assert advice.after.pods == len(left)
        if advice.moves:
            assert not left
