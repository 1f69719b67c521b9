"""Placeholder pods: what they are, and which to create and delete so that those are there that should be."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from allocator.names import PLACEHOLDER_FOR, PLACEHOLDER_LABEL, PLACEHOLDER_SCHEDULER
from gpupack.autoscale.packing import NewNode
from kubeapi.objects import Pod
from kubeapi.selectors import REQUIRED, Expression, NodeTerm, join_terms
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.pods import is_own_placeholder

IMAGE: Final = "gpupack.io/placeholder:never-pulled"
MESSAGE: Final = "stands for pods that no card of the cluster can take: a cluster autoscaler is to add a node"
_NAMED: Final = 50
MORE: Final = "and "
"""How the last of the names begins where some pods are not named."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A pod that asks for one new node.

    Attributes:
        spec: Its `spec`, as the API server takes it.
        stands_for: Namespace and name of the pods that fit on that node.
        fingerprint: Digest of the spec; two with the same one are alike.
    """

    spec: Mapping[str, Any]
    stands_for: tuple[str, ...]
    shape: str
    fingerprint: str

    def manifest(self, namespace: str, number: int) -> dict[str, Any]:
        """Write it as a pod, whose name follows from its request, so that it cannot be created twice."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name(number),
                "namespace": namespace,
                "labels": {
                    PLACEHOLDER_LABEL: "true",
                    "app.kubernetes.io/name": "gpupack-placeholder",
                    "app.kubernetes.io/part-of": "gpupack",
                },
                "annotations": {
                    PLACEHOLDER_FOR: self.named,
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
                },
            },
            "spec": dict(self.spec),
        }

    def name(self, number: int) -> str:
        return f"gpupack-placeholder-{self.fingerprint}-{number}"

    @property
    def named(self) -> str:
        more = len(self.stands_for) - _NAMED
        return ",".join((*self.stands_for[:_NAMED], *([f"{MORE}{more} more"] if more > 0 else [])))


def make_placeholder(
    node: NewNode,
    amounts: Amounts,
    labels: Mapping[str, Collection[str]],
    full_hosts: Mapping[str, Sequence[str]],
    resource: str,
) -> Placeholder:
    """Make the pod that asks for a node.

    All units of the node are asked for, so that an autoscaler, which adds units up, puts no second one on it.

    Args:
        labels: Values of labels that the node has to have.
        full_hosts: Values of the label that nodes have which look free by their sums and are not.
    """
    wanted = {
        "cpu": f"{amounts.cpu_milli}m",
        "memory": str(amounts.memory_bytes),
        resource: str(amounts.units),
        **{name: str(amount) for name, amount in amounts.others},
    }
    selector: dict[str, str] = {}
    for _, kind in node.pods:
        selector |= dict(kind.requirements.rules.selector)
    added = [Expression(key, "In", tuple(values)) for key, values in labels.items()]
    added += [Expression(key, "NotIn", tuple(values)) for key, values in full_hosts.items() if values]
    terms = join_terms(node.terms, (NodeTerm(tuple(added)),) if added else None)
    spec: dict[str, Any] = {
        "schedulerName": PLACEHOLDER_SCHEDULER,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "placeholder",
                "image": IMAGE,
                "resources": {"limits": wanted, "requests": wanted},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    if selector:
        spec["nodeSelector"] = selector
    if terms:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": msgspec.to_builtins(terms)}}}
    if node.shape.taints:
        spec["tolerations"] = [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in node.shape.taints
        ]
    fingerprint = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    names = tuple(sorted(pod.pod.full_name for pod, _ in node.pods))
    return Placeholder(spec, names, node.shape.name, fingerprint)


@dataclass(frozen=True, slots=True)
class Changes:
    """The writes that make the placeholders what they should be.

    Attributes:
        delete: Placeholders that should not be there.
        mark: Names of those that lack the condition which an autoscaler looks for.
        rename: By the name of a placeholder that stays: the pods that it stands for now.
    """

    delete: tuple[Pod, ...]
    create: Mapping[str, Placeholder]
    mark: tuple[str, ...]
    rename: Mapping[str, str]


def find_changes(wanted: Iterable[Placeholder], pods: Iterable[Pod], namespace: str) -> Changes:
    """Compare the placeholders that should be with those that are, in this namespace and no other."""
    named: dict[str, Placeholder] = {}
    counts: dict[str, int] = {}
    for each in sorted(wanted, key=lambda placeholder: placeholder.named):
        number = counts[each.fingerprint] = counts.get(each.fingerprint, 0) + 1
        named[each.name(number)] = each
    own = (pod for pod in pods if pod.metadata.namespace == namespace and is_own_placeholder(pod))
    there = {pod.metadata.name: pod for pod in own}
    living = {name: pod for name, pod in there.items() if not pod.metadata.is_terminating}
    return Changes(
        delete=tuple(pod for name, pod in sorted(living.items()) if name not in named),
        # The name of one that is ending is free once it is gone.
        create={name: each for name, each in named.items() if name not in there},
        mark=tuple(
            name for name, pod in sorted(living.items()) if name in named and not pod.status.is_unschedulable
        ),
        rename={
            name: each.named
            for name, each in named.items()
            if name in living and living[name].metadata.get_annotation(PLACEHOLDER_FOR) != each.named
        },
    )
