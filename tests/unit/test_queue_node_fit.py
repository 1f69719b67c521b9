"""What kube-scheduler counts on a node beside cards, cpu and memory keeps a pod of the queue waiting, too."""

from typing import Any

import msgspec
import pytest

from kubeapi.objects import Pod
from scheduler_plugin.queue.cache.pods import read_queue_info
from tests.cluster_builders import container, in_percent, pod_object
from tests.queue_world import ONE_QUEUE, QueueWorld

NIC = "example.com/nic"


@pytest.mark.parametrize("pods", ["1", ""])
def test_a_node_that_takes_no_more_pods_takes_none_of_the_queue(pods: str) -> None:
    world = QueueWorld(ONE_QUEUE)
    world.node("n1", (16, 16), resources={"pods": pods or "0"})
    world.pod("first", 4)
    assert world.admitted() == (["first"] if pods else [])
    world.pod("second", 4)
    assert world.admitted() == []


def test_a_pod_without_requests_takes_a_place_and_gives_it_back() -> None:
    world = QueueWorld(ONE_QUEUE)
    world.node("n1", (16, 16), resources={"pods": "1"})
    other: dict[str, Any] = pod_object("other", 0, node="n1", containers=[{"name": "main"}], version=5)
    world.state.apply_pod(msgspec.convert(other, Pod), 0.0)
    world.pod("waiting", 4)
    assert world.admitted() == []
    world.state.delete_pod(msgspec.convert(other, Pod), "6", 0.0)
    assert world.admitted() == ["waiting"]


@pytest.mark.parametrize(
    ("resource", "offered", "fits"),
    [
        pytest.param(NIC, "1", True, id="offered"),
        pytest.param(NIC, "0", True, id="a-DeviceClass-may-serve-it"),
        pytest.param("hugepages-2Mi", "0", False, id="no-DeviceClass-can"),
    ],
)
def test_further_resources_must_be_left_unless_a_device_class_may_serve_them(
    resource: str, offered: str, fits: bool
) -> None:
    world = QueueWorld(ONE_QUEUE)
    world.node("n1", (16, 16), resources={resource: offered})
    asks = {"name": "main", "resources": {"limits": {resource: "1", "gpupack.io/gpu-memory-gib": "4"}}}
    world.pod("waiting", 4, containers=[asks])
    assert world.admitted() == (["waiting"] if fits else [])


def test_a_condition_without_a_time_is_read() -> None:
    raw: dict[str, Any] = pod_object("p", 4)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
        | {"lastTransitionTime": None}
    ]
    assert read_queue_info(msgspec.convert(raw, Pod)).unschedulable == " full"


@pytest.mark.parametrize("asks", [container(units=4), in_percent(50)], ids=["units", "percent"])
def test_a_pod_is_admitted_as_soon_as_the_kubelet_offers_the_sum(asks: dict[str, object]) -> None:
    """Nothing else changes with it: words, labels and pods stay as they are."""
    world = QueueWorld(ONE_QUEUE)
    world.node("n1", (16, 16), allocatable_units=None)
    world.pod("waiting", containers=[asks])
    assert world.admitted() == []
    world.node("n1", (16, 16))
    assert world.admitted() == ["waiting"]


@pytest.mark.parametrize(("resource", "many"), [("pods", 2), (NIC, 4)])
@pytest.mark.parametrize("is_enough", [True, False])
def test_a_gang_needs_what_all_of_its_pods_ask_for(resource: str, many: int, *, is_enough: bool) -> None:
    world = QueueWorld(ONE_QUEUE)
    world.node("n1", (16, 16), resources={resource: str(many if is_enough else many - 1)})
    for name in ("p", "q"):
        world.pod(
            name,
            containers=[container(units=4, resources={NIC: "2"} if resource == NIC else {})],
            gang="g",
            size=2,
        )
    assert world.admitted() == (["p", "q"] if is_enough else [])
