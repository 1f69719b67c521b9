"""A kubelet that does not do with a registration what a healthy one does."""

import asyncio
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc


class OddKubelet(rpc.RegistrationServicer):
    """Does to each Register call what the next entry of `moods` says; the last one goes on for ever."""

    def __init__(self, folder: Path, *moods: str) -> None:
        self.folder = folder
        self.moods = list(moods)
        self.requests: list[pb.RegisterRequest] = []
        self.channels: list[Any] = []
        self.server: Any = None

    async def start(self) -> None:
        path = self.folder / "kubelet.sock"
        path.unlink(missing_ok=True)
        self.server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{path}")
        await self.server.start()

    async def stop(self) -> None:
        for channel in self.channels:
            await channel.close()
        await self.server.stop(None)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - wire
        self.requests.append(request)
        mood = self.moods.pop(0) if len(self.moods) > 1 else self.moods[0]
        if mood == "refuses":
            await context.abort(grpc.StatusCode.UNKNOWN, "not today")
        if mood == "hangs":
            await asyncio.Event().wait()
        if mood in {"listens", "hangs up"}:
            channel = grpc.aio.insecure_channel(
                f"unix:{self.folder / request.endpoint}", options=(("grpc.use_local_subchannel_pool", 1),)
            )
            self.channels.append(channel)
            call = rpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
            await call.read()
            if mood == "hangs up":
                call.cancel()
        return pb.Empty()
