"""What reading credentials, and commands that read a file, load: in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ask import cluster

HEAVY = ("pydantic", "requests", "oauthlib", "websocket", "kubernetes.client", "kubernetes.aio.dynamic")

OTHERS = """
import asyncio, sys, kubeapi.credentials
import kubernetes
import kubernetes.aio.config.kube_config as kube_config
from kubernetes.aio import client, watch

async def main():
    made = kube_config.ApiClient(configuration=kube_config.Configuration())
    print(type(made) is client.ApiClient, isinstance(client.ApiClient, type))
    await made.close()

asyncio.run(main())
print(watch.Watch.__name__, kubernetes.client.V1Pod.__name__)
from kubernetes.config import load_kube_config
print(load_kube_config.__module__)
print(hasattr(kubernetes, "nonsense"))
"""

COMMAND = """
import atexit, sys
from gpupack.__main__ import main
packages = {"numpy", "aiohttp", "kubernetes"}
atexit.register(lambda: print(sorted(packages & set(sys.modules))))
sys.argv = ["gpupack", *%r]
main()
"""

MORE_NEEDED = """
import sys, kubeapi.loading as loading
loading._PARTS["kubernetes.aio.config"] = frozenset({"kube_config"})
from kubeapi.credentials import KubeConfigLoader
print(KubeConfigLoader.__module__, "kubernetes.client" in sys.modules)
"""


def run(program: str) -> list[str]:
    """Run a program; returns the lines that it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_credentials_load_no_models() -> None:
    """Neither the models, nor what checks them, nor the synchronous client."""
    looks = f"import sys, kubeapi.credentials; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(looks) == ["[]"]


def test_the_rest_of_the_package_is_there_for_others() -> None:
    """A program that uses gpupack and `kubernetes` does not notice."""
    assert run(OTHERS) == ["True True", "Watch V1Pod", "kubernetes.config.kube_config", "False"]


def test_a_release_that_needs_more_is_loaded_whole() -> None:
    """A package that cannot do without what is left out is imported in the ordinary way."""
    assert run(MORE_NEEDED) == ["kubernetes.aio.config.kube_config True"]


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        (["top", "--pods", "-o", "json"], "[]"),
        (["advise", "--for", "78", "-o", "json"], "['numpy']"),
    ],
)
def test_a_command_that_reads_a_file_loads_no_client(tmp_path: Path, command: list[str], loaded: str) -> None:
    """Loading what it does not use took longer than the answer about a small cluster."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster(nodes=3, pods=6)))
    said = run(COMMAND % [*command, "-f", str(path)])
    assert "gpu-node-00000" in "".join(said[:-1])
    assert said[-1] == loaded
