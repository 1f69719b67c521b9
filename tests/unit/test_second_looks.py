"""A second look at refused pods: kube-scheduler may not ask again for one that fits by now."""

import json
from collections.abc import Callable, Mapping

import pytest

from kubeapi.errors import KubeApiError, NotFound, TimedOut
from scheduler_plugin.http.extender import Filtered
from scheduler_plugin.http.secondlook import AFTER_S, AT_ONCE, REMEMBERED, STRATEGIC_PATCH, SecondLooks
from tests.cluster_builders import pod, pod_object
from tests.extender_world import World


class Api:
    """Takes what is patched."""

    def __init__(self) -> None:
        self.patched: list[str] = []
        self.body: Mapping[str, object] = {}
        self.content_type = ""
        self.error: KubeApiError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    async def patch(
        self, path: str, body: Mapping[str, object], content_type: str = "", *, timeout_s: float = 0
    ) -> bytes:
        self.patched.append(path)
        self.body, self.content_type = body, content_type
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return b"{}"


class Setup:
    """One full node of one card, and what the second looks at it come to."""

    is_leader = True

    def __init__(self) -> None:
        self.world = World()
        self.api = Api()
        self.now = 100.0
        self.stale = ""
        self.looks = SecondLooks(
            self.world.extender, self.api, lambda: self.now, lambda: self.stale, leadership=self
        )
        self.use(16)

    def use(self, units: int) -> None:
        """Have the node's words say so much."""
        self.world.node("n", (16,), (units,))

    def ask(self, name: str = "p", units: int = 8) -> Filtered:
        """kube-scheduler asks."""
        found = self.world.extender.filter(self.world.body(pod_object(name, units)), self.now)
        self.looks.note(found)
        return found

    async def look(self, later: float = AFTER_S) -> list[str]:
        """Look, some time later; returns the pods that were patched."""
        self.now += later
        del self.api.patched[:]
        await self.looks.look()
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
    assert await setup.look(AFTER_S / 2) == []
    assert setup.ask().passed
    assert await setup.look() == []


async def test_a_new_refusal_begins_the_second_anew(setup: Setup) -> None:
    setup.ask()
    setup.now += AFTER_S
    setup.ask()
    setup.use(8)
    assert await setup.look(AFTER_S / 2) == []
    assert await setup.look(AFTER_S / 2) == ["p"]


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
    setup.is_leader = False
    assert await setup.look() == []
    setup.is_leader, setup.stale = True, "old"
    assert await setup.look() == []
    setup.stale = ""
    assert await setup.look() == ["p"]


@pytest.mark.parametrize(("error", "again"), [(NotFound("gone", status=404), []), (TimedOut("slow"), ["p"])])
async def test_a_patch_that_failed_is_repeated_where_it_may_work(
    setup: Setup, error: KubeApiError, again: list[str]
) -> None:
    setup.ask()
    setup.use(8)
    setup.api.error = error
    assert await setup.look() == ["p"]
    assert await setup.look() == again


async def test_a_refusal_during_the_patch_counts(setup: Setup) -> None:
    setup.ask()
    setup.use(8)
    setup.api.error = TimedOut("slow")
    setup.api.meanwhile = lambda: (setup.use(16), setup.ask())[0]
    assert await setup.look() == ["p"]
    setup.use(8)
    assert await setup.look(AFTER_S / 2) == []


async def test_every_pod_has_its_turn(setup: Setup) -> None:
    names = [f"p{number}" for number in range(AT_ONCE + 1)]
    for name in names:
        setup.ask(name)
    # None of the first ones fits when its turn comes, the last one does.
    assert await setup.look() == []
    setup.use(8)
    assert (await setup.look())[0] == names[-1]


async def test_the_oldest_are_forgotten(setup: Setup) -> None:
    for number in range(REMEMBERED + 1):
        setup.ask(f"p{number}")
    setup.use(8)
    tried = [name for _ in range(REMEMBERED // AT_ONCE + 1) for name in await setup.look()]
    assert tried == [f"p{number}" for number in range(1, REMEMBERED + 1)]


async def test_different_long_lists_are_kept_as_far_as_they_take_little_memory(setup: Setup) -> None:
    names = [f"node-{number}" for number in range(10_000)]
    for number in range(30):
        body = setup.world.body(pod_object(f"p{number}", 8), ["n", *names[number:]])
        setup.looks.note(setup.world.extender.filter(body, setup.now))
    setup.use(8)
    assert "p0" not in (found := [*await setup.look(), *await setup.look()])
    assert found[-1] == "p29"
    assert len(found) < 30


async def test_the_same_long_list_is_kept_once(setup: Setup) -> None:
    names = ["n", *(f"node-{number}" for number in range(10_000))]
    for number in range(30):
        body = setup.world.body(pod_object(f"p{number}", 8), names)
        setup.looks.note(setup.world.extender.filter(body, setup.now))
    setup.use(8)
    assert len([*await setup.look(), *await setup.look()]) == 30


async def test_whole_nodes_are_not_kept(setup: Setup) -> None:
    call = json.loads(setup.world.body(pod_object("p", 8)))
    whole = {"metadata": {"name": "n", "annotations": {"a": "b"}}}
    call["NodeNames"], call["Nodes"] = None, {"items": [whole]}
    found = setup.world.extender.filter(json.dumps(call).encode(), 0)
    assert found.asked is not None
    assert found.asked.candidates.items is None
    setup.looks.note(found)
    setup.use(8)
    assert await setup.look() == ["p"]
