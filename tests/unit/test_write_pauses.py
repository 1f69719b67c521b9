"""Writers of the node daemon: after a write that failed, events bring no further one before its time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from allocator.ledger import Ledger
from allocator.names import PACKED_LAYOUT, STARTUP_TAINT
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import decode_node
from deviceplugin.dra.node_kind import NodeKindMark
from deviceplugin.dra.slice_publisher import SliceObject, SlicePublisher
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.publishing.ownership import DaemonIdentity, NodeOwnership
from deviceplugin.publishing.startup_taint import StartupTaint
from kubeapi.errors import Conflict, TimedOut, Unreachable
from tests.ledger_world import RESOURCE as GIB
from tests.ledger_world import cards

NODE = {
    "metadata": {"name": "n1", "uid": "u", "resourceVersion": "5"},
    "spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]},
    "status": {"allocatable": {GIB: "8", PACKED_LAYOUT: "1"}},
}


class Api:
    """Counts requests, and fails each of them, or answers with what was sent without some fields."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.requests = 0

    async def patch_node_status(self, *_args: Any, **_options: Any) -> bytes:
        self.requests += 1
        if self.failures:
            raise self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
        return msgspec.json.encode(NODE)

    patch = patch_node_status

    async def post(self, _path: str, body: dict[str, Any], **_options: Any) -> bytes:
        await self.patch_node_status()
        devices = [
            {key: value for key, value in device.items() if key != "allowMultipleAllocations"}
            for device in body["spec"]["devices"]
        ]
        return msgspec.json.encode({**body, "spec": {**body["spec"], "devices": devices}})

    async def delete(self, _path: str, **_options: Any) -> None:
        return


class World:
    def __init__(self, *failures: Exception) -> None:
        self.api: Any = Api(*failures)
        self.account = LedgerService(Ledger(cards(8)), lambda: None, GIB)
        self.view: Any = SimpleNamespace(node=decode_node(msgspec.json.encode(NODE)))

    def kind(self) -> Any:
        return NodeKindMark(
            self.api, self.account, self.view, node_name="n1", resource=GIB, serves_claims=True
        )

    def taint(self) -> Any:
        return StartupTaint(
            self.api, self.account, self.view, node_name="n1", resource=GIB, serves=lambda: True
        )

    def slices(self) -> Any:
        gpus = [
            GpuCard(card.index, card.uuid, card.model, 8192, 0, None, "", 0)
            for card in self.account.ledger.installed
        ]
        found = SlicePublisher(
            self.api,
            self.account,
            self.view,
            lambda: gpus,
            node_name="n1",
            unit_mib=1024,
            card_policy="most-used",
            driver=lambda: None,
            ready=lambda: True,
            gap_s=0,
        )
        found.replace([], "1")
        return found

    async def count_requests(self, writer: Any) -> int:
        """Run a writer through a hundred events; return how often it wrote."""
        running = asyncio.create_task(writer._stepper.run())
        for _ in range(100):
            await asyncio.sleep(0)
            self.account.notify_subscribers()
        running.cancel()
        return self.api.requests

    def owner(self) -> Any:
        return NodeOwnership(self.api, self.account, self.view, DaemonIdentity("a"), node_name="n1")


@pytest.mark.parametrize("failure", [Unreachable("no answer"), Conflict("changed")])
@pytest.mark.parametrize("name", ["kind", "taint", "slices", "owner"])
async def test_events_do_not_end_the_pause_after_a_write_that_failed(name: str, failure: Exception) -> None:
    world = World(failure)
    assert await world.count_requests(getattr(world, name)()) == 1


async def test_slices_that_the_api_server_cuts_are_not_written_at_each_event() -> None:
    world = World()
    assert await world.count_requests(world.slices()) == 1


@pytest.mark.parametrize("name", ["kind", "taint"])
async def test_what_was_written_is_not_written_again_before_the_watch_can_show_it(name: str) -> None:
    world = World()
    assert await world.count_requests(getattr(world, name)()) == 1


async def test_the_first_failure_after_a_kind_was_written_is_a_warning() -> None:
    world = World()
    mark = world.kind()
    mark._stepper.hurry()
    await mark._step()
    world.api.failures = [Unreachable("no answer")]
    with capture_logs() as said:
        await mark._step()
    assert [line["log_level"] for line in said] == ["warning"]


async def test_the_first_failure_after_a_conflict_of_owners_is_a_warning() -> None:
    world = World(Conflict("changed"), Unreachable("no answer"))
    owner = world.owner()
    owner._stepper.hurry()
    await owner._step()
    with capture_logs() as said:
        await owner._step()
    assert [line["log_level"] for line in said] == ["warning"]


async def test_slices_that_were_written_though_nobody_heard_of_it_are_no_problem() -> None:
    world = World(TimedOut("no answer"))
    publisher = world.slices()
    publisher._stepper.hurry()
    await publisher._step()
    assert publisher.problem == "the ResourceSlices of node n1 cannot be written: no answer"
    (wanted,) = publisher.wanted()
    publisher.event("ADDED", msgspec.convert({**wanted, "kind": "ResourceSlice"}, SliceObject), "6")
    await publisher._step()
    assert (publisher.problem, world.api.requests) == (None, 1)


async def test_that_slices_are_withdrawn_is_an_error_also_after_a_write_that_failed() -> None:
    world = World(Unreachable("no answer"))
    publisher = world.slices()
    publisher._stepper.hurry()
    await publisher._step()
    world.api.failures = []
    with capture_logs() as said:
        await publisher._step()
        await publisher._step()
    assert [line["event"] for line in said] == ["slices withdrawn"]
