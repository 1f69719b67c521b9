"""`gpupack advise --apply` that somebody interrupts gives cards back, and says so without a traceback."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import msgspec
from aiohttp import web

from allocator.names import NODE_CORDON, POD_ASSIGNED
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.empty_nodes import make_empty_node
from standins.apiserver.server import ApiServer

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "rs", "controller": True}
POD = {
    "metadata": {
        "name": "small",
        "annotations": {POD_ASSIGNED: json.dumps({"main": [["GPU-a-0", 8]]})},
        "ownerReferences": [OWNER],
    },
    "spec": {
        "nodeName": "a",
        "containers": [{"name": "main", "resources": {"limits": {"gpupack.io/gpu-memory-gib": "8"}}}],
    },
    "status": {"phase": "Running"},
}


async def test_whoever_interrupts_moves_finds_no_card_cordoned(tmp_path: Path) -> None:
    evicted = asyncio.Event()

    async def answer(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/eviction"):
            return None
        evicted.set()
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async with ApiServer() as api:
        for name in "ab":
            made = make_empty_node(name, [("A100", 40960)], 1024, Amounts(100, 10**4, 2**36), compute_limit=0)
            annotations, status = made.metadata.annotations, msgspec.to_builtins(made.status)
            api.add_node(name, None, status["capacity"], annotations)
        api.add_pod(POD)
        api.http.intercept = answer
        config = api.kubeconfig(tmp_path / "config")
        command = ("advise", "--empty", "a", "--apply", "--kubeconfig", config)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpupack", *command, stderr=asyncio.subprocess.PIPE, env={**os.environ}
        )
        ended = asyncio.create_task(process.communicate())
        await asyncio.wait({ended, asyncio.create_task(evicted.wait())}, return_when="FIRST_COMPLETED")
        assert not ended.done(), await ended
        assert NODE_CORDON in api.node("a")["metadata"]["annotations"]
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(ended, 30)
        text = said.decode().strip()
        assert text == "interrupted: no further pod is moved. Cordoned cards were given back."
        assert process.returncode == 130
        assert NODE_CORDON not in api.node("a")["metadata"]["annotations"]
