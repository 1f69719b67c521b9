"""Precedence charts: weights of classes from a pairwise comparison of what each has."""

from collections.abc import Sequence
from fractions import Fraction

from scheduler_plugin.errors import PolicyError

_HALF = Fraction(1, 2)


def compute_chart(values: Sequence[Fraction | int | float]) -> tuple[Fraction, ...]:
    """Weigh k classes: `p_ij` is 1 if v_i > v_j, 1/2 if equal, else 0; `w_i = sum_j p_ij / (k*k/2)`.

    Args:
        values: One a class, at least two.

    Returns:
        Weights that sum to 1, the larger the value the larger the weight.

    Raises:
        PolicyError: fewer than two classes.
    """
    count = len(values)
    if count < 2:  # noqa: PLR2004 - nothing to compare
        raise PolicyError(f"precedence chart of {count} classes; allowed: 2 or more")
    scores = [
        sum((Fraction(1) if mine > other else _HALF if mine == other else Fraction(0)) for other in values)
        for mine in values
    ]
    return tuple(Fraction(score) / Fraction(count * count, 2) for score in scores)


def average_charts(charts: Sequence[Sequence[Fraction]]) -> tuple[Fraction, ...]:
    """Average weight vectors class by class."""
    return tuple(sum(column, Fraction(0)) / len(charts) for column in zip(*charts, strict=True))
