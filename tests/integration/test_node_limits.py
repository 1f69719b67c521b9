"""`--memory-limits` in a whole daemon: what is offered, what containers are given, what people are told."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from allocator.names import NODE_CARDS
from deviceplugin.gpus.api.memory_limits import HELD, LimitSupport
from deviceplugin.host.cgroups import CgroupProbe
from deviceplugin.host.inotify import Inotify
from tests.integration.node_world import GIB, NODE, NodeWorld, card, events, metrics, node_world, profile_text
from tests.waiting import until

OLD = LimitSupport(False, "driver 580 has no call for memory limits", "driver 615 (CUDA 13.4) or later")
WHY = f"--memory-limits require, and {OLD}"


async def test_require_offers_no_card_that_nothing_holds_and_pods_stay_pending():
    async with node_world(8, 8) as world:
        running = await world.run("a", 3, on=1)
        await world.settled([0, 3], {running})
        await world.stop_daemon()
        world.source.limits.say(OLD)
        world.spawn_daemon(memory_limits="require")
        await until(lambda: world.words() is not None and world.words().used == (8, 8), "full words")
        await until(world.daemon.ready.is_set, "registered")
        await until(lambda: world.kubelet.allocatable().get(GIB) == 0, "nothing offered")
        await until(lambda: "GPUNotOffered" in events(world))
        assert events(world)["GPUNotOffered"].endswith(f"takes no new pods: {WHY}")
        # What runs goes on, and is still charged: the card has room again once the driver holds limits.
        assert world.phase("a") == "Running"
        told = await metrics(world)
        assert told["gpupack_card_memory_held"] == {("accounted", card(n)): 1 for n in (0, 1)}
        world.source.limits.say(HELD)
        await world.daemon._memory._limit_capability.probe_cards()
        await world.settled([0, 3], {running})
        await until(lambda: world.kubelet.allocatable().get(GIB) == 16, "all offered")
        uid = await world.run("b", 3, on=0)
        assert world.env(uid)["SIMULATED_GPU_MEMORY_LIMIT"] == "3072"


async def test_auto_accounts_where_the_driver_cannot():
    async with node_world(8) as world:
        await world.stop_daemon()
        world.source.limits.say(OLD)
        await world.start_daemon(memory_limits="auto")
        uid = await world.run("a", 3, on=0)
        assert "SIMULATED_GPU_MEMORY_LIMIT" not in world.env(uid)
        await until(lambda: world.allocation("a"))
        assert world.allocation("a")["memory"] == {"main": {card(0): {"held": "accounted"}}}
        await until(lambda: '"held":"accounted"' in cards_of_node(world))
        assert "GPUNotOffered" not in events(world)


async def test_a_daemon_without_the_right_says_so_everywhere():
    """Reading limits is allowed and setting them is not, as in a pod without CAP_SYS_ADMIN."""
    text = json.dumps({**json.loads(profile_text(8)), "limits": {"set": "no_permission"}})
    async with node_world(profile=text) as world:
        await world.stop_daemon()
        await world.start_daemon(memory_limits="auto")
        uid = await world.run("a", 3, on=0)
        assert "SIMULATED_GPU_MEMORY_LIMIT" not in world.env(uid)
        await until(lambda: "GPUMemoryLimitsForbidden" in events(world))
        assert "Insufficient Permissions; it takes the right" in events(world)["GPUMemoryLimitsForbidden"]
        told = await metrics(world)
        assert told["gpupack_card_memory_held"] == {("accounted", card(0)): 1}
        assert told["gpupack_card_memory_limits_forbidden"] == {(card(0),): 1}
        assert "Insufficient" in (await explained(world, "memory"))["cards"][card(0)]["driver"]
        await until(lambda: '"held":"accounted"' in cards_of_node(world))


def cards_of_node(world: NodeWorld) -> str:
    annotations: dict[str, str] = world.api.node(NODE)["metadata"].get("annotations") or {}
    return annotations.get(NODE_CARDS, "")


async def explained(world: NodeWorld, part: str = "cgroups") -> dict[str, Any]:
    url = f"http://127.0.0.1:{world.daemon.http_port}/explain"
    async with ClientSession() as session, session.get(url) as answer:
        return dict((await answer.json())[part])


async def test_what_keeps_limits_or_ends_of_charges_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By /explain and the metrics, as long as it lasts; see also tests/unit/test_cgroup_watch.py."""
    watches, real = [0], Inotify.watch

    def watch(inotify: Inotify, folder: Path, *, written: bool = False) -> None:
        if not watches[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        real(inotify, folder, written=written)

    monkeypatch.setattr(Inotify, "watch", watch)
    async with node_world(8) as world:
        (world.folder / "cgroups" / "kubepods").mkdir(parents=True)
        await world.stop_daemon()
        await world.start_daemon(cgroup_root=world.folder / "cgroups", memory_limits="auto")
        running = await world.run("a", 3, on=0)
        await world.settled([3], {running})
        await until(lambda: world.daemon._memory.cgroup_problem)
        said = await explained(world)
        assert (said["unreadable"], "fs.inotify.max_user_watches" in said["unwatched"]) == (None, True)
        told = await metrics(world)
        assert told["gpupack_node_cgroups_unwatched"] == {(): 1}
        assert told["gpupack_node_cgroups_unreadable"] == {(): 0}
        watches[0] = 1
        await until(lambda: world.daemon._memory.cgroup_problem is None)

        def unreadable(_self: object, uids: Any) -> CgroupProbe:
            return CgroupProbe(unknown=frozenset(uids), problem="Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("tests.integration.node_world.KubeletCgroups.probe", unreadable)
            world.api.delete_pod("default", "a")
            await until(lambda: world.daemon._reconciler.cgroup_problem)
            assert await explained(world) == {"unreadable": "Too many open files", "unwatched": None}
            told = await metrics(world)
            assert told["gpupack_node_cgroups_unwatched"] == {(): 0}
            assert told["gpupack_node_cgroups_unreadable"] == {(): 1}
            assert world.used == [3]
        await world.settled([0], set())
        assert (await explained(world))["unreadable"] is None
