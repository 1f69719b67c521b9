import pytest

from allocator.request import Demand
from gpupack.whatif.kube_checks import HostRequirements, Rejection
from gpupack.whatif.node_results import ORDER, _Sentences
from gpupack.whatif.what_if import make_query
from scheduler_plugin.cache.node_arrays import Exclusion
from scheduler_plugin.extender.metrics import _REASONS
from scheduler_plugin.scheduling.reasons import FilterReason, format_event_text, format_memory
from tests.ask_world import Node, Pod, World

ONE = (Demand((), 8, 1),)
TWO = (Demand((), 4, 2),)
MANY = (Demand((), 8, 1), Demand((), 4, 2))


@pytest.mark.parametrize(
    ("units", "unit_mib", "text"),
    [(8, 1024, "8 GiB"), (3, 512, "1536 MiB"), (4, 512, "2 GiB"), (1, 100, "100 MiB")],
)
def test_memory(units: int, unit_mib: int, text: str) -> None:
    assert format_memory(units, unit_mib) == text


@pytest.mark.parametrize(
    ("misfit", "demands", "text"),
    [
        (FilterReason.NOT_FREE, ONE, "no card with 8 GiB free"),
        (FilterReason.NOT_FREE, TWO, "no 2 cards with 4 GiB free each"),
        (FilterReason.NOT_FREE, MANY, "no cards with 8 GiB + 2 x 4 GiB free"),
        (FilterReason.TOO_SMALL, ONE, "no healthy card of 8 GiB or more"),
        (FilterReason.TOO_SMALL, TWO, "no 2 healthy cards of 4 GiB or more"),
        (FilterReason.TOO_SMALL, MANY, "no healthy cards that hold 8 GiB + 2 x 4 GiB together"),
        (FilterReason.NOT_ADMITTED, ONE, "no card that the pod's gpu-model and gpu-uuid admit"),
        (FilterReason.NOT_ADMITTED, TWO, "no 2 cards that the pod's gpu-model and gpu-uuid admit"),
        (FilterReason.NOT_ADMITTED, MANY, "no cards that the pod's gpu-model and gpu-uuid admit"),
    ],
)
def test_reasons_name_the_request(misfit: FilterReason, demands: tuple[Demand, ...], text: str) -> None:
    assert format_event_text(misfit, demands, 1024) == text


@pytest.mark.parametrize("reason", list(FilterReason))
def test_every_reason_is_whole(reason: FilterReason) -> None:
    """A member alone gives a text, a sentence and a place in the order of `why`, and a label of metrics."""
    assert format_event_text(reason, ONE, 1024)
    cluster = World((Node("n", (16,)),), (Pod("p", 8),)).cluster
    pod = cluster.find_pod("default", "p")
    wish = HostRequirements.from_pod(pod)
    sentences = _Sentences(
        cluster, make_query(cluster, cluster.state.pods[pod.metadata.uid].request, wish), wish
    )
    assert sentences.explain(Rejection(reason.json_name), cluster.rows, None, 0)
    assert ORDER.count(reason.json_name) == 1
    assert reason.metric_label in _REASONS


def test_every_exclusion_of_a_node_has_one_reason() -> None:
    found = [reason.exclusion for reason in FilterReason if reason.exclusion is not None]
    assert sorted(found) == sorted(exclusion for exclusion in Exclusion if exclusion)


def test_texts_tell_reasons_apart() -> None:
    texts = [format_event_text(reason, ONE, 1024) for reason in FilterReason]
    assert len(set(texts)) == len(texts) == len(FilterReason)
