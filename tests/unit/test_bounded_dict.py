"""A bounded dict forgets what was set, or recalled, longest ago."""

from kubeapi.bounded import BoundedDict


def test_the_oldest_entry_goes() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"] = 1
    kept["b"] = 2
    kept["c"] = 3
    assert dict(kept) == {"b": 2, "c": 3}


def test_an_entry_that_is_set_again_is_the_newest() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3
    kept["c"] = 4
    assert list(kept.items()) == [("a", 3), ("c", 4)]


def test_setdefault_is_bounded_too() -> None:
    kept: BoundedDict[str, int] = BoundedDict(1)
    kept["a"] = 1
    assert kept.setdefault("b", 2) == 2
    assert dict(kept) == {"b": 2}


def test_a_smaller_bound_holds_from_the_next_entry_on() -> None:
    kept: BoundedDict[int, int] = BoundedDict(9)
    for number in range(9):
        kept[number] = number
    kept.most = 2
    kept[9] = 9
    assert list(kept) == [8, 9]


def test_what_is_recalled_is_made_once_and_is_the_newest() -> None:
    made: list[str] = []

    def make() -> str:
        made.append("made")
        return made[-1]

    kept: BoundedDict[str, str] = BoundedDict(2)
    assert kept.recall("a", make) == "made"
    kept["b"] = "b"
    assert kept.recall("a", make) == "made"
    kept["c"] = "c"
    assert (list(kept), made) == (["a", "c"], ["made"])
