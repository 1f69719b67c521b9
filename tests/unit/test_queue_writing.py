"""What the queue writes, and what it makes of answers that do not come."""

from collections.abc import Callable
from typing import Any

import pytest

from kubeapi.errors import (
    BudgetRefused,
    Conflict,
    Forbidden,
    Invalid,
    KubeApiError,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.controller.writer import (
    TRIES,
    PodWriter,
    WriteOutcome,
    WriteResult,
    make_admission_patch,
)
from tests.api_requests import ApiRequests
from tests.queue_world import QueueWorld


class Api(ApiRequests):
    """An API server that answers as it is told, one answer for each request."""

    def __init__(self, *answers: KubeApiError | dict[str, Any]) -> None:
        super().__init__()
        self.answers = list(answers)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        assert path.startswith("/api/v1/namespaces/default/pods/p")
        if verb == "post":
            assert body["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}, "the pod's own grace holds"
        answer = self.answers.pop(0)
        if isinstance(answer, KubeApiError):
            raise answer
        return answer


def entry() -> tuple[QueuedPod, dict[str, Any]]:
    """A gated pod, and the object that the API server has of it once its gate is gone."""
    world = QueueWorld()
    uid = world.pod("p")
    raw = {**world.objects[uid], "spec": {**world.objects[uid]["spec"], "schedulingGates": []}}
    return world.queue.queued_pods[uid], raw


async def admit(api: Api, terms: int = 99) -> WriteResult:
    """Admit a pod; the Lease is lost after so many looks at it."""
    looks = iter([True] * terms + [False] * 99)

    async def sleep(seconds: float) -> None:
        assert seconds >= 0

    return await PodWriter(api, lambda: next(looks), 1.0, sleep).admit_pod(entry()[0])


async def test_a_patch_without_an_answer_is_sent_again_and_looked_at() -> None:
    """It had been done: the second one finds no gate."""
    api = Api(Unreachable("x"), Invalid("test failed"), entry()[1])
    assert await admit(api) == WriteResult(WriteOutcome.DONE)
    assert api.verbs == ["patch", "patch", "get"]


async def test_without_an_answer_to_the_look_it_is_looked_again() -> None:
    """Who took the pod for not admitted would give its room away."""
    api = Api(Unreachable("x"), Invalid("test failed"), Unreachable("x"), Unreachable("x"), entry()[1])
    assert await admit(api) == WriteResult(WriteOutcome.DONE)
    assert api.verbs == ["patch", "patch", "get", "get", "get"]


async def test_the_look_waits_as_long_as_the_api_server_asks() -> None:
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    api = Api(Invalid("test failed"), TooManyRequests("busy", retry_after_s=4.0), entry()[1])
    await PodWriter(api, lambda: True, 1.0, sleep).admit_pod(entry()[0])
    assert sleeps == [4.0]


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        ((NotFound("gone"),), WriteOutcome.GONE),
        ((Conflict("x", cause="stale"), NotFound("gone")), WriteOutcome.GONE),
        ((Invalid("x"), {"metadata": {"uid": "another"}, "spec": {}}), WriteOutcome.GONE),
        (
            (Invalid("x"), {"metadata": {"uid": "uid-p"}, "spec": {"schedulingGates": [{"name": "g"}]}}),
            WriteOutcome.REFUSED,
        ),
        ((Invalid("x"), {"metadata": 1}), WriteOutcome.REFUSED),
    ],
    ids=["gone", "gone meanwhile", "another pod of that name", "gated by others", "rubbish"],
)
async def test_what_became_of_a_refused_patch(answers: tuple[Any, ...], written: WriteOutcome) -> None:
    assert (await admit(Api(*answers))).written is written


async def test_nothing_is_sent_once_the_lease_is_lost() -> None:
    api = Api(Unreachable("x"))
    assert await admit(api, terms=1) == WriteResult(WriteOutcome.REFUSED)
    assert api.verbs == ["patch"]
    api = Api(Unreachable("x"), Invalid("x"), Unreachable("x"))
    assert await admit(api, terms=3) == WriteResult(WriteOutcome.REFUSED)
    assert api.verbs == ["patch", "patch", "get"]


@pytest.mark.parametrize("error", [Forbidden("no"), Invalid("no")])
async def test_a_pod_that_is_as_it_was_is_refused_in_the_api_servers_words(error: KubeApiError) -> None:
    gated = entry()[0]
    raw: dict[str, Any] = {"metadata": {"uid": "uid-p", "resourceVersion": gated.record.resource_version}}
    raw["spec"] = {"schedulingGates": [{"name": "gpupack.io/queue"}]}
    assert await admit(Api(error, raw)) == WriteResult(WriteOutcome.REFUSED, "no")
    raw["metadata"]["resourceVersion"] = "999"
    assert await admit(Api(error, raw)) == WriteResult(WriteOutcome.REFUSED), (
        "it was not refused as it is now"
    )


async def test_others_have_their_turn_after_some_answers_that_say_nothing() -> None:
    """A webhook that is away makes the API server fail for the pods that it looks at, and not for others."""
    gated = entry()[0]
    raw: dict[str, Any] = {"metadata": {"uid": "uid-p", "resourceVersion": gated.record.resource_version}}
    raw["spec"] = {"schedulingGates": [{"name": "gpupack.io/queue"}]}
    api = Api(*[ServerError("webhook is away")] * TRIES, raw)
    assert await admit(api) == WriteResult(WriteOutcome.REFUSED, "webhook is away")


def test_a_term_without_conditions_stays_so() -> None:
    """It selects no node, and with the node in it it would select one: the API server refuses that."""
    world = QueueWorld()
    terms = [{"matchExpressions": [{"key": "z", "operator": "Exists"}]}, {}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    uid = world.pod("p", spec={"affinity": {"nodeAffinity": required}})
    paths = [step["path"] for step in make_admission_patch(world.queue.queued_pods[uid], "n1")]
    assert [path for path in paths if path.endswith("/0/matchFields")]
    assert not [path for path in paths if path.endswith("/1/matchFields")]


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ({}, WriteOutcome.DONE),
        (NotFound("gone"), WriteOutcome.GONE),
        (BudgetRefused("budget"), WriteOutcome.REFUSED),
        (Invalid("two budgets"), WriteOutcome.REFUSED),
        (Unauthorized("expired"), WriteOutcome.REFUSED),
        (Unreachable("reset", maybe_done=True), WriteOutcome.UNKNOWN),
        (TimedOut("no answer"), WriteOutcome.UNKNOWN),
    ],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
async def test_what_became_of_an_eviction(
    answer: KubeApiError | dict[str, Any], written: WriteOutcome
) -> None:
    """Who was not evicted is passed over for another one; who may have been is waited for."""
    api = Api(answer)
    found = await PodWriter(api, lambda: True, 1.0).evict_pod(entry()[0], lambda: True)
    assert (found.written, api.verbs) == (written, ["post"])


@pytest.mark.parametrize("error", [TooManyRequests("busy"), Unreachable("refused")], ids=str)
async def test_an_eviction_that_was_not_done_is_repeated_while_the_pod_is_to_go(error: KubeApiError) -> None:
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    async def evict(api: Api, is_wanted: Callable[[], bool] = lambda: True) -> tuple[WriteResult, list[str]]:
        writer = PodWriter(api, lambda: True, 1.0, sleep, lambda _low, high: high)
        return await writer.evict_pod(entry()[0], is_wanted), api.verbs

    assert await evict(Api(error, error, {})) == (WriteResult(WriteOutcome.DONE), ["post"] * 3)
    assert sleeps == [0.5, 1.0]
    refused = WriteResult(WriteOutcome.REFUSED, str(error))
    assert await evict(Api(*[error] * TRIES)) == (refused, ["post"] * TRIES)
    wanted = iter([True, False])
    assert await evict(Api(error), lambda: next(wanted)) == (WriteResult(WriteOutcome.REFUSED), ["post"])


def seen(**metadata: Any) -> dict[str, Any]:
    """The pod without its gate, as the queue knows it but for some metadata."""
    found, raw = entry()
    version = found.record.resource_version
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": version, **metadata}}


MARKED = {"annotations": {"gpupack.io/requeued": "true"}}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([{}], WriteResult(WriteOutcome.DONE)),
        ([NotFound("gone")], WriteResult(WriteOutcome.GONE)),
        ([Conflict("x", cause="stale"), seen(resourceVersion="99")], WriteResult(WriteOutcome.REFUSED)),
        ([Invalid("test failed"), seen(resourceVersion="99")], WriteResult(WriteOutcome.REFUSED)),
        ([Invalid("test failed"), seen(resourceVersion="99", **MARKED)], WriteResult(WriteOutcome.DONE)),
        ([Invalid("test failed"), seen(uid="another")], WriteResult(WriteOutcome.GONE)),
        ([Forbidden("no"), seen()], WriteResult(WriteOutcome.REFUSED, "no")),
        ([Invalid("no, says a policy"), seen()], WriteResult(WriteOutcome.REFUSED, "no, says a policy")),
        ([Unreachable("no answer")], WriteResult(WriteOutcome.UNKNOWN, "no answer")),
    ],
    ids=[
        "done",
        "gone",
        "stale",
        "changed",
        "done before",
        "another pod",
        "forbidden",
        "invalid",
        "no answer",
    ],
)
async def test_what_becomes_of_a_pod_that_is_requeued(answers: list[Any], expected: WriteResult) -> None:
    """A policy that refuses the mark may say that it is invalid, as is said of a pod that has changed."""
    assert await PodWriter(Api(*answers), lambda: True, 1.0).requeue_pod(entry()[0]) == expected


async def test_who_leads_no_more_sends_nothing() -> None:
    """Writes wait for their turn, and the next leader does not wait for those."""
    api = Api()
    writer = PodWriter(api, lambda: False, 1.0)
    pod = entry()[0]
    answers = [
        await writer.admit_pod(pod),
        await writer.requeue_pod(pod),
        await writer.evict_pod(pod, lambda: True),
    ]
    assert (answers, api.verbs) == ([WriteResult(WriteOutcome.REFUSED)] * 3, [])


async def test_a_release_of_a_requeued_pod_is_done_when_the_mark_is_gone() -> None:
    """Without an answer it is looked at: no gate is there in any case."""
    raw = entry()[1]
    marked = {**raw, "metadata": {**raw["metadata"], "annotations": {"gpupack.io/requeued": "true"}}}
    assert (await admit(Api(Invalid("no"), marked))).written is WriteOutcome.REFUSED
    assert (await admit(Api(Invalid("no"), raw))).written is WriteOutcome.DONE


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_release_names_the_cards_that_are_meant_for_the_pod_in_either_mode(node: str) -> None:
    """In `gate` mode the pod would else be given the cards that are kept free for others."""
    world = QueueWorld()
    plain, annotated = world.pod("p"), world.pod("q", annotations={"x": "y"})
    patch = make_admission_patch(world.queue.queued_pods[annotated], node, ["GPU-n1-0"])
    assert patch[-1] == {
        "op": "add",
        "path": "/metadata/annotations/gpupack.io~1planned",
        "value": "GPU-n1-0",
    }
    *_, test, add = make_admission_patch(world.queue.queued_pods[plain], node, ["GPU-n1-0"])
    assert add["path"] == "/metadata/annotations"
    assert test["path"] == "/metadata/resourceVersion", "an annotation that was not seen is not lost"


async def test_whether_a_pod_was_bound_is_asked_again_with_the_jitter_of_the_writer() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    api = Api(Unreachable("x"), Unreachable("x"), entry()[1])
    writer = PodWriter(api, lambda: True, 1.0, sleep, lambda low, high: (low + high) / 4)
    assert await writer.find_node(entry()[0]) == WriteResult(WriteOutcome.REFUSED)
    assert slept == [2.0, *slept[1:]]
    assert slept[2] == 2 * slept[1]
