"""The sampler judges what the source measures, and notices cards that come back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from allocator.cards import Card
from allocator.ledger import Pod
from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.source import GpuCard, GpuProcess, GpuSample, HealthEvent
from deviceplugin.host.cgroups import ProcessPlace
from deviceplugin.host.driver import DriverThread
from deviceplugin.monitoring.card_driver import DETACH_AFTER_S, CardDriver
from deviceplugin.monitoring.card_health import CardHealth
from deviceplugin.monitoring.sampling import CardSampler
from deviceplugin.monitoring.telemetry import FRESH_S
from deviceplugin.node_events import make_silent_events

CARD = GpuCard(0, "GPU-a", "Card", 10240, 0, None, "", 0)


class Source:
    """One card as the test wants it."""

    def __init__(self) -> None:
        self.card = CARD
        self.measured = GpuSample("GPU-a", 0, ())
        self.broken = False
        self.attached = True

    def open(self) -> None: ...
    def close(self) -> None: ...
    def detach(self) -> None:
        self.attached = False

    def cards(self) -> Sequence[GpuCard]:
        return [self.card]

    def sample(self) -> Sequence[GpuSample]:
        if self.broken:
            raise GpuError("no driver")
        self.attached = True
        return [self.measured]

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        return []


class Ledger:
    """The part of a ledger that the sampler talks to."""

    def __init__(self) -> None:
        self.pressure: dict[str, int] = {}
        self.health: dict[str, bool] = {}
        self.out: dict[str, list[str]] = {}
        self.installed = [Card(0, "GPU-a", "Card", 10, 0)]

    def allocated_units_by_pod(self) -> dict[str, dict[str, int]]:
        return {"GPU-a": {"pod": 2}}

    def live_pods_by_card(self) -> dict[str, list[Pod]]:
        return {"GPU-a": []}

    def set_unaccounted_use(self, units: dict[str, int]) -> bool:
        changed, self.pressure = units != self.pressure, units
        return changed

    def set_unavailable(self, why: str, uuids: Sequence[str]) -> None:
        self.out[why] = list(uuids)

    def set_healthy(self, uuid: str, healthy: bool) -> None:
        self.health[uuid] = healthy


class World:
    """A sampler with everything around it; `now_s` is its clock."""

    def __init__(self) -> None:
        self.source, self.ledger, self.now_s = Source(), Ledger(), 0.0
        self.needed = True
        self.helpers: set[int] = set()
        self.lists: list[list[tuple[str, bool]]] = []
        account = SimpleNamespace(
            ledger=self.ledger,
            now_s=lambda: self.now_s,
            notify_subscribers=lambda: None,
            subscribe=lambda _: None,
        )
        notices = make_silent_events()
        self.sampler = CardSampler(
            account,
            self.source,
            SimpleNamespace(
                find_places=lambda pids: {
                    pid: ProcessPlace("pod", "") if pid == 1 else None for pid in pids if pid != 404
                },
            ),
            CardDriver(
                account, self.source, notices, DriverThread("gpu-driver"), is_unused=lambda: not self.needed
            ),
            CardHealth(account, HealthTracker(quiet_s=60), notices, lambda: None),
            unit_mib=1024,
            on_cards=self.take,
            list_helper_pids=lambda: self.helpers,
        )

    def take(self, gpus: Sequence[GpuCard], healthy: Callable[[str], bool]) -> bool:
        self.lists.append([(gpu.uuid, healthy(gpu.uuid)) for gpu in gpus])
        return True


@pytest.fixture
def world() -> World:
    return World()


async def test_use_beyond_the_promise_and_foreign_use_become_pressure(world: World) -> None:
    processes = (GpuProcess(1, 3000), GpuProcess(9, 500))
    world.source.measured = GpuSample("GPU-a", 3500, processes)
    await world.sampler._once()
    # 952 MiB beyond the promise of 2048 and 500 of nobody's: 1452 MiB.
    assert world.ledger.pressure == {"GPU-a": 2}


async def test_processes_that_only_serve_containers_are_nobodys_use(world: World) -> None:
    world.source.measured = GpuSample("GPU-a", 200, (GpuProcess(4711, 100), GpuProcess(1, 100)))
    await world.sampler._once()
    assert world.ledger.pressure == {"GPU-a": 1}
    world.helpers = {4711}
    await world.sampler._once()
    (sample,) = world.sampler.samples
    assert (sample.processes, sample.used_mib) == ((GpuProcess(1, 100),), 200)
    assert world.sampler.uses["GPU-a"].foreign_mib == 0


async def test_health_follows_the_samples(world: World) -> None:
    world.source.measured = replace(world.source.measured, error="GPU is lost")
    await world.sampler._once()
    assert world.ledger.health == {"GPU-a": False}
    world.source.measured = replace(world.source.measured, error=None)
    world.now_s = 60.0
    await world.sampler._once()
    assert world.ledger.health == {"GPU-a": True}


async def test_a_source_that_fails_as_a_whole_is_counted(world: World) -> None:
    world.source.broken = True
    await world.sampler._once()
    assert world.sampler.errors == 1


async def test_each_measurement_brings_the_list_of_cards_and_their_health(world: World) -> None:
    world.source.measured = replace(world.source.measured, error="GPU is lost")
    await world.sampler._once()
    world.source.card = replace(CARD, uuid="GPU-b")
    await world.sampler._once()
    assert world.lists == [[("GPU-a", True)], [("GPU-b", True)]]
    await world.sampler._once()
    world.source.card = CARD
    await world.sampler._once()
    assert world.lists[-1] == [("GPU-a", False)]


async def test_a_measurement_tells_when_it_was_begun(world: World) -> None:
    world.now_s = 5.0
    await world.sampler._once()
    world.now_s, world.source.broken = 10.0, True
    await world.sampler._once()
    assert (len(world.sampler.samples), world.sampler.sampled_s) == (1, 5.0)


async def test_a_card_that_fails_is_charged_on_and_its_use_is_not_told_as_measured(world: World) -> None:
    world.source.measured = GpuSample("GPU-a", 3000, (GpuProcess(9, 3000),), keeps_pages=True)
    await world.sampler._once()
    assert world.sampler.fresh_uses["GPU-a"].measured_mib == 3000
    assert world.sampler.residue_mib == {"GPU-a": 0}
    world.now_s = FRESH_S
    assert "GPU-a" in world.sampler.fresh_uses
    world.now_s += 1
    assert (world.sampler.fresh_uses, world.sampler.residue_mib) == ({}, {}), "the driver hangs"
    await world.sampler._once()
    assert "GPU-a" in world.sampler.fresh_uses
    world.source.measured = replace(world.source.measured, error="GPU is lost")
    await world.sampler._once()
    assert (world.sampler.fresh_uses, world.sampler.residue_mib) == ({}, {})
    assert world.ledger.pressure == {"GPU-a": 3}


async def test_a_process_of_no_pod_is_told_from_one_of_which_nothing_is_known(world: World) -> None:
    world.source.measured = GpuSample("GPU-a", 3, (GpuProcess(1, 1), GpuProcess(9, 1), GpuProcess(404, 1)))
    await world.sampler._once()
    assert world.sampler.places == {1: ProcessPlace("pod", ""), 9: None}


async def test_a_driver_that_nobody_needs_for_a_while_is_let_go_until_somebody_does(world: World) -> None:
    world.needed = False
    await world.sampler._once()
    world.now_s = DETACH_AFTER_S - 1
    world.needed = True
    await world.sampler._once()
    world.needed = False
    await world.sampler._once()
    world.now_s = 2 * DETACH_AFTER_S - 2
    await world.sampler._once()
    assert (world.source.attached, world.sampler.driver.is_detached) == (True, False)
    world.now_s += 1
    await world.sampler._once()
    assert (world.source.attached, world.sampler.driver.is_detached) == (False, True)
    assert world.ledger.out == {"detached": ["GPU-a"]}
    # However long it takes, the cards are not called unmeasured for that.
    world.now_s += 1000
    await world.sampler._once()
    assert not world.source.attached
    world.needed, world.source.broken = True, True
    await world.sampler._once()
    assert (world.ledger.out, world.ledger.health) == ({"detached": ["GPU-a"]}, {})
    world.source.broken = False
    await world.sampler._once()
    assert (world.source.attached, world.sampler.driver.is_detached) == (True, False)
    assert (world.ledger.out, world.ledger.health) == ({"detached": []}, {})


async def test_a_card_that_was_reported_without_a_reason_recovers_as_slowly_as_any_other(
    world: World,
) -> None:
    world.sampler.health.apply_events([HealthEvent("GPU-a", healthy=False, reason="")])
    for _ in range(2):
        await world.sampler._once()
    assert world.ledger.health == {"GPU-a": False}
    world.now_s = 60.0
    await world.sampler._once()
    assert world.ledger.health == {"GPU-a": True}
