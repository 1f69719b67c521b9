"""Reclaim in random clusters, judged by what the queue admits: nobody goes in vain, and nobody too many."""

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer, ReclaimPlan
from tests.cluster_builders import in_percent
from tests.examples import examples
from tests.queue_world import QueueWorld


@dataclass(frozen=True)
class Cluster:
    """A cluster in which a and c have borrowed of what is b's, and a pod or a gang of b asks.

    Attributes:
        seed: Everything else follows from it.
        gangs: Pods of each gang that has borrowed; 0: there is none.
    """

    seed: int
    gangs: int = 0

    def build(self, *, b_borrows: bool = True) -> QueueWorld:
        """Make the world anew, always the same.

        Args:
            b_borrows: Whether b may exceed its own quota.
        """
        rng = random.Random(self.seed)
        sizes = [
            [rng.choice((16, 24, 32)) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 4))
        ]
        total = int(sum(map(sum, sizes)) * rng.choice((0.6, 0.8, 1, 1)))
        own = rng.randint(4, max(5, total // 2))
        a_own = rng.randint(0, total - own)
        quotas = {"a": a_own, "c": total - own - a_own, "b": own}
        lent = {name: rng.choice((None, 0, 6)) for name in quotas}
        queues = ", ".join(
            f"{{name: {name}, cohort: x, nominalQuota: {units}"
            f"{'' if lent[name] is None else f', lendingLimit: {min(units, lent[name] or 0)}'}"
            f"{'' if b_borrows or name != 'b' else ', borrowingLimit: 0'}}}"
            for name, units in quotas.items()
        )
        slots = "\nslots: {per: node, local: {count: 0}, free: {count: 5}}" if rng.random() < 0.2 else ""
        world = QueueWorld(
            f"queues: [{queues}]\nreclaim: evict{slots}", rng.choice(("best-fit", "least-requested"))
        )
        for number, cards in enumerate(sizes):
            world.node(f"n{number}", cards, cpu=rng.choice(("8", "64")))
        for number in range(30):
            # Of each six pods the first ones are a gang, of one queue.
            gang: dict[str, Any] = {}
            if number % 6 < self.gangs:
                gang = {"gang": f"g{number // 6}", "size": self.gangs}
            world.pod(
                f"p{number:02}",
                rng.choice((2, 3, 4, 5, 8, 12, 16)),
                queue="ac"[number // 6 % 2] if gang else rng.choice("ac"),
                created=number,
                **gang,
                spec={"priority": rng.choice((0, 0, 0, 3))},
                cpu=rng.choice(("1", "2")),
            )
        running = [member.uid for admitted in world.decide() for member in admitted.members]
        world.bind(*running)
        for uid in [uid for uid in world.objects if uid not in running]:
            world.delete(uid)
        if running and rng.random() < 0.3:
            world.delete(rng.choice(running))
        self._ask(world, rng, own)
        return world

    def _ask(self, world: QueueWorld, rng: random.Random, own: int) -> None:
        spec = {"priority": rng.choice((0, 3))}
        world.pod("older", 33, queue="b", created=400)
        form = rng.choice(("pod", "pod", "percent", "gang"))
        if form == "percent":
            percent = rng.choice((25, 50, 75, 100))
            asked = [in_percent(percent)]
            world.pod("b0", queue="b", created=500, spec=spec, containers=asked)
        elif form == "pod":
            world.pod("b0", rng.randint(1, min(own, 32)), queue="b", created=500, spec=spec)
        else:
            size = rng.randint(2, 4)
            for number in range(size):
                units = max(1, own // size - rng.randint(0, 2))
                world.pod(f"b{number}", units, queue="b", created=500, gang="g", size=size, spec=spec)

    def starts_without(self, gone: set[str]) -> bool:
        """Whether b's workload is admitted within b's own quota when these pods are gone at once.

        Where it could borrow instead, nobody is evicted: a lender gets back what is its own, and no more.
        Nor does it have what others use of their own now: their pods are made again.
        """
        world = self.build(b_borrows=False)
        config = world.queue.config
        queues = dict(config.queues)
        for name in "ac":
            idle = max(0, (queues[name].nominal_quota or 0) - world.queue.queues[name].units)
            limit = queues[name].lending_limit
            queues[name] = replace(queues[name], lending_limit=idle if limit is None else min(limit, idle))
        world.queue.configure(replace(config, queues=queues))
        for uid in gone:
            world.delete(uid)
        return "b0" in world.admitted()


def reclaimed(world: QueueWorld) -> ReclaimPlan | None:
    reclaimer = Reclaimer(world.queue)
    found = [reclaim for _ in range(3) for reclaim in reclaimer.find_plans(world.now)]
    return found[0] if found else None


@given(st.integers(0, 10**9), st.sampled_from((0, 2, 3)))
@example(760, 0)  # half of a larger card counts for more than b's own quota, and c would lend the rest
@example(136, 0)  # one of a's victims has borrowed in part only, and is made again within a's own quota
@example(2200, 0)  # a gang of several sizes, with slots: what is kept for it is on other nodes than the slot
@examples(60)
def test_who_is_evicted_lets_the_task_start_and_is_needed(seed: int, gangs: int) -> None:
    """Victims go one after the other and are made again meanwhile; one round is enough.

    Where there are slots they are not made again: slots are not kept.
    """
    cluster = Cluster(seed, gangs)
    world = cluster.build()
    if "b0" in world.admitted():
        return
    reclaim = reclaimed(world)
    if reclaim is None:
        return
    gone = {victim.uid for victim in reclaim.victims}
    priority = world.queue.queued_pods["uid-b0"].record.priority
    assert all(victim.record.priority <= priority for victim in reclaim.victims)
    # Pods of several sizes are placed one after the other, not in every way.
    asked = [pod for pod in world.queue.queued_pods.values() if pod.queue_info.queue == "b" and pod.gang]
    sizes = {pod.requirements for pod in asked}
    for group in reclaim.groups if len(sizes) <= 1 else ():
        uids = {victim.uid for victim in group.pods}
        assert not cluster.starts_without(gone - uids), f"{uids} need not go"
    went = {victim.gang for victim in reclaim.victims if victim.gang}
    running = [each for each in world.queue.queued_pods.values() if each.phase is Phase.BOUND]
    assert {each.uid for each in running if each.gang in went} <= gone, "gangs go whole"
    reclaim.reserve(world.queue)
    world.queue.update_reservations(world.now)
    admitted = []
    for number, victim in enumerate(reclaim.victims):
        assert victim.requirements is not None
        world.delete(victim.uid)
        if world.queue.config.slots is None:
            world.pod(f"again{number}", victim.requirements.units, queue=victim.queue_info.queue, created=900)
        admitted += world.admitted()
    assert "b0" in admitted


def test_it_happens_in_those_clusters() -> None:
    """Often, and with several victims."""
    victims = []
    for seed in range(60):
        world = Cluster(seed, gangs=seed % 3).build()
        if "b0" not in world.admitted() and (found := reclaimed(world)) is not None:
            victims.append(len(found.victims))
    assert len(victims) >= 10
    assert max(victims) >= 3
