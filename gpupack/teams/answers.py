"""Answers for members of a namespace: their own pods in full, other pods only as sums."""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from allocator.errors import shown
from gpupack.diagnose import explain_pod
from gpupack.diagnose.listing import PodList, list_waiting, list_workload, parse_workload
from gpupack.errors import InputError
from gpupack.whatif import FitQuestion, answer_fit
from gpupack.whatif.answers import FitAnswer, PodCard, PodExplanation, PodUnits, WayOut
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.questions import WorkBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

T = TypeVar("T", bound=msgspec.Struct)

MOST_PODS: Final = 200
"""Longest list: each pod costs a check of all nodes."""
HIDDEN: Final = "a pod of another namespace"

_NAME: Final = r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"
_FULL_NAME: Final = re.compile(f"{_NAME}(?:/{_NAME})+")


def explain_own_pod(
    cluster: Cluster, namespace: str, name: str, queued: "Sequence[QueueWhy] | None"
) -> PodExplanation:
    """Explain the state of a pod of the namespace.

    Raises:
        InputError: the namespace has no such pod. Pods of that name elsewhere are not told.
    """
    try:
        found = explain_pod(cluster, namespace, name, queued=queued, moves=False)
    except InputError as error:
        raise InputError(f"no pod {shown(name)} in namespace {shown(namespace)}") from error
    ways = tuple(way for way in found.ways_out if _is_own(way, namespace))
    cards = tuple(_sum_others(card, namespace) for card in found.cards)
    return hide_names(msgspec.structs.replace(found, ways_out=ways, cards=cards), cluster, namespace)


def list_own_pods(
    cluster: Cluster,
    namespace: str,
    workload: str,
    now_s: float,
    queued: "Sequence[QueueWhy] | None",
    budget: WorkBudget | None = None,
) -> PodList:
    """List pods of the namespace: those of a workload, as KIND/NAME, or all that wait where it is empty.

    Raises:
        InputError: no workload is written so, or it has no pods.
        TooLargeQuestionError: the list takes more work than `budget`.
    """
    if not workload:
        found = list_waiting(cluster, now_s, namespace, queued, most=MOST_PODS, budget=budget)
    else:
        named = parse_workload(workload)
        if named is None:
            raise InputError(f"workload {shown(workload)}; allowed: KIND/NAME, such as deploy/web")
        found = list_workload(cluster, namespace, named, now_s, queued, most=MOST_PODS, budget=budget)
    return hide_names(found, cluster, namespace)


def count_fit_for_member(cluster: Cluster, namespace: str, question: FitQuestion) -> FitAnswer:
    return hide_names(answer_fit(cluster, question), cluster, namespace)


def _is_own(way: WayOut, namespace: str) -> bool:
    return not way.moves and all(pod.namespace == namespace for pod in way.pods)


def _sum_others(card: PodCard, namespace: str) -> PodCard:
    """Put one sum in place of the neighbours of other namespaces."""
    own = tuple(pod for pod in card.neighbours if pod.namespace == namespace)
    others = [pod for pod in card.neighbours if pod.namespace != namespace]
    if not others:
        return card
    total = PodUnits("", name_others(len(others)), sum(pod.units for pod in others), (card.card,))
    return msgspec.structs.replace(card, neighbours=(*own, total))


def name_others(count: int) -> str:
    return HIDDEN if count == 1 else f"{count} pods of other namespaces"


def list_namespaces(cluster: Cluster) -> set[str]:
    return {pod.metadata.namespace for pod in cluster.pods.values()}


def hide_names(answer: T, cluster: Cluster, namespace: str, also: Collection[str] = ()) -> T:
    """Replace every NAMESPACE/NAME of another namespace's pod in the texts of an answer."""
    foreign = list_namespaces(cluster).union(also) - {namespace}

    def hide(match: re.Match[str]) -> str:
        # The namespace may stand behind other words, as in `pod/team-b/train`.
        words = match[0].split("/")
        for at, word in enumerate(words[:-1]):
            if word in foreign:
                return "/".join([*words[:at], HIDDEN])
        return match[0]

    def walk(value: Any) -> Any:
        match value:
            case str():
                return _FULL_NAME.sub(hide, value)
            case dict():
                return {key: walk(each) for key, each in value.items()}
            case list() | tuple():
                return [walk(each) for each in value]
        return value

    return msgspec.convert(walk(msgspec.to_builtins(answer)), type(answer))
