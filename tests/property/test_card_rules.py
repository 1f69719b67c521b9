"""Memory, compute, cards of one model, and cards of their own: against trying everything out."""

from hypothesis import given
from hypothesis import strategies as st

from allocator.card_rules import CardRules
from allocator.cards import Card
from allocator.exact import place_exactly
from allocator.place import choose_each
from allocator.policies import CARD_POLICIES
from allocator.selector import ANY_CARD
from tests.examples import examples
from tests.placements import fits

nodes = st.lists(
    st.tuples(
        st.sampled_from(("A100", "L40S", "T4")), st.integers(0, 8), st.integers(0, 8), st.integers(0, 11)
    ),
    min_size=1,
    max_size=6,
).map(
    lambda drawn: [
        Card(at, f"GPU-{at}", model, size, min(size, used), compute_used=10 * tenths)
        for at, (model, size, used, tenths) in enumerate(drawn)
    ]
)
demand_lists = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.sampled_from((0, 0, 10, 30, 50))),
    min_size=1,
    max_size=3,
)
card_rules = st.builds(CardRules, same_model=st.booleans(), apart=st.booleans())


@examples(300)
@given(nodes, demand_lists, card_rules, st.sampled_from(sorted(CARD_POLICIES.names())))
def test_cards_are_found_by_the_rules_wherever_there_are_any(
    cards: list[Card], demands: list[tuple[int, int, int]], rules: CardRules, policy: str
) -> None:
    possible = fits(
        [card.free_units for card in cards],
        [([units] * len(cards), count, compute) for units, count, compute in demands],
        compute_free=[card.compute_free for card in cards],
        models=[card.model for card in cards] if rules.same_model else None,
        apart=rules.apart,
    )
    for chosen in (
        choose_each(cards, demands, policy, ANY_CARD, rules),
        place_exactly(cards, demands, policy, ANY_CARD, rules),
    ):
        assert (chosen is not None) == possible
        if chosen is None:
            continue
        assert rules.allows(cards, chosen)
        left = [card.free_units for card in cards]
        compute_left = [card.compute_free for card in cards]
        for (units, count, compute), positions in zip(demands, chosen, strict=True):
            assert len(set(positions)) == len(positions) == count
            for at in positions:
                left[at] -= units
                compute_left[at] -= compute
                assert not compute or compute_left[at] >= 0
        assert min(left) >= 0
