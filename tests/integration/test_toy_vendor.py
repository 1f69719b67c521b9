"""A third vendor, added in one place: the daemon, its settings and `--check` take it from its provider."""

import queue
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deviceplugin.check import check_node
from deviceplugin.errors import GpuError, NodeSettingsError
from deviceplugin.gpus.api.health import fault_event
from deviceplugin.gpus.api.provider import GpuProvider, SourceOptions
from deviceplugin.gpus.api.source import GpuCard, GpuSample, HealthEvent
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.sources import SOURCES
from deviceplugin.proof.report import prove_node
from deviceplugin.settings import Settings
from tests.integration.node_world import NODE, NodeWorld, card, events, metrics, running
from tests.waiting import until

GIB = 1024

TOY = Vendor(
    "toy.example",
    "TOY_CARDS",
    "FLAW",
    fault_meanings={7: "the spring is broken"},
    foreign_resources=r"toy\.example/card",
    foreign_advice="label toy.example/plugin=off",
)


class ToyGpus:
    """Two cards that a driver of this vendor might show."""

    vendor = TOY
    limits = None

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.news: queue.Queue[HealthEvent] = queue.Queue()

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.news.put(HealthEvent(card(0), healthy=None, reason="closed"))

    def detach(self) -> None:
        pass

    def driver_version(self) -> str:
        return "3.2.1"

    def cards(self) -> Sequence[GpuCard]:
        return [GpuCard(index, card(index), "Toy 8", 8 * GIB, 0, None, "", -1) for index in range(2)]

    def sample(self) -> Sequence[GpuSample]:
        return [GpuSample(one.uuid, 0, ()) for one in self.cards()]

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        with suppress(queue.Empty):
            return [self.news.get(timeout=timeout_s)]
        return []

    def flaw(self, uuid: str, code: int) -> None:
        self.news.put(fault_event(uuid, code, self.options.ignored_faults, TOY))


class ToyProvider(GpuProvider):
    """All that a vendor's folder must have."""

    name = "toy"
    vendor: ClassVar[Vendor | None] = TOY
    made: ClassVar[list[ToyGpus]] = []

    def make_source(self, options: SourceOptions) -> ToyGpus:
        self.made.append(ToyGpus(options))
        return self.made[-1]


@pytest.fixture(autouse=True)
def toy_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", ToyProvider())
    monkeypatch.setattr(ToyProvider, "made", [])


@asynccontextmanager
async def toy_world() -> AsyncIterator[NodeWorld]:
    def make(folder: Path) -> NodeWorld:
        world = NodeWorld(folder, (8, 8))
        # The daemon makes its source from the registry.
        world.source = None  # type: ignore[assignment]
        world.changes = {"gpus": "toy", "profile": None}
        return world

    async with running(make) as world:
        yield world


async def test_a_vendor_added_in_one_place_serves_pods_and_is_told_by_its_own_words():
    async with toy_world() as world:
        uid = await world.run("a", 4, on=0)
        assert world.env(uid)["TOY_CARDS"] == card(0)
        assert not [name for name in world.env(uid) if "NVIDIA" in name]
        await world.settled([4, 0], {uid})
        (source,) = ToyProvider.made
        source.flaw(card(0), 7)
        await until(lambda: "GPUFlawError" in messages(world))
        assert "FLAW 7: the spring is broken" in messages(world)["GPUFlawError"]
        assert (await metrics(world))["gpupack_card_flaw_errors_total"] == {("7", "Toy 8", card(0)): 1}


async def test_its_own_device_plugin_is_noticed_with_its_own_advice():
    async with toy_world() as world:
        offers = {"toy.example/card": "2"}
        counts = {"capacity": offers, "allocatable": offers}
        world.api.patch_node(NODE, {"status": counts})
        await until(lambda: "ConflictingDevicePlugin" in events(world))
        told = events(world)["ConflictingDevicePlugin"]
        assert "toy.example/card: 2" in told
        assert "(label toy.example/plugin=off)" in told


def messages(world: NodeWorld) -> dict[str, str]:
    """Messages of the Events about the Node and its pods, by reason."""
    return {event["reason"]: event["message"] for event in world.api.objects("events")}


def settings(folder: Path, **changes: Any) -> Any:
    return Settings(**{"node_name": NODE, "gpus": "toy", "device_plugin_dir": folder, **changes})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"profile": "2xt4"}, "--profile '2xt4': allowed with --gpus simulated only"),
        ({"sharing": "mps"}, "--sharing mps: allowed with --gpus nvml or simulated only"),
        ({"gpus": "doll"}, "--gpus 'doll'; allowed: nvml, simulated, toy"),
    ],
)
def test_what_it_lacks_is_refused_by_its_name(tmp_path: Path, changes: dict[str, Any], fault: str):
    with pytest.raises(NodeSettingsError) as found:
        settings(tmp_path, **changes).check()
    assert found.value.faults == (fault,)


def test_check_shows_its_cards_and_no_tool_of_others(tmp_path: Path):
    asked: list[list[str]] = []
    findings = {each.what: each for each in check_node(settings(tmp_path), asked.append)}
    assert findings["driver"].found == "3.2.1"
    assert findings[f"card {card(1)}"].found == "Toy 8, 8192 MiB for pods"
    assert not [what for what in findings if "toolkit" in what]
    assert asked == []


def test_nothing_can_be_proven_of_it(tmp_path: Path):
    with pytest.raises(GpuError, match="--gpus toy"):
        prove_node(settings(tmp_path), "0", busy=False, instances=False)
