"""The objects of `manifests/` as kustomize builds them, and parts of them that tests look at."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.option_values import CDI_CRI, DRA, MPS, VOLUME_MOUNTS
from deviceplugin.settings import Settings as NodeSettings
from gpupack.cli.app import cli
from tests.cluster.harness.manifests import MANIFESTS, OVERLAYS, build
from tests.yaml_text import read_yaml

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
    return dict(read_yaml(text))


def check_folders(daemon: dict[str, Any]) -> None:
    """Compare the options of a node daemon with the folders of the host that it mounts."""
    settings = _settings(daemon)
    wanted = {settings.device_plugin_dir, settings.pod_resources_socket.parent}
    wanted |= {settings.kubelet_dir / "plugins", settings.cgroup_root, settings.container_logs}
    if settings.serve == DRA:
        wanted |= {settings.kubelet_dir / "plugins_registry", *settings.cdi_dirs}
    if settings.device_list_strategy == (CDI_CRI,):
        wanted |= set(settings.cdi_dirs)
    if settings.sharing == MPS:
        wanted |= {settings.mps_root}
    if settings.driver_dir is not None:
        wanted |= {settings.driver_dir, Path("/dev")}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod_template(daemon)["volumes"]}
    mounts = {each["mountPath"]: hosts[each["name"]] for each in container(daemon)["volumeMounts"]}
    if settings.device_list_strategy == (VOLUME_MOUNTS,):
        assert mounts.pop(f"{NVIDIA.mounts_folder}/all") == "/dev/null"
    assert mounts == {str(folder): str(folder) for folder in wanted}


def _settings(daemon: dict[str, Any]) -> NodeSettings:
    command, *arguments = container(daemon)["args"]
    context = cli.commands[command].make_context(command, [*arguments, "--node-name=n1"])
    known = {each.name for each in fields(NodeSettings)}
    return NodeSettings(**{name: value for name, value in context.params.items() if name in known})
