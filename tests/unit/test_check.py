"""What `gpupack node --check` finds, on nodes made of folders."""

import errno
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from click.testing import CliRunner

from deviceplugin.check import can_serve, check_node, has_capability
from deviceplugin.dra.prepared_claims import FOLDER
from deviceplugin.dra.registration import plugin_folder
from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.check_finding import CheckFinding
from deviceplugin.gpus.api.memory_limits import LimitSupport
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.settings import Settings
from gpupack.cli.node import node
from gpupack.nodecheck import render

CHECK = ["--check", "--gpus=simulated", "--profile=2xt4"]

Run = Callable[[list[str]], str | None]


def nothing(_command: list[str]) -> str | None:
    return None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A node with cgroup v2 and a kubelet."""
    root, plugins, logs = (tmp_path / name for name in ("cgroup", "plugins", "logs"))
    for folder in (root / "kubepods.slice", plugins, logs):
        folder.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory dmem\n")
    return Settings(
        node_name="n",
        gpus="simulated",
        profile="2xt4",
        device_plugin_dir=plugins,
        kubelet_dir=plugins.parent,
        cgroup_root=root,
        container_logs=logs,
        cdi_dirs=(tmp_path / "cdi",),
    )


def serve(settings: Settings) -> None:
    """Let a kubelet's socket be there; its listener need not stay."""
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(settings.device_plugin_dir / "kubelet.sock"))


def found(settings: Settings, run: Run = nothing) -> dict[str, CheckFinding]:
    return {each.what: each for each in check_node(settings, run)}


def changed(settings: Settings, **values: object) -> Settings:
    return Settings(**{**{name: getattr(settings, name) for name in settings.__slots__}, **values})


def test_a_node_that_has_everything(settings: Settings) -> None:
    serve(settings)
    says = {
        "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.20.1\ncommit: x\n",
        "nvidia-cdi-hook": "help",
    }
    findings = found(settings, lambda command: says.get(command[0]))
    assert findings["driver"].found == "570.86.15, simulated"
    assert findings["memory of 2 cards"].found == "enforced by the driver"
    assert findings["memory of 2 cards"].uses.endswith("its limit, simulated as the cards are")
    assert findings["cgroups"].verdict == "ok"
    assert findings["dmem controller"].uses == "limits by the kernel"
    assert findings["pods' cgroups"].found.endswith("kubepods.slice, named by systemd")
    assert findings["container toolkit"].found.endswith("1.20.1")
    assert findings["hook apply-cuda-memory-limits"].found == "there"
    assert findings["kubelet"].verdict == "ok"
    assert findings["kubelet's checkpoint"].found == "none yet"
    assert [each.uses for each in findings.values() if each.what.startswith("card ")] == ["14 units"] * 2


@pytest.mark.parametrize(
    ("change", "what", "verdict", "says"),
    [
        ({"memory_limits": "off"}, "memory of 2 cards", "less", "--memory-limits off"),
        ({"device_plugin_dir": Path("/none")}, "kubelet", "bad", "no folder /none"),
        ({"kubelet_dir": Path("/none")}, "kubelet's PodResources", "less", "no socket /none"),
        ({"container_logs": Path("/none")}, "container logs", "less", "no /none"),
        ({"cgroup_root": Path("/none")}, "cgroups", "less", "nothing at /none"),
        ({"cgroup_root": Path("/none")}, "pods' cgroups", "bad", "No such file or directory: '/none'"),
        ({"unit_mib": 20_000}, "card GPU-00000074-0000-4000-8000-000000000000", "less", "Tesla T4"),
        ({"unit_mib": 20_000}, "list of devices", "bad", "units of up to 14"),
        ({"unit_mib": 1, "profile": "8xh200"}, "list of devices", "bad", "a kubelet takes 4194304"),
    ],
)
def test_what_is_missing(
    settings: Settings, change: dict[str, object], what: str, verdict: str, says: str
) -> None:
    finding = found(changed(settings, **change))[what]
    assert (finding.verdict, says in finding.found) == (verdict, True)


def test_a_card_below_one_unit_beside_larger_ones_keeps_no_daemon_from_serving(settings: Settings) -> None:
    """The daemon refuses a unit only if no card holds one."""
    findings = found(changed(settings, profile="mixed", unit_mib=20_000))
    cards = [each for what, each in findings.items() if what.startswith("card ")]
    assert {each.verdict for each in cards} == {"ok", "less"}
    assert {each.uses == "0 units" for each in cards if each.verdict == "less"} == {True}
    assert "list of devices" not in findings


def test_watches_that_are_used_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(settings)["inotify watches"].verdict == "ok"

    def full(_folder: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("deviceplugin.check.probe_watch", full)
    finding = found(settings)["inotify watches"]
    assert (finding.verdict, finding.uses) == ("less", "new cgroups are looked for every 0.25 s")
    assert "fs.inotify.max_user_watches is used up" in finding.found


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("Name:\tpython\nCapEff:\t0000000000200000\n", True),
        ("CapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t00000000a80425fb\n", False),
        ("CapEff:\tmany\n", False),
        ("", False),
        (None, False),
    ],
)
def test_the_right_to_set_limits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, there: bool
) -> None:
    status = tmp_path / "status"
    if text is not None:
        status.write_text(text)
    monkeypatch.setattr("deviceplugin.check.has_capability", partial(has_capability, status=status))
    finding = found(settings)["capability"]
    assert (finding.verdict, finding.found) == (
        ("ok", "CAP_SYS_ADMIN") if there else ("less", "no CAP_SYS_ADMIN")
    )


@pytest.mark.parametrize(("text", "says"), [("100\n", "raise"), ("many\n", "looked for")])
def test_few_watches(settings: Settings, monkeypatch, tmp_path: Path, text: str, says: str) -> None:
    limit = tmp_path / "max_user_watches"
    limit.write_text(text)
    monkeypatch.setattr("deviceplugin.check.INOTIFY", limit)
    finding = found(settings)["inotify watches"]
    assert (finding.verdict, says in finding.uses) == ("less", True)


def test_cgroups_that_cannot_be_read(settings: Settings) -> None:
    """That is not version 1, and a daemon would release nothing there."""
    controllers = settings.cgroup_root / "cgroup.controllers"
    controllers.unlink()
    controllers.mkdir()
    finding = found(settings)["cgroups"]
    assert (finding.verdict, finding.uses) == ("bad", "no charge of a pod would end")


def test_folders_of_cgroups_that_cannot_be_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("deviceplugin.host.cgroups.os.scandir", fails)
    finding = found(settings)["pods' cgroups"]
    assert (finding.verdict, finding.uses) == ("bad", "no charge of a pod would end")
    assert "Permission denied" in finding.found


@pytest.mark.parametrize(("own", "verdict"), [(True, "bad"), (False, "less")])
def test_cgroups_of_the_container_itself(settings: Settings, own: bool, verdict: str) -> None:
    """No pod would be found there, so that all seem to run; the host's may have no pods yet."""
    (settings.cgroup_root / "kubepods.slice").rmdir()
    if own:
        (settings.cgroup_root / "cgroup.events").touch()
    finding = found(settings)["pods' cgroups"]
    assert (finding.verdict, "no kubepods folder" in finding.found) == (verdict, True)


def test_a_driver_that_does_not_start(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Settings) -> NoReturn:
        raise GpuError("NVML cannot start")

    monkeypatch.setattr("deviceplugin.check.make_source", fails)
    driver = found(settings)["driver"]
    assert (driver.verdict, driver.found, driver.uses) == (
        "bad",
        "none that can be used",
        "NVML cannot start",
    )


def test_memory_that_the_system_manages_is_named(settings: Settings, tmp_path: Path) -> None:
    profile = tmp_path / "gh200.yaml"
    memory = {"total_bytes": 96 << 30, "numa_node": 1, "residue_bytes": 90 << 30}
    profile.write_text(
        json.dumps(
            {"version": 1, "devices": [{"index": 0, "uuid": "GPU-a", "name": "GH200", "memory": memory}]}
        )
    )
    finding = found(changed(settings, profile=str(profile)))["card GPU-a"]
    assert (finding.verdict, finding.found) == (
        "less",
        "GH200, 98304 MiB for pods, NUMA node 1 of the system",
    )
    assert finding.uses.startswith("96 units; what no process uses does not count; NVreg_Coherent")


def test_mps_is_looked_for_where_it_was_chosen(settings: Settings, tmp_path: Path) -> None:
    assert "MPS" not in found(settings)
    chosen = changed(settings, sharing="mps", mps_root=tmp_path / "mps")
    first, second = (simulated.card.uuid for simulated in load_profile("2xt4").cards)
    folders = [CardFolder(chosen.mps_root, uuid) for uuid in (first, second)]
    for folder in folders:
        folder.make()
    folders[0].serve(ControlDaemonState(48))
    finding = found(chosen)["MPS"]
    assert (finding.verdict, finding.found) == ("less", f"answers for 1 of 2 cards in {tmp_path}/mps")
    folders[1].serve(ControlDaemonState(48))
    finding = found(chosen)["MPS"]
    assert (finding.verdict, finding.uses.split()[1]) == ("ok", "each")
    for folder in folders:
        folder.serve(ControlDaemonState(60, interface=3))
    assert found(chosen)["MPS"].uses.startswith("limits the compute that containers ask for")
    for folder in folders:
        folder.end()


def test_a_kubelet_that_does_not_serve_and_a_checkpoint_that_is_torn(settings: Settings) -> None:
    (settings.device_plugin_dir / "kubelet_internal_checkpoint").write_text("{")
    findings = found(settings)
    assert findings["kubelet"].found.startswith("does not serve")
    assert findings["kubelet's checkpoint"].verdict == "bad"
    assert not can_serve(list(findings.values()))


def test_require_cannot_be_served_where_nothing_holds(settings: Settings, monkeypatch) -> None:
    monkeypatch.setattr("deviceplugin.gpus.simulated.memory_limits.SimulatedLimits.support", _old)
    finding = found(changed(settings, memory_limits="require"))["memory of 2 cards"]
    assert (finding.verdict, finding.uses) == ("bad", "not offered: --memory-limits require")
    assert found(settings)["memory of 2 cards"].verdict == "less"


def test_a_driver_whose_answer_about_limits_fails_does_not_end_the_check(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_self: object, _uuid: str) -> NoReturn:
        raise ValueError("torn")

    monkeypatch.setattr("deviceplugin.gpus.simulated.memory_limits.SimulatedLimits.support", fails)
    finding = found(settings)["memory of 2 cards"]
    assert (finding.verdict, finding.found) == ("less", "the driver's answer failed: ValueError: torn")
    serve(settings)
    folders = [f"--device-plugin-dir={settings.device_plugin_dir}", f"--cgroup-root={settings.cgroup_root}"]
    result = CliRunner().invoke(node, [*CHECK, *folders, "-o", "json"])
    assert json.loads(result.stdout), "what is logged is on stderr"


def _old(_self: object, _uuid: str) -> object:
    return LimitSupport(False, "driver 580 has no call", "driver 615")


def test_the_command_needs_no_node_and_says_by_its_status_whether_a_daemon_can_serve(
    settings: Settings,
) -> None:
    arguments = [
        "--check",
        "--gpus=simulated",
        "--profile=2xt4",
        f"--device-plugin-dir={settings.device_plugin_dir}",
        f"--cgroup-root={settings.cgroup_root}",
    ]
    result = CliRunner().invoke(node, arguments)
    assert result.exit_code == 1
    assert result.output.endswith("A daemon cannot serve pods here.\n")
    serve(settings)
    result = CliRunner().invoke(node, [*arguments, "-o", "json"])
    told = {each["what"]: each for each in json.loads(result.output)}
    assert told["kubelet"]["verdict"] == "ok"
    assert result.exit_code == (0 if told["user"]["verdict"] == "ok" else 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--check", "-o", "yaml"], "allowed: table, json"),
        (["--check", "--gpus", "amd"], "allowed: nvml, simulated"),
        (["--check", "--gpus", "simulated"], "--profile: required"),
        ([*CHECK, "--unit-mib", "0"], "--unit-mib"),
        ([*CHECK, "--sharing", "foo"], "--sharing 'foo'; allowed: time-slicing, mps"),
        (
            [*CHECK, "--sharing", "mps", "--mps-root", "here"],
            "--mps-root 'here'; allowed: a path from / on",
        ),
        ([*CHECK, "--mps-threads"], "--mps-threads: allowed with --sharing mps only"),
        ([*CHECK, "--http", ":99999"], "allowed: HOST:PORT with a port from 0 to 65535"),
        ([*CHECK, "--kubeconfig", "/none"], "--kubeconfig '/none'"),
        ([*CHECK, "--card-policy", "foo"], "foo"),
        ([*CHECK, "--log-level", "loud"], "--log-level 'loud'"),
        (["--check", "--gpus=simulated", "--profile=9xt4"], "profile 9xt4: cannot be read: No such file"),
        ([], "Missing option '--node-name'"),
    ],
)
def test_what_the_user_got_wrong(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(node, arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_control_sequences_of_a_driver_stay_off_the_terminal() -> None:
    finding = CheckFinding("card", "ok", "\x1b[2JTesla")
    assert "\x1b" not in render([finding], "table", colour=False)
    assert msgspec.json.decode(render([finding], "json", colour=True))[0]["found"] == "\x1b[2JTesla"


def test_claims_can_be_served_where_the_kubelet_takes_drivers(settings: Settings) -> None:
    claims = msgspec.structs.astuple(found(settings)["claims (--serve dra)"])
    assert claims[1] == "less"
    assert "plugins_registry: the kubelet makes it" in claims[2]
    for name in ("plugins", "plugins_registry"):
        (settings.kubelet_dir / name).mkdir(exist_ok=True)
    assert found(settings)["claims (--serve dra)"].verdict == "ok"


def test_without_the_kubelets_folder_serve_dra_cannot_work(settings: Settings) -> None:
    serve(settings)
    claims = found(replace(settings, serve="dra"))["claims (--serve dra)"]
    assert (claims.verdict, claims.uses) == ("bad", "not served")


def test_claims_are_not_served_beside_devices(settings: Settings) -> None:
    for name in ("plugins", "plugins_registry"):
        (settings.kubelet_dir / name).mkdir(exist_ok=True)
    entry = {"PodUID": "u", "ContainerName": "main", "ResourceName": "gpupack.io/gpu-memory-gib"}
    entries = [{**entry, "DeviceIDs": {"-1": ["a::0"]}, "AllocResp": ""}]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
    checkpoint = settings.device_plugin_dir / "kubelet_internal_checkpoint"
    checkpoint.write_text(json.dumps({"Data": data, "Checksum": 1}))
    claims = found(settings)["claims (--serve dra)"]
    assert claims.verdict == "ok", claims  # nothing of it runs any more
    pod = settings.cgroup_root / "kubepods.slice" / "kubepods-podu.slice" / "cri-containerd-1.scope"
    pod.mkdir(parents=True)
    (pod / "cgroup.procs").write_text("1\n")
    assert "drain the node" in found(settings)["claims (--serve dra)"].found


@pytest.mark.parametrize(("serve", "verdict"), [("device-plugin", "bad"), ("dra", None)])
def test_devices_are_not_served_beside_claims(settings: Settings, serve: str, verdict: str | None) -> None:
    """As the daemon, which would not start."""
    folder = plugin_folder(settings.kubelet_dir) / FOLDER
    folder.mkdir(parents=True)
    (folder / "uid.json").write_text("torn")
    finding = found(replace(settings, serve=serve)).get("prepared claims")
    assert (finding and finding.verdict) == verdict
    (folder / "uid.json").unlink()
    assert "prepared claims" not in found(replace(settings, serve=serve))
