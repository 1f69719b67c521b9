"""Whatever the driver tells, published use covers what is really used: a card never looks emptier."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.gpus.api.source import GpuProcess, GpuSample
from deviceplugin.monitoring.unaccounted_use import DEAD_BAND_MIB, UnaccountedUse, measure_unaccounted_use

PODS = ("a", "b", "c")

mib = st.integers(0, 5000)
truths = st.fixed_dictionaries({"a": mib, "b": mib, "c": mib, "nobody": mib})
promises = st.dictionaries(st.sampled_from(PODS), mib)
views = st.sampled_from(["told", "silent", "hidden", "unowned"])


def measure(truth: dict[str, int], view: str) -> tuple[GpuSample, dict[int, str | None]]:
    """Show the truth as a driver would: with each process's use, without it, without processes or owners."""
    pids = {name: 10 + at for at, name in enumerate(truth)}
    processes = tuple(
        GpuProcess(pids[name], None if view == "silent" else used) for name, used in truth.items() if used
    )
    owners = {pid: name if name in PODS else None for name, pid in pids.items()}
    total = sum(truth.values())
    if view == "hidden":
        return GpuSample("GPU-a", total, None), owners
    return GpuSample("GPU-a", total, processes), {} if view == "unowned" else owners


@given(truths, promises)
def test_use_that_is_told_is_counted_exactly(truth: dict[str, int], promised: dict[str, int]) -> None:
    sample, owners = measure(truth, "told")
    use = measure_unaccounted_use(sample, owners, promised)
    extra = sum(max(0, used - promised.get(name, 0)) for name, used in truth.items())
    foreign_there = any(used and name not in promised for name, used in truth.items())
    assert use.foreign_mib + use.beyond_mib == (extra if foreign_there or extra > DEAD_BAND_MIB else 0)


@given(st.lists(st.tuples(truths, promises, views), min_size=1))
def test_promises_and_extra_cover_what_is_measured(
    steps: list[tuple[dict[str, int], dict[str, int], str]],
) -> None:
    previous: UnaccountedUse | None = None
    for truth, promised, view in steps:
        sample, owners = measure(truth, view)
        previous = measure_unaccounted_use(sample, owners, promised, previous)
        extra_mib = previous.foreign_mib + previous.beyond_mib
        assert sum(promised.values()) + extra_mib >= sample.used_mib - DEAD_BAND_MIB
        assert 0 <= extra_mib <= sample.used_mib
        assert previous.extra_units(1024) * 1024 >= extra_mib


@given(st.lists(st.tuples(truths, st.sampled_from(["hidden", "silent", "unowned"])), min_size=1), promises)
def test_hidden_foreign_use_once_seen_is_not_forgotten_while_it_lasts(
    steps: list[tuple[dict[str, int], str]], promised: dict[str, int]
) -> None:
    previous: UnaccountedUse | None = None
    seen_mib = 0
    for truth, view in steps:
        sample, owners = measure(truth, view)
        seen_mib = min(max(seen_mib, sample.used_mib - sum(promised.values())), sample.used_mib)
        previous = measure_unaccounted_use(sample, owners, promised, previous)
        untold = (
            view != "silent" or len({n if n in promised else "" for n, used in truth.items() if used}) > 1
        )
        if not untold:
            seen_mib = previous.mark_mib
        assert previous.mark_mib >= seen_mib


@given(truths, truths, promises, views)
def test_a_card_left_by_its_pods_shows_what_is_measured(
    before: dict[str, int], after: dict[str, int], promised: dict[str, int], view: str
) -> None:
    sample, owners = measure(before, view)
    previous = measure_unaccounted_use(sample, owners, promised)
    sample, owners = measure(after, view)
    use = measure_unaccounted_use(sample, owners, {}, previous)
    foreign_there = view in {"told", "silent"} and any(after.values())
    expected = sample.used_mib if foreign_there or sample.used_mib > DEAD_BAND_MIB else 0
    assert use.foreign_mib == expected
