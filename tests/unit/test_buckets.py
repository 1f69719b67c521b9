import pytest

from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.buckets import Buckets, BucketSearchResult


def index(text, lower=1, width=8, count=6):
    """Buckets of `a12 b16`, ranked by name; keys are letters' code points."""
    buckets = Buckets.make_equal(lower, width, count)
    for item in text.split():
        buckets.insert(ord(item[0]), int(item[1:]), ord(item[0]))
    return buckets


def name(found: BucketSearchResult):
    return None if found.key is None else chr(found.key)


def test_bucket_numbers():
    buckets = Buckets.make_equal(1, 8, 6)
    amounts = (0, 1, 8, 9, 16, 17, 40, 41, 48, 49, 80)
    assert [buckets.bucket_of(a) for a in amounts] == [0, 1, 1, 2, 2, 3, 5, 6, 6, 6, 6]


@pytest.mark.parametrize(
    ("nodes", "amount", "limit", "expected", "largest", "probes"),
    [
        ("a12 b16 c20", 10, 4, "a", "a", (2,)),
        ("a9 b18 c24", 12, 4, "b", "b", (2, 3)),
        ("a30 b27 c45", 10, 4, "b", "b", (2, 3, 4)),
        ("e38 f44 g42", 4, 3, "g", "f", (1, 2, 3, 6)),
        ("a30 z60", 20, 2, "z", "z", (3, 6)),
        ("a3 b9", 20, 4, None, None, (3, 4, 6, 5)),
    ],
)
def test_find(nodes, amount, limit, expected, largest, probes):
    buckets = index(nodes)
    closest = buckets.find(amount, limit, lambda _: True)
    assert (name(closest), closest.probes) == (expected, probes)
    other = buckets.find(amount, limit, lambda _: True, "largest")
    assert (name(other), other.probes) == (largest, probes)


def test_best_fit_serves_what_first_and_worst_fit_cannot():
    buckets = index("a16 b10")
    first = buckets.find(8, 6, lambda _: True)
    assert name(first) == "b"
    buckets.insert(ord("b"), 2, ord("b"))
    assert name(buckets.find(16, 6, lambda _: True)) == "a"


def test_ties_by_rank_also_from_the_top():
    buckets = index("c44 b44 a42")
    assert name(buckets.find(43, 6, lambda _: True)) == "b"
    assert name(buckets.find(4, 1, lambda _: True, "largest")) == "b"
    assert name(buckets.find(4, 1, lambda key: key != ord("b"), "largest")) == "c"
    assert name(buckets.find(4, 1, lambda key: key == ord("a"), "largest")) == "a"


def test_a_bucket_without_candidates_counts_as_empty():
    found = index("a12 b20").find(10, 6, lambda key: key != ord("a"))
    assert (name(found), found.probes, found.touched) == ("b", (2, 3), 2)


def test_items_move_and_leave():
    buckets = index("a12")
    buckets.insert(ord("a"), 12, ord("a"))
    buckets.insert(ord("a"), 30, ord("a"))
    assert buckets.find(10, 6, lambda _: True).probes == (2, 3, 4)
    buckets.insert(ord("a"), 0, ord("a"))
    assert buckets.find(1, 6, lambda _: True).key is None
    buckets.remove(ord("a"))


def test_unequal_bounds():
    buckets = Buckets([1, 10, 100])
    assert [buckets.bucket_of(a) for a in (0, 1, 9, 10, 99, 100, 10**6)] == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buckets([]), r"bucket bounds \[\]"),
        (lambda: Buckets([1, 1]), r"bucket bounds \[1, 1\]"),
        (lambda: Buckets.make_equal(1, 0, 4), "4 buckets of width 0"),
        (lambda: Buckets.make_equal(1, 1, 0), "0 buckets of width 1"),
        (lambda: index("a1").find(0, 1, bool), "search for 0"),
        (lambda: index("a1").find(1, 0, bool), "scan limit 0"),
    ],
)
def test_errors(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_a_closed_last_bucket():
    buckets = Buckets.make_equal(1, 8, 6, closed=True)
    assert [buckets.bucket_of(a) for a in (0, 1, 48, 49, 80)] == [0, 1, 6, 0, 0]
    buckets.insert(1, 49, 1)
    buckets.insert(2, 48, 2)
    assert buckets.find(4, 6, lambda _: True).key == 2
    assert buckets.find(49, 6, lambda _: True).key is None
