"""How the kubelet chooses, reuses and frees device IDs, and what a plugin's answers do to that."""

import asyncio

import pytest

from deviceplugin.errors import AllocationRefusedError
from standins.kubelet.node import Kubelet
from tests.kubelet_world import RESOURCE, cards_of, pod, short_folder, uid_of, world
from tests.waiting import until


async def test_a_refused_allocate_fails_the_pod_for_good() -> None:
    async with world() as here:
        here.allocator.refuse = AllocationRefusedError("spans-cards", "IDs of 2 cards")
        one = pod("a", 3)
        admission = await here.kubelet.admit(one)
        assert not admission.admitted
        assert admission.reason == "UnexpectedAdmissionError"
        assert admission.message == (
            "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition "
            "desc = IDs of 2 cards, which is unexpected"
        )
        assert here.kubelet.in_use(RESOURCE) == frozenset()
        here.allocator.refuse = None
        await here.kubelet.restart()
        await here.kubelet.synced()
        assert len(here.allocator.allocate_calls) == 1
        assert not here.kubelet.containers


async def test_pods_without_devices_ask_nobody() -> None:
    async with world() as here:
        assert (await here.kubelet.admit(pod("a", 0))).admitted
        assert here.allocator.preferred_calls == here.allocator.allocate_calls == []


async def test_a_batch_is_admitted_oldest_first() -> None:
    async with world() as here:
        young, old = pod("a", 1, created="2026-01-02T00:00:00Z"), pod("b", 2, created="2026-01-01T00:00:00Z")
        await here.kubelet.admit_batch([young, old])
        assert [len(ids) for ids in here.allocator.allocate_calls] == [2, 1]


async def test_a_resource_nobody_registered_is_passed_over() -> None:
    async with world(registrar=False) as here:
        one = pod("a", 1)
        assert (await here.kubelet.admit(one)).admitted
        assert here.kubelet.containers[uid_of(one), "m0"].envs == {}


async def test_a_plugin_that_wants_to_be_asked_before_a_start_is() -> None:
    async with world() as here:
        here.plugin.pre_start = "asked"
        here.socket.unlink()
        await until(lambda: here.kubelet.registrations == 2)
        await here.registered()
        one = pod("a", 2)
        assert (await here.kubelet.admit(one)).admitted
        assert here.plugin.pre_started == [here.ids(one, "m0")]
        here.plugin.pre_start = "refused"
        two = pod("b", 2)
        assert (await here.kubelet.admit(two)).admitted
        assert (uid_of(two), "m0") not in here.kubelet.containers
        here.plugin.pre_start = "asked"
        await until(lambda: uid_of(two) in here.kubelet.running_pods())


async def test_a_plugin_that_does_not_want_to_be_asked_gets_random_ids() -> None:
    async with world(cards=8) as here:
        here.plugin.preferring = False
        here.socket.unlink()
        await until(lambda: here.kubelet.registrations == 2)
        await here.registered()
        one = pod("a", 8)
        assert (await here.kubelet.admit(one)).admitted
        assert here.allocator.preferred_calls == []
        assert len(cards_of(here.ids(one, "m0"))) > 2


async def test_a_request_that_changed_under_a_running_pod_is_refused() -> None:
    async with world() as here:
        one = pod("a", 3, init=[1])
        await here.kubelet.admit(one)
        await here.kubelet.kill()
        other = pod("a", 3, init=[2], uid=uid_of(one))
        here.kubelet._manifests[uid_of(one)]["spec"] = other["spec"]
        await here.kubelet.start()
        await here.kubelet.synced()
        admission = here.kubelet.admission(uid_of(one))
        assert admission is not None
        assert 'container "i0" changed request for resource' in admission.message


async def test_ids_that_turned_unhealthy_over_a_restart_fail_a_pod_with_an_init_container() -> None:
    async with world() as here:
        one = pod("a", 3, init=[4])
        await here.kubelet.admit(one)
        for identifier in here.allocator.health:
            here.allocator.health[identifier] = not identifier.startswith("GPU-0")
        await here.restart()
        admission = here.kubelet.admission(uid_of(one))
        assert admission is not None
        assert "previously allocated devices are no longer healthy" in admission.message
        assert not here.kubelet.running_pods()


async def test_the_stand_in_says_how_it_is_used_wrongly() -> None:
    async with world() as here:
        await here.kubelet.stop()
        with pytest.raises(RuntimeError, match="the kubelet of n1 is not running"):
            here.kubelet.capacity()
        await here.kubelet.start()
    async with short_folder() as folder:
        kubelet = Kubelet(folder, "n2", "http://127.0.0.1:1")
        with pytest.raises(RuntimeError, match="pods of n2 come from the API server at"):
            kubelet.remove("x")


async def test_a_plugin_that_dies_during_allocate_fails_the_pod() -> None:
    async with world() as here:
        here.allocator.hangs = True
        admission = asyncio.create_task(here.kubelet.admit(pod("a", 2)))
        await until(lambda: here.allocator.allocate_calls)
        await here.stop_registrar()
        assert "rpc error: code = " in (await admission).message
        here.allocator.hangs = False
        here.run_registrar()
        await here.registered()
        assert (await here.kubelet.admit(pod("b", 8))).admitted
