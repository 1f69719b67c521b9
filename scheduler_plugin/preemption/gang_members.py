"""Whether the pods of a gang could start on nodes once others have left, by all rules but cards. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kubeapi.objects import ObjectMeta, Pod, decode_pod
from scheduler_plugin.scheduling.batch_eligibility import list_unchecked_fields
from scheduler_plugin.scheduling.pod_affinity import AffinityTerm, read_anti_affinity

_HOSTNAME: Final = "kubernetes.io/hostname"
_GROUP_FIELD: Final = "schedulingGroup"


class _ShunningPod(NamedTuple):
    metadata: ObjectMeta
    priority: int
    node: str
    terms: Sequence[AffinityTerm]


class ShunningPods:
    """The bound pods that keep others away by required anti-affinity.

    kube-scheduler tries a gang as if all pods of smaller priority were gone, and only some are evicted.
    """

    def __init__(self) -> None:
        self._pods: dict[str, _ShunningPod] = {}

    def apply_pod(self, kind: str, pod: Pod) -> None:
        terms = read_anti_affinity(pod)
        if kind == "DELETED" or pod.has_ended or not pod.spec.node_name or not terms:
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = _ShunningPod(pod.metadata, pod.priority, pod.spec.node_name, terms)

    def replace_pods(self, pods: Sequence[Pod]) -> None:
        self._pods.clear()
        for pod in pods:
            self.apply_pod("ADDED", pod)

    def keep_away(self, pod: Pod, gone: Collection[str], nodes: Collection[str]) -> bool:
        """Return True if a pod of smaller priority, which is not gone, may keep a pod off one of the nodes.

        The nodes' labels are not at hand, so that is so of every node where more than its name counts.
        """
        return any(
            uid not in gone
            and other.priority < pod.priority
            and any(
                term.matches(other.metadata, pod.metadata) is not False
                and (term.topology_key != _HOSTNAME or other.node in nodes)
                for term in other.terms
            )
            for uid, other in self._pods.items()
        )


def decode_alike(bodies: Mapping[str, bytes]) -> list[Pod]:
    """Decode the pods of a gang; none if a node that takes one might not take the others beside it.

    That is so if they select nodes in different ways, or have a port or anything else of which only
    kube-scheduler knows whether there is room for it.

    Args:
        bodies: Pods as the API server writes them, by the UID that each is to have.
    """
    found: list[Pod] = []
    for uid, body in bodies.items():
        pod = decode_pod(body)
        spec: Mapping[str, Any] = msgspec.json.decode(body)["spec"]
        if pod.metadata.uid != uid or {*list_unchecked_fields(spec)} - {_GROUP_FIELD}:
            return []
        found.append(pod)
    return found if len({pod.spec.node_rules for pod in found}) == 1 else []
