"""Two `gpupack node` processes for one node: the second says so, waits, and does not fight."""

import asyncio
import signal

import aiohttp

from allocator.names import PERCENT_RESOURCE, RESOURCE_PREFIX
from allocator.packing import read_node
from standins.kubelet.node import Kubelet
from tests.integration.daemon_processes import (
    NODE,
    node_command,
    process,
    status_of,
    until_is,
    until_ready,
    world,
)
from tests.waiting import DEADLINE_S

__all__ = ["world"]


def conflicts(api):
    """Messages of Events about the Node."""
    found = [event for event in api.objects("events") if event["reason"] == "ConflictingDaemon"]
    assert {event["involvedObject"]["name"] for event in found} <= {NODE}
    return sorted({event["message"] for event in found})


async def test_of_two_daemons_of_one_kubelet_the_second_waits_for_the_end_of_the_first(world):
    folder, api, kubelet = world
    async with (
        aiohttp.ClientSession() as session,
        process(*node_command(folder, kubelet)) as (first, first_url, _),
    ):

        async def ready(url):
            return await status_of(session, f"{url}/readyz")

        async def offered():
            amounts = api.node(NODE)["status"]["allocatable"]
            return [amounts.get(name) for name in (f"{RESOURCE_PREFIX}gib", PERCENT_RESOURCE)]

        await until_ready(session, first_url)
        # The kubelet writes its Node after it has the devices.
        await until_is(offered, ["28", "400"])
        registrations, node = kubelet.registrations, api.node(NODE)
        async with process(*node_command(folder, kubelet)) as (second, second_url, second_lines):
            reason = (
                f"another gpupack node daemon (process {first.pid}) serves the kubelet of "
                f"{kubelet.device_plugin_dir}: this one waits until that one ends; "
                "one of the two is to be removed\n"
            )
            await until_is(lambda: ready(second_url), (503, reason))
            assert await status_of(session, f"{second_url}/healthz") == (200, "ok\n")
            assert (await status_of(session, f"{second_url}/explain"))[0] == 200
            _, metrics = await status_of(session, f"{second_url}/metrics")
            assert "gpupack_node_other_daemon 1.0" in metrics
            # A third one that is told to stop while it waits does so at once.
            async with process(*node_command(folder, kubelet)) as (third, third_url, _):
                await until_is(lambda: ready(third_url), (503, reason))
                third.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(third.wait(), DEADLINE_S) == 0
            assert await ready(first_url) == (200, "ok\n")
            assert (kubelet.registrations, api.node(NODE)) == (registrations, node)
            await until_is(lambda: conflicts(api), [reason.strip()])
            assert [line for line in second_lines if "level=error" in line and str(first.pid) in line]
            # However the first one ends, the second goes on.
            first.kill()
            await until_ready(session, second_url)
            assert kubelet.registrations > registrations
            second.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(second.wait(), DEADLINE_S) == 0


async def test_a_daemon_of_another_host_with_this_nodes_name_does_not_write_to_it(world):
    folder, api, kubelet = world
    api.add_node("n2")
    (folder / "n2").mkdir()
    other = Kubelet(folder / "n2", "n2", api.url)
    await other.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            process(*node_command(folder, kubelet)) as (first, first_url, first_lines),
        ):

            async def ready(url):
                return await status_of(session, f"{url}/readyz")

            def words():
                return read_node(api.node(NODE)["status"]["allocatable"])

            async def told(lines, event):
                return any(event in line for line in lines)

            await until_ready(session, first_url)
            before = words()
            assert before.sizes == (14, 14)
            async with process(*node_command(folder, other, gpus=("simulated", "--profile", "4xl40s"))) as (
                _,
                second_url,
                second_lines,
            ):
                await until_is(lambda: told(second_lines, "another daemon has this Node"), True)
                status, reason = await ready(second_url)
                assert status == 503
                assert f"Node {NODE} belongs to another gpupack node daemon" in reason
                assert "this one waits until that one is gone" in reason
                await until_is(lambda: told(first_lines, "another daemon wants this Node"), True)
                await until_is(lambda: told(conflicts(api), "belongs to another gpupack node daemon"), True)
                await until_is(lambda: told(conflicts(api), "wants to write to this Node"), True)
                assert await ready(first_url) == (200, "ok\n")
            # A second that ends takes nothing with it, and a first that comes again goes on at once.
            assert words() == before, "the revision included: nobody had to set anything right"
            first.kill()
            await first.wait()
        async with (
            aiohttp.ClientSession() as session,
            process(*node_command(folder, kubelet)) as (_, url, lines),
        ):
            await until_ready(session, url)
            assert not [line for line in lines if "another" in line]
    finally:
        await other.stop()
