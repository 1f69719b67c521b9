"""MPS on the node: which container becomes a client, with what, and what counts as held meanwhile."""

import asyncio
import errno
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pynvml
import pytest
from pytest_mock import MockerFixture
from structlog.testing import capture_logs

from allocator.ledger import CheckpointEntry
from allocator.names import PERCENT_RESOURCE
from allocator.request import ContainerRequest, PodRequest
from deviceplugin.enforcement.limit_capability import LimitCapability
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.enforcement.mps_clients import MpsClients
from deviceplugin.errors import AllocationRefusedError, GpuError
from deviceplugin.gpus.api.container_grant import ContainerGrant, Mount
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.nvidia.generations import NvmlGenerations
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.grants import VOLTA, client_limit, find_obstacle
from deviceplugin.gpus.nvidia.mps.namespaces import Namespace, find_fault
from deviceplugin.gpus.nvidia.mps.service import MpsService
from deviceplugin.gpus.nvidia.mps.supervisor import MpsCard, list_mps_cards
from deviceplugin.gpus.nvidia.provider import PROVIDER
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.kubelet.plugin_service import _granted
from tests.account_world import Node
from tests.ledger_world import RESOURCE, ids, pod


@pytest.mark.parametrize(("cuda", "clients"), [(11_050, 48), (13_000, 48), (13_010, 60), (14_000, 60)])
def test_clients_by_the_drivers_cuda(cuda: int, clients: int) -> None:
    assert client_limit(cuda) == clients


@pytest.mark.parametrize(
    ("architecture", "cuda", "reason"),
    [
        (4, 13_000, "older than Volta"),
        (5, 11_040, "older than CUDA 11.5"),
        (None, 13_000, "does not say"),
        (9, None, "does not say"),
        (5, 11_050, ""),
        (10, 13_010, ""),
    ],
)
def test_cards_and_drivers_that_cannot(architecture: int | None, cuda: int | None, reason: str) -> None:
    assert reason in find_obstacle(architecture, cuda)
    assert bool(find_obstacle(architecture, cuda)) == bool(reason)


def test_instances_and_cards_in_trouble_have_no_mps() -> None:
    source = SimulatedGpus(load_profile("2xt4"))
    first, second = (card.uuid for card in source.cards())

    class Old:
        def architecture(self, uuid: str) -> int | None:
            return 4 if uuid == first else 7

        def cuda(self) -> int | None:
            return 12_040

    assert list_mps_cards(source, Old()) == [
        MpsCard(first, 0, "the card is older than Volta: processes share one address space under MPS"),
        MpsCard(second, 48),
    ]


# The folder in which the two processes meet.


def test_a_state_counts_as_long_as_its_writer_lives(tmp_path: Path) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    assert folder.state() is None
    folder.make()
    assert folder.serve(ControlDaemonState(48, (7, 9), 5))
    assert folder.state() == ControlDaemonState(48, (7, 9), 5)
    written = (tmp_path / "GPU-a" / "state.json").stat().st_ino
    assert folder.serve(ControlDaemonState(48, (7, 9), 5))
    assert (tmp_path / "GPU-a" / "state.json").stat().st_ino == written, "the same is not written again"
    # Written again while it is held, and read by another.
    assert folder.serve(ControlDaemonState(60))
    assert CardFolder(tmp_path, "GPU-a").state() == ControlDaemonState(60)
    folder.end()
    assert folder.state() is None
    folder.end()


def test_a_state_of_before_has_no_pid(tmp_path: Path) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    folder.make()
    folder.serve(ControlDaemonState(48))
    (tmp_path / "GPU-a" / "state.json").write_text('{"clients": 48, "servers": [7]}')
    assert folder.state() == ControlDaemonState(48, (7,))
    assert MpsService(tmp_path).list_server_pids("GPU-a") == {7}


def test_a_server_is_known_as_soon_as_it_begins(tmp_path: Path) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    folder.make()
    service = MpsService(tmp_path)
    assert set(service.list_server_pids("GPU-a")) == set()
    with subprocess.Popen(
        ["sh", "-c", "read go; sleep 60 & read stop; kill $!"], stdin=subprocess.PIPE
    ) as control:
        assert control.stdin is not None
        folder.serve(ControlDaemonState(48, (7,), control.pid))
        assert service.list_server_pids("GPU-a") == {7}
        control.stdin.write(b"go\n")
        control.stdin.flush()
        while service.list_server_pids("GPU-a") == {7}:
            time.sleep(0.01)
        control.stdin.close()
    assert service.list_server_pids("GPU-a") == {7}


def test_the_kernel_frees_the_lock_of_a_process_that_is_killed(tmp_path: Path) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    folder.make()
    child = os.fork()
    if child == 0:
        folder.serve(ControlDaemonState(48))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert folder.state() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"clients": "many"}', "\xff"])
def test_rubbish_of_one_that_runs_is_unknown(tmp_path: Path, text: str) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    folder.make()
    folder.serve(ControlDaemonState(48))
    (tmp_path / "GPU-a" / "state.json").write_text(text, "latin-1")
    with pytest.raises(OSError, match="no state of a control daemon"):
        folder.state()
    folder.end()
    assert folder.state() is None


def no_descriptors(*_args: object, **_more: object) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("name", ["lock", "state.json"])
def test_a_state_that_cannot_be_read_is_unknown(tmp_path: Path, name: str) -> None:
    folder = CardFolder(tmp_path, "GPU-a")
    folder.make()
    folder.serve(ControlDaemonState(48))
    (tmp_path / "GPU-a" / name).unlink()
    assert folder.state() is None
    (tmp_path / "GPU-a" / name).mkdir()
    with pytest.raises(IsADirectoryError):
        folder.state()


@pytest.mark.parametrize("uuid", ["", "../x", "MIG-GPU-1/2/0", "..", "a b"])
def test_names_that_are_no_folder(tmp_path: Path, uuid: str) -> None:
    with pytest.raises(GpuError, match="allowed for MPS"):
        CardFolder(tmp_path, uuid)
    assert MpsService(tmp_path).read_state(uuid) is None


# What containers are given.


class World:
    """An account with cards of these sizes, and a control daemon for each of them that answers."""

    def __init__(
        self,
        root: Path,
        *sizes: int,
        clients: int = 48,
        threads: bool = False,
        interface: int = 2,
        **options: Any,
    ) -> None:
        self.node = Node(*sizes, step_s=10.0)
        self.account, self.answers = self.node.account, self.node.answers
        self.root = root
        self.folders = {f"c{i}": CardFolder(root, f"c{i}") for i in range(len(sizes))}
        for folder in self.folders.values():
            folder.make()
            folder.serve(ControlDaemonState(clients, (4711,), interface=interface))
        self.driver: set[str] = set()
        self.service = MpsService(root, wait_s=0.0)
        self.options = {"threads": threads, **options}
        self.start_sharing()
        self.sharing.update_states()

    def start_sharing(self) -> None:
        self.sharing = MpsClients(
            self.account, self.service, lambda uuid: uuid in self.driver, unit_mib=1024, **self.options
        )
        self.node.make_grant = self.sharing.make_grant

    def allocate(self, *given: str) -> ContainerGrant:
        return asyncio.run(self.answers.allocate(given))

    def end(self, uid: str) -> None:
        self.node.ledger.remove_pod(uid, 0)
        self.node.listed.remove(uid)

    def limited(
        self, given: frozenset[str], gib: int, uuid: str = "c0", *, compute: int = 0, cards: int = 1
    ) -> set[str]:
        """Say what MPS limits of a container with these IDs and so much of a card."""
        asked = uuid, gib * 1024, cards
        enforcement = MemoryEnforcement(LimitCapability(self.account, None), self.sharing)
        held = {
            "memory": enforcement.get_container_enforcement(*asked, given),
            "compute": enforcement.get_compute_enforcement(*asked, compute, given),
        }
        return {what for what, by in held.items() if by is Enforcement.MPS}

    def hold(self, number: int, given: frozenset[str]) -> None:
        """The kubelet writes down what a container has."""
        entries = [
            CheckpointEntry(uid, container, RESOURCE, ids)
            for uid, one in self.node.ledger.accounts.pods.items()
            for container, ids in one.checkpoint_ids.items()
        ]
        entries.append(CheckpointEntry(f"u{number}", "main", RESOURCE, given))
        self.node.ledger.apply_checkpoint(entries, self.account.now_s())
        self.account.notify_subscribers()


def client_envs(grant: ContainerGrant) -> dict[str, str]:
    return {key: value for key, value in grant.envs.items() if key.startswith("CUDA")}


def test_a_share_of_one_card_becomes_a_client(tmp_path: Path) -> None:
    world = World(tmp_path, 16)
    grant = world.allocate(*ids("c0", *range(8)))
    assert client_envs(grant) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpupack/mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G",
    }
    assert grant.mounts == (
        Mount("/run/gpupack/mps", f"{tmp_path}/c0/pipe"),
        Mount("/dev/shm", f"{tmp_path}/shm"),
    )
    assert grant.envs["GPUPACK_MEMORY_MIB"] == "8192"
    answer = _granted(grant)
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts] == [
        ("/run/gpupack/mps", f"{tmp_path}/c0/pipe", False),
        ("/dev/shm", f"{tmp_path}/shm", False),
    ]


@pytest.mark.parametrize(("units", "threads"), [(1, "7"), (8, "50"), (15, "94")])
def test_the_share_of_the_multiprocessors_on_request(tmp_path: Path, units: int, threads: str) -> None:
    world = World(tmp_path, 16, threads=True)
    envs = client_envs(world.allocate(*ids("c0", *range(units))))
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == threads


@pytest.mark.parametrize("threads", [True, False])
def test_a_container_that_asks_for_compute_gets_so_much_of_the_multiprocessors(
    tmp_path: Path, *, threads: bool
) -> None:
    world = World(tmp_path, 16, threads=threads)
    request = PodRequest(tuple(ContainerRequest(f"c{i}", 2 + i, "main", compute=30 * i) for i in range(2)))
    assigned = {f"c{i}": (("c0", 2 + i),) for i in range(2)}
    world.node.bind(replace(pod("a", 1), request=request, assigned=assigned))
    told = [client_envs(world.allocate(*ids("c0", *range(3 * i, 4 * i + 2)))) for i in range(2)]
    shares = [envs.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for envs in told]
    assert shares == ["13" if threads else None, "30"]


def test_a_container_that_is_given_the_ids_of_another_one_gets_the_compute_that_it_asks_for_itself(
    tmp_path: Path,
) -> None:
    """The kubelet gives IDs on: of an init container to the main one, and of a pod that ended to the next."""
    world = World(tmp_path, 16)

    def bind(uid: str, *containers: ContainerRequest) -> None:
        assigned = {each.name: (("c0", each.units),) for each in containers}
        world.node.bind(replace(pod(uid, 1), request=PodRequest(containers), assigned=assigned))

    def share() -> str | None:
        return client_envs(world.allocate(*ids("c0", 0, 1))).get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")

    bind(
        "a", ContainerRequest("setup", 2, "init", compute=10), ContainerRequest("main", 2, "main", compute=60)
    )
    assert [share(), share()] == ["10", "60"]
    world.end("a")
    bind("b", ContainerRequest("main", 2, "main", compute=20))
    assert share() == "20"


def test_units_that_are_no_whole_gib(tmp_path: Path) -> None:
    grant = asyncio.run(MpsService(tmp_path).make_grant("c0", ControlDaemonState(48), 1536, 0, ids("c0", 0)))
    assert grant.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1536M"


def test_who_has_a_card_alone_or_several_cards_needs_no_service(tmp_path: Path) -> None:
    world = World(tmp_path, 4, 4, 4)
    assert client_envs(world.allocate(*ids("c0", *range(4)))) == {}
    world.node.bind(pod("a", 4, "c1", "c2", count=2))
    both = asyncio.run(world.node.preferred(4))
    grant = asyncio.run(world.answers.allocate(tuple(both)))
    assert (client_envs(grant), grant.mounts) == ({}, ())


def test_each_container_is_told_what_holds_it(tmp_path: Path) -> None:
    world = World(tmp_path, 4, 4)
    given = ids("c0", 0, 1, 2)
    world.allocate(*given)
    assert world.limited(given, 3) == {"memory"}
    assert world.limited(given, 4) == world.limited(given, 3, cards=2) == set(), "those are no clients"
    assert world.limited(given, 2) == set(), "another one had these IDs"
    assert world.limited(ids("gone", 0), 1, "gone") == set()
    world.folders["c0"].end()
    world.sharing.update_states()
    assert world.limited(given, 3) == set()


@pytest.mark.parametrize("interface", [2, 3])
def test_who_began_without_the_service_is_not_limited_once_it_is_back(tmp_path: Path, interface: int) -> None:
    """Nor is one that is given the IDs and the share of a client that ended."""
    world = World(tmp_path, 16, interface=interface)
    answers(world, "u0_c30_m4096")
    client, other = ids("c0", *range(4)), ids("c0", *range(4, 8))

    def starts_without_service(given: frozenset[str]) -> None:
        world.folders["c0"].end()
        assert world.allocate(*given).mounts == ()
        world.folders["c0"].serve(ControlDaemonState(48, interface=interface))
        world.sharing.update_states()

    asks(world, 30)
    assert world.allocate(*client).mounts
    assert world.limited(client, 4, compute=30) == {"memory", "compute"}
    world.end("a")
    asks(world, 30, "b")
    starts_without_service(other)
    limited = [world.limited(given, 4, compute=30) for given in (client, other)]
    assert limited == [{"memory", "compute"}, set()]
    # A daemon that starts anew knows it too.
    world.start_sharing()
    assert world.limited(client, 4) == set(), "nobody has looked"
    world.sharing.update_states()
    assert [world.limited(given, 4, compute=30) for given in (client, other)] == limited
    world.end("b")
    asks(world, 30, "c")
    starts_without_service(client)
    assert world.limited(client, 4, compute=30) == set()


@pytest.mark.parametrize("interface", [2, 3])
@pytest.mark.parametrize(
    ("compute", "had"),
    [
        pytest.param(30, range(4), id="another percent"),
        pytest.param(0, range(3, 7), id="other IDs, some of them the same"),
    ],
)
def test_what_a_client_leaves_behind_counts_for_no_other_container_with_its_ids(
    tmp_path: Path, interface: int, compute: int, had: range
) -> None:
    world = World(tmp_path, 16, interface=interface)
    asks(world, compute)
    answers(world, f"u{had[0]}_c{compute or 100}_m4096")
    assert world.allocate(*ids("c0", *had)).mounts
    assert world.limited(ids("c0", *had), 4) == {"memory"}
    world.end("a")
    asks(world, 0, "b")
    world.folders["c0"].end()
    given = ids("c0", *range(4))
    assert world.allocate(*given).mounts == ()
    world.folders["c0"].serve(ControlDaemonState(48, interface=interface))
    world.sharing.update_states()
    assert world.limited(given, 4) == set()


def test_a_container_that_becomes_a_client_has_the_record_of_no_former_one(tmp_path: Path) -> None:
    world = World(tmp_path, 16)
    asks(world, 30)
    world.allocate(*ids("c0", *range(3, 7)))
    world.end("a")
    asks(world, 20, "b")
    world.allocate(*ids("c0", *range(4)))
    assert {each.name for each in world.folders["c0"].clients.list_wanted()} == {"u0_c20_m4096"}
    assert world.limited(ids("c0", *range(4)), 4, compute=30) == {"memory"}


def test_an_init_container_keeps_its_namespace_when_the_next_container_is_given_its_ids(
    tmp_path: Path,
) -> None:
    """The kubelet allocates to all containers of a pod before the first one runs."""
    world = World(tmp_path, 16, interface=3)
    containers = (
        ContainerRequest("setup", 2, "init", compute=10),
        ContainerRequest("main", 4, "main", compute=60),
    )
    assigned = {each.name: (("c0", each.units),) for each in containers}
    world.node.bind(replace(pod("a", 1), request=PodRequest(containers), assigned=assigned))
    files = world.folders["c0"].namespaces
    files.want(Namespace("u3", 50, 2048))
    answers(world, "u0_c10_m2048")
    files.answer(Namespace("u0", 60, 4096), "")
    for given in (range(2), range(4)):
        assert world.allocate(*ids("c0", *given)).mounts
    assert {each.name for each in files.list_wanted()} == {"u0_c10_m2048", "u0_c60_m4096"}


def test_a_client_of_which_no_record_can_be_written_does_not_count_as_limited(tmp_path: Path) -> None:
    world = World(tmp_path, 16)
    (tmp_path / "c0" / "clients").touch()
    assert client_envs(world.allocate(*ids("c0", 0)))
    assert world.limited(ids("c0", 0), 1) == set()


def test_where_the_driver_holds_them_there_is_no_client(tmp_path: Path) -> None:
    world = World(tmp_path, 16)
    world.driver.add("c0")
    assert client_envs(world.allocate(*ids("c0", 0))) == {}


def test_a_service_that_dies_is_missed_at_once_and_told(tmp_path: Path) -> None:
    world = World(tmp_path, 16, 16)
    told: list[None] = []
    world.account.subscribe(lambda: told.append(None))
    assert [world.sharing.get_enforcement(uuid) for uuid in ("c0", "c1", "cx")] == [
        Enforcement.MPS, Enforcement.MPS, Enforcement.ACCOUNTED,
    ]  # fmt: skip
    world.folders["c0"].end()
    # Allocate looks itself, sooner than the next round.
    assert client_envs(world.allocate(*ids("c0", 0))) == {}
    told.clear()
    world.sharing.update_states()
    assert len(told) == 1
    assert world.sharing.get_enforcement("c0") is Enforcement.ACCOUNTED
    assert world.sharing.get_enforcement("c1") is Enforcement.MPS
    world.sharing.update_states()
    assert len(told) == 1
    world.folders["c0"].serve(ControlDaemonState(48))
    world.sharing.update_states()
    assert world.sharing.get_enforcement("c0") is Enforcement.MPS


def test_who_cannot_read_whether_a_service_answers_forgets_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon without a file descriptor left; a card with all its clients stays full, too."""
    world = World(tmp_path, 16, 16, clients=1)
    world.folders["c1"].end()
    world.sharing.update_states()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_descriptors)
        assert client_envs(world.allocate(*ids("c0", 0)))
        world.hold(0, ids("c0", 0))
        for _ in range(2):
            world.sharing.update_states()
        assert world.sharing.get_enforcement("c0") is Enforcement.MPS
        assert world.sharing.get_enforcement("c1") is Enforcement.ACCOUNTED
        assert world.node.ledger.used() == (16, 0)
        assert client_envs(world.allocate(*ids("c1", 0))) == {}
    world.folders["c0"].end()
    world.sharing.update_states()
    assert world.sharing.get_enforcement("c0") is Enforcement.ACCOUNTED
    assert capsys.readouterr().out.count("what they said last stays") == 1


def test_a_card_with_all_its_clients_is_full_until_one_ends(tmp_path: Path) -> None:
    world = World(tmp_path, 16, 16, clients=2)
    ledger = world.node.ledger
    for number in range(2):
        assert client_envs(world.allocate(*ids("c0", number)))
        world.hold(number, ids("c0", number))
    assert ledger.used() == (16, 0)
    # One that was bound before gets its card all the same, without the service.
    assert client_envs(world.allocate(*ids("c0", 2))) == {}
    # What people keep free stays so, and beside it.
    world.account.ledger.set_unavailable("cordoned", ["c1"])
    assert ledger.used() == (16, 16)
    world.account.ledger.set_unavailable("cordoned", [])
    assert ledger.used() == (16, 0)
    world.folders["c0"].end()
    world.sharing.update_states()
    assert ledger.used() == (3, 0)


def test_a_container_of_several_cards_is_no_client_of_any(tmp_path: Path) -> None:
    world = World(tmp_path, 16, 16, clients=1)
    both = ids("c0", 0) | ids("c1", 0)
    assert client_envs(asyncio.run(world.sharing.make_grant({"c0": 1024, "c1": 1024}, 0, both))) == {}
    world.hold(0, both)
    assert world.node.ledger.used() == (1, 1)


def test_percent_counts_like_units(tmp_path: Path) -> None:
    world = World(tmp_path, 16, clients=1)
    percent = tuple(text for text in world.node.percent.list_devices() if text.startswith("c0::"))[:50]
    grant = asyncio.run(world.node.percent.allocate(percent))
    assert client_envs(grant)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8G"
    assert world.node.ledger.used() == (16,)
    assert PERCENT_RESOURCE


def test_without_a_file_descriptor_left_the_services_processes_stay_what_they_were(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    world = World(tmp_path, 16)
    assert world.sharing.list_server_pids() == {4711}
    mocker.patch.object(MpsService, "list_server_pids", no_descriptors)
    assert world.sharing.list_server_pids() == {4711}


# MPS v3: a namespace for each container.


@pytest.mark.parametrize(
    ("asked", "cuda", "chosen", "problem"),
    [
        ("auto", 13_030, 2, ""),
        ("auto", 13_040, 3, ""),
        ("2", 14_000, 2, ""),
        ("3", 13_040, 3, ""),
        (
            "3",
            13_030,
            2,
            "--interface 3: the driver is older than CUDA 13.4 (driver 615), which brought MPS v3",
        ),
    ],
)
def test_the_interface_is_the_drivers_unless_it_is_asked_for(
    asked: str, cuda: int, chosen: int, problem: str
) -> None:
    class Driver:
        def architecture(self, _uuid: str) -> int | None:
            return 9

        def cuda(self) -> int | None:
            return cuda

    (card, _) = list_mps_cards(SimulatedGpus(load_profile("2xt4")), Driver(), asked)
    assert (card.interface, card.problem) == (chosen, problem)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (["c1::2", "c0::10", "c0::9"], "u9_c30_m0"),
        (["c0::p7", "c0::p11"], "p7_c30_m0"),
    ],
)
def test_a_namespace_is_named_for_its_container_as_nvidia_allows(given: list[str], name: str) -> None:
    namespace = Namespace.for_container(given, "c0", 30, 0)
    assert namespace.name == name
    assert re.fullmatch("[a-z0-9_]{1,64}", name)
    assert Namespace.parse(name) == namespace
    assert namespace.device_id("c0") == min(
        (text for text in given if text.startswith("c0")), key=lambda text: (len(text), text)
    )


def test_a_container_without_a_part_of_the_card_has_no_namespace_there() -> None:
    with pytest.raises(GpuError, match="no device ID of the container is on card c0"):
        Namespace.for_container(["c1::2"], "c0", 30, 0)


@pytest.mark.parametrize("name", ["default", "u1_c30", "u1_c30_m0.new", ".u1_c30_m0.new", "U1_c30_m0", ""])
def test_other_names_are_no_namespaces_of_containers(name: str) -> None:
    assert Namespace.parse(name) is None


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("u1_c30_m512,gpu,Ready,512M,30.00,0,/p", ""),
        ("u1_c30_m512,gpu,Ready,512M,100.00,0,/p", "its active thread percentage is 100.00, not 30"),
        ("u1_c30_m512,gpu,Ready,512M,-,0,/p", "its active thread percentage is -, not 30"),
        ("u1_c30_m512,gpu", "its active thread percentage is not told, not 30"),
        ("u1_c30_m512,gpu,Ready,unlimited,30.00,0,/p", "its pinned memory limit is unlimited, not 512M"),
        ("u1_c30_m512,other,Ready,512M,30.00,0,/p", "it is not among the control daemon's namespaces"),
    ],
)
def test_a_namespace_counts_only_as_it_is_read_back(tmp_path: Path, row: str, fault: str) -> None:
    (tmp_path / "control").touch()
    namespace = Namespace("u1", 30, 512)
    assert find_fault(namespace, tmp_path, [["default"], row.split(",")]) == fault


def test_a_namespace_without_a_socket_is_none(tmp_path: Path) -> None:
    row = ["u1_c30_m0", "gpu", "Ready", "unlimited", "30.00", "0", "/p"]
    assert find_fault(Namespace("u1", 30, 0), tmp_path, [row]) == f"there is no socket {tmp_path}/control"


def asks(world: World, compute: int, uid: str = "a", units: int = 4) -> None:
    request = PodRequest((ContainerRequest("main", units, "main", compute=compute),))
    world.node.bind(replace(pod(uid, 1), request=request, assigned={"main": (("c0", units),)}))


def answers(world: World, text: str, *said: str) -> Namespace:
    """`gpupack mps` has answered for a namespace."""
    namespace = Namespace.parse(text)
    assert namespace is not None
    world.folders["c0"].namespaces.begin()
    world.folders["c0"].namespaces.answer(namespace, *(said or ("",)))
    return namespace


@pytest.mark.parametrize(
    ("driver", "compute", "threads", "name"),
    [
        pytest.param(True, 30, False, "u0_c30_m0", id="the driver limits the memory"),
        pytest.param(False, 30, False, "u0_c30_m4096", id="MPS limits both"),
        pytest.param(False, 0, False, "u0_c100_m4096", id="MPS limits the memory"),
        pytest.param(True, 0, True, "u0_c25_m0", id="a share as of the memory"),
        pytest.param(True, 0, False, None, id="nothing is left to limit"),
    ],
)
def test_who_gets_a_namespace_and_with_which_limits(
    tmp_path: Path, driver: bool, compute: int, threads: bool, name: str | None
) -> None:
    world = World(tmp_path, 16, threads=threads, interface=3)
    world.driver = {"c0"} if driver else set()
    asks(world, compute)
    if name is not None:
        answers(world, name)
    grant = world.allocate(*ids("c0", *range(4)))
    pipe = f"{tmp_path}/c0/pipe/gpu/{name}"
    assert client_envs(grant) == ({"CUDA_MPS_PIPE_DIRECTORY": pipe} if name else {})
    assert grant.mounts == ((Mount(pipe, pipe),) if name else ())
    assert {each.name for each in world.folders["c0"].namespaces.list_wanted()} == ({name} if name else set())


def test_who_needs_nothing_of_a_service_that_is_full_is_not_told_of(tmp_path: Path) -> None:
    world = World(tmp_path, 16, clients=0, interface=3)
    world.driver = {"c0"}
    with capture_logs() as logs:
        world.allocate(*ids("c0", *range(4)))
    assert "container is no client" not in {line["event"] for line in logs}


@pytest.mark.parametrize("said", ["it is not among them", None])
@pytest.mark.parametrize("requires", [True, False])
def test_a_container_without_its_namespace_is_refused_only_where_limits_are_required(
    tmp_path: Path, said: str | None, *, requires: bool
) -> None:
    world = World(tmp_path, 16, interface=3, requires_compute=requires)
    world.driver = {"c0"}
    asks(world, 30)
    if said is not None:
        answers(world, "u0_c30_m0", said)
    problem = f"MPS namespace u0_c30_m0: {said or 'gpupack mps has not made it within 0 s'}"
    if requires:
        with pytest.raises(AllocationRefusedError, match=f"30 percent of compute .*: {problem}"):
            world.allocate(*ids("c0", *range(4)))
    else:
        with capture_logs() as logs:
            assert client_envs(world.allocate(*ids("c0", *range(4)))) == {}
        assert [line["reason"] for line in logs if line["event"] == "container is no client"] == [problem]
    assert world.folders["c0"].namespaces.list_wanted() == frozenset(), "nobody uses it"


@pytest.mark.parametrize(
    ("interface", "driver", "units", "refused"),
    [
        pytest.param(2, True, 4, "MPS v3 is not there", id="the driver's memory limits beside MPS v2"),
        pytest.param(2, False, 4, "", id="MPS v2"),
        pytest.param(3, True, 16, "", id="a card alone"),
    ],
)
def test_whose_compute_can_be_required(
    tmp_path: Path, interface: int, driver: bool, units: int, refused: str
) -> None:
    world = World(tmp_path, 16, interface=interface, requires_compute=True)
    world.driver = {"c0"} if driver else set()
    asks(world, 30, units=units)
    if refused:
        with pytest.raises(AllocationRefusedError, match=refused):
            world.allocate(*ids("c0", *range(units)))
    else:
        world.allocate(*ids("c0", *range(units)))


def test_required_compute_of_several_cards_and_of_a_service_that_is_away_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, 16, 16, interface=3, requires_compute=True)
    world.driver = {"c0", "c1"}
    make = world.sharing.make_grant
    assert asyncio.run(make({"c0": 1024, "c1": 1024}, 0, ids("c0", 0) | ids("c1", 0))).envs == {}
    with pytest.raises(AllocationRefusedError, match="several cards"):
        asyncio.run(make({"c0": 1024, "c1": 1024}, 30, ids("c0", 0) | ids("c1", 0)))
    world.folders["c0"].end()
    assert asyncio.run(make({"c0": 1024}, 0, ids("c0", 0))).envs == {}
    with pytest.raises(AllocationRefusedError, match="the card's service does not answer"):
        asyncio.run(make({"c0": 1024}, 30, ids("c0", 0)))


def test_compute_counts_as_limited_only_in_the_containers_own_namespace(tmp_path: Path) -> None:
    world = World(tmp_path, 16, interface=3)
    world.driver = {"c0"}
    asks(world, 30)
    answers(world, "u0_c30_m0")
    world.allocate(*ids("c0", *range(4)))

    def limits(given: frozenset[str], compute: int) -> bool:
        return "compute" in world.limited(given, 4, compute=compute)

    assert limits(ids("c0", *range(4)), 30)
    assert not limits(ids("c0", *range(4)), 40)
    assert not limits(ids("c0", *range(4, 8)), 30)
    # Its control daemon started again, and could not make it.
    answers(world, "u0_c30_m0", "refused")
    world.sharing.update_states()
    assert not limits(ids("c0", *range(4)), 30)
    answers(world, "u0_c30_m0")
    world.folders["c0"].end()
    world.sharing.update_states()
    assert not limits(ids("c0", *range(4)), 30)


@pytest.mark.parametrize("driver", [True, False])
def test_compute_is_limited_by_the_variables_of_mps_v2_where_the_driver_limits_nothing(
    tmp_path: Path, *, driver: bool
) -> None:
    world = World(tmp_path, 16)
    world.driver = {"c0"} if driver else set()
    asks(world, 30)
    world.allocate(*ids("c0", *range(4)))
    assert ("compute" in world.limited(ids("c0", *range(4)), 4, compute=30)) is not driver


def test_a_namespace_is_given_back_when_its_container_is_gone(tmp_path: Path) -> None:
    """Also by a daemon that started after its end, but not before the checkpoint was read."""
    world = World(tmp_path, 16, interface=3)
    world.driver = {"c0"}
    asks(world, 30)
    answers(world, "u0_c30_m0")
    given = ids("c0", *range(4))
    world.allocate(*given)
    files = world.folders["c0"].namespaces

    def left(*, old: bool) -> set[str]:
        if old:
            for file in (tmp_path / "c0" / "namespaces" / "wanted").iterdir():
                os.utime(file, (0, 0))
        world.sharing.release_unused()
        return {each.name for each in files.list_wanted()}

    files.want(Namespace("u8", 50, 0))
    assert left(old=False) == {"u0_c30_m0", "u8_c50_m0"}, "its container may be known late"
    assert left(old=True) == {"u0_c30_m0"}
    world.hold(0, given)
    assert left(old=True) == {"u0_c30_m0"}
    new = Node(16)
    world.sharing = MpsClients(new.account, world.service, lambda _: True, unit_mib=1024)
    world.sharing.update_states()
    assert left(old=True) == {"u0_c30_m0"}, "the checkpoint was not read"
    new.account.read_checkpoint()
    assert left(old=True) == set()


@pytest.mark.parametrize(
    ("share", "total", "fraction"),
    [
        (8192, 81920, "0.0906"),
        (8192, 81559, "0.0910"),
        (1024, 16384, "0.0312"),
        (2, 81559, "0.0001"),
        (81559, 81559, "0.9905"),
    ],
)
def test_advice_leaves_room_for_the_context_and_is_rounded_down(
    share: int, total: int, fraction: str
) -> None:
    envs = PROVIDER.make_framework_envs(share, total)
    assert envs == {"XLA_PYTHON_CLIENT_MEM_FRACTION": fraction, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def test_no_advice_without_knowing_the_card() -> None:
    assert PROVIDER.make_framework_envs(8192, 0) == {}
    assert PROVIDER.make_framework_envs(0, 100) == {}


def test_the_driver_is_asked_for_generations(mocker: MockerFixture) -> None:
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    mocker.patch.object(pynvml, "nvmlDeviceGetHandleByUUID", return_value="handle")
    mocker.patch.object(pynvml, "nvmlDeviceGetArchitecture", return_value=pynvml.NVML_DEVICE_ARCH_VOLTA)
    mocker.patch.object(pynvml, "nvmlSystemGetCudaDriverVersion_v2", return_value=13_010)
    assert (NvmlGenerations().architecture("GPU-a"), NvmlGenerations().cuda()) == (VOLTA, 13_010)
    mocker.patch.object(pynvml, "nvmlDeviceGetHandleByUUID", side_effect=unknown)
    mocker.patch.object(pynvml, "nvmlSystemGetCudaDriverVersion_v2", side_effect=unknown)
    assert (NvmlGenerations().architecture("GPU-a"), NvmlGenerations().cuda()) == (None, None)
