"""Leadership by the Lease of a process in the same pod."""

import asyncio
from typing import Any

import pytest

from kubeapi.errors import Unreachable
from kubeapi.lease_follower import LeaseFollower
from tests.api_requests import ApiRequests

DURATION_S = 15
GAP_S = 5.0
READ_S = 2.0


class World(ApiRequests):
    """A Lease, and a clock that moves when the follower sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.holder: str | None = "pod-a_1"
        self.renewed = 0
        self.renews = True
        self.left = 0
        client: Any = self
        self.follower = LeaseFollower(
            client,
            "ns",
            "lease",
            "pod-a",
            gap_s=GAP_S,
            read_s=READ_S,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        assert (verb, path) == ("get", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lease")
        assert timeout_s == READ_S
        return await super().ask(verb, path, body, timeout_s)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        spec = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": str(self.renewed),
        }
        return {"spec": spec}

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.renewed += self.renews
        self.left -= 1
        if self.left <= 0:
            await asyncio.Event().wait()

    async def read(self, times: int = 1) -> None:
        """Let the follower read so often, and wait after the last read."""
        self.left = times
        running = asyncio.create_task(self.follower.run())
        for _ in range(5 * times):
            await asyncio.sleep(0)
        running.cancel()


async def test_it_leads_once_the_holder_in_its_pod_has_renewed() -> None:
    world = World()
    await world.read()
    assert not world.follower.is_leader
    await world.read()
    assert world.follower.is_leader
    assert world.follower.since == 102.0


@pytest.mark.parametrize("holder", ["pod-b_1", "pod-ab_1", "", None])
async def test_it_does_not_lead_with_others(holder: str | None) -> None:
    world = World()
    await world.read(3)
    assert world.follower.is_leader
    world.holder = holder
    await world.read(1)
    assert not world.follower.is_leader
    await world.read(3)
    assert not world.follower.is_leader
    assert world.follower.since is None


@pytest.mark.parametrize(("cause", "value"), [("away", Unreachable("away")), ("renews", False)])
async def test_it_stops_leading_a_gap_before_the_lease_can_be_taken(cause: str, value: Any) -> None:
    """The newest renewal may be as old as the read before it."""
    world = World()
    await world.read(3)
    assert world.now == 106.0
    setattr(world, cause, value)
    # The last renewal was seen by the read at 104, and was no earlier than the read at 102.
    seen_by = 102.0 if cause == "away" else 104.0
    await world.read(1)
    assert world.follower.is_leader
    while world.now < seen_by + DURATION_S - GAP_S:
        assert world.follower.is_leader
        await world.read(1)
    assert not world.follower.is_leader
    world.away, world.renews = None, True
    await world.read(3)
    assert world.follower.is_leader
    assert world.follower.since is not None
    assert world.follower.since > 112.0


async def test_a_new_holder_in_the_pod_leads_after_its_own_renewal() -> None:
    """kube-scheduler was started again: its identity is another one."""
    world = World()
    await world.read(3)
    world.now += DURATION_S
    world.holder = "pod-a_2"
    await world.read(1)
    assert not world.follower.is_leader
    await world.read(1)
    assert world.follower.is_leader
