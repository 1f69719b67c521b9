"""The kubelet's checkpoint turns to an unknown format while pods come and go."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from allocator.cards import Card
from allocator.ledger import Ledger
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, CheckpointReader
from tests.account_world import allocation_service
from tests.cluster_builders import node, uuid
from tests.ledger_world import RESOURCE, SETTLED_S, ids, pod
from tests.state_world import bound, free, state_with

CARD = uuid("n", 0)


class World:
    """A node of one card of 8 units, its kubelet's checkpoint file, and an extender that reads its words."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now_s, self.known = folder / CHECKPOINT_NAME, 100.0, True
        self.held: dict[str, frozenset[str]] = {}
        self.ledger = Ledger([Card(0, CARD, "M", size_units=8, used_units=0)])
        self.account = LedgerService(
            self.ledger, CheckpointReader(folder).read, RESOURCE, clock=lambda: self.now_s
        )
        self.answers = allocation_service(self.account, view_wait_s=0.0, room_wait_s=0.0)
        self.state = state_with(8)
        self.versions: dict[str, int] = {}
        self.shown = {}
        self.published = 1
        self.write()
        self.ledger.apply_pod_list([], self.now_s, self.now_s)

    def write(self) -> None:
        entries = [
            {"PodUID": uid, "ContainerName": "main", "ResourceName": RESOURCE, "DeviceIDs": {"-1": [*held]}}
            for uid, held in self.held.items()
        ]
        data = {"PodDeviceEntries": entries if self.known else {"Entries": entries}, "RegisteredDevices": {}}
        self.path.write_text(json.dumps({"Data": data, "Checksum": 1}))
        self.account.read_checkpoint()

    @property
    def offered(self) -> frozenset[str]:
        return ids(CARD, *range(8)).difference(*self.held.values())

    async def run(self, uid: str, units: int) -> None:
        """A pod from its binding until it is admitted; the words go out in between, and at the end."""
        self.versions[uid] = len(self.versions) + 2
        self.shown[uid] = bound(uid, units, 0, uid=uid, version=self.versions[uid])
        self.state.apply_pod(self.shown[uid], 0)
        made = pod(uid, units, CARD)
        self.ledger.apply_pod(made, self.now_s)
        self.held[uid] = frozenset(await self.answers.choose_ids([*self.offered], (), units))
        self.publish()
        await self.answers.allocate([*self.held[uid]])
        self.write()
        self.publish()
        self.now_s += SETTLED_S
        self.ledger.record_cgroup_probe(self.ledger.pods_to_probe(), [*self.held], self.now_s)
        self.ledger.apply_pod(replace(made, admitted=True, has_run=True), self.now_s)
        self.publish()

    def delete_by_force(self, uid: str) -> None:
        """A pod is gone from the API server and from the kubelet's checkpoint, its containers still run."""
        running = [*self.held]
        self.ledger.remove_pod(uid, self.now_s)
        self.state.delete_pod(self.shown.pop(uid), "9", 0)
        del self.held[uid]
        self.write()
        self.now_s += SETTLED_S
        self.ledger.record_cgroup_probe(self.ledger.pods_to_probe(), running, self.now_s)
        self.publish()

    def publish(self) -> None:
        holds = self.ledger.published_holds()
        seen = max([1, *(version for uid, version in self.versions.items() if uid in holds)])
        self.published += 1
        told = {"holds": [*holds], "seen": seen, "version": self.published, "revision": self.published}
        self.state.apply_node(node("n", (8,), self.ledger.used(), **told), 0)

    def counted(self) -> tuple[int, int]:
        """Units in the words, and units that the extender has left."""
        return self.ledger.used()[0], free(self.state)[0]


async def test_a_pod_that_is_admitted_meanwhile_is_counted_by_words_and_extender(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.run("a", 3)
    assert world.counted() == (3, 5)
    world.known = False
    await world.run("b", 3)
    assert "unknown format" in (world.account.checkpoint_problem or "")
    # More than it has: whose units were handed out last, only the checkpoint can say.
    used, left = world.counted()
    assert (used >= 6, left <= 2) == (True, True)
    world.known = True
    world.write()
    world.publish()
    assert world.counted() == (6, 2)


async def test_nothing_is_promised_twice_meanwhile(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.run("a", 3)
    world.known = False
    await world.run("b", 3)
    world.delete_by_force("a")
    assert len(world.offered) == 5
    with pytest.raises(AllocationRefusedError, match="3 units free"):
        await world.run("c", 3)
    used, left = world.counted()
    assert (used >= 6, left <= 2) == (True, True)
