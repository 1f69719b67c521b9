"""Every component has a port of its own: by hand, and in pods with hostNetwork, they share one machine."""

from collections import defaultdict

import pytest

from deviceplugin.settings import Settings as NodeSettings
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.cli.app import cli
from gpupack.dashboard.settings import Settings as DashboardSettings
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.settings import Settings as ExtenderSettings
from tests.manifest_objects import BUILDS, container, objects, pod_template

SETTINGS = {
    "autoscale": AutoscaleSettings,
    "dashboard": DashboardSettings,
    "node": NodeSettings,
    "queue": QueueSettings,
    "scheduler": ExtenderSettings,
}


def default_port(command: str) -> int:
    return int(SETTINGS[command].__dataclass_fields__["http"].default.rpartition(":")[2])


def test_no_two_commands_listen_on_the_same_port_by_default() -> None:
    listening = {
        name
        for name, command in cli.commands.items()
        if any("--http" in option.opts and option.default is not None for option in command.params)
    }
    assert listening == SETTINGS.keys()
    assert len({default_port(name) for name in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"dashboard"}))
def test_the_option_and_the_setting_have_one_default(name: str) -> None:
    (option,) = [option for option in cli.commands[name].params if "--http" in option.opts]
    assert option.default == SETTINGS[name].__dataclass_fields__["http"].default


def test_no_two_components_have_the_same_port_in_the_manifests() -> None:
    ports: dict[int, set[str]] = defaultdict(set)
    commands = set()
    for build in BUILDS:
        for one in objects(build).values():
            if one["kind"] in {"Deployment", "DaemonSet"}:
                command = container(one)["args"][0]
                commands.add(command)
                for each in pod_template(one)["containers"]:
                    first = next(iter(each.get("args", ())), "")
                    for port in each.get("ports", ()):
                        ports[port["containerPort"]].add(first if first in SETTINGS else command)
    assert commands >= SETTINGS.keys()
    assert {port: names for port, names in ports.items() if len(names) > 1} == {}
    for name in SETTINGS:
        assert ports[default_port(name)] == {name}
