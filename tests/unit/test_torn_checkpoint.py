"""A file in the place of the kubelet's checkpoint that is none, and what is answered until there is one."""

import asyncio
from pathlib import Path

import pytest

from allocator.ledger import Ledger
from deviceplugin.allocation.allocation_service import CHECKPOINT_WAIT_S
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import AllocationRefusedError, CheckpointError, TornCheckpointError
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, MOST_BYTES, CheckpointReader
from tests.account_world import allocation_service
from tests.checkpoint_world import FakeCheckpoint
from tests.clock import Clock
from tests.ledger_world import RESOURCE, cards, ids, pod


class Node:
    """An account that found a torn checkpoint; every look at the clock costs `step_s`."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.checkpoint, self.clock = FakeCheckpoint(), Clock(step_s=step_s)
        self.checkpoint.problem, self.checkpoint.torn = "torn", True
        self.ledger = Ledger(cards(8))
        self.account = LedgerService(self.ledger, self.checkpoint.read, RESOURCE, clock=self.clock)
        self.answers = allocation_service(self.account, view_wait_s=0.0)
        self.ledger.apply_pod(pod("x", 3, "c0"), self.clock())
        self.free = sorted(ids("c0", *range(3, 8)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / CHECKPOINT_NAME


@pytest.mark.parametrize("data", [b"[]", b'{"Data": null, "Checksum": 7}'])
def test_another_layout_is_no_torn_checkpoint(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path.parent).read()
    assert not isinstance(caught.value, TornCheckpointError)
    path.write_bytes(b'{"Data"')
    with pytest.raises(TornCheckpointError, match=f"{path}: torn"):
        CheckpointReader(path.parent).read()


def test_neither_a_device_nor_a_huge_file_is_read(path: Path) -> None:
    path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="cannot be read: it is no regular file"):
        CheckpointReader(path.parent).read()
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"it has {MOST_BYTES + 1} bytes; allowed: {MOST_BYTES}"):
        CheckpointReader(path.parent).read()


async def test_the_first_container_waits_for_a_checkpoint_that_can_be_read() -> None:
    node = Node()
    asking = asyncio.create_task(node.answers.choose_ids(node.free, (), 3))
    giving = asyncio.create_task(node.answers.allocate(("c0::3",)))
    await asyncio.sleep(0)
    assert (node.account.is_checkpoint_torn, asking.done(), giving.done()) == (True, False, False)
    node.checkpoint.problem = None
    node.checkpoint.write("other", ids("c0", *range(3)))
    node.account.read_checkpoint()
    assert len(await asking) == 3
    await giving
    assert not node.account.is_checkpoint_torn


async def test_nothing_is_given_out_while_nobody_knows_what_is_in_use() -> None:
    node = Node(step_s=CHECKPOINT_WAIT_S)
    for asked in (node.answers.choose_ids(node.free, (), 3), node.answers.allocate(("c0::3",))):
        with pytest.raises(AllocationRefusedError, match="torn; delete this pod") as caught:
            await asked
        assert caught.value.kind == "not-ready"
