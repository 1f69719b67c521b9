"""The manifests fit together, and fit the names and the flags of the product."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allocator import names
from gpupack.cli.app import cli
from gpupack.components import COMPONENT_LABEL, COMPONENTS, FIRST, LAST, PART_OF
from gpupack.inventory.telemetry import NAME_LABEL
from tests.cluster.harness.manifests import CLUSTER_WIDE, MANIFESTS, build
from tests.manifest_objects import (
    BUILDS,
    NAMESPACE,
    ROOT,
    SNIPPETS,
    container,
    objects,
    pod_template,
    port_of,
    text_of,
)
from tests.yaml_text import read_yaml, read_yaml_documents

WRITTEN = {names.LEADER_LABEL}
"""Labels that pods write on themselves."""


def referenced(folder: Path) -> set[Path]:
    """Every file that a kustomization uses, itself included."""
    plan = read_yaml((folder / "kustomization.yaml").read_text())
    used = {folder / "kustomization.yaml"}
    for entry in [*plan.get("resources", []), *plan.get("components", [])]:
        path = (folder / entry).resolve()
        used |= referenced(path) if path.is_dir() else {path}
    used |= {(folder / patch["path"]).resolve() for patch in plan.get("patches", []) if "path" in patch}
    for generator in plan.get("configMapGenerator", []):
        used |= {(folder / file.rpartition("=")[2]).resolve() for file in generator["files"]}
    return used


FOLDERS = [MANIFESTS / name for name in ("extender", "scheduler", "scheduler-name")] + sorted(
    path.parent for path in MANIFESTS.glob("components/*/kustomization.yaml")
)


def find_brought(folder: Path) -> list[dict[str, Any]]:
    """Objects that come with a folder, and are not those of another one, changed."""
    plan = read_yaml((folder / "kustomization.yaml").read_text())
    files = [folder / name for name in plan.get("resources", [])]
    made = [entry["options"] for entry in plan.get("configMapGenerator", []) if "behavior" not in entry]
    configs = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": options} for options in made]
    return configs + [one for file in files for one in read_yaml_documents(file.read_text())]


def test_what_has_two_replicas_is_drained_one_after_the_other() -> None:
    for folder in FOLDERS:
        brought = find_brought(folder)
        replicated = {
            one["metadata"]["name"]: one["spec"]["selector"]
            for one in brought
            if one["kind"] == "Deployment" and one["spec"].get("replicas", 1) > 1
        }
        budgets = {
            one["metadata"]["name"]: one["spec"]["selector"]
            for one in brought
            if one["kind"] == "PodDisruptionBudget"
        }
        assert budgets == replicated, folder


def test_uninstall_finds_all_that_a_component_brings() -> None:
    brought = {folder.name: found for folder in FOLDERS if (found := find_brought(folder))}
    assert brought.keys() == COMPONENTS.keys()
    for component, found in brought.items():
        for one in found:
            assert one["metadata"]["labels"][COMPONENT_LABEL] == component, one["metadata"]
            assert one["metadata"]["labels"].items() >= {tuple(PART_OF.split("="))}
            version, kind = one["apiVersion"], one["kind"].lower()
            plural = (
                f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}{'es' if kind.endswith('ss') else 's'}"
            ).replace("constraintss", "constraints")
            path = f"/{'apis' if '/' in version else 'api'}/{version}/{plural}"
            assert path in {*FIRST, *LAST}, f"gpupack/components.py has no {path}"
    workloads = {
        one["metadata"]["labels"][NAME_LABEL]: component
        for component, found in brought.items()
        for one in found
        if one["kind"] == "DaemonSet"
    }
    assert workloads == {each.daemon: name for name, each in COMPONENTS.items() if each.daemon}


def test_uninstall_takes_nothing_else_for_part_of_a_component() -> None:
    for folder in ("namespace", "node", "policies"):
        found = [
            one for one in objects(folder).values() if one["metadata"].get("labels", {}).get(COMPONENT_LABEL)
        ]
        assert found == []


def test_one_lease_says_who_admits() -> None:
    """So a queue that another way of installing has left behind admits nothing."""
    own = container(objects("overlays/queue")["Deployment", "gpupack-queue"])["args"]
    beside = container(objects("overlays/queue-batch")["Deployment", "gpupack-scheduler"], "queue")["args"]
    leases = [[arg for arg in args if arg.startswith("--lease")] for args in (own, beside)]
    assert leases == [[f"--lease-namespace={NAMESPACE}"]] * 2


def test_a_scheduler_with_the_queue_beside_it_starts_without_queues() -> None:
    """Who takes the queue out and has not applied the scheduler without it keeps a scheduler."""
    pod = pod_template(objects("overlays/queue-batch")["Deployment", "gpupack-scheduler"])
    sources = {each["name"]: each["configMap"] for each in pod["volumes"] if "configMap" in each}
    assert sources["queues"] == {"name": "gpupack-queues", "optional": True}


def test_every_file_is_used() -> None:
    components = [path.parent for path in MANIFESTS.glob("components/*/kustomization.yaml")]
    used = set().union(*map(referenced, [*(MANIFESTS / name for name in BUILDS), *components]))
    chart = MANIFESTS / "helm"
    there = {path for path in MANIFESTS.rglob("*") if path.is_file() and not path.is_relative_to(chart)}
    assert used | SNIPPETS == there


@pytest.mark.parametrize("name", BUILDS)
def test_objects_are_unique_and_in_their_place(name: str) -> None:
    built = build(MANIFESTS / name)
    repeated = Counter((one["kind"], one["metadata"]["name"]) for one in built)
    assert max(repeated.values()) == 1
    for one in built:
        place = one["metadata"].get("namespace")
        if one["kind"] in CLUSTER_WIDE:
            assert place is None, one["metadata"]
        else:
            # Of others' namespaces: where kube-apiserver says whom it trusts, and where Nodes' Events are.
            others = {"authentication": "kube-system", "events": "default"}
            assert place == others.get(one["metadata"]["name"].rpartition("-")[2], NAMESPACE)


@pytest.mark.parametrize("name", BUILDS)
def test_references_between_objects_hold(name: str) -> None:
    found = objects(name)
    for (kind, _), one in found.items():
        if kind in {"DaemonSet", "Deployment"}:
            template = one["spec"]["template"]
            assert one["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            assert ("ServiceAccount", template["spec"]["serviceAccountName"]) in found
            for volume in template["spec"].get("volumes", []):
                if "configMap" in volume:
                    assert ("ConfigMap", volume["configMap"]["name"]) in found
            volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
            mounted = {
                mount["name"]
                for each in template["spec"]["containers"]
                for mount in each.get("volumeMounts", [])
            }
            assert mounted == volumes
        if kind in {"RoleBinding", "ClusterRoleBinding"}:
            role = one["roleRef"]["name"]
            built_in = role.startswith("system:") or role == "extension-apiserver-authentication-reader"
            assert built_in or (one["roleRef"]["kind"], role) in found
            for subject in one["subjects"]:
                assert (subject["kind"], subject["name"]) in found
                assert subject["namespace"] == NAMESPACE
        if kind.endswith("AdmissionPolicyBinding"):
            assert (kind.removesuffix("Binding"), one["spec"]["policyName"]) in found
        if kind == "Service":
            selector = {key: one["spec"]["selector"][key] for key in one["spec"]["selector"].keys() - WRITTEN}
            selected = [
                each
                for (owner, _), each in found.items()
                if owner in {"DaemonSet", "Deployment"}
                and selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
            ]
            assert selected
            ports = {
                port["name"]
                for each in selected
                for one_container in pod_template(each)["containers"]
                for port in one_container["ports"]
            }
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports


@pytest.mark.parametrize("name", BUILDS)
def test_names_of_the_product_are_those_of_the_code(name: str) -> None:
    known = {
        value
        for key, value in vars(names).items()
        if key.isupper() and isinstance(value, str) and value.startswith(names.DOMAIN)
    } | {names.resource_name(1024), f"{names.DOMAIN}/node"}
    # What the policies about pods compare with.
    known |= {f"{names.RESOURCE_PREFIX}1024mib"}
    for one in objects(name).values():
        for seen in re.findall(rf"{re.escape(names.DOMAIN)}/[a-z0-9-]*", text_of(one)):
            assert seen in known, f"{one['kind']} {one['metadata']['name']}: {seen}"


@cache
def commands() -> list[tuple[str, str, list[str]]]:
    """Every command line of gpupack in the manifests: where it stands, the command, its flags."""
    found = {}
    for name in BUILDS:
        for (kind, which), one in objects(name).items():
            if kind in {"DaemonSet", "Deployment"}:
                command, *flags = container(one)["args"]
                found[f"{which}:{' '.join(flags)}"] = (which, command, flags)
    return list(found.values())


@pytest.mark.parametrize("command", ["autoscale", "dashboard", "node", "queue", "scheduler"])
def test_flags_exist(command: str) -> None:
    options = cli.commands[command].params
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    used = [(where, flag) for where, given, flags in commands() if given == command for flag in flags]
    assert used
    assert [(where, flag) for where, flag in used if flag.partition("=")[0] not in known] == []


@pytest.mark.parametrize("name", BUILDS)
def test_probes_lead_where_the_command_serves(name: str) -> None:
    for (kind, _), one in objects(name).items():
        if kind not in {"DaemonSet", "Deployment"}:
            continue
        gpupack = container(one)
        flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in gpupack["args"])
        served = {flags[name]: name for name in ("http", "metrics-http") if name in flags}
        for probe, path in (
            ("startupProbe", "/healthz"),
            ("livenessProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
        ):
            asked = gpupack[probe]["httpGet"]
            listener = served[f":{port_of(gpupack, asked['port'])}"]
            assert asked["path"] == path
            tls = listener == "http" and "tls-cert-file" in flags
            assert asked.get("scheme", "HTTP") == ("HTTPS" if tls else "HTTP")


@pytest.mark.parametrize("name", BUILDS)
def test_prometheus_is_told_of_a_listener_without_verbs(name: str) -> None:
    for (kind, _), one in objects(name).items():
        if kind not in {"DaemonSet", "Deployment"}:
            continue
        gpupack = container(one)
        if gpupack["args"][0] == "dashboard":
            continue  # it has no metrics
        told = one["spec"]["template"]["metadata"]["annotations"]
        assert told["prometheus.io/scrape"] == "true"
        port = told["prometheus.io/port"]
        if gpupack["args"][0] in {"autoscale", "node", "queue"}:
            assert f"--http=:{port}" in gpupack["args"]
            assert port_of(gpupack, "http") == int(port)
        else:
            assert f"--metrics-http=:{port}" in gpupack["args"]
            assert port_of(gpupack, "metrics") == int(port)
            (verbs,) = [flag for flag in gpupack["args"] if flag.startswith("--http=")]
            tls = any(flag.startswith("--tls-cert-file") for flag in gpupack["args"])
            assert tls or verbs.startswith("--http=127.0.0.1:")


def test_prometheus_is_led_to_what_has_metrics_and_to_nothing_else() -> None:
    """Else a target is down for good."""
    components = [
        MANIFESTS / "components" / name for name in ("autoscale", "dashboard", "dra", "mps", "queue")
    ]
    built = build(MANIFESTS / "overlays" / "monitoring", *components)
    services = {one["metadata"]["name"]: one["spec"] for one in built if one["kind"] == "Service"}
    ports = {port["targetPort"] for port in services["gpupack-metrics"]["ports"]}
    for one in built:
        if one["kind"] in {"DaemonSet", "Deployment"}:
            metadata = one["spec"]["template"]["metadata"]
            assert services["gpupack-metrics"]["selector"].items() <= metadata["labels"].items()
            names_of = {port["name"] for each in pod_template(one)["containers"] for port in each["ports"]}
            assert bool(names_of & ports) == ("prometheus.io/port" in metadata.get("annotations", {}))


def test_the_network_policy_names_every_port() -> None:
    everything = [path.parent for path in MANIFESTS.glob("components/*/kustomization.yaml")]
    there = [MANIFESTS / "base", MANIFESTS / "extender", *everything]
    files = [read_yaml_documents(path.read_text()) for folder in there for path in folder.glob("*.yaml")]
    named = set(re.findall(r"'name': '([a-z]+)', 'containerPort'", str([list(each) for each in files])))
    (policy,) = find_brought(MANIFESTS / "components" / "network-policy")
    (rule,) = policy["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == named | {"metrics"}


def test_rights_are_few() -> None:
    base, joined = objects("base"), objects("overlays/join-existing-scheduler")

    def rights(role: dict[str, Any]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for rule in role["rules"]:
            for resource in rule["resources"]:
                found.setdefault(resource, set()).update(rule["verbs"])
        return found

    read = {"get", "list", "watch"}
    assert rights(base["ClusterRole", "gpupack-node"]) == {
        "nodes": read | {"patch"},
        "nodes/status": {"patch"},
        "pods": read | {"patch"},
        "events": {"create", "patch"},
    }
    assert rights(joined["ClusterRole", "gpupack-extender"]) == {
        "nodes": read,
        "pods": read,
        "pods/binding": {"create"},
        "pods/eviction": {"create"},
        "pods/status": {"patch"},
        "poddisruptionbudgets": read,
        "podgroups": read,
        "events": {"create", "patch"},
    }
    assert rights(base["ClusterRole", "gpupack-scheduler-preemption"]) == {"pods/eviction": {"create"}}


def test_the_queue_may_read_jobs_and_pod_groups_and_change_pods_only() -> None:
    rules = objects("overlays/queue")["ClusterRole", "gpupack-queue"]["rules"]
    rights = [
        (group, name, *rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
    ]
    read = ("get", "list", "watch")
    assert rights == [
        *(("", name, *read) for name in ("nodes", "pods", "namespaces")),
        ("batch", "jobs", "list", "watch"),
        ("scheduling.k8s.io", "podgroups", "list", "watch"),
        ("scheduling.x-k8s.io", "podgroups", "list", "watch"),
        ("", "pods", "patch"),
        ("", "pods/eviction", "create"),
        ("", "events", "create", "patch"),
    ]


PODS_TOGETHER = {
    "apiGroups": ["scheduling.k8s.io", "scheduling.x-k8s.io"],
    "resources": ["podgroups"],
    "verbs": ["list", "watch"],
}


def test_the_dashboard_may_read_nodes_pods_and_pod_groups_only() -> None:
    rules = objects("overlays/dashboard")["ClusterRole", "gpupack-dashboard"]["rules"]
    assert rules == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
        PODS_TOGETHER,
    ]


def test_autoscale_knows_which_pods_start_together() -> None:
    assert PODS_TOGETHER in objects("overlays/autoscale")["ClusterRole", "gpupack-autoscale"]["rules"]


def test_the_overlays_change_what_they_say() -> None:
    base = objects("base")
    for name, change in (
        ("nvidia-runtime-class", lambda pod: pod["runtimeClassName"] == "nvidia"),
        ("simulated-gpus", lambda pod: pod["nodeSelector"] == {"kubernetes.io/os": "linux"}),
    ):
        found = objects(f"overlays/{name}")
        assert found.keys() == base.keys()
        assert [key for key in base if found[key] != base[key]] == [("DaemonSet", "gpupack-node")]
        assert change(pod_template(found["DaemonSet", "gpupack-node"]))
    simulated = container(objects("overlays/simulated-gpus")["DaemonSet", "gpupack-node"])["args"]
    assert set(simulated) - set(container(base["DaemonSet", "gpupack-node"])["args"]) == {
        "--gpus=simulated",
        "--profile=2xt4",
    }


def test_the_image_holds_every_package_and_only_locked_requirements() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = {line.split()[1] for line in text.splitlines() if re.fullmatch(r"COPY (\w+) \1", line)}
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert copied == packages
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert packages | {"requirements.lock", "pyproject.toml", "README.md", "LICENSE"} == allowed
    assert "--require-hashes -r requirements.lock" in text
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", bases[0])
    assert set(bases[1:]) == {"python"}  # the same one
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["gpupack"\]$', text, re.MULTILINE)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for folder in ("node", "scheduler", "extender"):
        (image,) = read_yaml((MANIFESTS / folder / "kustomization.yaml").read_text())["images"]
        assert image == {"name": "gpupack", "newTag": version[1]}


@pytest.mark.parametrize(
    ("build_name", "name", "lease"),
    [
        ("overlays/join-existing-scheduler", "gpupack-extender", "gpupack-scheduler"),
        ("overlays/queue", "gpupack-queue", "gpupack-queue"),
    ],
)
def test_where_pods_elect_a_leader_its_label_leads_the_service(
    build_name: str, name: str, lease: str
) -> None:
    """Readiness cannot: an update of a Deployment waits until all its pods are ready."""
    found = objects(build_name)
    deployment = found["Deployment", name]
    gpupack = container(deployment)
    assert {"--leader-elect", f"--lease-namespace={NAMESPACE}", "--pod-name=$(POD_NAME)"} < set(
        gpupack["args"]
    )
    field = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert {"name": "POD_NAME", "valueFrom": field} in gpupack["env"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = found["Service", name]["spec"]["selector"]
    assert selector.items() - labels.items() == {(names.LEADER_LABEL, lease)}
    roles = [found[kind, name]["rules"] for kind in ("Role", "ClusterRole")]
    rights = [rule["verbs"] for rules in roles for rule in rules if "pods/status" in rule["resources"]]
    assert rights == [["patch"]]


@pytest.mark.parametrize("name", BUILDS)
def test_an_update_of_several_replicas_takes_none_away_first(name: str) -> None:
    for (kind, _), one in objects(name).items():
        if kind == "Deployment" and one["spec"]["replicas"] > 1 and "strategy" in one["spec"]:
            assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("name", BUILDS)
def test_every_container_has_a_memory_limit_and_what_is_critical_may_run_beside_critical_addons(
    name: str,
) -> None:
    for (kind, _), one in objects(name).items():
        if kind in {"DaemonSet", "Deployment"}:
            pod = pod_template(one)
            assert all("memory" in each["resources"]["limits"] for each in pod["containers"])
            tolerated = {each.get("key") for each in pod["tolerations"]}
            if pod.get("priorityClassName") == "system-cluster-critical":
                assert tolerated == {"node-role.kubernetes.io/control-plane", "CriticalAddonsOnly"}
