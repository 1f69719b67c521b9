"""What the Node has to say, and when."""

import json

import msgspec
import pytest

from allocator.names import COMPUTE_RESOURCE, NODE_HOLDS
from allocator.packing import NodeWords
from allocator.records import CardRecord
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.publishing.node_publication import (
    LAST_REVISION,
    SETTLE_S,
    NodePublication,
    changes_since,
    differences,
    due_s,
    make_last_patch,
    make_status_patch,
    next_revision,
    publish_reason,
)
from kubeapi.objects import ObjectMeta


def inventory(*, healthy: bool = True) -> tuple[CardRecord, ...]:
    return tuple(CardRecord(f"c{i}", i, "M", 8192, None, healthy) for i in range(2))


U1 = {"u1": {0: 3}}


def wanted(
    used=(3, 0), holds=U1, sizes=(8, 8), seen=7, cards=None, limit=100, compute=(30, 0), offered=200
) -> NodePublication:
    words = NodeWords.of(1024, sizes, used, 0, limit, compute[: len(sizes)])
    return NodePublication(words, holds, cards or inventory(), seen, offered_compute=offered)


def node_saying(said: NodePublication, revision: int = 5, **extra: int) -> NodeObject:
    body = make_status_patch(said, NodeObject(metadata=metadata()), revision)
    for part in ("capacity", "allocatable"):
        body["status"][part] |= extra
    body["metadata"]["name"] = "n1"
    return msgspec.json.decode(json.dumps(body), type=NodeObject)


def metadata():
    return msgspec.json.decode('{"name":"n1"}', type=ObjectMeta)


def test_a_node_that_says_it_all_needs_nothing():
    assert publish_reason(wanted(), node_saying(wanted()), 0) is None
    assert publish_reason(wanted(seen=99), node_saying(wanted()), 7) is None


@pytest.mark.parametrize(
    ("now", "owed", "reason"),
    [
        pytest.param(wanted(used=(4, 0)), 0, "gained", id="more used"),
        pytest.param(wanted(holds={**U1, "u2": {1: 2}}), 0, "gained", id="more pods"),
        pytest.param(wanted(holds={"u1": {0: 3, 1: 1}}), 0, "gained", id="more units of a pod"),
        pytest.param(wanted(cards=inventory(healthy=False)), 0, "gained", id="other inventory"),
        pytest.param(wanted(used=(2, 0)), 0, "released", id="less used"),
        pytest.param(wanted(used=(2, 8)), 0, "released", id="less and more used"),
        pytest.param(wanted(compute=(30, 5)), 0, "gained", id="more compute used"),
        pytest.param(wanted(compute=(0, 40)), 0, "released", id="less and more compute used"),
        pytest.param(wanted(limit=200), 0, "lost", id="other limit of compute"),
        pytest.param(wanted(limit=0, compute=()), 0, "lost", id="other version"),
        pytest.param(wanted(offered=1000), 0, "lost", id="more compute offered"),
        pytest.param(wanted(offered=None), 0, "lost", id="no compute offered"),
        pytest.param(wanted(holds={}), 0, "released", id="a pod less"),
        pytest.param(wanted(), 8, "released", id="seen is owed"),
        pytest.param(wanted(sizes=(8, 4), used=(3, 0)), 0, "lost", id="other sizes"),
        pytest.param(wanted(sizes=(8, 80), used=(3, 0)), 0, "lost", id="other layout"),
    ],
)
def test_why_a_node_must_be_patched(now, owed, reason):
    assert publish_reason(now, node_saying(wanted()), owed) == reason


def test_words_or_holds_that_are_missing_are_lost():
    assert publish_reason(wanted(), NodeObject(metadata=metadata()), 0) == "lost"
    said = node_saying(wanted())
    said.metadata.annotations = {}
    assert publish_reason(wanted(), said, 0) == "lost"


def test_compute_that_a_kubelet_has_set_to_nothing_is_lost():
    """As one does that finds no checkpoint; where none is offered not even that may be left."""
    said = node_saying(wanted())
    for part in (said.status.capacity, said.status.allocatable):
        assert part is not None
        part[COMPUTE_RESOURCE] = "0"
    assert publish_reason(wanted(), said, 0) == "lost"
    assert differences(wanted(), said, 0) == [COMPUTE_RESOURCE]
    assert publish_reason(wanted(offered=None), said, 0) == "lost"
    for part in make_status_patch(wanted(offered=None), said, 6)["status"].values():
        assert part[COMPUTE_RESOURCE] is None
    assert publish_reason(wanted(offered=None), node_saying(wanted(offered=None)), 0) is None


def test_words_whose_revision_has_no_next_one_are_lost():
    assert publish_reason(wanted(), node_saying(wanted(), LAST_REVISION), 0) is None
    assert publish_reason(wanted(), node_saying(wanted(), LAST_REVISION + 1), 0) == "lost"


def test_a_seen_of_versions_still_to_come_is_taken_back():
    """After an etcd restore: a pod that vanishes later must not count as seen already."""
    said = node_saying(wanted(seen=501))
    assert publish_reason(wanted(seen=50), said, 0) == "lost"
    assert differences(wanted(seen=50), said, 0) == [NODE_HOLDS]
    assert publish_reason(wanted(seen=501), said, 0) is None


def test_holds_of_the_release_before_lack_the_units_and_are_written_anew():
    said = node_saying(wanted())
    assert said.metadata.annotations is not None
    said.metadata.annotations[NODE_HOLDS] = '{"seen":"7","uids":["u1"]}'
    assert publish_reason(wanted(), said, 0) == "gained"
    assert differences(wanted(), said, 0) == [NODE_HOLDS]


@pytest.mark.parametrize(
    ("now", "owed", "said"),
    [
        pytest.param(wanted(seen=99), 7, None, id="nothing"),
        pytest.param(wanted(used=(4, 0)), 0, "gained", id="more used"),
        pytest.param(wanted(cards=inventory(healthy=False)), 0, "gained", id="other inventory"),
        pytest.param(wanted(used=(2, 0)), 0, "released", id="less used"),
        pytest.param(wanted(compute=(30, 5)), 0, "gained", id="more compute used"),
        pytest.param(wanted(compute=(0, 0)), 0, "released", id="less compute used"),
        pytest.param(wanted(limit=200), 0, "released", id="other limit of compute"),
        pytest.param(wanted(holds={"u2": {0: 3}}), 0, "released", id="another pod"),
        pytest.param(wanted(holds={"u1": {1: 3}}), 0, "gained", id="units on another card"),
        pytest.param(wanted(seen=8), 8, "released", id="seen is owed"),
    ],
)
def test_what_is_new_since_the_last_patch(now, owed, said):
    assert changes_since(now, wanted(), owed) == said


@pytest.mark.parametrize(
    ("now", "owed", "names"),
    [
        pytest.param(wanted(seen=99), 7, [], id="nothing"),
        pytest.param(wanted(used=(4, 0)), 0, ["gpupack.io/packed-*"], id="words"),
        pytest.param(wanted(holds={}), 0, ["gpupack.io/holds"], id="holds"),
        pytest.param(wanted(), 8, ["gpupack.io/holds"], id="seen"),
        pytest.param(wanted(cards=inventory(healthy=False)), 0, ["gpupack.io/cards"], id="cards"),
    ],
)
def test_what_differs_is_named(now, owed, names):
    assert differences(now, node_saying(wanted()), owed) == names


def test_a_revision_at_its_end_and_an_empty_node_differ():
    said = node_saying(wanted(), LAST_REVISION + 1)
    assert differences(wanted(), said, 0) == ["gpupack.io/packed-revision"]
    every = ["gpupack.io/packed-*", COMPUTE_RESOURCE, "gpupack.io/holds", "gpupack.io/cards"]
    assert differences(wanted(), NodeObject(metadata=metadata()), 0) == every


def test_releases_are_due_at_once_and_gains_wait():
    for reason in ("lost", "released"):
        assert due_s(reason, 100.0, 99.0, settled=False) == 100.0
    assert due_s("gained", 100.0, 0.0, settled=True) == 100.0
    assert due_s("gained", 100.0, 99.0, settled=True) == 101.0
    assert due_s("gained", 100.0, 0.0, settled=False) == 100.0 + SETTLE_S


def test_the_patch_says_everything_at_once():
    body = make_status_patch(wanted(), NodeObject(metadata=metadata()), 6)
    assert body["status"]["capacity"] == body["status"]["allocatable"]
    assert body["status"]["capacity"] == {
        "gpupack.io/packed-layout": 2 | 4 << 4 | 2 << 10 | 1024 << 20,
        "gpupack.io/packed-size-0": 8 | 8 << 4,
        "gpupack.io/packed-used-0": 3,
        "gpupack.io/packed-compute-limit": 100,
        "gpupack.io/packed-compute-used-0": 30,
        "gpupack.io/packed-revision": 6,
        "gpupack.io/gpu-compute-percent": "200",
    }
    assert json.loads(body["metadata"]["annotations"]["gpupack.io/holds"]) == {
        "seen": "7",
        "uids": ["u1"],
        "units": [{"0": 3}],
    }
    assert len(json.loads(body["metadata"]["annotations"]["gpupack.io/cards"])) == 2


def test_words_of_more_cards_are_removed():
    said = node_saying(wanted(), **{"gpupack.io/packed-used-1": 1})
    body = make_status_patch(wanted(), said, 6)
    assert body["status"]["capacity"]["gpupack.io/packed-used-1"] is None
    assert body["status"]["capacity"]["gpupack.io/packed-used-0"] == 3


def test_no_cards_make_no_words():
    none = wanted(sizes=(), used=(), holds={}, cards=())
    assert publish_reason(none, node_saying(none), 0) is None


@pytest.mark.parametrize(
    ("previous", "on_node", "now_ms", "next_one"),
    [
        pytest.param(0, 5, 3, 6, id="node ahead"),
        pytest.param(9, 5, 3, 10, id="own ahead"),
        pytest.param(9, 5, 12, 13, id="clock ahead"),
        pytest.param(9, LAST_REVISION - 1, 12, LAST_REVISION, id="node at the last but one"),
        pytest.param(9, LAST_REVISION, 12, 13, id="node at the last"),
        pytest.param(9, LAST_REVISION + 1, 12, 13, id="node beyond the last"),
        pytest.param(LAST_REVISION, 5, 12, 13, id="own at the last"),
    ],
)
def test_revisions_grow_until_the_word_is_full(previous, on_node, now_ms, next_one):
    assert next_revision(previous, node_saying(wanted(), on_node), now_ms) == next_one


def test_a_node_without_words_starts_from_the_clock():
    assert next_revision(0, NodeObject(metadata=metadata()), 41) == 42


def test_a_last_patch_offers_nothing_and_leaves_holds_alone():
    node = node_saying(wanted(used=(3, 0), holds=U1))
    body = make_last_patch(node, 9)
    assert body is not None
    assert NODE_HOLDS not in body["metadata"]["annotations"]
    assert COMPUTE_RESOURCE not in body["status"]["capacity"], "it is offered as before"
    assert body["status"]["capacity"] == body["status"]["allocatable"]
    # As the API server merges it.
    told = json.loads(msgspec.json.encode(node))
    told["metadata"]["annotations"] |= body["metadata"]["annotations"]
    for part in ("capacity", "allocatable"):
        told["status"][part] |= body["status"][part]
    after = msgspec.json.decode(json.dumps(told), type=NodeObject)
    words = after.read_words()
    assert words is not None
    assert (words.used, words.sizes, words.revision) == ((8, 8), (8, 8), 9)
    assert words.compute_used == (100, 100)
    assert after.read_accounted_pods() == node.read_accounted_pods()
    assert [card.healthy for card in after.read_cards() or ()] == [False, False]
    # The next start has something to restore, at once.
    assert publish_reason(wanted(used=(3, 0), holds=U1), after, 0) == "released"
    assert publish_reason(wanted(used=(8, 8), holds=U1, compute=(100, 100)), after, 0) == "gained"


def test_a_node_without_words_needs_no_last_patch():
    assert make_last_patch(NodeObject(metadata=metadata()), 9) is None
    corrupt = node_saying(wanted())
    corrupt.status.capacity = {"gpupack.io/packed-layout": "7"}
    assert make_last_patch(corrupt, 9) is None
