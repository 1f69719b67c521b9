"""The list of cards follows what the driver shows: what is lost stays, what was partitioned anew goes."""

from dataclasses import replace

import pytest

from deviceplugin.gpus.api.card_listing import DetectedCard, merge_cards
from deviceplugin.gpus.api.source import GpuCard


def card(uuid: str, parent: str | None = None, error: str | None = None) -> GpuCard:
    return GpuCard(0, uuid, "M", 100, 0, None, "", 0, error=error, parent=parent)


def shown(uuid: str, *instances: str) -> DetectedCard:
    return DetectedCard(uuid, tuple(card(each, uuid) for each in instances) or (card(uuid),), certain=True)


def unsure(uuid: str | None) -> DetectedCard:
    return DetectedCard(uuid, (card(uuid or "unreadable", error="lost"),), certain=False)


A, B, C = shown("A"), shown("B"), shown("C", "c1", "c2")


@pytest.mark.parametrize(
    ("then", "uuids"),
    [
        ([A, B, C], ["A", "B", "c1", "c2"]),
        ([B, C], ["A", "B", "c1", "c2"]),
        ([A, C], ["A", "B", "c1", "c2"]),
        ([A, B], ["A", "B", "c1", "c2"]),
        ([], ["A", "B", "c1", "c2"]),
        ([unsure(None), B, C], ["A", "B", "c1", "c2"]),
        ([unsure("A"), B, unsure("C")], ["A", "B", "c1", "c2"]),
        ([A, B, shown("C", "c2", "c3")], ["A", "B", "c2", "c3"]),
        ([A, B, shown("C")], ["A", "B", "C"]),
        ([shown("A", "a1"), B, C], ["a1", "B", "c1", "c2"]),
        ([A, B, C, shown("D")], ["A", "B", "c1", "c2", "D"]),
        ([A, B, C, unsure(None)], ["A", "B", "c1", "c2", "unreadable"]),
    ],
)
def test_the_next_list(then: list[DetectedCard], uuids: list[str]) -> None:
    known = merge_cards([], [A, B, C])
    found = merge_cards(known, then)
    assert [each.uuid for each in found] == uuids
    assert [each.index for each in found] == list(range(len(uuids)))


def test_what_is_lost_stays_as_it_was_and_what_is_back_is_as_it_is() -> None:
    known = merge_cards([], [A, B])
    lost = merge_cards(known, [unsure("A"), B])
    assert lost == known
    grown = replace(A, cards=(replace(A.cards[0], total_mib=200),))
    assert merge_cards(lost, [grown, B])[0].total_mib == 200


def test_a_card_that_never_could_be_read_gives_way_to_itself() -> None:
    known = merge_cards([], [unsure(None), B])
    assert [each.uuid for each in merge_cards(known, [A, B])] == ["A", "B"]
