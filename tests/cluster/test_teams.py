"""A member of one namespace asks on the real API server: what passes its proxy, who may ask, what is told."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpupack.teams import AUDIENCE, DENIED, MEMBER, TOKEN_HEADER
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NAMESPACE as SYSTEM
from tests.cluster.harness.cluster import account
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Dashboard, run_gpupack
from tests.cluster.harness.joining import make_certificate
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_all, build
from tests.cluster.harness.rest import ApiError

SERVICE = "gpupack-dashboard"
SERVICES = f"/api/v1/namespaces/{SYSTEM}/services"
TEAM, OTHER = "team-a", "team-b"
USER = "alice"
"""A ServiceAccount that stands for a person of the team: it has no right but those of docs/teams.md."""


def host_address() -> str:
    """An address of this machine that is no loopback, which no Endpoints may have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.254", 9))
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """Two cards; the team has one pod that runs and one that waits, beside a pod of another team."""
    cluster: Cluster = make_cluster(w.cards(16384, 16384))
    for namespace in (TEAM, OTHER):
        cluster.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        cluster.wait_account(namespace=namespace)
    for namespace, name, gib in ((TEAM, "mine", 8), (OTHER, "secret-train", 6), (TEAM, "waits", 20)):
        path, policy = f"/api/v1/namespaces/{namespace}/pods", {"gpupack.io/card-policy": "most-used"}
        pod = w.pod(name, w.container(gib=gib), namespace=namespace, annotations=policy)
        cluster.api.post(path, pod)
        if gib < 20:
            running = partial(cluster.api.names, path, fieldSelector="status.phase=Running")
            until(running, f"{name} runs")
    cluster.wait_used([0, 14])
    for name in (USER, MEMBER):
        cluster.api.post(f"/api/v1/namespaces/{TEAM}/serviceaccounts", {"metadata": {"name": name}})
    install(cluster)
    return cluster


def install(cluster: Cluster) -> None:
    """Apply what is needed beside the dashboard's own pods, and give the team its rights."""
    objects = [
        one
        for one in build(MANIFESTS / "base", COMPONENTS / "dashboard", COMPONENTS / "dashboard-teams")
        if one["kind"] == "Namespace"
        or (one["metadata"]["name"].startswith((SERVICE, "gpupack-member", "gpupack-ask")))
    ]
    for one in objects:
        if one["kind"] == "Service":
            del one["spec"]["selector"]
    apply_all(cluster.api, [one for one in objects if one["kind"] != "Deployment"])
    user, member = account(USER, TEAM), account(MEMBER, TEAM)
    cluster.grant_role("ClusterRole", "gpupack-member", TEAM, user)
    cluster.grant_role("ClusterRole", "gpupack-member-account", TEAM, member)
    cluster.grant_role("Role", "gpupack-ask", SYSTEM, user)


def publish_endpoint(cluster: Cluster, address: str, port: int) -> None:
    """Lead the Service to a process of this machine: the proxy goes only where a Pod has the address."""
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    try:
        cluster.api.get(f"{pods}/{SERVICE}")
    except ApiError:
        cluster.wait_account(namespace=SYSTEM)
        container = {"name": "main", "image": "none"}
        cluster.api.post(pods, w.pod(SERVICE, container, namespace=SYSTEM, schedulerName="nobody"))
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    cluster.api.merge(f"{pods}/{SERVICE}/status", {"status": status})
    target = {"kind": "Pod", "namespace": SYSTEM, "name": SERVICE}
    cluster.api.apply(
        f"/api/v1/namespaces/{SYSTEM}/endpoints/{SERVICE}",
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": SERVICE},
            "subsets": [
                {
                    "addresses": [{"ip": address, "targetRef": target}],
                    "ports": [{"name": "teams", "port": port}],
                }
            ],
        },
    )


@pytest.fixture(scope="module", params=["https", pytest.param("http", marks=pytest.mark.nightly)])
def dashboard(request: Any, cluster: Cluster) -> Iterator[Dashboard]:
    """The dashboard with the rights that its manifests give it, behind the Service of its manifests."""
    page, teams = free_ports(2)
    address = host_address()
    publish_endpoint(cluster, address, teams)
    extra = [f"--teams-http={address}:{teams}"]
    if request.param == "https":
        certificate = make_certificate(cluster)
        extra += [
            f"--teams-tls-cert-file={certificate}",
            f"--teams-tls-key-file={certificate.with_suffix('.key')}",
        ]
    kubeconfig = cluster.use_account(SERVICE)
    started = Dashboard(kubeconfig, cluster.home, page, *extra)
    try:
        started.start()
        until(lambda: ask(cluster, started, "", TEAM)[0] == 403, "the proxy leads to the dashboard")
        yield started
    finally:
        started.kill()


def gpupack(cluster: Cluster, *arguments: str, account: str = USER) -> tuple[int, str, str]:
    kubeconfig = cluster.use_account(account, TEAM)
    done = run_gpupack(kubeconfig, *arguments)
    return done.returncode, done.stdout, done.stderr


def ask(
    cluster: Cluster, dashboard: Dashboard, token: str, namespace: str, header: str = TOKEN_HEADER
) -> tuple[int, str]:
    """Ask through the API server as the administrator, who may do everything there."""
    prefix = "https:" if dashboard.teams_tls else ""
    return _get(cluster, prefix, {header: token} if token else {}, f"?namespace={namespace}")


def _get(cluster: Cluster, prefix: str, headers: dict[str, str], query: str = "") -> tuple[int, str]:
    path = f"{SERVICES}/{prefix}{SERVICE}:teams/proxy/why{query}"
    answer = cluster.api.send("GET", path, headers=headers)
    return answer.status, answer.data.decode()


def make_token(cluster: Cluster, account: str, *audiences: str) -> str:
    body = {"spec": {"audiences": list(audiences), "expirationSeconds": 600}}
    made = cluster.api.post(f"/api/v1/namespaces/{TEAM}/serviceaccounts/{account}/token", body)
    return str(made["status"]["token"])


def test_a_member_is_answered_and_names_of_others_are_not_told(
    cluster: Cluster, dashboard: Dashboard
) -> None:
    status, out, err = gpupack(cluster, "why", "-n", TEAM, "waits")
    assert status == 0, err
    assert out.startswith(f"Pod {TEAM}/waits, which asks for 20 GiB, waits")
    assert "Events:" in out  # which the member reads with their own rights
    assert (
        err == f"gpupack: you may not list nodes: answered by gpupack in the cluster, for namespace {TEAM}\n"
    )

    status, out, err = gpupack(cluster, "why", "-n", TEAM, "mine", "-o", "json")
    assert status == 0, err
    (card,) = json.loads(out)["cards"]
    assert card["promised_units"] == 8
    assert [(each["pod"], each["units"]) for each in card["neighbours"]] == [
        ("a pod of another namespace", 6)
    ]

    status, out, err = gpupack(cluster, "why", "-n", TEAM, "-o", "json")
    assert status == 0, err
    assert [line["pod"] for line in json.loads(out)["pods"]] == ["waits"]

    status, out, err = gpupack(cluster, "fit", "2", "-n", TEAM, "-o", "json")
    assert status == 0, err
    assert json.loads(out)["pods"] == 9
    assert dashboard.alive


def test_a_member_has_the_dashboard_of_the_namespace(cluster: Cluster, dashboard: Dashboard) -> None:
    """Beside the member, with the member's rights: own pods, and a sum of the others."""
    (page,) = free_ports(1)
    kubeconfig = cluster.use_account(USER, TEAM)
    folder = cluster.home / f"member-{page}"
    folder.mkdir()
    mine = Dashboard(kubeconfig, folder, page, f"--namespace={TEAM}")
    mine.start()
    try:
        state = mine.http("/api/state")
        (node,) = json.loads(state)["nodes"]
        detail = mine.http(f"/api/node?name={node['name']}")
        why = json.loads(mine.http(f"/api/why?namespace={TEAM}&pod=waits"))
    finally:
        mine.stop()
    assert sorted(card[2] for card in node["cards"]) == [0, 14]
    assert [pod["name"] for pod in json.loads(state)["pending"]["pods"]] == ["waits"]
    pods = [(pod["name"], pod["units"]) for card in json.loads(detail)["cards"] for pod in card["pods"]]
    assert pods == [("mine", 8), ("a pod of another namespace", 6)]
    assert why["text"].startswith("waits: 0 of 1 nodes")
    assert "secret" not in state + detail
    assert dashboard.alive


def test_a_pod_elsewhere_is_as_one_that_is_not(cluster: Cluster, dashboard: Dashboard) -> None:
    del dashboard
    said = {
        name: gpupack(cluster, "why", "-n", TEAM, name)[::2] for name in ("secret-train", "secret-nothing")
    }
    assert said["secret-train"] == (2, f'gpupack: no pod "secret-train" in namespace "{TEAM}"\n')
    assert said["secret-nothing"] == (2, f'gpupack: no pod "secret-nothing" in namespace "{TEAM}"\n')


def test_another_namespace_is_denied(cluster: Cluster, dashboard: Dashboard) -> None:
    """The API server gives no token for it; and a token of the team's own is not enough."""
    status, out, err = gpupack(cluster, "why", "-n", OTHER)
    assert (status, out) == (1, "")
    assert "is forbidden" in err
    assert f"nor may you make tokens for ServiceAccount {MEMBER} in namespace {OTHER}" in err
    token = make_token(cluster, MEMBER, AUDIENCE)
    assert ask(cluster, dashboard, token, TEAM)[0] == 200
    answers = {
        "another team's": ask(cluster, dashboard, token, OTHER),
        "no such namespace": ask(cluster, dashboard, token, "nowhere"),
        "no token": ask(cluster, dashboard, "", TEAM),
        "rubbish": ask(cluster, dashboard, "rubbish", TEAM),
        "the API server's audience": ask(cluster, dashboard, cluster.token(TEAM, MEMBER), TEAM),
        "another audience": ask(cluster, dashboard, make_token(cluster, MEMBER, "elsewhere"), TEAM),
        "no right to list pods": ask(cluster, dashboard, make_token(cluster, "default", AUDIENCE), TEAM),
        # What the client sends as its own never arrives.
        "in Authorization": ask(cluster, dashboard, f"Bearer {token}", TEAM, "Authorization"),
    }
    assert {json.loads(body)["message"] for status, body in answers.values() if status == 403} == {DENIED}
    refused = {name: status for name, (status, _) in answers.items()}
    assert refused.pop("in Authorization") in {401, 403}
    assert set(refused.values()) == {403}, refused


def test_the_token_is_of_no_use_elsewhere_and_stands_in_no_log(
    cluster: Cluster, dashboard: Dashboard
) -> None:
    token = make_token(cluster, MEMBER, AUDIENCE)
    with pytest.raises(ApiError) as refused:
        cluster.api.as_user(token).get(f"/api/v1/namespaces/{TEAM}/pods")
    assert refused.value.status == 401
    assert ask(cluster, dashboard, token, TEAM)[0] == 200
    assert ask(cluster, dashboard, token[:-4], TEAM)[0] == 403
    log = Path(dashboard.log).read_text()
    assert token[:40] not in log
    assert token[-40:-4] not in log


def test_the_account_of_members_makes_no_tokens(cluster: Cluster, dashboard: Dashboard) -> None:
    """Only the team does: the account needs what the dashboard asks about, the right to list pods."""
    del dashboard
    account = cluster.as_account(MEMBER, TEAM)
    account.get(f"/api/v1/namespaces/{TEAM}/pods")
    token = f"/api/v1/namespaces/{TEAM}/serviceaccounts/{MEMBER}/token"
    spec = {"spec": {"audiences": [AUDIENCE], "expirationSeconds": 600}}
    for user, status in ((account, 403), (cluster.as_account(USER, TEAM), None)):
        refused = None
        try:
            user.post(token, spec)
        except ApiError as error:
            refused = error.status
        assert refused == status
    for what in ("pods/mine", "events"):
        with pytest.raises(ApiError) as denied:
            account.get(f"/api/v1/namespaces/{TEAM}/{what}")
        assert denied.value.status == 403


def test_where_nobody_answers_it_says_what_to_do(cluster: Cluster, dashboard: Dashboard) -> None:
    dashboard.stop()
    status, out, err = gpupack(cluster, "fit", "2", "-n", TEAM)
    assert (status, out) == (1, "")
    assert err.startswith(f"gpupack: you may not list nodes, and the Service {SERVICE} in namespace {SYSTEM}")
    assert "docs/teams.md" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [["top"], ["advise", "--for=4"]])
def test_what_only_who_may_list_nodes_can_ask_names_the_page(cluster: Cluster, command: list[str]) -> None:
    status, out, err = gpupack(cluster, *command)
    assert (status, out) == (1, "")
    forbidden, members = err.splitlines()
    assert 'cannot list resource "nodes"' in forbidden
    assert members == (
        "gpupack: `why`, `fit` and `dashboard` answer members of a namespace"
        " without that right: docs/teams.md"
    )


def test_the_proxy_takes_authorization_away_and_passes_our_header(cluster: Cluster) -> None:
    """Which is why the token has a header of its own."""
    seen: list[dict[str, str]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer((host_address(), 0), Listener)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        publish_endpoint(cluster, host_address(), server.server_port)
        # Until the API server has seen the change, its proxy goes where it went before.
        until(lambda: _get(cluster, "", {TOKEN_HEADER: "mine"})[0] == 200, "the proxy leads here")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    headers = seen[0]
    assert "Authorization" not in headers
    assert headers["X-Gpupack-Token"] == "mine"
