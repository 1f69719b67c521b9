"""What PodResources shows and hides."""

import asyncio

import grpc
import pytest

from deviceplugin.kubelet.wire import podresources_pb2 as pb
from deviceplugin.kubelet.wire import podresources_pb2_grpc as rpc
from standins.kubelet.process import Delays
from tests.kubelet_world import RESOURCE, pod, uid_of, world
from tests.waiting import until


async def test_lists_what_containers_hold() -> None:
    async with world() as here:
        one, plain = pod("a", 2, 3), pod("plain", 0)
        await here.kubelet.admit_batch([one, plain])
        listed = await here.listed()
        assert listed.entries == {
            ("default", "a", "m0"): {RESOURCE: tuple(sorted(here.ids(one, "m0")))},
            ("default", "a", "m1"): {RESOURCE: tuple(sorted(here.ids(one, "m1")))},
        }
        assert listed.pods == {("default", "a"), ("default", "plain")}


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


async def test_a_forced_deletion_leaves_the_list_before_the_container_ends() -> None:
    async with world(delays=Delays(kill_s=2.0)) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        here.kubelet.remove(uid_of(one))
        assert not (await here.listed()).pods
        assert here.kubelet.running_pods() == {uid_of(one)}
        await until(lambda: not here.kubelet.running_pods())


async def test_a_graceful_deletion_stays_listed_until_the_container_ends() -> None:
    async with world(delays=Delays(stop_s=2.0)) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        deletion = asyncio.create_task(here.kubelet.delete(uid_of(one)))
        await asyncio.sleep(0)
        assert (await here.listed()).entries
        assert here.kubelet.running_pods() == {uid_of(one)}
        await deletion
        assert not (await here.listed()).pods
        assert not here.kubelet.running_pods()


@pytest.mark.parametrize("list_terminal", [False, True], ids=["1.36", "before"])
async def test_ended_pods_are_listed_only_by_older_kubelets(list_terminal: bool) -> None:
    async with world(list_terminal=list_terminal) as here:
        one = pod("a", 2)
        await here.kubelet.admit(one)
        here.kubelet.finish(uid_of(one))
        listed = await here.listed()
        assert bool(listed.pods) is list_terminal
        assert not listed.entries
        assert here.kubelet.in_use(RESOURCE) == frozenset()


async def test_too_many_questions() -> None:
    async with (
        world() as here,
        grpc.aio.insecure_channel(f"unix:{here.kubelet.pod_resources_socket}") as channel,
    ):
        stub = rpc.PodResourcesListerStub(channel)
        calls = (stub.List(pb.ListPodResourcesRequest()) for _ in range(500))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert refused
        assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "rate limit" in str(refused[0].details())
