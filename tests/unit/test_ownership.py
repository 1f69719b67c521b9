"""Who writes to a Node: restarts go on at once, two daemons of one name never both write."""

import json

import pytest

from allocator.ledger import Ledger
from allocator.names import NODE_DAEMON
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.publishing.ownership import (
    AGAIN_S,
    CHALLENGE_S,
    DaemonIdentity,
    NodeOwnership,
    OwnershipRecord,
    identify_daemon,
)
from kubeapi.errors import Forbidden
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE as GIB
from tests.ledger_world import cards
from tests.publisher_world import FakeApi


class Daemons:
    """Daemons of one Node, with one clock; each sees the Node when `look` says so."""

    def __init__(self, boot_id: str = "") -> None:
        self.now_s = 1000.0
        self.api = FakeApi()
        self.api.node["status"]["nodeInfo"] = {"bootID": boot_id}
        self.conflicts: list[tuple[str, str]] = []
        self.views: dict[str, OwnNode] = {}

    def daemon(self, host: str, boot: str = "", pod: str = "") -> NodeOwnership:
        account = LedgerService(Ledger(cards(8)), FakeCheckpoint().read, GIB, clock=lambda: self.now_s)
        view = self.views[host] = OwnNode(account, "n1", 1024)
        found = NodeOwnership(
            self.api,
            account,
            view,
            DaemonIdentity(host, boot, pod or f"pod-{host}"),
            node_name="n1",
            on_conflict=lambda said: self.conflicts.append((host, said)),
        )
        self.look(host)
        return found

    def look(self, *hosts: str) -> None:
        for host in hosts:
            self.views[host].replace([self.api.decoded()], "1")

    async def settle(self, *daemons: NodeOwnership) -> None:
        """Let all that are alive see the Node and act until nothing more happens."""
        before = None
        while before != self.api.version:
            before = self.api.version
            for daemon in daemons:
                self.look(daemon._me.host)
                await daemon._step()

    def owner(self) -> str:
        return json.loads(self.api.node["metadata"]["annotations"][NODE_DAEMON])["owner"]["host"]


@pytest.fixture
def world():
    return Daemons()


async def test_a_node_of_nobody_is_taken_and_a_restart_goes_on_at_once_without_a_write(world):
    first = world.daemon("a")
    assert not first.owns_node
    assert await first._step() == 0.0
    assert first.owns_node
    assert await first._step() is None
    again = world.daemon("a")
    assert again.owns_node
    assert await again._step() is None
    assert len(world.api.patches) == 1


async def test_another_pod_of_the_same_host_goes_on_at_once_and_writes_its_name(world):
    await world.settle(world.daemon("a", pod="gpupack-node-old"))
    again = world.daemon("a", pod="gpupack-node-new")
    assert again.owns_node
    await world.settle(again)
    assert "gpupack-node-new" in world.api.node["metadata"]["annotations"][NODE_DAEMON]
    assert world.conflicts == []


async def test_the_second_of_two_daemons_says_so_and_does_not_write(world):
    first, second = world.daemon("a"), world.daemon("b")
    await world.settle(first)
    await world.settle(second, first)
    assert (first.owns_node, second.owns_node, world.owner()) == (True, False, "a")
    wants = (
        "another gpupack node daemon, pod-b, wants to write to this Node, which belongs to pod-a: "
        "two daemons must not have the same --node-name"
    )
    assert (first.problem, world.conflicts) == (None, [("a", wants), ("b", second.problem)])
    assert first.is_disputed
    assert second.is_disputed
    assert second.problem.startswith(
        "Node n1 belongs to another gpupack node daemon, pod-a: this one waits until that one is gone; "
        "two daemons must not have the same --node-name"
    )
    patches = len(world.api.patches)
    world.now_s += AGAIN_S - 1
    await world.settle(first, second)
    assert len(world.api.patches) == patches
    world.now_s += 1
    await world.settle(second, first)
    assert (len(world.api.patches), world.owner()) == (patches + 2, "a")
    # Known already; that it asks again makes the count of the same Event higher.
    assert world.conflicts[2:] == [("a", wants)]


async def test_an_owner_that_does_not_answer_loses_the_node_and_keeps_quiet_when_it_is_back(world):
    first, second = world.daemon("a"), world.daemon("b")
    await world.settle(first)
    await world.settle(second)
    assert not second.owns_node
    assert "asking whether it is alive" in second.problem
    world.now_s += CHALLENGE_S - 1
    await world.settle(second)
    assert not second.owns_node
    world.now_s += 1
    await world.settle(second)
    assert (second.owns_node, second.problem, second.is_disputed) == (True, None, False)
    await world.settle(first, second)
    assert (first.owns_node, second.owns_node, world.owner()) == (False, True, "b")
    assert [host for host, _ in world.conflicts] == ["b", "a"]
    assert "pod-b" in first.problem


async def test_an_answer_at_the_last_moment_is_one(world):
    first, second = world.daemon("a"), world.daemon("b")
    await world.settle(first)
    await world.settle(second)
    world.now_s += CHALLENGE_S
    world.look("a")
    await first._step()
    await second._step()
    await world.settle(second, first)
    assert (first.owns_node, second.owns_node) == (True, False)


async def test_a_machine_that_was_booted_again_goes_on_at_once():
    world = Daemons(boot_id="boot-1")
    await world.settle(world.daemon("a", boot="boot-1"))
    world.api.node["status"]["nodeInfo"] = {"bootID": "boot-2"}
    world.api.version += 1
    again = world.daemon("a2", boot="boot-2")
    await again._step()
    assert (again.owns_node, world.owner()) == (True, "a2")


async def test_the_daemon_of_the_nodes_own_machine_takes_it_from_one_of_another_for_good():
    world = Daemons(boot_id="boot-1")
    wrong, right = world.daemon("x", boot="boot-9"), world.daemon("a", boot="boot-1")
    await world.settle(wrong)
    assert wrong.owns_node
    await world.settle(right)
    assert world.owner() == "a"
    for _ in range(3):
        world.now_s += AGAIN_S
        await world.settle(wrong, right)
        assert (wrong.owns_node, right.owns_node) == (False, True)
    assert wrong.problem.endswith("; this machine is not that Node's (its boot ID is boot-1, ours boot-9)")


async def test_two_kubelets_of_one_machine_do_not_take_the_node_from_each_other():
    world = Daemons(boot_id="boot-1")
    first, second = world.daemon("a", boot="boot-1"), world.daemon("b", boot="boot-1")
    await world.settle(first)
    await world.settle(second, first)
    assert (first.owns_node, second.owns_node) == (True, False)


async def test_of_two_that_start_together_one_gets_the_node(world):
    first, second = world.daemon("a"), world.daemon("b")
    await first._step()
    await second._step()
    assert (first.owns_node, second.owns_node) == (True, False)
    await world.settle(second, first)
    assert (first.owns_node, second.owns_node) == (True, False)


async def test_of_three_daemons_one_gets_the_node_of_one_that_is_gone(world):
    gone, second, third = world.daemon("a"), world.daemon("b"), world.daemon("c")
    await world.settle(gone)
    for _ in range(10):
        await world.settle(second, third)
        world.now_s += CHALLENGE_S
    assert [second.owns_node, third.owns_node].count(True) == 1
    owner = world.owner()
    for _ in range(5):
        world.now_s += AGAIN_S
        await world.settle(second, third)
        assert world.owner() == owner


@pytest.mark.parametrize("text", ["", "rubbish", "[]", "{}", '{"owner": 7}', "[" * 10_000])
async def test_rubbish_in_the_annotation_is_nobody(world, text):
    world.api.node["metadata"]["annotations"][NODE_DAEMON] = text
    first = world.daemon("a")
    assert not first.owns_node
    await world.settle(first)
    assert first.owns_node


async def test_daemons_of_two_versions_find_each_other_under_the_names_in_the_annotation(world):
    first, second = world.daemon("a"), world.daemon("b")
    await world.settle(first)
    world.look("b")
    await second._step()
    written = json.loads(world.api.node["metadata"]["annotations"][NODE_DAEMON])
    assert {name: daemon["host"] for name, daemon in written.items()} == {"owner": "a", "claim": "b"}
    world.look("a")
    await first._step()
    assert list(json.loads(world.api.node["metadata"]["annotations"][NODE_DAEMON])) == ["owner"]
    assert [host for host, _ in world.conflicts] == ["a"]


async def test_a_node_that_was_created_again_is_taken_again(world):
    first = world.daemon("a")
    await world.settle(first)
    world.api.node["metadata"]["annotations"] = {}
    world.views["a"].replace([], "2")
    assert not first.owns_node
    assert await first._step() is None
    assert first.problem is None
    await world.settle(first)
    assert first.owns_node


async def test_a_refused_challenge_says_why_and_is_tried_again(world):
    first = world.daemon("a")
    first._stepper.hurry()
    world.api.failures = [Forbidden("may not patch nodes/status")]
    await first._step()
    assert first.problem == "the status of Node n1 cannot be written: may not patch nodes/status"
    await first._step()
    assert first.owns_node
    assert (first.problem, first.errors) == (None, 1)


async def test_a_node_that_does_not_keep_the_annotation_is_tried_ever_more_seldom(world):
    first = world.daemon("a")
    first._stepper.hurry()
    world.api.dropped = {NODE_DAEMON}
    for _ in range(3):
        assert await first._step() == 0.0
    assert first._stepper._failures.failures == 3
    assert not first.owns_node
    assert first.problem == (
        "the status of Node n1 cannot be written: the Node does not keep its annotation gpupack.io/daemon"
    )
    world.api.dropped = set()
    await world.settle(first)
    assert (first.owns_node, first.problem) == (True, None)


def test_a_host_is_told_by_its_boot_and_its_folder(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "one")
    one, two, same = (identify_daemon(tmp_path / name) for name in ("one", "two", "same"))
    assert one == same
    assert one.host != two.host
    assert one.boot == two.boot
    assert OwnershipRecord(one).challenger is None
