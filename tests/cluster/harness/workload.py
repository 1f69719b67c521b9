"""Pod objects for the tests: short to write, complete to read."""

from collections.abc import Mapping, Sequence
from typing import Any

from allocator.names import QUEUE_GATE, QUEUE_NAME
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster.harness.images import SHELL

SLEEP = ("/bin/sh", "-c", "trap exit TERM; sleep 1000000 & wait")
"""Sleeps until it is asked to end: a first process without a trap is not, and is killed two seconds later."""

SHOW_ENVIRONMENT = ("/bin/sh", "-c", "env")


def container(
    name: str = "main",
    gib: int | None = None,
    command: Sequence[str] = SLEEP,
    *,
    sidecar: bool = False,
    limits: Mapping[str, str | int] | None = None,
) -> dict[str, Any]:
    """One container, with `gib` units of our resource; a sidecar stands among init containers."""
    resources = dict(limits or {})
    if gib is not None:
        resources[RESOURCE] = gib
    built: dict[str, Any] = {
        "name": name,
        "image": SHELL,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": {key: str(value) for key, value in resources.items()}},
    }
    if sidecar:
        built["restartPolicy"] = "Always"
    return built


def pod_spec(
    containers: Sequence[dict[str, Any]], init: Sequence[dict[str, Any]] = (), **spec: Any
) -> dict[str, Any]:
    """A pod spec that starts and ends at once: no token volume, no grace period."""
    return {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "initContainers": list(init),
        "containers": list(containers),
        **spec,
    }


def pod(
    name: str,
    *containers: dict[str, Any],
    init: Sequence[dict[str, Any]] = (),
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod; `spec` is whatever else its spec has."""
    notes = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **notes},
        "spec": pod_spec(containers, init, **spec),
    }


def queued(name: str, gib: int = 8, queue: str = "a", **more: Any) -> dict[str, Any]:
    """A pod of a queue."""
    return pod(name, container(gib=gib), labels={QUEUE_NAME: queue}, **more)


def gated(name: str, gib: int, queue: str = "a", **more: Any) -> dict[str, Any]:
    """A pod of a queue that wears the gate."""
    return queued(name, gib, queue, schedulingGates=[{"name": QUEUE_GATE}], **more)


def uuid(index: int) -> str:
    """The UUID of a simulated card of `cards`."""
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def cards(*sizes_mib: int, name: str = "Test GPU", reserved_mib: int = 0) -> dict[str, Any]:
    """A profile of simulated GPUs in the nvml-mock form, one card a size, schedulable to the last MiB."""
    return {
        "version": "1.0",
        "system": {"driver_version": "570.00"},
        "device_defaults": {"name": name},
        "devices": [
            {
                "index": index,
                "uuid": uuid(index),
                "memory": {
                    "total_bytes": size << 20,
                    "reserved_bytes": reserved_mib << 20,
                    "used_bytes": 0,
                },
            }
            for index, size in enumerate(sizes_mib)
        ],
    }
