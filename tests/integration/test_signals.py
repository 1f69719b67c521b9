"""A daemon that is told to stop while it still loads, and one that is told twice."""

import signal
import subprocess
import sys

import pytest

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
from gpupack.signals import told_to_stop
async def main():
    with told_to_stop() as stop:
        os.kill(os.getpid(), {number})
        await stop.wait()
        print("heeded", flush=True)
        os.kill(os.getpid(), {number})
        print("still here", flush=True)
asyncio.run(main())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("node", "gpupack.cli"),
        ("node", "click"),
        ("node", "structlog"),
        ("node", "grpc"),
        ("node", "deviceplugin.settings"),
        ("scheduler", "gpupack.cli"),
        ("scheduler", "numpy"),
        ("scheduler", "scheduler_plugin.settings"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_while_a_module_loads(command, module, number):
    options = ["--node-name", "n1", "--gpus", "simulated", "--profile", "2xt4"] if command == "node" else []
    argv = ["gpupack", command, *options, "--kubeconfig", "/nowhere"]
    done = python(TOLD_WHILE_LOADING.format(module=module, number=int(number), argv=argv))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(number):
    done = python(TOLD_TWICE.format(number=int(number)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "heeded\n", "")
