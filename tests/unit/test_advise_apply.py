"""`gpupack advise --apply`: each move is checked, made and awaited; where it stops, cards are given back."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from allocator.names import NODE_CARDS
from allocator.records import dump_cards, load_cards
from gpupack.cordon import CordonOutcome, CordonRequest, decide_change
from gpupack.errors import InputError
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.apply import AppliedAdvice, ApplyOptions, MoveApplier
from gpupack.rebalance.planning import SearchLimits
from gpupack.whatif.answers import Advice
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion
from gpupack.whatif.queue_rules import read_rules
from kubeapi import objects
from kubeapi.errors import (
    BudgetRefused,
    Forbidden,
    KubeApiError,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unreachable,
)
from scheduler_plugin.queue.controller.settings import DecisionSettings
from tests.ask_world import Node, Pod, World

NODES = (Node("a", (16,)), Node("b", (16,)), Node("c", (16,)))
PODS = (Pod("small", 3, "a", (0,)), Pod("large", 5, "b", (0,)), Pod("other", 4, "c", (0,)))


class FakeCluster:
    """A cluster in which a controller makes another pod for each that is evicted, and a scheduler places it.

    Attributes:
        world: Nodes and pods.
        cordoned: Cards by (node, number).
        log: Evictions and cordons, in their order.
        place: Gives the node of a successor; empty: it has none.
        refusals: Evictions that get `refusal` as their answer before one is made.
        then: Called after each eviction.
        queues: Configuration of the queue; empty: it does not answer.
    """

    def __init__(self, pods: tuple[Pod, ...] = PODS, nodes: tuple[Node, ...] = NODES) -> None:
        self.world = World(nodes, pods)
        self.cordoned: set[tuple[str, int]] = set()
        self.log: list[str] = []
        self.place: Callable[[Pod], str] = lambda _pod: "b"
        self.refusals = 0
        self.refusal: KubeApiError = BudgetRefused("Cannot evict pod as it would violate the pod's budget")
        self.then: Callable[[], None] = lambda: None
        self.now = 0.0
        self.queues = ""

    def cluster(self) -> Cluster:
        cluster = Cluster.from_json(self.world.text)
        if self.queues:
            cluster.queue = read_rules(DecisionSettings(self.queues))
        return cluster

    async def read(self) -> Cluster:
        return self.cluster()

    async def list_pods(self, namespace: str) -> list[objects.Pod]:
        return [pod for pod in self.cluster().pods.values() if pod.metadata.namespace == namespace]

    async def cordon(self, node: str, wish: CordonRequest) -> tuple[CordonOutcome, ...]:
        done = []
        for text in wish.cards:
            card = int(text.rpartition("-")[2])
            changed = ((node, card) in self.cordoned) != wish.cordon
            (self.cordoned.add if wish.cordon else self.cordoned.discard)((node, card))
            self.log.append(f"{'cordon' if wish.cordon else 'uncordon'} {node}/{card}")
            done.append(CordonOutcome(f"GPU-{node}-{card}", card, changed))
        return tuple(done)

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 0) -> bytes:
        del path, timeout_s
        if self.refusals:
            self.refusals -= 1
            raise self.refusal
        if body["deleteOptions"].get("dryRun"):
            self.log.append(f"try {body['metadata']['name']}")
            return b""
        name = body["metadata"]["name"]
        self.log.append(f"evict {name}")
        (old,) = [pod for pod in self.world.pods if pod.name == name]
        node = self.place(old)
        new = replace(old, name=f"{name}-2", node=node, cards=(0,) if node else (), held=False)
        others = tuple(pod for pod in self.world.pods if pod.name != name)
        self.world = replace(self.world, pods=(*others, new))
        self.then()
        return b""

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def apply(self, advice: Advice, **options: Any) -> AppliedAdvice:
        return asyncio.run(self.start(advice, **options))

    async def start(self, advice: Advice, **options: Any) -> AppliedAdvice:
        applier = MoveApplier(
            api=self,  # type: ignore[arg-type]  # it evicts only
            read=self.read,
            list_pods=self.list_pods,
            cordon=self.cordon,
            limits=SearchLimits(),
            options=ApplyOptions(**options),
            report=self.log.append,
            sleep=self.sleep,
            clock=lambda: self.now,
        )
        return await applier.apply(self.cluster(), advice)

    def advise(self, units: int = 16, pods: int = 1) -> Advice:
        return advise_start(self.cluster(), FitQuestion(units), pods)


def steps(fake: FakeCluster) -> list[str]:
    return [line for line in fake.log if line.split()[0] in {"cordon", "uncordon", "evict", "try"}]


def test_the_card_is_cordoned_the_pod_evicted_and_the_card_given_back() -> None:
    fake = FakeCluster()
    advice = fake.advise()
    assert [move.pod for move in advice.moves] == ["small"]
    fake.place = lambda _pod: advice.moves[0].target.node
    done = fake.apply(advice)
    assert steps(fake) == ["cordon a/0", "evict small", "uncordon a/0"]
    assert (done.state, done.text, done.left, done.cordoned) == ("done", "1 move was made", (), ())
    assert [(made.pod, made.new_pod, made.node) for made in done.made] == [
        ("small", "small-2", advice.moves[0].target.node)
    ]


def test_cards_that_were_to_be_empty_stay_cordoned() -> None:
    fake = FakeCluster()
    advice = advise_empty(fake.cluster(), "a/0")
    fake.place = lambda _pod: advice.moves[0].target.node
    done = fake.apply(advice, keeps_cordon=True)
    assert (done.state, done.cordoned) == ("done", ("a/0",))
    assert fake.cordoned == {("a", 0)}


def test_a_card_that_others_had_cordoned_is_not_given_back() -> None:
    fake = FakeCluster()
    advice = fake.advise()
    fake.cordoned.add(("a", 0))
    assert fake.apply(advice).state == "done"
    assert fake.cordoned == {("a", 0)}


def test_a_dry_run_changes_nothing_and_asks_the_api_server() -> None:
    fake = FakeCluster()
    done = fake.apply(fake.advise(), dry_run=True)
    assert steps(fake) == ["try small"]
    assert (done.state, [made.pod for made in done.made]) == ("dry-run", ["small"])
    assert done.text == "nothing was changed; each eviction is allowed now"
    nothing = fake.apply(msgspec.structs.replace(fake.advise(), moves=()), dry_run=True)
    assert nothing.text == "nothing was changed; there is no move to make"
    fake.refusals = 1
    refused = fake.apply(fake.advise(), dry_run=True)
    assert refused.state == "stopped"
    assert "may not go: Cannot evict pod" in refused.text


def test_a_budget_is_waited_for_and_not_for_ever() -> None:
    fake = FakeCluster()
    fake.refusals = 3
    assert fake.apply(fake.advise()).state == "done"
    late = FakeCluster()
    late.refusals = 1000
    stopped = late.apply(late.advise(), timeout_s=60)
    assert stopped.state == "stopped"
    assert "pod default/small may not go: Cannot evict pod" in stopped.text
    assert late.now <= 60
    assert [move.pod for move in stopped.left] == ["small"]
    assert late.cordoned == set()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("error", [TooManyRequests("busy"), Unreachable("refused")])
def test_an_api_server_that_is_busy_is_asked_again(error: KubeApiError, dry_run: bool) -> None:
    fake = FakeCluster()
    fake.refusals, fake.refusal = 3, error
    assert fake.apply(fake.advise(), dry_run=dry_run).state == ("dry-run" if dry_run else "done")
    late = FakeCluster()
    late.refusals, late.refusal = 1000, error
    assert late.apply(late.advise(), timeout_s=60, dry_run=dry_run).text == f"stopped: {error}"


def test_pods_that_cannot_be_listed_for_a_while_are_listed_again() -> None:
    """The pod has been evicted: to stop there would leave the rest of the moves undone."""
    fake = FakeCluster()
    list_pods, asked = fake.list_pods, 0

    async def list_badly(namespace: str) -> list[objects.Pod]:
        nonlocal asked
        asked += 1
        if "evict small" in fake.log and asked < 4:
            raise ServerError("no leader of etcd")
        return await list_pods(namespace)

    fake.list_pods = list_badly  # type: ignore[method-assign]
    assert (fake.apply(fake.advise()).state, asked) == ("done", 4)

    async def refuse(namespace: str) -> list[objects.Pod]:
        if "evict small" in late.log:
            raise error
        return await list_pods(namespace)

    for error in (ServerError("no leader of etcd"), Forbidden("no right")):
        late = FakeCluster()
        list_pods, late.list_pods = late.list_pods, refuse  # type: ignore[method-assign]
        assert late.apply(late.advise(), timeout_s=60).text == f"stopped: {error}"


def test_an_eviction_without_an_answer_is_not_repeated() -> None:
    """Of a pod that is gone then nobody could say whether it was evicted."""
    fake = FakeCluster()
    fake.refusals, fake.refusal = 1, TimedOut("no answer")
    assert fake.apply(fake.advise()).text == "stopped: no answer"


def moves_of_two(fake: FakeCluster) -> Advice:
    """Two moves: each of two cards becomes empty."""
    advice = fake.advise(16, 2)
    assert len(advice.moves) == 2
    return advice


def test_it_stops_where_a_pod_is_not_where_it_was() -> None:
    fake = FakeCluster()
    advice = moves_of_two(fake)
    first, second = advice.moves
    fake.place = lambda _pod: first.target.node

    def leave() -> None:
        fake.world = World(NODES, tuple(pod for pod in fake.world.pods if pod.name != second.pod))

    fake.then = leave
    done = fake.apply(advice)
    assert done.state == "stopped"
    assert done.text == f"stopped: pod default/{second.pod} is not there any more, or has another controller"
    assert ([made.pod for made in done.made], [move.pod for move in done.left]) == ([first.pod], [second.pod])
    assert fake.cordoned == set()


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({"node": "b", "held": False}, "node b card 0"),
        ({"cards": (1,), "held": False}, "node a card 1"),
        ({"node": "", "cards": ()}, "no node"),
        ({"cards": (), "held": False}, "node a, card not known"),
    ],
    ids=["node", "card", "no node", "no card"],
)
def test_where_a_pod_was_and_is_now_is_said(changes: dict[str, Any], now: str) -> None:
    fake = FakeCluster(nodes=(Node("a", (16, 2)), *NODES[1:]))
    advice = fake.advise()
    fake.world = replace(fake.world, pods=(replace(PODS[0], **changes), *PODS[1:]))
    where = f"pod default/small is not where it was: it had node a card 0, and has {now}"
    assert fake.apply(advice).text == f"stopped: {where}"
    assert "evict small" not in fake.log


def test_it_stops_before_an_eviction_after_which_no_node_would_take_the_pod() -> None:
    fake = FakeCluster()
    advice = fake.advise()
    fake.world = World(
        NODES, (*PODS, Pod("new-b", 11, "b", (0,)), Pod("new-c", 12, "c", (0,)), Pod("new-a", 13, "a", (0,)))
    )
    cordoned = [json.loads(fake.world.text)]
    node = next(item for item in cordoned[0]["items"] if item["metadata"]["name"] == "a")
    node["spec"]["unschedulable"] = True
    text = json.dumps(cordoned[0])

    async def read() -> Cluster:
        return Cluster.from_json(text)

    fake.read = read  # type: ignore[method-assign]
    done = fake.apply(advice)
    assert (done.state, done.text) == ("stopped", "stopped: no node takes pod default/small now")
    assert "evict small" not in fake.log


def test_a_successor_without_a_node_is_told() -> None:
    fake = FakeCluster()
    fake.place = lambda _pod: ""
    done = fake.apply(fake.advise(), timeout_s=20)
    what = "pod default/small has ended, and small-2 in its place has no node in time"
    assert (done.state, done.text) == ("stopped", f"stopped: {what}: gpupack why says more")
    assert fake.cordoned == set()


def test_another_node_than_planned_is_said() -> None:
    fake = FakeCluster()
    advice = fake.advise()
    other = next(name for name in "bc" if name != advice.moves[0].target.node)
    fake.place = lambda _pod: other
    assert fake.apply(advice).made[0].node == other
    assert f"has node {other} in place of {advice.moves[0].target.node}" in " ".join(fake.log)


def test_who_interrupts_it_finds_no_card_cordoned() -> None:
    fake = FakeCluster()
    fake.place = lambda _pod: ""

    async def interrupt() -> None:
        evicted = asyncio.Event()
        fake.then = evicted.set
        task = asyncio.create_task(fake.start(fake.advise(), timeout_s=1e9))
        await evicted.wait()
        assert fake.cordoned == {("a", 0)}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert fake.cordoned == set()


def test_who_interrupts_it_while_a_cordon_is_written_finds_no_card_cordoned() -> None:
    """The API server has it, and its answer is still to come."""
    fake = FakeCluster()

    async def interrupt() -> None:
        written, answer, write = asyncio.Event(), asyncio.Event(), fake.cordon

        async def cordon(node: str, wish: CordonRequest) -> tuple[CordonOutcome, ...]:
            outcomes = await write(node, wish)
            written.set()
            await answer.wait()
            return outcomes

        fake.cordon = cordon  # type: ignore[method-assign]
        task = asyncio.create_task(fake.start(fake.advise()))
        await written.wait()
        task.cancel()
        await asyncio.sleep(0)
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert fake.cordoned == set()
    assert "evict small" not in fake.log


def test_cards_that_may_be_cordoned_are_named_where_a_cordon_has_no_answer() -> None:
    fake = FakeCluster()
    write = fake.cordon

    async def cordon(node: str, wish: CordonRequest) -> tuple[CordonOutcome, ...]:
        await write(node, wish)
        raise TimedOut("no answer in 30 s")

    fake.cordon = cordon  # type: ignore[method-assign]
    done = fake.apply(fake.advise())
    assert (done.state, done.text, done.cordoned) == ("stopped", "stopped: no answer in 30 s", ("a/0",))
    assert steps(fake) == ["cordon a/0"]


@pytest.mark.parametrize("error", [Forbidden("no right"), TimedOut("no answer"), InputError("no such node")])
def test_cards_that_cannot_be_given_back_are_named_and_the_others_are_given_back(error: Exception) -> None:
    fake = FakeCluster()
    advice = moves_of_two(fake)
    fake.place = lambda pod: next(move.target.node for move in advice.moves if move.pod == pod.name)
    (refused, given) = sorted(move.source.node for move in advice.moves)
    write = fake.cordon

    async def cordon(node: str, wish: CordonRequest) -> tuple[CordonOutcome, ...]:
        if node == refused and not wish.cordon:
            raise error
        return await write(node, wish)

    fake.cordon = cordon  # type: ignore[method-assign]
    done = fake.apply(advice)
    assert (done.state, done.text, done.left) == ("stopped", f"stopped: {error}", ())
    assert done.cordoned == (f"{refused}/0",)
    assert f"uncordon {given}/0" in fake.log


def test_a_card_to_which_a_pod_still_goes_is_not_cordoned_before() -> None:
    """A chain: one move empties the card that the next one fills."""
    fake = FakeCluster()
    first, second = moves_of_two(fake).moves
    chain = msgspec.structs.replace(
        moves_of_two(fake),
        moves=(first, msgspec.structs.replace(second, target=first.source)),
    )
    fake.place = lambda pod: first.target.node if pod.name == first.pod else first.source.node
    done = fake.apply(chain)
    assert done.state == "done"
    assert steps(fake)[:4] == [
        f"cordon {second.source.node}/0",
        f"evict {first.pod}",
        f"evict {second.pod}",
        f"uncordon {second.source.node}/0",
    ]


class MigCluster(FakeCluster):
    """The cards of each node are instances of one card."""

    def cluster(self) -> Cluster:
        objects = json.loads(self.world.text.replace("GPU-", "MIG-"))
        for each in objects["items"]:
            annotations = each["metadata"]["annotations"]
            if NODE_CARDS in annotations:
                cards = load_cards(annotations[NODE_CARDS])
                annotations[NODE_CARDS] = dump_cards(
                    [msgspec.structs.replace(card, index=0) for card in cards]
                )
        return Cluster.from_json(json.dumps(objects))

    async def cordon(self, node: str, wish: CordonRequest) -> tuple[CordonOutcome, ...]:
        change = decide_change(node, self.cluster().nodes[node].metadata.annotations or {}, wish)
        self.log += [f"{'cordon' if wish.cordon else 'uncordon'} {each.uuid}" for each in change.outcomes]
        return tuple(replace(each, changed=True) for each in change.outcomes)


def test_of_the_instances_of_a_card_that_is_cordoned_which_a_pod_leaves() -> None:
    pods = (Pod("full", 16, "a", (0,)), Pod("small", 3, "a", (1,)), Pod("large", 5, "b", (0,)))
    fake = MigCluster(pods, (Node("a", (16, 16)), Node("b", (16,))))
    advice = fake.advise()
    assert "from node a card MIG-a-1 to node b card 0" in advice.moves[0].text
    done = fake.apply(advice, keeps_cordon=True)
    assert (done.state, done.text, done.cordoned) == ("done", "1 move was made", ("a/MIG-a-1",))
    assert steps(fake) == ["cordon MIG-a-1", "evict small"]


def with_queue(config: str) -> tuple[FakeCluster, Advice]:
    fake = FakeCluster(tuple(replace(pod, queue="a") for pod in PODS))
    fake.queues = config
    advice = fake.advise()
    assert [move.pod for move in advice.moves] == ["small"]
    return fake, advice


def test_a_pod_of_a_queue_moves_and_its_successor_is_waited_for() -> None:
    fake, advice = with_queue("queues: [{name: a, nominalQuota: 12}]")
    fake.place = lambda _pod: ""
    bound = replace(PODS[0], name="small-2", node="b", queue="a")

    def admit_later() -> None:
        fake.then = lambda: None
        asyncio.get_running_loop().call_later(0, run_successor)

    def run_successor() -> None:
        others = tuple(pod for pod in fake.world.pods if pod.name != "small-2")
        fake.world = World(NODES, (*others, bound))

    fake.then = admit_later
    done = fake.apply(advice)
    assert (done.state, [made.new_pod for made in done.made]) == ("done", ["small-2"])
    assert fake.now > 0


@pytest.mark.parametrize(
    ("config", "older", "why"),
    [
        ("queues: [{name: a, nominalQuota: 12, stopPolicy: Hold}]", (), "queue a is stopped"),
        (
            "queues: [{name: a, nominalQuota: 12}]",
            (Pod("older", 1, queue="a"),),
            "it needs 3 units; queue a uses 10 units of its quota of 12",
        ),
        ("", (), "the queue was not read"),
    ],
    ids=["stopped", "older", "unknown"],
)
def test_nobody_is_evicted_whose_queue_would_let_the_successor_wait_by_now(
    config: str, older: tuple[Pod, ...], why: str
) -> None:
    fake, advice = with_queue("queues: [{name: a, nominalQuota: 12}]")
    fake.queues = config
    fake.world = World(NODES, (*fake.world.pods, *older))
    done = fake.apply(advice)
    assert done.state == "stopped"
    assert done.text.startswith("stopped: pod default/small may not go: queue ")
    assert why in done.text
    assert steps(fake) == ["cordon a/0", "uncordon a/0"]


def test_a_successor_that_its_queue_does_not_admit_is_told_and_the_card_is_given_back() -> None:
    fake, advice = with_queue("queues: [{name: a, nominalQuota: 12}]")
    fake.place = lambda _pod: ""
    done = fake.apply(advice, timeout_s=30)
    assert done.text == (
        'stopped: pod default/small has ended, and small-2, which waits in queue "a", in its place has no '
        "node in time: gpupack why says more"
    )
    assert steps(fake) == ["cordon a/0", "evict small", "uncordon a/0"]


def test_a_pod_that_has_joined_a_gang_by_now_stays() -> None:
    fake = FakeCluster()
    advice = fake.advise()
    gang = replace(PODS[0], policies=(("gpupack.io/gang", "g"),))
    fake.world = World(NODES, (gang, *PODS[1:]))
    done = fake.apply(advice)
    assert 'it runs together with the other pods of gang "g"' in done.text
    assert "evict small" not in fake.log
