"""The NVML source through the real pynvml on nvml-mock, a libnvidia-ml.so that needs no GPU.

The library reads its environment when its process starts, so each test talks to a child process that holds
the source and answers one JSON line for each command.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.source import GpuSample, HealthEvent
from tests.yaml_text import read_yaml

MOCK = os.environ.get("GPUPACK_NVML_MOCK", "")

pytestmark = pytest.mark.skipif(
    not MOCK, reason="GPUPACK_NVML_MOCK names no folder with nvml-mock's libnvidia-ml.so.1 and its profiles"
)

MEMORY_ERRORS = (
    "ecc_uncorrected",
    "rows_remapped_corrected",
    "rows_remapped_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "pages_retired_corrected",
    "pages_retired_uncorrected",
    "page_retirement_pending",
)

CHILD = """
import dataclasses, json, sys
import pynvml
from deviceplugin.gpus.nvidia.source import NvmlGpus
if sys.argv[1] == "v1":
    # An old driver: the library without its v2 call.
    found = pynvml._nvmlGetFunctionPointer
    def without_v2(name):
        if name == "nvmlDeviceGetMemoryInfo_v2":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return found(name)
    pynvml._nvmlGetFunctionPointer = without_v2
now_s = [0.0]
gpus = NvmlGpus(clock=lambda: now_s[0])
gpus.open()
print("[]", flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "start_again":
        now_s[0] += 60.0
        command = "sample"
    if command == "support":
        supports = [gpus.limits.support(card.uuid) for card in gpus.cards()]
        print(json.dumps([dataclasses.asdict(support) for support in supports]), flush=True)
        continue
    answer = gpus.events(0.05) if command == "events" else getattr(gpus, command)()
    print(json.dumps([dataclasses.asdict(item) for item in answer or ()]), flush=True)
    if command == "close":
        break
"""


class Child:
    """A process with the source open in it."""

    def __init__(self, profile: Path, overrides: Path, memory: str) -> None:
        environment = os.environ | {
            "LD_LIBRARY_PATH": MOCK,
            "MOCK_NVML_CONFIG": str(profile),
            "MOCK_NVML_OVERRIDES": str(overrides),
            "MOCK_NVML_OVERRIDES_TTL": "20ms",
        }
        self._overrides = overrides
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, memory],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == []

    def ask(self, command: str) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def until(self, command: str, wanted: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while not wanted(answer := self.ask(command)):
            assert time.monotonic() < deadline, answer
        return answer

    def override(self, devices: dict[str, Any]) -> None:
        draft = self._overrides.with_suffix(".tmp")
        draft.write_text(yaml.safe_dump({"version": 1, "devices": devices}))
        draft.rename(self._overrides)

    def end(self) -> None:
        self.ask("close")
        assert self._process.wait(60) == 0
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _answer(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the child ended with {self._process.wait(60)}"
        return list(json.loads(line))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def begin(profile: str | Path = "h100", memory: str = "v2") -> Child:
        path = profile if isinstance(profile, Path) else Path(MOCK) / "profiles" / f"{profile}.yaml"
        children.append(Child(path, tmp_path / "overrides.yaml", memory))
        return children[-1]

    yield begin
    for child in children:
        child.end()


def switched(uuid: str, document: dict[str, Any]) -> list[list[Any]]:
    """Links through the profile's switches: to every other card, all that the card has."""
    nvlink = document.get("nvlink") or {}
    count = nvlink.get("links_per_gpu", 0) if nvlink.get("switches") else 0
    others = sorted(device["uuid"] for device in document["devices"] if device["uuid"] != uuid)
    return [[other, count] for other in others] if count else []


@pytest.mark.parametrize("name", ["a100", "h100", "l40s", "t4"])
def test_enumeration(start: Callable[..., Child], name: str) -> None:
    document = read_yaml((Path(MOCK) / "profiles" / f"{name}.yaml").read_text())
    memory = document["device_defaults"]["memory"]
    nodes = {
        bus_id.lower(): root["numa_node"]
        for root in document["pcie_topology"]["root_complexes"]
        for bus_id in root["devices"]
    }
    assert start(name).ask("cards") == [
        {
            "index": device["index"],
            "uuid": device["uuid"],
            "model": document["device_defaults"]["name"],
            "total_mib": memory["total_bytes"] >> 20,
            "reserved_mib": -(-memory["reserved_bytes"] >> 20),
            "numa": nodes[device["pci"]["bus_id"].lower()],
            "bus_id": device["pci"]["bus_id"].lower(),
            "minor": device["minor_number"],
            "error": None,
            "parent": None,
            "links": switched(device["uuid"], document),
            "gpu_instance": None,
            "compute_instance": None,
            "memory_node": None,
            "architecture": document["device_defaults"]["architecture"].removesuffix("_lovelace"),
        }
        for device in document["devices"]
    ]


def test_memory_v1_does_not_know_the_reserved_part(start: Callable[..., Child]) -> None:
    child = start("t4", memory="v1")
    assert [(card["total_mib"], card["reserved_mib"]) for card in child.ask("cards")] == [(16384, 0)] * 4
    assert [sample["error"] for sample in child.ask("sample")] == [None] * 4


def test_memory_and_processes_are_measured(start: Callable[..., Child]) -> None:
    child = start()
    assert child.ask("sample")[0] == {
        "uuid": "GPU-01000100-0000-0000-0000-000000000000",
        "used_mib": 0,
        "processes": [],
        "error": None,
        "memory_errors": dict.fromkeys(MEMORY_ERRORS, 0),
        "keeps_pages": False,
        # As the profile's sections power, thermal, clocks, clocks_throttle_reasons and utilization say.
        "telemetry": {
            "utilization_percent": 0.0,
            "memory_utilization_percent": 0.0,
            "temperature_c": 34.0,
            "power_w": 95.0,
            "power_limit_w": 700.0,
            "sm_clock_mhz": 345.0,
            "memory_clock_mhz": 1593.0,
            "throttle_reasons": ["gpu_idle"],
        },
    }
    processes = [
        {"pid": 4242, "type": "C", "name": "train", "used_memory_mib": 4096},
        {"pid": 99, "type": "G", "name": "display", "used_memory_mib": 16},
    ]
    memory = {"used_bytes": 10737418240, "free_bytes": 74088185856}
    child.override({"0": {"memory": memory, "processes": processes}})
    samples = child.until("sample", lambda samples: samples[0]["used_mib"])
    assert samples[0]["used_mib"] == 10240
    assert samples[0]["processes"] == [{"pid": 99, "used_mib": 16}, {"pid": 4242, "used_mib": 4096}]
    assert samples[1]["used_mib"] == 0


def test_a_driver_without_the_calls_for_limits_is_accounted(start: Callable[..., Child]) -> None:
    found = {
        (support["can_limit"], support["reason"], support["since"]) for support in start("t4").ask("support")
    }
    ((held, reason, since),) = found
    assert not held
    assert "has no call for memory limits" in reason
    assert "615" in since


def test_the_nodes_check_names_what_the_driver_lacks() -> None:
    environment = os.environ | {
        "LD_LIBRARY_PATH": MOCK,
        "MOCK_NVML_CONFIG": str(Path(MOCK) / "profiles" / "t4.yaml"),
    }
    command = [sys.executable, "-m", "gpupack", "node", "--check", "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    findings = {each["what"]: each for each in json.loads(done.stdout)}
    assert findings["call nvmlDeviceSetMemoryLimits_v1"]["found"] == "missing"
    assert findings["call nvmlDeviceGetMemoryInfo_v2"]["found"] == "there"
    assert "has no call for memory limits; it takes driver 615" in findings["memory of 4 cards"]["found"]
    assert findings["memory of 4 cards"]["verdict"] == "less"


def test_an_xid_makes_its_card_unhealthy_and_it_heals(start: Callable[..., Child]) -> None:
    child = start()
    uuid = child.ask("cards")[3]["uuid"]
    child.override({"3": {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": 79}}}})
    child.until("sample", lambda samples: samples[3]["error"])
    (news,) = child.until("events", bool)
    said = {"healthy": False, "reason": "XID 79: the card has fallen off the bus", "code": 79, "count": 1}
    assert news == {"uuid": uuid, **said}
    tracker = HealthTracker(quiet_s=60)
    tracker.on_event(HealthEvent(**news), 0)
    # While the errors go on every sample is trouble; without the failure one is enough after the quiet.
    sick = child.ask("sample")
    assert "uncorrectable ECC errors" in sick[3]["error"]
    assert [sample["error"] for sample in sick[:3]] == [None] * 3
    tracker.on_sample(GpuSample(uuid, 0, None, sick[3]["error"]), 100)
    assert tracker.find_trouble(uuid) is not None
    child.override({})
    child.until("sample", lambda samples: samples[3]["error"] is None)
    tracker.on_sample(GpuSample(uuid, 0, None, child.ask("sample")[3]["error"]), 160)
    assert tracker.find_trouble(uuid) is None
    assert child.ask("events") == []


@pytest.mark.parametrize("code", [13, 31, 43])
def test_an_applications_xid_says_nothing_of_its_card(start: Callable[..., Child], code: int) -> None:
    child = start("t4")
    child.override(
        {
            "0": {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": code}}},
            "1": {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": 95}}},
        }
    )
    child.until("sample", lambda samples: samples[0]["error"] and samples[1]["error"])
    news: list[dict[str, Any]] = []
    while len({each["code"] for each in news}) < 2:
        news += child.until("events", bool)
    assert {(each["code"], each["healthy"]) for each in news} == {(code, None), (95, False)}


@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
def test_a_lost_card_fails_alone_and_heals(start: Callable[..., Child], mode: str) -> None:
    child = start("a100")
    child.override({"1": {"failure": {"mode": mode}}})
    samples = child.until("sample", lambda samples: samples[1]["error"])
    # The sample that finds the card lost fails at its memory, unless the card was lost before it was listed.
    assert samples[1]["error"].endswith(": GPU is lost")
    assert child.ask("sample")[1]["error"] == "the driver does not show the card any more: GPU is lost"
    assert [at for at, sample in enumerate(samples) if sample["error"]] == [1]
    child.override({})
    child.until("sample", lambda samples: all(sample["error"] is None for sample in samples))


def test_a_card_that_is_lost_from_the_start_shows_up_later(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    document = read_yaml((Path(MOCK) / "profiles" / "t4.yaml").read_text())
    document["devices"][2]["failure"] = {"mode": "lost"}
    (tmp_path / "lost.yaml").write_text(json.dumps(document))
    child = start(tmp_path / "lost.yaml")
    cards = child.ask("cards")
    assert [card["error"] is None for card in cards] == [True, True, False, True]
    assert (cards[2]["index"], cards[2]["total_mib"]) == (2, 0)
    child.override({"2": {"failure": {"mode": "healthy"}}})
    child.until("sample", lambda samples: samples[2]["error"] is None)
    assert child.ask("cards")[2]["uuid"] == document["devices"][2]["uuid"]
    assert child.ask("cards")[2]["total_mib"] == 16384


def test_the_library_is_started_again_for_a_lost_card(start: Callable[..., Child]) -> None:
    child = start("t4")
    uuid = child.ask("cards")[1]["uuid"]
    child.override({"1": {"failure": {"mode": "lost"}}})
    child.until("sample", lambda samples: samples[1]["error"])
    # Shut down and started with the card lost: the others are measured, and it keeps its place.
    child.ask("start_again")
    samples = child.ask("sample")
    assert [sample["error"] is None for sample in samples] == [True, False, True, True]
    assert [card["uuid"] for card in child.ask("cards")][1] == uuid
    child.override({"2": {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": 48}}}})
    child.until("sample", lambda samples: samples[1]["error"] is None and samples[2]["error"])
    (news,) = child.until("events", bool)
    assert (news["code"], [card["error"] for card in child.ask("cards")]) == (48, [None] * 4)


def test_the_library_is_let_go_and_taken_up_again(start: Callable[..., Child]) -> None:
    child = start("t4")
    cards = child.ask("cards")
    assert child.ask("detach") == []
    assert child.ask("cards") == cards
    assert [sample["error"] for sample in child.ask("sample")] == [None] * 4
    assert child.ask("cards") == cards
    child.override({"2": {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": 48}}}})
    child.until("sample", lambda samples: samples[2]["error"])
    (news,) = child.until("events", bool)
    assert (news["code"], news["uuid"]) == (48, cards[2]["uuid"])
