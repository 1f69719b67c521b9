"""A pod that asks for 100 percent gets a card alone: measured use, words, filter and both choices agree."""

import numpy as np
import pytest

from allocator.cards import Card
from allocator.errors import LedgerError
from allocator.ledger import CheckpointEntry, Ledger
from allocator.names import PERCENT_RESOURCE
from allocator.packing import NodeWords
from allocator.request import ContainerRequest, PodRequest
from deviceplugin.gpus.api.source import GpuProcess, GpuSample
from deviceplugin.monitoring.unaccounted_use import measure_unaccounted_use
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy
from scheduler_plugin.scheduling.reasons import FilterReason, format_event_text
from tests.policy_view import view

WHOLE = PodRequest((ContainerRequest("main", 100, "main"),), percent=True)
UUIDS = ("GPU-0", "GPU-1")


def measured(*processes, used_mib=0):
    """Units that a card costs beyond what was promised, where these processes are and nobody of ours."""
    sample = GpuSample("GPU-0", used_mib, tuple(processes))
    owners = {process.pid: None for process in processes}
    return measure_unaccounted_use(sample, owners, {}).extra_units(1024)


@pytest.mark.parametrize(
    ("processes", "used_mib", "units"),
    [
        ([], 200, 0),
        ([GpuProcess(7, 12)], 12, 1),
        ([GpuProcess(7, 1500)], 1500, 2),
    ],
    ids=["idle", "little", "more"],
)
def test_a_process_of_nobodys_takes_a_card_out_of_those_that_are_given_whole(processes, used_mib, units):
    found = measured(*processes, used_mib=used_mib)
    assert found == units
    ledger = Ledger([Card(i, uuid, "L40S", 44, 0) for i, uuid in enumerate(UUIDS)])
    ledger.set_unaccounted_use({"GPU-0": found})
    words = NodeWords.of(1024, [44, 44], ledger.used(), 1)
    nodes = view({"n": (8000, 1 << 30, list(words.sizes), 0, 0, list(words.used))})
    row = nodes.rows["n"]
    for policies in (
        ClusterPolicies(),
        ClusterPolicies(card_policy_name="least-used"),
        ClusterPolicies(card_policy_name="most-used"),
    ):
        query = policies.make_request(nodes, WHOLE, ONE_POD)
        placed = place_by_policy(policies.get_policy(WHOLE), nodes, row, query)
        assert placed.charge == ({1: 44} if units else {0: 44})
    # The node chooses the same where nobody chose before, of what the kubelet offers.
    offered = [text for text in ledger.accounts.percent_ids if text.partition("::")[0] in UUIDS]
    ids = ledger.read_request(offered, (), 100).choose_ids()
    assert {text.partition("::")[0] for text in ids} == ({"GPU-1"} if units else {"GPU-0"})


def test_two_whole_cards_and_a_third_pod_with_the_reason():
    nodes = view({"n": (8000, 1 << 30, [44, 44], 0, 0, [0, 1])})
    query = ClusterPolicies().make_request(nodes, WHOLE, ONE_POD)
    rows = np.array([nodes.rows["n"]])
    assert filter_nodes(nodes, query, rows).tolist() == [True]
    nodes.set_assumed(int(rows[0]), [44, 0])
    assert filter_nodes(nodes, query, rows).tolist() == [False]
    (code,) = explain_rejections(nodes, query, rows).tolist()
    assert code == FilterReason.NOT_FREE
    assert (
        format_event_text(FilterReason.from_code(code), WHOLE.demands, 1024)
        == "no card with 100 percent free"
    )


def test_nobody_comes_on_a_card_that_is_given_whole():
    ledger = Ledger([Card(0, "GPU-0", "T4", 14, 0)])
    percent = list(ledger.accounts.percent_ids)
    ids = ledger.read_request(percent, (), 100).choose_ids()
    ledger.allocate(ids, 0.0)
    ledger.apply_checkpoint([CheckpointEntry("u", "main", PERCENT_RESOURCE, frozenset(ids))], 0.0)
    assert ledger.used() == (14,)
    with pytest.raises(LedgerError, match="no card has 1 units free"):
        ledger.read_request(ledger.accounts.card_of.keys() - ledger.accounts.percent_ids, (), 1).choose_ids()
    left = [text for text in percent if text not in ids]
    with pytest.raises(LedgerError, match="no card has 8 percent free"):
        ledger.read_request(left, (), 8).choose_ids()
