"""The own Node and its pods as reflectors deliver them."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from allocator.ledger import CheckpointEntry, Ledger, charges
from allocator.names import COMPUTE_RESOURCE, NODE_CARDS, NODE_CORDON, NODE_HOLDS
from allocator.packing import Layout, NodeWords, node_resources
from allocator.records import CardRecord, dump_cards
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, PodObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.dra.claims import ClaimShare
from deviceplugin.dra.prepared_claims import PreparedClaim, PreparedClaims
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.publishing.annotator import list_allocations
from kubeapi.errors import Unreachable
from kubeapi.objects import MIRROR_ANNOTATION
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE as GIB
from tests.ledger_world import cards, ids


def account() -> LedgerService:
    return LedgerService(Ledger(cards(8, 8)), FakeCheckpoint().read, GIB)


def pods(of: LedgerService, relist: Callable[[], None] = lambda: None) -> OwnPods:
    return OwnPods(of, GIB, relist)


def pod(
    uid: str,
    version: int,
    *,
    units: int = 3,
    compute: int = 0,
    phase: str = "Pending",
    claims: Sequence[str] = (),
    **annotations: str,
) -> PodObject:
    limits = {GIB: units} | ({COMPUTE_RESOURCE: compute} if compute else {})
    manifest = {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": str(version),
            "annotations": annotations,
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            "resourceClaims": [{"name": name} for name in claims],
        },
        "status": {"phase": phase},
    }
    return msgspec.json.decode(json.dumps(manifest), type=PodObject)


def node(version: int, **annotations: str) -> NodeObject:
    words = node_resources(NodeWords(layout=Layout(4, 2, 1024), sizes=(8, 8), used=(5, 2), revision=5))
    manifest = {
        "metadata": {"name": "n1", "resourceVersion": str(version), "annotations": annotations},
        "status": {"capacity": words, "allocatable": words},
    }
    return msgspec.json.decode(json.dumps(manifest), type=NodeObject)


def test_what_is_wrong_with_a_pod_is_logged_once() -> None:
    """Lists are asked for again and again, and kubelets write a pod's status as often."""
    of = pods(account())
    with capture_logs() as logs:
        for version in (1, 2, 3):
            item = pod("a", version, **{"gpupack.io/cards": "x"})
            of.replace([item], str(version))
            of.event("MODIFIED", item, str(version))
    assert [entry["pod"] for entry in logs if entry["log_level"] == "warning"] == ["ns/pod-a"]


def test_a_pod_that_also_has_claims_is_accounted_once_the_claim_of_its_limits_is_prepared() -> None:
    """Until then the scheduler counts its limits: a claim that is there says nothing of them."""
    prepared = PreparedClaims(Path("unused"), GIB)
    of = LedgerService(Ledger(cards(8, 8)), prepared.read, GIB)
    view = OwnPods(of, GIB, lambda: None, prepared.read_request, prepared.awaits_claim)
    view.replace([pod("a", 4, claims=["c"])], "5")

    def prepare(name: str, ids_: Collection[str], *, is_for_limits: bool) -> dict[str, dict[int, int]]:
        mine = {"main": list(ids_)}
        prepared.add(PreparedClaim(name, "ns", name, "a", "pod-a", mine, (), is_for_limits))
        of.read_checkpoint()
        view.claims_changed("a")
        return of.ledger.published_holds()

    assert prepare("c", ids("c0", 0, 1), is_for_limits=False) == {}
    assert of.ledger.used() == (2, 0)
    assert prepare("of-a", ids("c1", 0, 1, 2), is_for_limits=True) == {"a": {0: 2, 1: 3}}

    prepared.remove("of-a")
    prepared.remove("c")
    of.read_checkpoint()
    view.event("MODIFIED", pod("a", 6, claims=["c"]), "6")
    assert of.ledger.published_holds() == {"a": {0: 2, 1: 3}}, "let go, and not ended yet"


@pytest.mark.parametrize("card", [0, 1], ids=["the claim's card", "another card"])
def test_compute_of_limits_counts_beside_a_claim_where_an_older_extender_wrote_none(card: int) -> None:
    prepared = PreparedClaims(Path("unused"), GIB)
    of = LedgerService(Ledger(cards(8, 8)), prepared.read, GIB)
    view = OwnPods(of, GIB, lambda: None, prepared.read_request, prepared.awaits_claim)

    def prepare(name: str, card: int, compute: int, *, is_for_limits: bool = False) -> tuple[int, ...]:
        mine = {"main": sorted(ids(f"c{card}", *(range(4, 7) if is_for_limits else range(2))))}
        share = ClaimShare("", "", f"c{card}", len(mine["main"]), "", compute)
        prepared.add(PreparedClaim(name, "ns", name, "a", "pod-a", mine, (share,), is_for_limits))
        of.read_checkpoint()
        return used()

    def used() -> tuple[int, ...]:
        return of.ledger.make_words(1024).compute_used

    assert prepare("c", 0, 50) == (50, 0)
    assert prepare("of-a", card, 0, is_for_limits=True) == ((100, 0), (50, 100))[card], "nobody says how much"
    view.replace([pod("a", 4, compute=30, claims=["c"])], "5")
    assert used() == ((80, 0), (50, 30))[card]
    prepared.remove("c")
    of.read_checkpoint()
    assert used() == ((80, 0), (50, 30))[card], "let go, and not ended yet"


def test_what_holds_containers_hears_of_the_compute_of_claims_beside_that_of_limits() -> None:
    prepared = PreparedClaims(Path("unused"), GIB)
    of = LedgerService(Ledger(cards(8, 8)), prepared.read, GIB)
    view = OwnPods(of, GIB, lambda: None, prepared.read_request, prepared.awaits_claim)
    granted = GrantedMemory(of, 1024, view.find_claims)
    assert granted.asked_compute("a") == {}
    for name, container, card, compute in (("of-a", "main", 0, 30), ("c", "side", 1, 50)):
        mine = {container: sorted(ids(f"c{card}", *range(4)))}
        share = ClaimShare("", "", f"c{card}", 4, "", compute)
        prepared.add(PreparedClaim(name, "ns", name, "a", "pod-a", mine, (share,), name == "of-a"))
    of.read_checkpoint()
    view.replace([pod("a", 4, compute=30, claims=["c"])], "5")
    assert granted.asked_compute("a") == {"main": 30, "side": 50}


def test_pods_come_by_list_and_by_events():
    of = account()
    view = pods(of)
    view.replace([pod("a", 4), pod("free", 5, units=0)], "7")
    assert (view.seen_version, view.owed_version, view.is_connected) == (7, 0, True)
    view.event("ADDED", pod("b", 8), "8")
    assert of.ledger.unpublished_pods() == {"a", "b"}
    assert set(view.pods_by_uid) == {"a", "b"}
    view.event("MODIFIED", pod("free", 9, units=0), "9")
    view.bookmark("12")
    assert view.seen_version == 12


def test_the_living_are_all_pods_that_have_not_ended_as_the_kubelet_knows_them():
    of = account()
    view = pods(of)
    assert view.living_uids is None
    mirror = pod("b", 5, units=0, **{"kubernetes.io/config.mirror": "static"})
    view.replace([pod("a", 4, units=0), mirror, pod("done", 6, phase="Succeeded")], "7")
    assert view.living_uids == {"a", "static"}
    view.event("ADDED", pod("c", 8, units=0), "8")
    view.event("MODIFIED", pod("a", 9, units=0, phase="Failed"), "9")
    view.event("DELETED", mirror, "10")
    assert view.living_uids == {"c"}


@pytest.mark.parametrize("static", [{}, {MIRROR_ANNOTATION: "hash"}])
def test_a_pod_that_vanishes_unheld_is_owed(static):
    of = account()
    view = pods(of)
    view.replace([pod("a", 4, **static), pod("b", 5)], "7")
    view.event("DELETED", pod("a", 9, **static), "9")
    assert view.owed_version == 9
    view.event("MODIFIED", pod("b", 11, phase="Failed"), "11")
    assert view.owed_version == 11
    view.event("DELETED", pod("b", 12, phase="Failed"), "12")
    assert view.owed_version == 11
    assert view.pods_by_uid == {}


@pytest.mark.parametrize("held", [False, True])
def test_a_pod_that_vanishes_before_the_node_said_that_it_has_it_is_owed(held):
    """Its IDs are known by then, and its gain would have been published a moment later."""
    of = account()
    own = OwnNode(of, "n1", 1024)
    own.replace(
        [node(3, **{NODE_HOLDS: '{"seen":"1","uids":["a"]}' if held else '{"seen":"1","uids":[]}'})], "3"
    )
    view = OwnPods(of, GIB, lambda: None, holds_pod=own.holds_pod)
    view.replace([pod("a", 4)], "7")
    of.ledger.apply_checkpoint([CheckpointEntry("a", "main", GIB, ids("c0", 0, 1, 2))], 0.0)
    assert of.ledger.unpublished_pods() == frozenset()
    view.event("DELETED", pod("a", 9), "9")
    assert view.owed_version == (0 if held else 9)


def test_a_list_after_a_disconnection_owes_what_may_have_happened_unseen():
    view = pods(account())
    view.disconnected(Unreachable("not there yet"))
    view.replace([], "7")
    assert view.owed_version == 0
    view.replace([], "9")
    assert view.owed_version == 0
    view.disconnected(Unreachable("gone"))
    view.replace([], "11")
    assert view.owed_version == 11
    view.replace([], "12")
    assert view.owed_version == 11


def test_a_list_is_asked_for_once_until_it_came_or_failed():
    of = account()
    asked: list[str] = []
    view = pods(of, lambda: asked.append("list"))
    view.replace([], "7")
    view.request_list()
    view.request_list()
    assert asked == ["list"]
    view.replace([], "8")
    view.request_list()
    assert asked == ["list", "list"]
    view.disconnected(Unreachable("gone"))
    assert not view.is_connected
    view.request_list()
    assert asked == ["list", "list", "list"]


def test_a_list_that_is_asked_for_begins_now():
    of = account()
    view = pods(of)
    view.replace([], "7")
    of.ledger.apply_checkpoint([CheckpointEntry("a", "main", GIB, ids("c0", 0))], 0.0)
    view.request_list()
    view.replace([], "8")
    assert not of.ledger.accounts.has_unlisted_pods


def test_after_an_etcd_restore_seen_goes_back_with_the_list():
    """A complete list of another history: a `seen` from before it would be waited for in vain."""
    view = pods(account())
    view.replace([pod("a", 400)], "500")
    view.event("DELETED", pod("a", 501), "501")
    assert (view.seen_version, view.owed_version) == (501, 501)
    view.disconnected(Unreachable("restored"))
    view.replace([pod("a", 40)], "50")
    assert (view.seen_version, view.owed_version) == (50, 50)
    view.bookmark("60")
    assert view.seen_version == 60


def test_what_is_owed_never_lies_beyond_what_was_seen():
    view = pods(account())
    view.replace([pod("a", 400)], "500")
    view.event("DELETED", pod("a", 501), "501")
    view.replace([], "50")
    assert (view.seen_version, view.owed_version) == (50, 50)


def test_static_pods_are_known_by_the_uid_that_the_kubelet_uses():
    of = account()
    view = pods(of)
    view.replace([pod("a", 4, **{MIRROR_ANNOTATION: "hash"}), pod("b", 5)], "7")
    assert of.ledger.pods_to_probe() == {"hash", "b"}
    of.ledger.apply_checkpoint([CheckpointEntry("hash", "main", GIB, ids("c0", 0, 1, 2))], 0.0)
    assert charges.charge_published_pods(of.ledger.accounts) == {"a": {"c0": 3}}
    assert set(list_allocations(of.ledger.accounts)) == {"a"}


def test_a_pod_that_cannot_be_read_harms_nobody():
    of = account()
    view = pods(of)
    bad = pod("bad", 4)
    bad.spec.containers[0].resources.limits = {GIB: "1500m"}
    view.replace([bad, pod("a", 5)], "7")
    view.event("MODIFIED", bad, "8")
    assert of.ledger.unpublished_pods() == {"a"}
    assert view.seen_version == 8


def test_what_the_node_said_before_is_remembered_once():
    inventory = dump_cards([CardRecord(f"c{i}", i, "M", 8192, None, healthy=True) for i in (1, 0)])
    notes = {NODE_HOLDS: '{"seen":"1","uids":["ghost"],"units":[{"0":2,"1":5}]}', NODE_CARDS: inventory}
    of = account()
    view = OwnNode(of, "n1", 1024)
    assert not view.listed.is_set()
    view.replace([node(3, **notes)], "3")
    assert view.listed.is_set()
    # The words were written in another order of the cards.
    assert of.ledger.allocated_units() == {"c0": 5, "c1": 2}
    view.replace([node(4, **{NODE_HOLDS: '{"seen":"1","uids":[]}', NODE_CARDS: inventory})], "4")
    assert of.ledger.allocated_units() == {"c0": 5, "c1": 2}


@pytest.mark.parametrize(("unit_mib", "counted"), [(512, (10, 4)), (1024, (5, 2)), (2048, (3, 1))])
def test_holds_of_another_unit_count_rounded_up(unit_mib: int, counted: tuple[int, int]) -> None:
    """The pod may run on, and the kubelet have lost the checkpoint that says so."""
    inventory = dump_cards([CardRecord(f"c{i}", i, "M", 8192, None, healthy=True) for i in range(2)])
    notes = {NODE_HOLDS: '{"seen":"1","uids":["a"],"units":[{"0":5,"1":2}]}', NODE_CARDS: inventory}
    of = LedgerService(Ledger(cards(16, 16)), FakeCheckpoint().read, GIB)
    OwnNode(of, "n1", unit_mib).replace([node(3, **notes)], "3")
    pods(of).replace([], "7")
    assert of.ledger.used() == counted


@pytest.mark.parametrize(
    "units",
    [
        pytest.param("", id="an older version"),
        pytest.param(',"units":[{"2":3}]', id="a card that the inventory lacks"),
    ],
)
def test_holds_that_do_not_say_where_charge_every_card_until_the_pod_is_known(units):
    """Whatever it held is not given away, whichever card it was on."""
    inventory = dump_cards([CardRecord(f"c{i}", i, "M", 8192, None, healthy=True) for i in range(2)])
    of = account()
    notes = {NODE_HOLDS: f'{{"seen":"1","uids":["a"]{units}}}', NODE_CARDS: inventory}
    OwnNode(of, "n1", 1024).replace([node(3, **notes)], "3")
    of.ledger.apply_checkpoint([], 0.0)
    assert of.ledger.used() == (8, 8)
    of.ledger.apply_checkpoint([CheckpointEntry("a", "main", GIB, ids("c0", 0, 1, 2))], 0.0)
    pods(of).replace([pod("a", 4)], "7")
    assert of.ledger.used() == (3, 0)
    assert charges.charge_published_pods(of.ledger.accounts) == {"a": {"c0": 3}}


def test_holds_that_cannot_be_read_are_not_remembered():
    of = account()
    with capture_logs() as logs:
        OwnNode(of, "n1", 1024).replace([node(3, **{NODE_HOLDS: "rubbish"})], "3")
    assert of.ledger.allocated_units() == {"c0": 0, "c1": 0}
    assert [(line["log_level"], NODE_HOLDS in line["error"]) for line in logs] == [("warning", True)]


def test_a_node_that_is_not_there_comes_and_goes():
    view = OwnNode(account(), "n1", 1024)
    view.replace([], "1")
    assert view.node is None
    view.event("ADDED", node(4), "4")
    assert view.node is not None
    view.bookmark("5")
    view.disconnected(Unreachable("gone"))
    assert view.node is not None
    view.event("DELETED", node(6), "6")
    assert view.node is None


def test_a_node_name_that_no_node_has_is_told_once_until_one_has_it():
    view = OwnNode(account(), "n1.example", 1024)
    assert not view.is_missing
    with capture_logs() as logs:
        for version in "12":
            view.replace([], version)
        assert view.is_missing
        view.event("ADDED", node(4), "4")
        assert not view.is_missing
        assert len(logs) == 1
        view.event("DELETED", node(6), "6")
    assert view.is_missing
    assert [(line["log_level"], line["node_name"]) for line in logs] == [("warning", "n1.example")] * 2


def test_an_older_state_of_the_node_is_ignored():
    view = OwnNode(account(), "n1", 1024)
    view.apply_node(node(9))
    view.apply_node(node(8))
    assert view.node is not None
    assert view.node.metadata.version == 9


def test_the_cordon_is_followed_and_stays_when_it_cannot_be_read():
    of = account()
    view = OwnNode(of, "n1", 1024)
    view.apply_node(node(1, **{NODE_CORDON: "c1"}))
    assert of.ledger.used() == (0, 8)
    for version in (2, 3):
        view.apply_node(node(version, **{NODE_CORDON: "no:uuid"}))
        assert of.ledger.used() == (0, 8)
    view.apply_node(node(4))
    assert of.ledger.used() == (0, 0)


def test_a_cordon_of_a_card_is_one_of_its_instances():
    """Whoever cordoned the card before it was partitioned had the instances in mind, too."""
    of, told = account(), []
    view = OwnNode(of, "n1", 1024, told.append, lambda: {"c0": "GPU-a", "c1": "GPU-b"})
    view.apply_node(node(1, **{NODE_CORDON: "GPU-a,c1"}))
    assert of.ledger.used() == (8, 8)
    view.apply_node(node(2, **{NODE_CORDON: "GPU-a"}))
    assert of.ledger.used() == (8, 0)
    assert (view.unknown_cordoned, told) == ((), [])


def test_a_cordon_of_what_the_node_does_not_have_is_told_once():
    of, told = account(), []
    view = OwnNode(of, "n1", 1024, told.append)
    with capture_logs() as logs:
        for version in (1, 2):
            view.apply_node(node(version, **{NODE_CORDON: "c1,c7, c9"}))
    assert of.ledger.used() == (0, 8)
    assert view.unknown_cordoned == ("c7", "c9")
    (problem,) = told
    assert problem == ('annotation gpupack.io/cordon holds "c7, c9", no card of this node; allowed: "c0, c1"')
    assert [(each["log_level"], each["error"]) for each in logs] == [("warning", problem)]
    view.apply_node(node(3, **{NODE_CORDON: "c1"}))
    assert view.unknown_cordoned == ()
    view.apply_node(node(4, **{NODE_CORDON: "c1,c7"}))
    assert len(told) == 2
    view.apply_node(node(5, **{NODE_CORDON: "no:uuid"}))
    assert '"no:uuid"; allowed: a comma list of card UUIDs' in told[2]
