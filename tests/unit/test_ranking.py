from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.scheduling.ranking import convert_to_protocol, rank_best

INF = float("inf")


def floats(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def ranks(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("scores", "names", "limit", "expected"),
    [
        ([], [], 3, []),
        ([0.5, 0.1, 0.3], [1, 2, 3], 5, [1, 2, 0]),
        ([0.5, 0.1, 0.3], [1, 2, 3], 2, [1, 2]),
        ([1, 1, 1, 1], [4, 3, 2, 1], 2, [3, 2]),
        ([1, 0, 1, 1], [4, 3, 2, 1], 2, [1, 3]),
        ([INF, 2, INF], [1, 2, 3], 2, [1]),
        ([INF, INF], [1, 2], 2, []),
    ],
    ids=["none", "all", "cut", "ties by name", "cut within ties", "held back", "all held back"],
)
def test_best(scores: list[float], names: list[int], limit: int, expected: list[int]) -> None:
    assert rank_best(floats(scores), ranks(names), limit).tolist() == expected


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, INF]), max_size=40), st.integers(1, 45), st.randoms())
def test_best_is_the_head_of_a_full_sort(scores: list[float], limit: int, random) -> None:  # type: ignore[no-untyped-def]
    names = list(range(len(scores)))
    random.shuffle(names)
    order = sorted((i for i in range(len(scores)) if scores[i] < INF), key=lambda i: (scores[i], names[i]))
    assert rank_best(floats(scores), ranks(names), limit).tolist() == order[:limit]


def test_protocol_scores_keep_the_order_at_the_top() -> None:
    scores = floats([0.3, 0.300001, *[0.5] * 12, INF])
    names = ranks([9, 1, *range(20, 32), 0])
    expected = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0]
    assert convert_to_protocol(scores, names).tolist() == expected


def test_protocol_scores_of_nothing() -> None:
    assert convert_to_protocol(floats([]), ranks([])).tolist() == []
