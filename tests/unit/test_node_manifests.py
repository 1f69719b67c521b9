"""The node daemon's manifests: what it is given on its node, what it may do, and its components."""

import json
from pathlib import Path
from typing import Any

import pytest

from allocator import names
from deviceplugin.gpus.nvidia.mps.folder import SHM
from deviceplugin.mps_settings import MpsSettings
from deviceplugin.option_values import DRA
from deviceplugin.settings import Settings as NodeSettings
from gpupack.components import COMPONENT_LABEL
from tests.cluster.harness.manifests import MANIFESTS, build
from tests.manifest_objects import NAMESPACE, check_folders, container, objects, pod_template, text_of
from tests.yaml_text import read_yaml


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
    mounts = {mount["mountPath"]: mount for mount in gpupack["volumeMounts"]}
    # With the kernel's dmem controller a limit is a file among the cgroups.
    assert mounts["/sys/fs/cgroup"].get("readOnly", False) is False
    assert mounts["/var/log/containers"]["readOnly"] is True
    # What a daemon of claims has prepared: beside its pods this one does not start.
    assert mounts["/var/lib/kubelet/plugins"]["readOnly"] is True
    # The kubelet's checkpoint is root's, with mode 0600: without capabilities only its owner can read it.
    rights = gpupack["securityContext"]
    assert (rights["runAsUser"], rights["capabilities"]) == (0, {"drop": ["ALL"]})
    assert mounts["/var/lib/kubelet/device-plugins"].get("readOnly", False) is False


def test_the_policies_are_about_the_daemons_account_and_its_names() -> None:
    found = objects("base")
    account = found["DaemonSet", "gpupack-node"]["spec"]["template"]["spec"]["serviceAccountName"]
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    for name in ("gpupack-node", "gpupack-allocation"):
        (condition,) = found["ValidatingAdmissionPolicy", name]["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{user}'"
    node = text_of(found["ValidatingAdmissionPolicy", "gpupack-node"])
    assert (
        f"key in ['{names.NODE_CARDS}', '{names.NODE_DAEMON}', '{names.NODE_HOLDS}', '{names.NODE_SERVES}']"
        in node
    )
    assert f"key.startsWith('{names.PACKED_PREFIX}') || key == '{names.COMPUTE_RESOURCE}'" in node
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


SETS = [
    *((), ("k0s",), ("cdi",), ("mps",), ("gke",), ("bottlerocket",)),
    *(("dra",), ("dra", "k0s"), ("dra", "cdi", "mps", "k0s"), ("dra", "gke"), ("dra", "bottlerocket")),
]


@pytest.mark.parametrize("components", SETS, ids="+".join)
def test_the_daemons_options_name_the_folders_that_are_mounted(components: tuple[str, ...]) -> None:
    """Each under its own path: the kubelet, the runtime and the containers are told paths of the host."""
    built = build(MANIFESTS / "base", *(MANIFESTS / "components" / name for name in components))
    for daemon in [one for one in built if one["metadata"]["name"].startswith("gpupack-node")]:
        if daemon["kind"] != "DaemonSet":
            continue
        check_folders(daemon)


def test_the_mps_component_and_the_daemon_meet_in_one_folder() -> None:
    objects_there = build(MANIFESTS / "base", MANIFESTS / "components" / "mps")
    built = {one["metadata"]["name"]: one for one in objects_there if one["kind"] == "DaemonSet"}
    node, mps = built["gpupack-node"], built["gpupack-mps"]
    root = str(MpsSettings(root=Path("/run/gpupack/mps")).root)
    assert "--sharing=mps" in container(node)["args"]
    assert container(mps)["args"] == ["mps", f"--root={root}", "--http=:8917"]
    assert NodeSettings(node_name="n1").mps_root == Path(root)
    for one in (node, mps):
        (volume,) = [each for each in pod_template(one)["volumes"] if each["name"] == "mps"]
        mounts = [each for each in container(one)["volumeMounts"] if each["name"] == "mps"]
        assert volume["hostPath"]["path"] == mounts[0]["mountPath"] == root
    # Memory that containers share with the servers: the same folder, under the same name in each.
    assert mounts[1] == {"name": "mps", "mountPath": "/dev/shm", "subPath": SHM}
    # Never by a rollout: what containers depend on would end.
    assert mps["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert _node_labels(mps) == {"key": names.NODE_LABEL, "operator": "In", "values": ["true", "dra"]}


def _node_labels(daemon: dict[str, Any]) -> dict[str, Any]:
    """The one rule of a pod template's node affinity."""
    required = pod_template(daemon)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = required["nodeSelectorTerms"]
    (rule,) = term["matchExpressions"]
    return dict(rule)


def test_the_right_to_set_limits_is_given_in_one_place_alone() -> None:
    """CAP_SYS_ADMIN is much: a component gives it, which says what for."""
    built = build(MANIFESTS / "base", MANIFESTS / "components" / "memory-limits")
    (daemon,) = [one for one in built if one["kind"] == "DaemonSet"]
    rights = container(daemon)["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    plain = container(objects("base")["DaemonSet", "gpupack-node"])["securityContext"]
    assert {**plain, "capabilities": rights["capabilities"]} == rights
    places = {
        path.relative_to(MANIFESTS)
        for path in MANIFESTS.rglob("*.yaml")
        if not path.is_relative_to(MANIFESTS / "helm") and "[SYS_ADMIN]" in path.read_text()
    }
    assert places == {Path("components/memory-limits/daemonset.yaml")}


def test_the_mig_component_gives_access_to_instances_that_are_made_later() -> None:
    """Both are needed: the variable, and the capability that NVIDIA's runtime wants to see beside it."""
    mig, limits = (MANIFESTS / "components" / name for name in ("mig", "memory-limits"))
    (daemon,) = [one for one in build(MANIFESTS / "base", mig) if one["kind"] == "DaemonSet"]
    environment = {entry["name"]: entry.get("value") for entry in container(daemon)["env"]}
    assert environment["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert container(daemon)["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    # With both named it is given once.
    (both,) = [one for one in build(MANIFESTS / "base", limits, mig) if one["kind"] == "DaemonSet"]
    assert both == daemon


CLAIM_FOLDERS = {"/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi", "/etc/cdi"}


def _both_daemons(*components: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The daemon of the device plugin and that of claims."""
    built = build(MANIFESTS / "base", *(MANIFESTS / "components" / name for name in ("dra", *components)))
    daemons = {one["metadata"]["name"]: one for one in built if one["kind"] == "DaemonSet"}
    return daemons["gpupack-node"], daemons["gpupack-node-dra"]


def _without_what_may_differ(daemon: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(daemon).replace("gpupack-node-dra", "gpupack-node"))
    made["metadata"]["labels"].pop(COMPONENT_LABEL, None)
    pod = made["spec"]["template"]["spec"]
    (gpupack,) = pod["containers"]
    pod["volumes"] = [each for each in pod["volumes"] if each["hostPath"]["path"] not in CLAIM_FOLDERS]
    mounts = gpupack["volumeMounts"]
    gpupack["volumeMounts"] = [each for each in mounts if each["mountPath"] not in CLAIM_FOLDERS]
    ours = ("--serve=", "--cdi-dirs=")
    gpupack["args"] = [each for each in gpupack["args"] if not each.startswith(ours)]
    pod["nodeSelector"].pop(names.NODE_LABEL, None)
    return made


def test_the_dra_component_has_a_second_daemon_that_differs_only_where_it_must() -> None:
    plain, claims = _both_daemons()
    pod = pod_template(claims)
    mounts = {each["mountPath"]: each for each in container(claims)["volumeMounts"]}
    read_only = {path for path in CLAIM_FOLDERS if mounts[path].get("readOnly")}
    assert read_only == {"/etc/cdi"}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert all(hosts[mounts[path]["name"]] == path for path in CLAIM_FOLDERS)
    options = [arg for arg in container(claims)["args"] if arg not in container(plain)["args"]]
    assert options == [f"--serve={DRA}", "--cdi-dirs=/etc/cdi,/var/run/cdi"]
    assert [pod_template(each)["nodeSelector"][names.NODE_LABEL] for each in (plain, claims)] == [
        "true",
        "dra",
    ]
    assert _without_what_may_differ(claims) == _without_what_may_differ(plain)


@pytest.mark.parametrize(
    "component", ["bottlerocket", "cdi", "gke", "memory-limits", "mig", "mps", "nvidia-runtime-class"]
)
def test_what_a_component_gives_the_daemon_it_gives_that_of_claims(component: str) -> None:
    plain, claims = _both_daemons(component)
    assert _without_what_may_differ(claims) == _without_what_may_differ(plain)
    assert _without_what_may_differ(claims) != _without_what_may_differ(_both_daemons()[1])
    mounted = [each["mountPath"] for each in container(claims)["volumeMounts"]]
    assert len(set(mounted)) == len(mounted)


def test_a_node_of_claims_has_one_daemon_where_every_node_has_simulated_cards() -> None:
    plain, claims = _both_daemons("simulated-gpus")
    for daemon in (plain, claims):
        assert {"--gpus=simulated", "--profile=2xt4"} <= set(container(daemon)["args"])
        assert "--gpus=nvml" not in container(daemon)["args"]
    assert names.NODE_LABEL not in pod_template(plain)["nodeSelector"]
    assert _node_labels(plain) == {"key": names.NODE_LABEL, "operator": "NotIn", "values": ["dra"]}
    assert pod_template(claims)["nodeSelector"][names.NODE_LABEL] == "dra"


def test_the_dra_component_speaks_of_our_driver_and_class() -> None:
    built = build(MANIFESTS / "base", MANIFESTS / "components" / "dra")
    found = {(one["kind"], one["metadata"]["name"]): one for one in built}
    selectors = found["DeviceClass", names.DEVICE_CLASS]["spec"]["selectors"]
    assert selectors == [{"cel": {"expression": f'device.driver == "{names.DRA_DRIVER}"'}}]
    policy = text_of(found["ValidatingAdmissionPolicy", "gpupack-node-slices"])
    assert f"variables.slice.spec.driver == '{names.DRA_DRIVER}'" in policy


def test_the_scheduler_of_a_cluster_with_claims_leaves_the_resources_to_the_extender() -> None:
    plain = read_yaml((MANIFESTS / "scheduler" / "scheduler.yaml").read_text())
    claims = read_yaml((MANIFESTS / "components" / "dra-scheduler" / "scheduler.yaml").read_text())
    for managed in plain["extenders"][0]["managedResources"]:
        managed["ignoredByScheduler"] = True
    assert claims == plain


def test_openshifts_constraints_are_what_the_pods_ask_for() -> None:
    """For the daemons ours, and for all others nonroot-v2, by what OpenShift's documentation says of it."""
    names_of = ("autoscale", "dashboard", "dra", "mig", "mps", "openshift", "queue")
    built = build(MANIFESTS / "base", *(MANIFESTS / "components" / name for name in names_of))
    found = {(one["kind"], one["metadata"]["name"]): one for one in built}
    ours = found["SecurityContextConstraints", "gpupack-node"]
    added: set[str] = set()
    for (kind, name), one in found.items():
        if kind not in {"DaemonSet", "Deployment"}:
            continue
        pod = pod_template(one)
        volumes = {key for each in pod.get("volumes", []) for key in each if key != "name"}
        rights = [pod.get("securityContext", {}) | each["securityContext"] for each in pod["containers"]]
        assert {each["seccompProfile"]["type"] for each in rights} == {"RuntimeDefault"}
        assert all(each["allowPrivilegeEscalation"] is False for each in rights)
        assert all(each["readOnlyRootFilesystem"] and "privileged" not in each for each in rights)
        assert all(each["capabilities"]["drop"] == ["ALL"] for each in rights)
        if kind == "DaemonSet":
            assert f"system:serviceaccount:{NAMESPACE}:{pod['serviceAccountName']}" in ours["users"]
            assert volumes <= set(ours["volumes"])
            added.update(*(each["capabilities"].get("add", []) for each in rights))
        else:
            assert volumes <= {"configMap", "downwardAPI", "emptyDir", "projected", "secret"}, name
            assert all(each["runAsNonRoot"] and "add" not in each["capabilities"] for each in rights)
            assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    assert set(ours["allowedCapabilities"]) == added
    (group,) = found["RoleBinding", "gpupack-nonroot"]["subjects"]
    assert group["name"] == f"system:serviceaccounts:{NAMESPACE}"
