"""What is kept of the calls that were read."""

import json
import tracemalloc

import pytest

from scheduler_plugin.cache.node_index import NodeIndex
from scheduler_plugin.errors import ProtocolError
from scheduler_plugin.extender import protocol
from scheduler_plugin.extender.protocol import CallDecoder, encode_refused
from tests.cluster_builders import node_object, pod_object

MIB = 2**20


def call(*names: str) -> bytes:
    return json.dumps(
        {"Pod": pod_object("p", 8), "Nodes": None, "NodeNames": names}, separators=(",", ":")
    ).encode()


def test_a_list_seen_before_is_not_read_again() -> None:
    decoder = CallDecoder(NodeIndex(64))
    body = call(*(f"node-{number:05d}" for number in range(3000)))
    _, first = decoder.decode(body)
    assert decoder.decode(bytes(body))[1] is first
    for length in range(3001, 3005):
        decoder.decode(call(*(f"node-{number:05d}" for number in range(length))))
    assert len(decoder.kept) == 4
    assert decoder.decode(body)[1] is not first


def test_lists_of_a_cluster_are_kept_and_longer_ones_are_not() -> None:
    decoder = CallDecoder(NodeIndex(64))
    cluster = call(*(f"ip-10-0-{number:05d}.eu-central-1.compute.internal" for number in range(15_000)))
    _, kept = decoder.decode(cluster)
    for first in "abcd":
        _, candidates = decoder.decode(call(*(f"{first}{number}" for number in range(400_000))))
        assert len(candidates.rows) == 400_000
    assert decoder.decode(cluster)[1] is kept
    assert len(decoder.kept) == 1


# With an eighth of the bound, and as few names as go beyond it: allocations that are traced are slow.
@pytest.mark.parametrize(("length", "lists"), [(12_500, 4), (37_500, 2)])
def test_what_is_kept_of_any_lists_is_bounded(
    length: int, lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_KEPT_BYTES", 4 * MIB)
    decoder = CallDecoder(NodeIndex(64))
    bodies = [call(*(f"{first}{number}" for number in range(length))) for first in range(lists)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for body in bodies:
            _, candidates = decoder.decode(body)
            encode_refused(candidates, [("no", False, range(length))])
        del candidates
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 5 * MIB


def test_whole_nodes_that_are_not_utf_8_are_refused() -> None:
    item = json.dumps(node_object("n")).encode()
    good = b'{"Pod":%b,"Nodes":{"items":[%b]}}' % (json.dumps(pod_object("p", 8)).encode(), item)
    CallDecoder(NodeIndex(64)).decode(good)
    bad = good.replace(b'"100Gi"', b'"\xff\xfe"')
    assert bad != good
    with pytest.raises(ProtocolError, match=r"not UTF-8: .*0xff.*; allowed: one JSON object") as caught:
        CallDecoder(NodeIndex(64)).decode(bad)
    assert caught.value.status == 400
