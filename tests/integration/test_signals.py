"""A command that is told to stop while it still loads, and one that is told twice."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpupack import cli
from gpupack.signals import DAEMONS, PAGES

# Signals itself at the moment when a module is asked for, as if the whole machine were slow.
TOLD_WHILE_LOADING = """
import os, signal, sys
class Teller:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
            time.sleep(60)
import time
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

CANCELLED = """
import asyncio, os, signal
from gpupack.signals import cancel_on_signals
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


def told_while_loading(arguments, module, number=signal.SIGTERM):
    argv = ["gpupack", *arguments]
    return python(TOLD_WHILE_LOADING.format(module=module, number=int(number), argv=argv))


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("node", "click"),
        ("node", "structlog"),
        ("node", "grpc"),
        ("node", "deviceplugin.settings"),
        ("scheduler", "numpy"),
        ("scheduler", "scheduler_plugin.settings"),
        ("queue", "scheduler_plugin.queue.controller.settings"),
        ("mps", "deviceplugin.gpus.nvidia.mps.supervisor"),
        ("dashboard", "gpupack.dashboard.app"),
        ("demo", "gpupack.demo.load"),
    ],
)
def test_told_while_a_module_loads(command, module):
    done = told_while_loading(STARTED[command], module)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", STARTED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_before_anything_is_loaded(command, number):
    done = told_while_loading(STARTED[command], "gpupack.cli.app", number)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("why", "ns/pod"), ("queue", "status"), ("queue", "check", "x"), ("node", "--check"), ("demo",)],
)
def test_a_command_that_ends_by_itself_is_not_taken_for_done(arguments):
    assert told_while_loading(arguments, "gpupack.cli.app").returncode == -signal.SIGTERM


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


@pytest.mark.parametrize("module", ["click", "gpupack.cli.app", "numpy", "scheduler_plugin.simulator.app"])
def test_ctrl_c_while_simulate_loads_prints_no_traceback(module):
    arguments = ("simulate", "--nodes", "/nowhere", "--pods", "/nowhere")
    done = told_while_loading(arguments, module, signal.SIGINT)
    assert (done.returncode, done.stderr.strip()) == (130, "")


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.8])
def test_ctrl_c_while_the_processes_of_simulate_load_prints_no_traceback(tmp_path, after_s):
    """A terminal sends the signal to all of them, and each printed a traceback of its own."""
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,65536,4,T4\n")
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\none,1,1,1,1,\n"
    (tmp_path / "pods.csv").write_text(pods)
    command = [sys.executable, "-m", "gpupack", "simulate", "--policy", "fragmentation", "--seeds", "1-400"]
    command += ["--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv", "--jobs", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode == 130
