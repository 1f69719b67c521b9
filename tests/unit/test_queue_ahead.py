"""Placing ahead with shared lists: the decisions of scoring all nodes for each pod."""

import random

import pytest

from scheduler_plugin.queue import ahead
from tests.queue_world import QueueWorld

UNITS = (4, 8, 10, 20, 40, 80)


def world(seed: int, policy: str) -> QueueWorld:
    """A random cluster, and pods of a few shapes that wait."""
    rng = random.Random(seed)
    made = QueueWorld(policy=policy)
    for number in range(40):
        made.node(f"n{number:02}", (80,) * 4, [rng.choice((0, 0, 10, 40, 76)) for _ in range(4)])
    for number in range(300):
        made.pod(f"p{number:03}", rng.choice(UNITS), annotations=rng.choice(({}, {"gpupack.io/cards": "2"})))
    return made


def placed(made: QueueWorld, seed: int) -> list[tuple[str, str]]:
    """Where every pod goes, while other pods end and nodes change."""
    rng = random.Random(-seed)
    found: list[tuple[str, str]] = []
    for at, release in enumerate(made.queue.decide(0.0)):
        found += [(member.uid, member.node) for member in release.members]
        if at % 7 == 0:
            take = made.state.taken(rng.choice(found)[0])
            if take is not None:
                made.state.roll_back(take, 0.0)
        if at % 31 == 0:
            made.node(f"n{rng.randrange(42):02}", (80,) * 4, [rng.choice((0, 40, 76)) for _ in range(4)])
    return found


@pytest.mark.parametrize("policy", [*sorted(ahead.BY_ROW), "weighted-balance"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_one_by_one(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = world(seed, policy)
    with_lists = placed(shared, seed)
    assert len(with_lists) > 100
    lists = shared.queue.admission.ahead.lists
    assert lists < len(with_lists) / 2 if policy in ahead.BY_ROW else lists == 0
    monkeypatch.setattr(ahead, "BY_ROW", frozenset())
    assert with_lists == placed(world(seed, policy), seed)
