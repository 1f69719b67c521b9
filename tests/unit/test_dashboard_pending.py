"""The dashboard's Pending view: pods that wait in the queue are told what the queue says of them."""

import asyncio
import json

import msgspec
import pytest

from allocator.names import QUEUE_GATE
from gpupack.dashboard import advice, queues
from gpupack.dashboard.board import ClusterBoard
from kubeapi import objects
from kubeapi.errors import NotFound, ServerError
from kubeapi.objects import PodGroup
from scheduler_plugin.cache.gang_names import GROUP_LABELS
from scheduler_plugin.queue.controller.status import WaitExplanation, WaitReason
from tests.ask_world import Node, Pod, World

NOBODY = WaitExplanation(
    "default", "p", "nobody", 0, WaitReason.REFUSED, 'queue "nobody" does not exist; allowed: a', 3.0
)


def board_of(world, gates=(QUEUE_GATE,)):
    board = ClusterBoard()
    board.replace_nodes([msgspec.convert(node.object(world.pods), objects.Node) for node in world.nodes])
    for pod in world.pods:
        made = json.loads(json.dumps(pod.object()))
        made["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        board.put_pod(msgspec.convert(made, objects.Pod))
    return board


def explained(board):
    cluster = board.get_cluster()
    return list(advice.explain_pods(cluster, advice.list_waiting_pods(cluster), board.find_queued))


def shown(board):
    return [each.text for each in explained(board)]


WORLD = World((Node("n1"),), (Pod("p", 8),))


def test_a_pod_whose_queue_does_not_exist_is_not_told_that_a_node_would_take_it():
    board = board_of(WORLD)
    assert board.set_queued([NOBODY])
    (text,) = shown(board)
    assert text.endswith('; the queue says Refused: queue "nobody" does not exist; allowed: a')
    assert "n1" not in text


@pytest.mark.parametrize("queued", [None, ()], ids=["no-answer", "not-there-yet"])
def test_where_the_queue_says_nothing_a_node_takes_it_only_once_it_is_released(queued):
    board = board_of(WORLD)
    board.set_queued(queued)
    (text,) = shown(board)
    assert text.endswith("node n1 would take it once it is admitted")
    assert board.find_queued("default", "p") == queued


def test_another_gate_is_not_the_queues():
    board = board_of(WORLD, gates=("example.org/other",))
    board.set_queued([NOBODY])
    (text,) = shown(board)
    assert "the queue says" not in text


def test_only_what_the_queue_says_is_news_not_how_long_pods_wait():
    board = ClusterBoard()
    assert not board.set_queued(None)
    assert board.set_queued([NOBODY])
    assert not board.set_queued([msgspec.structs.replace(NOBODY, waits_s=9.0)])
    assert board.set_queued([msgspec.structs.replace(NOBODY, message="it needs 8 units")])
    assert board.set_queued([msgspec.structs.replace(NOBODY, message="it needs 8 units", reason="NoRoom")])
    assert board.set_queued(None)


def grouped(name):
    return Pod(name, 12, labels=((GROUP_LABELS[0], "train"),))


def pod_group(size):
    raw = {"metadata": {"name": "train", "namespace": "default"}, "spec": {"minMember": size}}
    return msgspec.convert(raw, PodGroup)


def test_gangs_are_shown_and_asked_about_together():
    board = board_of(World((Node("n1", (16, 16)),), (grouped("g0"), grouped("g1"))), gates=())
    assert board.coscheduling_groups.is_wanted
    assert [pod.gang for pod in explained(board)] == ["", ""]
    board.coscheduling_groups.replace_groups([pod_group(3)])
    assert [(pod.gang, pod.state) for pod in explained(board)] == [("train (3)", "pending")] * 2
    board.coscheduling_groups.put_group(pod_group(2))
    assert [(pod.gang, pod.state) for pod in explained(board)] == [("train (2)", "fits")] * 2
    board.coscheduling_groups.delete_group(pod_group(2).key)  # its size counts while a pod names it
    assert [pod.gang for pod in explained(board)] == ["train (2)"] * 2


def test_where_pod_groups_cannot_be_read_the_pods_say_so():
    board = board_of(World((Node("n1", (16, 16)),), (grouped("g0"),)), gates=())
    board.coscheduling_groups.set_fault("Forbidden")
    (pod,) = explained(board)
    assert [note for note in pod.notes if "PodGroups" in note] == [
        'PodGroups cannot be read (Forbidden): how many pods of gang "train" start together is not known'
    ]
    board.coscheduling_groups.set_fault("")
    assert "PodGroups" not in str(explained(board))


def test_a_list_of_pods_forgets_the_groups_of_those_that_are_gone():
    board = board_of(World((Node("n1", (16, 16)),), (grouped("g0"),)), gates=())
    board.coscheduling_groups.replace_groups([pod_group(2)])
    board.replace_pods([])
    board.coscheduling_groups.delete_group(pod_group(2).key)
    board.put_pod(msgspec.convert({**grouped("g1").object()}, objects.Pod))
    assert [pod.gang for pod in explained(board)] == [""]


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [(ServerError("no leader"), queues.EVERY_S), (NotFound("no Service"), queues.AWAY_S)],
)
async def test_a_queue_that_does_not_answer_is_asked_again_soon(error, pause_s):
    """For a minute after a change of its leader no pod was told what its queue says."""
    slept = []

    async def ask():
        raise error

    async def sleep(seconds):
        slept.append(seconds)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await queues.poll_queue(ask, lambda _shown: None, lambda _pods: None, sleep)
    assert slept == [pause_s]
