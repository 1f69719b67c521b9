"""Pods of a gang are placed and bound the hardest first: the easy ones fit beside them."""

from scheduler_plugin.binding.batch_protocol import CommitOutcome
from scheduler_plugin.queue.controller.batch_handover import Handover
from tests.queue_world import QueueWorld
from tests.unit.test_queue_batch_binding import Committer, batch_pod

GANG = {"easy0": 4, "hard": 16, "easy1": 4}
"""Units by pod, in the order of their creation."""


def gang_world() -> QueueWorld:
    """Room for all three where the hard one has the large card; a policy that gives it to the first one."""
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", "least-requested")
    world.queue.batch.enabled = True
    for name, card in (("large", 16), ("small", 8)):
        world.node(name, (card,), allocatable_units=card)
    for name, units in GANG.items():
        batch_pod(world, name, units, gang="g", size=3)
    return world


async def test_a_gang_goes_to_the_committer_the_hardest_pod_first() -> None:
    world = gang_world()
    client = Committer(CommitOutcome.BOUND)
    handover = Handover(world.queue, client)
    (release,) = world.queue.admit_workloads(0)
    handover.record_candidates(release)
    handed, _ = handover.split_admission(release)
    await handover.commit_groups([handed])
    assert [pod.name for pod in client.calls[0].groups[0]] == ["hard", "easy0", "easy1"]
    assert [pod.nodes[0] for pod in client.calls[0].groups[0]] == ["large", "small", "small"]
