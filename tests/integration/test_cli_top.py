"""`gpupack top` as people and scripts call it: files, pipes, a cluster, rubbish."""

import asyncio
import copy
import json

import pytest
from aiohttp import web

from allocator.names import NODE_SERVES, SERVES_CLAIMS
from gpupack.inventory.objects import CLAIMS_NOT_READ
from standins.apiserver.server import ApiServer
from tests.integration.top_world import CLUSTER, CONFIG, RECORDS, run
from tests.kubectl_nodes import node

__all__ = ["run"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(CLUSTER))
    return path


@pytest.mark.parametrize("option", ["-f", "--filename"])
def test_json_of_a_file(run, file, option):
    status, out, err = run(option, file, "-o", "json")
    assert (status, err) == (0, "")
    records = json.loads(out)
    assert records[2]["error"].startswith(RECORDS[2]["error"])
    records[2]["error"] = RECORDS[2]["error"]
    assert records == RECORDS


def test_a_pipe_says_the_same_as_the_file(run, file):
    assert run("-f", "-", "-o", "json", stdin=file.read_bytes()) == run("-f", file, "-o", "json")


def test_tables(run, file):
    status, out, err = run("-f", file)
    assert (status, err) == (0, "")
    _, *lines, sums = out.splitlines()
    assert sums == "gpupack.io/gpu-memory-gib: 22/72 in use, whole cards free: 1, largest free card: 36"
    assert [line.split()[0] for line in lines] == ["gpu-0", "gpu-1", "odd"]
    assert "\x1b" not in out
    assert "GPU-a" not in out
    status, out, _ = run("-f", file, "-o", "wide")
    assert (status, "GPU-a" in out) == (0, True)


@pytest.mark.parametrize("through", ["file", "pipe"])
def test_rubbish(run, tmp_path, through):
    path, content = tmp_path / "rubbish", b"\xff\xfe\x00"
    path.write_bytes(content)
    status, out, err = run("-f", path) if through == "file" else run("-f", "-", stdin=content)
    assert (status, out) == (2, "")
    place = f"{path}: " if through == "file" else ""
    assert err.startswith(f"gpupack: {place}the input is not JSON")
    assert err.endswith("allowed: the output of `kubectl get nodes -o json`\n")
    assert err.count("\n") == 1


def test_files_that_cannot_be_read(run, tmp_path):
    missing = tmp_path / "missing"
    assert run("-f", missing) == (2, "", f"gpupack: {missing}: No such file or directory\n")
    assert run("-f", tmp_path) == (2, "", f"gpupack: {tmp_path}: Is a directory\n")


def test_who_may_not_list_claims_is_told_that_they_do_not_count(run, tmp_path):
    async def ask(look):
        async with ApiServer() as api:
            for name, kind in (("plain", {}), ("claims", {NODE_SERVES: SERVES_CLAIMS})):
                made = node(name, [14], [2])
                api.add_node(name, None, made["status"]["capacity"], kind)

            async def refuse(request):
                if not request.path.endswith("/resourceclaims"):
                    return None
                return web.json_response(
                    {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, status=403
                )

            api.http.intercept = refuse
            config = api.kubeconfig(tmp_path / "kubeconfig")
            return await asyncio.to_thread(look, config)

    def look(config):
        asked = ("--kubeconfig", config, "--pods")
        return run(*asked), run(*asked, "-o", "json"), run(*asked, "plain")

    table, as_json, plain = asyncio.run(ask(look))
    assert table[0] == 0
    assert table[1].splitlines()[-1] == CLAIMS_NOT_READ
    assert as_json[::2] == (0, f"{CLAIMS_NOT_READ}\n")
    assert [record["node"] for record in json.loads(as_json[1])] == ["claims", "plain"]
    assert CLAIMS_NOT_READ not in plain[1]


def test_a_cluster_that_does_not_answer(run, tmp_path):
    """Nothing wrong with the command line: status 1, so that a script can try again."""
    never_started = ApiServer()
    config = never_started.kubeconfig(tmp_path / "kubeconfig")
    status, out, err = run("--kubeconfig", config)
    assert (status, out) == (1, "")
    assert err.startswith("gpupack: GET /api/v1/nodes: http://127.0.0.1:0: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--watch", "--context=c", "--kubeconfig=k"])
def test_options_for_a_cluster_do_not_go_with_a_file(run, file, option):
    name = option.partition("=")[0]
    status, out, err = run("-f", file, option)
    assert (status, out) == (2, "")
    assert err.startswith(f"gpupack top: {name} is for a cluster: leave it out with --filename")


def test_named_nodes_of_a_file(run, file):
    status, out, _ = run("-f", file, "gpu-1", "cpu-0")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["cpu-0", "gpu-1"]
    assert run("-f", file, "x") == (2, "", 'gpupack: no node has the name "x"\n')


POD = {
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
    "spec": {
        "nodeName": "gpu-0",
        "containers": [{"name": "c", "resources": {"limits": {"gpupack.io/gpu-memory-gib": "4"}}}],
    },
}


def test_pods_of_a_file(run):
    text = json.dumps({"items": [*CLUSTER["items"], POD]}).encode()
    status, out, _ = run("-f", "-", "--pods", stdin=text)
    assert status == 0
    assert "gpu-0  -     -           -      ns         p    4      unknown  -         -" in out.splitlines()


def test_what_is_asked_of_a_cluster(run, tmp_path, monkeypatch):
    """Nodes by name, pods, and a context of two files merged."""

    async def ask(look):
        async with ApiServer() as api:
            for item in CLUSTER["items"]:
                meta = item["metadata"]
                api.add_node(meta["name"], None, item["status"]["capacity"], meta["annotations"])
            api.add_pod(copy.deepcopy(POD))
            (tmp_path / "first").write_text(
                CONFIG.format(name="one", server="http://127.0.0.1:9", current="one")
            )
            (tmp_path / "second").write_text(CONFIG.format(name="two", server=api.url, current="two"))
            return await asyncio.to_thread(look)

    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'first'}:{tmp_path / 'none'}:{tmp_path / 'second'}")

    def look():
        return (
            run("--context", "two", "gpu-1", "--pods", "-o", "json"),
            run("--context", "two", "gpu-0", "--pods", "-o", "json"),
            run("--context", "two", "x"),
            run("--context", "two", ""),
            run("--context", "three"),
            run("-o", "json"),
        )

    one, other, missing, unnamed, unknown, first = asyncio.run(ask(look))
    assert [(record["node"], record["pods"]) for record in json.loads(one[1])] == [("gpu-1", [])]
    ((_, pods),) = [(record["node"], record["pods"]) for record in json.loads(other[1])]
    assert [(pod["namespace"], pod["name"], pod["units"], pod["share"]) for pod in pods] == [
        ("ns", "p", 4, "unknown")
    ]
    assert missing == (2, "", 'gpupack: no node has the name "x"\n')
    assert unnamed == (2, "", 'gpupack: no node has the name ""\n')
    assert unknown[0] == 2
    assert unknown[2].startswith("gpupack: context 'three'; allowed: 'one', 'two', of kubeconfig ")
    # Without --context the first file that names one decides, as with kubectl.
    assert first[0] == 1
    assert "http://127.0.0.1:9: " in first[2]
