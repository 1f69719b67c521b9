"""The servicer over real gRPC: every bad call gets a status and one clear line, and hurts no other call."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import grpc
import pytest

from allocator.errors import LedgerError
from deviceplugin.dra.claims import PreparedDevice
from deviceplugin.dra.plugin_service import DraPlugin
from deviceplugin.errors import AllocationRefusedError, RefusalKind
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.kubelet.call_runner import STATUS_OF
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from deviceplugin.kubelet.wire import dra_pb2
from tests.kubelet_world import SimpleAllocator, short_folder
from tests.waiting import until

Code = grpc.StatusCode


class Setting:
    def __init__(self, allocator: SimpleAllocator, plugin: DevicePlugin, channel: Any) -> None:
        self.allocator = allocator
        self.plugin = plugin
        self.channel = channel
        self.stub = rpc.DevicePluginStub(channel)
        self.observed: list[tuple[str, str]] = []

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = await self.stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(container_requests=[asked])
        )
        return list(answer.container_responses[0].deviceIDs)

    async def allocate(self, *ids: str) -> pb.ContainerAllocateResponse:
        asked = pb.ContainerAllocateRequest(devices_ids=ids)
        answer = await self.stub.Allocate(pb.AllocateRequest(container_requests=[asked]))
        return answer.container_responses[0]


@pytest.fixture
async def here() -> AsyncIterator[Setting]:
    allocator = SimpleAllocator(cards=2, units=4)
    async with short_folder() as folder:
        observed: list[tuple[str, str]] = []
        plugin = DevicePlugin(allocator, observe=lambda method, _s, code: observed.append((method, code)))
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{folder}/p.sock")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder}/p.sock") as channel:
            setting = Setting(allocator, plugin, channel)
            setting.observed = observed
            yield setting
        await server.stop(None)


async def refused(call: Any) -> tuple[Code, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_options(here: Setting) -> None:
    options = await here.stub.GetDevicePluginOptions(pb.Empty())
    assert options.get_preferred_allocation_available
    assert not options.pre_start_required
    await here.stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["x"]))


async def test_list_and_watch_sends_at_once_on_change_and_ends(here: Setting) -> None:
    calls = [here.stub.ListAndWatch(pb.Empty()) for _ in range(2)]
    for call in calls:
        assert len((await call.read()).devices) == 8
    here.allocator.health = {"GPU-0::0": True, "GPU-0::1": False}
    here.plugin.send_devices()
    here.plugin.send_devices()
    for call in calls:
        devices = (await call.read()).devices
        assert [(one.ID, one.health) for one in devices] == [
            ("GPU-0::0", "Healthy"),
            ("GPU-0::1", "Unhealthy"),
        ]
        assert not devices[0].HasField("topology")
    assert await here.plugin.end_streams()
    for call in calls:
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Code.OK
    assert not await here.plugin.end_streams()


async def test_a_client_that_leaves_closes_its_stream(here: Setting) -> None:
    call = here.stub.ListAndWatch(pb.Empty())
    await call.read()
    [stream] = here.plugin.open_streams
    call.cancel()
    await until(stream.ended.is_set)
    assert here.plugin.open_streams == ()
    assert not stream.stopping
    assert here.plugin.streams_opened == 1


async def test_good_calls(here: Setting) -> None:
    ids = await here.prefer(sorted(here.allocator.health), ["GPU-1::3"], 2)
    assert ids == ["GPU-1::3", "GPU-1::0"]
    assert (await here.allocate(*ids)).envs == {"CARDS": "GPU-1", "UNITS": "2"}
    assert here.observed == [("GetPreferredAllocation", "OK"), ("Allocate", "OK")]


async def test_several_containers_in_one_call(here: Setting) -> None:
    request = pb.AllocateRequest(
        container_requests=[
            pb.ContainerAllocateRequest(devices_ids=["GPU-0::0"]),
            pb.ContainerAllocateRequest(devices_ids=["GPU-1::0", "GPU-1::1"]),
        ]
    )
    answer = await here.stub.Allocate(request)
    assert [one.envs["CARDS"] for one in answer.container_responses] == ["GPU-0", "GPU-1"]


async def test_a_bad_container_in_a_call_grants_nothing_to_the_good_one(here: Setting) -> None:
    request = pb.AllocateRequest(
        container_requests=[
            pb.ContainerAllocateRequest(devices_ids=["GPU-0::0"]),
            pb.ContainerAllocateRequest(devices_ids=["GPU-9::0"]),
        ]
    )
    assert (await refused(here.stub.Allocate(request)))[0] is Code.NOT_FOUND
    assert here.allocator.allocate_calls == []


@pytest.mark.parametrize(
    ("ids", "code", "message"),
    [
        (["GPU-7::0"], Code.NOT_FOUND, 'device "GPU-7::0" is not one of this node\'s'),
        (["\n\x00" * 90], Code.NOT_FOUND, "is not one of this node's"),
        (["GPU-1::0"], Code.FAILED_PRECONDITION, 'device "GPU-1::0" cannot be had: the card is unhealthy'),
    ],
    ids=["unknown", "rubbish", "unhealthy"],
)
async def test_refused_allocations(here: Setting, ids: list[str], code: Code, message: str) -> None:
    here.allocator.health["GPU-1::0"] = False
    got, details = await refused(here.allocate(*ids))
    assert got is code
    assert message in details
    assert "\n" not in details
    assert len(details) < 256
    assert here.allocator.allocate_calls == []
    await here.allocate("GPU-0::0")


async def test_an_id_that_must_be_included_and_is_not_known_is_refused(here: Setting) -> None:
    code, details = await refused(here.prefer(["GPU-0::0", "GPU-9::0"], ["GPU-9::0"], 1))
    assert code == Code.NOT_FOUND
    assert details.startswith(
        'device "GPU-9::0" is not one of this node\'s; its cards or their unit have changed'
    )
    assert here.allocator.preferred_calls == []
    assert await here.prefer(["GPU-0::0"], ["GPU-0::0"], 1) == ["GPU-0::0"]


@pytest.mark.parametrize("kind", sorted(STATUS_OF))
async def test_every_kind_of_refusal_has_its_status(here: Setting, kind: RefusalKind) -> None:
    here.allocator.refuse = AllocationRefusedError(kind, "the reason")
    assert await refused(here.allocate("GPU-0::0")) == (STATUS_OF[kind], "the reason")
    assert here.observed == [("Allocate", STATUS_OF[kind].name)]


async def test_a_call_that_the_kubelet_gives_up_is_no_success(here: Setting) -> None:
    here.allocator.hangs = True
    call = here.stub.Allocate(
        pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["GPU-0::0"])])
    )
    await until(lambda: here.allocator.allocate_calls)
    call.cancel()
    await until(lambda: here.observed)
    assert here.observed == [("Allocate", "CANCELLED")]


@pytest.mark.parametrize(
    ("error", "code"),
    [(AllocationRefusedError("no-room", "full"), "RESOURCE_EXHAUSTED"), (KeyError("secret"), "INTERNAL")],
)
async def test_claims_are_counted_by_the_same_statuses(error: Exception, code: str) -> None:
    class Claims:
        async def prepare(self, namespace: str, name: str, uid: str) -> Sequence[PreparedDevice]:
            raise error

        async def unprepare(self, uid: str) -> None:
            pass

    observed: list[tuple[str, str]] = []
    plugin = DraPlugin(Claims(), "n", observe=lambda method, _s, code: observed.append((method, code)))
    claim = dra_pb2.Claim(namespace="default", name="c", uid="u")
    answer = await plugin.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=[claim]), None)
    assert answer.claims["u"].error
    await plugin.NodeUnprepareResources(dra_pb2.NodeUnprepareResourcesRequest(claims=[claim]), None)
    await until(lambda: len(observed) == 2)
    assert observed == [("NodePrepareResources", code), ("NodeUnprepareResources", "OK")]


async def test_errors_of_the_core_are_refusals(here: Setting) -> None:
    here.allocator.refuse = LedgerError("seen 3, allowed 2")
    assert await refused(here.allocate("GPU-0::0")) == (Code.INVALID_ARGUMENT, "seen 3, allowed 2")


async def test_unforeseen_faults_end_one_call_only(here: Setting) -> None:
    here.allocator.refuse = ZeroDivisionError("secret")
    code, details = await refused(here.allocate("GPU-0::0"))
    assert (code, details) == (Code.INTERNAL, "Allocate failed inside gpupack: ZeroDivisionError")
    here.allocator.refuse = None
    await here.allocate("GPU-0::0")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ids: ids[:1],
        lambda ids: ids[:3],
        lambda ids: ids[:1] * 2,
        lambda ids: ["x", "y"],
        lambda ids: ids[2:4],
    ],
    ids=["short", "long", "twice", "foreign", "without-must"],
)
async def test_a_wrong_choice_never_reaches_the_kubelet(
    here: Setting, wrong: Callable[[list[str]], Collection[str]]
) -> None:
    class Faulty(SimpleAllocator):
        async def choose_ids(
            self, available: Sequence[str], must_include: Sequence[str], size: int
        ) -> Collection[str]:
            return wrong(list(available))

    here.plugin._devices = Faulty()
    code, _ = await refused(here.prefer([f"GPU-0::{slot}" for slot in range(4)], ["GPU-0::0"], 2))
    assert code is Code.INTERNAL


@pytest.mark.parametrize("method", ["GetPreferredAllocation", "Allocate"])
async def test_rubbish_ends_its_own_call(here: Setting, method: str) -> None:
    code, _ = await refused(here.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(b"\xff\xff\xff"))
    assert code is not Code.OK
    assert here.observed == []
    await here.allocate("GPU-0::0")


async def test_unknown_methods(here: Setting) -> None:
    code, _ = await refused(here.channel.unary_unary("/v1beta1.DevicePlugin/Steal")(b""))
    assert code is Code.UNIMPLEMENTED


async def test_annotations_and_cdi_devices_are_passed_on(here: Setting) -> None:
    class Generous(SimpleAllocator):
        async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
            return ContainerGrant({"A": "1"}, {"b": "2"}, ("nvidia.com/gpu=GPU-0",))

    here.plugin._devices = Generous()
    granted = await here.allocate("GPU-0::0")
    assert (dict(granted.envs), dict(granted.annotations)) == ({"A": "1"}, {"b": "2"})
    assert [device.name for device in granted.cdi_devices] == ["nvidia.com/gpu=GPU-0"]
