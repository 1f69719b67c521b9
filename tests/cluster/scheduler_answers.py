"""All of ours that says whether kube-scheduler takes a pod on a node, beside the real one's verdict."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from allocator.names import BATCH_SCHEDULER
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.kube_checks import NAMESPACE_LABELS, HostRequirements
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.pods import sum_requests
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling import pod_affinity
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields
from scheduler_plugin.scheduling.kubernetes_checks import KubernetesChecks
from scheduler_plugin.scheduling.node_fit import (
    CORDONED,
    CPU,
    MEMORY,
    NEIGHBOURS,
    NOT_READY,
    PODS,
    PORTS,
    SELECTOR,
    TAINT,
    Rejection,
    can_be_served_by_claim,
)
from tests.cluster.harness.controlplane import PERCENT, RESOURCE
from tests.cluster.harness.recording_extender import RECORDED

TEXTS: Final = {
    CORDONED: "node(s) were unschedulable",
    TAINT: "node(s) had untolerated taint(s)",
    NOT_READY: "node(s) had untolerated taint(s)",
    SELECTOR: "node(s) didn't match Pod's node affinity/selector",
    PORTS: "node(s) didn't have free ports for the requested pod ports",
    PODS: "Too many pods",
    CPU: "Insufficient cpu",
    MEMORY: "Insufficient memory",
    pod_affinity.AFFINITY: "node(s) didn't match pod affinity rules",
    pod_affinity.ANTI_AFFINITY: "node(s) didn't match pod anti-affinity rules",
    pod_affinity.OTHERS_ANTI_AFFINITY: "node(s) didn't satisfy existing pods anti-affinity rules",
}
"""What kube-scheduler says for each of our reasons, and for each kind of affinity."""


@dataclass(frozen=True)
class Verdict:
    """What kube-scheduler says of a pod.

    Attributes:
        allowed: Names of the nodes that it takes the pod on.
        message: Why it does not take it on the others: how many for each reason.
    """

    allowed: frozenset[str]
    message: str

    @property
    def reasons(self) -> Counter[str] | None:
        """How many nodes it refuses for each reason; None where it asked no filter about each node."""
        told = self.message.partition(" are available: ")[2].partition(". ")[0].rstrip(".")
        found = [re.fullmatch(r"(\d+) (.+)", each) for each in told.split(", ")]
        if not all(found) or "didn't satisfy plugin" in told:
            return None
        # Before 1.35 it names the taint.
        texts = {
            re.sub(r"taint \{.*\}", "taint(s)", each[2]): int(each[1]) for each in found if each is not None
        }
        return Counter({text: number for text, number in texts.items() if text != RECORDED})


class Answers:
    """Our answers about one scene.

    Args:
        nodes: Its nodes, as the API server has them.
        pods: Its pods, likewise.
    """

    def __init__(self, nodes: list[Any], pods: list[Any]) -> None:
        of_nodes, of_pods = msgspec.json.encode(nodes), msgspec.json.encode(pods)
        self._names = [node["metadata"]["name"] for node in nodes]
        self._cluster = Cluster.from_objects(
            msgspec.json.decode(of_nodes, type=list[Node]),
            msgspec.json.decode(of_pods, type=list[Pod]),
        )
        state = ClusterState()
        self._batch = KubernetesChecks(state)
        host_nodes = msgspec.json.decode(of_nodes, type=list[Node])
        host_pods = msgspec.json.decode(of_pods, type=list[Pod])
        state.replace_nodes(host_nodes, "1000000000", 0)
        state.replace_pods(host_pods, "1000000000", 0)
        self._batch.replace_nodes(host_nodes)
        self._batch.replace_pods(host_pods, 0)

    def compare(self, pod: Any, verdict: Verdict, counts: Counter[str]) -> Iterator[str]:
        """Compare every answer about a pod on every node with kube-scheduler's; say what differs."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        known, checks = self._cluster.pods[uid], self._cluster.kube_checks
        requirements = HostRequirements.from_pod(known)
        cards = {each: sum_requests(known, each, int) for each in (RESOURCE, PERCENT)}
        amounts = requirements.amounts._replace(units=cards[RESOURCE], percent=cards[PERCENT])
        everything = replace(requirements, amounts=amounts)
        rejections = dict(checks.list_rejections(everything, self._names))
        unchecked = checks.list_unchecked_rules(requirements)
        # Where we say that something was not looked at, `why` may allow more for that reason, and batch less.
        by_namespaces = NAMESPACE_LABELS in unchecked
        by_class = {node for node, found in rejections.items() if found and _is_undecided(found)}
        assert not by_class or any("DeviceClass" in rule for rule in unchecked), unchecked
        answers = {"why": {node: found for node, found in rejections.items() if found}}
        if not list_unsupported_fields(pod["spec"] | {"schedulerName": BATCH_SCHEDULER}):
            texts = ((node, self._batch.find_rejection(uid, node, 0)) for node in self._names)
            answers["batch"] = {node: [Rejection(text)] for node, text in texts if text}
        for who, refused in answers.items():
            counts[who] += len(self._names)
            allowed = {node for node in self._names if node not in refused} - by_class
            real = verdict.allowed - by_class
            different = allowed ^ real
            if by_namespaces:
                different -= allowed if who == "why" else real
            for node in sorted(different):
                said = refused.get(node, "takes it")
                theirs = "takes it" if node in real else "refuses it"
                yield f"{name} on {node}: {who} says {said}, kube-scheduler {theirs} ({verdict.message})"
        if not by_namespaces and not by_class and verdict.reasons is not None:
            ours_by_text = Counter(_format(each) for found in rejections.values() for each in found)
            if ours_by_text != verdict.reasons:
                ours = dict(ours_by_text)
                yield f"{name}: why gives {ours}, kube-scheduler {verdict.message}"
            counts["reasons"] += len(self._names) - len(verdict.allowed)
        counts["pairs"] += len(self._names)
        counts["allowed"] += len(verdict.allowed)
        counts["not decided"] += len(by_class) or by_namespaces * len(self._names)


def _is_undecided(found: list[Rejection]) -> bool:
    return any(
        each.shortage is not None
        and each.shortage.capacity <= 0
        and can_be_served_by_claim(each.shortage.resource)
        for each in found
    )


def _format(rejection: Rejection) -> str:
    if rejection.reason == NEIGHBOURS:
        return TEXTS[rejection.detail]
    if rejection.reason in TEXTS:
        return TEXTS[rejection.reason]
    assert rejection.shortage is not None
    resource = rejection.shortage.resource
    return f"Insufficient {RESOURCE if resource == 'gpu-memory' else resource}"
