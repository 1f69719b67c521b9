"""Many pods, a line each: those that wait for GPU memory, or those of one workload."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from allocator.errors import shown
from gpupack.diagnose.why import explain_pod
from gpupack.errors import InputError
from gpupack.inventory.grid import Cell, Line, align_columns, make_titles
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.terminal import short_age
from gpupack.whatif.answers import JsonAnswer, PodExplanation, State
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.objects import read_revision, waits_in_queue
from gpupack.whatif.questions import TooLargeQuestionError, WorkBudget
from kubeapi.errors import make_printable
from kubeapi.metadata import parse_time
from kubeapi.objects import Pod

if TYPE_CHECKING:
    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

_REASONS: Final[dict[State, str]] = {
    "gated": "Gated",
    "fits": "Fits",
    "refused": "Refused",
    "running": "Running",
    "ending": "Ending",
    "ended": "Ended",
    "failed": "Failed",
    "no-cards": "NoCards",
}


class PodLine(JsonAnswer, frozen=True):
    """A pod of a list that `gpupack why` prints.

    Attributes:
        state: State, as in `PodExplanation`.
        reason: The closest reason in one word, the queue's where a queue holds the pod.
    """

    namespace: str
    pod: str
    state: State
    asked: str
    age_s: float | None
    reason: str
    text: str
    node: str = ""


class PodList(JsonAnswer, frozen=True):
    """Pods by namespace and name.

    Attributes:
        of: The workload they belong to, as KIND/NAME; empty: all that wait.
    """

    pods: tuple[PodLine, ...]
    of: str = ""
    more: int = 0
    notes: tuple[str, ...] = ()


def list_waiting(
    cluster: Cluster,
    now_s: float,
    namespace: str | None = None,
    queued: "Sequence[QueueWhy] | None" = None,
    *,
    most: int | None = None,
    budget: WorkBudget | None = None,
) -> PodList:
    """List the pods that wait for GPU memory.

    Args:
        queued: What waits in the queue, as `gpupack queue status` says; None: nobody asked.

    Raises:
        TooLargeQuestionError: it takes more.
    """
    pods = [pod for pod in cluster.list_waiting_pods() if namespace in {None, pod.metadata.namespace}]
    kept = pods[:most]
    lines = _lines(cluster, kept, now_s, queued, budget)
    return PodList(lines, more=len(pods) - len(kept), notes=_list_notes(cluster) if lines else ())


def list_workload(
    cluster: Cluster,
    namespace: str,
    workload: "Workload",
    now_s: float,
    queued: "Sequence[QueueWhy] | None" = None,
    *,
    most: int | None = None,
    budget: WorkBudget | None = None,
) -> PodList:
    """List the pods of a workload; parameters as of `list_waiting`.

    Raises:
        InputError: no pod belongs to it.
        TooLargeQuestionError: it takes more work than it may.
    """
    pods = [
        pod for pod in cluster.pods.values() if pod.metadata.namespace == namespace and workload.owns(pod)
    ]
    if not pods:
        raise InputError(
            f"{cluster.source} has no pod of {workload.name} in namespace {shown(namespace)}; if it is "
            "there, kubectl describe says why it has none (for a Deployment: of its ReplicaSet)"
        )
    pods.sort(key=lambda pod: pod.full_name)
    kept = pods[:most]
    lines = _lines(cluster, kept, now_s, queued, budget)
    return PodList(lines, workload.name, len(pods) - len(kept), _list_notes(cluster))


def _list_notes(cluster: Cluster) -> tuple[str, ...]:
    return (CLAIMS_NOT_READ,) if cluster.lacks_claims else ()


def format_pods(found: PodList, *, colour: bool = False) -> str:
    if not found.pods:
        return "No pod waits for GPU memory."
    header = ("POD", "ASKS", "AGE", "STATE" if found.of else "REASON", "WHY")
    rows = [
        (
            f"{line.namespace}/{line.pod}",
            line.asked or "-",
            "-" if line.age_s is None else short_age(line.age_s),
            line.reason,
            line.text,
        )
        for line in found.pods
    ]
    table = [make_titles(*header), *(Line([Cell(make_printable(text)) for text in row]) for row in rows)]
    lines = [line.rstrip() for line in align_columns(table, colour=colour)]
    return "\n".join([*lines, *([f"and {found.more} more"] if found.more else []), *found.notes])


def _lines(
    cluster: Cluster,
    pods: Sequence[Pod],
    now_s: float,
    queued: "Sequence[QueueWhy] | None",
    budget: WorkBudget | None,
) -> tuple[PodLine, ...]:
    alike: dict[bytes, PodExplanation] = {}
    said = {(each.namespace, each.name): each for each in queued or ()}
    lines: list[PodLine] = []
    for pod in pods:
        if budget is not None and budget.is_spent:
            raise TooLargeQuestionError(
                f"too large: after {len(lines)} of {len(pods)} pods the {budget.most_s:g} s of processor "
                "time are used up that a question has; ask for fewer: one pod, or one workload as KIND/NAME"
            )
        lines.append(_line(cluster, pod, now_s, said, alike))
    return tuple(lines)


def _line(
    cluster: Cluster,
    pod: Pod,
    now_s: float,
    said: "dict[tuple[str, str], QueueWhy]",
    alike: dict[bytes, PodExplanation],
) -> PodLine:
    meta = pod.metadata
    # Pods of one controller differ in name only: they are asked about once.
    key = msgspec.json.encode(
        (meta.namespace, meta.labels, meta.annotations, meta.deletion_timestamp, pod.spec, pod.status)
    )
    answer = alike.get(key)
    if answer is None:
        answer = alike[key] = explain_pod(cluster, meta.namespace, meta.name, ways=False)
    queue = said.get((meta.namespace, meta.name))
    reason, text = _REASONS.get(answer.state, "Pending"), answer.text
    if queue is not None and waits_in_queue(pod):
        reason, text = queue.reason, queue.message
    elif answer.state == "pending" and answer.nodes and not answer.fits:
        reason, text = answer.nodes[0].reason, answer.nodes[0].text
    made = parse_time(meta.creation_timestamp)
    return PodLine(
        namespace=meta.namespace,
        pod=meta.name,
        state=answer.state,
        asked=answer.asked,
        age_s=None if made is None else max(0.0, now_s - made),
        reason=reason,
        text=text,
        node=answer.node,
    )


class Workload(msgspec.Struct, frozen=True):
    """The object that made pods, such as a Deployment: KIND/NAME, and whether a pod is one of its pods."""

    name: str
    owns: Callable[[Pod], bool]


_SHORT: Final = {
    "deploy": "Deployment",
    "rs": "ReplicaSet",
    "sts": "StatefulSet",
    "ds": "DaemonSet",
    "cj": "CronJob",
    "lws": "LeaderWorkerSet",
}
_KINDS: Final = (
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "JobSet",
    "LeaderWorkerSet",
    "PyTorchJob",
    "TrainJob",
    "TFJob",
    "MPIJob",
    "XGBoostJob",
    "JAXJob",
    "PaddleJob",
    "RayCluster",
    "RayJob",
    "RayService",
)
_LABELS: Final = {
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name",
    "PyTorchJob": "training.kubeflow.org/job-name",
    "TFJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
    "XGBoostJob": "training.kubeflow.org/job-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    "RayCluster": "ray.io/cluster",
    "RayJob": "ray.io/originated-from-cr-name",
    "RayService": "ray.io/originated-from-cr-name",
}
"""Where a controller of ours is not the pods' owner: the label by which it finds its pods."""

_BY_WORD: Final = _SHORT | {word: kind for kind in _KINDS for word in (kind.lower(), f"{kind.lower()}s")}


def parse_workload(text: str) -> Workload | None:
    """Read KIND/NAME as kubectl does, such as `deploy/web` or `jobs.batch/train`; None for anything else."""
    word, slash, name = text.partition("/")
    kind = _BY_WORD.get(word.partition(".")[0].lower())
    if not slash or not name or "/" in name or kind is None:
        return None
    return Workload(f"{kind}/{name}", lambda pod: _belongs(pod, kind, name))


def _belongs(pod: Pod, kind: str, name: str) -> bool:
    labels = pod.metadata.labels or {}
    controller = pod.metadata.controller
    owner = ("", "") if controller is None else (controller.kind, controller.name)
    revision = read_revision(pod)
    if owner == (kind, name) or (revision is not None and revision[:2] == (kind, name)):
        return True
    if kind == "CronJob":
        # A CronJob names its Jobs by itself and the scheduled minute.
        before, _, minute = owner[1].rpartition("-")
        return owner[0] == "Job" and before == name and minute.isdigit()
    return labels.get(_LABELS.get(kind, "")) == name
