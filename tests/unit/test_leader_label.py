"""The label of the leader's pod: there while it leads, on no other pod, mended after every failure."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from kubeapi.errors import Conflict, Forbidden, KubeApiError, NotFound, Unreachable
from kubeapi.leaderlabel import DELETION_COST, LONGEST_RETRY_S, LOOK_S, WRITE_AGAIN_S, LeaderLabel
from tests.api_requests import ApiRequests

LABEL, VALUE = "gpupack.io/leader", "lease"
PODS = "/api/v1/namespaces/ns/pods"


class World(ApiRequests):
    """Pods of a namespace with their labels, and who leads.

    Attributes:
        leader: Name of the pod that leads.
        labels: By pod.
        costs: What it costs to delete a pod, by pod.
        failures: Raised by the next requests, one each.
        lists: In place of a list of pods.
    """

    def __init__(self, *pods: str) -> None:
        super().__init__()
        self.leader = ""
        self.labels: dict[str, dict[str, str]] = {pod: {"app": "a"} for pod in pods}
        self.costs: dict[str, str] = {}
        self.failures: list[KubeApiError] = []
        self.lists: bytes | None = None
        self.now = 100.0

    def label(self, pod: str) -> LeaderLabel:
        return LeaderLabel(
            self, "ns", pod, LABEL, VALUE, lambda: self.leader == pod, 4.0, clock=lambda: self.now
        )

    @property
    def labelled(self) -> list[str]:
        return sorted(pod for pod, labels in self.labels.items() if labels.get(LABEL) == VALUE)

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        assert timeout_s == 4.0
        return await super().ask(verb, path, body, timeout_s)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        if verb == "get":
            assert (path, body) == (PODS, {"labelSelector": f"{LABEL}={VALUE}"})
            items = [{"metadata": {"name": pod, "uid": f"uid-{pod}", "labels": {}}} for pod in self.labelled]
            return {"items": items} if self.lists is None else self.lists
        pod, part = path.removeprefix(f"{PODS}/").split("/")
        assert part == "status"
        if pod not in self.labels:
            raise NotFound("no pod", status=404)
        metadata = body["metadata"]
        if metadata.get("uid", f"uid-{pod}") != f"uid-{pod}":
            raise Conflict("another pod")
        merge(self.labels[pod], metadata["labels"])
        merge(self.costs, {pod: metadata["annotations"][DELETION_COST]})
        return {}


def merge(old: dict[str, str], patch: Mapping[str, str | None]) -> None:
    for key, value in patch.items():
        if value is None:
            old.pop(key, None)
        else:
            old[key] = value


async def test_the_pod_has_the_label_while_it_leads() -> None:
    world = World("a")
    label = world.label("a")
    await label._write_if_due()
    assert world.labelled == []
    world.leader = "a"
    await label._write_if_due()
    assert (world.labels["a"], world.costs) == ({"app": "a", LABEL: VALUE}, {"a": "100"})
    world.leader = ""
    await label._write_if_due()
    assert (world.labels["a"], world.costs) == ({"app": "a"}, {})


async def test_a_process_that_begins_takes_off_what_the_one_before_it_left() -> None:
    world = World("a")
    world.labels["a"][LABEL] = VALUE
    await world.label("a")._write_if_due()
    assert world.labelled == []


async def test_a_new_leader_takes_the_label_from_one_that_is_cut_off() -> None:
    world = World("a", "b", "c")
    world.labels["a"][LABEL] = world.labels["c"][LABEL] = VALUE
    world.leader = "b"
    await world.label("b")._write_if_due()
    assert world.labelled == ["b"]


async def test_a_pod_that_ends_meanwhile_is_no_failure() -> None:
    world = World("b")
    world.leader = "b"
    world.lists = json.dumps({"items": [{"metadata": {"name": "gone", "uid": "uid-gone"}}]}).encode()
    label = world.label("b")
    await label._write_if_due()
    requests = len(world.asked)
    await label._write_if_due()
    assert (world.labelled, len(world.asked)) == (["b"], requests)


async def test_who_led_until_a_moment_ago_takes_no_label_away() -> None:
    world = World("a", "b")
    world.labels["b"][LABEL] = VALUE
    world.leader = "a"
    label = world.label("a")
    get = world.get

    async def late(path: str, **options: object) -> bytes:
        body = await get(path, **options)  # type: ignore[arg-type]
        world.leader = "b"
        return body

    world.get = late  # type: ignore[method-assign, assignment]
    await label._write_if_due()
    assert "b" in world.labelled
    await label._write_if_due()
    assert world.labelled == ["b"]


async def test_nothing_is_written_while_nothing_changes_but_a_lost_label_comes_back() -> None:
    world = World("a")
    world.leader = "a"
    label = world.label("a")
    await label._write_if_due()
    requests = len(world.asked)
    del world.labels["a"][LABEL]
    world.now += WRITE_AGAIN_S - 0.1
    await label._write_if_due()
    assert (len(world.asked), world.labelled) == (requests, [])
    world.now += 0.1
    await label._write_if_due()
    assert world.labelled == ["a"]


@pytest.mark.parametrize("leads", [True, False])
async def test_a_failed_write_is_tried_again(leads: bool) -> None:
    world = World("a")
    world.leader = "" if leads else "a"
    label = world.label("a")
    await label._write_if_due()
    world.leader = "a" if leads else ""
    for _ in range(3):
        world.failures = [Unreachable("refused")]
        world.now += LONGEST_RETRY_S
        await label._write_if_due()
        assert bool(world.labelled) is not leads
    world.now += LONGEST_RETRY_S
    await label._write_if_due()
    assert bool(world.labelled) is leads


@pytest.mark.parametrize("leads", [True, False])
async def test_an_api_server_that_goes_on_refusing_is_asked_less_often(leads: bool) -> None:
    """Rights that are not there yet, in every replica: it is not asked five times a second for hours."""
    world = World("a")
    world.leader = "a" if leads else ""
    label = world.label("a")
    for _ in range(round(60 / LOOK_S)):
        world.failures = [Forbidden("no")]
        await label._write_if_due()
        world.now += LOOK_S
    assert 60 / LONGEST_RETRY_S <= len(world.asked) <= 2 * 60 / LONGEST_RETRY_S + 10


async def test_a_change_of_the_leader_waits_for_no_pause() -> None:
    world = World("a")
    label = world.label("a")
    for _ in range(round(10 / LOOK_S)):
        world.failures = [Forbidden("no")]
        await label._write_if_due()
        world.now += LOOK_S
    world.failures, world.leader = [], "a"
    await label._write_if_due()
    assert world.labelled == ["a"]


async def test_a_list_that_cannot_be_read_is_asked_for_again() -> None:
    world = World("a", "b")
    world.labels["b"][LABEL] = VALUE
    world.leader, world.lists = "a", b"<html>"
    label = world.label("a")
    await label._write_if_due()
    assert world.labelled == ["a", "b"]
    world.lists = None
    world.now += LONGEST_RETRY_S
    await label._write_if_due()
    assert world.labelled == ["a"]


async def test_it_goes_on_until_cancelled() -> None:
    world = World("a")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.leader = "a"
        if len(slept) == 3:
            raise asyncio.CancelledError

    label = LeaderLabel(world, "ns", "a", LABEL, VALUE, lambda: world.leader == "a", 4.0, sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await label.run()
    assert (world.labelled, slept) == (["a"], [LOOK_S] * 3)
