"""`gpupack node --check --prove` on NVML, through the real pynvml, in several moods."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.provable import FAULTS, MIG_CHANGES
from deviceplugin.gpus.nvidia.events import KINDS
from deviceplugin.gpus.nvidia.proving import NvmlProvable
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.proof.prover import LIMIT_MIB, CardProof, Prover
from tests.nvml_world import Card, Driver, process
from tests.proof_world import User, found, prove, prover, results, root_of

MIB = 1 << 20


class Provable(NvmlProvable):
    """NVML, with memory users that know the limits of the driver by themselves."""

    def __init__(self, source: NvmlGpus, driver: Driver, card: Card, cgroup: Path) -> None:
        super().__init__(source)
        self.driver = driver
        self.card = card
        self.key = card.uuid, str(cgroup)
        self.user = User(self.gives)

    def gives(self, mib: int) -> bool:
        """Count a context of 400 MiB, too."""
        limits = self.driver.limits
        given = mib + 400 <= limits.hard.get(self.key, 1 << 64) // MIB
        if given:
            self.card.compute = [process(self.user.pid, mib + 400)]
            limits.used[self.key] = (mib + 400) * MIB
        return given

    def memory_user(self, uuid: str, cgroup: Path) -> Any:
        assert (uuid, str(cgroup)) == self.key
        return self.user


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    made = Driver(mocker)
    made.upgrade()
    made.cards = [Card("GPU-a")]
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_of(tmp_path)


@pytest.fixture
def source(driver: Driver, root: Path) -> Iterator[NvmlGpus]:
    """Make a source that a test opens once its cards are as they should be."""
    del driver
    made = NvmlGpus(pci_devices=root, cgroup_root=root, probe_parent=lambda: root / "kubepods")
    yield made
    made.close()


@pytest.fixture
def trying(driver: Driver, root: Path, source: NvmlGpus) -> Prover:
    source.open()
    cgroup = root / "kubepods" / "gpupack-proof"
    return prover(source, root, Provable(source, driver, driver.cards[0], cgroup))


@pytest.mark.parametrize("unset", [None, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
@pytest.mark.parametrize("inherits", [False, True])
@pytest.mark.parametrize("has_reserved", [False, True])
def test_a_driver_that_does_as_documented_is_proven(
    driver: Driver, root: Path, trying: Prover, unset: int | None, inherits: bool, has_reserved: bool
) -> None:
    driver.limits.unset, driver.limits.inherits = unset, inherits
    driver.cards[0].used_has_reserved = has_reserved
    trying.run()
    said = results(trying.proofs)
    assert {name for name, result in said.items() if result not in {"proven", "measured"}} == set()
    assert said["limit refuses"] == said["more without the limit"] == said["undone"] == "proven"
    told = "used has reserved in it" if has_reserved else "used is without reserved"
    assert found(trying.proofs, "used and reserved memory").startswith(told)
    assert (f"{LIMIT_MIB} MiB" in found(trying.proofs, "limit of a cgroup below")) == inherits
    assert found(trying.proofs, "limit refuses").startswith("1536 MiB were given")
    assert found(trying.proofs, "use is counted").startswith("1936 MiB")
    assert found(trying.proofs, "processes").startswith("1 are listed, ours with 1936 MiB")
    assert driver.limits.standing() == {}
    assert sorted(path.name for path in (root / "kubepods").iterdir()) == []


def test_limits_without_the_right_to_set_them(driver: Driver, trying: Prover) -> None:
    driver.cards[0].errors["DeviceSetMemoryLimits_v1"] = pynvml.NVML_ERROR_NO_PERMISSION
    trying.run()
    assert results(trying.proofs)["limits"] == "unproven"
    assert "refuses to limit memory: Insufficient Permissions; it takes CAP_SYS_ADMIN" in found(
        trying.proofs, "limits"
    )


def test_a_kernel_whose_controller_is_not_enabled_there(driver: Driver, root: Path, trying: Prover) -> None:
    (root / "cgroup.controllers").write_text("cpu dmem\n")
    driver.limits.files = True
    trying.run()
    assert "+dmem is missing in cgroup.subtree_control" in found(trying.proofs, "limits")


@pytest.mark.parametrize("unset", [None, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_limit_that_is_taken_and_not_kept(driver: Driver, trying: Prover, unset: int | None) -> None:
    """The driver's answer of success is no proof."""
    driver.limits.unset, driver.limits.keeps = unset, False
    trying.run()
    assert results(trying.proofs)["limits"] == "unproven"
    assert "and there was none" in found(trying.proofs, "limits")


@pytest.mark.parametrize(
    ("refused", "result", "says"),
    [
        (MIG_CHANGES, "proven", "faults; MIG changes: Not Supported"),
        (FAULTS, "refuted", "MIG changes; faults: Not Supported"),
    ],
)
def test_news_that_a_driver_does_not_tell(
    driver: Driver, trying: Prover, refused: str, result: str, says: str
) -> None:
    """Cards without MIG have no news of it."""
    driver.refused_kinds = {KINDS[refused]: pynvml.NVML_ERROR_NOT_SUPPORTED}
    trying.run()
    assert results(trying.proofs)["news of the card"] == result
    assert found(trying.proofs, "news of the card").startswith(says)
    assert driver.calls.count("EventSetCreate") == driver.calls.count("EventSetFree") + 1  # the source's own


def test_processes_of_another_pid_namespace(driver: Driver, trying: Prover) -> None:
    """Nobody knows then whether the card is idle."""
    driver.cards[0].errors["DeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    trying.run()
    assert "the driver does not tell who uses the card" in found(trying.proofs, "limits")


@pytest.mark.parametrize(
    ("code", "says", "result"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "this card has none", "measured"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "this card has none", "measured"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "MIG mode of card GPU-a cannot be read: GPU is lost", "unproven"),
    ],
)
def test_cards_without_mig(driver: Driver, trying: Prover, code: int, says: str, result: str) -> None:
    driver.cards[0].errors = {"DeviceGetMigMode": code}
    trying.run()
    assert (results(trying.proofs)["MIG mode"], says in found(trying.proofs, "MIG mode")) == (result, True)


def instances(
    driver: Driver, root: Path, source: NvmlGpus, mig: list[Card], **errors: int
) -> list[CardProof]:
    driver.cards[0].mig = mig
    driver.mig_places = {each.uuid: place for place, each in enumerate(mig)}
    driver.cards[0].errors = errors
    source.open()
    return prove(source, root, NvmlProvable(source), instances=True)


def test_an_instance_is_created_listed_and_destroyed(driver: Driver, root: Path, source: NvmlGpus) -> None:
    proofs = instances(driver, root, source, [])
    assert found(proofs, "instance that comes and goes").startswith("MIG-8 of 9728 MiB")
    assert results(proofs)["undone"] == "proven"
    assert (driver.cards[0].mig, "destroyed 8" in driver.calls) == ([], True)


def test_of_an_instance_that_is_half_made_nothing_stays(driver: Driver, root: Path, source: NvmlGpus) -> None:
    refuses = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    proofs = instances(driver, root, source, [], GpuInstanceCreateComputeInstance=refuses)
    assert any("no compute instance can be created on card GPU-a" in proof.found for proof in proofs)
    assert "destroyed 8" in driver.calls


def test_a_card_without_room_for_an_instance(driver: Driver, root: Path, source: NvmlGpus) -> None:
    full = [Card(f"MIG-{number}", total_mib=9728, reserved_mib=0, instance=number) for number in range(7)]
    proofs = instances(driver, root, source, full)
    said = [proof.found for proof in proofs if proof.result == "unproven"]
    assert any("no GPU instance can be created on card GPU-a: " in line for line in said)
    assert len(driver.cards[0].mig or ()) == 7


def test_an_instance_that_cannot_be_destroyed_is_told(driver: Driver, root: Path, source: NvmlGpus) -> None:
    proofs = instances(driver, root, source, [], ComputeInstanceDestroy=pynvml.NVML_ERROR_IN_USE)
    assert results(proofs)["undone"] == "refuted"
    assert "MIG instance: a MIG instance cannot be destroyed: " in found(proofs, "undone")


def test_a_card_that_is_not_there(driver: Driver, root: Path, source: NvmlGpus) -> None:
    source.open()
    with pytest.raises(GpuError, match="card 'GPU-x' cannot be found: Not Found"):
        NvmlProvable(source).mig_mode("GPU-x")
    assert NvmlProvable(source).event_kinds("GPU-x") == dict.fromkeys(
        KINDS, "card 'GPU-x' cannot be found: Not Found"
    )
