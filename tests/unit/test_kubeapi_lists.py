"""A first list takes little memory until the sink has taken it; a later one is decoded once."""

import weakref
from typing import Any

import msgspec
import pytest

from kubeapi.errors import Forbidden, KubeApiError, NotFound, Unreachable
from kubeapi.lists import CompactList, read_first_served
from tests.reflect_world import Log, Meta, item, page, play

PAGES = [page("9", item("a"), item("b"), more="x"), page("9", item("c"), item("d"), more="y"), page("9")]


class Tracked(msgspec.Struct, weakref=True, eq=False):
    metadata: Meta


class Census(Log):
    """Counts how many objects of a list are in memory at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def replace(self, items, resource_version) -> None:
        alive = weakref.WeakSet()
        for each in items:
            alive.add(each)
            del each
            self.most = max(self.most, len(alive))
        super().replace(items, resource_version)


async def test_the_objects_of_a_first_list_are_in_memory_a_page_at_a_time() -> None:
    sink = Census()
    await play(("list", PAGES), sink=sink, kind=Tracked)
    assert sink.calls == [("replace", ["a", "b", "c", "d"], "9")]
    assert sink.most == 2


class Keeper(Log):
    """Keeps the objects of every list as two loops see them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def replace(self, items, resource_version) -> None:
        self.seen.append((list(items), list(items)))
        super().replace(items, resource_version)


async def test_a_later_list_is_decoded_once() -> None:
    sink = Keeper()
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410}}'
    await play(("list", PAGES), ("watch", [gone]), ("list", PAGES), sink=sink)
    assert [call[1] for call in sink.calls if call[0] == "replace"] == [["a", "b", "c", "d"]] * 2
    first, again = sink.seen[-1]
    assert all(one is other for one, other in zip(first, again, strict=True))


class Odd(msgspec.Struct, rename="camel"):
    """Fields of every form that the objects of the API have here."""

    some_amounts: dict[str, Any] | None = None
    raw_terms: list[msgspec.Raw] | None = None
    own_name: str = msgspec.field(default="", name="ownID")
    by_number: dict[int, list[str]] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"someAmounts":{"cpu":4,"memory":"1Gi","n":1.5,"large":123456789012345678901},"ownID":"\\u0000\\u00fc"}',
        '{"rawTerms":[{"key":"a" , "values":[null]}],"byNumber":{"-1":["x"]}}',
        '{"someAmounts":null,"rawTerms":null}',
    ],
)
def test_what_is_read_of_an_object_survives(text: str) -> None:
    decoded = msgspec.json.decode(text, type=Odd)
    compact = CompactList(Odd)
    compact.add_page([decoded])
    compact.add_page([])
    assert list(compact) == [decoded]


def test_it_is_a_sequence() -> None:
    compact = CompactList(int)
    assert not compact
    compact.add_page([1, 2])
    compact.add_page([3])
    assert (len(compact), compact[0], compact[-1], compact[1:], 3 in compact) == (3, 1, 3, [2, 3], True)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"a": NotFound("-"), "b": b"1"}, b"1"),
        ({"a": Forbidden("no right"), "b": b"1"}, b"1"),
        ({"a": NotFound("-"), "b": Forbidden("no right"), "c": Unreachable("reset")}, Forbidden),
        ({"a": NotFound("-"), "b": NotFound("-")}, NotFound),
    ],
    ids=["newer-unknown", "newer-refused", "first-that-exists", "none"],
)
async def test_of_several_versions_the_first_that_can_be_read_counts(
    answers: dict[str, bytes | KubeApiError], found: bytes | type[KubeApiError]
) -> None:
    async def read(path: str) -> bytes:
        answer = answers[path]
        if isinstance(answer, KubeApiError):
            raise answer
        return answer

    if isinstance(found, bytes):
        assert await read_first_served(tuple(answers), read) == found
    else:
        with pytest.raises(found):
            await read_first_served(tuple(answers), read)
