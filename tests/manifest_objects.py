"""The objects of `manifests/` as kustomize builds them, and parts of them that tests look at."""

from typing import Any

import yaml

from tests.cluster.harness.manifests import MANIFESTS, OVERLAYS, build

ROOT = MANIFESTS.parent
BUILDS = ["base", *(f"overlays/{name}" for name in OVERLAYS)]
# Shown to people, not applied.
SNIPPETS = {MANIFESTS / "overlays/join-existing-scheduler/extenders.yaml"}
NAMESPACE = "gpupack-system"
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
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
    return yaml.dump(one, Dumper=DUMPER, width=100_000).replace("''", "'")


def port_of(one: dict[str, Any], name: str) -> int:
    (port,) = [port["containerPort"] for port in one["ports"] if port["name"] == name]
    return int(port)


def scheduler_configuration() -> dict[str, Any]:
    text = objects("base")["ConfigMap", "gpupack-scheduler"]["data"]["scheduler.yaml"]
    return dict(yaml.safe_load(text))
