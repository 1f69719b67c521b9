"""Kubernetes quantities: exact, canonical, and refused when they cannot be."""

from fractions import Fraction

import pytest

from allocator.errors import QuantityError
from allocator.quantity import canonical, parse_bytes, parse_integer, parse_milli, parse_quantity

KI, MI, GI, TI, PI, EI = (1024**power for power in range(1, 7))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("00", 0),
        ("+7", 7),
        ("-7", -7),
        ("7.", 7),
        (".5", Fraction(1, 2)),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("1m", Fraction(1, 1000)),
        ("1k", 1000),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", KI),
        ("1Mi", MI),
        ("1Gi", GI),
        ("1Ti", TI),
        ("1Pi", PI),
        ("1Ei", EI),
        ("1.5Gi", 1536 * MI),
        ("0.1Ki", Fraction(1024, 10)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E+3", 1000),
        ("12e-1", Fraction(6, 5)),
        ("12345k", 12_345_000),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", 1 - 2**63),
        (12_345_000, 12_345_000),
        (-1, -1),
    ],
)
def test_reads_exactly(text, number):
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "k",
        ".",
        "-",
        "+",
        "e3",
        "1 k",
        " 1",
        "1\n",
        "1K",
        "1ki",
        "1KI",
        "1g",
        "1kk",
        "1e",
        "1e+",
        "1e1.5",
        "1e1k",
        "--1",
        "+-1",
        "1.2.3",
        "1,5",
        "1_000",
        "0x10",
        "nan",
        "Infinity",
        "٣",
        "1" * 65,
        "1e65",
        "1e-65",
        "1e999999999999999999",
        "9223372036854775808",
        "-9223372036854775808",
        "8Ei",
        "10E",
        "9999P1",
        2**63,
        -(2**63),
        True,
        False,
        None,
        1.5,
        [],
    ],
)
def test_refuses_what_is_no_quantity(value):
    with pytest.raises(QuantityError, match=r"^quantity .*; allowed: "):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [("8", 8), (8, 8), ("0", 0), ("1k", 1000), ("16Gi", 16 * GI), ("1000m", 1), ("0.5Ki", 512), ("-3", -3),
     ("1e1", 10), ("999999999999999999", 999_999_999_999_999_999),
     ("10000000000000000k", None), ("9E", 9 * 10**18)],
)  # fmt: skip
def test_integer(value, number):
    if number is None:
        with pytest.raises(QuantityError):
            parse_integer(value)
    else:
        assert parse_integer(value) == number


@pytest.mark.parametrize("value", ["0.5", "1500m", "1n", "1e-1", "1.0001k"])
def test_integer_refuses_fractions(value):
    with pytest.raises(QuantityError, match="allowed: a whole number"):
        parse_integer(value)


@pytest.mark.parametrize("value", ["10E", "99999999P", "8Ei", "²", "1²", "5km", "5kk", "5mi", "5i"])
def test_quick_path_refuses_what_the_full_one_does(value):
    for parse in (parse_integer, parse_milli, parse_bytes):
        with pytest.raises(QuantityError):
            parse(value)


@pytest.mark.parametrize(
    ("value", "milli"),
    [("1", 1000), ("250m", 250), ("0.1", 100), ("1u", 1), ("1500u", 2), ("100n", 1), ("2k", 2_000_000),
     (3, 3000), ("-1500u", -1), ("1.0005", 1001)],
)  # fmt: skip
def test_milli_rounds_up(value, milli):
    assert parse_milli(value) == milli


@pytest.mark.parametrize(
    ("value", "size"),
    [("1", 1), ("1Ki", KI), ("128974848", 128_974_848), ("129e6", 129_000_000), ("129M", 129_000_000),
     ("128974848000m", 128_974_848), ("123Mi", 123 * MI), ("1m", 1), ("0.1Ki", 103), (7, 7)],
)  # fmt: skip
def test_bytes_round_up(value, size):
    assert parse_bytes(value) == size


# The pairs of Kubernetes' TestQuantityString: canonical form and, after it, other ways to write the same.
@pytest.mark.parametrize(
    ("form", "others"),
    [
        ("1Gi", ["1024Mi", "1048576Ki"]),
        ("300Mi", ["307200Ki"]),
        ("6Ki", []),
        ("1001Gi", ["1025024Mi"]),
        ("1Ti", ["1024Gi"]),
        ("5", ["5000m"]),
        ("500m", ["0.5"]),
        ("1G", ["1000M", "0.001T", "1000000k", "1000000000"]),
        ("1m", ["1000u"]),
        ("80m", ["0.080"]),
        ("1080m", ["1.08", "1080000000n"]),
        ("300M", ["300000000"]),
        ("1T", ["1000G"]),
        ("1234567M", []),
        ("1234567m", []),
        ("3k", ["3000"]),
        ("1025", []),
        ("0", ["00", "0Ki", "0e3", "-0", ".0m"]),
        ("1e9", [".001e12"]),
        ("1e-3", ["0.001e0"]),
        ("1e-9", ["1000e-12"]),
        ("80e-3", []),
        ("300e6", []),
        ("1e12", []),
        ("1e3", []),
        ("3e3", []),
        ("1n", []),
        ("80n", []),
        ("1080n", ["1.08u"]),
        ("1u", []),
        ("80u", []),
        ("1080u", ["1.08m"]),
    ],
)
def test_quantity_string(form, others):
    for text in (form, *others):
        assert canonical(text) == form
        assert parse_quantity(text) == parse_quantity(form)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (5000, "5k"),
        (1_000_000, "1M"),
        (12_345_000, "12345k"),
        (676_500, "676500"),
        ("-1500", "-1500"),
        ("-2000", "-2k"),
        ("-2048Ki", "-2Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1.1Ki", "1126400m"),
        ("1000Ki", "1000Ki"),
        ("1025Ki", "1025Ki"),
        ("2.1Ki", "2150400m"),
        ("1.00146484375Ki", "1025500m"),
        ("1025.0Ki", "1025Ki"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.0000000001", "1000000001n"),
        ("5e0", "5"),
        ("5E", "5E"),
        ("7Ei", "7Ei"),
        ("12e1", "120"),
        ("12e5", "1200e3"),
        ("9223372036854775807", "9223372036854775807"),
        ("1.5", "1500m"),
        ("1025e0", "1025"),
    ],
)
def test_canonical_form(value, form):
    assert canonical(value) == form


def test_binary_suffix_stops_where_the_number_does():
    assert canonical("1025Mi") == "1025Mi"
    assert canonical("1.0009765625Ki") == "1025"


def test_canonical_refuses_rubbish():
    with pytest.raises(QuantityError):
        canonical("12 GiB")
