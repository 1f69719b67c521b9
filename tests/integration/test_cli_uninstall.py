"""`gpupack uninstall` on the API server stand-in: what goes, what is kept back, what is said."""

import asyncio
import json

import pytest
from aiohttp import ClientSession, web
from click.testing import CliRunner

from allocator.names import NODE_SERVES, SERVES_CLAIMS
from gpupack.cli.app import cli
from gpupack.component_removal import ComponentRemover
from kubeapi.client import KubeClient
from standins.apiserver.server import ApiServer
from tests.cluster_builders import claim_object

SAID = "gpupack uninstall:"
GIB = "gpupack.io/gpu-memory-gib"
WORDS = {
    "gpupack.io/packed-layout": 1073750129,
    "gpupack.io/packed-size-0": 79,
    "gpupack.io/packed-used-0": 8,
    "gpupack.io/packed-revision": 1_763_000_000_000,
    "gpupack.io/gpu-compute-percent": 800,
}
ANNOTATIONS = {f"gpupack.io/{name}": "x" for name in ("cards", "cordon", "daemon", "holds")} | {"team": "a"}
LABELS = {"gpupack.io/node": "true", "zone": "a"}
CLEAN = [
    (
        "node n1: removed resources gpupack.io/gpu-compute-percent, gpupack.io/gpu-memory-gib, "
        "gpupack.io/packed-layout, gpupack.io/packed-revision, gpupack.io/packed-size-0, "
        "gpupack.io/packed-used-0; annotations gpupack.io/cards, gpupack.io/cordon, "
        "gpupack.io/daemon, gpupack.io/holds; labels gpupack.io/node"
    )
]


@pytest.fixture
async def api():
    async with ApiServer(seed=7) as api:
        yield api


@pytest.fixture
def uninstall(api, tmp_path):
    """Run the command beside the API server; returns its exit status, lines on stdout, and on stderr."""
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")

    async def run(*arguments):
        command = ["uninstall", f"--kubeconfig={kubeconfig}", *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, cli, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout.splitlines(), done.stderr.splitlines()

    return run


def forbidden(said):
    return web.json_response(
        {"kind": "Status", "code": 403, "reason": "Forbidden", "message": said}, status=403
    )


def add_node(api, name="n1", units=0):
    api.add_node(name, LABELS, {**WORDS, GIB: units, "cpu": 8}, ANNOTATIONS)


def add_pod(api, name, node="", limits=None, **more):
    spec = {"containers": [{"name": "c", "resources": {"limits": limits or {}}}]} | more.get("spec", {})
    pod = {"metadata": {"name": name, "namespace": "team", **more.get("metadata", {})}, "spec": spec}
    api.add_pod(pod)
    if node:
        api.bind_pod("team", name, node, {})


def add_daemon(api, name="gpupack-node"):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": "u", "controller": True}
    labels = {"app.kubernetes.io/name": name}
    add_pod(api, "daemon", "n1", metadata={"labels": labels, "ownerReferences": [owner]})


async def test_everything_of_ours_goes_and_nothing_else(api, uninstall):
    add_node(api)
    api.add_node("cpu-only", {"zone": "b"})
    before = api.node("cpu-only")
    assert await uninstall() == (0, CLEAN, [])
    node = api.node("n1")
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8"}
    assert (node["metadata"]["annotations"], node["metadata"]["labels"]) == ({"team": "a"}, {"zone": "a"})
    assert api.node("cpu-only") == before
    # The list, and no more than there are Nodes of ours: clusters have thousands.
    assert (api.http.requests["GET", "nodes", ""], api.http.requests["PATCH", "nodes", "status"]) == (2, 1)
    assert await uninstall() == (0, ["Nothing of gpupack is on any node."], [])


async def test_a_dry_run_says_the_same_and_changes_nothing(api, uninstall):
    add_node(api)
    before = api.node("n1")
    assert await uninstall("--dry-run") == (0, [CLEAN[0].replace("removed", "would remove")], [])
    assert api.node("n1") == before


async def test_pods_keep_their_node_back_and_are_named(api, uninstall):
    add_node(api, "n1")
    add_node(api, "n2")
    add_pod(api, "holds", "n2", {GIB: 8})
    add_pod(api, "percent", "n2", {"gpupack.io/gpu-percent": 50})
    add_pod(api, "other", "n1", {"nvidia.com/gpu": 1})
    add_pod(api, "waits", limits={GIB: 8})
    add_pod(api, "gated", limits={GIB: 8}, spec={"schedulingGates": [{"name": "gpupack.io/queue"}]})
    add_pod(api, "requeued", limits={GIB: 8}, metadata={"annotations": {"gpupack.io/requeued": "true"}})
    status, out, err = await uninstall()
    assert (status, out) == (
        1,
        [*CLEAN, "node n2 stays as it is: 2 pods there hold GPU memory: team/holds, team/percent"],
    )
    assert err == [
        f"{SAID} 2 pods hold GPU memory: team/holds, team/percent",
        f"{SAID} 1 pod waits for GPU memory and will not start without gpupack: team/waits",
        (
            f"{SAID} 2 pods wait behind the gate gpupack.io/queue or the annotation gpupack.io/requeued, "
            "which only gpupack queue and gpupack uninstall --component queue take away: "
            "team/gated, team/requeued"
        ),
    ]
    assert "gpupack.io/holds" in api.node("n2")["metadata"]["annotations"]
    assert (await uninstall("--force"))[:2] == (0, [CLEAN[0].replace("n1", "n2")])
    assert set(api.node("n2")["status"]["capacity"]) == {"cpu"}


async def test_pods_with_claims_of_our_cards_keep_their_node_back(api, uninstall):
    add_node(api)
    add_pod(api, "claims", "n1")
    claim = claim_object("c", (0, 8)) | {"metadata": {"name": "c"}}
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": "claims", "uid": api.pod("team", "claims")["metadata"]["uid"]}
    ]
    path = f"{api.url}/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
    async with ClientSession() as session:
        (await session.post(path, json=claim)).raise_for_status()
        (await session.put(f"{path}/c/status", json=claim)).raise_for_status()
    code, lines, _ = await uninstall()
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("node n1 stays as it is")
    assert "team/claims" in lines[0]


async def test_pods_that_wait_for_claims_of_our_class_are_named(api, uninstall):
    add_node(api)
    claims = [{"name": "card", "resourceClaimName": "ours"}, {"name": "net", "resourceClaimName": "other"}]
    add_pod(api, "waits", spec={"resourceClaims": claims[:1]})
    add_pod(api, "elsewhere", spec={"resourceClaims": claims[1:]})
    path = f"{api.url}/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
    async with ClientSession() as session:
        for name, of_class in (("ours", "gpupack"), ("other", "net.example.com")):
            requests = [{"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": of_class}]}]
            claim = claim_object(name) | {
                "metadata": {"name": name},
                "spec": {"devices": {"requests": requests}},
            }
            (await session.post(path, json=claim)).raise_for_status()
    status, out, err = await uninstall()
    assert (status, out) == (0, CLEAN)
    assert err == [f"{SAID} 1 pod waits for GPU memory and will not start without gpupack: team/waits"]


async def test_where_claims_cannot_be_listed_a_node_that_serves_them_is_kept_back(api, uninstall):
    add_node(api, "n1")
    api.add_node("n2", LABELS, {**WORDS, "cpu": 8}, {**ANNOTATIONS, NODE_SERVES: SERVES_CLAIMS})

    async def intercept(request):
        if not request.path.endswith("/resourceclaims"):
            return None
        return forbidden("resourceclaims is forbidden")

    api.http.intercept = intercept
    status, out, _ = await uninstall()
    assert (status, out[0]) == (1, CLEAN[0])
    assert out[1] == (
        "node n2 stays as it is: its pods may hold GPU memory by claims, and there is no right to list "
        "resourceclaims"
    )
    status, out, _ = await uninstall("--force")
    assert (status, len(out)) == (0, 1)
    assert "removed" in out[0]


async def test_pods_that_have_ended_keep_nothing_back(api, uninstall):
    add_node(api)
    add_pod(api, "done", "n1", {GIB: 8})
    api.patch_pod("team", "done", {"status": {"phase": "Succeeded"}})
    assert await uninstall() == (0, CLEAN, [])


async def test_a_daemon_that_runs_would_write_again(api, uninstall):
    add_node(api)
    add_daemon(api)
    for force in ((), ("--force",)):
        status, out, _ = await uninstall(*force)
        assert (status, out) == (
            1,
            ["node n1 stays as it is: its daemon runs and would write again: pod team/daemon"],
        )
    assert "gpupack.io/packed-layout" in api.node("n1")["status"]["capacity"]


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["alone", "forced"])
async def test_a_users_pod_with_the_label_of_a_daemon_keeps_no_node(api, uninstall, force):
    add_node(api)
    add_pod(api, "d", "n1", metadata={"labels": {"app.kubernetes.io/name": "gpupack-node"}})
    assert await uninstall(*force) == (0, CLEAN, [])


async def test_a_resource_that_the_kubelet_may_write_again_is_said(api, uninstall):
    add_node(api, units=79)
    status, out, err = await uninstall()
    assert (status, out) == (0, CLEAN)
    (said,) = err
    assert "until five minutes after the daemon's end" in said


async def test_only_the_nodes_that_are_named(api, uninstall):
    add_node(api, "n1")
    add_node(api, "n2")
    assert await uninstall("n1") == (0, CLEAN, [])
    assert await uninstall("n1") == (0, ["Nothing of gpupack is on these nodes."], [])
    assert "gpupack.io/packed-layout" in api.node("n2")["status"]["capacity"]
    status, _, err = await uninstall("n1", "n3")
    assert (status, err) == (2, ["gpupack: no Node is named n3; allowed: names of the cluster's nodes"])


async def test_a_node_that_changes_meanwhile_is_read_again(api, uninstall):
    add_node(api)
    conflicts = 0

    async def intercept(request):
        nonlocal conflicts
        if request.method == "PATCH" and conflicts < 2:
            conflicts += 1
            api.patch_node("n1", {"metadata": {"annotations": {"gpupack.io/new": str(conflicts)}}})

    api.http.intercept = intercept
    status, out, _ = await uninstall()
    assert (status, conflicts) == (0, 2)
    assert "gpupack.io/new" in out[0]
    assert api.node("n1")["metadata"]["annotations"] == {"team": "a"}


@pytest.mark.parametrize("answer", ["<html>", "[" * 100_000])
async def test_an_answer_that_is_no_node_is_one_line(api, uninstall, answer):
    add_node(api)

    async def intercept(request):
        return web.Response(text=answer) if request.path.endswith("/nodes/n1") else None

    api.http.intercept = intercept
    status, out, (said,) = await uninstall()
    assert (status, out) == (1, [])
    assert "a Node that cannot be read" in said


async def test_an_api_server_that_is_away_is_one_line(api, uninstall):
    add_node(api)
    await api.away(True)
    status, out, err = await uninstall()
    assert (status, out, len(err)) == (1, [], 1)
    assert json.dumps(err).count("Traceback") == 0


async def test_a_right_that_is_missing_is_said_and_what_was_done_before_stays_done(api, uninstall):
    add_node(api, "n1")
    add_node(api, "n2")

    async def intercept(request):
        if request.method != "PATCH" or "/n2/" not in request.path:
            return None
        return forbidden('nodes "n2" is forbidden: User "x" cannot patch resource "nodes/status"')

    api.http.intercept = intercept
    status, out, err = await uninstall()
    assert (status, out) == (1, CLEAN)
    (said,) = err
    assert 'cannot patch resource "nodes/status"' in said
    assert "gpupack.io/holds" in api.node("n2")["metadata"]["annotations"]


async def test_what_gpupack_autoscale_left_goes_and_what_people_set_for_autoscalers_stays(api, uninstall):
    disabled, disrupt = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"
    labels = {"gpupack.io/host": "n1", "team": "a"}
    api.add_node("n1", labels, {"cpu": 8}, {"gpupack.io/kept": disrupt, disrupt: "true", disabled: "true"})
    startup = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpupack", "effect": "NoSchedule"}
    own = {"key": "gpupack.io/batch", "value": "true", "effect": "NoSchedule"}
    api.patch_node("n1", {"spec": {"taints": [startup, own, {"key": "team", "effect": "NoSchedule"}]}})
    spec = {"schedulerName": "gpupack-placeholder"}
    add_pod(api, "asks", spec=spec, metadata={"labels": {"gpupack.io/placeholder": "true"}})
    add_pod(api, "labelled", metadata={"labels": {"gpupack.io/placeholder": "true"}})
    add_pod(api, "named", spec=spec)
    before = api.objects("pods"), api.node("n1")

    said = [
        "pod team/asks: would remove it, a placeholder",
        (
            f"node n1: would remove annotations gpupack.io/kept, {disrupt}; labels gpupack.io/host; "
            f"taints {startup['key']}, {own['key']}"
        ),
    ]
    assert (await uninstall("--dry-run"))[1] == said
    assert (api.objects("pods"), api.node("n1")) == before

    status, lines, _ = await uninstall()
    assert (status, lines) == (0, [line.replace("would remove", "removed") for line in said])
    node = api.node("n1")
    assert node["metadata"]["annotations"] == {disabled: "true"}
    assert node["metadata"]["labels"] == {"team": "a"}
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["team"]
    assert [pod["metadata"]["name"] for pod in api.objects("pods")] == ["labelled", "named"]
    assert (await uninstall())[1] == ["Nothing of gpupack is on any node."]


GATE = "gpupack.io/queue"


async def test_without_the_queue_pods_wait_no_more_and_those_of_batch_mode_are_named(api, uninstall):
    add_pod(api, "gated", spec={"schedulingGates": [{"name": GATE}, {"name": "example.com/other"}]})
    add_pod(api, "requeued", metadata={"annotations": {"gpupack.io/requeued": "true", "team": "a"}})
    add_pod(api, "batch", spec={"schedulerName": "gpupack-batch"})
    add_pod(
        api,
        "bound",
        "n1",
        spec={"schedulerName": "gpupack-batch"},
        metadata={"annotations": {"gpupack.io/requeued": "true"}},
    )
    add_pod(api, "other", spec={"schedulingGates": [{"name": "example.com/other"}]})
    before = api.objects("pods")
    left = "only gpupack-batch binds it; delete it, and its controller makes another"
    waits = "removed what made it wait in its queue"
    lines = [
        f"pod team/gated: {waits}",
        f"pod team/requeued: {waits}",
        f"pod team/batch stays as it is: {left}",
    ]
    done = await uninstall("--component=queue", "--dry-run")
    assert done == (1, [line.replace("removed", "would remove") for line in lines], [])
    assert api.objects("pods") == before
    assert await uninstall("--component=queue") == (1, lines, [])
    gates = {pod["metadata"]["name"]: pod["spec"].get("schedulingGates", []) for pod in api.objects("pods")}
    other = [{"name": "example.com/other"}]
    assert gates == {"gated": other, "requeued": [], "batch": [], "bound": [], "other": other}
    assert api.pod("team", "requeued")["metadata"]["annotations"] == {"team": "a"}
    api.delete_pod("team", "batch")
    assert await uninstall("--component=queue") == (0, ["Nothing is left of queue."], [])


async def test_a_pod_of_the_queue_that_was_made_anew_meanwhile_is_not_let_go(api, uninstall):
    gated = {"schedulingGates": [{"name": GATE}]}
    add_pod(api, "gated", spec=gated)

    async def intercept(request):
        if request.method == "PATCH" and not intercepted:
            intercepted.append(request.path)
            api.delete_pod("team", "gated")
            add_pod(api, "gated", spec=gated)

    intercepted: list[str] = []
    api.http.intercept = intercept
    assert await uninstall("--component=queue") == (
        1,
        ["pod team/gated stays as it is: another pod has its name meanwhile; run the command again"],
        [],
    )
    assert api.pod("team", "gated")["spec"]["schedulingGates"] == [{"name": GATE}]
    assert (await uninstall("--component=queue"))[0] == 0
    assert "schedulingGates" not in api.pod("team", "gated")["spec"]


async def test_a_placeholder_that_somebody_bound_holds_cards_like_any_pod(api, uninstall):
    add_node(api, "n1")
    spec = {"schedulerName": "gpupack-placeholder"}
    add_pod(api, "bound", "n1", {GIB: 8}, spec=spec, metadata={"labels": {"gpupack.io/placeholder": "true"}})
    status, out, _ = await uninstall()
    assert (status, len(out)) == (1, 1)
    assert "1 pod there holds GPU memory: team/bound" in out[0]


async def test_without_autoscale_nodes_keep_what_is_not_its_own(api, uninstall):
    kept = "karpenter.sh/do-not-disrupt"
    marks = {"gpupack.io/kept": kept, kept: "true"}
    api.add_node("n1", LABELS | {"gpupack.io/host": "n1"}, WORDS, ANNOTATIONS | marks)
    add_node(api, "n2")
    add_pod(api, "runs", "n1", {GIB: 8})
    placeholder = {"labels": {"gpupack.io/placeholder": "true"}}
    add_pod(api, "asks", spec={"schedulerName": "gpupack-placeholder"}, metadata=placeholder)
    before = api.node("n2")
    assert await uninstall("--component=autoscale") == (
        0,
        [
            "pod team/asks: removed it, a placeholder",
            f"node n1: removed annotations gpupack.io/kept, {kept}; labels gpupack.io/host",
        ],
        [],
    )
    node = api.node("n1")
    assert (node["metadata"]["annotations"], node["metadata"]["labels"]) == (ANNOTATIONS, LABELS)
    assert node["status"]["capacity"].keys() == WORDS.keys()
    assert api.node("n2") == before
    assert [pod["metadata"]["name"] for pod in api.objects("pods")] == ["runs"]


@pytest.mark.parametrize(("component", "daemon"), [("dra", "gpupack-node-dra"), ("mps", "gpupack-mps")])
async def test_a_component_that_running_pods_need_stays(api, uninstall, component, daemon):
    for node in ("n1", "n2"):
        add_node(api, node)
        add_pod(api, f"holds-{node}", node, {GIB: 8})
    add_daemon(api, daemon)
    why = f"1 pod on nodes of {daemon} holds GPU memory: team/holds-n1"
    assert await uninstall(f"--component={component}") == (
        1,
        [f"component {component} stays as it is: {why}"],
        [],
    )
    assert (await uninstall(f"--component={component}", "--force"))[0] == 0
    api.patch_pod("team", "holds-n1", {"status": {"phase": "Succeeded"}})
    assert (await uninstall(f"--component={component}"))[0] == 0


async def test_without_the_right_to_list_claims_who_serves_them_stays(api, uninstall):
    add_daemon(api, "gpupack-node-dra")

    async def intercept(request):
        return forbidden("no") if request.path.endswith("/resourceclaims") else None

    api.http.intercept = intercept
    status, (said,), _ = await uninstall("--component=dra")
    assert (status, "no right to list resourceclaims" in said) == (1, True)


class Deployment:
    """A Deployment of the queue whose pods take some looks to end, and the role that they need."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.requests: list[str] = []

    async def intercept(self, request: web.Request) -> web.Response | None:
        if "deployments" not in request.path and "clusterroles" not in request.path:
            return None
        if request.path.endswith(("/deployments", "/clusterroles")):
            assert request.query["labelSelector"] == (
                "app.kubernetes.io/part-of=gpupack,app.kubernetes.io/component in (queue,queue-batch)"
            )
            where = {"namespace": "own"} if request.path.endswith("/deployments") else {}
            return web.json_response({"items": [{"metadata": {"name": "gpupack-queue", **where}}]})
        self.requests.append(f"{request.method} {request.path.rpartition('/v1/')[2]}")
        if request.method == "GET":
            self.looks -= 1
            if self.looks < 0 or "clusterroles" in request.path:
                return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return web.json_response({})


DEPLOYMENT = "namespaces/own/deployments/gpupack-queue"
REMOVED = ["deployments own/gpupack-queue: removed it", "clusterroles gpupack-queue: removed it"]


async def test_a_workload_keeps_its_rights_until_it_has_ended(api, uninstall):
    deployment = Deployment(looks=1)
    api.http.intercept = deployment.intercept
    assert await uninstall("--component=queue") == (0, REMOVED, [])
    assert deployment.requests == [
        f"DELETE {DEPLOYMENT}",
        f"GET {DEPLOYMENT}",
        f"GET {DEPLOYMENT}",
        "DELETE clusterroles/gpupack-queue",
        "GET clusterroles/gpupack-queue",
    ]


async def test_an_api_server_in_trouble_is_asked_again_whether_a_workload_has_ended(api, uninstall):
    deployment = Deployment(looks=1)

    async def intercept(request):
        answer = await deployment.intercept(request)
        if request.method == "GET" and deployment.looks == 0:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        return answer

    api.http.intercept = intercept
    assert await uninstall("--component=queue") == (0, REMOVED, [])
    assert deployment.requests.count(f"GET {DEPLOYMENT}") == 2


async def test_a_workload_that_does_not_end_is_not_waited_for_for_ever(api, tmp_path):
    deployment, now = Deployment(looks=1000), 0.0
    api.http.intercept = deployment.intercept

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async with await KubeClient.connect(api.kubeconfig(tmp_path / "kubeconfig")) as client:
        remover = ComponentRemover(client, clock=lambda: now, sleep=sleep)
        done = [outcome async for outcome in remover.remove(["queue"])]
    assert [outcome.what for outcome in done] == [
        "deployments own/gpupack-queue",
        "the rest of queue, queue-batch",
    ]
    assert "has not ended in 120 s" in done[1].why
    assert now == 120
    assert not any("clusterroles" in request for request in deployment.requests)


async def test_a_dry_run_without_a_component_asks_and_deletes_nothing(api, uninstall):
    deployment = Deployment(looks=1)
    api.http.intercept = deployment.intercept
    said = [line.replace("removed", "would remove") for line in REMOVED]
    assert await uninstall("--component=queue", "--dry-run") == (0, said, [])
    assert deployment.requests == []


async def test_what_is_no_component_and_a_node_beside_one_are_refused(uninstall):
    status, _, err = await uninstall("--component=node")
    assert (status, "'node' is not one of 'autoscale'" in err[-1]) == (2, True)
    status, _, err = await uninstall("--component=queue", "n1")
    assert (status, err[-1]) == (
        2,
        "Error: NODE with --component: a component is taken out of the whole cluster",
    )
