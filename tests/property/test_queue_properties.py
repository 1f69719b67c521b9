"""The queue in random histories: what is admitted fits, nothing idles, shares are fair."""

import random
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from allocator.place import place
from allocator.records import charge
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements
from scheduler_plugin.queue.scheduler.admission import AdmittedWorkload
from tests.examples import examples
from tests.queue_world import QueueWorld

RACK = "topology.kubernetes.io/rack"
SLOTS = "slots: {per: %s, local: {count: %d}, free: {count: 1}}"
CONFIGS = (
    "queues: [{name: a, weight: 2}, {name: b}, {name: c, weight: 0.5}]",
    """queues:
    - {name: a, cohort: x, nominalQuota: 20}
    - {name: b, cohort: x, nominalQuota: 20, lendingLimit: 8}
    - {name: c, nominalQuota: 10}
    """,
    "queues: [{name: a, queueingStrategy: StrictFIFO}, {name: b}, {name: c, nominalQuota: 12}]",
    "queues: [{name: a, weight: 2}, {name: b}, {name: c}]\n" + SLOTS % ("card", 1),
    "queues: [{name: a}, {name: b}, {name: c}]\n" + SLOTS % ("node", 3),
)
KEEPS = "\nkeepRoomAfter: 5s"
"""Also in every second history: room is kept for what waits long, pods and gangs."""


class History(QueueWorld):
    """A random history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.slots = False
        config = self.random.choice(CONFIGS) + self.random.choice(("", KEEPS))
        super().__init__(config, self.random.choice(("least-requested", "best-fit", "fragmentation")))
        self.slots = self.queue.config.slots is not None
        self.nodes: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {}
        for number in range(self.random.randint(1, 4)):
            labels = {RACK: self.random.choice("xy")} if self.random.random() < 0.7 else {}
            if self.random.random() < 0.5:
                labels[f"data.gpupack.io/{self.random.choice('de')}"] = ""
            sizes = self.random.choice(((16,), (16, 16), (8, 8, 8), (12, 16)))
            self.nodes[f"n{number}"] = (sizes, labels)
            self._set_node(f"n{number}")
        self.count = 0
        self.kept_for_gangs = 0

    def run(self) -> "History":
        """Let much happen; see `check`."""
        for _ in range(40):
            self.step()
            self.check()
        return self

    def step(self) -> None:
        """Let something happen, then decide."""
        self.now += 1
        happens = (
            self._pods,
            self._pods,
            self._gang,
            self._bind,
            self._bind,
            self._end,
            self._end,
            self._lose,
            self._change_node,
        )
        self.random.choice(happens)()
        self.queue.find_requeues(self.now)
        self.kept_for_gangs += sum(bool(pod.gang) for pod, _ in self.queue.update_reservations(self.now))
        self._decide()

    def _gang(self) -> None:
        self._pods(self.random.choice((2, 3)), gang=f"g{self.count}")

    def _bind(self) -> None:
        for uid in self._in(Phase.ADMITTED):
            if self.state.get_assumed(uid) is not None:
                self.bind(uid)

    def _end(self) -> None:
        candidates = self._in(Phase.BOUND) or list(self.objects)
        if candidates:
            self.delete(self.random.choice(candidates))

    def _lose(self) -> None:
        """kube-scheduler finds no node for an admitted pod; who made it deletes it later."""
        for uid in self._in(Phase.ADMITTED)[:1]:
            if self.queue.queued_pods[uid].capacity_freed:
                self.delete(uid)
                return
            failed = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
            self.change(uid, status={"conditions": failed})

    def _change_node(self) -> None:
        self._set_node(self.random.choice(list(self.nodes)), unschedulable=self.random.random() < 0.3)

    def _set_node(self, name: str, *, unschedulable: bool = False) -> None:
        sizes, labels = self.nodes[name]
        spec = {"unschedulable": unschedulable}
        self.node(name, sizes, labels=labels, spec=spec, cpu="100", memory="1000Gi")

    def check(self) -> None:
        """What holds after every step."""
        for uid in self.queue.capacity.reservations.workload_uids:
            (workload,) = (
                workload for queue in self.queue.queues for workload in queue.waiting if workload.uid == uid
            )
            members = {pod for pod, _ in self.queue.quota_usage.list_members(workload.requirements, uid)}
            assert self.queue.capacity.reservations.get_by_pod(uid).keys() == members, (
                f"room is kept for all of {uid} or none"
            )
        for name, record in self.state.node_records.items():
            taken = [0] * len(record.sizes)
            pods = [(pod.charged, pod.assigned) for pod in record.pods.values()]
            pods += [(assumed.pod.charged, assumed.assigned) for assumed in record.assumed.values()]
            for asked, assigned in pods:
                assert asked is not None
                assert assigned is not None
                for uuid, units in charge(asked, assigned).items():
                    taken[record.uuids.index(uuid)] += units
            assert all(n <= size for n, size in zip(taken, record.sizes, strict=True)), f"{name}: {taken}"
        ungated: dict[str, int] = {queue.name: 0 for queue in self.queue.queues}
        for queued_pod in self.queue.queued_pods.values():
            if queued_pod.phase is not Phase.GATED and queued_pod.requirements is not None:
                ungated[queued_pod.queue_info.queue] += queued_pod.requirements.units
        for name, units in ungated.items():
            cohort = self.queue.queues.get_cohort(name)
            room = None if cohort is None else cohort.compute_headroom(name)
            assert self.queue.queues[name].units == units, f"{name}: who is not bound may be bound any time"
            assert room is None or room >= 0, f"{name} has {units} units, {-room} more than it may"
        idle = [(queue.name, workload.uid) for queue, workload in self._admissible() if self._fits(workload)]
        assert not idle, f"{idle} could be admitted and were not"

    def _decide(self) -> None:
        decisions = self.queue.admit_workloads(self.now)
        while True:
            # With slots a node is offered, without them the whole cluster.
            offers = list(self.state.nodes.rows) if self.slots else [""]
            near = {
                offer: [
                    workload.uid
                    for _, workload in self._admissible()
                    if self._fits(workload, near=True, on=offer)
                ]
                for offer in offers
            }
            admitted = next(decisions, None)
            if admitted is None:
                return
            self._check_locality(admitted, near[admitted.members[0].node if self.slots else ""])
            for member in admitted.members:
                self.change(member.uid, spec={"schedulingGates": []})

    def _check_locality(self, admitted: AdmittedWorkload, near: list[str]) -> None:
        """Data is passed by only when nobody is near it, or needs none."""
        if admitted.relaxed and not isinstance(admitted.workload.requirements, GangRequirements):
            assert not near, f"{admitted.workload.uid} goes far from its data and {near} would not"

    def _pods(self, count: int = 1, gang: str = "") -> None:
        queue = self.random.choice("abc")
        data = self.random.choice(("", "", "d", "e"))
        job = self.random.choice(("", "", "j", "k"))
        for _ in range(count):
            self.count += 1
            units = self.random.choice((1, 2, 4, 5, 8, 12, 16))
            size = count if gang else ""
            name = f"p{self.count}"
            self.pod(name, units, queue=queue, created=self.count, data=data, job=job, gang=gang, size=size)

    def _in(self, phase: Phase) -> list[str]:
        return [uid for uid, pod in self.queue.queued_pods.items() if pod.phase is phase]

    def _admissible(self) -> Iterator[tuple[QueueState, QueuedWorkload[Needs]]]:
        """Waiting workloads that stage, order and quota would let go; gangs are not looked at."""
        for queue in self.queue.queues:
            workloads = [
                workload for workload in queue.waiting if not queue.waiting.waits_for_stage(workload.uid)
            ]
            workloads.sort(key=lambda workload: workload.age_key)
            if queue.form is not None and queue.form.queueing_strategy == "StrictFIFO":
                workloads = workloads[:1]
            for workload in workloads:
                single = not isinstance(workload.requirements, GangRequirements)
                if (
                    single
                    and queue.is_open
                    and self.queue.queues.allows_units(queue.name, workload.requirements.units, workload.uid)
                ):
                    yield queue, workload

    def _fits(self, workload: QueuedWorkload[Needs], *, near: bool = False, on: str = "") -> bool:
        """Tell by the scalar code if a card can take a workload now; `near`: its data; `on`: that node."""
        assert isinstance(workload.requirements, PodRequirements)
        for name, row in self.state.nodes.rows.items():
            if on not in {"", name}:
                continue
            if self.slots and not any(self.queue.slots.count_idle(name, kind) for kind in SlotType):
                continue
            if near and workload.data and not self.queue.admission.locality.is_near(name, workload.data):
                continue
            others = self.queue.capacity.reservations.sum_others(
                workload.uid, name, self.state.nodes.uuids[row]
            )
            kept = others.amounts.pods
            if self.slots and kept and self.queue.slots.count_left(name) <= kept:
                continue
            cards = [
                replace(card, used_units=card.size_units) if card.index in others.cards else card
                for card in build_cards(self.state.nodes, row)
            ]
            fits = place(cards, workload.requirements.request, "least-used") is not None
            if fits and self.queue.capacity.is_allowed(workload.requirements, name):
                return True
        return False


@given(st.integers(0, 10**9))
@example(36059)  # room is kept near its data for one of two pods that ask alike
@examples(60)
def test_what_is_released_fits_and_nothing_idles(seed: int) -> None:
    """In every history; and data is passed by only when nobody whose data is near could go."""
    History(seed).run()


def test_room_is_kept_for_gangs_in_those_histories() -> None:
    assert sum(History(seed).run().kept_for_gangs > 0 for seed in range(12)) > 1


def _tenants(weights: list[int], room: int) -> tuple[QueueWorld, list[str]]:
    """A card for so many pods, and queues of these weights; their names."""
    names = [f"t{at}" for at in range(len(weights))]
    queues = ", ".join(f"{{name: {n}, weight: {w}}}" for n, w in zip(names, weights, strict=True))
    world = QueueWorld(f"queues: [{queues}]")
    world.node("n1", (2 * room,), cpu="1000", memory="1000Gi")
    return world, names


def _is_fair(world: QueueWorld, weights: list[int]) -> bool:
    """Nobody would have more by its weight than another one, if it had one pod less."""
    queues = sorted(world.queue.queues, key=lambda queue: queue.name)
    has = [(queue.units // 2, weight) for queue, weight in zip(queues, weights, strict=True)]
    return all((one - 1) / of_one <= other / of_other for one, of_one in has for other, of_other in has)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 40))
@examples(60)
def test_shares_follow_the_weights_within_one_pod(weights: list[int], room: int) -> None:
    """Under saturation; pods of one size."""
    world, names = _tenants(weights, room)
    for at in range(room):
        for name in names:
            world.pod(f"{name}-{at}", 2, queue=name, created=at)
    assert len(world.admitted()) == room
    assert _is_fair(world, weights)


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(4, 20), st.randoms(use_true_random=False)
)
@examples(20)
def test_shares_converge_to_the_weights_and_everybody_is_served_soon(
    weights: list[int], room: int, rng: random.Random
) -> None:
    """One queue has everything when the others come; pods end in any order, and each has one that waits."""
    world, names = _tenants(weights, room)
    first = {world.pod(f"first-{at}", 2, queue="t0", created=at) for at in range(room)}
    assert len(world.admitted()) == room
    running = sorted(first)
    world.bind(*running)
    for name in names:
        world.pod(f"{name}-{room}", 2, queue=name, created=room)

    def end(uid: str) -> None:
        """Another one begins, and the next one of its queue waits."""
        running.remove(uid)
        first.discard(uid)
        world.delete(uid)
        (name,) = world.admitted()
        world.bind(f"uid-{name}")
        running.append(f"uid-{name}")
        queue = name.partition("-")[0]
        world.pod(f"{queue}-{world.version}", 2, queue=queue, created=world.version)

    for _ in names[1:]:
        end(rng.choice(sorted(first)))
    assert all(queue_state.units for queue_state in world.queue.queues), (
        "each has a pod before one of them has two"
    )
    for _ in range(room):
        end(rng.choice(running))
    for uid in sorted(first):
        end(uid)
    assert _is_fair(world, weights)


def test_a_decision_is_the_same_for_all_who_know_the_same() -> None:
    """Two queues that were told of the same things in another order admit the same pods."""
    names = []
    for order in (1, -1):
        world = QueueWorld("queues: [{name: a, weight: 2}, {name: b}]")
        for name in ("n1", "n2")[::order]:
            world.node(name, (16, 16))
        for at in list(range(20))[::order]:
            world.pod(f"p{at}", 5, queue="ab"[at % 2], created=at)
        names.append(world.admitted())
    assert names[0] == names[1]
