"""Settings of the node daemon: every fault at once, each naming its option."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.errors import NodeSettingsError
from deviceplugin.settings import Settings
from gpupack.cli.app import cli


def good(folder: Path, **changes) -> Settings:
    return Settings(**{"node_name": "n1", "device_plugin_dir": folder, **changes})


def test_good_settings_pass(tmp_path):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("{}")
    good(tmp_path, kubeconfig=str(kubeconfig), http="[::1]:0").check()
    good(tmp_path, gpus="simulated", profile="8xh100-80", http=":8911").check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"node_name": ""}, "--node-name ''", id="no name"),
        pytest.param({"node_name": "a/b"}, "--node-name 'a/b'", id="path in name"),
        pytest.param({"gpus": "amd"}, "--gpus 'amd'; allowed: nvml, simulated", id="source"),
        pytest.param({"gpus": "simulated"}, "--profile: required", id="no profile"),
        pytest.param({"profile": "x"}, "--profile 'x': allowed with", id="profile of real cards"),
        pytest.param({"unit_mib": 0}, "--unit-mib 0; allowed: 1 to 16777215", id="unit"),
        pytest.param({"card_policy": "best"}, '--card-policy: card policy "best"', id="policy"),
        pytest.param({"device_plugin_dir": Path("/nowhere")}, "--device-plugin-dir '/nowhere'", id="folder"),
        pytest.param({"kubeconfig": "/nowhere"}, "--kubeconfig '/nowhere'", id="kubeconfig"),
        pytest.param({"http": "8911"}, "--http '8911'; allowed: HOST:PORT", id="no host"),
        pytest.param({"http": "::1:80"}, "--http '::1:80'", id="bare IPv6"),
        pytest.param({"http": "h:http"}, "--http 'h:http'", id="named port"),
        pytest.param({"http": "h:65536"}, "a port from 0 to 65535", id="port"),
        pytest.param({"quiet_s": -1}, "--quiet-s -1", id="quiet"),
        pytest.param(
            {"device_list_strategy": ("envvar", "mounts")},
            "--device-list-strategy 'envvar,mounts'; allowed: a comma list of envvar, volume-mounts",
            id="strategy",
        ),
        pytest.param({"device_list_strategy": ()}, "--device-list-strategy ''", id="no strategy"),
        pytest.param({"driver_dir": Path("nvidia")}, "--driver-dir 'nvidia'; allowed: a path", id="driver"),
        pytest.param({"publish_gap_s": -1}, "--publish-gap-s -1", id="gap"),
        pytest.param({"log_format": "xml"}, "--log-format 'xml'", id="format"),
        pytest.param({"log_level": "loud"}, "--log-level 'loud'", id="level"),
    ],
)
def test_each_fault_names_its_option(tmp_path, changes, message):
    with pytest.raises(NodeSettingsError) as caught:
        good(tmp_path, **changes).check()
    assert len(caught.value.faults) == 1
    assert message in caught.value.faults[0]


def test_what_follows_from_settings(tmp_path):
    settings = good(tmp_path, unit_mib=512)
    assert settings.resource == "gpupack.io/gpu-memory-512mib"
    assert settings.endpoint == "gpupack.io-gpu-memory-512mib.sock"
    shown = settings.shown()
    assert shown["device_plugin_dir"] == str(tmp_path)
    assert shown["ignored_xids"] == [13, 31, 43, 45, 68, 109]


@pytest.fixture
def started(monkeypatch):
    """Run `gpupack node` with options; returns its result, and the settings it begins with."""

    def start(*options):
        begun = []

        async def run(settings, _stop):
            begun.append(settings)

        monkeypatch.setattr("deviceplugin.app.run", run)
        monkeypatch.setattr("gpupack.logs.configure", lambda *_: None)
        return CliRunner().invoke(cli, ["node", "--node-name", "n1", *options]), begun

    return start


@pytest.mark.parametrize(
    ("options", "strategies"),
    [
        ([], ("envvar",)),
        (["--device-list-strategy", "cdi-cri, envvar,cdi-cri"], ("cdi-cri", "envvar")),
    ],
)
def test_device_list_strategies(started, options, strategies):
    _, (settings,) = started(*options)
    assert settings.device_list_strategy == strategies
    assert settings.cdi_dirs == (Path("/etc/cdi"), Path("/var/run/cdi"))
