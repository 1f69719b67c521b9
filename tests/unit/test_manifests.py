"""The manifests fit together, and fit the names and the flags of the product."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocator import names
from deviceplugin.gpus.cdi import FOLDERS
from deviceplugin.mps.folder import SHM
from deviceplugin.mps.supervisor import Options as SupervisorOptions
from deviceplugin.settings import Settings as NodeSettings
from scheduler_plugin.settings import Settings
from tests.cluster.harness.manifests import build

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
BUILDS = ["base", *(f"overlays/{name}" for name in OVERLAYS)]
# Shown to people, not applied.
SNIPPETS = {MANIFESTS / "overlays/join-existing-scheduler/extenders.yaml"}
NAMESPACE = "gpupack-system"
CLUSTER_WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
}
Objects = dict[tuple[str, str], dict[str, Any]]


def objects(name: str) -> Objects:
    return {(one["kind"], one["metadata"]["name"]): one for one in build(MANIFESTS / name)}


def pod_template(one: dict[str, Any]) -> dict[str, Any]:
    return dict(one["spec"]["template"]["spec"])


def container(one: dict[str, Any], name: str = "gpupack") -> dict[str, Any]:
    (found,) = [each for each in pod_template(one)["containers"] if each["name"] == name]
    return dict(found)


def text_of(one: dict[str, Any]) -> str:
    """The object as text, with quotes as they stand in CEL."""
    return yaml.safe_dump(one, width=100_000).replace("''", "'")


def referenced(folder: Path) -> set[Path]:
    """Every file that a kustomization uses, itself included."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    used = {folder / "kustomization.yaml"}
    for entry in [*plan.get("resources", []), *plan.get("components", [])]:
        path = (folder / entry).resolve()
        used |= referenced(path) if path.is_dir() else {path}
    used |= {(folder / patch["path"]).resolve() for patch in plan.get("patches", []) if "path" in patch}
    for generator in plan.get("configMapGenerator", []):
        used |= {(folder / file.rpartition("=")[2]).resolve() for file in generator["files"]}
    return used


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
            selected = [
                each
                for (owner, _), each in found.items()
                if owner in {"DaemonSet", "Deployment"}
                and one["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
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
    known |= {f"{names.DOMAIN}/", f"{names.RESOURCE_PREFIX}1024mib"}
    for one in objects(name).values():
        for seen in re.findall(rf"{re.escape(names.DOMAIN)}/[a-z0-9-]*", text_of(one)):
            assert seen in known, f"{one['kind']} {one['metadata']['name']}: {seen}"


def commands() -> list[tuple[str, str, list[str]]]:
    """Every command line of gpupack in the manifests: where it stands, the command, its flags."""
    found = {}
    for name in BUILDS:
        for (kind, which), one in objects(name).items():
            if kind in {"DaemonSet", "Deployment"}:
                command, *flags = container(one)["args"]
                found[f"{which}:{' '.join(flags)}"] = (which, command, flags)
    return list(found.values())


@pytest.mark.parametrize("command", ["dashboard", "node", "queue", "scheduler"])
def test_flags_exist(command: str) -> None:
    environment = os.environ | {"COLUMNS": "200", "TERM": "dumb"}
    shown = subprocess.run(
        [sys.executable, "-m", "gpupack", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    used = [(where, flag) for where, given, flags in commands() if given == command for flag in flags]
    assert used
    for where, flag in used:
        assert re.search(rf"(?<![\w-]){flag.partition('=')[0]}(?![\w-])", shown), f"{where}: {flag}"


def test_the_daemon_has_what_a_gpu_node_must_give_it() -> None:
    daemon = objects("base")["DaemonSet", "gpupack-node"]
    pod, gpupack = pod_template(daemon), container(daemon)
    assert pod["hostPID"] is True
    assert pod["priorityClassName"] == "system-node-critical"
    assert daemon["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    environment = {entry["name"]: entry.get("value") for entry in gpupack["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert "--node-name=$(NODE_NAME)" in gpupack["args"]
    assert "NODE_NAME" in environment
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in gpupack["volumeMounts"]}
    # The daemon's defaults are the host's paths, so each is mounted where it is.
    assert {mount["mountPath"]: paths[mount["name"]] for mount in mounts.values()} == {
        path: path
        for path in (
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources",
            "/sys/fs/cgroup",
            "/var/log/containers",
        )
    }
    # With the kernel's dmem controller a limit is a file among the cgroups.
    assert mounts["/sys/fs/cgroup"].get("readOnly", False) is False
    assert mounts["/var/log/containers"]["readOnly"] is True
    # The kubelet's book is root's, with mode 0600: without capabilities only its owner can read it.
    rights = gpupack["securityContext"]
    assert (rights["runAsUser"], rights["capabilities"]) == (0, {"drop": ["ALL"]})
    assert mounts["/var/lib/kubelet/device-plugins"].get("readOnly", False) is False


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
        if gpupack["args"][0] in {"node", "queue"}:
            assert f"--http=:{port}" in gpupack["args"]
            assert port_of(gpupack, "http") == int(port)
        else:
            assert f"--metrics-http=:{port}" in gpupack["args"]
            assert port_of(gpupack, "metrics") == int(port)
            (verbs,) = [flag for flag in gpupack["args"] if flag.startswith("--http=")]
            tls = any(flag.startswith("--tls-cert-file") for flag in gpupack["args"])
            assert tls or verbs.startswith("--http=127.0.0.1:")


def port_of(one: dict[str, Any], name: str) -> int:
    (port,) = [port["containerPort"] for port in one["ports"] if port["name"] == name]
    return int(port)


def scheduler_configuration() -> dict[str, Any]:
    text = objects("base")["ConfigMap", "gpupack-scheduler"]["data"]["scheduler.yaml"]
    return dict(yaml.safe_load(text))


def test_our_kube_scheduler_calls_the_extender_beside_it() -> None:
    configuration = scheduler_configuration()
    assert configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert configuration["kind"] == "KubeSchedulerConfiguration"
    assert configuration["percentageOfNodesToScore"] == 100
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == [names.SCHEDULER_NAME]
    deployment = objects("base")["Deployment", "gpupack-scheduler"]
    (extender,) = configuration["extenders"]
    assert f"--http={extender['urlPrefix'].removeprefix('http://')}" in container(deployment)["args"]
    kube_scheduler = container(deployment, "kube-scheduler")
    (mount,) = kube_scheduler["volumeMounts"]
    assert f"--config={mount['mountPath']}/scheduler.yaml" in kube_scheduler["command"]
    assert deployment["spec"]["replicas"] == 2


def test_the_leases_gap_is_longer_than_a_binding_is_waited_for() -> None:
    election = scheduler_configuration()["leaderElection"]
    lease_s, renew_s = (int(election[key].removesuffix("s")) for key in ("leaseDuration", "renewDeadline"))
    assert lease_s - renew_s > Settings().bind_timeout_s
    assert election["leaderElect"] is True
    rules = objects("base")["Role", "gpupack-scheduler"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [
        [election["resourceName"]]
    ]
    assert election["resourceNamespace"] == NAMESPACE


def test_a_kube_scheduler_that_is_told_to_end_keeps_its_lease_until_no_binding_can_land() -> None:
    deployment = objects("base")["Deployment", "gpupack-scheduler"]
    pause_s = container(deployment, "kube-scheduler")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert "lifecycle" not in container(deployment)
    assert pause_s > Settings().bind_timeout_s
    grace_s = deployment["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    assert grace_s > 2 * pause_s


def test_both_ways_to_join_the_extender_agree() -> None:
    (snippet,) = SNIPPETS
    joined = yaml.safe_load(snippet.read_text())
    (ours,) = scheduler_configuration()["extenders"]
    (theirs,) = joined["extenders"]
    assert joined["percentageOfNodesToScore"] == 100
    tls = {"enableHTTPS", "tlsConfig"}
    assert {key: value for key, value in theirs.items() if key not in tls | {"urlPrefix"}} == {
        key: value for key, value in ours.items() if key != "urlPrefix"
    }
    service = objects("overlays/join-existing-scheduler")["Service", "gpupack-extender"]["metadata"]
    host = f"{service['name']}.{service['namespace']}.svc"
    assert (theirs["urlPrefix"], theirs["tlsConfig"]["serverName"]) == (f"https://{host}", host)
    resources = (names.resource_name(1024), names.PERCENT_RESOURCE)
    assert ours["managedResources"] == [{"name": name, "ignoredByScheduler": False} for name in resources]
    assert (ours["filterVerb"], ours["prioritizeVerb"], ours["bindVerb"]) == ("filter", "prioritize", "bind")


def test_the_foreign_schedulers_extender_has_a_lease_of_its_own() -> None:
    found = objects("overlays/join-existing-scheduler")
    assert ("Deployment", "gpupack-scheduler") not in found
    args = container(found["Deployment", "gpupack-extender"])["args"]
    assert {"--leader-elect", f"--lease-namespace={NAMESPACE}"} < set(args)
    (lease,) = [flag.partition("=")[2] for flag in args if flag.startswith("--lease-name=")]
    assert lease != scheduler_configuration()["leaderElection"]["resourceName"]
    rules = found["Role", "gpupack-extender"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [[lease]]


def test_rights_are_few() -> None:
    base, joined = objects("base"), objects("overlays/join-existing-scheduler")

    def rights(role: dict[str, Any]) -> dict[str, set[str]]:
        return {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}

    read = {"get", "list", "watch"}
    assert rights(base["ClusterRole", "gpupack-node"]) == {
        "nodes": read,
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
        "events": {"create", "patch"},
    }
    assert rights(base["ClusterRole", "gpupack-scheduler-preemption"]) == {"pods/eviction": {"create"}}


def test_the_policies_are_about_the_daemons_account_and_its_names() -> None:
    found = objects("base")
    account = found["DaemonSet", "gpupack-node"]["spec"]["template"]["spec"]["serviceAccountName"]
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    for name in ("gpupack-node", "gpupack-allocation"):
        (condition,) = found["ValidatingAdmissionPolicy", name]["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{user}'"
    node = text_of(found["ValidatingAdmissionPolicy", "gpupack-node"])
    assert f"key in ['{names.NODE_CARDS}', '{names.NODE_DAEMON}', '{names.NODE_HOLDS}']" in node
    assert f"key.startsWith('{names.PACKED_PREFIX}')" in node
    assert f"key == '{names.POD_ALLOCATION}'" in text_of(
        found["ValidatingAdmissionPolicy", "gpupack-allocation"]
    )
    assert f"name.startsWith('{names.PACKED_PREFIX}')" in text_of(
        found["ValidatingAdmissionPolicy", "gpupack-pod-request"]
    )
    for (kind, name), one in found.items():
        if kind == "ValidatingAdmissionPolicy":
            assert one["spec"]["failurePolicy"] == "Fail", name
        if kind == "ValidatingAdmissionPolicyBinding":
            expected = ["Warn"] if name.endswith("-warn") else ["Deny"]
            assert one["spec"]["validationActions"] == expected, name
        if "paramRef" in one.get("spec", {}):
            # Else a ConfigMap that is missing would keep every pod of the cluster from being created.
            assert one["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow", name
            assert ("ConfigMap", one["spec"]["paramRef"]["name"]) in found


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
    assert re.search(r"^FROM python:3\.11-slim$", text, re.MULTILINE)
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["gpupack"\]$', text, re.MULTILINE)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for folder in ("node", "scheduler", "extender"):
        (image,) = yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["images"]
        assert image == {"name": "gpupack", "newTag": version[1]}


def test_the_cdi_component_brings_the_folders_that_the_daemon_looks_into() -> None:
    built = build(MANIFESTS / "base", MANIFESTS / "components" / "cdi")
    (daemon,) = [one for one in built if one["kind"] == "DaemonSet"]
    args = container(daemon)["args"]
    assert "--device-list-strategy=cdi-cri" in args
    mounted = {each["name"]: each["mountPath"] for each in container(daemon)["volumeMounts"]}
    hosts = {each["name"]: each["hostPath"]["path"] for each in pod_template(daemon)["volumes"]}
    assert [mounted[name] for name in ("cdi-static", "cdi")] == [str(folder) for folder in FOLDERS]
    assert all(mounted[name] == hosts[name] for name in ("cdi-static", "cdi"))


def test_the_mps_component_and_the_daemon_meet_in_one_folder() -> None:
    objects_there = build(MANIFESTS / "base", MANIFESTS / "components" / "mps")
    built = {one["metadata"]["name"]: one for one in objects_there if one["kind"] == "DaemonSet"}
    node, mps = built["gpupack-node"], built["gpupack-mps"]
    root = str(SupervisorOptions(root=Path("/run/gpupack/mps")).root)
    assert "--sharing=mps" in container(node)["args"]
    assert container(mps)["args"] == ["mps", f"--root={root}"]
    assert NodeSettings(node_name="n1").mps_root == Path(root)
    for one in (node, mps):
        (volume,) = [each for each in pod_template(one)["volumes"] if each["name"] == "mps"]
        mounts = [each for each in container(one)["volumeMounts"] if each["name"] == "mps"]
        assert volume["hostPath"]["path"] == mounts[0]["mountPath"] == root
    # Memory that containers share with the servers: the same folder, under the same name in each.
    assert mounts[1] == {"name": "mps", "mountPath": "/dev/shm", "subPath": SHM}
    # Never by a rollout: what containers depend on would end.
    assert mps["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert mps["spec"]["template"]["spec"]["nodeSelector"] == node["spec"]["template"]["spec"]["nodeSelector"]
