"""Device nodes of cards and of MIG instances, on a machine made of folders.

The files are those of NVIDIA's MIG User Guide, "Device Nodes and Capabilities".
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from deviceplugin import container_responses
from deviceplugin.containers.device_nodes import DeviceNodes
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.settings import Settings
from tests.nvml_world import Card, Driver, driver, gpus
from tests.responses_world import container_responses_of

__all__ = ["driver", "gpus"]

WHOLE = ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"]


class Machine:
    """A machine's /dev and /proc/driver."""

    def __init__(self, root: Path) -> None:
        self.devices, self.drivers = root / "dev", root / "driver"
        (self.devices / "nvidia-caps").mkdir(parents=True)
        self.drivers.mkdir()
        for node in ("nvidia3", "nvidia4", "nvidiactl", "nvidia-uvm"):
            (self.devices / node).touch()

    def capability(self, place: str, minor: int) -> None:
        """Let an instance be there: its file, and the node that nvidia-modprobe makes."""
        folder = self.drivers / "nvidia" / "capabilities" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "access").write_text(
            f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        )
        (self.devices / "nvidia-caps" / f"nvidia-cap{minor}").touch()

    def table(self) -> None:
        """Show the numbers of all capabilities there could be."""
        folder = self.drivers / "nvidia-caps"
        folder.mkdir()
        lines = ["config 1", "monitor 2"]
        minor = 3
        for card in range(5):
            for instance in range(15):
                lines.append(f"gpu{card}/gi{instance}/access {minor}")
                lines += [f"gpu{card}/gi{instance}/ci{part}/access {minor + 1 + part}" for part in range(8)]
                minor += 9
        (folder / "mig-minors").write_text("\n".join(lines) + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def of(machine: Machine, driver: Driver, gpus: NvmlGpus) -> Callable[..., list[str]]:
    """Start the driver with a card of two instances, and name nodes by UUID."""
    driver.cards[0].mig = [
        Card("MIG-1", instance=1),
        Card("MIG-5", instance=5, compute_instance=2),
    ]
    gpus.open()
    nodes = DeviceNodes(NVIDIA, gpus.cards, machine.devices, machine.drivers)
    return lambda *uuids: [node.path for node in nodes.list_nodes(uuids)]


def test_an_instance_has_the_nodes_of_its_card_and_of_two_capabilities(
    machine: Machine, of: Callable[..., list[str]]
) -> None:
    machine.capability("gpu3/mig/gi1", 12)
    machine.capability("gpu3/mig/gi1/ci0", 13)
    machine.capability("gpu3/mig/gi5", 48)
    machine.capability("gpu3/mig/gi5/ci2", 51)
    assert of("MIG-1") == [*WHOLE, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    assert of("MIG-5") == [*WHOLE, "/dev/nvidia-caps/nvidia-cap48", "/dev/nvidia-caps/nvidia-cap51"]
    assert of("MIG-1", "MIG-5", "GPU-b") == [
        *WHOLE,
        *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (12, 13, 48, 51)),
        "/dev/nvidia4",
    ]


def test_where_the_files_of_instances_are_hidden_the_table_has_their_numbers(
    machine: Machine, of: Callable[..., list[str]]
) -> None:
    """NVIDIA's runtime lays an empty folder over /proc/driver/nvidia in containers."""
    machine.table()
    base = 3 + 9 * (15 * 3 + 1)
    for minor in (base, base + 1):
        (machine.devices / "nvidia-caps" / f"nvidia-cap{minor}").touch()
    assert of("MIG-1")[-2:] == [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (base, base + 1)]


@pytest.mark.parametrize(
    "lacks", ["nvidia-caps/nvidia-cap13", "nvidia-caps/nvidia-cap12", "nvidia3"], ids=str
)
def test_an_instance_has_all_of_its_nodes_or_none_and_that_is_said_once(
    machine: Machine, of: Callable[..., list[str]], lacks: str
) -> None:
    machine.capability("gpu3/mig/gi1", 12)
    machine.capability("gpu3/mig/gi1/ci0", 13)
    (machine.devices / lacks).unlink()
    with capture_logs() as logs:
        assert of("MIG-1") == []
        assert of("MIG-1") == []
    assert [(entry["card"], entry["nodes"]) for entry in logs] == [
        ("MIG-1", ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"])
    ]
    (machine.devices / lacks).touch()
    assert len(of("MIG-1")) == 5


@pytest.mark.parametrize("text", [None, "", "DeviceFileMinor: many\n"], ids=["no file", "empty", "no number"])
def test_a_capability_of_which_nobody_tells_the_number_is_not_guessed(
    machine: Machine, of: Callable[..., list[str]], text: str | None
) -> None:
    """With the /proc based interface of driver 450 the files are empty."""
    machine.capability("gpu3/mig/gi1", 12)
    if text is not None:
        (machine.drivers / "nvidia/capabilities/gpu3/mig/gi1/access").write_text(text)
    with capture_logs() as logs:
        assert of("MIG-1") == []
    assert logs[0]["nodes"][1] == "of unknown number"


def test_an_instance_whose_numbers_the_driver_does_not_tell(
    machine: Machine, driver: Driver, gpus: NvmlGpus
) -> None:
    refuses = {"DeviceGetComputeInstanceId": pynvml.NVML_ERROR_UNKNOWN}
    driver.cards[0].mig = [Card("MIG-1", instance=1, errors=refuses)]
    machine.table()
    gpus.open()
    assert (gpus.cards()[0].gpu_instance, gpus.cards()[0].compute_instance) == (1, None)
    assert DeviceNodes(NVIDIA, gpus.cards, machine.devices, machine.drivers).list_nodes(["MIG-1"]) == ()


def test_a_daemon_with_pass_device_specs_gives_them_to_containers(
    machine: Machine, driver: Driver, gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.cards[0].mig = [Card("MIG-1", instance=1)]
    machine.capability("gpu3/mig/gi1", 12)
    machine.capability("gpu3/mig/gi1/ci0", 13)
    gpus.open()
    monkeypatch.setattr(container_responses, "DEVICES", machine.devices)
    monkeypatch.setattr(container_responses, "DRIVERS", machine.drivers)
    for wanted in (True, False):
        made = container_responses_of(Settings(node_name="n1", pass_device_specs=wanted), gpus)
        assert len(asyncio.run(made.make_grant({"MIG-1": 1024})).devices) == (5 if wanted else 0)


def test_simulated_instances_have_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_responses, "DEVICES", machine.devices)
    source = SimulatedGpus(load_profile("8xh200"))
    first = source.cards()[0].uuid
    source.partition(first, ["3g.71gb"])
    settings = Settings(node_name="n1", gpus="simulated", profile="8xh200", pass_device_specs=True)
    instance = source.cards()[0]
    assert instance.parent == first
    grant = asyncio.run(container_responses_of(settings, source).make_grant({instance.uuid: 1024}))
    assert grant.devices == ()


def test_containers_get_the_driver_where_no_runtime_brings_it() -> None:
    """As on GKE, which has it in a folder of the host."""
    source = SimulatedGpus(load_profile("2xt4"))
    for folder, mounted in ((None, ()), (Path("/home/driver"), ("/home/driver", "/usr/local/nvidia", True))):
        made = container_responses_of(Settings(node_name="n1", driver_dir=folder), source)
        grant = asyncio.run(made.make_grant({source.cards()[0].uuid: 1024}))
        found = [(mount.host_path, mount.container_path, mount.read_only) for mount in grant.mounts]
        assert found == ([mounted] if mounted else [])
