"""The kubelet's questions against the ledger: the checkpoint is read before each answer, and waited for."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from deviceplugin.allocation.allocation_service import AGAIN, CROWDED, NOT_OURS, TAKEN
from deviceplugin.containers.cdi import CdiNames
from deviceplugin.containers.device_lists import DeviceListStrategies
from deviceplugin.errors import AllocationRefusedError, UnitInUseError
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.option_values import CDI_CRI, ENVVAR
from tests.account_world import Node
from tests.ledger_world import cards, ids, pod


def on(chosen: Collection[str]) -> set[str]:
    return {text.split("::")[0] for text in chosen}


async def test_a_known_pod_is_served_at_once():
    node = Node(8, 8)
    node.bind(pod("a", 3, "c1"))
    given = tuple(await node.preferred(3))
    await node.answers.allocate(given)
    assert on(given) == {"c1"}
    assert (node.asked, node.lists) == (1, 0)


async def test_a_pod_that_comes_into_view_late_is_waited_for():
    node = Node(8, 8)
    node.listed = {"a"}
    asking = await node.keep_waiting(3)
    node.bind(pod("other", 3, "c0"))
    await asyncio.sleep(0)
    assert not asking.done()
    node.bind(pod("a", 3, "c1"))
    assert on(await asking) == {"c1"}


async def test_the_kubelet_is_asked_whom_it_has_taken_up():
    node = Node(8, 8)
    node.bind(pod("a", [("one", 3, "main"), ("two", 1, "main")], "c0", "c0"), pod("b", 3, "c1"))
    node.listed = None
    assert on(await node.preferred(3)) == {"c0"}
    node.listed = {"b"}
    assert on(await node.preferred(3)) == {"c1"}


async def test_a_pod_that_never_comes_gets_one_card_in_the_end():
    with capture_logs() as logs:
        assert on(await Node(8, 8, step_s=10.0).preferred(3)) == {"c0"}
    assert [(line["event"], line["size"]) for line in logs] == [("container of an unknown pod", 3)]


async def test_several_cards_are_waited_for_when_no_card_has_room():
    """Only the API server can say that a container asked for two cards."""
    node = Node(8, 8, view_wait_s=0.0, room_wait_s=3600.0)
    node.listed = {"a"}
    asking = await node.keep_waiting(12)
    node.bind(pod("a", 12, "c0", "c1", count=2))
    chosen = await asking
    assert sorted(text.split("::")[0] for text in chosen) == ["c0"] * 6 + ["c1"] * 6


async def test_no_room_is_refused_with_the_reason_after_the_wait():
    node = Node(8, 8, view_wait_s=0.0, room_wait_s=0.0)
    with pytest.raises(AllocationRefusedError, match="12 units free") as caught:
        await node.preferred(12)
    assert caught.value.kind == "no-room"
    assert str(caught.value).endswith(NOT_OURS)


@pytest.mark.parametrize(
    ("assigned", "where", "end"),
    [(("c0",), "cards ['c0'] do not have", TAKEN), ((), "no card has", NOT_OURS)],
    ids=["its card was taken", "not bound by us"],
)
async def test_a_known_pod_without_room_is_refused_with_the_cause_and_the_way_out(assigned, where, end):
    node = Node(8, view_wait_s=0.0, room_wait_s=3600.0)
    node.bind(pod("a", 5, *assigned))
    with pytest.raises(AllocationRefusedError) as caught:
        await node.preferred(5, node.ids[:4])
    assert str(caught.value) == f"{where} 5 units free; free units by card: [4]; {end}"


@pytest.mark.parametrize(("withheld", "why"), [({}, "the card is unhealthy"), ({"c0": "no MPS"}, "no MPS")])
async def test_a_pod_whose_card_fell_sick_since_it_was_bound_is_refused_with_that_cause(withheld, why):
    """Also while containers of deleted pods run on another card."""
    node = Node(8, 8, view_wait_s=0.0, room_wait_s=0.0)
    node.linger("z", ids("c1", 0))
    node.bind(pod("a", 5, "c0"))
    node.account.set_not_enforced(withheld)
    node.account.ledger.set_healthy("c0", bool(withheld))
    with pytest.raises(AllocationRefusedError) as caught:
        await node.preferred(5, node.ids[8:])
    assert str(caught.value) == (
        "cards ['c0'] do not have 5 units free; free units by card: [0, 7]; "
        f"card c0 cannot be had: {why}; {AGAIN}"
    )


async def test_room_is_waited_for_while_containers_of_a_deleted_pod_end():
    node = Node(8, view_wait_s=0.0, room_wait_s=3600.0)
    node.linger("z", ids("c0", *range(6)))
    node.bind(pod("a", 6, "c0"))
    asking = await node.keep_waiting(6)
    node.ends("z")
    assert on(await asking) == {"c0"}


async def test_what_containers_of_a_deleted_pod_still_run_with_is_refused_with_that_cause():
    node = Node(8, view_wait_s=0.0, room_wait_s=0.0)
    node.linger("z", ids("c0", *range(6)))
    node.bind(pod("a", 6, "c0"))
    with pytest.raises(AllocationRefusedError) as caught:
        await node.preferred(6)
    assert str(caught.value) == f"cards ['c0'] do not have 6 units free; free units by card: [2]; {CROWDED}"


def unassigned(**more) -> Node:
    """Pod `a` was bound by another scheduler."""
    node = Node(8, 8, **more)
    node.bind(pod("a", 3))
    node.list_pods(pod("a", 3))
    return node


async def test_where_nobody_said_on_which_cards_a_fresh_list_of_all_pods_is_asked_for():
    """Another pod may have been bound to the card that the policy would choose."""
    node = unassigned()
    asking = await node.keep_waiting(3)
    assert node.lists == 1
    node.bind(pod("other", 2, "c1"))
    await asyncio.sleep(0)
    assert not asking.done()
    node.list_pods(pod("a", 3), pod("other", 2, "c1"), pod("b", 8, "c0"))
    assert on(await asking) == {"c1"}


async def test_a_list_that_never_comes_is_not_waited_for_for_ever():
    assert on(await unassigned(step_s=10.0).preferred(3)) == {"c0"}


async def test_a_pod_whose_card_has_no_room_is_refused_only_after_a_fresh_list():
    node = Node(8, 8)
    node.checkpoint.write("x", ids("c0", *range(6)))
    node.bind(pod("a", 3, "c0"))
    asking = await node.keep_waiting(3)
    assert node.lists == 1
    node.list_pods(pod("a", 3, "c0"), pod("x", 6, "c0"))
    with pytest.raises(
        AllocationRefusedError, match=r"cards \['c0'\] do not have 3 units free; free units by card: \[2, 8\]"
    ):
        await asking


# The checkpoint.


async def test_the_checkpoint_is_read_before_a_preference():
    node = Node(8, 8, view_wait_s=0.0)
    node.account.read_checkpoint()
    node.checkpoint.write("x", ids("c0", *range(6)))
    assert on(await node.preferred(3)) == {"c1"}


async def test_the_checkpoint_is_read_before_an_allocate_that_the_kubelet_did_not_ask_about():
    """Its init container had these IDs before."""
    node = Node(8)
    node.bind(pod("a", [("setup", 2, "init"), ("main", 2, "main")], "c0"))
    given = tuple(await node.preferred(2))
    await node.answers.allocate(given)
    node.checkpoint.write("a", frozenset(given), container="setup")
    await node.answers.allocate(given)
    assert node.ledger.accounts.pods["a"].checkpoint_ids == {"setup": frozenset(given)}
    assert node.ledger.accounts.pods["a"].current_ids.keys() == {"setup", "main"}
    assert node.ledger.allocated_units() == {"c0": 2}


async def test_an_allocate_of_other_ids_than_the_answer_is_asked_about():
    node = Node(8, 8, step_s=10.0)
    node.bind(pod("a", 3, "c1"))
    assert on(await node.preferred(3)) == {"c1"}
    with pytest.raises(AllocationRefusedError) as caught:
        await node.answers.allocate(("c0::0", "c0::1", "c0::2"))
    assert caught.value.kind == "no-room"
    assert node.ledger.allocated_units() == {"c0": 0, "c1": 0}
    assert (await node.answers.allocate(("c1::5", "c1::6", "c1::7"))).envs["GPUPACK_CARDS"] == "c1:3"


async def test_an_answer_counts_for_one_allocate():
    """Who asks is asked again for the next one."""
    node = Node(8)
    node.bind(pod("a", 3, "c0"))
    given = tuple(await node.preferred(3))
    node.listed = {"a"}
    await node.answers.allocate(given)
    node.checkpoint.write("a", frozenset(given))
    node.bind(pod("b", 3, "c0"))
    others = tuple(text for text in node.ids if text not in given)[:3]
    await node.answers.allocate(others)
    assert all(one.current_ids.keys() == {"main"} for one in node.ledger.accounts.pods.values())


async def test_what_a_question_finds_in_the_checkpoint_is_told_once():
    """Whoever reads the checkpoint first tells of it: the next reader sees nothing new."""
    node = Node(8, view_wait_s=0.0)
    node.account.read_checkpoint()
    told = []
    node.account.subscribe(lambda: told.append(node.ledger.allocated_units()))
    node.checkpoint.write("x", ids("c0", 0, 1))
    await node.preferred(3)
    assert told == [{"c0": 2}]
    node.account.read_checkpoint()
    node.show()
    assert told == [{"c0": 2}]


async def test_a_checkpoint_that_cannot_be_read_is_not_an_empty_one():
    node = Node(8, 8, view_wait_s=0.0)
    node.show("x", ids("c0", *range(6)))
    node.list_pods()
    assert (node.account.checkpoint_problem, node.ledger.is_complete) == (None, True)
    node.checkpoint.problem = "torn"
    with capture_logs() as logs:
        given = tuple(await node.preferred(3))
        await node.answers.allocate(given)
    assert on(given) == {"c1"}
    assert [line["error"] for line in logs if line["log_level"] == "warning" and "error" in line] == ["torn"]
    assert (node.account.checkpoint_problem, node.ledger.allocated_units()) == ("torn", {"c0": 6, "c1": 3})
    node.checkpoint.problem = None
    with capture_logs() as logs:
        node.account.read_checkpoint()
        node.account.read_checkpoint()
    assert node.account.checkpoint_problem is None
    assert [line["event"] for line in logs] == ["what containers have can be read again"]


def test_nothing_is_complete_before_the_first_readable_checkpoint():
    node = Node(8)
    assert "not read yet" in str(node.account.checkpoint_problem)
    node.checkpoint.problem = "unknown format"
    node.list_pods()
    node.account.read_checkpoint()
    assert (node.account.checkpoint_problem, node.ledger.is_complete) == ("unknown format", False)
    node.checkpoint.problem = None
    node.account.read_checkpoint()
    assert (node.account.checkpoint_problem, node.ledger.is_complete) == (None, True)


def test_a_checkpoint_that_vanishes_has_no_entries_and_charges_stay():
    """A kubelet that lost its checkpoint: its containers run on."""
    node = Node(8)
    node.show("a", ids("c0", 0, 1))
    node.checkpoint.contents = None
    node.account.read_checkpoint()
    assert (node.account.checkpoint_problem, node.ledger.accounts.pods["a"].checkpoint_ids) == (None, {})
    assert node.ledger.allocated_units() == {"c0": 2}


@pytest.mark.parametrize(("running", "living"), [({"uid-1"}, None), ({"uid-1"}, set()), (set(), {"uid-1"})])
def test_another_unit_in_use_is_an_error_that_names_pod_and_resource(running, living):
    node = Node(8)
    node.show("uid-1", frozenset({"c0::0"}), resource="gpupack.io/gpu-memory-512mib")
    assert node.account.other_unit_pods.resource_by_pod == {"uid-1": "gpupack.io/gpu-memory-512mib"}
    with pytest.raises(UnitInUseError, match=r"pod uid-1 holds gpupack.io/gpu-memory-512mib.*drain"):
        node.account.other_unit_pods.check_ended({"uid-1"}, running, living)


def test_another_unit_of_a_pod_that_ended_does_not_count_once_the_pods_are_known():
    node = Node(8)
    node.show("uid-1", frozenset({"c0::0"}), resource="gpupack.io/gpu-memory-512mib")
    node.account.other_unit_pods.check_ended({"uid-1"}, set(), None)
    assert list(node.account.other_unit_pods.resource_by_pod) == ["uid-1"], "the API server was not heard yet"
    node.account.other_unit_pods.check_ended({"uid-1"}, set(), {"another"})
    assert node.account.other_unit_pods.resource_by_pod == {}
    node.show("mine", ids("c0", 1))
    assert node.account.other_unit_pods.resource_by_pod == {}
    assert node.ledger.allocated_units() == {"c0": 1}
    node.show("uid-2", frozenset({"c0::2"}), resource="gpupack.io/gpu-memory-512mib")
    assert list(node.account.other_unit_pods.resource_by_pod) == ["uid-2"]


def test_other_resources_are_not_looked_at():
    node = Node(8)
    node.checkpoint.write("x", frozenset({"GPU-1"}), resource="nvidia.com/gpu")
    node.show("x", frozenset({"c0::0"}), resource="gpupack.io/else")
    assert (node.ledger.allocated_units(), node.ledger.accounts.pods) == ({"c0": 0}, {})


# What a container gets.


async def test_what_a_container_is_told():
    node, handover = Node(8, 8), DeviceListStrategies(NVIDIA, (ENVVAR, CDI_CRI), CdiNames(NVIDIA))

    async def describe(mib, _compute, _ids):
        return handover.describe_cards(list(mib))

    node.make_grant = describe
    node.bind(pod("a", 6, "c1", "c0", count=2))
    told = []
    node.account.subscribe(lambda: told.append(node.ledger.allocated_units()))
    grant = await node.answers.allocate(tuple(await node.preferred(6)))
    assert grant.envs == {
        "NVIDIA_VISIBLE_DEVICES": "c0,c1",
        "GPUPACK_MEMORY_MIB": "3072",
        "GPUPACK_CARDS": "c0:3,c1:3",
    }
    assert grant.cdi_devices == ("nvidia.com/gpu=c0", "nvidia.com/gpu=c1")
    # The kubelet has its answer before whoever follows the accounts has a turn.
    assert (told, node.ledger.allocated_units()) == ([], {"c0": 3, "c1": 3})
    await asyncio.sleep(0)
    assert told == [{"c0": 3, "c1": 3}]


async def test_ids_that_do_not_belong_together_are_refused():
    node = Node(8, 8, step_s=10.0)
    for given, kind in ((("c0::0", "c1::0"), "no-room"), (("c9::0",), "spans-cards")):
        with pytest.raises(AllocationRefusedError) as caught:
            await node.answers.allocate(given)
        assert caught.value.kind == kind
    assert node.ledger.allocated_units() == {"c0": 0, "c1": 0}


def test_devices_follow_the_cards_health():
    node = Node(2, 1)
    assert node.answers.list_devices() == {"c0::0": True, "c0::1": True, "c1::0": True}
    node.ledger.set_healthy("c0", False)
    assert node.answers.list_devices() == {"c0::0": False, "c0::1": False, "c1::0": True}


@pytest.mark.parametrize("left", [cards(8), cards(8, 5)], ids=["a card goes", "a card has less"])
async def test_cards_that_change_while_a_question_waits_are_not_in_the_answer(left):
    node = Node(8, 8, view_wait_s=3600.0, room_wait_s=3600.0)
    node.listed = {"a"}
    asking = node.ask(3)
    await asyncio.sleep(0)
    node.ledger.set_cards(left)
    node.account.notify_subscribers()
    await asyncio.sleep(0)
    node.bind(pod("a", 3, "c0"))
    node.list_pods(pod("a", 3, "c0"))
    async with asyncio.timeout(5):
        assert on(await asking) == {"c0"}


async def test_a_pod_that_came_again_under_its_name_waits_for_a_list():
    node = Node(8, 8)
    node.bind(pod("old", 3, "c0", admitted=True))
    node.show("old", ids("c0", 0, 1, 2))
    node.checkpoint.drop("old")
    node.account.read_checkpoint()
    asking = await node.keep_waiting(3)
    node.ledger.remove_pod("old", node.account.now_s())
    again = replace(pod("new", 3, "c1"), name="pod-old")
    node.list_pods(again)
    async with asyncio.timeout(5):
        assert on(await asking) == {"c1"}
