"""Card selectors."""

import pytest

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.selector import ANY_CARD, Selector

A100 = Card(0, "GPU-aaaa-1", "NVIDIA A100-SXM4-40GB", 39, 0)
L40S = Card(1, "GPU-bbbb-2", "NVIDIA L40S", 44, 0)
NAMELESS = Card(2, "GPU-cccc-3", "", 16, 0)
CARDS = (A100, L40S, NAMELESS)


@pytest.mark.parametrize(
    ("models", "uuids", "admitted"),
    [
        (None, None, [0, 1, 2]),
        ("NVIDIA L40S", None, [1]),
        ("nvidia l40s", None, [1]),
        ("L40S", None, []),
        ("*l40s*", None, [1]),
        ("*", None, [0, 1, 2]),
        ("**", None, [0, 1, 2]),
        ("NVIDIA*", None, [0, 1]),
        ("*A100*, *L40S", None, [0, 1]),
        ("!*A100*", None, [1, 2]),
        ("! *A100*", None, [1, 2]),
        ("NVIDIA*,!*A100*", None, [1]),
        ("!*A100*,NVIDIA*", None, [1]),
        ("NVIDIA*40GB", None, [0]),
        ("NVIDIA*SXM4*GB", None, [0]),
        ("NVIDIA*SXM5*GB", None, []),
        ("*SXM4*A100*", None, []),
        ("NVIDIA L40S*NVIDIA L40S", None, []),
        ("NVIDIA L?0S", None, []),
        ("NVIDIA L[0-9]0S", None, []),
        (None, "GPU-aaaa-1,GPU-cccc-3", [0, 2]),
        (None, "gpu-aaaa-1", []),
        (None, "GPU-?aaa*", []),
        (None, "!GPU-aaaa-1", [1, 2]),
        (None, "GPU-*,!GPU-b*", [0, 2]),
        ("NVIDIA*", "!GPU-aaaa-1", [1]),
        ("!*", None, []),
    ],
)
def test_admitted_cards(models, uuids, admitted):
    selector = Selector.parse(models, uuids)
    assert [card.index for card in CARDS if selector.admits(card)] == admitted
    both = [
        card.index for card in CARDS if selector.admits_model(card.model) and selector.admits_uuid(card.uuid)
    ]
    assert both == admitted


def test_repetitions_and_blanks_make_no_difference():
    assert Selector.parse(" a* ,b,A*", "x, x") == Selector(models=("a*", "b"), uuids=("x",))


def test_any_card():
    assert Selector.parse(None, None) == ANY_CARD
    assert ANY_CARD.admits_all
    for selector in (
        Selector(("a",)),
        Selector((), ("a",)),
        Selector((), (), ("a",)),
        Selector((), (), (), ("a",)),
    ):
        assert not selector.admits_all


@pytest.mark.parametrize("text", ["", " ", ",", "a,", "a,,b", "!", "a,!", "! ", "!!a"])
@pytest.mark.parametrize("annotation", ["gpupack.io/gpu-model", "gpupack.io/gpu-uuid"])
def test_empty_patterns_are_named(annotation, text):
    texts = (text, None) if annotation.endswith("model") else (None, text)
    with pytest.raises(RequestError, match=f'^annotation {annotation} is "') as caught:
        Selector.parse(*texts)
    assert f'"{text}"; allowed: a comma list' in str(caught.value)


def test_too_many_patterns():
    assert len(Selector.parse(",".join(f"m{i}" for i in range(64)), None).models) == 64
    with pytest.raises(RequestError, match="gpu-uuid holds 65 patterns; allowed: at most 64"):
        Selector.parse(None, ",".join(["x"] * 65))
