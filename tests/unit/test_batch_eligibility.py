"""Which pods batch mode may bind: the lists of allowed fields."""

from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields

PLAIN: dict[str, Any] = {
    "schedulerName": BATCH_SCHEDULER,
    "containers": [
        {
            "name": "main",
            "image": "x",
            "resources": {"limits": {"cpu": "1"}},
            "ports": [],
            "volumeMounts": [{"name": "token", "mountPath": "/t", "readOnly": True, "subPath": "a"}],
        }
    ],
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "serviceAccountName": "default",
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "enableServiceLinks": True,
    "terminationGracePeriodSeconds": 30,
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
    "volumes": [{"name": "token", "projected": {"sources": []}}],
    "nodeSelector": {"zone": "a"},
    "hostNetwork": False,
    "topologySpreadConstraints": [],
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}


def test_a_plain_pod_is_allowed() -> None:
    assert list_unsupported_fields(PLAIN) == []
    nodes = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}
    assert list_unsupported_fields(PLAIN | {"affinity": nodes}) == []
    assert list_unsupported_fields(PLAIN | {"priority": 5, "preemptionPolicy": "Never"}) == []
    assert list_unsupported_fields(PLAIN | {"os": {"name": "linux"}}) == []


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "volumes[].persistentVolumeClaim",
        ),
        ({"volumes": [{"name": "v", "ephemeral": {"x": 1}}]}, "volumes[].ephemeral"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "volumes[].csi"),
        ({"resourceClaims": [{"name": "c"}]}, "resourceClaims"),
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "affinity.podAffinity"),
        ({"affinity": {"podAntiAffinity": {PREFERRED: [{}]}}}, "affinity.podAntiAffinity"),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{}]}}}, f"affinity.nodeAffinity.{PREFERRED}"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "topologySpreadConstraints"),
        ({"hostNetwork": True}, "hostNetwork"),
        (
            {"containers": [{"name": "m", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
            "containers[].ports[].hostPort",
        ),
        (
            {"containers": [{"name": "m", "resources": {"claims": [{"name": "c"}]}}]},
            "containers[].resources.claims",
        ),
        ({"initContainers": [{"name": "m", "volumeDevices": [{}]}]}, "initContainers[].volumeDevices"),
        (
            {"containers": [{"name": "m", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]},
            "containers[].restartPolicyRules",
        ),
        (
            {"containers": [{"name": "m", "volumeMounts": [{"name": "v", "bindMountOptions": ["noexec"]}]}]},
            "containers[].volumeMounts[].bindMountOptions",
        ),
        ({"schedulingGroup": {"podGroupName": "g"}}, "schedulingGroup"),
        ({"workloadRef": {"name": "w"}}, "workloadRef"),
        ({"schedulingGates": [{"name": "theirs"}]}, "schedulingGates"),
        ({"nodeName": "n"}, "nodeName"),
        (
            {"priority": 5, "preemptionPolicy": "PreemptLowerPriority"},
            "priority above 0 without preemptionPolicy Never",
        ),
        ({"os": {"name": "windows"}}, "os.name windows"),
        ({"tolerations": [{"key": "a", "operator": "Gt", "value": "1"}]}, "tolerations[].operator Gt"),
        ({"aFieldOfNextYear": 1}, "aFieldOfNextYear"),
        ({"schedulerName": "gpupack-scheduler"}, f"schedulerName other than {BATCH_SCHEDULER}"),
    ],
)
def test_what_it_does_not_know_is_left_to_kube_scheduler(part: dict[str, Any], field: str) -> None:
    assert list_unsupported_fields(PLAIN | part) == [field]
