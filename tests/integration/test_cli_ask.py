"""why, fit, advise, snapshot and simulate --cluster as people call them: a cluster, a file, files written."""

import asyncio
import csv
import json
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner

from gpupack.cli.app import cli
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.simulation import make_scenarios
from gpupack.whatif.snapshot import NODE_HEADER, POD_HEADER, make_snapshot
from scheduler_plugin.simulator.trace import CARD_UNITS_COLUMN, GPU_UNITS_COLUMN
from standins.apiserver.server import ApiServer
from tests.ask_world import EXAMPLE, World
from tests.cluster_builders import container, node_object, pod_object
from tests.yaml_text import read_yaml

LONG_NAME = "https://accounts.example.com#" + 300 * "a"
STATUS = {
    "queues": [],
    "pods": [
        {
            "namespace": "team-a",
            "name": "gated",
            "queue": "research",
            "position": 3,
            "reason": "Quota",
            "message": "queue research has 40 of 40 units",
            "waitsS": 60.0,
        },
        {
            "namespace": "team-a",
            "name": "batch",
            "queue": "research",
            "position": 4,
            "reason": "Quota",
            "message": "queue research has 40 of 40 units",
            "waitsS": 50.0,
        },
    ],
}


@pytest.fixture
def run():
    """Run a command in this process; returns its exit status, stdout and stderr."""

    def command(*arguments):
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return command


@pytest.fixture
def cluster_file(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(EXAMPLE.text)
    return path


async def served(look, tmp_path, refused=()):
    """Serve the example by an API server, with an Event and a queue; `look` runs in a thread."""
    # Without the tainted node; and the stand-in gives pods UIDs of its own, which no words hold yet.
    pods = tuple(replace(pod, held=False) for pod in EXAMPLE.pods)
    async with ApiServer() as api:
        for item in json.loads(World(EXAMPLE.nodes[:3], pods).text)["items"]:
            if item["kind"] == "Node":
                meta, amounts = item["metadata"], item["status"]["allocatable"]
                api.add_node(meta["name"], meta["labels"], amounts, meta["annotations"])
            else:
                pod = {**item, "status": {}}
                del pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
                api.add_pod(pod)
        for name, waits in (
            ("gated", {"schedulingGates": [{"name": "gpupack.io/queue"}]}),
            ("batch", {"schedulerName": "gpupack-batch"}),
        ):
            queued = json.loads(EXAMPLE.text)["items"][-1]
            queued["metadata"] |= {"name": name}
            queued["spec"] |= waits
            del queued["metadata"]["uid"], queued["metadata"]["resourceVersion"], queued["status"]
            api.add_pod(queued)

        async def intercept(request):
            if request.path in refused:
                kind = request.path.rpartition("/")[2]
                message = f'{request.path} is forbidden: User "{LONG_NAME}" cannot list resource "{kind}"'
                said = {"reason": "Forbidden", "message": message, "details": {"kind": kind}}
                return web.json_response({"kind": "Status", "code": 403, **said}, status=403)
            if request.path.endswith("/proxy/status"):
                return web.json_response(STATUS)
            return None

        api.http.intercept = intercept
        return await asyncio.to_thread(look, api.kubeconfig(tmp_path / "kubeconfig"))


def test_a_cluster_is_asked(run, tmp_path):
    def look(config):
        return [
            run(*arguments, "--kubeconfig", config)
            for arguments in (
                ("why", "-n", "team-a", "inference", "-o", "json"),
                ("why", "-n", "team-a", "gated"),
                ("why", "-n", "team-a", "batch"),
                ("fit", "8", "-o", "json"),
                ("advise", "--for", "39x2", "-o", "json"),
                ("why", "nobody"),
            )
        ]

    why, gated, batch, fit, advise, nobody = asyncio.run(served(look, tmp_path))

    answer = json.loads(why[1])
    assert (answer["state"], answer["nodes"][0]["reason"]) == ("pending", "NotFree")
    assert "position 3 of queue research: queue research has 40 of 40 units" in gated[1]
    assert "position 4 of queue research: queue research has 40 of 40 units" in batch[1]
    assert json.loads(fit[1])["pods"] > 0
    assert json.loads(advise[1])["notes"] == []  # budgets were read
    assert nobody[0] == 2
    assert 'the cluster has no pod "nobody" in namespace "default"' in nobody[2]


def test_without_the_right_to_list_it_says_so_and_what_to_add(run, tmp_path):
    def look(config):
        return run("fit", "8", "--kubeconfig", config)

    status, out, err = asyncio.run(served(look, tmp_path, refused={"/api/v1/pods"}))

    assert (status, out) == (1, "")
    refused, missing, *more = err.splitlines()
    assert "/api/v1/pods is forbidden" in refused
    assert "namespace default has no ServiceAccount gpupack-member" in missing
    assert all(line.startswith("gpupack: ") for line in more)


@pytest.mark.parametrize("command", [("top",), ("advise", "--for=4")])
def test_who_may_not_list_nodes_is_told_what_members_can_ask(run, tmp_path, command):
    """Whatever the API server's words: a long user name leaves no room for them."""

    def look(config):
        return run(*command, "--kubeconfig", config), run("fit", "8", "--kubeconfig", config)

    named, fit = asyncio.run(served(look, tmp_path, refused={"/api/v1/nodes"}))

    assert (named[0], fit[0]) == (1, 1)
    forbidden, hint = named[2].splitlines()
    assert "/api/v1/nodes is forbidden" in forbidden
    assert "cannot list" not in forbidden
    assert hint.endswith("answer members of a namespace without that right: docs/teams.md")
    lines = fit[2].splitlines()
    assert lines[0] == forbidden
    assert "namespace default has no ServiceAccount gpupack-member" in lines[1]
    assert lines[-1].endswith("kubectl -n default describe pod POD")


def test_without_the_right_to_read_events_and_budgets_the_rest_is_answered(run, tmp_path):
    def look(config):
        return (
            run("why", "-n", "team-a", "inference", "--kubeconfig", config),
            run("advise", "--for", "39x2", "--kubeconfig", config),
        )

    refused = {"/api/v1/namespaces/team-a/events", "/apis/policy/v1/poddisruptionbudgets"}
    why, advise = asyncio.run(served(look, tmp_path, refused))

    assert why[0] == 0
    assert advise[0] == 0
    assert "PodDisruptionBudgets were not read" in advise[1]


def test_a_snapshot_has_the_cards_and_the_pods(run, cluster_file, tmp_path):
    status, out, _ = run("snapshot", "-f", cluster_file, "--out", tmp_path / "out")

    assert status == 0
    assert "4 nodes" in out
    nodes, pods = (
        list(csv.DictReader((tmp_path / "out" / f"{name}.csv").read_text().splitlines()))
        for name in ("nodes", "pods")
    )
    assert [(node["sn"], node["gpu"], node["card_units"]) for node in nodes] == [
        ("gpu-a", "2", "39"),
        ("gpu-b", "2", "39"),
        ("gpu-c", "2", "44"),
        ("gpu-d", "2", "39"),
    ]
    by_name = {pod["name"]: pod for pod in pods}
    assert len(pods) == 7
    waiting = by_name["team-a/inference"]
    assert (waiting["num_gpu"], waiting["gpu_units"], waiting["gpu_spec"]) == (
        "1",
        "32",
        "NVIDIA A100-SXM4-40GB",
    )


def test_a_snapshot_hides_names(run, cluster_file, tmp_path):
    run("snapshot", "-f", cluster_file, "--out", tmp_path / "out", "--hash")

    text = "".join((tmp_path / "out" / f"{name}.csv").read_text() for name in ("nodes", "pods"))
    for name in ("gpu-a", "team-a", "inference", "embed"):
        assert name not in text
    assert "NVIDIA L40S" in text


def test_a_snapshot_in_other_units_rounds_cards_down_and_requests_up():
    taken = make_snapshot(Cluster.from_json(EXAMPLE.text), unit_mib=4096)

    assert {row[0]: row[NODE_HEADER.index(CARD_UNITS_COLUMN)] for row in taken.nodes} == {
        "gpu-a": 9,
        "gpu-b": 9,
        "gpu-c": 11,
        "gpu-d": 9,
    }
    units = POD_HEADER.index(GPU_UNITS_COLUMN)
    assert {row[0]: row[units] for row in taken.pods}["team-a/chat-1"] == 3


def test_further_resources_are_written_and_simulated_where_they_are_named(run, tmp_path):
    """What pods without GPU use of them is not there for others."""
    disk = "ephemeral-storage"
    plain = {"name": "main", "resources": {"requests": {disk: "70Gi"}}}
    items = [
        {**node_object("n", (16,), resources={disk: "100Gi"}, allocatable_units=16), "kind": "Node"},
        {**pod_object("fills", containers=[plain], node="n", phase="Running"), "kind": "Pod"},
        *(
            {**pod_object(f"p{at}", containers=[container(resources={disk: "20Gi"})]), "kind": "Pod"}
            for at in range(2)
        ),
    ]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    run("snapshot", "-f", file, "--out", tmp_path, "--resource", disk)
    read = {name: (tmp_path / f"{name}.csv").read_text().splitlines() for name in ("nodes", "pods")}
    tables = {name: list(csv.DictReader(lines)) for name, lines in read.items()}
    assert [row[disk] for row in tables["nodes"]] == [str(30 << 30)]
    assert [row[disk] for row in tables["pods"]] == [str(20 << 30)] * 2
    for parameters, started in (((), 2), (("--policy-parameter", f"balanced.resources={disk}"), 1)):
        _, out, _ = run("simulate", "-f", file, "--policy", "balanced", "--jobs", "1", *parameters)
        assert f"balanced: {started} of your 2 pods start on empty cards" in out
    status, _, told = run("snapshot", "-f", file, "--out", tmp_path, "--resource", "disk")
    assert (status, 'resources names "disk"; allowed:' in told) == (2, True)


def test_policies_run_on_the_cluster_as_it_is_and_changed(run, cluster_file, tmp_path):
    status, out, _ = run(
        *("simulate", "-f", cluster_file, "--policy", "best-fit", "--jobs", "1", "--inflation", "1"),
        *("--add", "2xt4x2", "--json", tmp_path / "out.json", "--plot", tmp_path / "plots"),
    )

    assert status == 0
    assert "Your pods, cluster as it is:" in out
    assert "best-fit: 7 of your 7 pods start on empty cards" in out
    told = json.loads((tmp_path / "out.json").read_text())
    assert list(told) == ["as it is", "with 2xt4x2"]
    assert set(told["as it is"]["mean"]) == {"best-fit"}
    changed = make_scenarios(Cluster.from_json(EXAMPLE.text), ["gpu-a"], [], 2048)
    assert [each.label for each in changed] == ["as it is", "without gpu-a", "with units of 2 GiB"]
    assert (tmp_path / "plots" / "with-2xt4x2" / "allocation.png").stat().st_size > 0


def test_faults_of_the_queues_are_told_before_anything_else(run, tmp_path):
    cluster = json.loads(EXAMPLE.text)
    for pod in (each for each in cluster["items"] if each["kind"] == "Pod"):
        pod["metadata"].setdefault("labels", {})["gpupack.io/queue-name"] = "a"
    file, queues = tmp_path / "cluster.json", tmp_path / "queues.yaml"
    file.write_text(json.dumps(cluster))
    queues.write_text("queues: [{name: b}]")

    status, out, told = run("simulate", "-f", file, "--replay", "--queues", queues)

    assert (status, out) == (2, "")
    assert "queue 'a' of the pod list is not configured; allowed: b" in told


def test_the_namespace_is_that_of_the_context(run, tmp_path):
    def look(config):
        told = read_yaml(Path(config).read_text())
        told["contexts"][0]["context"]["namespace"] = "team-a"
        Path(config).write_text(yaml.safe_dump(told))
        return run("why", "inference", "--kubeconfig", config)

    status, out, _ = asyncio.run(served(look, tmp_path))

    assert status == 0
    assert out.startswith("Pod team-a/inference")


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (404, 'services "gpupack-queue" not found', "no queue here: the Service gpupack-queue in namespace"),
        (
            503,
            "no endpoints available for service",
            "is the queue installed (docs/queue.md), and a pod of it Ready? (GET /api",
        ),
    ],
)
def test_where_no_queue_runs_it_says_so(run, tmp_path, status, message, said):
    """What the API server says of its proxy means nothing to who has installed no queue."""

    async def asked():
        async def intercept(_request):
            body = {"kind": "Status", "code": status, "message": message}
            return web.json_response(body, status=status)

        async with ApiServer() as api:
            api.http.intercept = intercept
            config = api.kubeconfig(tmp_path / "kubeconfig")
            return await asyncio.to_thread(run, "queue", "status", "--kubeconfig", config)

    code, out, err = asyncio.run(asked())
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert said in err


async def test_why_of_all_that_wait_asks_the_queue_once(run, tmp_path):
    def look(kubeconfig):
        status, out, _ = run("why", "--kubeconfig", kubeconfig, "-o", "json")
        assert status == 0
        lines = {line["pod"]: line for line in json.loads(out)["pods"]}
        for queued in ("gated", "batch"):
            assert lines[queued]["reason"] == "Quota"
            assert lines[queued]["text"] == "queue research has 40 of 40 units"
        assert lines["inference"]["reason"] == "NotFree"
        assert lines["gated"]["age_s"] >= 0

    await served(look, tmp_path)


def test_why_of_a_workload(run, cluster_file):
    status, out, err = run("why", "-f", cluster_file, "-n", "team-b", "rs/app")
    assert (status, err) == (0, "")
    assert "team-b/embed-1" in out
    status, _, err = run("why", "-f", cluster_file, "deploy/none")
    assert status == 2
    assert err.startswith('gpupack: the file has no pod of Deployment/none in namespace "default"; if it is ')


GROUPS = {
    "metadata": {},
    "items": [
        {
            "metadata": {"name": "g", "namespace": "default"},
            "spec": {"minMember": 3, "schedulingPolicy": {"gang": {"minCount": 3}}},
        }
    ],
}
FORBIDDEN = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no right"}
ALONE = '  - PodGroups cannot be read (Forbidden): how many pods of gang "g" start together is not known'


GANG_STARTS = "its gang starts together, and 2 of its 3 pods fit at once now"


@pytest.mark.parametrize("of_kubernetes", [False, True], ids=["coscheduling", "kubernetes"])
@pytest.mark.parametrize(
    ("status", "answer", "says", "note"),
    [
        (200, GROUPS, GANG_STARTS, False),
        (403, FORBIDDEN, "kube-scheduler will try it again", True),
        (
            404,
            {"kind": "Status", "code": 404, "reason": "NotFound"},
            "kube-scheduler will try it again",
            False,
        ),
    ],
)
async def test_why_reads_the_size_of_a_gang_from_its_pod_group(
    run, tmp_path, of_kubernetes, status, answer, says, note
):
    """Pods of the group are there, each fits by itself, and the group has three."""
    api_of_groups = "scheduling.k8s.io/v1beta1" if of_kubernetes else "scheduling.x-k8s.io/v1alpha1"
    if of_kubernetes and status == HTTPStatus.NOT_FOUND:
        says = 'there is no PodGroup "g"'

    async def intercept(request):
        served = request.path == f"/apis/{api_of_groups}/podgroups"
        if status == HTTPStatus.OK and request.path == "/apis/scheduling.k8s.io/v1/podgroups":
            # A version that fails hides none that can be read.
            return web.json_response(FORBIDDEN, status=403)
        return web.json_response(answer, status=status) if served else None

    async with ApiServer() as api:
        made = node_object("n1", (16, 16), (0, 0), version=1, allocatable_units=32)
        meta, amounts = made["metadata"], made["status"]["allocatable"]
        api.add_node(meta["name"], meta.get("labels", {}), amounts, meta["annotations"])
        for name in ("g0", "g1", "g2") if of_kubernetes else ("g0", "g1"):
            pod = pod_object(name, containers=[container("main", 12)])
            if of_kubernetes:
                pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
            else:
                pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
            pod["spec"]["schedulerName"] = "gpupack-scheduler"
            del pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
            api.add_pod({**pod, "status": {}})
        api.http.intercept = intercept
        config = api.kubeconfig(tmp_path / "kubeconfig")
        ended, out, err = await asyncio.to_thread(run, "why", "g0", "--kubeconfig", config)
    assert (ended, err) == (0, "")
    assert says in out
    assert (ALONE in out.splitlines()) == note
