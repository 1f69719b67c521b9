"""Why pods wait for cards, and what fits now: what `gpupack why` and `gpupack fit` answer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from allocator.errors import AllocatorError
from allocator.texts import count_of
from gpupack.diagnose import explain_pod
from gpupack.errors import InputError
from gpupack.whatif import Cluster, FitQuestion, answer_fit
from gpupack.whatif.answers import FitAnswer
from gpupack.whatif.gangs import format_gang
from gpupack.whatif.questions import WorkBudget
from kubeapi.objects import Pod
from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

EXPLAINED: Final = 100
"""Pods whose reasons are shown; those that wait longest."""
SHOWN: Final = 500
"""Pods that are listed at all."""
QueuedAs = Callable[[str, str], Sequence[QueueWhy] | None]
"""Finds what the queue says of a pod, by namespace and name; see `Board.find_queued`."""

SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192)


class PendingPod(msgspec.Struct, frozen=True):
    """A pod that waits.

    Attributes:
        since: creation, as the API server writes it.
        state: as `gpupack why` says it; empty if nobody asked.
        asked: what it asks for, in words.
        nodes: reasons of nodes, with their number.
        notes: what else was found, a sentence each.
        scheduler: what kube-scheduler wrote into the pod.
        queue: where it waits, as the queue says; empty if no queue has said anything of it.
        reason: the queue's, in one word.
        gang: name of the gang that it starts with and, in brackets, the number of its pods; else empty.
    """

    namespace: str
    name: str
    since: str
    state: str = ""
    asked: str = ""
    text: str = ""
    nodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scheduler: str = ""
    queue: str = ""
    position: int = 0
    reason: str = ""
    gang: str = ""


class SizeFit(msgspec.Struct, frozen=True):
    """How many pods of a size fit on how many nodes; `largest` is set if no larger request fits."""

    unit: int
    units: int
    pods: int
    nodes: int
    largest: bool


def list_waiting_pods(cluster: Cluster) -> list[Pod]:
    """List the pods that wait for cards, longest first."""
    return sorted(cluster.list_waiting_pods(), key=lambda pod: (pod.metadata.created_at, pod.full_name))


def explain_pods(
    cluster: Cluster, pods: Sequence[Pod], queued: QueuedAs, budget: WorkBudget | None = None
) -> list[PendingPod]:
    """Say why pods wait, within the work that `budget` allows; further pods are only named."""
    return [
        explain_pending_pod(cluster, pod, queued)
        if number < EXPLAINED and (budget is None or not budget.is_spent)
        else name_pod(pod)
        for number, pod in enumerate(pods[:SHOWN])
    ]


def name_pod(pod: Pod) -> PendingPod:
    """Say of a pod only that it waits."""
    meta = pod.metadata
    return PendingPod(meta.namespace, meta.name, meta.creation_timestamp or "")


def explain_pending_pod(cluster: Cluster, pod: Pod, queued: QueuedAs) -> PendingPod:
    namespace, name = pod.metadata.namespace, pod.metadata.name
    said = queued(namespace, name)
    of_queue = next(iter(said or ()), None)
    try:
        found = explain_pod(cluster, namespace, name, queued=said, ways=False)
    except (AllocatorError, InputError) as error:
        return msgspec.structs.replace(name_pod(pod), text=str(error))
    return PendingPod(
        namespace=found.namespace,
        name=found.pod,
        since=pod.metadata.creation_timestamp or "",
        state=found.state,
        asked=found.asked,
        text=found.text,
        nodes=tuple(f"{count_of(group.count, 'node')}: {group.text}" for group in found.nodes),
        notes=found.notes,
        scheduler=found.scheduler,
        queue="" if of_queue is None else of_queue.queue,
        position=0 if of_queue is None else of_queue.position,
        reason="" if of_queue is None else of_queue.reason,
        gang=format_gang(cluster, pod),
    )


def count_fit_of_sizes(cluster: Cluster) -> Iterator[SizeFit]:
    """Say how many pods of usual sizes fit on one card each, up to the largest that fits."""
    if not cluster.has_words:
        return
    first = answer_fit(cluster, FitQuestion(1))
    largest = first.largest_tolerating_units
    for units in sorted({*(size for size in SIZES if size < largest), largest} - {0}):
        yield _count_fit_of_size(
            first if units == 1 else answer_fit(cluster, FitQuestion(units)), units, largest
        )


def _count_fit_of_size(found: FitAnswer, units: int, largest: int) -> SizeFit:
    return SizeFit(
        found.unit_mib, units, found.pods + found.tolerating_pods, len(found.nodes), units == largest
    )
