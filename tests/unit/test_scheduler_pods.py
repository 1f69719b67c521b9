import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE, POD_ALLOCATION, POD_ASSIGNED
from kubeapi.metadata import parse_resource_version
from scheduler_plugin.cache.pods import read_pod, requests_cards, sum_host_requests
from tests.cluster_builders import GIB, MEMORY, container, pod


def test_a_pod_that_asks() -> None:
    record = read_pod(pod("a", 8, version=7, node="n1", phase="Running", spec={"priority": 5}), MEMORY)
    assert (record.uid, record.namespace, record.name) == ("uid-a", "default", "a")
    assert (record.resource_version, record.version, record.node) == ("7", 7, "n1")
    assert record.priority == 5
    assert not record.ended
    assert record.request is not None
    assert record.request.effective_units == 8
    assert record.charged is record.request
    assert (record.amounts.cpu_milli, record.amounts.memory_bytes) == (1000, GIB)
    assert record.assigned is None
    assert record.allocated is None


def test_a_pod_that_does_not_ask_is_not_looked_at_closely() -> None:
    plain = pod("a", containers=[{"name": "c", "resources": {"requests": {"cpu": "250m"}}}, {"name": "d"}])
    plain.metadata.annotations = {"gpupack.io/cards": "rubbish", POD_ASSIGNED: "rubbish"}
    record = read_pod(plain, MEMORY)
    assert record.request is None
    assert record.charged is None
    assert record.error == ""
    assert record.amounts.cpu_milli == 250


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([{"name": "c"}], [], False),
        ([{"name": "c", "resources": {"limits": {MEMORY: "1"}}}], [], True),
        ([{"name": "c", "resources": {"requests": {MEMORY: "1"}}}], [], True),
        ([{"name": "c"}], [{"name": "i", "resources": {"limits": {MEMORY: "1"}}}], True),
        ([{"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": {}}}], [], False),
        ([{"name": "c", "resources": {"limits": {COMPUTE_RESOURCE: "30"}}}], [], True),
    ],
)
def test_asks(containers: list[dict[str, Any]], init: list[dict[str, Any]], expected: bool) -> None:
    assert requests_cards(pod("a", containers=containers, init=init), MEMORY) is expected


def test_a_pod_that_asks_for_compute_alone_is_refused_and_not_placed_as_if_it_asked_for_nothing() -> None:
    alone = [{"name": "c", "resources": {"limits": {COMPUTE_RESOURCE: "30"}}}]
    record = read_pod(pod("a", containers=alone), MEMORY)
    assert (record.request, record.charged) == (None, None)
    assert record.error.startswith(f'container "c" asks for {COMPUTE_RESOURCE}: 30 alone; allowed: beside')


def test_a_pod_with_impossible_annotations_is_still_charged() -> None:
    record = read_pod(pod("a", 8, annotations={"gpupack.io/cards": "0"}), MEMORY)
    assert record.request is None
    assert "gpupack.io/cards" in record.error
    assert record.charged is not None
    assert record.charged.effective_units == 8


def test_a_pod_with_an_impossible_quantity_is_charged_nothing() -> None:
    record = read_pod(pod("a", containers=[container("c", "1500m")]), MEMORY)
    assert record.request is None
    assert record.charged is None
    assert "1500m" in record.error


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended(phase: str) -> None:
    assert read_pod(pod("a", phase=phase), MEMORY).ended


def test_cards_of_binding_and_node() -> None:
    record = read_pod(
        pod(
            "a",
            4,
            annotations={
                POD_ASSIGNED: '{"main":[["GPU-x",4]]}',
                POD_ALLOCATION: '{"uid":"uid-a","containers":{"main":[["GPU-y",4]]}}',
            },
        ),
        MEMORY,
    )
    assert record.assigned == {"main": (("GPU-x", 4),)}
    assert record.allocated == {"main": (("GPU-y", 4),)}


@pytest.mark.parametrize(
    "allocation",
    ['{"uid":"another","containers":{"main":[["GPU-y",4]]}}', "rubbish"],
    ids=["copied", "rubbish"],
)
def test_cards_that_say_nothing(allocation: str) -> None:
    record = read_pod(pod("a", 4, annotations={POD_ASSIGNED: "{]", POD_ALLOCATION: allocation}), MEMORY)
    assert record.assigned is None
    assert record.allocated is None


def test_what_preemption_reads() -> None:
    record = read_pod(
        pod(
            "p",
            4,
            labels={"app": "web"},
            deleted="2027-01-15T08:00:30Z",
            status={"nominatedNodeName": "n", "startTime": "2027-01-15T08:00:00Z"},
            annotations={"kubernetes.io/config.mirror": "x"},
        ),
        MEMORY,
    )
    assert (record.grace_ends_at, record.started_at) == (1_800_000_030.0, 1_800_000_000.0)
    assert (record.labels, record.nominated, record.is_mirror) == ({"app": "web"}, "n", True)
    bound = read_pod(pod("p", 4, node="n", status={"nominatedNodeName": "n"}), MEMORY)
    assert (bound.nominated, bound.grace_ends_at, bound.started_at, bound.is_mirror) == ("", None, 0.0, False)
    plain = read_pod(pod("p", containers=[{"name": "c"}], labels={"app": "web"}, deleted="x"), MEMORY)
    assert (plain.labels, plain.grace_ends_at) == ({}, 0.0)


def test_times_that_cannot_be_read_are_long_ago() -> None:
    record = read_pod(pod("p", 4, deleted="soon", status={"startTime": "9" * 30}), MEMORY)
    assert (record.grace_ends_at, record.started_at) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"preemptionPolicy": "PreemptLowerPriority"}, True),
        ({"preemptionPolicy": "Never"}, False),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}}, True),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}}, True),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, True),
    ],
    ids=repr,
)
def test_may_preempt(spec: dict[str, Any], expected: bool) -> None:
    assert pod("p", 4, spec=spec).spec.can_preempt is expected


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("", 0), ("-1", 0), ("abc", 0), ("٣", 0)], ids=repr)
def test_version_number(text: str, number: int) -> None:
    assert parse_resource_version(text) == number


def requests(**cpu: str) -> list[dict[str, Any]]:
    return [{"name": name, "resources": {"requests": {"cpu": value}}} for name, value in cpu.items()]


def test_host_requests_follow_kubernetes() -> None:
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "300m"}}}
    early = {"name": "i1", "resources": {"requests": {"cpu": "2"}}}
    late = {"name": "i2", "resources": {"requests": {"cpu": "1800m"}}}
    made = pod("a", containers=requests(a="500m", b="1"), init=[early, sidecar, late])
    # Main containers and sidecar: 1.8; the late init container beside the sidecar: 2.1.
    assert sum_host_requests(made)[0] == 2100
    made = pod("a", containers=requests(a="2", b="1"), init=[early, sidecar, late])
    assert sum_host_requests(made)[0] == 3300


def test_pods_that_differ_in_little_are_not_taken_for_each_other() -> None:
    """What is read of a pod's request is remembered for those that ask for the same."""
    other = {"name": "i", "resources": {"requests": {"cpu": "500m"}}}
    specs = (
        {},
        {"overhead": {"cpu": "1"}},
        {"resources": {"requests": {"cpu": "3"}}},
        {"initContainers": [other]},
        {"initContainers": [other | {"restartPolicy": "Always"}]},
    )
    found = [read_pod(pod("a", 4, spec=spec), MEMORY).amounts.cpu_milli for spec in specs]
    assert found == [1000, 2000, 3000, 1000, 1500]


def test_host_requests_default_to_limits_and_take_the_pod_s_own() -> None:
    amounts = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    limited = [{"name": "a", "resources": amounts}]
    assert sum_host_requests(pod("a", containers=limited)) == (1000, GIB)
    only = [{"name": "a", "resources": {"limits": {"cpu": "2"}}}]
    assert sum_host_requests(pod("a", containers=only, spec={"overhead": {"cpu": "100m"}})) == (2100, 0)
    whole = {"resources": {"requests": {"cpu": "5"}}, "overhead": {"cpu": "1"}}
    assert sum_host_requests(pod("a", containers=only, spec=whole))[0] == 6000


def test_host_requests_that_cannot_be_read_count_as_none() -> None:
    odd = [{"name": "a", "resources": {"requests": {"cpu": "much", "memory": "-1"}}}]
    assert sum_host_requests(pod("a", containers=odd)) == (0, 0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"affinity": {}}, False),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
    ],
    ids=json.dumps,
)
def test_has_preferences(spec: dict[str, Any], expected: bool) -> None:
    assert pod("a", spec=spec).spec.has_preferences is expected


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_pods_may_be_read_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As who uses gpupack as a library may; what is thrown out of the memory is thrown out once."""

    class Eager(dict[Any, Any]):
        """Lets other threads have a turn between the choice of the oldest and its end."""

        def __iter__(self) -> Iterator[Any]:
            for key in super().__iter__():
                turn.wait(0.001)
                yield key

    turn = Event()
    monkeypatch.setattr("scheduler_plugin.cache.pods._MAX_PARSED", 1)
    monkeypatch.setattr("scheduler_plugin.cache.pods._parsed_requests", Eager())
    units = list(range(1, 80)) * 2
    pods = [pod(f"p{number}", number) for number in units]
    with ThreadPoolExecutor(4) as threads:
        read = list(threads.map(lambda one: read_pod(one, MEMORY), pods))
    assert [one.request and one.request.effective_units for one in read] == units
