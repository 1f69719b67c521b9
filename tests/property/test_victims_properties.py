"""Victims on one node, whatever runs there: never too many, never the wrong ones, none cheaper."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from allocator.names import COMPUTE_RESOURCE, POD_GANG, POD_GANG_SIZE
from allocator.place import place
from scheduler_plugin.cache.disruption_budgets import keeps_budgets
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S
from scheduler_plugin.preemption.node_victims import compute_cost, view_node
from scheduler_plugin.preemption.victims import EvictionRules, plan_on_node
from tests.cluster_builders import container
from tests.examples import examples
from tests.preemption_world import EPOCH_S, PreemptionWorld

PRIORITY = 5
SIZE = 8
CARDS = 2
APPS = ("", "web", "db")
LEAVES = {"": "", "soon": "2027-01-15T08:00:30Z", "overdue": "2027-01-15T07:00:00Z"}

running = st.tuples(
    st.integers(0, CARDS - 1),
    st.integers(1, 5),
    st.sampled_from((1, 2, 3, PRIORITY - 1, PRIORITY)),
    st.sampled_from(APPS),
    st.sampled_from(("", "", "", "", "", "soon", "overdue")),
    st.sampled_from((0, 0, 30, 60)),
)


@examples(300)
@given(
    pods=st.lists(running, min_size=3, max_size=9),
    allowed=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    shape=st.sampled_from(("one card", "two cards", "two containers")),
    units=st.integers(4, SIZE),
    spared=st.sets(st.integers(0, 6), max_size=1),
    compute=st.sampled_from((0, 0, 40, 80)),
    gang=st.just(set()) | st.sets(st.integers(0, 6), min_size=2, max_size=3),
)
def test_victims(
    pods: list[tuple[int, int, int, str, str, int]],
    allowed: tuple[int, int],
    shape: str,
    units: int,
    spared: set[int],
    compute: int,
    gang: set[int],
) -> None:
    world = PreemptionWorld()
    world.node("n", (SIZE,) * CARDS)
    for number, (card, size, priority, app, leaves, percent) in enumerate(pods):
        if world.nodes["n"][1][card] + size <= SIZE:
            labels = {"app": app} if app else {}
            in_gang = {POD_GANG: "g", POD_GANG_SIZE: "2"} if number in gang else {}
            own = [container(units=size, resources={COMPUTE_RESOURCE: str(percent)})]
            world.run(
                *("n", f"v{number}", card, size, priority),
                labels=labels,
                annotations=in_gang,
                deleted=LEAVES[leaves],
                containers=own,
            )
    world.publish("n")
    world.budget("web", allowed[0])
    world.budget("db", allowed[1])
    two = {"annotations": {"gpupack.io/cards": "2"}} if shape == "two cards" else {}
    wanted = units * 2 if two else units
    asks = [container("x", wanted, resources={COMPUTE_RESOURCE: str(compute)})]
    several = {"containers": [*asks, container("y", 3)] if shape == "two containers" else asks}
    world.create("needy", wanted, spec={"priority": PRIORITY}, **two, **several)
    pod = world.state.pods["uid-needy"]
    assert pod.request is not None
    query = world.policies.make_request(world.state.nodes, pod.request, pod.amounts)
    eligible = EvictionRules(world.budgets, {f"uid-v{number}" for number in spared}, EPOCH_S)
    found = plan_on_node(world.state, "n", query, pod, eligible)

    room = view_node(world.state, "n", query)
    assert room is not None
    others = [world.state.pods[uid] for uid in world.nodes["n"][2]]
    leaving = [
        each.uid for each in others if each.grace_ends_at and each.grace_ends_at + OVERDUE_AFTER_S > EPOCH_S
    ]
    may_go = [
        each
        for each in others
        if room.get_priority(each) < PRIORITY
        and each.grace_ends_at is None
        and each.uid not in eligible.spared
    ]

    def fits(victims: object) -> bool:
        return room.fits_without(query, [*leaving, *(victim.uid for victim in victims)])  # type: ignore[union-attr, attr-defined]

    if found is not None:
        assert all(victim in may_go for victim in found.victims)
        assert keeps_budgets(world.budgets, found.victims)
        assert fits(found.victims)
        for victim in found.victims:
            assert not fits([each for each in found.victims if each is not victim])
        after = place(
            room.get_cards_without([*leaving, *(each.uid for each in found.victims)]),
            pod.request,
            query.policy_request.card_policy,
        )
        assert after is not None
        assert found.reservation.amounts == after.amounts
    subsets = chain.from_iterable(combinations(may_go, count) for count in range(len(may_go) + 1))
    sufficient = [subset for subset in subsets if fits(subset)]
    allowed_ones = [subset for subset in sufficient if keeps_budgets(world.budgets, subset)]
    assert found is None or allowed_ones
    if sufficient and len(allowed_ones) == len(sufficient):
        # Where no budget is in the way there is a plan, and of one demand no cheaper one. Whom of a gang each
        # of two cards loses is found card by card.
        assert found is not None
        if shape == "one card" or (shape == "two cards" and not gang):
            costs = [room.compute_cost(subset)[:2] for subset in sufficient]
            assert compute_cost(found.lost)[:2] == min(costs)
