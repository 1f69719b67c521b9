"""Connections to the kubelet that die at the wrong moment cost neither memory nor a wake-up."""

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.registration import Registrar, RegistrationTimeouts
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from kubeapi.backoff import Backoff
from tests.http2_listener import GOAWAY, SETTINGS, listening, resident_mib
from tests.kubelet_world import RESOURCE, SimpleAllocator, short_folder
from tests.odd_kubelet import OddKubelet
from tests.running import background
from tests.waiting import until

FOR_EVER_S = 1e6


class Scene:
    def __init__(self, folder: Path, timing: RegistrationTimeouts) -> None:
        self.folder = folder
        self.socket = folder / "kubelet.sock"
        self.backoff = Backoff(0.01, 0.02)
        self.plugin = DevicePlugin(SimpleAllocator())
        self.registrar = Registrar(
            self.plugin,
            folder,
            "gpupack.sock",
            RESOURCE,
            on_registered=lambda: None,
            on_kubelet_restart=lambda: None,
            backoff=self.backoff,
            timing=timing,
        )


@asynccontextmanager
async def scene(timing: RegistrationTimeouts):
    async with short_folder() as folder:
        yield Scene(folder, timing)


async def test_a_connection_that_says_goaway_at_once_costs_one_call_and_no_memory():
    async with (
        scene(RegistrationTimeouts(register_s=2.0)) as here,
        listening(here.socket, SETTINGS + GOAWAY) as kubelet,
    ):
        before_mib = resident_mib()
        async with background(here.registrar.run()):
            await until(lambda: here.backoff.failures >= 5)
        # Each try has a connection and a call of its own; none was made again by gRPC, from inside the loop.
        assert kubelet.connections <= here.backoff.failures + 1
        assert resident_mib() - before_mib < 64


class SlowlySeen:
    """A channel whose state is told late: meanwhile the connection it asked for has opened and closed."""

    def __init__(self, channel, closed: threading.Event) -> None:
        self.channel = channel
        self.closed = closed
        self.looks = 0

    def get_state(self, *, try_to_connect: bool):
        state = self.channel.get_state(try_to_connect=try_to_connect)
        self.looks += 1
        if self.looks == 1:
            assert self.closed.wait(60)
            deadline = time.monotonic() + 60
            while self.channel.get_state() is not grpc.ChannelConnectivity.IDLE:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert state is grpc.ChannelConnectivity.IDLE
        return state

    def __getattr__(self, name: str):
        return getattr(self.channel, name)


def greet_first_from_a_thread(path: Path, closed: threading.Event) -> threading.Thread:
    """Open and close the first connection while the event loop stands still; keep the second open."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        with server:
            first, _ = server.accept()
            first.sendall(SETTINGS + GOAWAY)
            time.sleep(0.1)  # a connection that ends before it was read is a failure, not idle again
            first.close()
            closed.set()
            second, _ = server.accept()
            second.sendall(SETTINGS)
            with second:
                while second.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


async def test_a_connection_that_opens_and_closes_between_two_looks_is_made_again():
    async with scene(RegistrationTimeouts(connect_s=FOR_EVER_S)) as here:
        closed = threading.Event()
        thread = greet_first_from_a_thread(here.socket, closed)
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{here.socket}", options=options) as channel:
            slow = SlowlySeen(channel, closed)
            connecting = asyncio.create_task(here.registrar._connect(slow))
            await until(connecting.done)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            assert slow.looks < 100
        thread.join(10)
        assert not thread.is_alive()


async def test_a_listener_that_never_answers_does_not_hide_the_next_kubelet():
    async with (
        scene(RegistrationTimeouts(connect_s=FOR_EVER_S, register_s=FOR_EVER_S)) as here,
        listening(here.socket, b"") as frozen,
    ):
        async with background(here.registrar.run()):
            await until(lambda: frozen.connections)
            # The old one stays, and hangs; the new one takes its path.
            kubelet = OddKubelet(here.folder, "listens")
            await kubelet.start()
            await until(lambda: here.registrar.is_registered)
            assert len(kubelet.requests) == 1
        await kubelet.stop()


async def test_a_kubelet_that_hangs_in_register_does_not_hide_the_next_one():
    async with scene(RegistrationTimeouts(register_s=FOR_EVER_S)) as here:
        old, new = OddKubelet(here.folder, "hangs"), OddKubelet(here.folder, "listens")
        await old.start()
        async with background(here.registrar.run()):
            await until(lambda: old.requests)
            await new.start()
            await until(lambda: here.registrar.is_registered)
        # gRPC takes a socket's path away with its server, whosoever it is by now.
        await old.stop()
        await new.stop()


async def test_a_kubelet_that_does_not_read_its_stream_cannot_keep_the_registrar():
    """The list is larger than what gRPC sends without being read: `write` waits, and no one wakes it."""
    timing = RegistrationTimeouts(settle_s=0.05, grace_s=0.1)
    async with scene(timing) as here:
        here.plugin._devices.health = {f"GPU-0::{number}": True for number in range(50_000)}
        old, new = Deaf(here.folder), OddKubelet(here.folder, "listens")
        await old.start()
        async with background(here.registrar.run()):
            await until(lambda: here.registrar.is_registered)
            await asyncio.sleep(0.2)
            for _ in range(3):
                here.plugin.send_devices()
                await asyncio.sleep(0.05)
            assert here.plugin.open_streams
            await new.start()
            await until(lambda: new.requests and here.registrar.is_registered)
        await old.stop()
        await new.stop()


class Deaf(OddKubelet):
    """Opens the stream and never reads it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "deaf")

    async def Register(self, request: pb.RegisterRequest, context) -> pb.Empty:  # noqa: N802 - wire
        self.requests.append(request)
        channel = grpc.aio.insecure_channel(
            f"unix:{self.folder / request.endpoint}", options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.channels.append(channel)
        self.call = rpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
        return pb.Empty()
