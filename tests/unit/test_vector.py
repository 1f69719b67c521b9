"""The vectorised decoder: golden words, masks of bad rows, refusals."""

import numpy as np
import pytest

from allocator.errors import PackingError
from allocator.vector import decode_many, valid_nodes, valid_words


@pytest.mark.parametrize(
    ("values", "bits", "words"),
    [
        ([20, 20, 20, 20], 5, [676500]),
        ([80] * 8, 7, [354614143887440, 80]),
        ([127] * 8, 7, [562949953421311, 127]),
        ([255] * 8, 8, [281474976710655, 65535]),
        (list(range(16)), 8, [5514788471040, 12137729099526, 252579084]),
        ([], 7, []),
    ],
)
def test_golden_words(values, bits, words):
    many = decode_many(np.array([words] * 3, dtype=np.int64).reshape(3, -1), bits, len(values))
    assert many.dtype == np.int32
    assert many.tolist() == [values] * 3


def test_no_nodes():
    assert decode_many(np.empty((0, 2), dtype=np.int64), 7, 8).shape == (0, 8)


def test_wide_fields_stay_exact():
    many = decode_many(np.array([[2**53 - 1, 5]], dtype=np.int64), 53, 2)
    assert many.dtype == np.int64
    assert many.tolist() == [[2**53 - 1, 5]]
    assert decode_many(np.array([[2**31 - 1]], dtype=np.int64), 31, 1).tolist() == [[2**31 - 1]]


def test_bad_rows_are_told():
    words = np.array([[0, 80], [-1, 0], [0, 128], [1 << 49, 0], [562949953421311, 127]], dtype=np.int64)
    assert valid_words(words, 7, 8).tolist() == [True, False, False, False, True]
    with pytest.raises(PackingError, match=r"words \[-1, 0\] in row 1: allowed are 8 cards of 7 bits"):
        decode_many(words, 7, 8)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (3, 2, 1)])
def test_wrong_shapes(shape):
    with pytest.raises(PackingError, match=r"allowed is \[nodes, 2\]"):
        decode_many(np.zeros(shape, dtype=np.int64), 7, 8)


@pytest.mark.parametrize(("bits", "cards"), [(0, 8), (54, 8), (7, -1), (7, 1024)])
def test_impossible_layouts(bits, cards):
    with pytest.raises(PackingError, match=r"^layout with"):
        decode_many(np.zeros((1, 2), dtype=np.int64), bits, cards)


def test_used_beyond_size_is_told():
    sizes = np.array([[16, 16]] * 4, dtype=np.int32)
    used = np.array([[0, 16], [17, 0], [0, 17], [-1, 0]], dtype=np.int32)
    assert valid_nodes(sizes, used).tolist() == [True, False, False, False]
