"""The command line against what people get wrong: one clear line on stderr, exit status 2, no traceback."""

import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import structlog

import gpupack
from allocator.errors import PackingError
from allocator.policies import CARD_POLICIES
from deviceplugin.gpus.simulated.profile import shipped_profiles
from gpupack.cli.app import cli
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.integration.cli_world import in_process

COMMANDS = sorted(cli.commands)
ONE_LINE = re.compile(r"\A[^\n]+\n\Z")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; returns its exit status, stdout and stderr."""
    handlers = list(logging.getLogger().handlers)
    yield in_process(monkeypatch, capsys)
    # The command sets up logging on the stderr of this test, which is gone after it.
    logging.getLogger().handlers[:] = handlers
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def folder():
    """A folder with a short path, a kubeconfig that names nobody, and an empty device plugin folder."""
    path = Path(tempfile.mkdtemp(prefix="gp-"))
    (path / "plugins").mkdir()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
    (path / "kubeconfig").write_text(json.dumps(kubeconfig))
    (path / "rubbish").write_text("rubbish: : [")
    (path / "text").write_text("hello")
    (path / "empty").write_text("")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def taken():
    """An address that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def node_arguments(folder, **changes):
    """A working command line of `gpupack node`, with changes; None leaves an option out."""
    options = {
        "node-name": "n1",
        "gpus": "simulated",
        "profile": "2xt4",
        "kubeconfig": folder / "kubeconfig",
        "device-plugin-dir": folder / "plugins",
        "kubelet-dir": folder,
        "http": "127.0.0.1:0",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return ["node", *(f"--{name}={value}" for name, value in options.items() if value is not None)]


# --- help and version ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_teaches(run, command):
    status, out, err = run(*([command] if command else []), "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: gpupack {command or '[OPTIONS]'}")
    assert "--version" in out
    # No escape that was meant for the formatter, and an example or an explanation of a paragraph at least.
    assert "\\b" not in out
    assert len(out.partition("Options:")[0]) > 150


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_version(run, command):
    expected = f"gpupack, version {gpupack.__version__}\n"
    assert run(*([command] if command else []), "--version") == (0, expected, "")


@pytest.mark.parametrize("command", ["node", "queue", "scheduler", "simulate"])
def test_the_policies_are_in_the_help_with_what_they_are_for(run, command):
    text = " ".join(run(command, "--help")[1].split()).replace("- ", "-")
    listed = [CARD_POLICIES] if command == "node" else [NODE_POLICIES, CARD_POLICIES]
    entries = [entry for registry in listed for entry in registry.entries()]
    assert [entry.name for entry in entries if f"{entry.name} {entry.summary}" not in text] == []
    assert [name for entry in entries for name in entry.parameters or () if name not in text] == []
    assert ("Node policies" in text) == (command != "node")


def test_the_profiles_are_in_the_help(run):
    text = " ".join(run("node", "--help")[1].split()).replace("- ", "-")
    assert [name for name in shipped_profiles() if name not in text] == []


# --- wrong usage --------------------------------------------------------------------------------------------


def test_no_command_shows_the_help(run):
    status, out, err = run()
    assert status == 2
    assert "Usage: gpupack" in out + err
    assert all(command in out + err for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "no such command 'bogus'"),
        (["--bogus"], "no such option '--bogus'"),
        (["node"], "missing option '--node-name'"),
        (["node", "--unit-mib", "half"], "'--unit-mib': 'half'; allowed: a whole number;"),
        (["node", "--quiet-s", "1m"], "'--quiet-s': '1m'; allowed: a number;"),
        (["fit", "8Gi"], "'UNITS...': '8Gi'; allowed: a whole number;"),
        (["migrate", "--gpu-gib", "10Gi"], "'10Gi'; allowed: a whole number from 1 to 4096;"),
        (["migrate", "--unit-mib", "1Gi"], "'1Gi'; allowed: a whole number from 1 to 16777215;"),
        (["fit", "8", "--unit-mib", "16777216"], "16777216 is not in the range 1<=x<=16777215"),
        (
            ["queue", "status", "-n"],
            "queue status: option '-n' requires an argument; see gpupack queue status",
        ),
        (["migrate", "-f", "-", "--scheduler-name", "A B"], "'A B'; allowed: lower case letters"),
        (["node", "--ignored-xids", "13,x"], "XID 'x'; allowed: whole numbers"),
        (
            ["scheduler", "--shortlist"],
            "scheduler: option '--shortlist' requires an argument; see gpupack scheduler",
        ),
        (["scheduler", "--node-policy-parameter", "alpha"], "'alpha'; allowed: NAME=VALUE"),
        (["scheduler", "surplus"], "unexpected extra argument (surplus)"),
        (["top", "-o", "xml"], "'xml' is not one of 'table', 'wide', 'json'"),
        (["demo", "--seed", "one"], "'--seed': 'one'; allowed: a whole number;"),
    ],
)
def test_options_that_do_not_parse(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert ONE_LINE.match(err), err
    assert err.lower().find(said.lower()) > 0, err
    assert "--help" in err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"profile": "9xt4"}, "profile 9xt4: cannot be read: No such file or directory; allowed:"),
        ({"profile": "{folder}/rubbish"}, "/rubbish: not YAML"),
        ({"profile": "{folder}/empty"}, "/empty: "),
        ({"profile": "{folder}"}, "Is a directory"),
        ({"kubeconfig": "{folder}/rubbish"}, "/rubbish cannot be used: "),
        ({"kubeconfig": "{folder}/empty"}, "/empty cannot be used: "),
        ({"kubeconfig": "{folder}/text"}, "/text cannot be used; allowed: YAML with lists of clusters"),
        ({"unit_mib": 20000}, "unit of 20000 MiB: no card holds one; allowed here are units of up to 14912"),
        ({"profile": "8xh200", "unit_mib": 1}, "allowed here are units of "),
        ({"http": "{taken}"}, "Address already in use"),
    ],
)
def test_a_daemon_that_cannot_start(run, folder, taken, changes, said):
    filled = {
        name: value.format(folder=folder, taken=taken) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    status, out, err = run(*node_arguments(folder, **filled))
    assert (status, out) == (2, "")
    assert ONE_LINE.match(err), err
    assert said in err


def test_all_faults_at_once(run, folder):
    status, _, err = run(*node_arguments(folder, gpus="amd", http="here", log_level="loud"))
    assert status == 2
    assert all(said in err for said in ("--gpus 'amd'", "--http 'here'", "--log-level 'loud'"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kubeconfig": "{folder}/rubbish"}, "/rubbish cannot be used: "),
        ({"http": "{taken}"}, "Address already in use"),
        ({"shortlist": -1}, "--shortlist -1; allowed: 0 (all) to 100000"),
        ({"tls-cert-file": "{folder}/rubbish", "tls-key-file": "{folder}/rubbish"}, "cannot be used: "),
    ],
)
def test_an_extender_that_cannot_start(run, folder, taken, options, said):
    options = {"kubeconfig": "{folder}/kubeconfig", "http": "127.0.0.1:0", **options}
    arguments = [
        f"--{name}={str(value).format(folder=folder, taken=taken)}" for name, value in options.items()
    ]
    status, out, err = run("scheduler", *arguments)
    assert (status, out) == (2, "")
    assert ONE_LINE.match(err), err
    assert said in err


@pytest.mark.parametrize("command", ["node", "scheduler", "top"])
def test_a_kubeconfig_that_cannot_be_used(run, folder, command):
    config = json.loads((folder / "kubeconfig").read_text())
    config["users"] = [{"name": "x", "user": {"token": "a\nb"}}]
    (folder / "kubeconfig").write_text(json.dumps(config))
    arguments = {
        "node": node_arguments(folder),
        "scheduler": ["scheduler", f"--kubeconfig={folder}/kubeconfig", "--http=127.0.0.1:0"],
        "top": ["top", f"--kubeconfig={folder}/kubeconfig"],
    }[command]
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert ONE_LINE.match(err), err
    assert f"{folder}/kubeconfig: the token has a line break " in err


@pytest.mark.parametrize("command", ["node", "scheduler", "top"])
def test_no_kubeconfig_anywhere(run, folder, monkeypatch, command):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    arguments = {
        "node": node_arguments(folder, kubeconfig=None),
        "scheduler": ["scheduler", "--http=127.0.0.1:0"],
        "top": ["top"],
    }[command]
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert (
        err == "gpupack: kubeconfig ~/.kube/config is not a file; name one with --kubeconfig or $KUBECONFIG\n"
    )


@pytest.mark.parametrize("command", ["node", "scheduler"])
def test_what_the_rules_refuse_while_a_daemon_runs_is_one_line(run, folder, mocker, command):
    arguments = {
        "node": node_arguments(folder),
        "scheduler": ["scheduler", f"--kubeconfig={folder}/kubeconfig", "--http=127.0.0.1:0"],
    }[command]
    module = {"node": "deviceplugin.app", "scheduler": "scheduler_plugin.app"}[command]
    mocker.patch(f"{module}.KubeClient.connect", side_effect=PackingError("revision 5; allowed: 4"))
    assert run(*arguments) == (1, "", "gpupack: revision 5; allowed: 4\n")


@pytest.mark.parametrize("option", ["--node-policy", "--card-policy"])
def test_a_demo_of_an_unknown_policy(run, option):
    status, out, err = run("demo", option, "best")
    assert (status, out) == (2, "")
    assert ONE_LINE.match(err), err
    assert "best" in err
    assert "allowed:" in err


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gpupack", "node"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "gpupack node: missing option '--node-name'; see gpupack node --help\n"


def test_strict_says_that_nothing_is_written(run, folder):
    """In a pipe to kubectl apply an empty output would look like success."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    manifest = folder / "quota.json"
    manifest.write_text(json.dumps({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}))
    status, out, err = run("migrate", "-f", manifest, "--strict")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("gpupack migrate: nothing is written: ")


def test_a_full_disk_is_said_in_a_line():
    """As where a report is written to one: `gpupack usage ... > report.csv`."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpupack", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "gpupack: No space left on device\n")
