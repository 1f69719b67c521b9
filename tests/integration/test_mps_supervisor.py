"""`gpupack mps` with a program in the place of nvidia-cuda-mps-control: started, missed, started again."""

import asyncio
import errno
import json
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner
from structlog.testing import capture_logs

from allocator.names import NODE_CARDS
from allocator.records import load_cards
from deviceplugin.errors import DriverGoneError
from deviceplugin.gpus.nvidia.mps import service as mps_service
from deviceplugin.gpus.nvidia.mps.control import PATIENCE, ControlDaemon
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.namespace_control import NamespaceControlDaemon
from deviceplugin.gpus.nvidia.mps.namespaces import Namespace
from deviceplugin.gpus.nvidia.mps.service import MpsService
from deviceplugin.gpus.nvidia.mps.supervisor import MpsSupervisor, make_root
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.provider import SimulatedGenerations
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.mps_settings import MpsSettings
from gpupack.cli.app import cli
from kubeapi.backoff import Backoff
from tests.integration.node_world import NODE, card, container, metrics, node_world
from tests.mps_world import end, history, lives, make_program, pid_of
from tests.running import background
from tests.waiting import until

CARDS = [simulated.card.uuid for simulated in load_profile("2xt4").cards]


@pytest.fixture
def root():
    """A folder with a short name: sockets' paths are limited."""
    folder = Path(tempfile.mkdtemp(prefix="gp-"))
    yield folder
    shutil.rmtree(folder)


def control(root, program, **options):
    folder = CardFolder(root, CARDS[0])
    return ControlDaemon(
        folder, 48, program=str(program), backoff=Backoff(0.01, 0.02), **{"ask_s": 1.5, **options}
    )


async def test_one_for_each_card_and_only_the_one_that_dies_is_missed(root):
    options = MpsSettings(root=root, program=str(make_program(root)), multi_user=True)
    make_root(root)
    service = MpsService(root)
    assert [service.read_state(uuid) for uuid in CARDS] == [None, None]
    source = SimulatedGpus(load_profile("2xt4"))

    def make(folder, card):
        return ControlDaemon(
            folder, card.clients, program=options.program, arguments=options.arguments,
            backoff=Backoff(0.05, 0.1), ask_s=3.0,
        )  # fmt: skip

    supervisor = MpsSupervisor(options, source, SimulatedGenerations(), make=make)
    assert supervisor.find_unready() == "no card has been found that MPS can share"
    async with background(supervisor.run()):
        await until(lambda: all(service.read_state(uuid) for uuid in CARDS))
        assert supervisor.find_unready() == ""
        pids = [pid_of(root, uuid) for uuid in CARDS]
        assert [service.read_state(uuid) for uuid in CARDS] == [
            ControlDaemonState(48, (pid + 1000,), pid) for pid in pids
        ]
        for uuid, pid in zip(CARDS, pids, strict=True):
            assert history(root, uuid) == [f"started {pid} on {uuid} with -f -multiuser-server"]
        broken = root / CARDS[0] / "pipe" / "broken"
        broken.touch()
        end(pids[0], signal.SIGKILL)
        await until(lambda: service.read_state(CARDS[0]) is None)
        assert supervisor.find_unready() == f"card {CARDS[0]}: its control daemon does not answer"
        assert service.read_state(CARDS[1]) is not None
        broken.unlink()
        await until(lambda: service.read_state(CARDS[0]))
        assert pid_of(root, CARDS[0]) != pids[0]
        assert pid_of(root, CARDS[1]) == pids[1]
        last = [pid_of(root, uuid) for uuid in CARDS]
    assert not any(map(lives, last))
    assert [service.read_state(uuid) for uuid in CARDS] == [None, None]
    assert [history(root, uuid)[-1] for uuid in CARDS] == ["quit", "quit"]


async def test_it_ends_once_the_driver_was_exchanged(root):
    """Its container has the old driver's library and control program: a new one has the node's."""
    source = SimulatedGpus(load_profile("2xt4"))
    options = MpsSettings(root=root, program=str(make_program(root)))
    make_root(root)
    supervisor = MpsSupervisor(options, source, SimulatedGenerations(), look_s=0.05)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: MpsService(root).read_state(CARDS[0]))
    pid = pid_of(root, CARDS[0])
    source.unload()
    await asyncio.sleep(0.2)
    assert lives(pid)
    source.load(other=True)
    async with asyncio.timeout(30):
        with pytest.raises(DriverGoneError, match="the driver was exchanged; this process ends"):
            await running
    assert not lives(pid)


async def test_cards_that_cannot_be_read_in_a_way_unheard_of_end_no_control_daemon(root, monkeypatch):
    """Programs that run there would lose their GPU."""
    source = SimulatedGpus(load_profile("2xt4"))
    options = MpsSettings(root=root, program=str(make_program(root)))
    make_root(root)
    supervisor = MpsSupervisor(options, source, SimulatedGenerations(), look_s=0.05)
    failed = []

    def fails():
        failed.append(1)
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    async with background(supervisor.run()):
        await until(lambda: MpsService(root).read_state(CARDS[0]))
        pid = pid_of(root, CARDS[0])
        monkeypatch.setattr(source, "sample", fails)
        await until(lambda: len(failed) > 1)
        assert lives(pid)


async def test_one_that_hangs_is_ended_and_started_again(root):
    program = make_program(root)
    service = MpsService(root)
    daemon = control(root, program, ask_s=1.0)
    async with background(daemon.run()):
        await until(lambda: service.read_state(CARDS[0]))
        hangs = root / CARDS[0] / "pipe" / "hangs"
        hangs.touch()
        await until(lambda: service.read_state(CARDS[0]) is None)
        hangs.unlink()
        await until(lambda: service.read_state(CARDS[0]))
        assert daemon.starts > 1


@pytest.mark.parametrize("what", ["ask", "write"])
async def test_one_that_cannot_be_asked_runs_on_and_its_clients_with_it(root, monkeypatch, capsys, what):
    """A supervisor without a file descriptor left must not end programs for it."""
    service = MpsService(root)
    daemon = control(root, make_program(root))
    failed = []

    def fails(*_args, **_more):
        failed.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    async with background(daemon.run()):
        await until(lambda: service.read_state(CARDS[0]))
        with monkeypatch.context() as patch:
            if what == "ask":
                patch.setattr(asyncio, "create_subprocess_exec", fails)
            else:
                patch.setattr(CardFolder, "serve", fails)
            await until(lambda: len(failed) > PATIENCE)
            assert service.read_state(CARDS[0])
        assert daemon.starts == 1
        assert capsys.readouterr().out.count("cannot be asked") == 1
        serving = pid_of(root, CARDS[0])
        end(serving, signal.SIGKILL)
        await until(lambda: daemon.starts > 1)


async def test_a_program_that_is_not_there_is_no_end_and_told_once(root):
    daemon = control(root, root / "nowhere")
    with capture_logs() as logs:
        async with background(daemon.run()):
            await until(lambda: daemon.starts > 2)
    (told,) = [each["problem"] for each in logs if each["log_level"] == "error"]
    assert told.startswith(f"there is no program {root}/nowhere: it comes with the driver")
    assert MpsService(root).read_state(CARDS[0]) is None


async def test_the_command_ends_with_its_children_and_one_that_is_killed_is_cleaned_up_after(root):
    program = make_program(root)
    command = [sys.executable, "-m", "gpupack", "mps", f"--root={root}", f"--control-program={program}"]
    command += ["--gpus=simulated", "--profile=2xt4"]
    service = MpsService(root)
    first = await asyncio.create_subprocess_exec(
        *command, "--http=127.0.0.1:0", "--log-format=json", stderr=asyncio.subprocess.PIPE
    )
    assert first.stderr is not None
    await until(lambda: all(service.read_state(uuid) for uuid in CARDS))
    while (event := json.loads(await first.stderr.readline()))["event"] != "serving":
        pass
    async with ClientSession() as session, session.get(f"{event['url']}/readyz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    third = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await third.communicate()
    assert (third.returncode, said.decode().splitlines()[-1]) == (
        2,
        f"gpupack: --root '{root}': another gpupack mps runs there",
    )
    orphans = [pid_of(root, uuid) for uuid in CARDS]
    first.kill()
    await first.wait()
    assert [service.read_state(uuid) for uuid in CARDS] == [None, None]
    second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    await until(lambda: all(service.read_state(uuid) for uuid in CARDS))
    assert not any(map(lives, orphans))
    children = [pid_of(root, uuid) for uuid in CARDS]
    assert all(map(lives, children))
    second.terminate()
    assert await second.wait() == 0
    assert not any(map(lives, children))


# MPS v3: a namespace for each container.


def namespace_control(root, **options):
    folder = CardFolder(root, card(0))
    program = str(make_program(root))
    return NamespaceControlDaemon(
        folder, 60, program=program, backoff=Backoff(0.01, 0.02), **{"ask_s": 1.5, **options}
    )


def answers_for(root, namespace):
    """Waits until `gpupack mps` has said something of a namespace."""
    return until(lambda: CardFolder(root, card(0)).namespaces.read_answer(namespace) is not None)


async def test_a_supervisor_of_a_newer_driver_speaks_the_newer_interface(root):
    class Newer(SimulatedGenerations):
        def cuda(self):
            return 13_040

    options = MpsSettings(root=root, program=str(make_program(root)))
    make_root(root)
    supervisor = MpsSupervisor(options, SimulatedGpus(load_profile("2xt4")), Newer())
    service = MpsService(root)
    async with background(supervisor.run()):
        await until(lambda: all(service.read_state(uuid) for uuid in CARDS))
        for uuid in CARDS:
            pid = pid_of(root, uuid)
            assert service.read_state(uuid) == ControlDaemonState(60, (pid + 1000,), pid, 3)
            assert history(root, uuid) == [
                f"started {pid} on {uuid} with -f -m -p 3", f"server create gpu --allowed-devices={uuid}",
            ]  # fmt: skip
    assert [history(root, uuid)[-1] for uuid in CARDS] == ["quit", "quit"]


async def test_namespaces_are_made_as_they_are_wanted_and_again_for_a_new_control_daemon(root):
    files = CardFolder(root, card(0)).namespaces
    both, compute = Namespace("u0", 30, 4096), Namespace("p3", 100, 0)
    commands = [
        "namespace create u0_c30_m4096 --server=gpu",
        "namespace set u0_c30_m4096 --server=gpu --active-thread-percentage=30 --pinned-memory-limit=4096M",
        "namespace create p3_c100_m0 --server=gpu",
        "namespace set p3_c100_m0 --server=gpu --active-thread-percentage=100",
    ]
    service = MpsService(root)
    async with background(namespace_control(root).run()):
        await until(lambda: service.read_state(card(0)))
        for namespace in (both, compute):
            files.want(namespace)
            await answers_for(root, namespace)
        assert [files.read_answer(each) for each in (both, compute)] == ["", ""]
        assert history(root, card(0))[2:] == commands
        assert (files.pipe_of(both) / "control").is_socket()
        state = service.read_state(card(0))
        assert service.list_limited(card(0), state) == {
            (f"{card(0)}::0", 30, 4096),
            (f"{card(0)}::p3", 100, 0),
        }
        before = pid_of(root, card(0))
        end(before, signal.SIGKILL)
        await until(lambda: pid_of(root, card(0)) != before and service.read_state(card(0)))
        # Before the first client may come.
        assert sorted(history(root, card(0))[-4:]) == sorted(commands)
        assert [files.read_answer(each) for each in (both, compute)] == ["", ""]


async def test_a_namespace_that_nobody_wants_any_more_goes_once_its_clients_have(root):
    files = CardFolder(root, card(0)).namespaces
    first, second = Namespace("u0", 30, 0), Namespace("u1", 30, 0)
    async with background(namespace_control(root).run()):
        await until(lambda: MpsService(root).read_state(card(0)))
        for namespace in (first, second):
            files.want(namespace)
            await answers_for(root, namespace)
        client = files.pipe_of(first) / "client"
        client.touch()
        for namespace in (first, second):
            files.withdraw(namespace)
        await until(lambda: history(root, card(0)).count("namespace delete u0_c30_m0 --server=gpu") > 1)
        await until(lambda: files.list_told() == {first})
        assert files.pipe_of(first).exists()
        client.unlink()
        await until(lambda: not files.list_told())
        assert not files.pipe_of(first).exists()


async def test_a_namespace_that_is_refused_is_said_and_leaves_nothing(root):
    namespace = Namespace("u0", 101, 0)
    files = CardFolder(root, card(0)).namespaces
    service = MpsService(root)
    async with background(namespace_control(root).run()):
        await until(lambda: service.read_state(card(0)))
        files.want(namespace)
        await answers_for(root, namespace)
        told = files.read_answer(namespace)
        assert told.startswith(
            "its active thread percentage is 100.00, not 101 (-p 3 namespace set u0_c101_m0 "
        )
        assert told.endswith("status 1: Invalid active thread percentage)")
        assert service.list_limited(card(0), service.read_state(card(0))) == set()
        files.withdraw(namespace)
        await until(lambda: not files.list_told() and not files.pipe_of(namespace).exists())


async def test_a_socket_whose_path_is_too_long_is_not_tried(root):
    long = root / ("x" * 40)
    folder = CardFolder(long, card(0))
    daemon = NamespaceControlDaemon(folder, 60, program="/bin/false")
    problem = await daemon._make(Namespace("u0", 30, 0))
    assert re.fullmatch(r"its socket's path has 1[0-9]+ bytes; allowed: 107, by a shorter --root", problem)


async def test_a_server_that_has_ended_takes_no_clients_until_there_is_another(root):
    service = MpsService(root)
    daemon = namespace_control(root)
    async with background(daemon.run()):
        await until(lambda: service.read_state(card(0)))
        gone = root / card(0) / "pipe" / "no_server"
        gone.touch()
        await until(lambda: service.read_state(card(0)) is None)
        gone.unlink()
        await until(lambda: service.read_state(card(0)))
        assert daemon.starts > 1


async def test_a_control_daemon_of_the_other_interface_is_ended_first(root, request):
    older = ControlDaemon(CardFolder(root, card(0)), 60, program=str(make_program(root)))
    CardFolder(root, card(0)).make()
    left = await asyncio.create_subprocess_exec(str(make_program(root)), "-f", env=older._environment())
    request.addfinalizer(lambda: left.returncode is None and end(left.pid, signal.SIGKILL))
    await until((root / card(0) / "pipe" / "control").is_socket)
    async with background(namespace_control(root).run()):
        await until(lambda: MpsService(root).read_state(card(0)))
        await until(lambda: left.returncode is not None)
        assert left.returncode == 0


async def test_compute_is_held_by_mps_beside_the_drivers_memory_limits(root, monkeypatch):
    """The node daemon and the supervisor find everything again after a restart of either."""
    namespace = Namespace("u0", 30, 0)
    files = CardFolder(root, card(0)).namespaces
    asks = container("main", 3)
    asks["resources"]["limits"]["gpupack.io/gpu-compute-percent"] = "30"

    async def is_limited():
        return (await metrics(world))["gpupack_container_compute_limited"] == {
            ("main", "default", "a", card(0)): limited
        }

    async with node_world(8) as world:
        await world.stop_daemon()
        async with background(namespace_control(root).run()):
            await until(lambda: MpsService(root).read_state(card(0)))
            await world.start_daemon(sharing="mps", mps_root=root, compute_limits="require")
            uid = await world.run("a", 3, on=0, containers=[asks])
            assert world.env(uid)["CUDA_MPS_PIPE_DIRECTORY"] == str(files.pipe_of(namespace))
            assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in world.env(uid)
            limited = 1
            await until(is_limited)
            await until(lambda: world.allocation("a"))
            await until(lambda: world.allocation("a")["memory"]["main"][card(0)].get("compute_held") == "mps")
            assert world.allocation("a")["memory"]["main"][card(0)]["held"] == "driver"
            await world.stop_daemon()
            await world.start_daemon(sharing="mps", mps_root=root)
            await until(is_limited)
        limited = 0
        await until(is_limited)
        limited = 1
        async with background(namespace_control(root).run()):
            await until(is_limited)
            monkeypatch.setattr(mps_service, "YOUNG_S", 0.0)
            world.api.delete_pod("default", "a", 0)
            await until(lambda: not files.pipe_of(namespace).exists())
            await until(lambda: not files.list_wanted() | files.list_told())


async def test_the_node_says_who_holds_its_containers_and_what_they_are_given(root):
    folder = CardFolder(root, card(0))
    folder.make()
    folder.serve(ControlDaemonState(48))

    def held():
        notes = world.api.node(NODE)["metadata"].get("annotations", {})
        return [each.held for each in load_cards(notes.get(NODE_CARDS, "[]"))]

    async with node_world(8, 8) as world:
        await world.stop_daemon()
        await world.start_daemon(sharing="mps", mps_root=root, memory_limits="off", advise_frameworks=True)
        await until(lambda: held() == ["mps", "accounted"])
        uid = await world.run("a", 3, on=0)
        envs = world.kubelet.containers[uid, "main"].envs
        assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3G"
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in envs
        uid = await world.run("b", 3, on=1)
        envs = world.kubelet.containers[uid, "main"].envs
        assert "CUDA_MPS_PIPE_DIRECTORY" not in envs
        assert envs["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2812"
        folder.end()
        await until(lambda: held() == ["accounted", "accounted"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus=amd"], "--gpus 'amd'; allowed: nvml, simulated"),
        (["--gpus=simulated"], "--profile: required with --gpus simulated"),
        (["--gpus=simulated", "--profile=2xt4", "--root=here"], "--root 'here'; allowed: a path from / on"),
        (["--log-level=loud"], "--log-level 'loud'; allowed: debug, info, warning, error"),
        (["--http=8917"], "--http '8917'; allowed: HOST:PORT with a port from 0 to 65535"),
        (["--log-format=xml"], "--log-format 'xml'; allowed: text, json"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_one_line(options, said, monkeypatch):
    monkeypatch.setattr("gpupack.logs.configure", lambda *_: None)
    done = CliRunner().invoke(cli, ["mps", "--root=/tmp", *options])
    assert (done.exit_code, done.stderr) == (2, f"gpupack: {said}\n")
