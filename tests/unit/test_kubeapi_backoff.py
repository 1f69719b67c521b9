import math

import pytest
import structlog
from structlog.testing import capture_logs

from kubeapi.backoff import Backoff, KeyedBackoff
from kubeapi.errors import TooManyRequests


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


def test_a_log_tells_the_first_of_several_failures_louder() -> None:
    backoff = Backoff(1.0, 10.0, lambda _low, high: high)
    with capture_logs() as lines:
        log = structlog.get_logger()
        delays = [
            backoff.log_failure(log, "not written", error, pod="p")
            for error in (TooManyRequests("busy", retry_after_s=3.0), "no answer")
        ]
    assert delays == [3.0, 2.0]
    assert lines == [
        {"event": "not written", "error": "busy", "retry_s": 3.0, "pod": "p", "log_level": "warning"},
        {"event": "not written", "error": "no answer", "retry_s": 2.0, "pod": "p", "log_level": "debug"},
    ]


def test_the_pause_of_a_key_doubles_and_lasts_until_it_is_popped() -> None:
    backoff: KeyedBackoff[str] = KeyedBackoff(1.0, 4.0)
    assert [backoff.failed("a", now) for now in (0, 10, 20, 30)] == [1.0, 2.0, 4.0, 4.0]
    assert backoff.failed("b", 30, "refused") == 1.0
    assert (backoff.find_wait_s(30.5), backoff.find_wait_s(32.0)) == (0.5, 0.0)
    assert backoff.pop_due(30.5) == []
    assert backoff.pop_due(33.9) == ["b"]
    assert (backoff.is_paused("a"), backoff.is_paused("b")) == (True, False)
    assert (backoff.get_last_end("b"), backoff.get_last_end("c")) == (31.0, -math.inf)
    assert (backoff.explain_pause("b"), backoff.get_last_reason("b")) == ("", "refused")
    assert (backoff.count_failures("a"), backoff.count_failures("c")) == (4, 0)


def test_a_forgotten_key_starts_over_and_is_not_waited_for() -> None:
    backoff: KeyedBackoff[str] = KeyedBackoff(1.0, 4.0)
    for key in ("a", "a", "b"):
        backoff.failed(key, 0)
    backoff.forget_others({"a"})
    assert list(backoff) == ["a"]
    backoff.forget("a")
    assert backoff.find_wait_s(0) is None
    assert backoff.failed("a", 9) == 1.0


def test_a_pause_can_be_repeated_and_drawn() -> None:
    backoff: KeyedBackoff[str] = KeyedBackoff(2.0, 8.0, lambda low, _high: low)
    assert [backoff.failed("a", 0), backoff.failed("a", 0)] == [1.0, 2.0]
    backoff.pause_again("a", 10)
    assert backoff.find_wait_s(10) == 2.0
