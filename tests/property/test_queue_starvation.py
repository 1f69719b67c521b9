"""Gangs, and pods of a whole card, among small pods that keep coming: they are admitted in bounded time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pytest

from tests.queue_world import QueueWorld

KEPT_AFTER = 10
"""Seconds after which room is kept, see CONFIG."""

ASKED = 10
"""The step in which somebody comes who needs whole cards."""

RUNS = 3
"""Steps that a pod runs at most; steps are seconds."""

LONG = 12
"""The same where few of them end at a time."""

CONFIG = f"queues: [{{name: a}}, {{name: b}}]\nkeepRoomAfter: {KEPT_AFTER}s"


@dataclass
class Busy:
    """A cluster that small pods keep busy: more come than fit.

    Attributes:
        small: Units that small pods ask for, one of these.
        queues: Names of the queues that they come to.
        runs: Steps that pods run at least and at most.
        ends: When each admitted pod ends, by UID.
        admitted: Names of those that were admitted, in order.
    """

    rng: random.Random
    world: QueueWorld
    small: tuple[int, ...] = (4, 5)
    queues: str = "ab"
    runs: tuple[int, int] = (RUNS - 1, RUNS)
    ends: dict[str, int] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)

    def come(self, step: int, count: int) -> None:
        """Small pods come."""
        for _ in range(count):
            units, queue = self.rng.choice(self.small), self.rng.choice(self.queues)
            self.world.pod(f"s{self.world.version}", units, queue=queue, created=step)

    def step(self, step: int, coming: int) -> None:
        world = self.world
        world.now = step
        self.come(step, coming)
        for uid in [uid for uid, end in self.ends.items() if end <= step]:
            del self.ends[uid]
            world.delete(uid)
        world.queue.update_reservations(world.now)
        for admitted in world.decide():
            for member in admitted.members:
                world.bind(member.uid)
                self.ends[member.uid] = step + self.rng.randint(*self.runs)
                self.admitted.append(world.name(member.uid))

    def until_admitted(self, wanted: Sequence[str], within: int, coming: int) -> Iterator[int]:
        """Give each step before it is done, until all these are admitted; so long after `ASKED` at most."""
        for step in range(ASKED + within + 1):
            yield step
            self.step(step, coming)
            if set(wanted) <= set(self.admitted):
                return
        pytest.fail(f"{wanted} were not all admitted within {within} steps")

    def ask(self, names: Sequence[str], gang: str, queue: str = "a") -> None:
        """A gang of whole cards comes, or one such pod."""
        more = {"gang": gang, "size": len(names)} if len(names) > 1 else {}
        for name in names:
            self.world.pod(name, 16, queue=queue, created=ASKED, **more)


def busy(seed: int, nodes: int, config: str = CONFIG) -> Busy:
    """Nodes of two cards of 16 units."""
    rng = random.Random(seed)
    world = QueueWorld(config, rng.choice(("least-requested", "best-fit", "fragmentation")))
    for number in range(nodes):
        world.node(f"n{number}", (16, 16), cpu="100", memory="1000Gi")
    return Busy(rng, world)


@pytest.mark.parametrize(
    ("nodes", "seed"), [*((4, seed) for seed in range(4)), *((1, seed) for seed in range(5))]
)
def test_nobody_starves(nodes: int, seed: int) -> None:
    """A gang of whole cards, which are never all free by themselves; on one node a pod of such a card."""
    cluster = busy(seed, nodes)
    names = [f"g{number}" for number in range(cluster.rng.choice((2, 4, 6)) if nodes > 1 else 1)]
    counts: list[int] = []
    for step in cluster.until_admitted(names, KEPT_AFTER + RUNS + 1, coming=3 * nodes):
        if step == ASKED:
            cluster.ask(names, "G")
        counts.append(len(cluster.admitted))
        assert nodes == 1 or step < RUNS or counts[-1] > counts[-1 - RUNS], "small pods go on elsewhere"


@pytest.mark.parametrize("seed", range(2))
def test_no_gang_starves_behind_others_that_wait_long(seed: int) -> None:
    """Single pods of another queue, each of a whole card, have room kept for them one after the other.

    The gang needs all cards at once, so never while something is kept for them. Who is younger than the gang
    has nothing more kept before the gang has its room.
    """
    cluster = busy(seed, nodes=2)
    gang = [f"g{number}" for number in range(4)]
    for step in cluster.until_admitted(gang, KEPT_AFTER + 3 * (RUNS + 1), coming=4):
        if step % 2 == 0:
            cluster.world.pod(f"l{step:03}", 16, queue="b", created=step)
        if step == ASKED:
            cluster.ask(gang, "G")


@pytest.mark.parametrize("seed", range(3))
def test_two_gangs_that_need_the_same_cards_do_not_stop_each_other(seed: int) -> None:
    """Neither is given a part of what both need."""
    cluster = busy(seed, nodes=3)
    gangs = {name: [f"{name}{number}" for number in range(4)] for name in "gh"}
    for step in cluster.until_admitted([*chain(*gangs.values())], KEPT_AFTER + 3 * (RUNS + 1), coming=9):
        if step == ASKED:
            for queue, (name, pods) in zip("ab", gangs.items(), strict=True):
                cluster.ask(pods, name, queue)


QUOTAS = """queues:
- {name: a, cohort: x, nominalQuota: 64}
- {name: b, cohort: x, nominalQuota: 64}
"""


@pytest.mark.parametrize("small_of", ["ab", "b"])
@pytest.mark.parametrize("size", [1, 3])
def test_nobody_starves_for_quota(small_of: str, size: int) -> None:
    """Small pods of the same queue use its quota as soon as some is free, or those of another one borrow it.

    So quota is kept too: from younger ones of the queue, and from borrowers. Its own nobody is denied.
    """
    cluster = busy(size, nodes=8, config=f"{QUOTAS}keepRoomAfter: {KEPT_AFTER}s")
    cluster.queues, cluster.runs = small_of, (LONG // 2, LONG)
    large = [f"g{number}" for number in range(size)]
    for step in cluster.until_admitted(large, KEPT_AFTER + 2 * (LONG + 1), coming=5):
        if step == ASKED:
            for name in large:
                more = {"gang": "G", "size": size} if size > 1 else {"annotations": {"gpupack.io/cards": "2"}}
                cluster.world.pod(name, 16, queue="a", created=step, **more)
        if step < 2:
            cluster.come(step, 11)
        if step > LONG + 1:
            assert cluster.world.queue.queues["b"].units >= 64 - 16, "its own is used"
    assert "G" not in str(cluster.world.queue.queues.reserved_quota), "nothing more is kept for it"
