"""What people are told of pods that wait: the text with its numbers, and when it is news."""

import pytest

from allocator.names import COMPUTE_RESOURCE, PLACEHOLDER_LABEL, PLACEHOLDER_SCHEDULER
from scheduler_plugin.cache.reservations import Reservation
from scheduler_plugin.extender.unschedulable_pods import REPEAT_AFTER_S, UnschedulablePod, UnschedulablePods
from scheduler_plugin.scheduling.reasons import FilterReason
from tests.cluster_builders import container, in_percent, pod, pod_object
from tests.extender_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", (16, 16), (8, 10))
    world.node("b", (16, 16), (12, 16))
    world.node("small", (4,))
    world.node("bare", None)
    return world


def refusal(world: World, the_pod, *names: str) -> UnschedulablePod:
    found = world.extender.filter(world.body(the_pod, names or None), 0).unschedulable
    assert found is not None
    return found


def two_cards(*args, **spec):
    return pod_object("p", *args, annotations={"gpupack.io/cards": "2"}, **spec)


@pytest.mark.parametrize(
    ("the_pod", "amount", "lacks_free", "lacks_size", "free"),
    [
        pytest.param(
            pod_object("p", 9),
            "9 GiB",
            "no card with 9 GiB free",
            "no healthy card of 9 GiB or more",
            "",
            id="one card",
        ),
        pytest.param(
            two_cards(16),
            "2 x 8 GiB",
            "no 2 cards with 8 GiB free each",
            "no 2 healthy cards of 8 GiB or more",
            "; cards with 8 GiB free on one node: 1",
            id="two cards",
        ),
        pytest.param(
            pod_object("p", containers=[container("c", 8), container("d", 7)]),
            "8 GiB + 7 GiB",
            "no cards with 8 GiB + 7 GiB free",
            "no healthy cards that hold 8 GiB + 7 GiB together",
            "",
            id="two containers",
        ),
        pytest.param(
            two_cards(containers=[in_percent(200)]),
            "2 x 100 percent",
            "no 2 cards with 100 percent free each",
            "no 2 healthy cards of which 100 percent is a unit",
            "; cards with 100 percent free on one node: 1",
            id="a share",
        ),
    ],
)
def test_the_text_has_the_numbers_of_the_moment(world: World, the_pod, amount, lacks_free, lacks_size, free):
    found = refusal(world, the_pod)
    assert found.label == "not_free"
    assert found.format_text(world.state) == (
        f"0/4 nodes can take {amount}: 2 {lacks_free}, 1 {lacks_size}, 1 no gpupack words on the node. "
        f"Largest free card: 8 GiB on node a; all cards together: 22 GiB{free}."
    )


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("*H100*", """The pod's gpu-model is "*h100*"; the cluster has NVIDIA A100."""),
        (
            "A100,H100,!B200",
            (
                """The pod's gpu-model is "a100, h100, !b200"; the cluster has NVIDIA A100; "*a100*" """
                "would match: a pattern without stars is the whole name."
            ),
        ),
    ],
)
def test_the_text_has_the_models_that_there_are(world: World, models, told) -> None:
    found = refusal(world, pod_object("p", 2, annotations={"gpupack.io/gpu-model": models}))
    assert found.label == "no_such_card"
    assert found.format_text(world.state) == (
        "0/4 nodes can take 2 GiB: 3 no card of the cluster that the pod's gpu-model and gpu-uuid admit, "
        f"1 no gpupack words on the node. {told}"
    )


def test_a_selector_that_nothing_matches_is_shown_beside_the_models_that_there_are(world: World) -> None:
    for number in range(14):
        world.node(f"m{number:02}", (16,), models=(f"Model {number:02}",))
    annotations = {"gpupack.io/gpu-model": "*A10O*,!*T4*", "gpupack.io/gpu-uuid": "GPU-1"}
    text = refusal(world, pod_object("p", 2, annotations=annotations)).format_text(world.state)
    models = ", ".join(f"Model {number:02}" for number in range(12))
    assert text.endswith(
        """The pod's gpu-model is "*a10o*, !*t4*" and gpu-uuid is "GPU-1"; """
        f"the cluster has {models} and 3 more models."
    )


def test_a_uuid_that_no_card_has_is_shown_beside_those_of_the_models_that_the_pod_admits(
    world: World,
) -> None:
    world.node("m", (16, 16), models=("Odd", "Rare"))
    annotations = {"gpupack.io/gpu-model": "rare", "gpupack.io/gpu-uuid": "GPU-nope"}
    text = refusal(world, pod_object("p", 2, annotations=annotations)).format_text(world.state)
    there = world.state.nodes.uuids[world.state.nodes.rows["m"]][1]
    assert text.endswith(f"""gpu-uuid is "GPU-nope"; the cluster has {there}.""")


def test_nodes_that_kube_scheduler_ruled_out_do_not_count(world: World) -> None:
    text = refusal(world, pod_object("p", 9), "b", "unknown").format_text(world.state)
    assert text == (
        "0/2 nodes can take 9 GiB: 1 no card with 9 GiB free, 1 node not known to the gpupack scheduler yet. "
        "Largest free card: 4 GiB on node b; all cards together: 4 GiB."
    )


def test_a_selector_in_a_cluster_without_cards() -> None:
    world = World()
    world.node("bare", (8,), inventory=False)
    text = refusal(world, pod_object("p", 2, annotations={"gpupack.io/gpu-uuid": "GPU-1"})).format_text(
        world.state
    )
    assert text.endswith("""The pod's gpu-uuid is "GPU-1"; the cluster has no card whose model is known.""")


def test_without_a_usable_node_there_is_nothing_free(world: World) -> None:
    text = refusal(world, pod_object("p", 9), "bare").format_text(world.state)
    assert text.endswith(": 1 no gpupack words on the node. No card that the pod may use has anything free.")


def test_the_largest_free_card_has_the_compute_that_the_pod_asks_for() -> None:
    """One of an older daemon was named, or one whose compute others have."""
    world = World()
    world.node("a", (16, 16), (10, 12), compute=(80, 30))
    world.node("old", (16,), (3,))
    asks = pod_object("p", containers=[container("c", 5, resources={COMPUTE_RESOURCE: "40"})])
    assert (
        refusal(world, asks)
        .format_text(world.state)
        .endswith(
            ". Largest free card with 40 percent of compute: 4 GiB on node a; all such cards together: 4 GiB."
        )
    )
    most = pod_object("p", containers=[container("c", 5, resources={COMPUTE_RESOURCE: "90"})])
    assert (
        refusal(world, most)
        .format_text(world.state)
        .endswith(". No card that the pod may use has memory and 90 percent of compute free.")
    )


def test_a_request_that_cannot_be_given_says_why(world: World) -> None:
    found = refusal(world, pod_object("p", 9, annotations={"gpupack.io/cards": "zwei"}))
    assert found.label == "invalid_request"
    assert "zwei" in found.format_text(world.state)
    assert found.cause == found.problem


def test_news_is_another_cause_or_a_long_wait_not_another_number(world: World) -> None:
    waiting = UnschedulablePods(world.state.pods)
    asking = pod_object("p", 9)
    assert waiting.record_refusal(refusal(world, asking, "a", "b"), 0)
    assert not waiting.record_refusal(refusal(world, asking, "a", "b"), 1)
    world.node("c", (16,), (16,))
    assert not waiting.record_refusal(refusal(world, asking, "a", "b", "c"), 2)
    assert waiting.record_refusal(refusal(world, asking, "a", "small"), 3)
    assert not waiting.record_refusal(refusal(world, asking, "a", "small"), 3 + REPEAT_AFTER_S - 1)
    assert waiting.record_refusal(refusal(world, asking, "a", "small"), 3 + REPEAT_AFTER_S)
    ended = waiting.remove_pod("uid-p")
    assert ended is not None
    assert (ended.pod, ended.since, ended.label) == ("default/p", 0, "not_free")
    assert waiting.remove_pod("uid-p") is None
    assert waiting.record_refusal(refusal(world, asking, "a", "small"), 9)


def test_waiting_pods_are_counted_by_reason_while_they_wait(world: World) -> None:
    waiting = UnschedulablePods(world.state.pods)
    for name, units in (("p", 9), ("q", 17), ("r", 9), ("new", 9), ("plain", 0)):
        asking = [container("main", units)] if units else [{"name": "main"}]
        world.state.apply_pod(pod(name, containers=asking), 0)
    for name, units in (("p", 9), ("q", 17), ("r", 9), ("stranger", 9)):
        assert waiting.record_refusal(refusal(world, pod_object(name, units), "a", "b"), 0)
    world.state.apply_pod(pod("r", 9, node="a", version=9), 0)
    assert dict(waiting.count_by_reason()) == {"not_free": 1, "too_small": 1, "not_refused": 1}


@pytest.mark.parametrize("more", [{"deleted": "2027-01-15T08:00:00Z"}, {"phase": "Failed"}])
def test_a_pod_that_no_scheduler_takes_any_more_does_not_wait(world: World, more: dict[str, str]) -> None:
    """A finalizer keeps a deleted pod that has no node; kube-scheduler leaves it out."""
    waiting = UnschedulablePods(world.state.pods)
    for name in ("refused", "new"):
        world.state.apply_pod(pod(name, 9), 0)
    assert waiting.record_refusal(refusal(world, pod_object("refused", 9), "a", "b"), 0)
    assert dict(waiting.count_by_reason()) == {"not_free": 1, "not_refused": 1}
    for name in ("refused", "new"):
        world.state.apply_pod(pod(name, 9, version=9, **more), 0)
    assert dict(waiting.count_by_reason()) == {"not_refused": 0}


@pytest.mark.parametrize(("scheduler", "waits"), [("", 1), (PLACEHOLDER_SCHEDULER, 0)])
@pytest.mark.parametrize("labels", [{}, {PLACEHOLDER_LABEL: "true"}])
def test_a_placeholder_is_told_by_its_scheduler_whatever_its_labels(
    world: World, scheduler: str, waits: int, labels: dict[str, str]
) -> None:
    """Anyone who may patch pods can set and remove the label; the scheduler's name cannot be changed."""
    world.state.apply_pod(pod("p", 9, labels=labels, spec={"schedulerName": scheduler}), 0)
    assert dict(UnschedulablePods(world.state.pods).count_by_reason()) == {"not_refused": waits}


def test_a_pod_that_the_queue_has_requeued_waits_for_its_turn_and_not_for_a_card(world: World) -> None:
    waiting = UnschedulablePods(world.state.pods)
    world.state.apply_pod(pod("p", 9), 0)
    assert waiting.record_refusal(refusal(world, pod_object("p", 9), "a", "b"), 0)
    world.state.apply_pod(pod("p", 9, version=9, annotations={"gpupack.io/requeued": "true"}), 0)
    assert dict(waiting.count_by_reason()) == {"not_refused": 1}
    world.state.apply_pod(pod("p", 9, version=10), 0)
    assert waiting.record_refusal(refusal(world, pod_object("p", 9), "a", "b"), 9), "it is told anew"


def test_pods_that_nobody_says_anything_of_any_more_are_forgotten(world: World) -> None:
    waiting = UnschedulablePods(world.state.pods)
    meta = refusal(world, pod_object("p", 9), "a").metadata
    for number in range(3000):
        other = type(meta)(name=f"p{number}", namespace="default", uid=f"uid-{number}")
        waiting.record_refusal(UnschedulablePod(other, {FilterReason.NOT_FREE: 1}), 0)
    assert len(waiting._reported) <= 1002


def test_cards_that_are_free_and_kept_are_explained(world: World) -> None:
    world.state.reservations.add_reservation(Reservation("uid-other", 5, "a", {0: (8, 0)}))
    text = refusal(world, pod_object("p", 8), "a").format_text(world.state)
    assert "Largest free card: 8 GiB on node a" in text
    assert text.endswith("Some are kept for pods that others were evicted for.")
