"""Asking PodResources: pods that are taken up, a cleaned checkpoint, and a kubelet that does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from deviceplugin.kubelet.pod_resources import PodResources
from deviceplugin.kubelet.wire import podresources_pb2 as pb
from deviceplugin.kubelet.wire import podresources_pb2_grpc as rpc
from tests.http2_listener import GOAWAY, SETTINGS, listening, resident_mib
from tests.kubelet_world import short_folder
from tests.waiting import until


class Kubelet(rpc.PodResourcesListerServicer):
    """Answers List as told, and notes it in the log in which the list of devices is noted too."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.status: grpc.StatusCode | None = None
        self.refusals = 1 << 30
        self.hangs = False

    async def List(self, request, context):  # noqa: N802 - the wire's name
        self.log.append("asked")
        if self.hangs:
            await asyncio.Event().wait()
        if self.status is not None and self.refusals:
            self.refusals -= 1
            await context.abort(self.status, "not you")
        self.log.append("cleaned")
        many = pb.PodResources(namespace="ns", name="many", containers=[pb.ContainerResources(name="main")])
        # More than gRPC takes unless told otherwise.
        many.containers[0].devices.add(resource_name="x" * (8 << 20), device_ids=["1"])
        return pb.ListPodResourcesResponse(pod_resources=[many])


class World:
    """A cleaner whose kubelet comes and goes."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self.log: list[str] = []
        self.kubelet = Kubelet(self.log)
        self.asked = PodResources(path, timeout_s=timeout_s)
        self._server: grpc.aio.Server | None = None

    def send_devices(self) -> None:
        self.log.append("sent")

    async def start(self) -> None:
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self.kubelet, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self.path.unlink(missing_ok=True)


@asynccontextmanager
async def world(*, started: bool = True, timeout_s: float = 60.0) -> AsyncIterator[World]:
    """Make a world in which a question has so long that a busy machine answers, unless none is to be had."""
    async with short_folder() as folder:
        here = World(folder / "kubelet.sock", timeout_s)
        if started:
            await here.start()
        try:
            yield here
        finally:
            await here.asked.close()
            await here.stop()


async def test_the_list_of_devices_follows_the_answer():
    """The other way round the kubelet would write first, and drop nothing."""
    async with world() as here:
        for _ in range(2):
            await here.asked.purge_checkpoint(here.send_devices)
        assert here.log == ["asked", "cleaned", "sent"] * 2
        assert (here.asked.problem, here.asked.errors) == (None, 0)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED: not you", id="refused"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED: not you", id="too many"),
        pytest.param(None, "DEADLINE_EXCEEDED|no answer in time", id="silent"),
    ],
)
async def test_nothing_is_sent_without_an_answer(status: grpc.StatusCode | None, reason: str):
    async with world(timeout_s=0.5) as here:
        here.kubelet.status, here.kubelet.hangs = status, status is None
        await here.asked.purge_checkpoint(here.send_devices)
        assert here.log == ["asked"]
        assert here.asked.errors == 1
        told = str(here.asked.problem)
        assert str(here.path) in told
        assert any(each in told for each in reason.split("|"))


async def test_a_kubelet_that_is_away_is_told_once_and_asked_again_when_it_is_back():
    async with world(started=False) as here:
        with capture_logs() as logs:
            for _ in range(3):
                await here.asked.purge_checkpoint(here.send_devices)
            assert (here.log, here.asked.errors) == ([], 3)
            assert "UNAVAILABLE" in str(here.asked.problem)
            await here.start()
            await here.asked.purge_checkpoint(here.send_devices)
        assert here.log == ["asked", "cleaned", "sent"]
        assert (here.asked.problem, here.asked.errors) == (None, 3)
        assert [line["log_level"] for line in logs] == ["warning", "info"]


async def test_another_kubelet_on_the_same_socket_is_asked():
    async with world() as here:
        await here.asked.purge_checkpoint(here.send_devices)
        await here.stop()
        await here.start()

        async def cleaned() -> bool:
            await here.asked.purge_checkpoint(here.send_devices)
            return here.asked.problem is None

        await until(cleaned)
        assert here.log[-3:] == ["asked", "cleaned", "sent"]


async def test_a_cleaner_that_was_closed_can_ask_again():
    async with world() as here:
        await here.asked.purge_checkpoint(here.send_devices)
        for _ in range(2):
            await here.asked.close()
        await here.asked.purge_checkpoint(here.send_devices)
        assert here.log == ["asked", "cleaned", "sent"] * 2


async def test_a_connection_that_says_goaway_at_once_costs_no_memory():
    """Retried by gRPC itself it costs gigabytes, and the event loop stands still until the deadline."""
    async with world(started=False, timeout_s=0.5) as here, listening(here.path, SETTINGS + GOAWAY):
        before_mib = resident_mib()
        for _ in range(5):
            await here.asked.purge_checkpoint(here.send_devices)
        assert (here.asked.errors, here.log) == (5, [])
        assert resident_mib() - before_mib < 64


MANY = frozenset({("ns", "many")})


async def test_pods_that_are_taken_up_are_named():
    async with world() as here:
        assert await here.asked.list_admitted_pods() == MANY
        assert here.log == ["asked", "cleaned"]


async def test_a_kubelet_that_is_asked_too_often_is_asked_again():
    async with world() as here:
        here.kubelet.status, here.kubelet.refusals = grpc.StatusCode.RESOURCE_EXHAUSTED, 3
        assert await here.asked.list_admitted_pods() == MANY
        assert here.log == ["asked"] * 4 + ["cleaned"]
        assert (here.asked.problem, here.asked.errors) == (None, 0)


async def test_another_kubelet_names_its_pods_at_the_first_question():
    async with world() as here:
        assert await here.asked.list_admitted_pods() == MANY
        await here.stop()
        await here.start()
        assert await here.asked.list_admitted_pods() == MANY
        assert here.asked.errors == 0


async def test_a_kubelet_that_never_answers_is_given_up_and_then_asked_once():
    async with world(timeout_s=3) as here:
        here.kubelet.status = grpc.StatusCode.PERMISSION_DENIED
        assert await here.asked.list_admitted_pods() is None
        assert here.log.count("asked") > 1
        here.log.clear()
        assert await here.asked.list_admitted_pods() is None
        assert (here.log, here.asked.errors) == (["asked"], 2)
        here.kubelet.refusals = 0
        assert await here.asked.list_admitted_pods() == MANY


async def test_a_question_that_fails_takes_no_other_along():
    """A connection that is closed ends every call on it."""
    async with world() as here:
        here.kubelet.status, here.kubelet.refusals = grpc.StatusCode.UNKNOWN, 1
        _, named = await asyncio.gather(
            here.asked.purge_checkpoint(here.send_devices), here.asked.list_admitted_pods()
        )
        assert named == MANY
