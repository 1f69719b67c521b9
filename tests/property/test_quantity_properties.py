"""Quantities: exact against independent arithmetic, canonical forms stable, rubbish refused."""

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import QuantityError
from allocator.quantity import canonical, parse_bytes, parse_integer, parse_milli, parse_quantity

MULTIPLIERS = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T"), -3)
    },
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
    **{f"e{exponent}": Fraction(10) ** exponent for exponent in range(-12, 7)},
}
suffixes = st.sampled_from(sorted(MULTIPLIERS))


@st.composite
def written(draw):
    """A quantity as text and the number it stands for."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    whole = draw(st.integers(0, 10**6))
    part = draw(st.none() | st.text("0123456789", max_size=6))
    suffix = draw(suffixes)
    number = Fraction(whole)
    text = f"{sign}{whole}"
    if part is not None:
        number += Fraction(int(part or "0"), 10 ** len(part))
        text += f".{part}"
    return f"{text}{suffix}", (-number if sign == "-" else number) * MULTIPLIERS[suffix]


@given(written())
def test_exact(case):
    text, number = case
    assert parse_quantity(text) == number
    assert parse_milli(text) == -(-number * 1000 // 1)
    assert parse_bytes(text) == -(-number // 1)
    if number.denominator == 1:
        assert parse_integer(text) == number
    else:
        with pytest.raises(QuantityError):
            parse_integer(text)


@given(st.integers(1 - 2**63, 2**63 - 1))
def test_whole_numbers_survive_the_api_server(number):
    assert parse_integer(canonical(number)) == number
    assert parse_integer(str(number)) == number
    assert parse_integer(number) == number


@given(written())
def test_canonical_is_stable_and_exact_to_a_billionth(case):
    text, number = case
    form = canonical(text)
    assert canonical(form) == form
    rounded = abs(parse_quantity(form))
    assert 0 <= rounded - abs(number) < Fraction(1, 10**9)
    assert rounded == 0 or (parse_quantity(form) < 0) == (number < 0)


@given(written())
def test_canonical_takes_the_largest_suffix(case):
    form = canonical(case[0])
    mantissa = int(re.match("-?[0-9]+", form)[0])
    if form != "0" and form[-1] not in "EP":
        assert mantissa % (1024 if form.endswith("i") else 1000)


@given(st.text("0123456789.eE+-numkKMGTPi ", max_size=12))
def test_accepted_text_is_a_number_and_a_suffix(text):
    try:
        number = parse_quantity(text)
    except QuantityError:
        return
    digits = text.rstrip("numkKMGTPEi")
    multiplier = MULTIPLIERS.get(text[len(digits) :])
    if multiplier is not None:
        assert number == Fraction(Decimal(digits)) * multiplier


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    messages = []
    for parse in (parse_quantity, parse_integer, parse_milli, parse_bytes, canonical):
        try:
            parse(text)
        except QuantityError as error:
            messages.append(str(error))
    assert not any("\n" in message or len(message) > 240 for message in messages)
