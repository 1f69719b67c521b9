"""What PodResources shows and hides, through our client."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from deviceplugin.kubelet.podresources import PodResourcesClient

from deviceplugin.errors import (
    PodResourcesError,
    PodResourcesThrottled,
    PodResourcesTimedOut,
    PodResourcesUnavailable,
)
from standins.kubelet.process import Delays
from standins.kubelet.wire import podresources_pb2 as pb
from standins.kubelet.wire import podresources_pb2_grpc as rpc
from tests.kubelet_world import RESOURCE, pod, short_folder, uid_of, until, world


async def test_lists_what_containers_hold() -> None:
    async with world() as here:
        one, plain = pod("a", 2, 3), pod("plain", 0)
        await here.kubelet.admit_batch([one, plain])
        listed = await here.resources.list()
        assert listed.entries == {
            ("default", "a", "m0"): {RESOURCE: tuple(sorted(here.ids(one, "m0")))},
            ("default", "a", "m1"): {RESOURCE: tuple(sorted(here.ids(one, "m1")))},
        }
        assert listed.pods == {("default", "a"), ("default", "plain")}


async def test_hides_ordinary_init_containers_and_shows_sidecars() -> None:
    async with world() as here:
        one = pod("a", 1, init=[4, ("sidecar", 2)])
        await here.kubelet.admit(one)
        listed = await here.resources.list()
        assert set(listed.entries) == {("default", "a", "i1"), ("default", "a", "m0")}
        assert set(listed.entries["default", "a", "m0"][RESOURCE]) == here.ids(one, "m0")
        assert len(here.kubelet.in_use(RESOURCE)) == 4


async def test_one_entry_per_device_on_the_wire() -> None:
    async with (
        world() as here,
        grpc.aio.insecure_channel(f"unix:{here.kubelet.pod_resources_socket}") as channel,
    ):
        await here.kubelet.admit(pod("a", 3))
        stub = rpc.PodResourcesListerStub(channel)
        answer = await stub.List(pb.ListPodResourcesRequest())
        devices = answer.pod_resources[0].containers[0].devices
        assert [len(one.device_ids) for one in devices] == [1, 1, 1]
        allocatable = await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
        assert len(allocatable.devices) == 16
        got = await stub.Get(pb.GetPodResourcesRequest(pod_name="a", pod_namespace="default"))
        assert got.pod_resources == answer.pod_resources[0]
        with pytest.raises(grpc.aio.AioRpcError, match="pod b in namespace default not found"):
            await stub.Get(pb.GetPodResourcesRequest(pod_name="b", pod_namespace="default"))


async def test_empty_after_a_restart_until_the_kubelet_knows_its_pods() -> None:
    async with world() as here:
        await here.kubelet.admit(pod("a", 2))
        before = await here.resources.list()
        here.kubelet.api_away = True
        await here.kubelet.restart()
        empty = await here.resources.list()
        assert not empty.entries
        assert not empty.pods
        assert empty.kubelet != before.kubelet
        await here.registered()
        assert not (await here.resources.list()).entries
        assert here.kubelet.api_away
        here.kubelet.api_away = False
        await here.kubelet.synced()
        assert (await here.resources.list()).entries == before.entries


async def test_a_lost_checkpoint_lists_running_pods_without_devices() -> None:
    async with world() as here:
        await here.kubelet.admit(pod("a", 2))
        await here.kubelet.restart(lose_checkpoint=True)
        await here.kubelet.synced()
        listed = await here.resources.list()
        assert not listed.entries
        assert listed.pods == {("default", "a")}


async def test_a_forced_deletion_leaves_the_list_before_the_container_ends() -> None:
    async with world(delays=Delays(kill_s=0.3)) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        here.kubelet.remove(uid_of(one))
        assert not (await here.resources.list()).pods
        assert here.kubelet.running_pods() == {uid_of(one)}
        await until(lambda: not here.kubelet.running_pods())


async def test_a_graceful_deletion_stays_listed_until_the_container_ends() -> None:
    async with world(delays=Delays(stop_s=0.3)) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        deletion = asyncio.create_task(here.kubelet.delete(uid_of(one)))
        await asyncio.sleep(0)
        assert (await here.resources.list()).entries
        assert here.kubelet.running_pods() == {uid_of(one)}
        await deletion
        assert not (await here.resources.list()).pods
        assert not here.kubelet.running_pods()


@pytest.mark.parametrize("list_terminal", [False, True], ids=["1.36", "before"])
async def test_ended_pods_are_listed_only_by_older_kubelets(list_terminal: bool) -> None:
    async with world(list_terminal=list_terminal) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        here.kubelet.finish(uid_of(one))
        listed = await here.resources.list()
        assert bool(listed.pods) is list_terminal
        assert not listed.entries
        assert here.kubelet.in_use(RESOURCE) == frozenset()


async def test_nobody_there() -> None:
    async with short_folder() as folder:
        client = PodResourcesClient(folder / "kubelet.sock")
        with pytest.raises(PodResourcesUnavailable, match="there is no socket"):
            await client.list()
        await client.close()


async def test_a_dead_kubelet_and_its_return() -> None:
    async with world() as here:
        await here.resources.list()
        await here.kubelet.kill()
        with pytest.raises(PodResourcesUnavailable):
            await here.resources.list()
        await here.kubelet.start()
        await here.resources.list()


async def test_too_many_questions() -> None:
    async with world() as here:
        hasty = PodResourcesClient(here.kubelet.pod_resources_socket, gap_s=0.0)
        results = await asyncio.gather(*(hasty.list() for _ in range(500)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, PodResourcesThrottled)]
        assert refused
        assert "rate limit" in str(refused[0])
        await hasty.close()


class _Silent(rpc.PodResourcesListerServicer):
    async def List(self, request, context):  # noqa: N802 - the wire's name
        await asyncio.Event().wait()


async def test_a_silent_kubelet() -> None:
    async with short_folder() as folder:
        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(_Silent(), server)
        server.add_insecure_port(f"unix:{folder}/kubelet.sock")
        await server.start()
        client = PodResourcesClient(folder / "kubelet.sock", timeout_s=0.1)
        with pytest.raises(PodResourcesTimedOut, match="DEADLINE_EXCEEDED"):
            await client.list()
        await client.close()
        await server.stop(None)


async def test_questions_keep_their_distance() -> None:
    async with world() as here:
        patient = PodResourcesClient(here.kubelet.pod_resources_socket, gap_s=0.1)
        answers = await asyncio.gather(*(patient.list() for _ in range(3)))
        began = sorted(answer.began for answer in answers)
        assert began[1] - began[0] >= 0.1
        assert began[2] - began[1] >= 0.1
        await patient.close()


class _Odd(rpc.PodResourcesListerServicer):
    """Refuses, or has its socket replaced while it answers."""

    def __init__(self, replaced: Path | None) -> None:
        self.replaced = replaced

    async def List(self, request, context):  # noqa: N802 - the wire's name
        if self.replaced is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        self.replaced.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(self.replaced))
        return pb.ListPodResourcesResponse()


@pytest.mark.parametrize("replaces", [False, True], ids=["refuses", "replaced"])
async def test_an_answer_that_cannot_be_used(replaces: bool) -> None:
    async with short_folder() as folder:
        path = folder / "kubelet.sock"
        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(_Odd(path if replaces else None), server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        client = PodResourcesClient(path)
        with pytest.raises(PodResourcesError) as caught:
            await client.list()
        assert isinstance(caught.value, PodResourcesUnavailable) is replaces
        assert ("changed while it was asked" if replaces else "PERMISSION_DENIED: not you") in str(
            caught.value
        )
        await client.close()
        await server.stop(None)
