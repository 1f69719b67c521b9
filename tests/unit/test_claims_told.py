"""Claims that others allocated: what `fit`, `why`, `top` and the dashboard say is free agrees with filter."""

import json
from dataclasses import replace

import msgspec
import pytest
from click.testing import CliRunner

import gpupack
from allocator.claims import ClaimObject
from allocator.names import (
    COMPUTE_RESOURCE,
    NODE_HOLDS,
    NODE_SERVES,
    POD_ASSIGNED,
    SERVES_CLAIMS,
    resource_name,
)
from allocator.records import Holds, dump_assigned, dump_holds
from gpupack.cli.app import cli
from gpupack.dashboard.board import ClusterBoard
from gpupack.diagnose.listing import format_pods, list_waiting
from gpupack.diagnose.running import list_pod_cards
from gpupack.diagnose.why import explain_pod
from gpupack.inventory.objects import CLAIMS_NOT_READ, load_nodes
from gpupack.inventory.rows import build_rows
from gpupack.rebalance.advise import advise_empty
from gpupack.rebalance.movable_pods import MovablePod
from gpupack.rebalance.moved_cluster import remove_from_words
from gpupack.whatif.changes import apply_changes
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion, answer_fit
from gpupack.whatif.snapshot import NODE_HEADER, POD_HEADER, make_snapshot
from gpupack.whatif.what_if import PodCardUsage
from kubeapi.objects import Node, OwnerReference, Pod
from scheduler_plugin.cache.pod_cards import PodCards
from scheduler_plugin.cache.pods import read_pod
from tests.cluster_builders import claim, claim_object, container, node_object, pod_object, uuid
from tests.state_world import compute_free
from tests.unit.test_claim_cache import state_of_claims


def items(claims: dict[str, dict[int, int]] | None = None, waiting: int = 8) -> str:
    node = node_object("n", (16, 16), extra={NODE_SERVES: SERVES_CLAIMS}, allocatable_units=0, claims=claims)
    found = [
        node | {"kind": "Node"},
        pod_object("w", waiting) | {"kind": "Pod"},
        claim_object("one", (0, 10), version=1, pods=["x"]),
        claim_object("two", (1, 5), version=1),
        claim_object("asks", version=1),
    ]
    return json.dumps({"kind": "List", "items": found})


@pytest.mark.parametrize(("held", "free"), [({}, [6, 11]), ({"uid-one": {0: 10}}, [16, 11])])
def test_everybody_counts_what_filter_counts(held: dict[str, dict[int, int]], free: list[int]) -> None:
    cluster = Cluster.from_json(items(held))
    assert cluster.state.nodes.free[0, :2].tolist() == free
    extender = state_of_claims()
    for each in (claim("one", (0, 10), pods=["x"]), claim("two", (1, 5))):
        if each.metadata.uid not in held:
            extender.claims.apply(each, 0)
    assert extender.nodes.free[0, :2].tolist() == free

    (row,) = cluster.build_inventory()
    assert [16 - card.used_units - card.assumed_units for card in row.cards] == free
    (row,) = build_rows(load_nodes(items(held), pods=True))
    assert [16 - card.used_units - card.assumed_units for card in row.cards] == free
    board = ClusterBoard()
    board.replace_nodes(cluster.nodes.values())
    board.replace_pods(())
    board.replace_claims(cluster.claims.values())
    board.refresh()
    assert [card.free for card in board.tiles["n"].cards] == free
    assert board.get_cluster().state.nodes.free[0, :2].tolist() == free


def test_fit_and_why_know_of_claims() -> None:
    fits = answer_fit(Cluster.from_json(items()), FitQuestion(6))
    assert (fits.pods, fits.largest_units) == (2, 11)
    assert not explain_pod(Cluster.from_json(items(waiting=12)), "default", "w").fits
    assert explain_pod(Cluster.from_json(items(waiting=11)), "default", "w").fits == ("n",)


def test_why_says_the_cards_of_a_pod_with_claims() -> None:
    found = Cluster.from_json(with_claims_on_two_cards())
    answers = {name: explain_pod(found, "default", name) for name in ("held", "on-its-way", "waits")}
    assert {name: each.state for name, each in answers.items()} == {
        "held": "running",
        "on-its-way": "running",
        "waits": "no-cards",
    }
    assert [(card.card, card.promised_units) for card in answers["held"].cards] == [(0, 10)]
    said = "card 1 by its ResourceClaims: not prepared yet, or another pod that shares them has the units"
    assert answers["on-its-way"].notes == (said,)
    assert answers["waits"].text.endswith("of its ResourceClaims the Events of kube-scheduler tell")


@pytest.mark.parametrize("reads_claims", [True, False])
def test_advice_to_empty_a_node_names_the_pods_that_claims_keep_there(reads_claims: bool) -> None:
    found = Cluster.from_json(with_claims_on_two_cards())
    if not reads_claims:
        found = Cluster(found.nodes, found.pods, found.unit_mib)
    advice = advise_empty(found, "n")
    held = "default/held stays: its card is that of a ResourceClaim"
    allocated = "default/on-its-way stays: its card is that of a ResourceClaim"
    assert advice.text == "Not every pod can be moved from n"
    assert advice.notes == ((held, allocated) if reads_claims else (held,))
    assert advise_empty(found, "n/1").before.pods == int(reads_claims)


def test_a_shared_claim_is_of_those_that_run_on_once_its_first_pod_is_gone() -> None:
    found = Cluster.from_json(with_claims_on_two_cards())
    for pods, own in ((["held", "shares"], 0), (["shares"], 10)):
        found.put_claim(claim("one", (0, 10), version=20, pods=pods))
        found.put_pod(_sharing_pod())
        if "held" not in pods:
            found.drop_pod(found.pods["uid-held"], "30")
        shared = {pod.metadata.name: dict(units) for pod, units in PodCardUsage(found).list_claim_pods("n")}
        assert shared["shares"] == {0: own}
        assert "default/shares stays: its card is that of a ResourceClaim" in advise_empty(found, "n/0").notes
        assert explain_pod(found, "default", "shares").notes[0].startswith("card 0 by its ResourceClaims")


def _sharing_pod() -> Pod:
    spec = {"resourceClaims": [{"name": "card", "resourceClaimName": "one"}]}
    made = pod_object("shares", containers=[{"name": "main"}], node="n", spec=spec, phase="Running")
    return msgspec.convert(made, Pod)


ONE_HELD = Holds(9, frozenset({"uid-held"}), {"uid-held": {0: 10}}, {"uid-one": {0: (10, 0)}})


def with_claims_on_two_cards(holds: Holds = ONE_HELD, compute: int = 0) -> str:
    """A node with a pod whose claim the words hold, and one whose claim they do not; and a pod that waits."""
    node = node_object(
        *("n", (16, 16), (10, 0)),
        extra={NODE_SERVES: SERVES_CLAIMS},
        allocatable_units=0,
        compute=(compute, 0),
    )
    node["metadata"]["annotations"][NODE_HOLDS] = dump_holds(holds)  # type: ignore[index]
    plain = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    spec = {"resourceClaims": [{"name": "card", "resourceClaimName": "some"}]}
    found = [
        node | {"kind": "Node"},
        pod_object("held", containers=plain, node="n", spec=spec, phase="Running") | {"kind": "Pod"},
        pod_object("on-its-way", containers=plain, node="n", spec=spec) | {"kind": "Pod"},
        pod_object("waits", containers=plain, spec=spec) | {"kind": "Pod"},
        claim_object("one", (0, 10), pods=["held"], compute=compute),
        claim_object("two", (1, 5), pods=["on-its-way"], compute=compute),
    ]
    return json.dumps({"kind": "List", "items": found})


def test_the_compute_of_claims_is_told_of_cards_and_of_their_pods() -> None:
    """By `top`, `why` and the snapshot, also of a claim that the words do not hold yet."""
    holds = replace(ONE_HELD, claims={"uid-one": {0: (10, 30)}})
    text = with_claims_on_two_cards(holds, compute=30)
    (row,) = build_rows(load_nodes(text, pods=True))
    assert [card.compute_in_use for card in row.cards] == [30, 30]
    assert [[(pod.name, pod.compute) for pod in card.pods] for card in row.cards] == [[("held", 30)], []]
    found = Cluster.from_json(text)
    (card,), _ = list_pod_cards(found, found.pods["uid-held"])
    assert (card.compute, card.compute_in_use) == (30, 30)
    assert compute_free(found.state) == [70, 70]
    compute = {row[0]: row[POD_HEADER.index("gpu_compute")] for row in make_snapshot(found).pods}
    assert compute == {"default/held": "30", "default/on-its-way": "30"}


def test_changed_clusters_keep_their_claims() -> None:
    cluster = Cluster.from_json(items())
    cluster.put_node(_decoded(node_object("m", (16,)) | {"kind": "Node"}))
    changed, _ = apply_changes(cluster, ["m"], [])
    assert changed is not None
    for each in (changed, cluster.in_unit(2048).in_unit(1024)):
        assert each.state.nodes.free[each.state.nodes.rows["n"], :2].tolist() == [6, 11]


def test_pods_with_claims_are_told_to_go_with_their_node() -> None:
    _, told = apply_changes(with_claim_pod((0, 10)), ["n"], [])
    assert told[0].startswith("the pods that run on n are gone with it (2)")


def test_words_without_a_pod_still_contain_the_claims() -> None:
    made = node_object("n", (16, 16), (10, 0), holds=["uid-p"], claims={"uid-one": {0: 10}})
    node = json.dumps({"items": [made | {"kind": "Node"}]})
    (found,) = Cluster.from_json(node).nodes.values()
    pod = msgspec.convert(pod_object("p", 1, node="n"), Pod)
    movable = MovablePod(pod, read_pod(pod, resource_name(1024)), {}, {}, OwnerReference())
    left = Cluster({"n": remove_from_words(found, [movable], PodCards({}, frozenset()))}, {}, 1024)
    assert left.state.node_records["n"].held_claims == {"uid-one": {0: (10, 0)}}


def test_the_board_follows_claims_as_they_come_and_go() -> None:
    board = ClusterBoard()
    assert not board.serves_claims
    board.put_node(_decoded(json.loads(items())["items"][0]))
    board.replace_pods(())
    assert board.serves_claims
    board.get_cluster()

    def free() -> list[int]:
        board.refresh()
        told = [card.free for card in board.tiles["n"].cards]
        assert board.get_cluster().state.nodes.free[0, :2].tolist() == told
        return told

    assert free() == [16, 16]
    board.put_claim(claim("one", (0, 10), version=2))
    assert free() == [6, 16]
    board.put_claim(claim("one", (1, 4), version=3))
    assert free() == [16, 12]
    board.drop_claim(claim("one", version=4))
    assert free() == [16, 16]


def _decoded(item: dict[str, object]) -> Node:
    (node,) = Cluster.from_json(json.dumps({"items": [item]})).nodes.values()
    return node


def test_claims_of_a_file_are_read_by_their_kind() -> None:
    assert all(isinstance(each, ClaimObject) for each in Cluster.from_json(items()).claims.values())


ONE_LEFT_OUT = "1 ResourceClaim is left out: of no pod, or of one that also asks by limits"
TWO_LEFT_OUT = "2 ResourceClaims are left out: of no pod, or of one that also asks by limits"
WRITTEN = "1 pod with ResourceClaims asks in the file by limits for as much, of any model"


def with_claim_pod(*shares: tuple[int, int | str | None], **changes: object) -> Cluster:
    found = json.loads(items())
    found["items"][2] = claim_object("one", *shares, version=1, pods=["x", "y"])
    spec: dict[str, object] = {"resourceClaims": [{"name": "card", "resourceClaimName": "one"}]}
    plain = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]
    for name in ("x", "y"):
        options = {"containers": plain, "node": "n", "spec": spec, **changes}
        found["items"].append(pod_object(name, **options) | {"kind": "Pod"})  # type: ignore[arg-type]
    return Cluster.from_json(json.dumps(found))


def test_a_snapshot_has_pods_with_claims_with_what_they_have() -> None:
    cluster = with_claim_pod((0, 10), (1, None))
    found = make_snapshot(cluster)
    assert found.notes == (ONE_LEFT_OUT, WRITTEN)
    pods = {row[0]: dict(zip(POD_HEADER, row, strict=True)) for row in found.pods}
    assert pods.keys() == {"default/w", "default/x"}, "y shares the claim of x"
    row = pods["default/x"]
    assert (row["num_gpu"], row["gpu_units"], row["gpu_milli"], row["cpu_milli"]) == (2, "10|16", 812, 2000)
    (node,) = found.nodes
    # x is in the list of pods; y, which has no card of its own, takes two cores besides.
    assert dict(zip(NODE_HEADER, node, strict=True))["cpu_milli"] == 38_000
    assert make_snapshot(cluster, unit_mib=2048).pods[1][POD_HEADER.index("gpu_units")] == "5|8"


def test_a_snapshot_has_pods_that_ask_by_limits_once() -> None:
    """Claims that the extender wrote belong to pods that ask by limits."""
    assert make_snapshot(Cluster.from_json(items())).notes == (TWO_LEFT_OUT,)
    found = json.loads(items())
    found["items"][2] = claim_object("one", (0, 10), version=1, pods=["w"], of_pod="w")
    assert make_snapshot(Cluster.from_json(json.dumps(found))).notes == (ONE_LEFT_OUT,)
    besides = with_claim_pod((0, 10), containers=[container("main", 4)])
    assert make_snapshot(besides).notes == (TWO_LEFT_OUT,)
    assert [row[POD_HEADER.index("gpu_units")] for row in make_snapshot(besides).pods] == [8, 4, 4]


def test_the_simulator_runs_pods_with_claims() -> None:
    means = gpupack.simulate(with_claim_pod((0, 10), (1, None)), inflation=1e-6)
    (mean,) = means.values()
    assert mean["pods"] == 2


def test_a_file_without_the_claims_that_must_be_there_says_so() -> None:
    found = with_claim_pod((0, 10))
    assert not found.list_omissions()
    without = Cluster(found.nodes, found.pods, found.unit_mib)
    (told,) = without.list_omissions()
    assert told.startswith("ResourceClaims were not read")
    assert answer_fit(without, FitQuestion(6)).notes == (told,)
    assert explain_pod(without, "default", "w").notes == (told,)
    listed = list_waiting(without, 0.0)
    assert listed.notes == (told,)
    assert format_pods(listed).splitlines()[-1] == told
    ended = with_claim_pod((0, 10), phase="Succeeded")
    assert not Cluster(ended.nodes, ended.pods, ended.unit_mib).list_omissions()
    waits = with_claim_pod((0, 10), node="")
    assert not Cluster(waits.nodes, waits.pods, waits.unit_mib).list_omissions()


def test_top_of_a_file_without_the_claims_that_must_be_there_says_so() -> None:
    """The node's words hold a pod with a claim."""
    complete = with_claims_on_two_cards()
    found = json.loads(complete)
    found["items"] = [item for item in found["items"] if item["kind"] != "ResourceClaim"]
    assert load_nodes(complete, pods=True).claims
    assert load_nodes(json.dumps(found), pods=True).claims is None
    told = CliRunner().invoke(cli, ["top", "--pods", "-f", "-"], input=json.dumps(found)).output
    assert told.splitlines()[-1] == CLAIMS_NOT_READ


def test_the_end_of_a_pod_frees_less_compute_where_a_claim_has_the_rest_of_more_than_the_limit() -> None:
    """The limit was lowered while they ran, and the words stop at it: 60 and 60 percent of 100."""
    asks = container(units=4, resources={COMPUTE_RESOURCE: "60"})
    notes = {POD_ASSIGNED: dump_assigned({"main": ((uuid("n", 0), 4),)})}
    bound = pod_object("p", node="n", annotations=notes, containers=[asks])
    held = {"claims": {"uid-one": {0: 4}}, "claims_compute": {"uid-one": {0: 60}}}
    node = node_object("n", (16,), (8,), compute=(100,), holds=["uid-p"], **held)
    claimed = claim_object("one", (0, 4), pods=["x"], compute=60)
    items = [node | {"kind": "Node"}, bound | {"kind": "Pod"}, claimed]
    cluster = Cluster.from_json(json.dumps({"kind": "List", "items": items}))
    assert PodCardUsage(cluster).get_freed_compute(cluster.state.pods["uid-p"]) == {0: 40}
