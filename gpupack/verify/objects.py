"""The objects that `gpupack verify` creates, and what it reads of pods. Pure."""

from typing import Any, Final

import msgspec

from allocator.names import POD_GPU_UUID
from gpupack.verify.target import Target
from kubeapi.objects import TERMINAL_PHASES, KubeObject, KubeStruct, PodConditions, PodSpec
from kubeapi.selectors import HOSTNAME

RUN_LABEL: Final = "app.kubernetes.io/instance"
"""Label of the namespace; its value tells the run that created it."""

CONTAINER: Final = "main"
NO_IMAGE: Final = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
"""Reasons for which a container waits, and goes on waiting, because its image cannot be had."""

_PART_OF: Final = {"app.kubernetes.io/part-of": "gpupack", "app.kubernetes.io/name": "gpupack-verify"}
_GRACE_S: Final = 5


def make_namespace(name: str, run_id: str) -> dict[str, Any]:
    labels = {**_PART_OF, RUN_LABEL: run_id}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def make_pod(
    name: str, target: Target, amount: str, *, use_mib: int = 0, any_card: bool = False
) -> dict[str, Any]:
    """Make a pod for the target's node, as the Pod Security Standard `restricted` wants pods.

    A cluster autoscaler adds no node for it: the name of the node is fixed.

    Args:
        use_mib: memory that its container uses; 0 for none.
        any_card: of the node, in place of the target's card.
    """
    runtime = {"runtimeClassName": target.runtime_class} if target.runtime_class else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": _PART_OF,
            "annotations": {} if any_card else {POD_GPU_UUID: target.uuid},
        },
        "spec": {
            **runtime,
            "schedulerName": target.scheduler_name,
            "nodeSelector": {HOSTNAME: target.hostname},
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": target.image,
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["verify", f"--in-container={use_mib}"],
                    # CUDA is not among what NVIDIA's runtime brings by default.
                    "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}],
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "64Mi"},
                        "limits": {target.resource: amount},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                }
            ],
        },
    }


class _Waiting(KubeStruct):
    reason: str = ""
    message: str = ""


class _State(KubeStruct):
    waiting: _Waiting | None = None
    running: dict[str, Any] | None = None


class _ContainerStatus(KubeStruct):
    container_id: str = msgspec.field(default="", name="containerID")
    restart_count: int = 0
    state: _State = msgspec.field(default_factory=_State)


class _TriedStatus(PodConditions):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[_ContainerStatus] | None = None


class TriedPod(KubeObject):
    """A pod of `gpupack verify`, with what only this command reads."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: _TriedStatus = msgspec.field(default_factory=_TriedStatus)

    @property
    def runs(self) -> bool:
        parts = self.status.container_statuses or ()
        return (
            self.status.phase == "Running"
            and bool(parts)
            and all(each.state.running is not None for each in parts)
        )

    @property
    def has_ended(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def life(self) -> tuple[object, ...]:
        """A value that stays the same as long as the pod and its containers live."""
        parts = self.status.container_statuses or ()
        return (self.metadata.uid, *((each.container_id, each.restart_count) for each in parts))

    @property
    def image_problem(self) -> str:
        """Why its image cannot be had; empty where it can, or is still being pulled."""
        waiting = [each.state.waiting for each in self.status.container_statuses or ()]
        said = [each for each in waiting if each is not None and each.reason in NO_IMAGE]
        return f"{said[0].reason}: {said[0].message}" if said else ""

    @property
    def refusal(self) -> str:
        """What a scheduler says to it that finds no place; empty for nothing."""
        found = self.status.scheduled
        return found.message if found is not None and self.status.is_unschedulable else ""

    def describe(self) -> str:
        """Say how far it is."""
        status, gates = self.status, [gate.name for gate in self.spec.scheduling_gates or ()]
        if self.has_ended:
            return f"it has ended: {status.reason or status.phase} {status.message}".strip()
        if gates:
            return f"it waits at the scheduling gate {', '.join(gates)}"
        if self.refusal:
            return f"no node takes it: {self.refusal}"
        scheduled = status.scheduled
        if scheduled is None or not status.was_tried:
            return "no scheduler has said anything of it"
        if not scheduled.is_true:
            return f"its scheduler cannot place it: {scheduled.reason} {scheduled.message}"
        waiting = [each.state.waiting for each in status.container_statuses or () if each.state.waiting]
        return f"it is {status.phase}" + "".join(
            f", {each.reason} {each.message}".rstrip() for each in waiting
        )
