"""Steps: restarts, sockets, streams, an API server that is away."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc

from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from tests.podresources import PodResourcesList
from tests.scripts.kubelet_play import RESOURCE, Answer, Play, ScriptPod, Step
from tests.waiting import until


async def _listed(here: Play) -> PodResourcesList:
    answer = await here.list()
    assert answer is not None
    return answer


async def own_socket_deleted(here: Play) -> Answer:
    before = here.registrar.registrations
    here.socket.unlink()

    async def again() -> bool:
        return here.registrar.registrations > before

    await until(again, "registered again")
    await here.registered()
    return {"stays": await here.stays(32, 32), "pod": (await here.admit(ScriptPod("after", (3,)))).facts()}


@asynccontextmanager
async def _by_hand(here: Play) -> AsyncIterator[DevicePlugin]:
    """Serve and register a plugin that nobody watches over."""
    plugin = here.new_plugin()
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{here.driver.plugin_dir / 'hand.sock'}")
    await server.start()
    await _register(here, "hand.sock")
    try:
        yield plugin
    finally:
        await server.stop(None)


async def _register(here: Play, endpoint: str, version: str = "v1beta1", resource: str = RESOURCE) -> None:
    path = here.driver.plugin_dir / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await rpc.RegistrationStub(channel).Register(request, timeout=20)


async def double_registration(here: Play) -> Answer:
    """Register again while the kubelet still listens: taken up to 1.36, refused from 1.37 on."""
    await here.stop_plugin()
    await here.becomes(32, 0)
    async with _by_hand(here) as plugin:
        await here.becomes(32, 32)
        second = await _refusal(here, "hand.sock")
        answer = await (_with_two_streams(here, plugin) if second is None else _refused_second(here, plugin))
    # Whatever it holds of a plugin that is gone.
    await here.driver.restart()
    return {"second": second, **answer}


async def _refusal(here: Play, endpoint: str) -> str | None:
    """What the kubelet has against a registration, without the socket's path; None if it takes it."""
    try:
        await _register(here, endpoint)
    except grpc.aio.AioRpcError as error:
        return (error.details() or "").partition(":")[0]
    return None


async def _with_two_streams(here: Play, plugin: DevicePlugin) -> Answer:
    async def two() -> bool:
        return len(plugin.open_streams) == 2

    await until(two, "two streams")
    old, new = plugin.open_streams
    old.stopping = True
    old.wake.set()
    await asyncio.wait_for(new.ended.wait(), 20)
    return {
        "ended by the kubelet": not new.stopping,
        "amounts": await here.becomes(32, 0),
        "stays": await here.stays(32, 0),
    }


async def _refused_second(here: Play, plugin: DevicePlugin) -> Answer:
    """The first stream goes on; but the kubelet has lost sight of it, and does not notice its end."""
    (old,) = plugin.open_streams
    stays = await here.stays(32, 32)
    old.stopping = True
    old.wake.set()
    await asyncio.wait_for(old.ended.wait(), 20)
    return {
        "ended by the kubelet": not old.stopping,
        "stays": stays,
        "stays after the end": await here.stays(32, 32),
        "third": await _refusal(here, "hand.sock"),
        "amounts": await here.amounts(),
    }


async def bad_registrations(here: Play) -> Answer:
    messages = []
    for endpoint, version, resource in (
        ("x.sock", "v2", RESOURCE),
        ("x.sock", "v1beta1", "memory"),
        ("x.sock", "v1beta1", "kubernetes.io/unit"),
    ):
        try:
            await _register(here, endpoint, version, resource)
        except grpc.aio.AioRpcError as error:
            messages.append((error.code().name, error.details()))
    return {"refused": messages, "amounts": await here.amounts()}


async def plugin_stopped(here: Play) -> Answer:
    running = await here.admit(ScriptPod("runs-on", (3,)))
    await here.stop_plugin()
    amounts = await here.becomes(32, 0)
    refused = await here.admit(ScriptPod("without-plugin", (3,)))
    phase = (await here.phase("runs-on", {"Running", "Failed"}))["phase"]
    listed = here.listed(await _listed(here), "runs-on") == running.listed
    return {"amounts": amounts, "new": refused.facts(), "old": phase, "still listed": listed}


async def restart(here: Play) -> Answer:
    one = await here.admit(ScriptPod("before-restart", (3,)))
    before, socket, allocated = await _listed(here), here.socket.stat(), len(here.allocator.allocate_calls)
    await here.driver.restart()
    empty = await here.listed_again(before)
    await here.registered()
    two = await here.admit(ScriptPod("after-restart", (3,)))
    return {
        "list was empty": empty,
        "own socket was wiped": here.socket.stat().st_mtime_ns != socket.st_mtime_ns,
        "allocated again": len(here.allocator.allocate_calls) - allocated - 1,
        "old": (await here.phase("before-restart", {"Running", "Failed"}))["phase"],
        "new": two.facts(),
        "apart": not one.allocated[0] & two.allocated[0],
    }


async def restart_with_init_container(here: Play) -> Answer:
    await here.admit(ScriptPod("init-before-restart", (2,), init=(6,)))
    before, allocated = await _listed(here), len(here.allocator.allocate_calls)
    await here.driver.restart()
    await here.listed_again(before)
    await here.registered()
    again = len(here.allocator.allocate_calls) - allocated
    two = await here.admit(ScriptPod("init-after-restart", (1,)))
    status = await here.phase("init-before-restart", {"Running", "Failed"})
    return {"allocated again": again, "old": status["phase"], "new": two.facts()}


def restart_without_plugin(pod: ScriptPod) -> Callable[[Play], Awaitable[Answer]]:
    """Restart the kubelet while no plugin comes back; say what becomes of a running pod.

    A pod that is kept is listed, and is looked at for 6 s of a real kubelet. One that is refused is not
    listed, and is reported as Failed only once its containers are gone, 4 s after the refusal and more on a
    busy machine.
    """

    async def step(here: Play) -> Answer:
        await here.admit(pod)
        await here.stop_plugin()
        await here.driver.restart()
        watched_until = time.monotonic() + 6.0 * here.driver.pace

        async def fate() -> tuple[Mapping[str, Any], dict[str, int]] | None:
            status, answer = await here.driver.status(pod.name), await here.list()
            if status is None or answer is None:
                return None
            listed = {name: len(ids) for name, ids in here.listed(answer, pod.name).items()}
            kept = listed and time.monotonic() > watched_until
            return (status, listed) if kept or status.get("phase") == "Failed" else None

        status, listed = await until(fate, f"{pod.name} kept or refused")
        reasons = {key: status[key] for key in ("reason", "message") if status.get(key)}
        return {"phase": status["phase"], "listed": listed, **reasons}

    return step


async def restart_with_api_server_away(here: Play) -> Answer:
    one = await here.admit(ScriptPod("before-outage", (3,)))
    before = await _listed(here)
    await here.driver.api_away(True)
    await here.driver.restart()

    async def registered() -> bool:
        return here.registrar.is_registered

    await asyncio.sleep(0.5 * here.driver.pace)
    await until(registered, "registered while the API server is away")
    seen = []
    for _ in range(20):
        answer = await here.list()
        if answer is not None and answer.kubelet != before.kubelet:
            seen.append(len(answer.pods))
        await asyncio.sleep(0.1 * here.driver.pace)
    await here.driver.api_away(False)
    await here.listed_again(before)
    await here.registered()
    two = await here.admit(ScriptPod("after-outage", (3,)))
    return {
        "listed during the outage": sorted(set(seen)),
        "old": (await here.phase("before-outage", {"Running", "Failed"}))["phase"],
        "new": two.facts(),
        "apart": not one.allocated[0] & two.allocated[0],
    }


async def checkpoint_lost(here: Play) -> Answer:
    await here.admit(ScriptPod("before-loss", (3,)))
    before, allocated = await _listed(here), len(here.allocator.allocate_calls)
    await here.driver.kill()
    here.checkpoint_path.unlink()
    await here.driver.start()

    async def known() -> bool:
        answer = await here.list()
        return (
            answer is not None
            and answer.kubelet != before.kubelet
            and ("default", "before-loss") in answer.pods
        )

    await until(known, "the kubelet knows its pods")
    await here.registered()
    listed = here.listed(await _listed(here), "before-loss")
    two = await here.admit(ScriptPod("after-loss", (3,)))
    here.plugin.answer = lambda available, _must, size: available[:size]
    three = await here.admit(ScriptPod("above-the-sum", (27,)))
    return {
        "listed": listed,
        "allocated again": len(here.allocator.allocate_calls) - allocated - 2,
        "old": (await here.phase("before-loss", {"Running", "Failed"}))["phase"],
        "new": two.facts(),
        "above the sum": three.facts(),
    }


LIFE_STEPS = (
    Step("own socket deleted: registered again, and it lasts", own_socket_deleted),
    Step("a registration over an open stream", double_registration),
    Step("bad registrations are refused", bad_registrations),
    Step("a plugin that stops leaves capacity and running pods", plugin_stopped),
    Step("restart", restart),
    Step("restart, with what an init container held", restart_with_init_container),
    Step("restart while the plugin is away", restart_without_plugin(ScriptPod("no-plugin", (3,)))),
    Step(
        "restart while the plugin is away, of a pod with an init container",
        restart_without_plugin(ScriptPod("no-plugin-init", (2,), init=(4,))),
    ),
    Step("restart while the API server is away", restart_with_api_server_away),
    Step("restart with the checkpoint lost", checkpoint_lost),
)
