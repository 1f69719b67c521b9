"""Quotas inside a cohort: what is one's own, lent, borrowed and kept."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.queue.config.quota import Cohort, Quota, QuotaState, find_cohorts
from tests.queue_world import TWO_QUEUES, UNSCHEDULABLE, QueueWorld


def cohort(**quotas: Quota) -> Cohort:
    return Cohort({name: QuotaState(quota) for name, quota in quotas.items()})


def test_a_tenant_without_quota_has_no_limit() -> None:
    assert cohort(a=Quota()).allows_units("a", 10**9)


def test_what_others_do_not_use_can_be_borrowed_up_to_the_limits() -> None:
    both = cohort(a=Quota(10), b=Quota(10, lending_limit=4))
    assert both.allows_units("a", 14)
    assert not both.allows_units("a", 15)
    assert cohort(a=Quota(10, borrowing_limit=2), b=Quota(10)).allows_units("a", 12)
    assert not cohort(a=Quota(10, borrowing_limit=2), b=Quota(10)).allows_units("a", 13)


def test_a_lender_lacks_what_others_have_borrowed() -> None:
    both = cohort(a=Quota(10), b=Quota(10))
    both.add_units("a", 16)
    assert both.allows_units("b", 4)
    assert not both.allows_units("b", 5)
    assert both.compute_missing("b", 6) == 2
    assert both.compute_missing("b", 11) == 0, "that is more than its own"
    assert both.list_borrowers("b") == ["a"]
    assert (both.compute_lent()["b"], both.accounts["a"].borrowed) == (6, 6)


@given(st.lists(st.integers(0, 20), min_size=2, max_size=5), st.integers(0, 60))
def test_as_much_is_lent_as_is_borrowed(quotas: list[int], used: int) -> None:
    """What lenders have lent adds up, also where each of three has lent a third of one unit."""
    names = "abcde"[: len(quotas)]
    shared = cohort(**dict(zip(names, map(Quota, quotas), strict=True)))
    shared.add_units("a", min(used, sum(quotas)))
    lent = shared.compute_lent()
    assert sum(lent.values()) == shared.accounts["a"].borrowed
    assert all(0 <= units <= shared.accounts[name].idle for name, units in lent.items())


def test_tenants_lend_within_the_root_of_their_tree_only() -> None:
    roots = find_cohorts([("a", "x"), ("b", "y"), ("c", "z"), ("d", ""), ("e", "")], {"x": "all", "y": "all"})
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
    both = Cohort({name: QuotaState(Quota(*quota)) for name, quota in zip(names, quotas, strict=True)})
    for who, units in uses:
        name = names[who % len(names)]
        account = both.accounts[name]
        if units < 0:
            both.add_units(name, max(units, -account.used))
        elif both.allows_units(name, units):
            both.add_units(name, units)
        for other in both.accounts.values():
            nominal = other.quota.nominal or 0
            if other.quota.borrowing_limit is not None:
                assert other.used <= nominal + other.quota.borrowing_limit
        assert sum(a.used for a in both.accounts.values()) <= sum(q[0] for q in quotas)
        for name in names:
            account = both.accounts[name]
            own = account.quota.lending_limit
            if own is not None and account.used < (account.quota.nominal or 0) - own:
                assert both.allows_units(name, 1), "what is not lent is always there"


def test_idle_quota_is_lent_and_no_more() -> None:
    """a has 16 of its own and 16 that b does not use; the lending limit of b keeps 4."""
    world = QueueWorld(TWO_QUEUES.replace("}]", ", lendingLimit: 12}]"), n1=(16, 16))
    for i in range(10):
        world.pod(f"p{i}", 4, queue="a")
    releases = world.decide()
    assert len(releases) == 7
    assert [release.borrowed for release in releases] == [0, 0, 0, 0, 4, 4, 4]


def test_a_borrowing_limit_holds() -> None:
    """a may borrow 4 of the 16 that are idle."""
    world = QueueWorld(TWO_QUEUES.replace("}, {", ", borrowingLimit: 4}, {"), n1=(16, 16))
    for i in range(10):
        world.pod(f"p{i}", 4, queue="a")
    assert len(world.admitted()) == 5


def test_the_lender_gets_its_quota_back_as_borrowers_end() -> None:
    """Before the borrower gets any more."""
    world = QueueWorld(TWO_QUEUES, n1=(16, 16))
    uids = [world.pod(f"a{i}", 4, queue="a", created=i) for i in range(10)]
    assert len(world.admitted()) == 8
    world.pod("b0", 4, queue="b", created=99)
    world.bind(*uids[:8])
    assert world.admitted() == []
    world.delete(uids[0])
    assert world.admitted() == ["b0"]


def test_quota_is_never_exceeded_by_pods_that_are_bound_late() -> None:
    """kube-scheduler may bind what it once refused at any time."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 32}]", n1=(16,))
    first = world.pod("first", 16)
    world.decide()
    world.change(first, status=UNSCHEDULABLE)
    for units in (15, 14, 13):
        world.pod(f"p{units}", units)
    assert world.admitted() == ["p15"]
    assert world.queue.queues["a"].units == 31
    world.delete("uid-p15")
    world.bind_to(first, "n1")
    assert world.queue.queues["a"].units == 16
