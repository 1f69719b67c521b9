"""The condition PodScheduled of pods that wait for batch mode."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from kubeapi.errors import Conflict, Invalid, NotFound, ServerError
from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.controller.batch_conditions import PACE_S, BatchConditions, make_condition
from scheduler_plugin.queue.controller.status import WaitReason
from tests.api_requests import ApiRequests
from tests.queue_world import QueueWorld

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (WaitReason.ROOM, "Unschedulable"),
        (WaitReason.NEVER, "Unschedulable"),
        (WaitReason.QUOTA, "Quota"),
        (WaitReason.TURN, "Turn"),
        (WaitReason.REFUSED, "Refused"),
    ],
)
def test_an_autoscaler_reads_unschedulable_only_where_nodes_would_help(reason: WaitReason, said: str) -> None:
    condition = make_condition(reason, "x" * 2000, NOW)
    assert (condition["status"], condition["reason"]) == ("False", said)
    assert condition["message"] == "x" * 1023 + "…"


async def test_the_newest_reason_is_written_for_pods_of_batch_mode_that_still_wait() -> None:
    world = QueueWorld()
    spec = {"schedulerName": BATCH_SCHEDULER}
    uids = [world.pod(name, gates=(), spec=spec) for name in ("gone", "p", "leaving")]
    gated = world.pod("gated")

    class Api(ApiRequests):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            if "gone" in path:
                raise NotFound("gone", status=404)
            return {}

    api = Api()

    async def sleep(_seconds: float) -> None:
        await asyncio.sleep(0)

    conditions = BatchConditions(api, lambda: True, lambda: False, 1.0, sleep=sleep)
    queued_pods = world.queue.queued_pods
    for uid in (*uids, gated):
        conditions.record_reason(queued_pods[uid], WaitReason.ROOM, "first")
    conditions.record_reason(queued_pods[uids[1]], WaitReason.QUOTA, "then")
    queued_pods[uids[2]].phase = Phase.ADMITTED
    running = asyncio.create_task(conditions.run())
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    pods = "/api/v1/namespaces/default/pods"
    assert api.asked == [("patch", f"{pods}/{name}/status") for name in ("gone", "p")]
    written = [body["status"]["conditions"][0] for body in api.bodies]
    assert [(each["type"], each["reason"]) for each in written] == [
        ("PodScheduled", "Unschedulable"),
        ("PodScheduled", "Quota"),
    ]
    assert [body["metadata"] for body in api.bodies] == [{"uid": uids[0]}, {"uid": uids[1]}]


async def test_a_condition_that_could_not_be_written_is_written_later() -> None:
    """An autoscaler would never hear of a pod that waits for the same reason from then on."""
    world = QueueWorld()
    names = ("late", "p", "other", "odd")
    uids = [world.pod(name, gates=(), spec={"schedulerName": BATCH_SCHEDULER}) for name in names]
    answers = {
        "late": [ServerError("no leader of etcd", status=500)],
        "other": [Conflict("UID in precondition", status=409, cause="uid")],
        "odd": [Invalid("a webhook wants it otherwise", status=422)],
    }

    class Api(ApiRequests):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            for error in answers.pop(path.split("/")[-2], []):
                raise error
            return {}

    api, slept = Api(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    conditions = BatchConditions(api, lambda: True, lambda: False, 1.0, sleep=sleep)
    for uid in uids:
        conditions.record_reason(world.queue.queued_pods[uid], WaitReason.ROOM, "no room")
    running = asyncio.create_task(conditions.run())
    for _ in range(40):
        await asyncio.sleep(0)
    running.cancel()
    pods = "/api/v1/namespaces/default/pods"
    assert api.asked == [("patch", f"{pods}/{name}/status") for name in (*names, "late")]
    assert sum(seconds > PACE_S for seconds in slept) == 1, "a pause after the failure alone"
