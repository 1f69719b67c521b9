"""Simulated cards that change: by a script, by a profile that is written again, by a driver that hangs."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deviceplugin.errors import DriverGoneError, GpuError, ProfileError
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.profile import ProfileFile, parse_profile
from deviceplugin.gpus.simulated.script import ProcessGrowth
from deviceplugin.gpus.simulated.source import SimulatedGpus

PROFILE = """
version: "1.0"
device_defaults: {name: NVIDIA A100-SXM4-40GB, memory: {total_bytes: 42949672960, reserved_bytes: 543162368}}
devices:
  - {index: 0, uuid: GPU-a}
  - {index: 1, uuid: GPU-b, mig: {mode_current: enabled, gpu_instances: [{profile: 3g.20gb, count: 2}]}}
"""


class World:
    """Simulated cards by a clock that stands until it is set."""

    def __init__(self, more: str = "", changed: Callable[[], object] | None = None) -> None:
        self.now_s = 0.0
        profile = parse_profile("t", PROFILE + more)
        self.gpus = SimulatedGpus(profile, changed=changed, clock=lambda: self.now_s)  # type: ignore[arg-type]
        self.gpus.open()

    def at(self, now_s: float) -> dict[str, str | None]:
        """Errors by card at that time."""
        self.now_s = now_s
        return {sample.uuid: sample.error for sample in self.gpus.sample()}

    @property
    def models(self) -> list[str]:
        return [card.model.removeprefix("NVIDIA A100-SXM4-40GB").strip() for card in self.gpus.cards()]


@pytest.fixture
def world() -> World:
    return World()


def test_instances_are_listed_with_their_card_and_measured_alone(world: World) -> None:
    whole, first, second = world.gpus.cards()
    assert world.models == ["", "MIG 3g.20gb", "MIG 3g.20gb"]
    assert (whole.parent, first.parent, second.parent) == (None, "GPU-b", "GPU-b")
    assert [card.schedulable_mib // 1024 for card in world.gpus.cards()] == [39, 19, 19]
    world.gpus.set_used(second.uuid, 7)
    assert [sample.used_mib for sample in world.gpus.sample()] == [0, 0, 7]
    with pytest.raises(GpuError, match="allowed: 0 to 20220 MiB"):
        world.gpus.set_used(first.uuid, 30000)
    world.gpus.fail("GPU-b")
    assert list(world.at(0).values()) == [None, "GPU is lost", "GPU is lost"]


def test_instances_made_later_are_refused_to_a_container_without_access_to_all() -> None:
    """NVIDIA_MIG_MONITOR_DEVICES is missing: the siblings, and what was there at the start, are as ever."""
    world = World("driver: {new_instances: refused}")
    world.gpus.partition("GPU-b", ["3g.20gb", "2g.10gb", "1g.5gb"])
    whole, old, *new = world.gpus.cards()
    assert (whole.error, old.error, old.schedulable_mib // 1024) == (None, None, 19)
    assert [card.schedulable_mib for card in new] == [0, 0]
    assert {card.error for card in new} == {"the driver refuses the MIG instance: Insufficient Permissions"}
    assert list(world.at(0).values()) == [None, None, new[0].error, new[1].error]
    world.gpus.close()
    world.gpus.open()
    assert list(world.at(0).values()) == [None] * 4


def test_a_driver_that_is_unloaded_loaded_and_exchanged() -> None:
    script = [
        {"at_s": 10, "driver": "unloaded"},
        {"at_s": 20, "driver": "loaded"},
        {"at_s": 30, "driver": "exchanged"},
    ]
    world = World(f"script: {json.dumps(script)}")
    good = world.at(0)
    with pytest.raises(GpuError, match="not loaded") as error:
        world.at(15)
    assert not isinstance(error.value, DriverGoneError)
    assert world.at(20) == good
    with pytest.raises(DriverGoneError, match="exchanged; this process ends"):
        world.at(30)
    world.gpus.close()
    world.gpus.open()
    assert world.at(31) == good


def test_a_driver_that_stays_unloaded(world: World) -> None:
    world.at(31)
    world.gpus.unload()
    with pytest.raises(GpuError, match="not loaded"):
        world.at(31)
    with pytest.raises(DriverGoneError, match="not loaded for 120 s; this process ends"):
        world.at(31 + 120)
    world.gpus.close()
    with pytest.raises(GpuError, match="not loaded"):
        world.gpus.open()


def test_mig_mode_changes_once_the_driver_is_let_go() -> None:
    steps = [{"at_s": 10, "card": 0, "mig": ["3g.20gb"]}, {"at_s": 20, "card": 1, "mig": ["1g.5gb"]}]
    world = World(f"driver: {{mode_change: when_unused}}\nscript: {json.dumps(steps)}")
    world.at(30)
    assert world.models == ["", "MIG 3g.20gb", "MIG 3g.20gb"]
    assert world.gpus.events(0) == []
    world.gpus.detach()
    world.gpus.events(0)
    assert world.models == ["MIG 3g.20gb", "MIG 1g.5gb"]
    # Instances of a card that stays in MIG mode come and go at any time.
    other = World(f"driver: {{mode_change: when_unused}}\nscript: {json.dumps(steps[1:])}")
    other.at(30)
    assert other.models == ["", "MIG 1g.5gb"]


def test_a_card_that_is_open_is_neither_reset_nor_changed(world: World) -> None:
    world.gpus.fail("GPU-a")
    for change in (
        lambda: world.gpus.reset("GPU-a"),
        lambda: world.gpus.set_mig_mode("GPU-a", on=True),
        lambda: world.gpus.set_mig_mode("GPU-b", on=False),
    ):
        with pytest.raises(GpuError, match=r"card GPU-[ab]: in use by another client"):
            change()
    world.gpus.detach()
    world.gpus.reset("GPU-a")
    world.gpus.set_mig_mode("GPU-b", on=False)
    assert world.at(0) == {"GPU-a": None, "GPU-b": None}


def test_a_script_happens_in_time() -> None:
    world = World(
        """
script:
  - {at_s: 40, card: 1, mig: "off"}
  - {at_s: 10, card: 0, xid: 79, times: 3}
  - {at_s: 20, card: 0, vanish: true}
  - {at_s: 30, card: 0, return: true}
  - {at_s: 30, card: 1, mig: [3g.20gb, 1g.5gb]}
  - {at_s: 50, card: 0, grow: {pid: 7, to_mib: 100, over_s: 10}}
"""
    )
    stays = world.gpus.cards()[1].uuid
    assert set(world.at(9.9).values()) == {None}
    assert world.gpus.events(0) == []
    world.at(10)
    assert [(event.uuid, event.code, event.count) for event in world.gpus.events(0)] == [("GPU-a", 79, 3)]
    assert world.at(20)["GPU-a"] == "the card is not there any more"
    assert set(world.at(30).values()) == {None}
    assert world.models == ["", "MIG 3g.20gb", "MIG 1g.5gb"]
    assert world.gpus.cards()[1].uuid == stays
    world.at(40)
    assert world.models == ["", ""]
    world.at(50)
    for now_s, used_mib in ((50, 0), (55, 50), (60, 100), (99, 100)):
        world.now_s = now_s
        assert world.gpus.sample()[0].processes == (GpuProcess(7, used_mib),)


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("{at_s: 1}", "script[0]: nothing to do; allowed: exactly one of xid, vanish, return, mig"),
        ("{at_s: 1, card: 0, vanish: true, xid: 3}", "script[0]: xid and vanish; allowed: exactly one"),
        ("{at_s: 1, card: 9, vanish: true}", "script[0].card: 9; allowed: 0, 1"),
        ("{at_s: 1, vanish: true}", "script[0].card: None; allowed: 0, 1"),
        ("{at_s: -1, hang_s: 3}", "script[0].at_s: expected `float` >= 0"),
        ("{at_s: 1, card: 0, explode: true}", "script[0]: object contains unknown field `explode`"),
        ("{at_s: 1, card: 0, mig: all}", "script[0].mig: 'all'; allowed: a list of MIG profiles, or off"),
        ("{at_s: 1, card: 0, mig: [9g.90gb]}", "script at 1 s: mig: '9g.90gb'; allowed on NVIDIA A100"),
        ("{at_s: 1, card: 0, grow: {pid: 0, to_mib: 1}}", "script[0].grow.pid: expected `int` >= 1"),
    ],
)
def test_faults_of_a_script_are_named(step: str, fault: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile("t", f"{PROFILE}\nscript: [{step}]")
    assert [found for found in caught.value.faults if found.startswith(fault)], caught.value.faults


def test_impossible_instances_of_a_profile_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ProfileError, match=r"devices\[1\].mig: 3g.20gb \+ 3g.20gb \+ 3g.20gb have no room"):
        parse_profile("t", PROFILE.replace("count: 2", "count: 3"))


def test_instances_can_be_changed_and_wrong_ones_change_nothing(world: World) -> None:
    with pytest.raises(GpuError, match=r"card GPU-b: '9g'; allowed on .* are 1g.5gb"):
        world.gpus.partition("GPU-b", ["9g"])
    assert world.models == ["", "MIG 3g.20gb", "MIG 3g.20gb"]
    world.gpus.partition("GPU-a", [])
    assert world.at(0)["GPU-a"] == "MIG mode is on and there are no instances: create some or turn it off"


def test_a_process_grows_from_what_it_has_to_what_the_card_has(world: World) -> None:
    world.gpus.set_used("GPU-a", 10, [GpuProcess(3, 10)])
    world.gpus.grow("GPU-a", ProcessGrowth(pid=3, to_mib=99_000, over_s=2))
    world.now_s = 4
    assert world.gpus.sample()[0].used_mib == world.gpus.cards()[0].schedulable_mib


def test_a_hanging_driver_answers_when_it_is_told_to_or_closed(world: World) -> None:
    world.gpus.hang()
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(len(world.gpus.sample())))
    waiting.start()
    world.gpus.xid("GPU-a", 48)
    assert [event.code for event in world.gpus.events(30)] == [48]
    assert answers == []
    world.gpus.close()
    waiting.join(30)
    assert answers == [3]


def test_a_storm_comes_card_by_card(world: World) -> None:
    world.gpus.storm(["GPU-a", "GPU-b"], 31, 1001, 0.0)
    counts: dict[str, int] = {}
    while sum(counts.values()) < 1001:
        for event in world.gpus.events(30):
            counts[event.uuid] = counts.get(event.uuid, 0) + event.count
    assert counts == {"GPU-a": 501, "GPU-b": 500}


def test_a_changed_file_is_a_changed_node(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(PROFILE)
    watched = ProfileFile(str(file), NVIDIA)
    world = World(changed=watched.changed)
    stays = world.gpus.cards()[1].uuid
    assert watched.changed() is None
    file.write_text(PROFILE.replace("count: 2", "count: 1") + "  - {index: 2, uuid: GPU-c}\n")
    assert world.gpus.events(0) == []
    assert [card.uuid for card in world.gpus.cards()] == ["GPU-a", stays, "GPU-c"]
    file.write_text(PROFILE.replace("- {index: 0, uuid: GPU-a}", "- {index: 0, uuid: GPU-z}"))
    world.gpus.events(0)
    assert world.at(0)["GPU-a"] == "the card is not there any more"
    assert world.at(0)["GPU-z"] is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devices: 3", "expected `array`"),
        (PROFILE + "vendor: {domain: e.com, visible_devices: E}", "vendor: e.com"),
    ],
    ids=["rubbish", "another vendor"],
)
def test_a_changed_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(PROFILE)
    watched = ProfileFile(str(file), NVIDIA)
    file.write_text("version: 1\n" + text if text.startswith("dev") else text)
    with capture_logs() as logs:
        assert [watched.changed(), watched.changed()] == [None, None]
    (line,) = logs
    assert says in line["error"]
    file.unlink()
    assert watched.changed() is None
    assert ProfileFile("2xt4", NVIDIA).changed() is None


def test_the_script_of_a_changed_profile_is_about_its_own_cards(world: World) -> None:
    changed = PROFILE.replace("uuid: GPU-a", "uuid: GPU-z")
    script = "script: [{at_s: 1, card: 0, vanish: true}, {at_s: 2, card: 0, return: true}]"
    world.gpus.become(parse_profile("t", changed + script))
    gone = "the card is not there any more"
    assert [world.at(0)[uuid] for uuid in ("GPU-a", "GPU-z")] == [gone, None]
    assert [world.at(1)[uuid] for uuid in ("GPU-a", "GPU-z")] == [gone, gone]
    assert [world.at(2)[uuid] for uuid in ("GPU-a", "GPU-z")] == [gone, None]


def test_an_instance_that_is_placed_elsewhere_is_another_one() -> None:
    def placed(start: int) -> str:
        placed = f"{{mode_current: enabled, instances: [{{profile: 3g.20gb, placement_start: {start}}}]}}"
        return PROFILE.replace(
            "{mode_current: enabled, gpu_instances: [{profile: 3g.20gb, count: 2}]}", placed
        )

    world = World()
    _, first, second = world.gpus.cards()
    for start, left in ((4, second), (0, first)):
        world.gpus.become(parse_profile("t", placed(start)))
        assert [card.uuid for card in world.gpus.cards()] == ["GPU-a", left.uuid]


def test_compute_instances_of_one_gpu_instance_are_no_cards_until_one_is_alone() -> None:
    """Each would promise the memory that they share."""
    world = World("script: [{at_s: 10, card: 1, mig: [3g.20gb, 1c.3g.20gb, 1c.3g.20gb]}]")
    assert set(world.at(0).values()) == {None}
    pods = world.gpus.cards()[1].uuid
    errors = list(world.at(10).values())
    assert errors[:2] == [None, None]
    assert (
        errors[2]
        == errors[3]
        == (
            "2 compute instances share the memory of GPU instance 4: "
            "create one that has all of its compute slices"
        )
    )
    assert world.models[2:] == ["MIG 1c.3g.20gb"] * 2
    assert [card.schedulable_mib // 1024 for card in world.gpus.cards()] == [39, 19, 0, 0]
    assert [(card.gpu_instance, card.compute_instance) for card in world.gpus.cards()[1:]] == [
        (0, 0),
        (4, 0),
        (4, 1),
    ]
    assert world.gpus.cards()[1].uuid == pods
    world.gpus.partition("GPU-b", ["3g.20gb", "1c.3g.20gb"])
    assert [card.schedulable_mib // 1024 for card in world.gpus.cards()] == [39, 19, 19]
