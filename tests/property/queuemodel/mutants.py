"""Rules of the queue taken out one at a time: some history must break that passes with the rule."""

from scheduler_plugin.queue.controller import controller, explainer
from scheduler_plugin.queue.scheduler import admission, gangs, queue, reclaim, requeue, reservation_delay
from tests.property.undercount.mutant import Mutant

from . import simulation


def mixed(seed: int) -> None:
    simulation.run("mixed", seed)


def reclaims(seed: int) -> None:
    simulation.run("reclaim", seed)


def refused(seed: int) -> None:
    simulation.run("refused", seed)


def of_gangs(seed: int) -> None:
    simulation.run("gangs", seed)


def under_load(seed: int) -> None:
    simulation.run("load", seed)


MUTANTS = (
    Mutant(
        "reclaim: quota is topped up where room needs fewer victims",
        reclaim,
        "            victims = self._with_quota(room, victims)\n",
        "            pass\n",
        reclaims,
        1001,
    ),
    Mutant(
        "reclaim: who can never run does not hold up those behind it",
        reclaim,
        "return tasks[:1] if strict else tasks",
        "return tasks[:1]",
        reclaims,
        1027,
    ),
    Mutant(
        "reclaim: nobody is left out without whom the others are not enough",
        reclaim,
        "            if self._is_enough(room, fewer):\n                kept = fewer\n",
        "            if fewer:\n                kept = fewer\n",
        reclaims,
        1003,
    ),
    Mutant(
        "a release that finds no node is requeued",
        requeue,
        "            if not self._requeues.pauses(entry.uid):",
        "            if False:",
        refused,
        1018,
    ),
    Mutant(
        "who is requeued waits in its queue",
        queue,
        "            if requeued or entry.phase is Phase.BOUND:",
        "            if entry.phase is Phase.BOUND:",
        under_load,
        9,
    ),
    Mutant(
        "the rest of a gang joins it",
        gangs,
        "goes = goes and (len(gang.ready) == size or self._may_join(gang, entries, released))",
        "goes = goes and len(gang.ready) == size",
        of_gangs,
        1001,
    ),
    Mutant(
        "how long a pod has run the queue has seen, whatever its node's clock says",
        queue,
        "            phase = self._moved(entry, ticket, phase, now)\n",
        """            phase = self._moved(entry, ticket, phase, now)
            if record.node:
                entry.bound = min(entry.bound, record.started_at - (self._ages._wall or 0.0))
""",
        under_load,
        0,
    ),
    Mutant(
        "room is kept for who waits long",
        reservation_delay,
        "        limit = now - config.keep_room_after_s\n",
        "        limit = -1e9\n",
        under_load,
        1000,
    ),
    Mutant(
        "while nothing changes little is decided",
        controller,
        "if not self._is_idle or self._clock() >= next_look:",
        "if True:",
        mixed,
        0,
    ),
    Mutant(
        "while nothing changes reasons are found out rarely",
        explainer,
        "every = now >= self._next_s and (self._changed or now - self._began_s >= UNCHANGED_S)",
        "every = True",
        reclaims,
        1,
    ),
    Mutant(
        "quotas are asked before a release",
        admission,
        "return self._admission.tenants.allows(tenant, least, group.oldest().uid)",
        "return True",
        reclaims,
        0,
    ),
    Mutant(
        "who is gone counts no more",
        queue,
        "        self._give_back(entry, now)\n        self._let_go(entry)\n        self.alike.leave(entry)\n",
        "        self._give_back(entry, now)\n        self.alike.leave(entry)\n",
        mixed,
        0,
    ),
)
