"""The extender's log lines and Events about pods."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog.testing

from allocator.names import POD_ASSIGNED, POD_REQUEUED
from kubeapi.lease import SOLE_PROCESS
from kubeapi.objects import Pod
from scheduler_plugin.extender.pod_events import PodReporter
from scheduler_plugin.extender.protocol import BindArgs
from tests.cluster_builders import pod, pod_object, uuid
from tests.extender_world import World


class Told:
    """A reporter on a world, with what it said."""

    def __init__(self, leadership: object = SOLE_PROCESS) -> None:
        self.world = World()
        self.world.node("a", (16, 16), (8, 10))
        self.now = 100.0
        self.events: list[tuple[str, str, str, str]] = []
        recorder = SimpleNamespace(event=self._event)
        self.reporter = PodReporter(
            self.world.state, lambda: self.now, cast("Any", recorder), cast("Any", leadership)
        )

    def _event(self, ref, kind, reason, message) -> None:
        self.events.append((f"{ref.namespace}/{ref.name}/{ref.uid}", kind, reason, message))

    def filter(self, units: int, *names: str, **options: Any) -> None:
        body = self.world.body(pod_object("p", units, **options), names or None)
        self.reporter.report_filter(self.world.extender.filter(body, 0))

    def see(self, the_pod: Pod) -> None:
        self.world.state.apply_pod(the_pod, 0)
        self.reporter.report_unasked(self.world.extender, the_pod)

    def bind(self, *shares: Any) -> None:
        self.world.state.apply_pod(pod("p", 9), 0)
        self.world.state.assume("uid-p", "a", dict(shares) or None, 0)
        args = BindArgs(pod_name="p", pod_namespace="default", pod_uid="uid-p", node="a")
        self.reporter.report_bound(args, 0.01234)


@pytest.fixture
def told() -> Told:
    return Told()


WAITS = (
    "0/1 nodes can take 9 GiB: 1 no card with 9 GiB free. Largest free card: 8 GiB on node a; "
    "all cards together: 14 GiB."
)


def test_of_a_call_without_nodes_there_is_nothing_to_tell(told: Told) -> None:
    body = told.world.body(pod_object("p", 9), [])
    told.reporter.report_filter(told.world.extender.filter(body, 0))
    assert told.events == []


def test_a_pod_that_waits_is_told_once_until_it_does_not(told: Told) -> None:
    with structlog.testing.capture_logs() as said:
        for _ in range(100):
            told.filter(9)
        told.now += 7.25
        told.world.node("b", (16,))
        for _ in range(3):
            told.filter(9)
    assert told.events == [("default/p/uid-p", "Warning", "WaitingForCards", WAITS)]
    assert said == [
        {"event": "pod waits", "pod": "default/p", "why": WAITS, "log_level": "info"},
        {
            "event": "pod waits no longer",
            "pod": "default/p",
            "why": "a node has room",
            "waited_s": 7.2,
            "log_level": "info",
        },
    ]


@pytest.mark.parametrize("how", ["bound to node b", "gone"])
def test_a_pod_that_waits_no_longer_for_another_reason(told: Told, how: str) -> None:
    told.world.state.apply_pod(pod("p", 9), 0)
    told.filter(9)
    with structlog.testing.capture_logs() as said:
        if how == "gone":
            told.world.state.delete_pod(pod("p", 9, version=2), "3", 0)
        else:
            told.world.state.apply_pod(pod("p", 9, version=2, node="b"), 0)
    assert [(line["event"], line["why"]) for line in said] == [("pod waits no longer", how)]
    assert not told.reporter.unschedulable_pods.count_by_reason()["not_free"]


UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}]
}


def test_a_request_beyond_every_nodes_sum_is_told_with_numbers_though_nobody_asked(told: Told) -> None:
    """kube-scheduler adds up a node's GPU memory itself, and says no more than `Insufficient`."""
    told.world.node("plain", None)
    for _ in range(2):
        told.see(pod("p", 99, status=UNSCHEDULABLE))
    text = (
        "0/1 nodes can take 99 GiB: 1 no healthy card of 99 GiB or more. Largest free card: 8 GiB on node a; "
        "all cards together: 14 GiB."
    )
    assert told.events == [("default/p/uid-p", "Warning", "WaitingForCards", text)]
    assert told.reporter.unschedulable_pods.has_refused("uid-p")


def test_a_refusal_that_the_other_replica_told_kube_scheduler_is_not_told_again(told: Told) -> None:
    """Each replica sees the pod's condition; only one of them was asked."""
    message = "0/1 nodes are available: 1 no healthy card of 99 GiB or more."
    (condition,) = UNSCHEDULABLE["conditions"]
    told.see(pod("p", 99, status={"conditions": [{**condition, "message": message}]}))
    assert told.events == []
    assert not told.reporter.unschedulable_pods.has_refused("uid-p")


def test_a_node_whose_kubelet_lost_the_plugin_is_told_though_nobody_asked(told: Told) -> None:
    told.world.node("a", (16, 16), (8, 10), allocatable_units=0)
    told.see(pod("p", 4, status=UNSCHEDULABLE))
    (event,) = told.events
    assert event[3].startswith("0/1 nodes can take 4 GiB: 1 the node's kubelet has no gpupack device plugin")


@pytest.mark.parametrize(
    ("units", "options"),
    [
        (6, {"status": UNSCHEDULABLE}),
        (99, {}),
        (99, {"status": UNSCHEDULABLE, "spec": {"schedulerName": "gpupack-batch"}}),
        (99, {"status": UNSCHEDULABLE, "spec": {"schedulerName": "gpupack-placeholder"}}),
        (99, {"status": UNSCHEDULABLE, "annotations": {POD_REQUEUED: "x"}}),
        (0, {"status": UNSCHEDULABLE, "containers": [{"name": "main"}]}),
    ],
    ids=["a-node-has-the-cards", "not-refused", "batch-mode", "placeholder", "requeued", "no-cards"],
)
def test_what_is_not_for_want_of_cards_is_not_told(told: Told, units: int, options: Any) -> None:
    told.see(pod("p", units, **options))
    assert told.events == []


def test_what_filter_has_told_is_not_told_again(told: Told) -> None:
    told.filter(9)
    told.see(pod("p", 9, status=UNSCHEDULABLE))
    assert [event[3] for event in told.events] == [WAITS]


def test_a_pod_that_is_bound_is_told_with_its_cards(told: Told) -> None:
    told.filter(9)
    with structlog.testing.capture_logs() as said:
        told.bind(("main", ((uuid("a", 1), 9),)))
    cards = "card 1 (GPU-a-1) 9 GiB"
    assert told.events[1:] == [
        ("default/p/uid-p", "Normal", "CardsAssigned", f"Assigned on node a: {cards}"),
    ]
    assert said[0] == {
        "event": "bound",
        "pod": "default/p",
        "node": "a",
        "cards": cards,
        "ms": 12.3,
        "log_level": "info",
    }
    assert (said[1]["event"], said[1]["why"]) == ("pod waits no longer", "bound")


def test_containers_are_named_where_there_are_more_than_one(told: Told) -> None:
    told.bind(("main", ((uuid("a", 0), 4), (uuid("a", 1), 4))), ("side", (("GPU-of-before", 1),)))
    (event,) = told.events
    assert event[3] == (
        "Assigned on node a: main: card 0 (GPU-a-0) 4 GiB, card 1 (GPU-a-1) 4 GiB; "
        "side: card ? (GPU-of-befor) 1 GiB"
    )


def test_cards_come_from_the_pod_once_it_is_seen_bound(told: Told) -> None:
    assigned = f'{{"main":[["{uuid("a", 1)}",9]]}}'
    told.world.state.apply_pod(pod("p", 9, node="a", annotations={POD_ASSIGNED: assigned}), 0)
    args = BindArgs(pod_name="p", pod_namespace="default", pod_uid="uid-p", node="a")
    told.reporter.report_bound(args, 0.001)
    assert told.events[0][3] == "Assigned on node a: card 1 (GPU-a-1) 9 GiB"


def test_a_pod_without_cards_gets_no_event(told: Told) -> None:
    with structlog.testing.capture_logs() as said:
        told.bind()
    assert (told.events, said[0]["cards"]) == ([], "")


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leader_writes_events(leads: bool) -> None:
    told = Told(SimpleNamespace(is_leader=leads))
    told.filter(9)
    assert len(told.events) == leads


def test_a_pod_that_asks_for_nothing_is_not_told_of(told: Told) -> None:
    with structlog.testing.capture_logs() as said:
        told.filter(0, containers=[{"name": "main"}])
        told.filter(8, "a")
    assert (told.events, said) == ([], [])
