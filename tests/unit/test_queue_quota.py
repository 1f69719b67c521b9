"""Quotas inside a cohort: what is one's own, lent, borrowed and kept."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.queue.quota import Account, Cohort, Quota, cohorts_of


def cohort(**quotas: Quota) -> Cohort:
    return Cohort({name: Account(quota) for name, quota in quotas.items()})


def test_a_tenant_without_quota_has_no_limit() -> None:
    assert cohort(a=Quota()).allows("a", 10**9)


def test_what_others_do_not_use_can_be_borrowed_up_to_the_limits() -> None:
    both = cohort(a=Quota(10), b=Quota(10, lending_limit=4))
    assert both.allows("a", 14)
    assert not both.allows("a", 15)
    assert cohort(a=Quota(10, borrowing_limit=2), b=Quota(10)).allows("a", 12)
    assert not cohort(a=Quota(10, borrowing_limit=2), b=Quota(10)).allows("a", 13)


def test_a_lender_lacks_what_others_have_borrowed() -> None:
    both = cohort(a=Quota(10), b=Quota(10))
    both.use("a", 16)
    assert both.allows("b", 4)
    assert not both.allows("b", 5)
    assert both.lacks("b", 6) == 2
    assert both.lacks("b", 11) == 0, "that is more than its own"
    assert both.borrowers("b") == ["a"]
    assert (both.lent("b"), both.accounts["a"].borrowed) == (6, 6)


def test_tenants_lend_within_the_root_of_their_tree_only() -> None:
    roots = cohorts_of([("a", "x"), ("b", "y"), ("c", "z"), ("d", ""), ("e", "")], {"x": "all", "y": "all"})
    assert roots["a"] == roots["b"]
    assert len(set(roots.values())) == 4


LIMITS = st.one_of(st.none(), st.integers(0, 20))


@given(
    st.lists(st.tuples(st.integers(0, 20), LIMITS, LIMITS), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-10, 10)), max_size=60),
)
def test_what_is_allowed_never_exceeds_what_there_is(
    quotas: list[tuple[int, int | None, int | None]], uses: list[tuple[int, int]]
) -> None:
    """All together have no more than their quotas, and nobody more than own plus limit and what is lent."""
    names = [f"t{number}" for number in range(len(quotas))]
    both = Cohort({name: Account(Quota(*quota)) for name, quota in zip(names, quotas, strict=True)})
    for who, units in uses:
        name = names[who % len(names)]
        account = both.accounts[name]
        if units < 0:
            both.use(name, max(units, -account.used))
        elif both.allows(name, units):
            both.use(name, units)
        for other in both.accounts.values():
            nominal = other.quota.nominal or 0
            if other.quota.borrowing_limit is not None:
                assert other.used <= nominal + other.quota.borrowing_limit
        assert sum(a.used for a in both.accounts.values()) <= sum(q[0] for q in quotas)
        for name in names:
            account = both.accounts[name]
            own = account.quota.lending_limit
            if own is not None and account.used < (account.quota.nominal or 0) - own:
                assert both.allows(name, 1), "what is not lent is always there"
