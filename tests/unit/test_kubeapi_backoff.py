import pytest

from kubeapi.backoff import Backoff


def test_delays_double_up_to_the_cap_and_start_over() -> None:
    backoff = Backoff(0.5, 15.0, lambda _low, high: high)
    assert [backoff.failed() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert backoff.failures == 7
    backoff.reset()
    assert backoff.failed() == 0.5


def test_delays_are_drawn_from_the_upper_half() -> None:
    bounds = []
    backoff = Backoff(2.0, 5.0, lambda low, high: bounds.append((low, high)) or low)
    assert [backoff.failed(), backoff.failed(), backoff.failed()] == [1.0, 2.0, 2.5]
    assert bounds == [(1.0, 2.0), (2.0, 4.0), (2.5, 5.0)]


@pytest.mark.parametrize(("asked_s", "delay_s"), [(None, 1.0), (0.1, 1.0), (3.0, 3.0), (1e9, 10.0)])
def test_the_servers_wish_is_heeded_up_to_the_cap(asked_s, delay_s) -> None:
    assert Backoff(1.0, 10.0, lambda _low, high: high).failed(asked_s) == delay_s


def test_an_outage_of_days_costs_no_memory() -> None:
    backoff = Backoff(0.5, 15.0, lambda _low, high: high)
    backoff.failures = 10**9
    assert backoff.failed() == 15.0


@pytest.mark.parametrize(("base_s", "cap_s"), [(0, 1), (-1, 1), (2, 1)])
def test_bad_ranges_are_refused(base_s, cap_s) -> None:
    with pytest.raises(ValueError, match="expected 0 < base <= cap"):
        Backoff(base_s, cap_s)
