"""Slots: how many pods of a type may be on a node or card, and which type borrows from which."""

import pytest

from scheduler_plugin.queue.sharing.lending import Case
from tests.queue_world import QueueWorld


def test_slots_bound_what_runs_on_a_node_and_are_lent_between_types() -> None:
    """One local and one free slot on each card."""
    world = QueueWorld("queues: [{name: a}]\nslots: {per: card, local: {count: 1}, free: {count: 1}}")
    world.node("n1", (16,))
    uids = [world.pod(f"f{i}", 1, created=i) for i in range(3)]
    releases = world.decide()
    assert [(release.task.uid, release.case) for release in releases] == [(uids[0], 2), (uids[1], 3)]
    world.bind(uids[0])
    world.delete(uids[0])
    assert world.released() == ["f2"]


@pytest.mark.parametrize(
    ("labels", "cards", "local", "free"),
    [({}, 4, 4, 0), ({"pool": "batch"}, 4, 4, 4), ({"pool": "batch"}, 3, 4, 3), ({"pool": "other"}, 1, 2, 0)],
)
def test_slots_are_of_a_share_of_the_cards_and_on_the_nodes_that_are_selected(
    labels: dict[str, str], cards: int, local: int, free: int
) -> None:
    """Half of the cards, rounded up, has two local slots each; every card of some nodes a free one."""
    world = QueueWorld(
        "queues: [{name: a}]\nslots: {per: card, local: {count: 2, shareOfCards: 50},"
        " free: {count: 1, nodeSelector: {matchLabels: {pool: batch}}}}"
    )
    world.node("n1", (16,) * cards, labels=labels)
    for number in range(20):
        world.pod(f"p{number}", 1, created=number)
    cases = [release.case for release in world.decide()]
    assert cases == [Case.FREE_FOR_FREE] * free + [Case.LOCAL_LENT_TO_FREE] * local
