"""Tests that frameworks keep to a part of a real card where only advice holds them; see docs/mps.md."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.gpus.api.source import GpuCard
from tests.hardware.programs import PodCgroups, Report
from tests.hardware.test_node import start_node

SHARE_GIB = 8
PAGE = (Path(__file__).parents[2] / "docs" / "mps.md").read_text("utf-8")
# What the page tells users of PyTorch to write.
LINES = PAGE.split("```python\n")[1].split("```")[0]
USED = """
import json, os
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByUUID(os.environ["NVIDIA_VISIBLE_DEVICES"])
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
used = next(each.usedGpuMemory for each in processes if each.pid == os.getpid())
print(json.dumps({"used_mib": used // 2**20, "refused": refused}))
"""
JAX = """
import jax, jax.numpy as jnp
# Libraries beside the context: matrix product and convolution.
one = jnp.ones((512, 512))
(one @ one).block_until_ready()
jax.lax.conv(jnp.ones((1, 8, 64, 64)), jnp.ones((8, 8, 3, 3)), (1, 1), 'SAME').block_until_ready()
refused, kept = False, []
try:
    for _ in range(256):
        kept.append(jnp.ones((64, 1024, 1024), dtype=jnp.float32).block_until_ready())
except Exception as error:
    refused = "RESOURCE_EXHAUSTED" in str(error)
"""
TORCH = """
refused, kept = False, []
one = torch.ones((512, 512), device="cuda")
one @ one
torch.nn.functional.conv2d(torch.ones((1, 8, 64, 64), device="cuda"), torch.ones((8, 8, 3, 3), device="cuda"))
try:
    for _ in range(256):
        kept.append(torch.ones((64, 1024, 1024), dtype=torch.float32, device="cuda"))
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    refused = True
"""


@pytest.mark.parametrize(("framework", "program"), [("jax", JAX), ("torch", LINES + TORCH)])
async def test_a_framework_that_is_told_its_share_stays_within_it(
    card: GpuCard, cgroups: PodCgroups, framework: str, program: str, report: Report
) -> None:
    python = os.environ.get("GPUPACK_FRAMEWORKS_PYTHON", sys.executable)
    # Another environment's Python may have the framework.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if await run([python, "-c", f"import {framework}, pynvml"], variables) is None:
        pytest.skip(f"{python} has no {framework}: GPUPACK_FRAMEWORKS_PYTHON names one that has")
    async with start_node(card, cgroups, "--advise-frameworks") as node:
        _, envs = await node.run_pod("p1", SHARE_GIB)
        variables |= envs | {"CUDA_VISIBLE_DEVICES": card.uuid}
        told = json.loads(await run([python, "-c", program + USED], variables) or "{}")
        report(f"of {SHARE_GIB} GiB {framework} takes, MiB", told["used_mib"])
        assert told["refused"]
        assert told["used_mib"] <= SHARE_GIB * 1024
        assert "GPUMemoryOverUse" not in node.reasons()


async def run(command: list[str], variables: dict[str, str]) -> str | None:
    """Run a program: the last line that it prints; None where it fails."""
    process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    return None if process.returncode else said.decode().strip().rsplit("\n", 1)[-1]
