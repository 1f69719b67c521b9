"""`gpupack dashboard` as people call it: a file, mistakes, Ctrl-C."""

import asyncio
import io
import json
import signal
import sys

import aiohttp
import msgspec
import pytest

from allocator.names import NODE_SERVES, SERVES_CLAIMS
from benchmarks.dashboard import shown
from benchmarks.fleet import Fleet
from gpupack.cli.app import main
from gpupack.dashboard.app import serve_file
from gpupack.dashboard.records import NodeTile
from gpupack.dashboard.settings import Settings
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.whatif.objects import load_objects
from tests.cluster_builders import claim_object, node_object
from tests.running import served


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def command(tmp_path):
    async def call(*arguments, stdin=b"", end=True):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpupack", "dashboard", *map(str, arguments),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        if not end:
            process.stdin.write(stdin)
            process.stdin.close()
            return process
        out, err = await process.communicate(stdin)
        return process.returncode, out.decode(), err.decode()

    return call


async def test_a_file_is_shown_until_ctrl_c(command, session):
    text = json.dumps({"kind": "List", "items": Fleet(12).items()}).encode()
    process = await command("-f", "-", "--port", 0, stdin=text, end=False)
    line = (await process.stdout.readline()).decode()
    assert line.startswith("gpupack dashboard: http://127.0.0.1:")
    async with session.get(f"{line.split()[2]}api/state") as answer:
        state = await answer.json()
    assert state["about"] == {"source": "standard input", "version": state["about"]["version"], "live": False}
    assert len(state["nodes"]) == 12
    assert len(state["pending"]["pods"]) == 3
    assert state["fits"]
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
    assert await process.stderr.read() == b""


@pytest.mark.parametrize(
    ("claims", "problems"),
    [([claim_object("c", (0, 10), pods=["x"])], []), ([], [CLAIMS_NOT_READ])],
    ids=["read", "not-read"],
)
async def test_a_file_is_shown_with_what_claims_have(session, claims, problems):
    serves, held = {NODE_SERVES: SERVES_CLAIMS}, {"uid-c": {0: 10}}
    node = node_object(
        "n", (16, 16), (10, 0), extra=serves, allocatable_units=0, holds=["uid-x"], claims=held
    )
    items = [node | {"kind": "Node"}, *claims]
    found = load_objects(json.dumps({"kind": "List", "items": items}).encode())
    async with (
        served(serve_file, Settings(http="127.0.0.1:0"), found, "a file") as (url,),
        session.get(f"{url}api/state") as answer,
    ):
        state = await answer.json()
    (tile,) = msgspec.convert(state["nodes"], list[NodeTile])
    assert [card.free for card in tile.cards] == [6, 16]
    assert state["problems"] == problems


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (
            ("-f", "-"),
            b"",
            "the input is empty; allowed: the output of `kubectl get nodes,pods -A -o json`",
        ),
        (
            ("-f", "-"),
            b'{"items": [{"kind": "Service", "metadata": {"name": "x"}}]}',
            'the input holds a "Service"',
        ),
        (("-f", "/nowhere"), b"", "/nowhere: No such file or directory"),
        (("-f", "/dev/null"), b"", "/dev/null: the input is empty; allowed:"),
        (("-f", "-", "--context", "x"), b"", "--context is for a cluster: leave it out with --filename"),
        (("--http", "nowhere"), b"", "--http 'nowhere'; allowed: HOST:PORT"),
        (("--http", "x:1", "--port", "2"), b"", "--http: allowed without --port only"),
        (("-n", "Not A Name"), b"", "namespace 'Not A Name'; allowed:"),
        (("--queue-url", "ftp://x"), b"", "--queue-url 'ftp://x'; allowed: http://HOST[:PORT]"),
        (("--queue-url", "http://h:99999"), b"", "--queue-url 'http://h:99999'; allowed: http://HOST[:PORT]"),
        (("--kubeconfig", "/nowhere"), b"", "kubeconfig '/nowhere': no such file"),
        (("--teams-http", "nowhere"), b"", "--teams-http 'nowhere'; allowed: HOST:PORT"),
        (("--teams-http", ":1", "-n", "team"), b"", "--teams-http with --namespace; allowed: one of the two"),
        (
            ("--teams-http", ":1", "--teams-tls-cert-file", __file__),
            b"",
            "--teams-tls-cert-file and --teams-tls-key-file; allowed: both or none",
        ),
        (
            ("--teams-http", ":1", "--teams-tls-cert-file", __file__, "--teams-tls-key-file", "/nowhere"),
            b"",
            "--teams-tls-key-file '/nowhere': no such file",
        ),
        (("-f", "-", "--teams-http", ":1"), b"{}", "--teams-http is for a cluster"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_said_in_one_line(monkeypatch, capsys, arguments, stdin, said):
    monkeypatch.setattr(sys, "argv", ["gpupack", "dashboard", *arguments, "--no-browser"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


async def test_a_port_that_is_in_use_is_named(command):
    async with shown(Fleet(1)) as (_, url):
        port = url.rstrip("/").rpartition(":")[2]
        text = json.dumps({"items": Fleet(1).items()}).encode()
        status, _, err = await command("-f", "-", "--port", port, stdin=text)
    assert status == 2
    assert f"--http '127.0.0.1:{port}': " in err
    assert "in use" in err
