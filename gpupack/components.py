"""The parts of `manifests/` that can be taken out again, with `gpupack uninstall --component`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from allocator.names import BATCH_SCHEDULER, SCHEDULER_NAME

PART_OF: Final = "app.kubernetes.io/part-of=gpupack"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
"""Label of what a component brings; its value is the component's name."""


@dataclass(frozen=True, slots=True)
class Component:
    """A folder of `manifests/` that brings objects of its own.

    Attributes:
        dependents: Components that change its objects, and go with it.
        daemon: Label `app.kubernetes.io/name` of its pods, where containers on their nodes cannot do without
            them; empty if they can.
        scheduler: `schedulerName` of pods that only it binds; empty for none.
    """

    dependents: tuple[str, ...] = ()
    daemon: str = ""
    scheduler: str = ""


COMPONENTS: Final[Mapping[str, Component]] = {
    "autoscale": Component(),
    "dashboard": Component(dependents=("dashboard-teams",)),
    "dashboard-teams": Component(),
    "dra": Component(daemon="gpupack-node-dra"),
    "evict-over-use": Component(),
    "extender": Component(),
    "gpu-taint": Component(),
    "monitoring": Component(),
    "mps": Component(daemon="gpupack-mps"),
    "network-policy": Component(),
    "openshift": Component(),
    "priority-quota": Component(),
    "queue": Component(dependents=("queue-batch",)),
    "queue-batch": Component(scheduler=BATCH_SCHEDULER),
    # Not with scheduler-name, which does nothing where another scheduler is allowed: without that policy the
    # API server may read the ConfigMap gpupack-admission no more.
    "scheduler": Component(scheduler=SCHEDULER_NAME),
    "scheduler-name": Component(),
    "visible-devices": Component(),
}


def add_dependents(names: Collection[str]) -> tuple[str, ...]:
    """Name components and those that go with them, in order."""
    return tuple(sorted({*names, *(each for name in names for each in COMPONENTS[name].dependents)}))


_ADMISSION: Final = "/apis/admissionregistration.k8s.io"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"

FIRST: Final = (
    f"{_ADMISSION}/v1/mutatingadmissionpolicybindings",
    f"{_ADMISSION}/v1/mutatingadmissionpolicies",
    f"{_ADMISSION}/v1beta1/mutatingadmissionpolicybindings",
    f"{_ADMISSION}/v1beta1/mutatingadmissionpolicies",
    f"{_ADMISSION}/v1/validatingadmissionpolicybindings",
    f"{_ADMISSION}/v1/validatingadmissionpolicies",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
)
"""Resources that go first, in this order: policies before whoever lets the pods go that they made wait."""

LAST: Final = (
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/resourcequotas",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/monitoring.coreos.com/v1/servicemonitors",
    "/apis/monitoring.coreos.com/v1/prometheusrules",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/security.openshift.io/v1/securitycontextconstraints",
    f"{_RBAC}/rolebindings",
    f"{_RBAC}/clusterrolebindings",
    f"{_RBAC}/roles",
    f"{_RBAC}/clusterroles",
    "/api/v1/serviceaccounts",
)
"""Resources that go when workloads and their pods have ended: until then these need their rights."""
