"""Registration with kubelets that refuse, hang, never listen or hang up: what a healthy one does not do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from deviceplugin.dra.registration import DraRegistrar
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.registration import Registrar, RegistrationTimeouts
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from kubeapi.backoff import Backoff
from tests.kubelet_world import RESOURCE, SimpleAllocator, short_folder
from tests.odd_kubelet import OddKubelet
from tests.waiting import until


class Scene:
    def __init__(self, folder: Path, kubelet: OddKubelet, registrar: Registrar, backoff: Backoff) -> None:
        self.folder = folder
        self.kubelet = kubelet
        self.registrar = registrar
        self.backoff = backoff
        self.events: list[str] = []
        self.task: asyncio.Task[None] | None = None


@asynccontextmanager
async def scene(
    *moods: str, timing: RegistrationTimeouts | None = None, endpoint: str = "gpupack.sock"
) -> AsyncIterator[Scene]:
    async with short_folder() as folder:
        kubelet = OddKubelet(folder, *moods)
        await kubelet.start()
        backoff = Backoff(0.02, 0.1)
        events: list[str] = []
        registrar = Registrar(
            DevicePlugin(SimpleAllocator()),
            folder,
            endpoint,
            RESOURCE,
            on_registered=lambda: events.append("registered"),
            on_kubelet_restart=lambda: events.append("restarted"),
            backoff=backoff,
            timing=timing
            or RegistrationTimeouts(register_s=30, stream_s=1, settle_s=0.05, lasting_s=60, grace_s=0.1),
        )
        here = Scene(folder, kubelet, registrar, backoff)
        here.events = events
        here.task = asyncio.create_task(registrar.run())
        try:
            yield here
        finally:
            here.task.cancel()
            with suppress(asyncio.CancelledError):
                await here.task
            await kubelet.stop()


async def test_the_request() -> None:
    async with scene("listens") as here:
        await until(lambda: here.registrar.is_registered)
        assert here.kubelet.requests == [
            pb.RegisterRequest(
                version="v1beta1",
                endpoint="gpupack.sock",
                resource_name=RESOURCE,
                options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
            )
        ]


async def test_a_kubelet_that_refuses_is_asked_again_with_growing_delays() -> None:
    async with scene("refuses", "refuses", "refuses", "listens") as here:
        await until(lambda: here.registrar.is_registered)
        assert len(here.kubelet.requests) == 4
        assert here.backoff.failures == 3
        assert here.events == ["registered"]


async def test_a_kubelet_that_never_listens_is_asked_again() -> None:
    async with scene("ignores", "ignores", "listens") as here:
        await until(lambda: here.registrar.is_registered)
        assert len(here.kubelet.requests) == 3
        assert here.registrar.registrations == 1


async def test_a_kubelet_that_hangs_up_at_once_is_not_hammered() -> None:
    async with scene("hangs up", "hangs up", "hangs up", "listens") as here:
        await until(lambda: here.registrar.is_registered and len(here.kubelet.requests) == 4)
        assert here.backoff.failures == 3


async def test_a_stream_that_lasted_forgives_earlier_failures() -> None:
    timing = RegistrationTimeouts(register_s=30, stream_s=30, settle_s=0.05, lasting_s=0.0, grace_s=0.1)
    async with scene("refuses", "listens", timing=timing) as here:
        await until(lambda: here.registrar.is_registered)
        assert here.backoff.failures == 1
        await here.kubelet.channels[0].close()
        await until(lambda: len(here.kubelet.channels) == 2 and here.registrar.is_registered)
        assert here.backoff.failures == 0
        assert here.events == ["registered", "restarted", "registered"]


async def test_a_kubelet_that_hangs_in_register_and_is_replaced() -> None:
    async with scene("hangs", "listens") as here:
        await until(lambda: here.kubelet.requests)
        assert not here.registrar.is_registered
        await here.kubelet.stop()
        await here.kubelet.start()
        await until(lambda: here.registrar.is_registered)


async def test_register_does_not_wait_for_ever() -> None:
    timing = RegistrationTimeouts(register_s=1, stream_s=30, settle_s=0.05, lasting_s=60, grace_s=0.1)
    async with scene("hangs", "hangs", "listens", timing=timing) as here:
        await until(lambda: here.registrar.is_registered)
        assert here.backoff.failures == 2


@pytest.mark.parametrize("mood", ["refuses", "hangs", "ignores", "listens"])
async def test_stops_at_any_moment_and_takes_its_socket_away(mood: str) -> None:
    async with scene(mood) as here:
        await until(lambda: here.kubelet.requests)
        assert here.task is not None
        here.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await here.task
        assert not (here.folder / "gpupack.sock").exists()
        assert not here.registrar.is_registered


async def test_a_socket_that_cannot_be_served_is_tried_again() -> None:
    async with scene("ignores", endpoint="later/gpupack.sock") as here:
        await until(lambda: here.backoff.failures >= 2)
        assert not here.kubelet.requests
        (here.folder / "later").mkdir()
        await until(lambda: here.kubelet.requests)


def plugin_registrar(folder: Path) -> Registrar:
    return Registrar(
        DevicePlugin(SimpleAllocator()),
        folder,
        "gpupack.sock",
        RESOURCE,
        on_registered=lambda: None,
        on_kubelet_restart=lambda: None,
    )


def claims_registrar(folder: Path) -> DraRegistrar:
    return DraRegistrar(cast("Any", None), folder, on_registered=lambda: None)


@pytest.mark.parametrize("make", [plugin_registrar, claims_registrar])
async def test_a_cancellation_that_grpc_keeps_ends_the_registrar_all_the_same(mocker, make):
    async with short_folder() as folder:
        registrar = make(folder)
        entered = asyncio.Event()

        async def step() -> None:
            entered.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        mocker.patch.object(registrar._stepper, "_step", step)
        task = asyncio.create_task(registrar.run())
        await entered.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()


async def test_events_in_the_registry_do_not_end_the_pause_after_sockets_that_could_not_be_served(mocker):
    async with short_folder() as folder:
        registrar = claims_registrar(folder)
        backoff = mocker.patch.object(registrar._stepper, "_failures", Backoff(60, 60))
        in_the_way = folder / "plugins_registry" / "gpu.gpupack.io-reg.sock"
        in_the_way.mkdir(parents=True)
        task = asyncio.create_task(registrar.run())
        await until(lambda: backoff.failures)
        for number in range(5):
            (folder / "plugins_registry" / f"other-{number}.sock").touch()
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task})
        assert backoff.failures == 1
