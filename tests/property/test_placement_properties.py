"""Placement: never over a card, never a card out of play, and the policy's order against a plain sort."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.ids import device_id, is_card_uuid, parse_device_id
from allocator.place import place
from allocator.policy import choose
from allocator.records import (
    Holds,
    charge,
    dump_allocation,
    dump_assigned,
    dump_holds,
    load_allocation,
    load_assigned,
    load_holds,
)
from allocator.request import MAX_UNITS, ContainerRequest, PodRequest, parse_pod
from allocator.selector import Selector
from tests.placements import fits

GIB = "gpupack.io/gpu-memory-gib"
NUMA = st.none() | st.integers(0, 2)
POLICIES = st.sampled_from(["least-used", "most-used"])


@st.composite
def nodes(draw, numa=NUMA):
    return [
        Card(
            index,
            f"GPU-{index}",
            draw(st.sampled_from(["A100", "L40S"])),
            draw(st.integers(0, 20)),
            draw(st.integers(0, 22)),
            healthy=draw(st.integers(0, 9)) > 0,
            is_closed=draw(st.integers(0, 9)) == 0,
            numa=draw(numa),
        )
        for index in range(draw(st.integers(0, 8)))
    ]


@st.composite
def pods(draw):
    """Any request that `parse_pod` can return."""
    cards = draw(st.integers(1, 3))
    kinds = ["sidecar", "main"] if cards > 1 else ["init", "sidecar", "main"]
    drawn = sorted(
        draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)), key=lambda kind: kind == "main"
    )
    containers = tuple(
        ContainerRequest(f"c{i}", cards * draw(st.integers(1, 6)), kind) for i, kind in enumerate(drawn)
    )
    selector = draw(
        st.sampled_from([Selector(), Selector(models=("a100",)), Selector(excluded_uuids=("*0",))])
    )
    return PodRequest(
        containers, cards, selector, None, draw(st.none() | POLICIES), mixed_models=draw(st.booleans())
    )


@given(nodes(numa=st.none()), st.integers(1, 12), st.integers(1, 4))
def test_choice_is_the_head_of_a_plain_sort(cards, units, count):
    fitting = [
        i for i, card in enumerate(cards)
        if card.healthy and not card.is_closed and card.size_units - card.used_units >= units
    ]  # fmt: skip
    for policy, sign in (("least-used", 1), ("most-used", -1)):
        order = sorted(fitting, key=lambda i: (sign * cards[i].used_units, i))
        expected = tuple(order[:count]) if len(order) >= count else None
        assert choose(cards, units, count, policy) == expected


@given(nodes(), st.integers(1, 12), st.integers(1, 4), POLICIES, st.sets(st.integers(0, 2)))
def test_preferences_never_outrank_the_policy(cards, units, count, policy, near):
    free = choose(cards, units, count, policy)
    preferring = choose(cards, units, count, policy, near=near)
    if free is None:
        assert preferring is None
    else:
        assert len(set(preferring)) == count
        assert [cards[i].used_units for i in preferring] == [cards[i].used_units for i in free]


@given(nodes(), pods(), POLICIES)
def test_a_placement_fits_and_answers_the_request(cards, request, policy):
    placement = place(cards, request, policy)
    if placement is None:
        return
    for position, units in placement.charge.items():
        assert 0 < units <= cards[position].free_units
        assert request.selector.admits(cards[position])
    assert [name for name, _ in placement.containers] == [c.name for c in request.containers]
    by_uuid = {
        name: tuple((cards[position].uuid, units) for position, units in shares)
        for name, shares in placement.containers
    }
    assert charge(request, by_uuid) == {cards[i].uuid: units for i, units in placement.charge.items()}
    assert load_assigned(dump_assigned(by_uuid)) == by_uuid
    assert load_allocation(dump_allocation("uid", by_uuid)).containers == by_uuid


@given(nodes(), pods(), POLICIES)
def test_one_container_is_placed_whenever_enough_cards_fit(cards, request, policy):
    demand = request.demands[0]
    if len(request.demands) > 1:
        return
    fitting = [c for c in cards if c.free_units >= demand.per_card and request.selector.admits(c)]
    alike = Counter("" if request.mixed_models else card.model for card in fitting)
    assert (place(cards, request, policy) is not None) == (max(alike.values(), default=0) >= demand.cards)


@st.composite
def crowded(draw):
    """A few cards, and a pod of several containers that hardly fits on them."""
    sizes = draw(st.lists(st.sampled_from([4, 5, 10, 12]), min_size=1, max_size=4))
    cards = [Card(i, f"GPU-{i}", "A100", size, draw(st.integers(0, size // 2)), numa=draw(NUMA))
             for i, size in enumerate(sizes)]  # fmt: skip
    count, percent = draw(st.integers(1, 2)), draw(st.booleans())
    units = draw(st.lists(st.integers(1, 100 if percent else 9), min_size=2, max_size=5 - count))
    containers = tuple(ContainerRequest(f"c{i}", count * each, "main") for i, each in enumerate(units))
    return cards, PodRequest(containers, count, percent=percent)


@given(crowded(), POLICIES | st.just("fragmentation"))
def test_several_containers_are_placed_whenever_there_is_a_way(drawn, policy):
    cards, request = drawn
    needs = [
        ([demand.units_on(card.size_units) for card in cards], demand.cards, demand.compute)
        for demand in request.demands
    ]
    placement = place(cards, request, policy)
    assert (placement is not None) == fits([card.free_units for card in cards], needs)
    if placement is None:
        return
    left = [card.free_units - placement.charge.get(at, 0) for at, card in enumerate(cards)]
    assert min(left) >= 0
    for (_, shares), (units, count, _) in zip(placement.containers, needs, strict=True):
        assert len({at for at, _ in shares}) == count
        assert all(given == units[at] for at, given in shares)


@given(pods())
def test_parsing_reads_back_what_a_pod_writes(request):
    def spec(kinds):
        return [
            {
                "name": c.name,
                "restartPolicy": "Always" if c.kind == "sidecar" else None,
                "resources": {"limits": {GIB: str(c.units)}, "requests": {GIB: str(c.units)}},
            }
            for c in request.containers
            if c.kind in kinds
        ]

    annotations = {"gpupack.io/cards": str(request.cards)}
    if request.card_policy is not None:
        annotations["gpupack.io/card-policy"] = request.card_policy
    if request.mixed_models:
        annotations["gpupack.io/mixed-models"] = "true"
    parsed = parse_pod(annotations, spec({"init", "sidecar"}), spec({"main"}), GIB)
    assert parsed.containers == request.containers
    assert parsed.demands == request.demands
    assert parsed.card_policy == request.card_policy
    assert parsed.mixed_models == request.mixed_models


@given(pods())
def test_peak_covers_every_phase(request):
    running = 0
    phases = []
    for container in request.containers:
        phases.append(running + container.units)
        if container.kind != "init":
            running += container.units
    assert request.effective_units == max(phases)


@given(
    st.dictionaries(
        st.sampled_from(["cards", "node-policy", "card-policy", "gpu-model", "gpu-uuid"]),
        st.text(max_size=90),
    ),
    st.text(max_size=90) | st.integers(),
)
def test_any_pod_is_read_or_refused_in_one_stable_line(annotations, limit):
    keyed = {f"gpupack.io/{name}": value for name, value in annotations.items()}
    containers = [{"name": "main", "resources": {"limits": {GIB: limit}}}]
    messages = set()
    for _attempt in range(2):
        try:
            request = parse_pod(keyed, [], containers, GIB)
        except RequestError as error:
            messages.add(str(error))
        else:
            assert request is None or 0 < request.effective_units <= MAX_UNITS
    assert len(messages) <= 1
    for message in messages:
        assert "\n" not in message
        assert len(message) < 320


@given(st.text("abAB*", max_size=8), st.text("abAB", max_size=8))
def test_globs_against_plain_recursion(pattern, text):
    def matches(p, t):
        if not p:
            return not t
        if p[0] == "*":
            return any(matches(p[1:], t[i:]) for i in range(len(t) + 1))
        return bool(t) and p[0] == t[0] and matches(p[1:], t[1:])

    if pattern:
        assert Selector(uuids=(pattern,)).admits_uuid(text) == matches(pattern, text)
        folded = Selector.parse(pattern, None)
        assert folded.admits_model(text) == matches(pattern.lower(), text.lower())


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,50}", fullmatch=True), st.integers(0, 10**6))
def test_device_ids_round_trip(uuid, slot):
    assert is_card_uuid(uuid)
    assert parse_device_id(device_id(uuid, slot)) == (uuid, slot)


@given(st.integers(0, 2**64), st.frozensets(st.text(min_size=1, max_size=8)))
def test_holds_round_trip(seen, uids):
    assert load_holds(dump_holds(Holds(seen, uids))) == Holds(seen, uids)


@given(st.text(max_size=60))
def test_rubbish_annotations_are_refused(text):
    for load in (load_assigned, load_allocation):
        with pytest.raises(RequestError):
            load(f"<{text}")
