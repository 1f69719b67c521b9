"""Being registered, in every case in which a kubelet or a socket goes away."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from pytest_mock import MockerFixture

from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from kubeapi.backoff import Backoff
from tests.kubelet_world import RESOURCE, ScriptedPlugin, World, pod, world
from tests.waiting import until


async def test_registers_and_lists_its_devices() -> None:
    async with world(cards=2, units=8) as here:
        assert here.kubelet.capacity() == {RESOURCE: 16}
        assert here.events == ["registered"]
        assert here.kubelet.registrations == 1
        assert here.registrar.registrations == 1


async def test_waits_for_a_kubelet_that_is_not_there_yet() -> None:
    async with world(registrar=False) as here:
        await here.kubelet.stop()
        here.run_registrar()
        await asyncio.sleep(0)
        await here.kubelet.start()
        await here.registered()
        assert here.events == ["registered"]


async def test_waits_for_the_folder_itself() -> None:
    async with world(registrar=False) as here:
        await here.kubelet.stop()
        here.kubelet.device_plugin_dir.rmdir()
        here.run_registrar()
        await asyncio.sleep(0.1)
        await here.kubelet.start()
        await here.registered()


async def test_registers_again_after_a_kubelet_restart() -> None:
    async with world() as here:
        for number in (1, 2, 3):
            await here.kubelet.restart()
            assert here.kubelet.allocatable().get(RESOURCE, 0) == 0
            await here.registered()
            assert here.registrar.registrations == 1 + number
            assert here.kubelet.registrations == 1
        assert here.events[-1] == "registered"
        assert here.events.count("restarted") >= 3


async def test_a_kubelet_that_restarts_waits_for_no_pause() -> None:
    """It deletes our socket itself, which is no failure: pods that run fail where it waits too long."""
    async with world(registrar=False) as here:
        here.registrar = here.new_registrar(backoff=Backoff(1000.0, 1000.0))
        here.run_registrar()
        await here.registered()
        await here.kubelet.restart()
        await here.registered()


async def test_a_list_that_ends_as_our_socket_goes_is_noticed() -> None:
    """A kubelet that dies leaves pods whose devices it may not have written down."""
    async with world() as here:
        await here.registered()
        (stream,) = here.plugin.open_streams
        stream.ended.set()
        here.socket.unlink()
        await until(lambda: here.events == ["registered", "restarted", "registered"])


async def test_a_killed_kubelet_leaves_its_socket_and_is_found_again() -> None:
    async with world() as here:
        await here.kubelet.kill()
        assert (here.kubelet.device_plugin_dir / "kubelet.sock").is_socket()
        await until(lambda: "restarted" in here.events)
        assert not here.registrar.is_registered
        await here.kubelet.start()
        await here.registered()
        assert here.socket.is_socket()


async def test_own_socket_deleted() -> None:
    async with world() as here:
        here.socket.unlink()
        await until(lambda: here.kubelet.registrations == 2)
        await here.registered()
        assert here.socket.is_socket()
        # The kubelet saw the end of the old stream before the new registration: nothing is taken down later.
        await asyncio.sleep(0.3)
        assert here.kubelet.allocatable() == {RESOURCE: 16}
        assert here.kubelet.registrations == 2
        assert here.events == ["registered", "registered"]


async def test_own_socket_deleted_again_and_again() -> None:
    """By somebody else's clean-up, say: it is served less and less often."""
    async with world() as here:
        deletions = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    with suppress(FileNotFoundError):
                        here.socket.unlink()
                        deletions += 1
                    await asyncio.sleep(0)
        assert deletions < 30
        await here.registered()


async def test_own_socket_deleted_on_the_way_to_the_kubelet() -> None:
    """A starting kubelet deletes our socket just before Register: it must not dial a socket that is gone."""

    class Unlucky(ScriptedPlugin):
        @property
        def streams_opened(self) -> int:  # asked for between serving and connecting
            if not self.lost:
                self.lost.append(here.socket)
                here.socket.unlink()
            return super().streams_opened

    async with world(registrar=False) as here:
        here.plugin = Unlucky(here.allocator)
        here.plugin.lost = []
        here.registrar = here.new_registrar()
        here.run_registrar()
        await here.registered()
        assert here.plugin.lost == [here.socket]
        assert here.kubelet.registrations == 1
        assert here.events == ["registered"]


async def test_own_socket_replaced_by_somebody_elses() -> None:
    async with world() as here:
        here.socket.unlink()
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(here.socket))
            await until(lambda: here.kubelet.registrations == 2)
        await here.registered()


async def test_lingering_socket_of_a_killed_daemon() -> None:
    async with world(registrar=False) as here:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(here.socket))
        assert here.socket.is_socket()
        here.run_registrar()
        await here.registered()


async def test_a_file_in_the_way_is_left_alone_until_it_is_gone() -> None:
    async with world(registrar=False) as here:
        here.socket.write_text("precious")
        here.run_registrar()
        await asyncio.sleep(0.3)
        assert not here.registrar.is_registered
        assert here.socket.read_text() == "precious"
        here.socket.unlink()
        await here.registered()


async def _register(here: World, endpoint: str) -> None:
    path = here.kubelet.device_plugin_dir / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await rpc.RegistrationStub(channel).Register(
            pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=RESOURCE)
        )


@asynccontextmanager
async def _registered_by_hand(here: World, endpoint: str) -> AsyncIterator[DevicePlugin]:
    """Serve and register a plugin with nobody watching over it, as a simple one would."""
    plugin = DevicePlugin(here.allocator)
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{here.kubelet.device_plugin_dir / endpoint}")
    await server.start()
    await _register(here, endpoint)
    await until(lambda: plugin.open_streams)
    try:
        yield plugin
    finally:
        await server.stop(None)


async def test_a_kubelet_that_refuses_our_socket_for_good_is_offered_another_one() -> None:
    """A frozen kubelet had not noticed the end of our stream when it was asked to register us again."""
    async with world() as here:
        await here.registered()
        with pytest.raises(grpc.aio.AioRpcError, match="already connected"):
            await _register(here, here.socket.name)
        here.socket.unlink()
        await until(lambda: here.registrar.registrations == 2)
        await here.registered()
        assert (await here.kubelet.admit(pod("a", 2))).admitted


async def test_a_registration_beside_the_end_of_an_older_stream_is_answered(
    mocker: MockerFixture,
) -> None:
    """The kubelet closes the connection of whoever has the name by then."""
    may_answer = asyncio.Event()
    may_answer.set()
    answers = DevicePlugin.GetDevicePluginOptions

    async def answer(plugin: DevicePlugin, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        await may_answer.wait()
        return await answers(plugin, request, context)

    mocker.patch.object(DevicePlugin, "GetDevicePluginOptions", answer)
    async with world(registrar=False) as here, _registered_by_hand(here, "old.sock") as plugin:
        with pytest.raises(grpc.aio.AioRpcError, match="already connected"):
            await _register(here, "old.sock")
        may_answer.clear()
        again = asyncio.create_task(_register(here, "old.sock"))
        await until(lambda: here.kubelet.registrations == 3)
        [only] = plugin.open_streams
        only.stopping = True
        only.wake.set()
        with pytest.raises(grpc.aio.AioRpcError, match="the client connection is closing"):
            await again
        may_answer.set()


async def test_stream_ended_by_the_kubelet() -> None:
    """An older instance of the daemon goes away after we registered, and takes us down with it."""
    async with world(registrar=False, by_resource=True) as here:
        async with _registered_by_hand(here, "old.sock"):
            here.run_registrar()
            await here.registered()
            [ours] = here.plugin.open_streams
        await ours.ended.wait()
        assert not ours.stopping
        await here.registered()
        assert here.registrar.registrations == 2
        assert here.events == ["registered", "restarted", "registered"]


async def test_an_older_instance_that_goes_away_leaves_us_alone_from_1_37_on() -> None:
    async with world(registrar=False) as here:
        async with _registered_by_hand(here, "old.sock") as plugin:
            here.run_registrar()
            await here.registered()
            [old] = plugin.open_streams
        await old.ended.wait()
        assert (await here.kubelet.admit(pod("a", 2))).admitted
        assert here.registrar.registrations == 1
        assert here.kubelet.allocatable() == {RESOURCE: 16}


async def test_stop_takes_the_socket_away_and_capacity_stays_for_five_minutes() -> None:
    now = [0.0]
    async with world(clock=lambda: now[0]) as here:
        await here.stop_registrar()
        assert not here.socket.exists()
        await until(lambda: here.kubelet.allocatable() == {RESOURCE: 0})
        assert here.kubelet.capacity() == {RESOURCE: 16}
        now[0] = 299.0
        assert here.kubelet.capacity() == {RESOURCE: 16}
        now[0] = 301.0
        assert here.kubelet.capacity() == {}
