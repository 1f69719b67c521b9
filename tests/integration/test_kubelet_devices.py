"""How the kubelet chooses, reuses and frees device IDs, and what a plugin's answers do to that."""

import asyncio

import pytest

from deviceplugin.errors import AllocationRefusedError
from standins.kubelet.node import Kubelet
from tests.kubelet_world import RESOURCE, cards_of, pod, short_folder, uid_of, world
from tests.waiting import until


async def test_preferred_answer_is_taken_exactly() -> None:
    async with world() as here:
        first = pod("a", 3)
        assert (await here.kubelet.admit(first)).admitted
        available, must_include, size = here.allocator.preferred_calls[0]
        assert (len(available), must_include, size) == (16, frozenset(), 3)
        assert here.ids(first, "m0") == {"GPU-0::0", "GPU-0::1", "GPU-0::2"}
        assert here.allocator.allocate_calls == [here.ids(first, "m0")]
        record = here.kubelet.containers[uid_of(first), "m0"]
        assert record.envs == {"CARDS": "GPU-0", "UNITS": "3"}
        assert record.running


async def test_offered_ids_shrink_by_what_is_held() -> None:
    async with world() as here:
        first, second = pod("a", 3), pod("b", 3)
        await here.kubelet.admit_batch([first, second])
        assert here.allocator.preferred_calls[1][0] == frozenset(here.allocator.health) - here.ids(
            first, "m0"
        )
        assert cards_of(here.ids(second, "m0")) == {"GPU-1"}


async def test_a_short_answer_is_topped_up_at_random_across_cards() -> None:
    async with world(cards=8, units=8) as here:
        here.plugin.answer = lambda available, _must, _size: available[:1]
        one = pod("a", 8)
        await here.kubelet.admit(one)
        ids = here.ids(one, "m0")
        assert len(ids) == 8
        assert "GPU-0::0" in ids
        assert len(cards_of(ids)) > 2


async def test_an_answer_of_foreign_and_used_ids_counts_for_nothing() -> None:
    async with world(cards=8, units=8) as here:
        first, second = pod("a", 8), pod("b", 8)
        await here.kubelet.admit(first)
        held = here.ids(first, "m0")
        here.plugin.answer = lambda *_: [*sorted(held), "GPU-9::0"]
        await here.kubelet.admit(second)
        ids = here.ids(second, "m0")
        assert len(ids) == 8
        assert not ids & held
        assert len(cards_of(ids)) > 2


async def test_an_oversized_answer_gives_a_random_subset_of_it() -> None:
    async with world(cards=2, units=8) as here:
        here.plugin.answer = lambda available, _must, _size: available[:8]
        one = pod("a", 4)
        await here.kubelet.admit(one)
        ids = here.ids(one, "m0")
        assert len(ids) == 4
        assert cards_of(ids) == {"GPU-0"}
        assert ids != {"GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3"}


async def test_main_reuses_a_random_part_of_an_init_containers_ids_without_asking() -> None:
    async with world() as here:
        one = pod("a", 2, init=[6])
        await here.kubelet.admit(one)
        assert here.ids(one, "m0") < here.ids(one, "i0")
        assert len(here.ids(one, "m0")) == 2
        assert len(here.allocator.preferred_calls) == 1
        assert here.allocator.allocate_calls == [here.ids(one, "i0"), here.ids(one, "m0")]
        assert here.kubelet.in_use(RESOURCE) == here.ids(one, "i0")
        assert not here.kubelet.containers[uid_of(one), "i0"].running


async def test_main_that_needs_more_must_include_the_init_containers_ids() -> None:
    async with world() as here:
        one = pod("a", 5, init=[2])
        await here.kubelet.admit(one)
        init, main = here.ids(one, "i0"), here.ids(one, "m0")
        available, must_include, size = here.allocator.preferred_calls[1]
        assert must_include == init
        assert init < available
        assert size == 5
        assert init < main
        assert cards_of(main) == {"GPU-0"}


async def test_init_containers_share_and_mains_do_not() -> None:
    async with world() as here:
        one = pod("a", 2, 2, init=[3, 4])
        await here.kubelet.admit(one)
        i0, i1, m0, m1 = (here.ids(one, name) for name in ("i0", "i1", "m0", "m1"))
        assert i0 < i1
        assert m0 <= i1
        assert m1 <= i1
        assert not m0 & m1
        assert here.kubelet.in_use(RESOURCE) == i1


async def test_sidecars_keep_what_they_took() -> None:
    async with world() as here:
        one = pod("a", 2, init=[4, ("sidecar", 3)])
        await here.kubelet.admit(one)
        init, sidecar, main = (here.ids(one, name) for name in ("i0", "i1", "m0"))
        assert sidecar < init
        assert not sidecar & main
        assert len(main & init) == 1
        assert here.kubelet.containers[uid_of(one), "i1"].running


async def test_two_containers_get_their_own() -> None:
    async with world() as here:
        one = pod("a", 3, 4)
        await here.kubelet.admit(one)
        assert not here.ids(one, "m0") & here.ids(one, "m1")
        assert [len(ids) for ids in here.allocator.allocate_calls] == [3, 4]


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


async def test_a_refused_preferred_allocation_fails_the_pod_for_good() -> None:
    async with world() as here:
        admission = await here.kubelet.admit(pod("a", 9))
        assert admission.message == (
            "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed "
            "with err: rpc error: code = ResourceExhausted desc = no card with 9 free units, "
            "which is unexpected"
        )


async def test_more_than_the_node_has_is_refused_without_asking() -> None:
    async with world() as here:
        admission = await here.kubelet.admit(pod("a", 17))
        assert "Requested: 17, Available: 16" in admission.message
        assert here.allocator.preferred_calls == []


async def test_a_failed_second_container_keeps_the_firsts_ids_until_they_are_missed() -> None:
    async with world(cards=1, units=8) as here:
        one = pod("a", 3, 6)
        assert not (await here.kubelet.admit(one)).admitted
        assert len(here.kubelet.in_use(RESOURCE)) == 3
        two = pod("b", 8)
        assert (await here.kubelet.admit(two)).admitted


async def test_pods_without_devices_ask_nobody() -> None:
    async with world() as here:
        assert (await here.kubelet.admit(pod("a", 0))).admitted
        assert here.allocator.preferred_calls == here.allocator.allocate_calls == []


async def test_a_batch_is_admitted_oldest_first() -> None:
    async with world() as here:
        young, old = pod("a", 1, created="2026-01-02T00:00:00Z"), pod("b", 2, created="2026-01-01T00:00:00Z")
        await here.kubelet.admit_batch([young, old])
        assert [len(ids) for ids in here.allocator.allocate_calls] == [2, 1]


@pytest.mark.parametrize("how", ["finish", "delete", "remove"])
async def test_devices_of_ended_pods_are_freed_at_the_next_admission(how: str) -> None:
    async with world(cards=1, units=8) as here:
        one = pod("a", 8)
        await here.kubelet.admit(one)
        if how == "finish":
            here.kubelet.finish(uid_of(one))
        elif how == "delete":
            await here.kubelet.delete(uid_of(one))
        else:
            here.kubelet.remove(uid_of(one))
        assert len(here.kubelet.in_use(RESOURCE)) == 8
        await until(lambda: not here.kubelet.running_pods())
        two = pod("b", 8)
        assert (await here.kubelet.admit(two)).admitted
        assert len(here.ids(two, "m0")) == 8
        assert not here.ids(one, "m0")


async def test_unhealthy_ids_leave_running_containers_alone_and_are_not_given() -> None:
    async with world() as here:
        one = pod("a", 3)
        await here.kubelet.admit(one)
        for identifier in here.allocator.health:
            here.allocator.health[identifier] = not identifier.startswith("GPU-0")
        here.plugin.send_devices()
        await until(lambda: here.kubelet.allocatable() == {RESOURCE: 8})
        assert here.kubelet.containers[uid_of(one), "m0"].running
        two = pod("b", 3)
        await here.kubelet.admit(two)
        assert cards_of(here.ids(two, "m0")) == {"GPU-1"}


async def test_no_healthy_device_fails_the_pod() -> None:
    async with world() as here:
        await here.stop_registrar()
        await until(lambda: here.kubelet.allocatable() == {RESOURCE: 0})
        admission = await here.kubelet.admit(pod("a", 1))
        assert "no healthy devices present" in admission.message


async def test_a_resource_nobody_registered_is_passed_over() -> None:
    async with world(registrar=False) as here:
        one = pod("a", 1)
        assert (await here.kubelet.admit(one)).admitted
        assert here.kubelet.containers[uid_of(one), "m0"].envs == {}


async def test_restart_keeps_what_running_pods_hold() -> None:
    async with world() as here:
        one = pod("a", 3, init=[5])
        await here.kubelet.admit(one)
        before = here.ids(one, "i0"), here.ids(one, "m0")
        await here.restart()
        assert (here.ids(one, "i0"), here.ids(one, "m0")) == before
        assert len(here.allocator.allocate_calls) == 2
        two = pod("b", 8)
        await here.kubelet.admit(two)
        assert cards_of(here.ids(two, "m0")) == {"GPU-1"}


async def test_a_lost_checkpoint_forgets_what_running_pods_hold() -> None:
    async with world() as here:
        one = pod("a", 3)
        await here.kubelet.admit(one)
        await here.restart(lose_checkpoint=True)
        assert here.kubelet.containers[uid_of(one), "m0"].running
        assert here.ids(one, "m0") == frozenset()
        two = pod("b", 8)
        await here.kubelet.admit(two)
        assert here.allocator.preferred_calls[-1][0] == frozenset(here.allocator.health)


async def test_sums_are_checked_after_devices_were_given() -> None:
    """A running pod without devices still counts for what it asked."""
    async with world() as here:
        await here.kubelet.admit(pod("a", 6))
        await here.restart(lose_checkpoint=True)
        assert (await here.kubelet.admit(pod("b", 8))).admitted
        admission = await here.kubelet.admit(pod("c", 6))
        assert admission.reason == f"OutOf{RESOURCE}"
        assert "requested: 6, used: 14, capacity: 16" in admission.message


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
