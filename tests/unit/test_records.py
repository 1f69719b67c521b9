"""Annotations: exact texts, and refusal of whatever others wrote."""

import msgspec
import pytest

from allocator.errors import PackingError, RequestError
from allocator.packing import NodeWords
from allocator.records import (
    Allocation,
    CardRecord,
    Holds,
    charge,
    dump_allocation,
    dump_assigned,
    dump_cards,
    dump_holds,
    load_allocation,
    load_assigned,
    load_cards,
    load_cordon,
    load_holds,
    load_inventory,
)
from allocator.request import ContainerRequest, PodRequest

ASSIGNMENT = {"main": (("GPU-a", 4), ("GPU-b", 4)), "side": (("GPU-a", 1),)}
RECORDS = (
    CardRecord("GPU-a", 0, "NVIDIA L40S", 45459, 1, True),
    CardRecord("GPU-b", 3, "", 45459, None, False),
)


def test_assigned():
    text = '{"main":[["GPU-a",4],["GPU-b",4]],"side":[["GPU-a",1]]}'
    assert dump_assigned(ASSIGNMENT) == text
    assert load_assigned(text) == ASSIGNMENT


def test_allocation():
    text = '{"uid":"u-1","containers":{"main":[["GPU-a",4],["GPU-b",4]],"side":[["GPU-a",1]]}}'
    assert dump_allocation("u-1", ASSIGNMENT) == text
    assert load_allocation(text) == Allocation("u-1", ASSIGNMENT)


def test_holds():
    text = '{"seen":"1042","uids":["a","b","c"]}'
    holds = Holds(1042, frozenset({"c", "a", "b"}))
    assert dump_holds(holds) == text
    assert load_holds(text) == holds


def test_holds_with_claims():
    text = '{"seen":"7","uids":[],"claims":{"c":{"1":4},"d":{"0":2}},"claims_compute":{"c":{"1":30}}}'
    holds = Holds(7, frozenset(), {}, {"d": {0: (2, 0)}, "c": {1: (4, 30)}})
    assert dump_holds(holds) == text
    assert load_holds(text) == holds


def test_holds_with_units():
    text = '{"seen":"7","uids":["a","b","c"],"units":[{"0":8},{"1":4,"2":4},{}]}'
    holds = Holds(7, frozenset("abc"), {"b": {2: 4, 1: 4}, "a": {0: 8}, "c": {}})
    assert dump_holds(holds) == text
    assert load_holds(text) == holds
    assert dump_holds(Holds(7, frozenset("abc"), {"b": {2: 4, 1: 4}, "a": {0: 8}})) == text


def test_holds_of_the_release_before_say_nothing_of_units():
    assert load_holds('{"seen":"7","uids":["a"]}').units == {}
    assert load_holds('{"seen":"7","uids":[],"units":[]}').units == {}


class HoldsBefore(msgspec.Struct):
    """What an older version reads of `holds`; it takes what it understands and passes over other keys."""

    seen: str
    uids: list[str]


class CardBefore(msgspec.Struct):
    """The same of a card in `cards`."""

    uuid: str
    index: int
    model: str
    mib: int
    numa: int | None
    healthy: bool


def test_the_release_before_reads_what_is_written_today():
    units = {"a": {0: 8}, "b": {2: 4, 1: 4}}
    text = dump_holds(Holds(1042, frozenset("ab"), units))
    assert "units" in text
    before = msgspec.json.decode(text, type=HoldsBefore)
    # It wants digits, and UIDs that are not empty.
    assert (int(before.seen), before.uids) == (1042, ["a", "b"])
    assert before.seen.isascii()
    assert before.seen.isdigit()
    cards = dump_cards([msgspec.structs.replace(RECORDS[0], links="02", held="driver"), RECORDS[1]])
    assert "links" in cards
    assert "held" in cards
    assert msgspec.json.decode(cards, type=list[CardBefore]) == [
        CardBefore("GPU-a", 0, "NVIDIA L40S", 45459, 1, healthy=True),
        CardBefore("GPU-b", 3, "", 45459, None, healthy=False),
    ]


def test_units_of_a_pod_that_is_not_held_are_a_mistake():
    with pytest.raises(PackingError, match=r"units of \['b'\]; allowed: pods that are held"):
        dump_holds(Holds(7, frozenset("a"), {"b": {0: 1}}))


def test_cards():
    text = (
        '[{"uuid":"GPU-a","index":0,"model":"NVIDIA L40S","mib":45459,"numa":1,"healthy":true},'
        '{"uuid":"GPU-b","index":3,"model":"","mib":45459,"numa":null,"healthy":false}]'
    )
    assert dump_cards(RECORDS) == text
    assert load_cards(text) == RECORDS
    assert load_cards("[]") == ()


def test_later_versions_may_add_keys():
    assert load_holds('{"seen":"1","uids":[],"more":1}') == Holds(1, frozenset())


@pytest.mark.parametrize(
    ("text", "uuids"),
    [("", set()), (" , ", set()), ("GPU-a", {"GPU-a"}), (" GPU-a,GPU-b , GPU-a,", {"GPU-a", "GPU-b"})],
)
def test_cordon(text, uuids):
    assert load_cordon(text) == uuids


def test_cordon_of_no_card():
    with pytest.raises(
        PackingError, match=r'annotation gpupack.io/cordon holds "card one"; allowed: a comma list'
    ):
        load_cordon("GPU-a, card one")


NO_JSON = ["", "soup", "{", '{"a":[["GPU-a",NaN2]]}', "[" * 100_000, "1" * 5000]


@pytest.mark.parametrize("text", NO_JSON)
@pytest.mark.parametrize(
    ("load", "error"),
    [
        (load_assigned, RequestError),
        (load_allocation, RequestError),
        (load_holds, PackingError),
        (load_cards, PackingError),
    ],
)
def test_not_json(load, error, text):
    with pytest.raises(error, match=r"^annotation gpupack.io/.* is .*: ") as caught:
        load(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "Expected `object`, got `array`"),
        ('{"":[["GPU-a",1]]}', "Expected `str` of length >= 1 - at `key`"),
        ('{"m":{}}', "Expected `array`, got `object`"),
        ('{"m":[]}', "Expected `array` of length >= 1"),
        ('{"m":["GPU-a"]}', "Expected `array`, got `str`"),
        ('{"m":[["GPU-a"]]}', "Expected `array` of length 2"),
        ('{"m":[["GPU-a",1,2]]}', "Expected `array` of length 2"),
        ('{"m":[["GPU a",1]]}', "Expected `str` matching regex"),
        ('{"m":[["GPU-a\\n",1]]}', "Expected `str` matching regex"),
        ('{"m":[["' + "x" * 61 + '",1]]}', "Expected `str` matching regex"),
        ('{"m":[[5,1]]}', "Expected `str`, got `int`"),
        ('{"m":[["GPU-a",0]]}', "Expected `int` >= 1"),
        ('{"m":[["GPU-a",-1]]}', "Expected `int` >= 1"),
        ('{"m":[["GPU-a",2147483648]]}', "Expected `int` <= 2147483647"),
        ('{"m":[["GPU-a",1.0]]}', "Expected `int`, got `float`"),
        ('{"m":[["GPU-a",true]]}', "Expected `int`, got `bool`"),
        ('{"m":[["GPU-a","1"]]}', "Expected `int`, got `str`"),
        ('{"m":[["GPU-a",1],["GPU-a",1]]}', "a card stands twice in a container"),
    ],
)
def test_bad_assignments(text, problem):
    allowed = r"; allowed: \{.*\[\[\"<card UUID>\", <units>\], ...\]"
    with pytest.raises(RequestError, match=f"^annotation gpupack.io/assigned is .*: {problem}.*{allowed}"):
        load_assigned(text)
    with pytest.raises(RequestError, match=f"^annotation gpupack.io/allocation is .*: {problem}.*{allowed}"):
        load_allocation(f'{{"uid":"u","containers":{text}}}')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `uid`"),
        ('{"uid":"u"}', "missing required field `containers`"),
        ('{"uid":5,"containers":{}}', r"got `int` - at `\$.uid`"),
        ('{"uid":"","containers":{}}', r"of length >= 1 - at `\$.uid`"),
    ],
)
def test_bad_allocations(text, problem):
    with pytest.raises(RequestError, match=problem):
        load_allocation(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"seen":"1"}', "missing required field `uids`"),
        ('{"seen":5,"uids":[]}', r"got `int` - at `\$.seen`"),
        ('{"seen":"","uids":[]}', r"matching regex .* - at `\$.seen`"),
        ('{"seen":"x","uids":[]}', r"matching regex .* - at `\$.seen`"),
        ('{"seen":"-1","uids":[]}', r"matching regex .* - at `\$.seen`"),
        ('{"seen":"²","uids":[]}', r"matching regex .* - at `\$.seen`"),
        ('{"seen":"' + "9" * 21 + '","uids":[]}', r"matching regex .* - at `\$.seen`"),
        ('{"seen":"1","uids":{}}', r"got `object` - at `\$.uids`"),
        ('{"seen":"1","uids":[1]}', r"got `int` - at `\$.uids"),
        ('{"seen":"1","uids":[""]}', r"of length >= 1 - at `\$.uids"),
        ('{"seen":"1","uids":["a"],"units":null}', r"at `\$.units`"),
        ('{"seen":"1","uids":["a"],"units":{}}', r"at `\$.units`"),
        ('{"seen":"1","uids":["a"],"units":[]}', "units of 0 pods beside 1 UIDs"),
        ('{"seen":"1","uids":["a"],"units":[{},{}]}', "units of 2 pods beside 1 UIDs"),
        ('{"seen":"1","uids":["a","a"],"units":[{},{}]}', "units of 2 pods beside 1 UIDs"),
        ('{"seen":"1","uids":["a"],"units":[{"-1":1}]}', "Expected `int` >= 0 - at `key`"),
        ('{"seen":"1","uids":["a"],"units":[{"x":1}]}', "Expected `int`, got `str` - at `key`"),
        ('{"seen":"1","uids":["a"],"units":[{"0":0}]}', "Expected `int` >= 1"),
        ('{"seen":"1","uids":["a"],"units":[[8]]}', "Expected `object`, got `array`"),
    ],
)
def test_bad_holds(text, problem):
    with pytest.raises(PackingError, match=f"^annotation gpupack.io/holds is .*{problem}"):
        load_holds(text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('"index":-1', r"Expected `int` >= 0 - at `\$\[0\].index`"),
        ('"index":"0"', r"at `\$\[0\].index`"),
        ('"mib":1.5', r"at `\$\[0\].mib`"),
        ('"mib":null', r"at `\$\[0\].mib`"),
        ('"numa":-1', r"at `\$\[0\].numa`"),
        ('"model":null', r"Expected `str`, got `null` - at `\$\[0\].model`"),
        ('"healthy":1', r"Expected `bool`, got `int` - at `\$\[0\].healthy`"),
        ('"uuid":""', r"matching regex .* - at `\$\[0\].uuid`"),
    ],
)
def test_bad_cards(change, problem):
    good = '"uuid":"GPU-a","index":0,"model":"T4","mib":14912,"numa":null,"healthy":true'
    with pytest.raises(PackingError, match=f"^annotation gpupack.io/cards is .*: .*{problem}"):
        load_cards(f"[{{{good},{change}}}]")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "Expected `array`, got `object`"),
        ("[5]", "Expected `object`, got `int`"),
        ('[{"uuid":"GPU-a"}]', "missing required field `index`"),
    ],
)
def test_bad_inventories(text, problem):
    with pytest.raises(PackingError, match=problem):
        load_cards(text)


def test_a_card_stands_once_in_an_inventory():
    with pytest.raises(PackingError, match="a UUID stands twice"):
        load_cards(dump_cards([RECORDS[0], RECORDS[0]]))


def test_long_values_are_cut():
    with pytest.raises(RequestError) as caught:
        load_assigned("x" * 10_000)
    assert str(caught.value) == 'annotation gpupack.io/assigned is "' + "x" * 255 + (
        '...: not JSON; allowed: {"<container>": [["<card UUID>", <units>], ...], ...}, a card once in a '
        "container"
    )


def test_inventory_and_words_of_different_length():
    with pytest.raises(
        PackingError, match=r"annotation gpupack.io/cards has 1 cards; allowed: the 2 of the words"
    ):
        load_inventory(dump_cards(RECORDS[:1]), NodeWords.of(1024, [44, 44], [4, 44], 1))


def pod(*containers, cards=1):
    return PodRequest(tuple(ContainerRequest(*fields) for fields in containers), cards)


SHARED = pod(("i", 5, "init"), ("s", 2, "sidecar"), ("m", 4, "main"))


@pytest.mark.parametrize(
    ("request_", "assignment", "costs"),
    [
        (pod(("m", 8, "main")), {"m": (("GPU-a", 8),)}, {"GPU-a": 8}),
        (
            pod(("m", 8, "main"), ("n", 4, "main"), cards=2),
            {"m": (("GPU-a", 4), ("GPU-b", 4)), "n": (("GPU-b", 2), ("GPU-c", 2))},
            {"GPU-a": 4, "GPU-b": 6, "GPU-c": 2},
        ),
        (SHARED, {"i": (("GPU-a", 5),), "s": (("GPU-a", 2),), "m": (("GPU-a", 4),)}, {"GPU-a": 6}),
    ],
)
def test_charge(request_, assignment, costs):
    assert charge(request_, assignment) == costs


@pytest.mark.parametrize(
    ("request_", "assignment", "problem"),
    [
        (pod(("m", 8, "main")), {}, r"names containers \[\]; allowed: \['m'\]"),
        (pod(("m", 8, "main")), {"m": (("a", 8),), "n": (("a", 8),)}, r"names containers \['m', 'n'\]"),
        (
            pod(("m", 8, "main")),
            {"m": (("a", 7),)},
            r"\"m\" with \[\('a', 7\)\]; allowed: 8 units on each of 1 cards",
        ),
        (pod(("m", 8, "main")), {"m": (("a", 4), ("b", 4))}, "allowed: 8 units on each of 1 cards"),
        (
            pod(("m", 8, "main"), cards=2),
            {"m": (("a", 6), ("b", 2))},
            "allowed: 4 units on each of 2 cards",
        ),
        (
            pod(("m", 8, "main"), cards=2),
            {"m": (("a", 4), ("a", 4))},
            "allowed: 4 units on each of 2 cards",
        ),
        (SHARED, {"i": (("a", 5),), "s": (("b", 2),), "m": (("a", 4),)}, "one card for all containers"),
    ],
)
def test_assignments_that_do_not_answer_the_request(request_, assignment, problem):
    with pytest.raises(RequestError, match=problem):
        charge(request_, assignment)
