"""A second look at refused pods: kube-scheduler may not ask again for one that fits by now."""

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from allocator.names import BATCH_SCHEDULER, POD_NODE_POLICY
from kubeapi.errors import KubeApiError, NotFound, TimedOut
from kubeapi.objects import PodSchedulingGate
from kubeapi.paths import STRATEGIC_PATCH
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.retry import (
    HELD_RETRY_AFTER_S,
    PODS_PER_ROUND,
    RETRY_AFTER_S,
    UNKNOWN_POD_S,
    RefusedPodRetrier,
)
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make_policy
from tests.api_requests import ApiRequests
from tests.cluster_builders import pod, pod_object
from tests.extender_world import World
from tests.other_policies import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Api(ApiRequests):
    """Takes what is patched."""

    def __init__(self) -> None:
        super().__init__()
        self.patched: list[str] = []
        self.body: Mapping[str, object] = {}
        self.error: KubeApiError | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.scheduled = "False"
        self.reason = "Unschedulable"
        self.scheduler = "gpupack-scheduler"

    def answer(self, verb: str, path: str, body: Any) -> Any:
        assert path.startswith("/api/v1/namespaces/default/pods/")
        if verb == "get":
            condition = {"type": "PodScheduled", "status": self.scheduled, "reason": self.reason}
            return {
                "spec": {"schedulerName": self.scheduler},
                "status": {"conditions": [condition] if self.scheduled else None},
            }
        self.patched.append(path)
        self.body = body
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return {}


class Setup:
    """One full node of one card, and what the second looks at it come to."""

    is_leader = True
    since: float | None = 0.0

    def __init__(self, policy: str = "least-requested") -> None:
        self.world = World(policy=policy)
        self.api = Api()
        self.now = 100.0
        self.stale = ""
        self.looks = RefusedPodRetrier(
            self.world.extender, self.api, lambda: self.now, lambda: self.stale, leadership=self
        )
        self.use(16)

    def use(self, units: int) -> None:
        """Have the node's words say so much."""
        self.world.node("n", (16,), (units,))

    def ask(self, name: str = "p", units: int = 8) -> FilterReply:
        self.world.state.apply_pod(pod(name, units, version=50), 0)
        found = self.world.extender.filter(self.world.body(pod_object(name, units)), self.now)
        self.looks.record_reply(found)
        return found

    async def look(self, later: float = RETRY_AFTER_S) -> list[str]:
        """Look, some time later; returns the pods that were patched."""
        self.now += later
        del self.api.patched[:]
        await self.looks.run_once()
        return [path.split("/")[-2] for path in self.api.patched]


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_a_pod_that_fits_by_now_is_tried_again_once(setup: Setup) -> None:
    assert setup.ask().refused
    assert await setup.look() == []
    setup.use(8)
    assert await setup.look() == ["p"]
    assert await setup.look() == []
    assert setup.api.content_type == STRATEGIC_PATCH
    assert setup.api.body["metadata"] == {"uid": "uid-p"}
    (condition,) = setup.api.body["status"]["conditions"]  # type: ignore[index]
    assert condition["type"] == "PodScheduled"
    assert len(condition["lastProbeTime"]) == len("2026-11-22T13:36:59Z")


async def test_kube_scheduler_has_a_second_to_ask_by_itself(setup: Setup) -> None:
    setup.ask()
    setup.use(8)
    assert await setup.look(RETRY_AFTER_S / 2) == []
    assert setup.ask().passed
    assert await setup.look() == []


async def test_a_new_refusal_begins_the_second_anew(setup: Setup) -> None:
    setup.ask()
    setup.now += RETRY_AFTER_S
    setup.ask()
    setup.use(8)
    assert await setup.look(RETRY_AFTER_S / 2) == []
    assert await setup.look(RETRY_AFTER_S / 2) == ["p"]


async def test_a_pod_that_still_does_not_fit_is_left_alone(setup: Setup) -> None:
    setup.ask()
    setup.use(9)
    assert await setup.look() == []


async def test_a_pod_that_was_bound_is_forgotten(setup: Setup) -> None:
    setup.ask()
    setup.world.state.apply_pod(pod("p", 8, node="n", version=60), 0)
    setup.use(0)
    assert await setup.look() == []


async def test_only_the_leader_looks_and_only_at_a_view_that_can_be_trusted(setup: Setup) -> None:
    setup.ask()
    setup.use(8)
    setup.since = None
    assert await setup.look() == []
    setup.since, setup.stale = 0.0, "old"
    assert await setup.look() == []
    setup.stale = ""
    assert await setup.look() == ["p"]


@pytest.mark.parametrize(("error", "again"), [(NotFound("gone", status=404), []), (TimedOut("slow"), ["p"])])
async def test_a_patch_that_failed_is_repeated_where_it_may_work(
    setup: Setup, error: KubeApiError, again: list[str]
) -> None:
    counted: list[str] = []
    setup.looks.fits.connect(counted.append)
    setup.ask()
    setup.use(8)
    setup.api.error = error
    assert await setup.look() == ["p"]
    assert await setup.look() == again
    assert counted == []
    setup.api.error = None
    assert await setup.look() == again
    assert counted == [f"uid-{name}" for name in again]


async def test_a_refusal_during_the_patch_counts(setup: Setup) -> None:
    setup.ask()
    setup.use(8)
    setup.api.error = TimedOut("slow")
    setup.api.meanwhile = lambda: (setup.use(16), setup.ask())[0]
    assert await setup.look() == ["p"]
    setup.use(8)
    assert await setup.look(RETRY_AFTER_S / 2) == []


async def test_every_pod_has_its_turn(setup: Setup) -> None:
    names = [f"p{number}" for number in range(PODS_PER_ROUND + 1)]
    for name in names:
        setup.ask(name)
    # None of the first ones fits when its turn comes, the last one does.
    assert await setup.look() == []
    setup.use(8)
    assert (await setup.look())[0] == names[-1]


async def test_the_oldest_are_forgotten(setup: Setup) -> None:
    setup.looks._refused.most = 40
    await setup.look()
    for number in range(41):
        setup.ask(f"p{number}")
    setup.use(8)
    tried = [name for _ in range(41 // PODS_PER_ROUND + 1) for name in await setup.look()]
    assert tried == [f"p{number}" for number in range(1, 41)]


async def test_pods_that_a_predecessor_refused_are_looked_at(setup: Setup) -> None:
    setup.world.state.apply_pod(pod("p", 8, version=50), 0)
    setup.world.state.apply_pod(pod("too-large", 17, version=51), 0)
    setup.world.state.apply_pod(pod("bound", 8, node="n", version=52), 0)
    gated = pod("gated", 8, version=53)
    gated.spec.scheduling_gates = [PodSchedulingGate("held")]
    setup.world.state.apply_pod(gated, 0)
    setup.use(0)
    # Whatever kube-scheduler asks in the first second counts more.
    assert await setup.look() == []
    assert await setup.look() == ["p"]
    assert await setup.look() == []
    setup.since = 200.0
    assert await setup.look() == []
    assert await setup.look() == ["p"]


@pytest.mark.parametrize("was_refused", [True, False])
async def test_a_pod_that_is_being_deleted_is_not_tried_again(setup: Setup, was_refused: bool) -> None:
    if was_refused:
        assert setup.ask().refused
        await setup.look()
    setup.world.state.apply_pod(pod("p", 8, version=51, deleted="2027-01-15T08:00:00Z"), 0)
    setup.use(0)
    for _ in range(3):
        assert await setup.look() == []


@pytest.mark.parametrize(("scheduled", "reason"), [("", ""), ("False", "SchedulingGated")])
async def test_a_predecessor_did_not_refuse_a_pod_that_does_not_say_so(
    setup: Setup, scheduled: str, reason: str
) -> None:
    setup.world.state.apply_pod(pod("p", 8, version=50), 0)
    setup.use(0)
    setup.api.scheduled, setup.api.reason = scheduled, reason
    for _ in range(3):
        assert await setup.look() == []


async def test_a_predecessor_did_not_refuse_a_pod_of_batch_mode(setup: Setup) -> None:
    """The queue writes its condition, and kube-scheduler does not take it."""
    setup.world.state.apply_pod(pod("p", 8, version=50), 0)
    setup.use(0)
    setup.api.scheduler = BATCH_SCHEDULER
    for _ in range(3):
        assert await setup.look() == []


async def test_a_waiting_pod_whose_node_policy_does_not_exist_is_no_fault_of_ours(setup: Setup) -> None:
    setup.world.state.apply_pod(pod("p", 8, version=50, annotations={POD_NODE_POLICY: "no-such"}), 0)
    with capture_logs() as logs:
        for _ in range(3):
            assert await setup.look() == []
    assert logs == []


async def test_the_nodes_asked_about_are_kept_while_there_are_the_same(setup: Setup) -> None:
    setup.world.node("other", (16,), (16,))
    setup.world.state.apply_pod(pod("p", 8, version=50), 0)
    found = setup.world.extender.filter(setup.world.body(pod_object("p", 8), ["other"]), 0)
    setup.looks.record_reply(found)
    setup.use(8)
    assert await setup.look() == []
    # Rows may mean others from now on: kube-scheduler is asked, and says which nodes will do.
    setup.world.node("third", (16,), (16,))
    assert await setup.look() == ["p"]


async def test_names_of_nodes_are_not_kept(setup: Setup) -> None:
    names = [f"n{number}" for number in range(500)]
    for name in names:
        setup.world.node(name, (16,), (16,))
    found = setup.ask()
    assert found.asked_nodes is not None
    assert len(found.asked_nodes.bits) <= 2 * len(names) / 8
    assert {
        setup.world.state.nodes.names[row] for row in found.asked_nodes.rows(setup.world.state.nodes.index)
    } == {
        "n",
        *names,
    }


async def test_a_policy_that_fails_fails_nobody_else(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.ask("first")
    setup.ask("second")
    setup.use(8)
    passes = setup.world.extender.would_pass

    def fails(record: PodRecord, *args: Any, **more: Any) -> bool:
        if record.name == "first":
            raise ZeroDivisionError
        return passes(record, *args, **more)

    monkeypatch.setattr(setup.world.extender, "would_pass", fails)
    assert await setup.look() == ["second"]
    assert await setup.look() == []


async def test_an_api_server_that_does_not_answer_is_left_alone_for_a_round(setup: Setup) -> None:
    for number in range(3):
        setup.ask(f"p{number}")
    setup.use(8)
    setup.api.error = TimedOut("slow")
    assert await setup.look() == ["p0"]
    setup.api.error = None
    assert sorted(await setup.look()) == ["p0", "p1", "p2"]


async def test_a_pod_that_nobody_knows_is_forgotten(setup: Setup) -> None:
    found = setup.world.extender.filter(setup.world.body(pod_object("p", 8)), 0)
    setup.looks.record_reply(found)
    setup.use(8)
    assert await setup.look() == []
    assert await setup.look(UNKNOWN_POD_S) == []
    setup.world.state.apply_pod(pod("p", 8, version=50), 0)
    assert await setup.look() == []


async def test_a_pod_that_is_being_bound_is_left_alone(setup: Setup) -> None:
    setup.ask()
    setup.use(8)
    setup.world.state.assume("uid-p", "n", None, 0)
    assert await setup.look() == []


async def test_a_look_uses_no_round_of_a_pod_that_is_held_back_and_has_it_tried_again_later() -> None:
    """The looks used to use the rounds up, found that it fits, and so it began anew: five full cycles."""
    rounds = 3
    parameters = {"on-no-improvement": "hold", "hold-rounds": str(rounds), "threshold": "1"}
    with offered(NODE_POLICIES, holding=lambda _: make_policy("weighted-balance", parameters)):
        setup = Setup("holding")
        setup.use(6)

        def ask() -> FilterReply:
            """Of a node of which cards are used and cpu is not: more units make it less level."""
            found = setup.ask()
            setup.world.extender.record_attempt(found)
            return found

        for _ in range(rounds - 1):
            assert ask().refused
            assert await setup.look() == []
            assert await setup.look() == []
            assert await setup.look(HELD_RETRY_AFTER_S) == ["p"], (
                "nothing else has it tried in a quiet cluster"
            )
            assert await setup.look(HELD_RETRY_AFTER_S) == []
        assert ask().refused
        assert await setup.look() == ["p"], "its rounds are over"
        assert ask().passed
        assert ask().passed


async def test_who_is_held_back_and_fits_nowhere_is_not_tried_again() -> None:
    setup = Setup()
    assert setup.ask().refused
    assert await setup.look(HELD_RETRY_AFTER_S) == []
