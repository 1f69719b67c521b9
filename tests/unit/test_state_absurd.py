"""Absurd numbers from anybody: the node they are about, and no other, is out of use."""

import json

import pytest

from allocator.names import NODE_CARDS, POD_ASSIGNED
from scheduler_plugin.cache.charges import ChargeRules
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.state import ClusterState
from tests.cluster_builders import node, pod, uuid

NAMES = [f"n{i}" for i in range(6)]


def full_cluster() -> ClusterState:
    """Nodes of one card, each filled by a pod that its words do not show."""
    state = ClusterState()
    state.replace_nodes([node(name, (8,)) for name in NAMES], "1", 0)
    state.replace_pods(
        [
            pod(
                f"p-{name}",
                8,
                node=name,
                annotations={POD_ASSIGNED: json.dumps({"main": [[uuid(name, 0), 8]]})},
            )
            for name in NAMES
        ],
        "9",
        0,
    )
    return state


def free(state: ClusterState) -> dict[str, int]:
    return {name: int(state.nodes.free[state.nodes.rows[name], 0]) for name in NAMES}


@pytest.mark.parametrize("amounts", [{"cpu": "1E"}, {"memory": "7Ei"}, {"cpu": "9E", "memory": "9E"}])
def test_a_pod_may_request_what_no_machine_has(amounts):
    state = full_cluster()
    for number in range(2):
        state.apply_pod(pod(f"absurd{number}", 1, node="n0", version=20 + number, **amounts), 1)
    assert free(state) == dict.fromkeys(NAMES, 0)
    state.apply_node(node("n0", (8, 8), version=30), 2)
    assert state.nodes.usable[state.nodes.rows["n0"]]


def test_a_node_may_have_what_no_machine_has():
    state = ClusterState()
    state.apply_node(node("n", (8,), cpu="9E", memory="9E"), 0)
    assert state.nodes.usable[state.nodes.rows["n"]]


def test_a_pod_may_claim_to_be_assigned_more_than_any_card_has():
    state = full_cluster()
    for number, units in enumerate((2**31 - 1, 2**31 - 1, 2**40)):
        note = json.dumps({"main": [[uuid("n0", 0), units]]})
        state.apply_pod(
            pod(f"absurd{number}", units, node="n0", version=20 + number, annotations={POD_ASSIGNED: note}), 1
        )
    assert free(state) == dict.fromkeys(NAMES, 0)
    assert state.nodes.usable[state.nodes.rows["n0"]]


@pytest.mark.parametrize("key", ["numa", "mib", "index"])
def test_a_number_in_the_inventory_that_does_not_fit_excludes_the_node(key):
    state = full_cluster()
    told = node("n0", (8,), used=(8,), version=30)
    cards = json.loads(told.metadata.annotations[NODE_CARDS])
    cards[0][key] = 3_000_000_000
    told.metadata.annotations[NODE_CARDS] = json.dumps(cards)
    state.apply_node(told, 2)
    assert state.nodes.exclusion[state.nodes.rows["n0"]] == Exclusion.CORRUPT
    assert not state.nodes.usable[state.nodes.rows["n0"]]
    assert free(state) == dict.fromkeys(NAMES, 0)


class _Failing(ChargeRules):
    """Rules with a fault that one node brings out."""

    def sum_by_card(self, record, charges):
        if record.name == "n2":
            raise OverflowError("too large")
        return super().sum_by_card(record, charges)


def test_a_fault_about_one_node_puts_only_that_node_out_of_use():
    state = ClusterState(rules=_Failing())
    told = []
    state.node_failed.connect(lambda name, error: told.append((name, repr(error))))
    state.replace_nodes([node(name, (8,)) for name in NAMES], "1", 0)
    pods = [
        pod(f"p-{name}", 8, node=name, annotations={POD_ASSIGNED: json.dumps({"main": [[uuid(name, 0), 8]]})})
        for name in NAMES
    ]
    state.replace_pods(pods, "9", 0)
    assert free(state) == dict.fromkeys(NAMES, 0)
    row = state.nodes.rows["n2"]
    assert state.nodes.exclusion[row] == Exclusion.CORRUPT
    assert set(told) == {("n2", "OverflowError('too large')")}


def test_a_row_that_is_half_written_is_not_used(mocker):
    state = full_cluster()
    told = mocker.Mock()
    state.node_failed.connect(told)
    mocker.patch.object(state.nodes.inventory, "set_cards", side_effect=[OverflowError("too large"), None])
    state.apply_node(node("n0", (8,), holds=("p-n0",), version=30, models=("other",)), 2)
    assert not state.nodes.usable[state.nodes.rows["n0"]]
    assert free(state)["n0"] == 0
    told.assert_called_once()


def test_a_fault_is_raised_where_nobody_takes_it():
    state = ClusterState(rules=_Failing())
    with pytest.raises(OverflowError):
        state.apply_node(node("n2", (8,)), 0)
