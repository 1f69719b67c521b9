"""Whether the pods of a gang could start on nodes once others have left, by all rules but cards. Pure."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from kubeapi.objects import Pod, decode_pod
from kubeapi.selectors import HOSTNAME
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.scheduling.batch_eligibility import list_unchecked_fields
from scheduler_plugin.scheduling.pod_affinity import ExistingAntiAffinity

_GROUP_FIELD: Final = "schedulingGroup"


def may_be_kept_off(
    pod: Pod,
    existing: ExistingAntiAffinity,
    nodes: Collection[str],
    gone: AbstractSet[str],
    known: Mapping[str, PodRecord],
) -> bool:
    """Return True if the anti-affinity of a pod of smaller priority may keep a pod off one of the nodes.

    kube-scheduler tries a gang as if all pods of smaller priority were gone, and only some are evicted. The
    nodes' labels are not at hand, so that is so of every node where more than its name counts.

    Args:
        gone: UIDs of the pods that are evicted.
        known: The pods of the cluster by UID.
    """
    return any(
        node
        and (term.topology_key != HOSTNAME or node in nodes)
        and any(uid in known and known[uid].priority < pod.priority for uid in uids - gone)
        for term, _, owners in existing.find_terms(pod.metadata)
        for node, uids in owners.items()
    )


def decode_alike(bodies: Mapping[str, bytes]) -> list[Pod]:
    """Decode the pods of a gang; none if one evicts nobody, or a node that takes one might not take the rest.

    The latter is so if they select nodes in different ways, or have a port or anything else of which only
    kube-scheduler knows whether there is room for it.
    """
    found: list[Pod] = []
    for uid, body in bodies.items():
        pod = decode_pod(body)
        spec: Mapping[str, Any] = msgspec.json.decode(body)["spec"]
        unchecked = {*list_unchecked_fields(spec)} - {_GROUP_FIELD}
        if pod.metadata.uid != uid or unchecked or not pod.spec.can_preempt:
            return []
        found.append(pod)
    return found if len({pod.spec.node_rules for pod in found}) == 1 else []
