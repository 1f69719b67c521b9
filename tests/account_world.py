"""The node's account with a checkpoint that tests write."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from allocator.ledger import Ledger
from deviceplugin.allocation.allocation_service import AllocationService, MakeGrant
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.container_grant import ContainerGrant
from tests.checkpoint_world import FakeCheckpoint
from tests.clock import Clock
from tests.ledger_world import RESOURCE, cards, pod


async def nobody_says() -> None:
    """PodResources that does not answer."""


async def give_nothing(_mib: Mapping[str, int], _compute: int, _ids: Collection[str]) -> ContainerGrant:
    """A container that gets its cards only."""
    return ContainerGrant()


def allocation_service(account: LedgerService, unit_mib: int = 1024, **parts: Any) -> AllocationService:
    """Answers from an account; lists, PodResources and grants are none unless they are given."""
    defaults = {
        "request_list": lambda: None,
        "list_admitted_pods": nobody_says,
        "make_grant": give_nothing,
    }
    return AllocationService(account, unit_mib, **{**defaults, **parts})


class Node:
    """An account with its checkpoint; `bind` is a pod that comes into view.

    Attributes:
        listed: UIDs that PodResources lists, None where it does not answer.
        asked: how often PodResources was asked.
        lists: how often a list of pods was asked for.
    """

    def __init__(self, *sizes: int, step_s: float = 0.0, **options) -> None:
        self.checkpoint, self.clock = FakeCheckpoint(), Clock(step_s=step_s)
        self.ledger = Ledger(cards(*sizes))
        self.account = LedgerService(self.ledger, self.checkpoint.read, RESOURCE, clock=self.clock)
        self.asked = self.lists = 0
        self.listed: set[str] | None = set()
        self.make_grant: MakeGrant = give_nothing
        parts = {
            "request_list": self.count,
            "list_admitted_pods": self.taken_up,
            "make_grant": self.grant,
            **options,
        }
        self.answers = allocation_service(self.account, **parts)
        self.percent = allocation_service(self.account, percent=True, **parts)

    async def grant(self, mib: Mapping[str, int], compute: int, ids: Collection[str]) -> ContainerGrant:
        return await self.make_grant(mib, compute, ids)

    def count(self) -> None:
        self.lists += 1

    async def taken_up(self) -> Collection[tuple[str, str]] | None:
        self.asked += 1
        return None if self.listed is None else {("ns", f"pod-{uid}") for uid in self.listed}

    def bind(self, *bound) -> None:
        for each in bound:
            if self.listed is not None:
                self.listed.add(each.uid)
            self.ledger.apply_pod(each, self.account.now_s())
        self.account.notify_subscribers()

    def show(self, *entry: Any, **more: Any) -> None:
        """The kubelet writes this entry into its checkpoint, and the account reads that."""
        self.checkpoint.write(*entry, **more)
        self.account.read_checkpoint()

    def linger(self, uid: str, given: frozenset[str]) -> None:
        """A pod that runs is deleted by force, the kubelet offers its IDs again."""
        self.bind(pod(uid, len(given), "c0"))
        self.show(uid, given)
        self.ledger.record_cgroup_probe([uid], [uid], self.account.now_s())
        self.checkpoint.drop(uid)
        self.account.read_checkpoint()
        self.ledger.remove_pod(uid, self.account.now_s())

    def ends(self, uid: str) -> None:
        """Nothing of the pod runs any more."""
        self.ledger.record_cgroup_probe([uid], [], self.account.now_s())
        self.account.notify_subscribers()

    def list_pods(self, *listed) -> None:
        self.clock.now += 0.001
        self.ledger.apply_pod_list(listed, self.account.now_s(), self.account.now_s())
        self.account.notify_subscribers()

    @property
    def ids(self) -> Sequence[str]:
        return tuple(self.answers.list_devices())

    async def preferred(self, size: int, available: Sequence[str] | None = None) -> Collection[str]:
        return await self.answers.choose_ids(self.ids if available is None else available, (), size)

    def ask(self, size: int) -> asyncio.Task[Collection[str]]:
        return asyncio.create_task(self.preferred(size))

    async def keep_waiting(self, size: int) -> asyncio.Task[Collection[str]]:
        """Ask, and see that there is no answer yet."""
        asking = self.ask(size)
        await asyncio.sleep(0)
        assert not asking.done()
        return asking
