"""Free units of a card."""

import pytest

from allocator.cards import Card
from allocator.errors import shown


@pytest.mark.parametrize(
    ("size", "used", "state", "free"),
    [
        (16, 0, {}, 16),
        (16, 5, {}, 11),
        (16, 16, {}, 0),
        (16, 20, {}, 0),
        (16, -4, {}, 16),
        (16, 0, {"healthy": False}, 0),
        (16, 0, {"is_closed": True}, 0),
    ],
)
def test_free_units(size, used, state, free):
    card = Card(0, "GPU-0", "L40S", size, used, **state)
    assert card.free_units == free
    assert card.with_free_units(0).free_units == 0
    assert card.with_free_units(size).free_units == (0 if state else size)


@pytest.mark.parametrize(
    ("limit", "used", "units", "compute", "room"),
    [
        (100, 40, 11, 60, True),
        (100, 40, 11, 61, False),
        (100, 40, 12, 0, False),
        (100, 140, 11, 0, True),
        (200, 140, 11, 60, True),
        (0, 0, 11, 1, False),
        (0, -30, 11, 30, False),
    ],
)
def test_room_is_memory_and_compute(limit, used, units, compute, room):
    card = Card(0, "GPU-0", "L40S", 16, 5, compute_limit=limit, compute_used=used)
    assert card.has_room(units, compute) == room


@pytest.mark.parametrize(
    ("used", "compute_used", "units", "compute", "shortage"),
    [(10, 60, 6, 40, (0, 0)), (10, 60, 8, 50, (2, 10)), (18, 120, 8, 0, (10, 0)), (0, 120, 8, 50, (0, 70))],
)
def test_the_shortage_counts_what_pods_have_beyond_size_and_limit(
    used, compute_used, units, compute, shortage
):
    card = Card(0, "GPU-0", "", 16, used, compute_used=compute_used)
    assert card.compute_shortage(units, compute) == shortage


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("8Gi", '"8Gi"'),
        ("a\nb", '"a\\nb"'),
        ("x" * 64, '"' + "x" * 64 + '"'),
        ("x" * 65, '"' + "x" * 63 + "..."),
        (5, "5"),
        (None, "None"),
        (["é"], "['\\xe9']"),
    ],
)
def test_values_in_messages_are_one_short_line(value, text):
    assert shown(value) == text
