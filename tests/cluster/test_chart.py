"""The Helm chart makes what kustomize makes, and the real API server takes it."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupack.usage.prometheus import EXPRESSIONS, make_label_query
from tests.cluster.harness import Cluster, binaries, dra, versions
from tests.cluster.harness.cluster import NAMESPACE
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.manifests import CLUSTER_WIDE, apply_all, build, has_mutating_policies
from tests.cluster.harness.rest import Api
from tests.manifest_objects import check_folders
from tests.scripts import grafana
from tests.yaml_text import read_yaml, read_yaml_documents

MANIFESTS = REPOSITORY / "manifests"
CHART = MANIFESTS / "helm" / "gpupack"
# The values that make of the chart what an overlay makes of the base.
OVERLAYS = {
    "autoscale": ["autoscale.enabled=true"],
    "dashboard": ["dashboard.enabled=true"],
    "join-existing-scheduler": ["scheduler.mode=join"],
    "monitoring": [f"monitoring.{part}.enabled=true" for part in ("serviceMonitor", "rules", "dashboard")],
    "nvidia-runtime-class": ["node.runtimeClassName=nvidia"],
    "queue": ["queue.enabled=true"],
    "queue-batch": ["queue.enabled=true", "queue.batch.enabled=true"],
    "scheduler-name-by-hand": ["schedulerName=by-hand"],
    "scheduler-name-v1beta1": ["schedulerName=v1beta1"],
    "simulated-gpus": ["simulatedGpus.enabled=true"],
}
# And for components that have no overlay.
COMPONENTS = {
    "bottlerocket": ["platform=bottlerocket"],
    "cdi": ["cdi.enabled=true"],
    "dashboard-teams": ["dashboard.enabled=true", "dashboard.teams=true"],
    "dra": ["dra.enabled=true"],
    "evict-over-use": ["evictOverUse.enabled=true"],
    "gke": ["platform=gke"],
    "gpu-taint": ["gpuTaint.enabled=true"],
    "k0s": ["node.kubeletDir=/var/lib/k0s/kubelet"],
    "memory-limits": ["memoryLimits.enabled=true"],
    "mig": ["mig.enabled=true"],
    "mps": ["mps.enabled=true"],
    "network-policy": ["networkPolicy.enabled=true"],
    "openshift": ["platform=openshift"],
    "priority-quota": ["priorityQuota.enabled=true"],
    "queue-batch": ["queue.enabled=true", "queue.batch.enabled=true", "queue.batch.sharedNodes=true"],
    "queue-batch-own-nodes": ["queue.enabled=true", "queue.batch.enabled=true"],
    "visible-devices": ["visibleDevices.enabled=true"],
}
TOGETHER = {
    "dashboard-teams": ("dashboard", "dashboard-teams"),
    "dra": ("dra", "dra-scheduler"),
    "queue-batch": ("queue", "queue-batch"),
    "queue-batch-own-nodes": ("queue", "queue-batch", "queue-batch-own-nodes"),
}
"""Components that one value brings, or that stand on others."""
BESIDE_CLAIMS = {
    **{
        name: COMPONENTS[name]
        for name in ("cdi", "evict-over-use", "gke", "k0s", "memory-limits", "mig", "mps")
    },
    **{name: OVERLAYS[name] for name in ("autoscale", "dashboard", "nvidia-runtime-class", "queue")},
    "queue-batch": COMPONENTS["queue-batch-own-nodes"],
    "simulated-gpus": OVERLAYS["simulated-gpus"],
}
"""Values beside `dra.enabled`, by their component."""
Objects = dict[tuple[str, str], dict[str, Any]]


def kube_scheduler_version(folder: str) -> str | None:
    """The version of kube-scheduler in a folder of `manifests/`; None where there is none."""
    deployments = [one for one in build(MANIFESTS / folder) if one["kind"] == "Deployment"]
    images = [each["image"] for one in deployments for each in one["spec"]["template"]["spec"]["containers"]]
    return next((image.partition(":v")[2] for image in images if "kube-scheduler" in image), None)


KUBERNETES = kube_scheduler_version("base") or ""
SERVED_FROM = dict.fromkeys(("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"), 36)
"""Kinds of ours that not every Kubernetes serves by default, with the first minor version that does."""


def read_platforms() -> dict[str, list[str]]:
    """The values of each platform in docs/install/manifests.md."""
    text = (REPOSITORY / "docs" / "install" / "manifests.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if re.match(r"\| [^|]+\| `[a-zA-Z.]+=", line)]
    return {name.strip(): re.findall(r"`(\S+=\S+)`", values) for name, values in rows}


PLATFORMS = read_platforms()
EVERYTHING = [
    *("queue.enabled=true", "queue.batch.enabled=true", "autoscale.enabled=true", "dashboard.enabled=true"),
    *("networkPolicy.enabled=true", "networkPolicy.from[0].ipBlock.cidr=192.0.2.10/32"),
    *("dashboard.teams=true", "gpuTaint.enabled=true", "visibleDevices.enabled=true", "mps.enabled=true"),
]


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.tool("helm")), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr[-2000:]
    return done


def template(
    *values: str, namespace: str = NAMESPACE, version: str = KUBERNETES, apis: Sequence[str] = ()
) -> Objects:
    """What Helm makes of values for a version of Kubernetes; `apis` are kinds that a cluster names."""
    chosen = [word for value in values for word in ("--set", value)]
    chosen += [word for api in apis for word in ("--api-versions", api)]
    there = ["--namespace", namespace, "--kube-version", version]
    made = helm("template", "gpupack", str(CHART), *there, *chosen).stdout
    return without_labels_of_helm(by_name([one for one in read_yaml_documents(made) if one]))


LABELS = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)
"""What Helm's conventions want on each object of a release, and kustomize does not write."""


def without_labels_of_helm(objects: Objects) -> Objects:
    for one in objects.values():
        assert set(LABELS) <= one["metadata"]["labels"].keys()
        one["metadata"]["labels"] = {
            name: value for name, value in one["metadata"]["labels"].items() if name not in LABELS
        }
    return objects


def by_name(objects: list[dict[str, Any]]) -> Objects:
    for one in objects:
        template_of = one.get("spec", {}).get("template", {}) if one["kind"] != "PrometheusRule" else {}
        for container in template_of.get("spec", {}).get("containers", []):
            if "args" in container:  # options have no order
                container["args"] = [container["args"][0], *sorted(container["args"][1:])]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def container(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    pod = objects[kind, name]["spec"]["template"]["spec"]
    return next(dict(one) for one in pod["containers"] if one["name"] == "gpupack")


def test_the_defaults_are_the_base_and_its_namespace_is_the_users() -> None:
    base = by_name(build(MANIFESTS / "base"))
    assert template("namespace.create=true") == base
    del base["Namespace", NAMESPACE]
    assert template() == base


@pytest.mark.parametrize("overlay", sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kust*")))
def test_each_overlay_is_a_value(overlay: str) -> None:
    version = kube_scheduler_version(f"overlays/{overlay}") or KUBERNETES
    assert template("namespace.create=true", *OVERLAYS[overlay], version=version) == by_name(
        build(MANIFESTS / "overlays" / overlay)
    )


def notes(folder: Path, *values: str, version: str) -> str:
    """What Helm tells who installs the chart; `helm template`, which alone takes a version, leaves it out."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    shown = '{{ include "notes" . | quote }}'
    (copy / "templates" / "notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text}{{{{ end }}}}\nkind: Notes\ntext: {shown}\n'
    )
    chosen = [word for value in values for word in ("--set", value)]
    arguments = ("--kube-version", version, "--show-only", "templates/notes.yaml", *chosen)
    return str(read_yaml(helm("template", "gpupack", str(copy), *arguments).stdout)["text"])


@pytest.mark.parametrize(
    ("values", "version", "said", "unsaid"),
    [
        (
            (),
            "1.37.1",
            ("kubectl label node", "queue.enabled", "deployment/gpupack-scheduler"),
            "schedulerName",
        ),
        ((), "1.35.2", ("schedulerName: gpupack-scheduler",), "v1beta1"),
        (("schedulerName=v1beta1",), "1.35.2", ("kubectl gpupack verify",), "schedulerName"),
        (("queue.enabled=true",), "1.37.1", ("autoscale.enabled",), "queue.enabled"),
        (("simulatedGpus.enabled=true",), "1.37.1", ("kubectl gpupack top",), "kubectl label node"),
        (
            ("scheduler.mode=join",),
            "1.37.1",
            ("deployment/gpupack-extender",),
            "deployment/gpupack-scheduler",
        ),
    ],
)
def test_notes_say_what_comes_next_and_what_is_off(
    tmp_path: Path, values: tuple[str, ...], version: str, said: tuple[str, ...], unsaid: str
) -> None:
    text = notes(tmp_path, *values, version=version)
    assert all(words in text for words in said), text
    assert unsaid not in text


@pytest.mark.parametrize(
    ("version", "image"), [("1.35.2", "v1.35.2"), ("1.34.4-gke.1", "v1.34.4"), ("1.37.1+k3s1", "v1.37.1")]
)
def test_kube_scheduler_is_of_the_api_servers_version(version: str, image: str) -> None:
    pod = template(version=version)["Deployment", "gpupack-scheduler"]["spec"]["template"]["spec"]
    assert f"registry.k8s.io/kube-scheduler:{image}" in [each["image"] for each in pod["containers"]]


MINORS = [version.minor for version in versions.pinned()]


@pytest.mark.parametrize(
    ("platform", "minor"),
    [
        pytest.param(
            platform,
            minor,
            marks=[] if platform == "GKE" or minor == MINORS[-1] else [pytest.mark.nightly],
        )
        for platform in sorted(PLATFORMS)
        for minor in MINORS
    ],
)
def test_each_platform_fits_each_version(platform: str, minor: str) -> None:
    """What is served when, the real API servers say in `test_what_a_version_serves`."""
    assert len(PLATFORMS) >= 6
    number = int(minor.partition(".")[2])
    claims = ["dra.enabled=true"] if number >= 36 else []
    made = template(*EVERYTHING, *claims, *PLATFORMS[platform], version=f"{minor}.2")
    kinds = {kind for kind, _ in made}
    assert {kind for kind in kinds if number < SERVED_FROM.get(kind, 0)} == set()
    assert (("MutatingAdmissionPolicy", "gpupack-queue-gate") in made) == (number >= 36)
    assert ("SecurityContextConstraints" in kinds) == (platform == "OpenShift")
    for (kind, name), one in made.items():
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpupack"
        assert ("namespace" not in one["metadata"]) == (kind in CLUSTER_WIDE)
        if kind == "DaemonSet" and name.startswith("gpupack-node"):
            check_folders(one)


def test_a_cluster_that_serves_mutating_policies_as_beta_gets_them() -> None:
    beta = "admissionregistration.k8s.io/v1beta1"
    asked = template(version="1.35.2", apis=[f"{beta}/MutatingAdmissionPolicy"])
    assert asked["MutatingAdmissionPolicy", "gpupack-scheduler-name"]["apiVersion"] == beta
    assert asked == template("schedulerName=v1beta1", version="1.35.2")
    assert ("MutatingAdmissionPolicy", "gpupack-scheduler-name") not in template(version="1.35.2")


def test_claims_want_a_kubernetes_that_can_share_devices() -> None:
    values = ("--set", "dra.enabled=true", "--kube-version", "1.35.2")
    done = helm("template", "gpupack", str(CHART), *values, check=False)
    assert "dra.enabled wants Kubernetes 1.36 or later, this is v1.35.2" in done.stderr


@pytest.mark.parametrize("component", sorted(path.name for path in MANIFESTS.glob("components/*")))
def test_each_component_is_a_value(component: str) -> None:
    others = {name for names in TOGETHER.values() for name in names} - TOGETHER.keys()
    if component not in COMPONENTS and component in OVERLAYS.keys() | others:
        return
    folders = [MANIFESTS / "components" / name for name in TOGETHER.get(component, (component,))]
    built = build(MANIFESTS / "base", *folders)
    assert template("namespace.create=true", *COMPONENTS[component]) == by_name(built)


@pytest.mark.parametrize("component", sorted(BESIDE_CLAIMS))
def test_each_value_beside_claims_is_a_component_beside_them(component: str) -> None:
    others = TOGETHER.get("queue-batch-own-nodes" if component == "queue-batch" else component, (component,))
    folders = [MANIFESTS / "components" / name for name in ("dra", "dra-scheduler", *others)]
    made = template("namespace.create=true", "dra.enabled=true", *BESIDE_CLAIMS[component])
    assert made == by_name(build(MANIFESTS / "base", *folders))


def test_claims_with_a_scheduler_that_is_joined() -> None:
    built = build(MANIFESTS / "overlays" / "join-existing-scheduler", MANIFESTS / "components" / "dra")
    made = template("namespace.create=true", "dra.enabled=true", *OVERLAYS["join-existing-scheduler"])
    assert made == by_name(built)


def test_the_daemon_of_claims_follows_the_values_of_the_node() -> None:
    objects = template(
        "dra.enabled=true",
        "node.args.unit-mib=512",
        "node.args.cdi-dirs=/run/cdi",
        "node.runtimeClassName=nvidia",
        "node.affinity.nodeAffinity.x=y",
        "node.resources.limits.memory=1Gi",
        "node.nodeSelector.pool=a",
    )
    made = container(objects, "DaemonSet", "gpupack-node-dra")
    assert {"--unit-mib=512", "--serve=dra", "--cdi-dirs=/run/cdi"} <= set(made["args"])
    assert made["resources"] == {"limits": {"memory": "1Gi"}}
    pod = objects["DaemonSet", "gpupack-node-dra"]["spec"]["template"]["spec"]
    assert (pod["runtimeClassName"], pod["affinity"]) == ("nvidia", {"nodeAffinity": {"x": "y"}})
    assert pod["nodeSelector"] == {"gpupack.io/node": "dra", "kubernetes.io/os": "linux"}


def test_another_namespace_is_meant_everywhere() -> None:
    objects = template("queue.enabled=true", "dra.enabled=true", namespace="gpus")
    assert NAMESPACE not in json.dumps(list(objects.values()))
    policy = objects["ValidatingAdmissionPolicy", "gpupack-node"]
    assert "system:serviceaccount:gpus:gpupack-node" in json.dumps(policy)


def test_options_are_values() -> None:
    objects = template(
        "image.repository=registry.example/gpupack",
        "image.tag=1.2.3",
        "node.args.unit-mib=512",
        "node.args.pass-device-specs=true",
        "node.args.card-policy=most-used",
        "node.args.http=null",
        "node.resources.limits.memory=1Gi",
        "scheduler.args.node-policy-parameter={a=1,b=2}",
        "scheduler.args.preemption=false",
        "scheduler.configuration.percentageOfNodesToScore=50",
        "scheduler.kubeScheduler.image.tag=v1.37.1",
        "scheduler.replicas=1",
        "admission.lists.nodePolicies=mine",
    )
    node = container(objects, "DaemonSet", "gpupack-node")
    assert node["image"] == "registry.example/gpupack:1.2.3"
    assert {"--unit-mib=512", "--pass-device-specs", "--card-policy=most-used", "--gpus=nvml"} <= set(
        node["args"]
    )
    assert not any(one.startswith("--http") for one in node["args"])
    assert node["resources"] == {"limits": {"memory": "1Gi"}}
    deployment = objects["Deployment", "gpupack-scheduler"]
    assert deployment["spec"]["replicas"] == 1
    scheduler = container(objects, "Deployment", "gpupack-scheduler")
    assert {
        "--node-policy-parameter=a=1",
        "--node-policy-parameter=b=2",
        "--no-preemption",
        "--shortlist=1",
    } <= set(scheduler["args"])
    images = {one["image"] for one in deployment["spec"]["template"]["spec"]["containers"]}
    assert images == {"registry.example/gpupack:1.2.3", "registry.k8s.io/kube-scheduler:v1.37.1"}
    file = read_yaml(objects["ConfigMap", "gpupack-scheduler"]["data"]["scheduler.yaml"])
    shipped = read_yaml((MANIFESTS / "scheduler" / "scheduler.yaml").read_text())
    assert file == {**shipped, "percentageOfNodesToScore": 50}
    lists = objects["ConfigMap", "gpupack-admission"]["data"]
    assert (lists["nodePolicies"], lists["schedulerNames"]) == ("mine", "gpupack-scheduler")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (("scheduler.mode=join", "scheduler.args"), "gpupack-extender"),
        (("queue.enabled=true", "queue.args"), "gpupack-queue"),
    ],
    ids=["extender", "queue"],
)
def test_service_and_rights_follow_the_lease(values: tuple[str, str], name: str) -> None:
    """Else nobody may take the Lease, and the Service leads to nobody."""

    def made(option: str) -> tuple[dict[str, str], list[list[str]]]:
        objects = template(values[0], f"{values[1]}.{option}")
        rules = objects["Role", name]["rules"]
        leases = [rule["resourceNames"] for rule in rules if "resourceNames" in rule]
        return objects["Service", name]["spec"]["selector"], leases

    label = {"app.kubernetes.io/name": name}
    assert made("lease-name=other") == ({**label, "gpupack.io/leader": "other"}, [["other"]])
    selector, leases = made("pod-name=null")
    assert selector == label, "readiness says who leads"
    assert leases == made("log-format=json")[1]


def test_an_extender_that_is_open_to_all_is_asked_for_by_name() -> None:
    join = "scheduler.mode=join"
    args = container(template(join), "Deployment", "gpupack-extender")["args"]
    assert "--tls-client-ca-file=/etc/gpupack/tls/ca.crt" in args
    opened = (join, "scheduler.args.tls-client-ca-file=null", "scheduler.args.anonymous-auth=true")
    args = container(template(*opened), "Deployment", "gpupack-extender")["args"]
    assert "--anonymous-auth" in args
    assert not any("client-ca" in flag for flag in args)


def test_queues_are_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    wanted = {"queues": [{"name": "a", "weight": 2}, {"name": "b"}], "mode": "batch"}
    values.write_text(yaml.safe_dump({"queue": {"enabled": True, "configuration": wanted}}))
    made = helm("template", "gpupack", str(CHART), "--namespace", NAMESPACE, "--values", str(values)).stdout
    objects = by_name([one for one in read_yaml_documents(made) if one])
    assert read_yaml(objects["ConfigMap", "gpupack-queues"]["data"]["queues.yaml"]) == wanted


def test_in_batch_mode_the_queues_values_are_those_of_its_container() -> None:
    both = ("queue.enabled=true", "queue.batch.enabled=true")
    objects = template(
        *both,
        "queue.args.log-format=json",
        "queue.resources.limits.memory=1Gi",
        "scheduler.args.log-format=text",
        namespace="gpus",
    )
    assert NAMESPACE not in json.dumps(list(objects.values()))
    assert objects["Deployment", "gpupack-queue"]["spec"]["replicas"] == 0
    pod = objects["Deployment", "gpupack-scheduler"]["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in pod["containers"]}
    assert containers["queue"]["resources"] == {"limits": {"memory": "1Gi"}}
    assert {"--log-format=json", "--follow-lease=gpus/gpupack-scheduler"} <= set(containers["queue"]["args"])
    assert {"--log-format=text", "--commit"} <= set(containers["gpupack"]["args"])


@pytest.mark.parametrize("values", [(), ("queue.enabled=true", "scheduler.mode=join")])
def test_batch_mode_without_a_kube_scheduler_of_ours_is_refused(values: tuple[str, ...]) -> None:
    chosen = [word for value in ("queue.batch.enabled=true", *values) for word in ("--set", value)]
    done = helm("template", "gpupack", str(CHART), *chosen, check=False)
    assert "queue.batch.enabled wants queue.enabled=true and scheduler.mode=own" in done.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("node.args.unit-mb=512", "unit-mb"),
        ("node.args.unit-mib=half", "unit-mib"),
        ("node.args.serve=dra", "serve"),
        ("node.args.kubelet-dir=/var/lib/k0s/kubelet", "kubelet-dir"),
        ("node.kubeletDir=kubelet", "kubeletDir"),
        ("scheduler.mode=both", "mode"),
        ("schedulerName=v2", "schedulerName"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("nodes.args.cdi=true", "nodes"),
        ("queue.replicas=-1", "replicas"),
    ],
)
def test_a_wrong_value_is_named(value: str, said: str) -> None:
    done = helm("template", "gpupack", str(CHART), "--set", value, check=False)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert said in done.stderr


def test_helm_finds_nothing_to_complain_of() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", str(CHART)).stdout


def test_a_copy_without_links_installs_the_same_in_silence(tmp_path: Path) -> None:
    """As docs/install.md has it; Helm speaks of each link of the chart's own folder, and of nothing else."""
    shutil.copytree(CHART, tmp_path / "chart")
    made = {folder: helm("template", "gpupack", str(folder)) for folder in (CHART, tmp_path / "chart")}
    said = [made[folder].stderr.splitlines() for folder in made]
    links = [path for path in (CHART / "files").iterdir() if path.is_symlink()]
    assert len([line for line in said[0] if "found symbolic link in path" in line]) == len(links)
    assert (len(said[0]), said[1]) == (len(links), [])
    assert made[CHART].stdout == made[tmp_path / "chart"].stdout


def test_prometheus_understands_alerts_and_dashboard() -> None:
    rules = read_yaml((MANIFESTS / "components/monitoring/rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    expressions += grafana.expressions()
    expressions += [*EXPRESSIONS.values(), make_label_query("example.com/costCenter", 3600)]
    lines = "\n".join(" ".join(one.split()) for one in expressions)
    program = str(binaries.promql())
    done = subprocess.run([program], input=lines, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    return make_cluster(with_node=False, start=Cluster.start_api_server)


@pytest.mark.telling
def test_what_a_version_serves(cluster: Cluster) -> None:
    made = template(*EVERYTHING, *PLATFORMS["GKE"], version="1.37.1")
    served = {kind for kind in {kind for kind, _ in made} if is_served(cluster.api, made, kind)}
    minor = int(cluster.api.get("/version")["minor"])
    assert served == {kind for kind, _ in made if minor >= SERVED_FROM.get(kind, 0)}


def is_served(api: Api, made: Objects, kind: str) -> bool:
    version = next(one["apiVersion"] for (which, _), one in made.items() if which == kind)
    found = api.get(f"/api/{version}" if version == "v1" else f"/apis/{version}")["resources"]
    return kind in {resource["kind"] for resource in found}


@pytest.mark.telling
def test_install_upgrade_uninstall(cluster, tmp_path: Path) -> None:
    """A package of the chart, which has the files and no links, on the real API server."""
    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("gpupack-*.tgz")
    there = ["--kubeconfig", str(cluster.control.admin_config), "--namespace", NAMESPACE]
    gke = [word for value in PLATFORMS["GKE"] for word in ("--set", value)]
    helm("install", "gpupack", str(package), "--create-namespace", *gke, *there)
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"

    def names() -> set[str]:
        return set(cluster.api.names(deployments))

    assert names() == {"gpupack-scheduler"}
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert len(cluster.api.names(policies)) >= 5
    # Clusters of the tests that serve them as beta only have the feature on, which the chart finds out.
    version = "v1" if has_mutating_policies(cluster.api) else "v1beta1"
    mutating = f"/apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicies"
    assert set(cluster.api.names(mutating)) == {"gpupack-scheduler-name", "gpupack-gpu-taint"}
    helm("upgrade", "gpupack", str(package), "--reuse-values", "--set", "queue.enabled=true", *there)
    assert names() == {"gpupack-scheduler", "gpupack-queue"}
    helm("uninstall", "gpupack", *there)
    assert names() == set()
    assert cluster.api.names(policies) == []


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.api.apply(f"/api/v1/namespaces/{NAMESPACE}", body)


@pytest.mark.parametrize("values", [*sorted(BESIDE_CLAIMS), "join-existing-scheduler", "default"])
def test_claims_beside_each_value_are_accepted(cluster: Cluster, namespace: None, values: str) -> None:
    dra.skip_without_shares()
    chosen = {**BESIDE_CLAIMS, "default": [], "join-existing-scheduler": ["scheduler.mode=join"]}[values]
    objects = list(template("dra.enabled=true", *chosen).values())
    stored = apply_all(cluster.api, objects, dry_run=True)
    assert {one["metadata"]["name"] for one in stored if one["kind"] == "DeviceClass"} == {"gpupack"}


def test_claims_come_and_go_with_an_upgrade(cluster: Cluster) -> None:
    dra.skip_without_shares()
    there = ["--kubeconfig", str(cluster.control.admin_config), "--namespace", NAMESPACE]
    paths = {
        "daemons": f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
        "classes": f"{dra.API}/deviceclasses",
        "roles": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "bindings": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    }
    ours = {
        "daemons": {"gpupack-node-dra"},
        "classes": {"gpupack"},
        "roles": {"gpupack-node-dra", "gpupack-claims", "gpupack-claims-view"},
        "bindings": {"gpupack-node-dra", "gpupack-claims", "gpupack-claims-view"},
        "policies": {"gpupack-node-slices"},
    }

    def found() -> dict[str, set[str]]:
        return {kind: set(cluster.api.names(path)) & ours[kind] for kind, path in paths.items()}

    nothing = {kind: set() for kind in paths}
    helm("install", "gpupack", str(CHART), "--create-namespace", *there)
    assert found() == nothing
    for values, expected in (
        (["dra.enabled=true"], ours),
        (["dra.enabled=true", "scheduler.mode=join"], ours),
        (["scheduler.mode=join"], nothing),
        (["dra.enabled=true"], ours),
    ):
        chosen = [word for value in values for word in ("--set", value)]
        helm("upgrade", "gpupack", str(CHART), *there, *chosen)
        assert found() == expected, values
    helm("uninstall", "gpupack", *there)
    assert found() == nothing
