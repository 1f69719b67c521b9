"""The rule of `batch_eligibility` in CEL, as the manifests of batch mode have it.

`python -m tests.batch_policy` writes the manifests again.
"""

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill, indent
from typing import Final

from allocator.names import BATCH_POOL, BATCH_SCHEDULER, QUEUE_NAME, SCHEDULER_NAME
from scheduler_plugin.scheduling import batch_eligibility as rules

COMPONENTS: Final = Path(__file__).parents[1] / "manifests/components"
COMPONENT: Final = COMPONENTS / "queue-batch"
OWN_NODES: Final = COMPONENTS / "queue-batch-own-nodes"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ASKS: Final = (
    "(object.spec.containers + object.spec.?initContainers.orValue([])).exists(container,"
    " container.?resources.?limits.orValue({}).exists(name, name.startsWith('gpupack.io/gpu-')))"
)


def write_set(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def write_rule() -> str:
    """A CEL expression: batch mode may bind the pod that is being created."""
    only = "{part}.all(field, field in {names})".format
    container = " && ".join(
        (
            only(part="container", names=write_set(rules.CONTAINER_FIELDS)),
            only(part="container.?resources.orValue({})", names=write_set(rules.AMOUNT_FIELDS)),
            "container.?ports.orValue([]).all(port, "
            + only(part="port", names=write_set(rules.PORT_FIELDS))
            + ")",
            "container.?volumeMounts.orValue([]).all(mount, "
            + only(part="mount", names=write_set(rules.MOUNT_FIELDS))
            + ")",
        )
    )
    nodes = "object.spec.?affinity.?nodeAffinity"
    parts = (
        only(part="object.spec", names=write_set(rules.POD_FIELDS)),
        f"(object.spec.containers + object.spec.?initContainers.orValue([])).all(container, {container})",
        only(part="object.spec.?resources.orValue({})", names=write_set(rules.AMOUNT_FIELDS)),
        "object.spec.?volumes.orValue([]).all(volume, "
        + only(part="volume", names=write_set(rules.VOLUME_FIELDS))
        + ")",
        only(part="object.spec.?affinity.orValue({})", names="['nodeAffinity']"),
        only(part=f"{nodes}.orValue({{}})", names=f"['{_REQUIRED}']"),
        only(part=f"{nodes}.?{_REQUIRED}.orValue({{}})", names="['nodeSelectorTerms']"),
        f"{nodes}.?{_REQUIRED}.?nodeSelectorTerms.orValue([]).all(term, "
        + only(part="term", names=write_set(rules.TERM_FIELDS))
        + ")",
        "object.spec.?tolerations.orValue([]).all(toleration, "
        + only(part="toleration", names=write_set(rules.TOLERATION_FIELDS))
        + " && toleration.?operator.orValue('') in ['', 'Equal', 'Exists'])",
        "object.spec.?os.?name.orValue('linux') == 'linux'",
        "(object.spec.?priority.orValue(0) <= 0 || object.spec.?preemptionPolicy.orValue('') == 'Never')",
        "object.spec.?schedulerName.orValue('') in "
        + write_set(("", "default-scheduler", SCHEDULER_NAME, BATCH_SCHEDULER)),
    )
    return " && ".join(parts)


def _folded(expression: str, spaces: int) -> str:
    return indent(fill(expression, 110, break_long_words=False, break_on_hyphens=False), " " * spaces)


def _write_one(name: str, selector: str, condition: str, mutation: str) -> str:
    return f"""\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: {name}
  labels:
    app.kubernetes.io/component: queue-batch
    app.kubernetes.io/part-of: gpupack
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
{selector}    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
  matchConditions:
    - name: asks-for-gpus
      expression: >-
{_folded(_ASKS, 8)}
    - name: {"names-no-queue" if selector else "names-a-queue"}
      expression: >-
        {condition}
    - name: has-only-what-batch-mode-checks
      expression: >-
{_folded(write_rule(), 8)}
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: >-
{_folded(mutation, 10)}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: {name}
  labels:
    app.kubernetes.io/component: queue-batch
    app.kubernetes.io/part-of: gpupack
spec:
  policyName: {name}
"""


def write_policy() -> str:
    """The policies that give pods of queues the scheduler's name."""
    by_label = f"{{key: {QUEUE_NAME}, operator: Exists}}"
    labelled = f"    namespaceSelector:\n      matchExpressions:\n        - {by_label}\n"
    named = f"'{QUEUE_NAME}' in object.metadata.?labels.orValue({{}})"
    spec = f'spec: Object.spec{{schedulerName: "{BATCH_SCHEDULER}"}}'
    label = f"'{QUEUE_NAME}': namespaceObject.metadata.labels['{QUEUE_NAME}']"
    both = f"Object{{metadata: Object.metadata{{labels: {{ {label} }}}}, {spec}}}"
    return f"""\
# Pods of a queue whose spec has only what batch mode checks itself get the scheduler {BATCH_SCHEDULER}.
# Every other one gets the gate. `python -m tests.batch_policy` writes this file and gate.yaml.
{_write_one("gpupack-queue-batch", "", named, f"Object{{{spec}}}")}---
# The same for pods that get their queue from their namespace.
{_write_one("gpupack-queue-batch-name", labelled, f"!({named})", both)}"""


def write_gate() -> str:
    return f"""\
# The gate is for pods that are left to kube-scheduler.
- op: add
  path: /spec/matchConditions/-
  value:
    name: is-left-to-kube-scheduler
    expression: >-
{_folded(f"!({write_rule()})", 6)}
"""


def write_missing(field: str, value: str) -> str:
    """The step that makes a field of the spec where there is none."""
    step = f'[JSONPatch{{op: "add", path: "/spec/{field}", value: {value}}}]'
    return f"(has(object.spec.{field}) ? [] : {step})"


def write_own_nodes() -> str:
    """The patch of the policies that has their pods go to batch mode's own nodes."""
    key = BATCH_POOL.replace("/", "~1")
    own = f'Object.spec.tolerations{{key: "{BATCH_POOL}", operator: "Exists", effect: "NoSchedule"}}'
    steps = " + ".join(
        (
            write_missing("nodeSelector", "{}"),
            f'[JSONPatch{{op: "add", path: "/spec/nodeSelector/{key}", value: "true"}}]',
            write_missing("tolerations", "[]"),
            f'[JSONPatch{{op: "add", path: "/spec/tolerations/-", value: {own}}}]',
        )
    )
    return f"""\
# `python -m tests.batch_policy` writes this file.
- op: add
  path: /spec/mutations/-
  value:
    patchType: JSONPatch
    jsonPatch:
      expression: >-
{_folded(steps, 8)}
"""


FILES: Final = {
    COMPONENT / "policy.yaml": write_policy,
    COMPONENT / "gate.yaml": write_gate,
    OWN_NODES / "own-nodes.yaml": write_own_nodes,
}


if __name__ == "__main__":
    for path, write in FILES.items():
        path.write_text(write())
