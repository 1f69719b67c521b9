"""Calls device plugins as the kubelet does, from a process that does nothing else, with a stop-watch.

The kubelet is a Go program: the goroutine that calls a plugin does not wait for those that write its
checkpoint and read its watches. The stand-in's Python process has one interpreter lock for all of that, and
what waits for it would count as the plugin's. So the stand-in passes each call to a process, `python -m
benchmarks.caller`, which makes it by gRPC's blocking client and tells how long it took. That is from the
request to the answer, with sockets, gRPC and all that the plugin does meanwhile.

Beside each Allocate the same process makes the same call of a plugin that does nothing, in a process of its
own. The stand-in hears of its answer after both. So the second call measures what gRPC in Python takes on
this machine, with the same load on it. The two take turns in being the first, which finds processors and
caches cold.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from standins.kubelet import plugins as kubelet_plugins
from standins.kubelet.devices import AdmissionError

LIMIT_S: Final = 60.0
LINE_BYTES: Final = 1 << 24
EMPTY_PLUGIN: Final = """
import asyncio, sys, grpc
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc

class Plugin(rpc.DevicePluginServicer):
    async def Allocate(self, request, context):
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()])

async def main():
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Plugin(), server)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    await server.start()
    print("serves", flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""
REQUESTS: Final[dict[str, tuple[Any, Any]]] = {
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
}


@dataclass
class Caller:
    """The stand-in's end of the calling process.

    Attributes:
        process: its pipes.
        allocate_ms: milliseconds of every Allocate.
        preferred_ms: milliseconds of every GetPreferredAllocation.
        empty_ms: milliseconds of every Allocate of the plugin that does nothing.
    """

    process: Process
    allocate_ms: list[float] = field(default_factory=list)
    preferred_ms: list[float] = field(default_factory=list)
    empty_ms: list[float] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def forget(self) -> None:
        """Begin with empty lists."""
        for took_ms in (self.allocate_ms, self.preferred_ms, self.empty_ms):
            took_ms.clear()

    async def dial(self, socket: Path) -> None:
        """Have the connection made before the first call."""
        await self._ask({"socket": str(socket)})

    async def call(self, socket: Path, method: str, request: Any) -> Any:
        """Make one call.

        Raises:
            AdmissionError: the plugin refused, or is gone.
        """
        answer = await self._ask(
            {"socket": str(socket), "method": method, "request": request.SerializeToString().hex()}
        )
        if "refused" in answer:
            raise AdmissionError(answer["refused"])
        if method == "Allocate":
            self.allocate_ms.append(answer["ms"])
            self.empty_ms.append(answer["empty_ms"])
        else:
            self.preferred_ms.append(answer["ms"])
        return REQUESTS[method][1].FromString(bytes.fromhex(answer["answer"]))

    async def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        reader, writer = self.process.stdout, self.process.stdin
        if reader is None or writer is None:
            raise RuntimeError("the calling process has no pipes")
        async with self._turn:
            writer.write(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await reader.readline())
        return answer


class TimedPlugin(kubelet_plugins.PluginClient):
    """The stand-in kubelet's end of a plugin's socket, whose calls another process makes and times."""

    caller: Caller

    async def connect(self) -> None:
        """Dial here, for the list of devices, and there."""
        await super().connect()
        await self.caller.dial(self.socket)

    async def preferred(self, available: Collection[str], required: Collection[str], size: int) -> set[str]:
        """Ask GetPreferredAllocation for one container."""
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=sorted(available),
            must_include_deviceIDs=sorted(required),
            allocation_size=size,
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        answer = await self.caller.call(self.socket, "GetPreferredAllocation", request)
        return set(answer.container_responses[0].deviceIDs)

    async def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse:
        """Ask Allocate for one container."""
        asked = pb.ContainerAllocateRequest(devices_ids=sorted(ids))
        request = pb.AllocateRequest(container_requests=[asked])
        answer = await self.caller.call(self.socket, "Allocate", request)
        granted: pb.ContainerAllocateResponse = answer.container_responses[0]
        return granted


@asynccontextmanager
async def calling(folder: Path) -> AsyncIterator[Caller]:
    """Start the empty plugin and the calling process, and have stand-in kubelets call through it.

    Args:
        folder: for the empty plugin's socket and what the two say on stderr.
    """
    async with AsyncExitStack() as stack:
        empty = folder / "empty.sock"
        plugin = await process(stack, [sys.executable, "-c", EMPTY_PLUGIN, str(empty)], folder / "empty.log")
        await first_line(plugin)
        command = [sys.executable, "-m", "benchmarks.caller", str(empty)]
        caller = Caller(await process(stack, command, folder / "caller.log"))
        await caller.dial(empty)
        TimedPlugin.caller = caller
        kubelet_plugins.PluginClient = TimedPlugin  # type: ignore[misc]
        yield caller


async def process(stack: AsyncExitStack, command: Sequence[str], log: Path) -> Process:
    """Start a process that ends with the stack; what it says on stderr goes to the log."""
    with log.open("w") as file:
        running = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=file, limit=LINE_BYTES
        )

    async def end() -> None:
        if running.returncode is None:
            running.terminate()
        await running.communicate()

    stack.push_async_callback(end)
    return running


async def first_line(running: Process) -> str:
    """Wait for the first thing that a process says."""
    return (await running.stdout.readline()).decode().strip() if running.stdout else ""


class _Plugins:
    """In the calling process: a connection to each plugin."""

    def __init__(self, empty: str) -> None:
        self._empty = empty
        self._empty_first = False
        self._channels: dict[str, Any] = {}

    def answer(self, question: dict[str, str]) -> dict[str, Any]:
        """Do what a line from the stand-in says."""
        if "method" not in question:
            self._channels[question["socket"]] = channel = grpc.insecure_channel(f"unix:{question['socket']}")
            grpc.channel_ready_future(channel).result(LIMIT_S)
            return {}
        method = question["method"]
        request = REQUESTS[method][0].FromString(bytes.fromhex(question["request"]))
        compared = method == "Allocate"
        self._empty_first ^= compared
        first = compared and self._empty_first
        empty_ms = self._timed(self._empty, method, request)[1] if first else 0.0
        try:
            answer, ms = self._timed(question["socket"], method, request)
        except grpc.RpcError as error:
            return {"refused": f"{error.code().name}: {error.details()}"}
        told = {"answer": answer.SerializeToString().hex(), "ms": ms}
        if compared:
            told["empty_ms"] = empty_ms if first else self._timed(self._empty, method, request)[1]
        return told

    def _timed(self, socket: str, method: str, request: Any) -> tuple[Any, float]:
        call = getattr(rpc.DevicePluginStub(self._channels[socket]), method)  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        answer = call(request, timeout=LIMIT_S)
        return answer, (time.perf_counter() - began) * 1000


def main() -> None:
    """Answer line by line until the stand-in hangs up."""
    plugins = _Plugins(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(plugins.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
