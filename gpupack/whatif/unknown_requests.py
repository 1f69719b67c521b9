"""Policies and annotations of pods that this command does not know.

The policy's package is installed beside the extender then, and not here, where people run the command. Such a
pod has cards and needs room like any other, so it is read as if it named no policy. Answers say what is not
known. Whether the extender knows the policy only the extender can tell.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from allocator import names
from allocator.errors import shown
from allocator.names import (
    OWN_POD_ANNOTATIONS,
    OWN_PREFIX,
    POD_CARD_POLICY,
    POD_NODE_POLICY,
)
from allocator.policies import CARD_POLICIES
from allocator.registry import Registry, is_name
from kubeapi.objects import Pod
from scheduler_plugin.scheduling.policies import NODE_POLICIES

_KINDS: Final[tuple[tuple[str, Registry[Any]], ...]] = (
    (POD_NODE_POLICY, NODE_POLICIES),
    (POD_CARD_POLICY, CARD_POLICIES),
)


_KNOWN: Final = frozenset(value for name, value in vars(names).items() if name.startswith("POD_"))
_USERS: Final = sorted(_KNOWN - OWN_POD_ANNOTATIONS)


class UnknownPolicy(NamedTuple):
    """A policy that a pod names: the annotation, its value, and the policies that are known in its place."""

    annotation: str
    name: str
    registry: Registry[Any]

    def __str__(self) -> str:
        return f"{self.registry.kind} {shown(self.name)}"


def find_unknown_policies(pod: Pod) -> tuple[UnknownPolicy, ...]:
    """Find the policies of a pod that are not known here; a name that none can have is a mistake instead."""
    annotations = pod.metadata.annotations
    if not annotations:
        return ()
    return tuple(
        UnknownPolicy(annotation, name, registry)
        for annotation, registry in _KINDS
        if (name := annotations.get(annotation)) is not None and name not in registry and is_name(name)
    )


def drop_unknown_policies(pod: Pod) -> Pod:
    unknown = {policy.annotation for policy in find_unknown_policies(pod)}
    if not unknown:
        return pod
    annotations = {
        key: value for key, value in (pod.metadata.annotations or {}).items() if key not in unknown
    }
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations)
    )


def find_policy_refusal(pod: Pod, said: str) -> str:
    """Find the extender's refusal of a policy in what kube-scheduler says of a pod; empty: none."""
    for policy in find_unknown_policies(pod):
        begin = re.escape(f"annotation {policy.annotation} is {shown(policy.name)}; allowed: ")
        found = re.search(rf"{begin}[a-z0-9-]+(?:, [a-z0-9-]+)*(?=[,.;]|$)", said)
        if found is not None:
            return found[0]
    return ""


def describe_unknowns(pod: Pod) -> tuple[str, ...]:
    """List a pod's policies and annotations that are unknown here, a sentence for each."""
    strange = sorted(
        name for name in pod.metadata.annotations or () if name.startswith(OWN_PREFIX) and name not in _KNOWN
    )
    said = tuple(
        f"this command does not know the {policy} of the pod, and looks at it as if it named none: known are "
        f"{policy.registry.allowed}. Install the package that has it beside this command, too; an extender "
        "without it refuses the pod"
        for policy in find_unknown_policies(pod)
    )
    if strange:
        said += (f"annotations that gpupack does not know: {shown(strange)}; allowed: {', '.join(_USERS)}",)
    return said
