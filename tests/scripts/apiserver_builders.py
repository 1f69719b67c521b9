"""Objects and steps that the script repeats."""

from typing import Any

from tests.scripts.apiserver_play import Step

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NOBODY = "00000000-0000-0000-0000-000000000000"
PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/script-node"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
OURS = "labelSelector=script%3Dyes"
UNITS = "gpupack.io/gpu-memory-gib"
WORD = "gpupack.io/packed-size-0"
GONE = ("metadata.deletionGracePeriodSeconds", "metadata.generation")


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"limits": {UNITS: 8}}}
    return {
        "metadata": {"name": f"script-{name}", "labels": {"script": "yes"}},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


def asking(name: str, **resources: Any) -> dict[str, Any]:
    return pod(name, containers=[{"name": "c", "image": "none", "resources": resources}])


def binding(name: str, node: str = "script-node", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"script-{name}", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def bind(what: str, name: str, **metadata: Any) -> Step:
    return Step(what, "POST", f"{PODS}/script-{name}/binding", binding(name, **metadata))


def word(value: Any) -> Step:
    """PATCH a value into capacity and allocatable of the node."""
    amounts = {WORD: value}
    status = {"capacity": amounts, "allocatable": amounts}
    picked = (f"status.capacity.{WORD}", f"status.allocatable.{WORD}")
    return Step(f"word {value!r}", "PATCH", f"{NODE}/status", {"status": status}, MERGE, pick=picked)


def create(name: str, **spec: Any) -> Step:
    save = {f"{name}.uid": "metadata.uid", f"{name}.rv": "metadata.resourceVersion"}
    return Step(f"create {name}", "POST", PODS, pod(name, **spec), save=save, pick=("status.phase",))
