"""A node's daemon on the stand-ins: restarts, outages, names that come again; no charge is lost or stays."""

import asyncio
import sys

import aiohttp
import grpc
import pytest
from aiohttp import web

from allocator.ledger import release
from deviceplugin.errors import DeviceListError, NodeSettingsError, UnitInUseError
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from tests.integration.node_world import GIB, NODE, Delays, card, node_world, profile_text
from tests.kubelet_world import SimpleAllocator
from tests.waiting import DEADLINE_S, until


async def test_a_restarted_daemon_keeps_charges_and_writes_nothing():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 2, on=1, init=5)
        await world.settled([0, 5], {uid})
        before = world.words()
        await world.kill_daemon()
        await world.start_daemon()
        await until(lambda: world.daemon._publisher._wanted().accounted_pods == {uid: {1: 5}})
        assert world.daemon.account is not None
        assert world.daemon.account.ledger.used() == (0, 5)
        assert world.words() == before
        assert world.daemon._publisher.patches == 0
        world.api.delete_pod("default", "a")
        await world.settled([0, 0], set())
        after = world.words()
        assert before is not None
        assert after is not None
        assert after.revision > before.revision


async def test_a_pod_that_ended_unseen_is_charged_while_its_containers_run(monkeypatch):
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with node_world(8, 8, delays=Delays(stop_s=3600, kill_s=3600)) as world:
        gone = await world.run("gone", 3, on=0)
        await world.settled([3, 0], {gone})
        await world.kill_daemon()
        world.api.delete_pod("default", "gone", 0)
        await until(lambda: world.kubelet._alive().pod(gone) is None)
        await world.start_daemon()
        assert world.daemon.account is not None
        ledger = world.daemon.account.ledger
        await until(lambda: ledger.is_complete)
        assert ledger.used() == (3, 0)
        world.kubelet._runtime.stop_pod(gone)
        await world.settled([0, 0], set())


async def test_a_killed_process_leaves_the_charge_in_the_words_and_finds_it_again():
    """SIGKILL of a real process, with a socket of its own left behind."""
    async with node_world(8, 8) as world:
        await world.stop_daemon()
        profile = world.folder / "profile.yaml"
        profile.write_text(profile_text(8, 8), encoding="utf-8")
        settings = world.settings(profile=str(profile), cgroup_root=world.folder)
        code = (
            "import asyncio\n"
            "from pathlib import PosixPath\n"
            "from deviceplugin.app import run\n"
            "from deviceplugin.settings import Settings\n"
            "from gpupack.signals import connect_stop_event\n"
            "async def main():\n"
            "    with connect_stop_event() as stop:\n"
            f"        await run({settings!r}, stop)\n"
            "asyncio.run(main())\n"
        )
        registrations = world.kubelet.registrations
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        try:
            await until(lambda: world.kubelet.registrations > registrations)
            await until(lambda: world.kubelet.allocatable()[GIB] == 16)
            uid = await world.run("a", 3, on=1)
            await world.settled([0, 3], {uid})
            process.kill()
            await process.wait()
            assert world.used == [0, 3]
            registrations = world.kubelet.registrations
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
            await until(lambda: world.kubelet.registrations > registrations)
            await until(lambda: world.kubelet.allocatable()[GIB] == 16)
            other = await world.run("b", 5, on=1)
            await world.settled([0, 8], {uid, other})
            process.terminate()
            assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_kubelet_that_has_not_noticed_the_end_of_the_daemon_before():
    """From 1.37 on it refuses a socket at which it knows a plugin, and loses sight of that one too."""
    async with node_world(8, 8) as world:
        await world.stop_daemon()
        endpoint = world.settings().endpoint
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(DevicePlugin(SimpleAllocator(2, 8)), server)
        server.add_insecure_port(f"unix:{world.kubelet.device_plugin_dir / endpoint}")
        await server.start()
        path = world.kubelet.device_plugin_dir / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=GIB)
            await rpc.RegistrationStub(channel).Register(request)
        await world.start_daemon()
        assert not (world.kubelet.device_plugin_dir / endpoint).exists()
        await server.stop(None)
        uid = await world.run("a", 3, on=1)
        await world.settled([0, 3], {uid})
        await world.stop_daemon()
        await until(lambda: world.kubelet.allocatable()[GIB] == 0)


async def test_a_kubelet_that_lost_its_checkpoint_keeps_charges():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=1)
        await world.settled([0, 3], {uid})
        await world.kubelet.restart(lose_checkpoint=True)
        await world.kubelet.synced()
        await until(lambda: world.daemon._serving.registrars.is_registered)
        await world.daemon._reconciler._once()
        assert world.daemon.account is not None
        assert world.daemon.account.ledger.used() == (0, 3)
        assert (world.used, world.holds) == ([0, 3], {uid})


async def test_a_kubelet_restart_with_the_api_away_keeps_charges():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=1)
        await world.settled([0, 3], {uid})
        await world.api.away(True)
        await world.kubelet.restart()
        await until(lambda: world.daemon._serving.registrars.is_registered)
        await world.daemon._reconciler._once()
        assert world.daemon.account is not None
        assert world.daemon.account.ledger.used() == (0, 3)
        await world.api.away(False)
        await world.kubelet.synced()
        other = await world.run("b", 4, on=1)
        await world.settled([0, 7], {uid, other})
        world.api.delete_pod("default", "a")
        await world.settled([0, 4], {other})


async def test_the_node_allocates_while_its_api_is_away_and_tells_afterwards():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())

        async def refuse(request: web.Request) -> web.Response | None:
            if request.headers.get("User-Agent") == "gpupack-node":
                return web.Response(status=503, text="away")
            return None

        world.api.http.intercept = refuse
        world.api.end_watches()
        await until(lambda: not world.daemon._pods.is_connected)
        uid = await world.run("a", 3, on=1)
        assert world.used == [0, 0]
        world.api.http.intercept = None
        on = 0 if world.env(uid)["NVIDIA_VISIBLE_DEVICES"] == card(0) else 1
        await world.settled([3 - 3 * on, 3 * on], {uid})


async def test_a_daemon_that_starts_with_the_api_away_serves_the_kubelet_and_says_nothing():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=1)
        await world.settled([0, 3], {uid})
        await world.kill_daemon()
        await world.api.away(True)
        await world.start_daemon()
        assert world.daemon.account is not None
        ledger = world.daemon.account.ledger
        await until(lambda: ledger.allocated_units()[card(1)] == 3)
        assert not ledger.is_complete
        await world.api.away(False)
        other = await world.run("b", 4, on=1)
        await world.settled([0, 7], {uid, other})


async def test_a_force_deleted_pod_is_charged_while_its_container_runs():
    async with node_world(8, delays=Delays(stop_s=3600, kill_s=3600)) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        world.api.delete_pod("default", "a", 0)
        await until(lambda: world.kubelet._alive().pod(uid) is None)
        await world.daemon._reconciler._once()
        assert (world.used, world.holds) == ([3], {uid})
        # The kubelet drops the pod at its next allocation: its IDs are free for it, its card is not.
        other = await world.run("b", 5, on=0)
        assert not world.kubelet.held(uid, "main")
        await world.settled([8], {uid, other})
        world.kubelet._runtime.stop_pod(uid)
        await world.settled([5], {other})


async def test_after_an_etcd_restore_the_node_goes_on():
    async with node_world(8, 8) as world:
        kept = await world.run("kept", 3, on=0)
        await world.settled([3, 0], {kept})
        backup = world.api.store.backup()
        for number in range(50):
            world.api.patch_node(NODE, {"metadata": {"annotations": {"beat": str(number)}}})
        await until(lambda: world.daemon._pods.seen_version > backup.version)
        await world.api.restored(backup)
        await until(
            lambda: world.daemon._pods.is_connected and world.daemon._pods.seen_version <= backup.version
        )
        # Kubelets are restarted after a restore: they would wait for the versions that they know.
        await world.kubelet.restart()
        await until(lambda: world.daemon._serving.registrars.is_registered)
        await until(lambda: world.kubelet.allocatable()[GIB] == 16)
        await world.kubelet.synced()
        other = await world.run("b", 4, on=1)
        await world.settled([3, 4], {kept, other})
        world.api.delete_pod("default", "kept")
        await world.settled([0, 4], {other})


async def ask_ready(world, session):
    async with session.get(f"http://127.0.0.1:{world.daemon.http_port}/readyz") as answer:
        return answer.status, await answer.text()


async def has_no_node(world, session):
    status, text = await ask_ready(world, session)
    return status == 503 and f"no Node is named {NODE}" in text.splitlines()


async def test_a_node_that_was_created_again_gets_its_words_back():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        before = world.words()
        world.api.delete_node(NODE)
        await until(lambda: has_no_node(world, session))
        world.api.add_node(NODE)
        await world.settled([3], {uid})
        after = world.words()
        assert before is not None
        assert after is not None
        assert after.revision > before.revision


async def test_a_daemon_whose_node_comes_later_serves_the_kubelet_and_is_ready_then():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        await world.stop_daemon()
        world.api.delete_node(NODE)
        await world.start_daemon()
        await until(lambda: has_no_node(world, session))
        assert world.kubelet.allocatable()[GIB] == 8
        world.api.add_node(NODE)
        await world.settled([0], set())
        assert await ask_ready(world, session) == (200, "ok\n")


@pytest.mark.parametrize("words", ["none yet", "as they should be"])
async def test_a_daemon_that_may_not_write_to_its_node_is_not_ready(words):
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        await world.settled([0], set())
        await world.kill_daemon()
        if words == "none yet":
            world.api.delete_node(NODE)
            world.api.add_node(NODE)

        async def refuse(request: web.Request) -> web.Response | None:
            if request.method != "PATCH" or not request.path.endswith("/status"):
                return None
            message = f'nodes "{NODE}" is forbidden: User "x" cannot patch resource "nodes/status"'
            return web.json_response({"kind": "Status", "message": message}, status=403)

        world.api.http.intercept = refuse
        await world.start_daemon()
        await until(lambda: world.daemon._publisher.errors or world.daemon._ownership.errors)
        readyz = f"http://127.0.0.1:{world.daemon.http_port}/readyz"
        async with session.get(readyz) as answer:
            assert answer.status == 503
            assert 'cannot patch resource "nodes/status"' in await answer.text()
        world.api.http.intercept = None
        await until(lambda: world.daemon._publisher.problem is None)
        async with session.get(readyz) as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        await world.settled([0], set())


async def test_another_unit_in_use_stops_the_start():
    async with node_world(8) as world:
        await world.run("a", 3, on=0)
        await world.stop_daemon()
        with pytest.raises(UnitInUseError, match=r"pod \S+ holds gpupack.io/gpu-memory-gib.*drain"):
            await world.start_daemon(unit_mib=512)


async def test_a_unit_is_changed_on_a_node_that_was_drained_while_the_daemon_was_down(monkeypatch):
    """The kubelet's checkpoint goes on naming the pods that ended."""
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with node_world(8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        await world.kill_daemon()
        world.api.delete_pod("default", "a")
        await until(lambda: not world.api.has_pod("default", "a") and not world.kubelet.running_pods())
        assert uid in (world.kubelet.device_plugin_dir / CHECKPOINT_NAME).read_text()
        await world.start_daemon(unit_mib=512)
        await until(lambda: (world.words().layout.unit_mib, world.used, world.holds) == (512, [0], set()))
        assert world.words().sizes == (16,)
        await until(lambda: world.kubelet.allocatable().get("gpupack.io/gpu-memory-512mib") == 16)


async def test_a_unit_that_is_too_small_is_refused_with_the_one_that_fits():
    async with node_world(80, 80, 80, 80) as world:
        await world.stop_daemon()
        with pytest.raises(DeviceListError, match=r"units of \d+ MiB or more"):
            await world.start_daemon(unit_mib=1)


async def test_an_address_in_use_is_a_fault_of_the_settings():
    async with node_world(8) as world:
        taken = world.daemon.http_port
        other = type(world.daemon)(world.settings(http=f"127.0.0.1:{taken}"), source=world.source)
        with pytest.raises(NodeSettingsError, match=f"--http '127.0.0.1:{taken}': Address already in use"):
            await other.run(asyncio.Event())
