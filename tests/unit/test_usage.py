"""What measured use costs beyond the promises, case by case."""

from dataclasses import replace

import pytest

from deviceplugin.gpus.api.source import GpuProcess, GpuSample
from deviceplugin.monitoring.unaccounted_use import PublishedUnits, UnaccountedUse, measure_unaccounted_use

U = "GPU-a"
POD = {"pod": 8192}
TWO = {"pod": 8192, "other": 4096}
# pid 1 belongs to pod, 2 to other, 3 to a pod without a promise here, 9 to nobody; 7 is not known.
OWNERS = {1: "pod", 2: "other", 3: "stranger", 9: None}


def sample(used_mib: int, *processes: tuple[int, int | None]) -> GpuSample:
    return GpuSample(U, used_mib, tuple(GpuProcess(pid, mib) for pid, mib in processes))


def blind(used_mib: int) -> GpuSample:
    return GpuSample(U, used_mib, None)


@pytest.mark.parametrize(
    ("measured", "promised", "foreign_mib", "beyond_mib"),
    [
        pytest.param(sample(0), {}, 0, 0, id="idle card"),
        pytest.param(sample(256), {}, 0, 0, id="an idle card's context is in the dead band"),
        pytest.param(sample(257), {}, 257, 0, id="past the dead band all of it counts"),
        pytest.param(sample(4000, (1, 4000)), POD, 0, 0, id="a pod within its promise"),
        pytest.param(sample(8192, (1, 8192)), POD, 0, 0, id="a pod that uses its promise"),
        pytest.param(sample(8448, (1, 8448)), POD, 0, 0, id="a little beyond is in the dead band"),
        pytest.param(sample(9000, (1, 9000)), POD, 0, 808, id="beyond its promise"),
        pytest.param(sample(5000, (9, 5000)), POD, 5000, 0, id="foreign adds up while the pod is idle"),
        pytest.param(sample(3, (9, 3)), POD, 3, 0, id="no dead band with a foreign process"),
        pytest.param(
            sample(500, (9, None)), POD, 500, 0, id="a foreign process that does not tell takes all"
        ),
        pytest.param(sample(0, (9, None)), POD, 0, 0, id="a foreign process with nothing costs nothing"),
        pytest.param(sample(5000, (3, 5000)), POD, 5000, 0, id="a pod without a promise is foreign"),
        pytest.param(sample(9000, (1, 8000), (9, 400)), POD, 1000, 0, id="what is nobody's is foreign"),
        pytest.param(sample(14000, (1, 9192), (2, 96)), TWO, 4712, 1000, id="modesty hides no excess"),
        pytest.param(sample(9192, (1, 9000), (1, 192)), POD, 0, 1000, id="a pod's processes add up"),
        pytest.param(
            sample(9000, (1, None)), POD, 0, 808, id="the only one that does not tell takes the rest"
        ),
        pytest.param(sample(9000, (1, None), (9, 500)), POD, 500, 308, id="the rest, after what others tell"),
        pytest.param(sample(100, (1, 9192)), POD, 0, 1000, id="processes count though the sum says less"),
    ],
)
def test_processes_that_can_be_told_apart(
    measured: GpuSample, promised: dict[str, int], foreign_mib: int, beyond_mib: int
) -> None:
    use = measure_unaccounted_use(measured, OWNERS, promised)
    assert (use.uuid, use.measured_mib) == (U, measured.used_mib)
    assert (use.foreign_mib, use.beyond_mib) == (foreign_mib, beyond_mib)


@pytest.mark.parametrize(
    ("measured", "promised", "foreign_mib", "beyond_mib", "residue_mib"),
    [
        pytest.param(sample(90_000), {}, 0, 0, 90_000, id="an idle card"),
        pytest.param(sample(94_000, (1, 4000)), POD, 0, 0, 90_000, id="beside a pod within its promise"),
        pytest.param(sample(99_192, (1, 9192)), POD, 0, 1000, 90_000, id="beside one beyond its promise"),
        pytest.param(sample(91_000, (9, 1000)), POD, 1000, 0, 90_000, id="beside a foreign process"),
        pytest.param(sample(90_000, (9, None)), POD, 90_000, 0, 0, id="a foreign one may have it all"),
        pytest.param(sample(90_000, (1, None)), POD, 0, 81_808, 0, id="a pod may have it all"),
        pytest.param(sample(90_000, (7, 100)), POD, 81_808, 0, 0, id="whose a process is, is not known"),
        pytest.param(blind(90_000), POD, 81_808, 0, 0, id="processes cannot be told"),
    ],
)
def test_pages_that_the_system_keeps_are_nobodys_use(
    measured: GpuSample,
    promised: dict[str, int],
    foreign_mib: int,
    beyond_mib: int,
    residue_mib: int,
) -> None:
    """GH200 in NUMA mode. Where somebody may use them they count as on every other card."""
    use = measure_unaccounted_use(replace(measured, keeps_pages=True), OWNERS, promised)
    assert (use.foreign_mib, use.beyond_mib, use.residue_mib) == (foreign_mib, beyond_mib, residue_mib)
    assert measure_unaccounted_use(measured, OWNERS, promised).residue_mib == 0


@pytest.mark.parametrize(
    ("foreign_mib", "beyond_mib", "units"), [(0, 0, 0), (1, 0, 1), (1024, 0, 1), (1024, 1, 2), (600, 424, 1)]
)
def test_units_round_up_once(foreign_mib: int, beyond_mib: int, units: int) -> None:
    assert UnaccountedUse(U, 0, foreign_mib, beyond_mib, 0).extra_units(1024) == units


@pytest.mark.parametrize(
    "measured",
    [
        pytest.param(blind(9192), id="no process list"),
        pytest.param(sample(9192, (1, None), (2, None)), id="two pods that do not tell"),
        pytest.param(sample(9192, (7, 100)), id="a process of unknown owner"),
    ],
)
def test_otherwise_it_is_what_exceeds_all_promises(measured: GpuSample) -> None:
    use = measure_unaccounted_use(measured, OWNERS, POD | ({"other": 0} if measured.processes else {}))
    assert (use.foreign_mib + use.beyond_mib, use.mark_mib) == (1000, 1000)


def test_the_mark_stays_while_pods_hide_what_others_use() -> None:
    use = measure_unaccounted_use(blind(10000), {}, POD)
    assert use.foreign_mib == 1808
    use = measure_unaccounted_use(blind(5000), {}, POD, use)
    assert use.foreign_mib == 1808
    use = measure_unaccounted_use(blind(11000), {}, POD, use)
    assert use.foreign_mib == 2808


def test_the_mark_comes_down_to_what_is_measured() -> None:
    use = measure_unaccounted_use(blind(10000), {}, POD)
    use = measure_unaccounted_use(blind(700), {}, POD, use)
    assert use.foreign_mib == 700
    use = measure_unaccounted_use(blind(200), {}, POD, use)
    assert (use.foreign_mib, use.mark_mib) == (0, 200)


def test_a_card_whose_pods_ended_shows_what_is_measured() -> None:
    use = measure_unaccounted_use(blind(9000), {}, POD)
    use = measure_unaccounted_use(blind(3000), {}, {}, use)
    assert use.foreign_mib == 3000
    use = measure_unaccounted_use(blind(0), {}, {}, use)
    assert use.extra_units(1024) == 0


def test_what_is_known_of_some_processes_is_the_least() -> None:
    use = measure_unaccounted_use(sample(6000, (9, 3000), (1, None), (2, None)), OWNERS, TWO)
    assert use.foreign_mib == 3000
    use = measure_unaccounted_use(sample(12000, (2, 5000), (7, None)), OWNERS, TWO)
    assert (use.foreign_mib, use.beyond_mib) == (0, 904)


def test_a_foreign_process_ends_the_dead_band_without_lists_too() -> None:
    assert measure_unaccounted_use(sample(8292, (9, None), (1, None)), OWNERS, POD).foreign_mib == 100
    assert (
        measure_unaccounted_use(sample(8292, (2, None), (1, None)), OWNERS, POD | {"other": 0}).foreign_mib
        == 0
    )


def test_what_was_told_apart_is_kept_when_it_no_longer_is() -> None:
    use = measure_unaccounted_use(sample(7000, (1, 4000), (9, 3000)), OWNERS, POD)
    assert measure_unaccounted_use(blind(7000), {}, POD, use).foreign_mib == 3000


def test_the_mark_is_dropped_once_processes_can_be_told_apart() -> None:
    use = measure_unaccounted_use(blind(10000), {}, POD)
    use = measure_unaccounted_use(sample(10000, (1, 8000), (9, 2000)), OWNERS, POD, use)
    assert (use.foreign_mib, use.mark_mib) == (2000, 2000)
    assert measure_unaccounted_use(sample(8000, (1, 8000)), OWNERS, POD, use).extra_units(1024) == 0


def test_a_failed_sample_leaves_the_use_as_it_was() -> None:
    before = measure_unaccounted_use(sample(5000, (9, 5000)), OWNERS, POD)
    failed = GpuSample(U, 0, None, error="lost")
    assert measure_unaccounted_use(failed, {}, POD, before) == before
    assert measure_unaccounted_use(failed, {}, POD) == UnaccountedUse(U, 0, 0, 0, 0)


def test_use_that_swings_about_a_whole_unit_is_published_once() -> None:
    now_s = 0.0
    published = PublishedUnits(1024, lambda: now_s)
    seen = []
    for turn in range(100):
        now_s = 5.0 * turn
        use = UnaccountedUse(U, 3000, 2048 + (32 if turn % 2 else -32), 0, 2048)
        seen.append(published.round_up([use])[U])
    assert seen == [2] + [3] * 99


@pytest.mark.parametrize(
    ("after_s", "foreign_mib", "mark_mib", "units"),
    [
        pytest.param(59, 2000, 2000, 3, id="a small fall waits"),
        pytest.param(60, 2000, 2000, 2, id="one that lasts counts"),
        pytest.param(1, 1700, 1700, 2, id="a large fall counts at once"),
        pytest.param(1, 3500, 3500, 4, id="a rise too"),
    ],
)
def test_when_a_fall_is_published(after_s: float, foreign_mib: int, mark_mib: int, units: int) -> None:
    now_s = 0.0
    published = PublishedUnits(1024, lambda: now_s)
    assert published.round_up([UnaccountedUse(U, 9000, 2100, 0, 2100)]) == {U: 3}
    now_s = after_s
    assert published.round_up([UnaccountedUse(U, 9000, foreign_mib, 0, mark_mib)]) == {U: units}


def test_the_dead_bands_edge_is_a_small_fall_and_the_end_of_all_use_none() -> None:
    published = PublishedUnits(1024, lambda: 1.0)
    assert published.round_up([UnaccountedUse(U, 288, 0, 288, 288)]) == {U: 1}
    assert published.round_up([UnaccountedUse(U, 224, 0, 0, 224)]) == {U: 1}
    assert published.round_up([UnaccountedUse(U, 0, 0, 0, 0)]) == {U: 0}
