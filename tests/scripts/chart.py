"""Writes manifests/helm/gpupack/values.schema.json: `make reference`.

What `args` of a component may hold comes from the options of its command, with their help texts, so an option
that is added is a value at once. The rest is said here, and tests/unit/test_chart.py compares the file with
the code and with values.yaml.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import click

from gpupack.cli.app import cli

CHART: Final = Path(__file__).resolve().parents[2] / "manifests" / "helm" / "gpupack"
SCHEMA: Final = CHART / "values.schema.json"

ADMISSION_LISTS: Final = ("schedulerNames", "nodePolicies", "cardPolicies", "visibleDevicesNamespaces")

_CHOICE: Final = re.compile(r"[a-z-]+(\|[a-z-]+)+")
"""How an option that takes a few words writes them, as auto|off|require."""

_TEXT: Final = {"type": "string"}
_BOOL: Final = {"type": "boolean"}
_OBJECT: Final = {"type": "object"}

_NO_VALUES = {
    *("version", "help", "node_name", "kubelet_dir", "serve", "check", "output"),
    *("prove", "prove_busy", "prove_mig"),
}
"""Options that are for people at a terminal, or that the chart sets itself."""


def said(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, **schema}


def closed(properties: dict[str, Any], text: str = "") -> dict[str, Any]:
    """An object with these properties and no others."""
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return said(text, schema) if text else schema


def arguments(command: str) -> dict[str, Any]:
    """What `args` of a component may hold: the options of a command by name, without the dashes."""
    options = {
        option.opts[0].removeprefix("--"): said(option.help or "", _kind(option))
        for option in cli.commands[command].params
        if isinstance(option, click.Option) and option.name not in _NO_VALUES
    }
    return closed(dict(sorted(options.items())), f"Options of `gpupack {command}`, without the dashes.")


def _kind(option: click.Option) -> dict[str, Any]:
    if option.is_flag:
        return {"type": ["boolean", "null"]}
    if _CHOICE.fullmatch(option.metavar or ""):
        return {"enum": [*(option.metavar or "").split("|"), None]}
    plain = {"integer": "integer", "float": "number"}.get(option.type.name, "string")
    if option.multiple:
        return {"type": ["array", "string", "null"], "items": {"type": plain}}
    return {"type": [plain, "null"]}


def workload(command: str, **more: dict[str, Any]) -> dict[str, Any]:
    """Values that every Deployment and DaemonSet has, and more of its own."""
    return {
        "args": arguments(command),
        "env": said("Environment variables beside ours.", {"type": "array", "items": _OBJECT}),
        "resources": said("Requests and limits; empty: those of the manifests.", _OBJECT),
        "podAnnotations": said("Added to the pods' own.", _OBJECT),
        "podLabels": said("Added to the pods' own.", _OBJECT),
        "nodeSelector": said("Replaces the manifests' own.", _OBJECT),
        "tolerations": said("Replaces the manifests' own.", {"type": "array", "items": _OBJECT}),
        "affinity": said("Replaces the manifests' own.", _OBJECT),
        "priorityClassName": said("Empty: none.", _TEXT),
        **more,
    }


def image(text: str, **more: dict[str, Any]) -> dict[str, Any]:
    return closed({"repository": {**_TEXT, "minLength": 1}, "tag": _TEXT, **more}, text)


def schema() -> dict[str, Any]:
    replicas = said("Pods; only one of them works, the others wait.", {"type": "integer", "minimum": 0})
    properties = {
        "global": _OBJECT,
        "image": image(
            "gpupack's image; without a tag that of the chart's version.",
            pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
            pullSecrets={"type": "array", "items": _OBJECT},
        ),
        "namespace": closed({"create": said("Write the Namespace too, for `helm template`.", _BOOL)}),
        "platform": said(
            "What GKE, OpenShift or Bottlerocket need beside other values (docs/install/manifests.md).",
            {"enum": ["", "bottlerocket", "gke", "openshift"]},
        ),
        "priorityQuota": closed({"enabled": _BOOL}, "A quota that permits our priority classes, for GKE."),
        "simulatedGpus": closed(
            {"enabled": _BOOL, "profile": said("One that ships with gpupack, or a file.", _TEXT)},
            "Simulated cards on every Linux node, for clusters without GPUs.",
        ),
        "node": closed(
            workload(
                "node",
                kubeletDir=said(
                    "The kubelet's --root-dir; folders of the host and options follow it.",
                    {**_TEXT, "pattern": "^/.*[^/]$"},
                ),
                runtimeClassName=said("nvidia, where NVIDIA's runtime is not the default.", _TEXT),
            ),
            "The DaemonSet on the nodes with cards.",
        ),
        "scheduler": closed(
            workload(
                "scheduler",
                replicas=replicas,
                mode=said(
                    "A kube-scheduler of our own, or the extender for yours.", {"enum": ["own", "join"]}
                ),
                kubeScheduler=closed(
                    {"image": image("Without a tag that of the API server's version."), "resources": _OBJECT}
                ),
                configuration=said(
                    "Merged into the KubeSchedulerConfiguration; lists are replaced.", _OBJECT
                ),
                joinedNames=said("With `join`: schedulers that call the extender, a comma list.", _TEXT),
                tlsSecretName=said("With `join`: the Secret with the extender's certificate.", _TEXT),
            ),
            "The scheduler extender, with or without a kube-scheduler.",
        ),
        "schedulerName": said(
            "Who gives pods that ask for GPU memory the scheduler's name.",
            {"enum": ["auto", "v1beta1", "by-hand"]},
        ),
        "admission": closed(
            {
                "enabled": _BOOL,
                "lists": closed(
                    dict.fromkeys(ADMISSION_LISTS, _TEXT),
                    "Comma lists of the ConfigMap gpupack-admission that differ from the manifests'.",
                ),
            },
            "ValidatingAdmissionPolicies.",
        ),
        "visibleDevices": closed({"enabled": _BOOL}, "Keeps pods from naming cards themselves."),
        "networkPolicy": closed(
            {
                "enabled": _BOOL,
                "from": said(
                    "Who may connect beside gpupack's own pods, peers as in a NetworkPolicy.",
                    {"type": "array", "items": _OBJECT},
                ),
            },
            "Closes the ports of gpupack's pods.",
        ),
        "gpuTaint": closed({"enabled": _BOOL}, "Pods that ask tolerate the taint nvidia.com/gpu."),
        "cdi": closed({"enabled": _BOOL}, "Names the cards as CDI devices."),
        "dra": closed(
            {"enabled": _BOOL},
            "Claims on nodes labelled gpupack.io/node=dra, on Kubernetes 1.36 or later (docs/dra.md).",
        ),
        "memoryLimits": closed(
            {"enabled": _BOOL}, "The right to have NVIDIA's driver limit memory: CAP_SYS_ADMIN."
        ),
        "mig": closed({"enabled": _BOOL}, "Access to MIG instances that are made later; CAP_SYS_ADMIN."),
        "mps": closed(
            workload(
                "mps",
                enabled=_BOOL,
                runtimeClassName=said("nvidia, where NVIDIA's runtime is not the default.", _TEXT),
            ),
            "CUDA's Multi-Process Service.",
        ),
        "evictOverUse": closed(
            {"enabled": _BOOL}, "The right to evict pods that use more than they asked for."
        ),
        "queue": closed(
            workload(
                "queue",
                enabled=_BOOL,
                replicas=replicas,
                configuration=said("The file of the queues (docs/queue.md); empty: one queue.", _OBJECT),
                batch=closed(
                    {
                        "enabled": _BOOL,
                        "sharedNodes": said(
                            "Also on nodes without the label and the taint gpupack.io/batch.", _BOOL
                        ),
                    },
                    "Bind pods without kube-scheduler; the queue runs in the scheduler's pod.",
                ),
            ),
            "The borrowing queue.",
        ),
        "autoscale": closed(
            workload(
                "autoscale",
                enabled=_BOOL,
                replicas=replicas,
                shapes=said(
                    "Machine types that may have no node yet (docs/howto/autoscaling.md).",
                    {"type": "array", "items": _OBJECT},
                ),
            ),
            "Nodes for pods that fit by a node's sum and on no card.",
        ),
        "dashboard": closed(
            workload(
                "dashboard",
                enabled=_BOOL,
                replicas=said("Pods; each remembers its own past.", {"type": "integer", "minimum": 0}),
                teams=said("Answer members of namespaces (docs/teams.md).", _BOOL),
            ),
            "Every card on one page.",
        ),
    }
    switch = closed({"enabled": _BOOL, "labels": said("Added to the object's own.", _OBJECT)})
    properties["monitoring"] = closed(
        {"serviceMonitor": switch, "rules": switch, "dashboard": switch},
        "A ServiceMonitor, a PrometheusRule (both want the Prometheus operator) and a Grafana dashboard.",
    )
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart gpupack",
        **closed(properties),
    }


def text() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text())
