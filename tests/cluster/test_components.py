"""In and out of every component, on a real API server with its controllers: nothing of it is left.

There is no node: pods wait, and those of Deployments are not started.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from gpupack.cli.app import cli
from gpupack.components import COMPONENTS, FIRST, LAST, PART_OF
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.manifests import COMPONENTS as FOLDERS
from tests.cluster.harness.manifests import MANIFESTS, OVERLAYS, apply_all, build, path_of
from tests.cluster.harness.rest import ApiError, Json

GATES = [{"name": "gpupack.io/queue"}]
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {},
}

Admission = dict[str, Any]
"""What the API server makes of the spec of each probe, or what it says to it."""


PROBES: tuple[Json, ...] = (
    w.pod("plain", w.container(gib=8)),
    w.pod("visible", w.container() | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
    w.queued("queued", queue="default"),
    # Batch mode leaves it to kube-scheduler.
    w.queued("spread", queue="default", topologySpreadConstraints=[SPREAD]),
)

# With the policies of scheduler-name, which do nothing there. An API server, up to 1.37 at least, may read no
# ConfigMap for its policies any more once the last mutating one that refers to one is gone.
JOINED = ("overlays/join-existing-scheduler", "../scheduler-name")
BY_HAND = ("overlays/scheduler-name-by-hand",)


@dataclass(frozen=True)
class Case:
    """A way in and out.

    Attributes:
        within: The folder that is applied meanwhile, and components.
        component: What `uninstall` takes out; empty where only objects of others are changed.
        before: What is applied before and after.
        is_in: Whether the component is in force, by what becomes of the probes.
    """

    within: tuple[str, ...]
    component: str = ""
    before: tuple[str, ...] = ("base",)
    is_in: Callable[[Admission], bool] = lambda _seen: True


def is_batch(seen: Admission) -> bool:
    scheduler, gates = seen["queued"]["schedulerName"], seen["spread"]["schedulingGates"]
    return bool((scheduler, gates) == ("gpupack-batch", GATES))


def is_named(seen: Admission) -> bool:
    return bool(seen["plain"]["schedulerName"] == "gpupack-scheduler")


CASES = {
    "autoscale": Case(("base", "autoscale"), "autoscale"),
    "dashboard": Case(("base", "dashboard", "dashboard-teams"), "dashboard"),
    "dashboard-teams": Case(
        ("base", "dashboard", "dashboard-teams"), "dashboard-teams", ("base", "dashboard")
    ),
    "dra": Case(("base", "dra", "dra-scheduler"), "dra"),
    "evict-over-use": Case(("base", "evict-over-use"), "evict-over-use"),
    "extender": Case(
        JOINED, "extender", is_in=lambda seen: bool(seen["plain"]["schedulerName"] == "default-scheduler")
    ),
    "gpu-taint": Case(
        ("base", "gpu-taint"), "gpu-taint", is_in=lambda seen: "nvidia.com/gpu" in str(seen["plain"])
    ),
    "monitoring": Case(("base", "monitoring"), "monitoring"),
    "mps": Case(("base", "mps"), "mps"),
    "network-policy": Case(("base", "network-policy"), "network-policy"),
    "of a node": Case(
        ("base", "bottlerocket", "cdi", "mig", "nvidia-runtime-class", "simulated-gpus", "k0s")
    ),
    "openshift": Case(("base", "openshift"), "openshift"),
    "priority-quota": Case(("base", "priority-quota"), "priority-quota"),
    "queue": Case(
        ("base", "queue"), "queue", is_in=lambda seen: bool(seen["queued"]["schedulingGates"] == GATES)
    ),
    "queue with batch mode": Case(("overlays/queue-batch",), "queue", is_in=is_batch),
    "queue-batch": Case(("overlays/queue-batch",), "queue-batch", ("base", "queue"), is_batch),
    "scheduler": Case(("base",), "scheduler", JOINED, is_named),
    "visible-devices": Case(
        ("base", "visible-devices"), "visible-devices", is_in=lambda seen: "VISIBLE" in seen["visible"]
    ),
    # The last one, see JOINED.
    "scheduler-name": Case(("base",), "scheduler-name", BY_HAND, is_named),
}


def test_every_component_and_overlay_has_its_case() -> None:
    used = {name for case in CASES.values() for name in (case.component, *case.within, *case.before)}
    used |= {name.removeprefix("overlays/") for name in used}
    used |= {"gke", "memory-limits", "queue-batch-own-nodes"}  # parts of others, or made of them
    assert {path.name for path in FOLDERS.iterdir()} | {*COMPONENTS, *OVERLAYS} <= used | {
        "scheduler-name-v1beta1"  # the base for other versions of Kubernetes
    }


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    def begin(cluster: Cluster) -> None:
        cluster.control.start_without_scheduler()
        cluster.wait_account()

    made: Cluster = make_cluster(with_node=False, start=begin)
    return made


def build_objects(folder: str, *components: str) -> list[Json]:
    """Objects of a folder with components; kinds of the Prometheus operator and of OpenShift are not here."""
    found = build(MANIFESTS / folder, *(FOLDERS / name for name in components))
    elsewhere = ("monitoring.coreos.com/", "security.openshift.io/")
    return [one for one in found if not one["apiVersion"].startswith(elsewhere)]


def list_installed(cluster: Cluster) -> Iterator[tuple[str, Json]]:
    """Everything of gpupack but its namespace, with its path."""
    for resource in (*FIRST, *LAST):
        group, _, plural = resource.rpartition("/")
        try:
            found = cluster.api.get(resource, labelSelector=PART_OF)["items"]
        except ApiError as error:
            if error.status != 404:
                raise
            continue
        for one in found:
            metadata = one["metadata"]
            where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            yield f"{group}{where}/{plural}/{metadata['name']}", one


def read_installed(cluster: Cluster) -> dict[str, Json]:
    """What is installed, without what the API server and controllers write."""
    return {
        path: {
            "labels": one["metadata"]["labels"],
            **{key: value for key, value in one.items() if key not in {"metadata", "status"}},
        }
        for path, one in list_installed(cluster)
    }


def ask_admission(cluster: Cluster) -> Admission:
    seen: Admission = {}
    for pod in PROBES:
        name = pod["metadata"]["name"]
        probe = pod | {"metadata": pod["metadata"] | {"name": f"{name}-2"}}
        try:
            seen[name] = cluster.api.post(PODS, probe, dryRun="All")["spec"]
        except ApiError as error:
            seen[name] = error.message
    return seen


def is_outside(seen: Admission, before: tuple[str, ...]) -> bool:
    """Whether no component but those that were there before is in force."""
    asking = [seen[name] for name in ("plain", "queued", "spread")]
    if before == BY_HAND:
        return all(isinstance(said, str) for said in asking)
    scheduler = "default-scheduler" if before == JOINED else "gpupack-scheduler"
    gates = [None, *([GATES if "queue" in before else None] * 2)]
    return (
        {spec["schedulerName"] for spec in asking} == {scheduler}
        and [spec.get("schedulingGates") for spec in asking] == gates
        and isinstance(seen["visible"], dict)
    )


def install_only(cluster: Cluster, objects: list[Json]) -> None:
    """Apply objects, and delete what else is there of gpupack."""
    apply_all(cluster.api, objects)
    wanted = {path_of(cluster.api, one) for one in objects}
    for path, _ in list_installed(cluster):
        if path not in wanted:
            cluster.api.delete(path)


def uninstall(cluster: Cluster, component: str) -> tuple[int, list[str]]:
    command = ["uninstall", f"--component={component}", f"--kubeconfig={cluster.control.admin_config}"]
    done = CliRunner().invoke(cli, command)
    assert done.stderr == ""
    return done.exit_code, done.stdout.splitlines()


SHOWN_BY_OTHERS = frozenset(
    {"autoscale", "dashboard", "dashboard-teams", "evict-over-use", "gpu-taint", "monitoring", "mps"}
    | {"network-policy", "of a node", "openshift", "visible-devices"}
)
"""Cases that run nightly: their objects go the way of the others'."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in SHOWN_BY_OTHERS else []) for name in CASES],
)
def test_out_of_a_component_nothing_is_left_and_pods_are_treated_as_before(
    cluster: Cluster, name: str
) -> None:
    case = CASES[name]
    cluster.delete_pods()
    before = build_objects(*case.before)
    install_only(cluster, before)
    until(lambda: is_outside(ask_admission(cluster), case.before), "policies of what is installed before")
    admitted = ask_admission(cluster)
    installed = read_installed(cluster)

    apply_all(cluster.api, build_objects(*case.within))
    until(lambda: case.is_in(ask_admission(cluster)), f"{name} in force")
    assert read_installed(cluster) != installed
    waiting = {name for name, seen in ask_admission(cluster).items() if isinstance(seen, dict)}
    for pod in PROBES:
        if pod["metadata"]["name"] in waiting:
            cluster.api.post(PODS, pod)

    apply_all(cluster.api, before)
    if case.component:
        status, lines = uninstall(cluster, case.component)
        named = [line.split()[1].partition("/")[2] for line in lines if "stays as it is" in line]
        assert (status, len(lines) > len(named)) == (1 if named else 0, True), lines
        for each in named:
            cluster.delete(each)
        assert uninstall(cluster, case.component) == (0, [f"Nothing is left of {case.component}."])
        waiting -= set(named)
    assert read_installed(cluster) == installed
    until(lambda: ask_admission(cluster) == admitted, "pods treated as before")
    gates = {each: cluster.pod(each)["spec"].get("schedulingGates") for each in waiting}
    queued = {"queued", "spread"} & waiting if "queue" in case.before else set()
    assert gates == {each: GATES if each in queued else None for each in waiting}
