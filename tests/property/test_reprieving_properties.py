"""The verb preempt against kube-scheduler's own selection, written out again: by sums, and by cards."""

from collections.abc import Callable, Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from allocator.place import place
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.pods import PodRecord
from tests.cluster_builders import container
from tests.examples import examples
from tests.preemption_world import PreemptionWorld

PRIORITY = 5
SIZE = 8
CARDS = 3
STARTS = ("", "2027-01-15T07:00:00Z", "2027-01-15T07:30:00Z")

Budget = tuple[str, int, tuple[str, ...]]
"""Label, pods that may go, names of those that were evicted a moment ago."""

running = st.tuples(
    st.integers(0, CARDS - 1),
    st.sampled_from((2, 2, 4, 5, SIZE)),
    st.sampled_from((1, 1, 2, 3, PRIORITY)),
    st.sampled_from(("", "web", "web", "db")),
    st.sampled_from(STARTS),
)


class Node:
    """What kube-scheduler's dry run would see if it knew cards."""

    def __init__(self, world: PreemptionWorld, budgets: Sequence[Budget]) -> None:
        self.world = world
        self.budgets = budgets
        self.pods = [world.state.pods[uid] for uid in world.nodes["n"][2]]

    def fits(self, gone: Collection[str]) -> bool:
        """Whether the pod has its cards once these pods are gone."""
        state, needy = self.world.state, self.world.state.pods["uid-needy"]
        assert needy.request is not None
        query = self.world.policies.make_request(state.nodes, needy.request, needy.amounts)
        used = [0] * CARDS
        for pod in self.pods:
            if pod.name not in gone:
                _, card, units = self.world.cards[pod.name]
                used[card] += units
        cards = [
            type(card)(card.index, card.uuid, card.model, card.size_units, used[card.index])
            for card in build_cards(state.nodes, state.nodes.rows["n"])
        ]
        return place(cards, query.request, query.policy_request.card_policy) is not None

    def violating(self, pods: Sequence[PodRecord]) -> list[PodRecord]:
        """filterPodsWithPDBViolation."""
        left = {label: allowed for label, allowed, _ in self.budgets}
        found = []
        for pod in pods:
            for label, _, disrupted in self.budgets:
                if pod.labels.get("app") == label and pod.name not in disrupted:
                    left[label] -= 1
                    if left[label] < 0:
                        found.append(pod)
        return found

    def has_units(self, gone: Collection[str]) -> bool:
        """Whether the sum suffices once these pods are gone: all that kube-scheduler sees."""
        needy = self.world.state.pods["uid-needy"]
        assert needy.request is not None
        used = sum(self.world.cards[pod.name][2] for pod in self.pods if pod.name not in gone)
        return SIZE * CARDS - used >= sum(demand.cards * demand.per_card for demand in needy.request.demands)

    def select(self, fits: Callable[[Collection[str]], bool]) -> tuple[list[PodRecord], int] | None:
        """SelectVictimsOnNode."""
        potential = by_importance([pod for pod in self.pods if pod.priority < PRIORITY])
        gone = {pod.name for pod in potential}
        if not potential or not fits(gone):
            return None
        violating = self.violating(potential)
        victims: list[PodRecord] = []
        violations = 0
        for pod in [*violating, *(pod for pod in potential if pod not in violating)]:
            gone.discard(pod.name)
            if not fits(gone):
                gone.add(pod.name)
                victims.append(pod)
                violations += pod in violating
        return by_importance(victims), violations

    def rank(self, victims: Sequence[PodRecord]) -> tuple[float, ...]:
        """pickOneNodeForPreemption; smaller is better."""
        first = victims[0].priority
        return (
            len(self.violating(by_importance(victims))),
            first,
            sum(pod.priority + (1 << 31) for pod in victims),
            len(victims),
            -min(started(pod) for pod in victims if pod.priority == first),
        )


def started(pod: PodRecord) -> float:
    return pod.started_at if pod.start_time else float("inf")


def by_importance(pods: Sequence[PodRecord]) -> list[PodRecord]:
    """MoreImportantPod; of equals, whom we take for the more important one."""
    by_uid = sorted(pods, key=lambda pod: pod.uid, reverse=True)
    return sorted(by_uid, key=lambda pod: (-pod.priority, started(pod)))


@examples(300)
@given(
    pods=st.lists(running, min_size=4, max_size=10),
    allowed=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    disrupted=st.sets(st.integers(0, 9), max_size=4),
    shape=st.sampled_from(("one card", "one card", "two cards", "two containers")),
    units=st.integers(5, SIZE),
)
def test_victims_are_kube_schedulers_or_better_ones(
    pods: list[tuple[int, int, int, str, str]],
    allowed: tuple[int, int],
    disrupted: set[int],
    shape: str,
    units: int,
) -> None:
    world = PreemptionWorld()
    world.node("n", (SIZE,) * CARDS)
    for number, (card, size, priority, app, since) in enumerate(pods):
        if world.nodes["n"][1][card] + size <= SIZE:
            labels = {"app": app} if app else {}
            world.run("n", f"v{number}", card, size, priority, labels=labels, status={"startTime": since})
    world.publish("n")
    gone_already = tuple(f"v{number}" for number in disrupted)
    budgets = [("web", allowed[0], gone_already), ("db", allowed[1], ())]
    for label, may_go, names in budgets:
        world.budget(label, may_go, names)
    two = {"annotations": {"gpupack.io/cards": "2"}} if shape == "two cards" else {}
    several = {"containers": [container("x", units), container("y", 3)]} if shape == "two containers" else {}
    needy = world.create("needy", units * 2 if two else units, spec={"priority": PRIORITY}, **two, **several)
    node = Node(world, budgets)
    proposed = node.select(node.has_units)
    if proposed is None:
        # kube-scheduler drops the node itself.
        return
    named = [pod.name for pod in proposed[0]]

    answer = world.preempt(needy, proposed[1], n=named)

    if node.fits(named):
        assert answer == ({"n": (named, proposed[1])} if named else {})
        return
    literal = node.select(node.fits)
    if literal is None:
        assert answer == {}
        return
    names, violations = answer["n"]
    victims = [world.state.pods[f"uid-{name}"] for name in names]
    assert node.fits(names)
    assert victims == by_importance(victims)
    assert all(pod.priority < PRIORITY for pod in victims)
    assert violations == len(node.violating(victims))
    assert node.rank(victims) <= node.rank(literal[0])
    for name in names:
        assert not node.fits([other for other in names if other != name])
