"""Tells which pods batch mode may bind itself: those whose spec has only fields that its checks know. Pure.

All other pods are left to kube-scheduler. The lists name what is allowed, so fields that a later Kubernetes
adds are not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from allocator.names import BATCH_SCHEDULER
from kubeapi.selectors import REQUIRED

POD_FIELDS: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostPID",
        "hostUsers",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "volumes",
    }
)
CONTAINER_FIELDS: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeMounts",
        "workingDir",
    }
)
VOLUME_FIELDS: Final = frozenset(
    {"name", "configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret"}
)
MOUNT_FIELDS: Final = frozenset(
    {"mountPath", "mountPropagation", "name", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr"}
)
PORT_FIELDS: Final = frozenset({"containerPort", "name", "protocol"})
AMOUNT_FIELDS: Final = frozenset({"limits", "requests"})
TOLERATION_FIELDS: Final = frozenset({"effect", "key", "operator", "tolerationSeconds", "value"})
TERM_FIELDS: Final = frozenset({"matchExpressions", "matchFields"})


def list_unsupported_fields(spec: Mapping[str, Any]) -> list[str]:
    """List the fields of a pod's spec that only kube-scheduler supports; empty: batch mode may bind."""
    found = {*list_unchecked_fields(spec)}
    if (spec.get("priority") or 0) > 0 and spec.get("preemptionPolicy") != "Never":
        found.add("priority above 0 without preemptionPolicy Never")
    if spec.get("schedulerName") != BATCH_SCHEDULER:
        found.add(f"schedulerName other than {BATCH_SCHEDULER}")
    return sorted(found)


def list_unchecked_fields(spec: Mapping[str, Any]) -> Iterator[str]:
    """List the fields of a pod's spec that could keep it off a node, and that only kube-scheduler knows."""
    yield from _unknown(spec, POD_FIELDS, "")
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            yield from _list_unsupported_of_container(container, f"{kind}[].")
    yield from _unknown(spec.get("resources"), AMOUNT_FIELDS, "resources.")
    for volume in spec.get("volumes") or ():
        yield from _unknown(volume, VOLUME_FIELDS, "volumes[].")
    yield from _list_unsupported_affinity(spec.get("affinity") or {})
    for toleration in spec.get("tolerations") or ():
        yield from _unknown(toleration, TOLERATION_FIELDS, "tolerations[].")
        if toleration.get("operator") not in {None, "", "Equal", "Exists"}:
            yield f"tolerations[].operator {toleration['operator']}"
    system = (spec.get("os") or {}).get("name", "linux")
    if system != "linux":
        yield f"os.name {system}"


def _list_unsupported_of_container(container: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _unknown(container, CONTAINER_FIELDS, path)
    yield from _unknown(container.get("resources"), AMOUNT_FIELDS, f"{path}resources.")
    for port in container.get("ports") or ():
        yield from _unknown(port, PORT_FIELDS, f"{path}ports[].")
    for mount in container.get("volumeMounts") or ():
        yield from _unknown(mount, MOUNT_FIELDS, f"{path}volumeMounts[].")


def _list_unsupported_affinity(affinity: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(affinity, frozenset({"nodeAffinity"}), "affinity.")
    nodes = affinity.get("nodeAffinity") or {}
    yield from _unknown(nodes, frozenset({REQUIRED}), "affinity.nodeAffinity.")
    required = nodes.get(REQUIRED) or {}
    yield from _unknown(required, frozenset({"nodeSelectorTerms"}), f"affinity.nodeAffinity.{REQUIRED}.")
    for term in required.get("nodeSelectorTerms") or ():
        yield from _unknown(term, TERM_FIELDS, "nodeSelectorTerms[].")


def _unknown(part: Mapping[str, Any] | None, allowed: frozenset[str], path: str) -> Iterator[str]:
    """List the fields of a part that are set and not allowed; false and empty values count as absent."""
    for name, value in (part or {}).items():
        if name not in allowed and value not in (None, False, "", [], {}, 0):
            yield f"{path}{name}"
