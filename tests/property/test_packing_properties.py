"""Packing: round trips, and a narrow gate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import PackingError
from allocator.packing import Layout, NodeWords, decode, encode, node_resources, read_node
from allocator.quantity import canonical

INT64 = st.integers(-(2**63), 2**63 - 1)
layouts = st.builds(
    Layout, st.integers(1, 53), st.integers(0, 64), st.integers(1, 2**24 - 1), st.sampled_from([1, 2])
)


@st.composite
def packed(draw):
    """A layout and values that fit it."""
    layout = draw(layouts)
    fields = st.integers(0, 2**layout.bits - 1)
    return layout, draw(st.lists(fields, min_size=layout.cards, max_size=layout.cards))


@st.composite
def node_words(draw):
    sizes = draw(st.lists(st.integers(0, 300_000), max_size=24))
    used = [draw(st.integers(0, size)) for size in sizes]
    limit = draw(st.just(0) | st.integers(1, 1000))
    compute = [draw(st.integers(0, limit)) for _ in sizes] if limit else []
    unit_mib, revision = draw(st.integers(1, 2**24 - 1)), draw(st.integers(0, 2**53 - 1))
    return NodeWords.of(unit_mib, sizes, used, revision, limit, compute)


@given(packed())
def test_decode_undoes_encode(case):
    layout, values = case
    words = encode(values, layout)
    assert decode(words, layout) == tuple(values)
    assert all(0 <= word < 2**53 for word in words)


@given(layouts, st.data())
def test_what_decodes_is_what_encode_makes(layout, data):
    words = data.draw(st.lists(INT64 | st.integers(0, 2**53), min_size=0, max_size=layout.word_count + 1))
    try:
        values = decode(words, layout)
    except PackingError:
        return
    assert encode(values, layout) == tuple(words)


@given(packed(), st.data())
def test_one_value_out_of_range_is_refused(case, data):
    layout, values = case
    if not values:
        return
    card = data.draw(st.integers(0, layout.cards - 1))
    values[card] = data.draw(st.integers(max_value=-1) | st.integers(min_value=2**layout.bits))
    with pytest.raises(PackingError, match=f"card {card} "):
        encode(values, layout)


@given(packed(), st.data())
def test_one_bit_beyond_the_cards_is_refused(case, data):
    layout, values = case
    words = list(encode(values, layout))
    if not words:
        return
    index = data.draw(st.integers(0, len(words) - 1))
    fields = min(layout.cards_per_word, layout.cards - index * layout.cards_per_word)
    words[index] |= 1 << data.draw(st.integers(fields * layout.bits, 62))
    with pytest.raises(PackingError, match=f"word {index} is "):
        decode(words, layout)


@given(layouts)
def test_header_round_trip(layout):
    assert Layout.from_header(layout.header) == layout
    assert 0 < layout.header < 2**53


@given(st.integers(0, 2**53 - 1))
def test_headers_that_read_are_those_we_write(header):
    try:
        layout = Layout.from_header(header)
    except PackingError:
        return
    assert layout.header == header


@given(node_words())
def test_node_round_trip_through_the_api_server(words):
    printed = {name: canonical(value) for name, value in node_resources(words).items()}
    assert read_node(printed) == words
    assert read_node({"cpu": "8", **node_resources(words)}) == words


@given(node_words(), st.data())
def test_a_missing_resource_is_refused(words, data):
    resources = node_resources(words)
    del resources[data.draw(st.sampled_from(sorted(resources)))]
    with pytest.raises(PackingError):
        read_node(resources)
