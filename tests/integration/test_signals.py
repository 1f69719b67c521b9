"""A command that is told to stop while it still loads, and one that is told twice."""

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpupack import cli
from gpupack.signals import DAEMONS, PAGES
from tests.waiting import until

# A process that loads a command. At the moment when it asks for one of some modules, a copy of it signals
# itself, as if the whole machine were slow. The process prints how the copy ended, and goes on.
TOLD_WHILE_LOADING = """
import os, signal, sys, time
class Teller:
    left = {modules!r}
    def find_spec(self, name, path=None, target=None):
        if name not in self.left:
            return None
        self.left.remove(name)
        for number in {numbers!r}:
            copy = os.fork()
            if not copy:
                self.left = []
                os.kill(os.getpid(), number)
                time.sleep(60)
                os._exit(99)
            status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
            print(name, signal.Signals(number).name, status, flush=True)
        if not self.left:
            os._exit(0)
import gpupack.__main__
sys.meta_path.insert(0, Teller())
sys.argv = {argv!r}
gpupack.__main__.main()
"""

TOLD_TWICE = """
import asyncio, os, signal
from gpupack.signals import connect_stop_event
async def main():
    with connect_stop_event() as stop:
        os.kill(os.getpid(), {number})
        await stop.wait()
        print("heeded", flush=True)
        os.kill(os.getpid(), {number})
        print("still here", flush=True)
asyncio.run(main())
"""

# Runs of `simulate` that last as long as the command does.
SIMULATING = """
import os, sys, time
from functools import partial
from pathlib import Path
from scheduler_plugin.simulator.app import _run_tasks
from scheduler_plugin.simulator.options import Variant
def prepare():
    pass
def run(command, folder, variant, seed):
    (folder / str(os.getpid())).touch()
    while os.getppid() == command:
        time.sleep(0.01)
if __name__ == "__main__":
    run_variant = partial(run, os.getpid(), Path(sys.argv[1]))
    tasks = [(Variant("packed", None, "packed"), seed) for seed in range(4)]
    list(_run_tasks(run_variant, tasks, 2, prepare))
"""

CANCELLED = """
import asyncio, os, signal
from gpupack.signals import cancel_on_signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have used nohup
async def work():
    with cancel_on_signals(asyncio.current_task()):
        try:
            os.kill(os.getpid(), {number})
            await asyncio.Event().wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
            print("undone", flush=True)
asyncio.run(work())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


SIMULATED = ("--gpus", "simulated", "--profile", "2xt4")
NOWHERE = ("--kubeconfig", "/nowhere")
STARTED = {
    "node": ("node", "--node-name", "n1", *SIMULATED, *NOWHERE),
    "scheduler": ("scheduler", *NOWHERE),
    "queue": ("queue", "--config", "/nowhere", *NOWHERE),
    "autoscale": ("autoscale", *NOWHERE),
    "mps": ("mps", "--root", "/nowhere", *SIMULATED),
    "dashboard": ("dashboard", *NOWHERE),
    "demo": ("demo", "--dashboard"),
}


LOADED = {
    "node": ["gpupack.cli.app", "click", "structlog", "grpc", "deviceplugin.settings"],
    "scheduler": ["gpupack.cli.app", "numpy", "scheduler_plugin.settings"],
    "queue": ["gpupack.cli.app", "scheduler_plugin.queue.controller.settings"],
    "autoscale": ["gpupack.cli.app"],
    "mps": ["gpupack.cli.app", "deviceplugin.gpus.nvidia.mps.supervisor"],
    "dashboard": ["gpupack.cli.app", "gpupack.dashboard.app"],
    "demo": ["gpupack.cli.app", "gpupack.demo.load"],
}
"""Modules that a command loads."""


def tell_while_loading(arguments, modules, numbers):
    """How a command ends that is told by each of some signals while it asks for each of some modules."""
    argv = ["gpupack", *arguments]
    done = python(
        TOLD_WHILE_LOADING.format(modules=modules, numbers=[int(each) for each in numbers], argv=argv)
    )
    assert done.returncode == 0
    return {
        (module, name): int(status) for module, name, status in map(str.split, done.stdout.splitlines())
    }, done.stderr


@pytest.mark.parametrize("command", STARTED)
def test_told_while_a_module_loads(command):
    numbers = (signal.SIGTERM, signal.SIGINT)
    ends, said = tell_while_loading(STARTED[command], LOADED[command], numbers)
    assert ends == {(module, number.name): 0 for module in LOADED[command] for number in numbers}
    assert said == ""


@pytest.mark.parametrize(
    "arguments",
    [("why", "ns/pod"), ("queue", "status"), ("queue", "check", "x"), ("node", "--check"), ("demo",)],
)
def test_a_command_that_ends_by_itself_is_not_taken_for_done(arguments):
    ends, _ = tell_while_loading(arguments, ["gpupack.cli.app"], [signal.SIGTERM])
    assert ends == {("gpupack.cli.app", "SIGTERM"): -signal.SIGTERM}


def test_every_command_that_runs_on_heeds_signals_while_it_loads():
    serving = {
        path.stem
        for path in Path(cli.__path__[0]).glob("*.py")
        if any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_daemon"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert serving == {*DAEMONS, *PAGES} == set(STARTED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(number):
    done = python(TOLD_TWICE.format(number=int(number)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "heeded\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_done_is_undone_whatever_signals_come_meanwhile(number):
    done = python(CANCELLED.format(number=int(number)))
    assert (done.returncode, done.stdout) == (1, "undone\n")
    assert done.stderr.rstrip().endswith("CancelledError")


def test_ctrl_c_while_simulate_loads_prints_no_traceback():
    arguments = ("simulate", "--nodes", "/nowhere", "--pods", "/nowhere")
    modules = ["gpupack.cli.app", "click", "numpy", "scheduler_plugin.simulator.app"]
    ends, said = tell_while_loading(arguments, modules, [signal.SIGINT])
    assert ends == {(module, "SIGINT"): 130 for module in modules}
    assert said.strip() == ""


def simulate_in_processes(tmp_path):
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,65536,4,T4\n")
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\none,1,1,1,1,\n"
    (tmp_path / "pods.csv").write_text(pods)
    command = [sys.executable, "-m", "gpupack", "simulate", "--policy", "fragmentation", "--seeds", "1-400"]
    command += ["--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv", "--jobs", "2"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_ctrl_c_while_the_processes_of_simulate_load_prints_no_traceback(tmp_path):
    """A terminal sends the signal to all of them, and each printed a traceback of its own."""
    process = simulate_in_processes(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert "Traceback" not in said
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_simulate_alone_ends_its_processes_too(tmp_path, number):
    script, folder = tmp_path / "simulating.py", tmp_path / "runs"
    script.write_text(SIMULATING)
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(sys.executable, script, folder, stderr=subprocess.DEVNULL)
    try:
        await until(lambda: len(list(folder.iterdir())) == 2, "both processes run")
        process.send_signal(number)
        runs = [Path("/proc", run.name) for run in folder.iterdir()]
        await until(lambda: not any(run.exists() for run in runs), "no process is left")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_the_run_is_named_whose_process_was_killed_and_the_others_end(tmp_path):
    """The kernel kills one when memory runs out."""
    script, folder = tmp_path / "simulating.py", tmp_path / "runs"
    script.write_text(SIMULATING)
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, folder, stderr=asyncio.subprocess.PIPE
    )
    try:
        await until(lambda: len(list(folder.iterdir())) == 2, "both processes run")
        killed, other = (Path("/proc", run.name) for run in folder.iterdir())
        os.kill(int(killed.name), signal.SIGKILL)
        _, said = await process.communicate()
        assert re.search(
            rb"was killed by signal 9 \(Killed\) in the run of packed, seed [01]; .* --jobs$", said.strip()
        )
        assert not other.exists()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def test_simulate_says_in_one_line_that_a_process_was_killed(tmp_path):
    process = simulate_in_processes(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def list_workers():
        assert process.poll() is None
        return [pid for pid in children.read_text().split() if b"spawn_main" in read_command(pid)]

    while not (workers := list_workers()):
        time.sleep(0.01)
    os.kill(int(workers[0]), signal.SIGKILL)
    printed, said = process.communicate(timeout=200)
    assert (process.returncode, printed) == (1, "")
    assert re.fullmatch(r"gpupack: a process of the simulation was killed by signal 9 .* --jobs\n", said)


def read_command(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
