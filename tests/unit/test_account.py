"""The kubelet's questions against the ledger, and the wait for a pod that is not in view yet."""

import asyncio
from collections.abc import Sequence

import pytest

from allocator.ledger import Ledger
from deviceplugin.errors import RefusedError
from deviceplugin.node.account import Account
from tests.ledger_world import cards, pod


class SteppingClock:
    """Seconds that pass only when asked for: every look at the clock costs one step."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 100.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def account(*sizes: int, step_s: float = 0.0, **options) -> Account:
    return Account(Ledger(cards(*sizes)), 1024, clock=SteppingClock(step_s), **options)


def ids(of: Account) -> Sequence[str]:
    return tuple(of.devices())


async def test_a_known_pod_is_served_at_once():
    node = account(8, 8)
    node.ledger.pod_changed(pod("a", 3, "c1"))
    chosen = await node.preferred(ids(node), (), 3)
    assert {text.split("::")[0] for text in chosen} == {"c1"}


async def test_a_pod_that_comes_into_view_late_is_waited_for():
    node = account(8, 8)
    asking = asyncio.create_task(node.preferred(ids(node), (), 3))
    await asyncio.sleep(0)
    assert not asking.done()
    node.ledger.pod_changed(pod("other", 5, "c0"))
    node.changed()
    await asyncio.sleep(0)
    assert not asking.done()
    node.ledger.pod_changed(pod("a", 3, "c1"))
    node.changed()
    assert {text.split("::")[0] for text in await asking} == {"c1"}


async def test_a_pod_that_never_comes_gets_one_card_in_the_end():
    node = account(8, 8, step_s=10.0)
    chosen = await node.preferred(ids(node), (), 3)
    assert {text.split("::")[0] for text in chosen} == {"c0"}


async def test_several_cards_are_waited_for_when_no_card_has_room():
    """Only the API server can say that a container asked for two cards."""
    node = account(8, 8, view_wait_s=0.0, room_wait_s=3600.0)
    asking = asyncio.create_task(node.preferred(ids(node), (), 12))
    await asyncio.sleep(0)
    assert not asking.done()
    node.ledger.pod_changed(pod("a", 12, "c0", "c1", count=2))
    node.changed()
    chosen = await asking
    assert sorted(text.split("::")[0] for text in chosen) == ["c0"] * 6 + ["c1"] * 6


async def test_no_room_is_refused_with_the_reason_after_the_wait():
    node = account(8, 8, view_wait_s=0.0, room_wait_s=0.0)
    with pytest.raises(RefusedError, match="12 free units") as caught:
        await node.preferred(ids(node), (), 12)
    assert caught.value.kind == "no-room"


async def test_a_known_pod_without_room_is_refused_after_one_look():
    node = account(8, view_wait_s=0.0, room_wait_s=3600.0)
    node.ledger.pod_changed(pod("a", 5, "c0"))
    with pytest.raises(RefusedError, match="5 free units"):
        await node.preferred(ids(node)[:4], (), 5)


async def test_a_pod_whose_card_is_taken_waits_until_all_pods_are_known():
    node = account(8, 8, 8)
    await node.allocate(ids(node)[:6])
    node.ledger.pod_changed(pod("a", 3, "c0"))
    asking = asyncio.create_task(node.preferred(ids(node)[6:], (), 3))
    await asyncio.sleep(0)
    assert not asking.done()
    node.ledger.pod_changed(pod("b", 6, "c1"))
    node.ledger.pod_gone("a")
    node.ledger.pod_changed(pod("c", 3, "c2"))
    node.changed()
    assert {text.split("::")[0] for text in await asking} == {"c2"}


async def test_a_pod_that_came_into_view_and_has_no_room_either():
    node = account(8, view_wait_s=0.0, room_wait_s=3600.0)
    asking = asyncio.create_task(node.preferred(ids(node), (), 12))
    await asyncio.sleep(0)
    node.ledger.pod_changed(pod("a", 12, "c0"))
    node.changed()
    with pytest.raises(RefusedError, match="12 free units"):
        await asking


async def test_what_a_container_is_told():
    node = account(8, 8, cdi=True)
    node.ledger.pod_changed(pod("a", 6, "c1", "c0", count=2))
    told = []
    node.follow(lambda: told.append(node.ledger.promised()))
    grant = await node.allocate(tuple(await node.preferred(ids(node), (), 6)))
    assert grant.envs == {
        "NVIDIA_VISIBLE_DEVICES": "c0,c1",
        "GPUPACK_MEMORY_MIB": "3072",
        "GPUPACK_CARDS": "c0:3,c1:3",
    }
    assert grant.cdi_devices == ("nvidia.com/gpu=c0", "nvidia.com/gpu=c1")
    assert told == [{"c0": 3, "c1": 3}]


async def test_ids_that_do_not_belong_together_are_refused():
    node = account(8, 8)
    with pytest.raises(RefusedError, match="2 cards") as caught:
        await node.allocate(("c0::0", "c1::0"))
    assert caught.value.kind == "spans-cards"


def test_devices_follow_the_cards_health():
    node = account(2, 1)
    assert node.devices() == {"c0::0": True, "c0::1": True, "c1::0": True}
    node.ledger.set_healthy("c0", False, 0.0)
    node.health_changed()
    assert node.devices() == {"c0::0": False, "c0::1": False, "c1::0": True}
