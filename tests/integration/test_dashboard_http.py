"""The dashboard over HTTP: its stream, its rules for browsers, and what it shows of a cluster in trouble."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from benchmarks.dashboard import fill, node, shown
from benchmarks.fleet import Fleet
from gpupack.dashboard.app import serve_cluster
from gpupack.dashboard.page_hub import MAX_PAGES
from gpupack.dashboard.settings import Settings
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, node_object
from tests.http_server import serving
from tests.running import served


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
async def api(tmp_path):
    async with ApiServer() as server:
        server.config = server.kubeconfig(tmp_path / "kubeconfig")
        yield server


@asynccontextmanager
async def following(api, **options):
    settings = Settings(kubeconfig=api.config, http="127.0.0.1:0", **options)
    async with served(serve_cluster, settings) as (url,):
        yield url


async def messages(answer):
    """Read the events of a stream: name and value."""
    name = None
    buffer = b""
    async for chunk in answer.content.iter_any():
        buffer += chunk
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            if line.startswith(b"event: "):
                name = line[7:].decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


async def until(stream, condition):
    async with asyncio.timeout(60):
        async for name, message in stream:
            if condition(message):
                return name, message
    raise AssertionError("the stream ended")


async def test_everything_comes_first_and_then_only_what_changes(api, session):
    fleet = Fleet(6, uniform=True)
    fill(api, fleet)
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        assert answer.content_type == "text/event-stream"
        stream = messages(answer)
        _, first = await until(stream, lambda message: len(message.get("nodes", ())) == 6)
        assert {each["name"] for each in first["nodes"]} == {each.name for each in fleet.nodes}
        changed = fleet.nodes[3]
        pod = fleet.place(changed, 8)
        (card,) = changed.pods[pod]
        fleet.uids[pod] = api.add_pod(fleet.pod_object(pod, 8, changed))["metadata"]["uid"]
        value = fleet.node_object(changed)
        amounts = value["status"]["capacity"]
        api.patch_node(changed.name, {"metadata": {"annotations": value["metadata"]["annotations"]}})
        api.patch_node(changed.name, {"status": {"capacity": amounts, "allocatable": amounts}})
        size = changed.sizes[card]
        promised = changed.promised(card)

        def says_it(message):
            return any(
                each["cards"][card][:6] == [card, size, promised, 0, 0, size - promised]
                for each in message.get("nodes", ())
            )

        name, news = await until(stream, says_it)
        assert name == "news"
        assert [each["name"] for each in news["nodes"]] == [changed.name]

        async with session.get(f"{url}api/node", params={"name": changed.name}) as detail:
            pods = (await detail.json())["cards"][card]["pods"]
        assert {"namespace": fleet.team(pod), "name": pod, "units": 8}.items() <= next(
            each for each in pods if each["name"] == pod
        ).items()

        api.delete_node(fleet.nodes[0].name)
        _, news = await until(stream, lambda message: message.get("gone"))
        assert news["gone"] == [fleet.nodes[0].name]


async def test_a_page_that_is_open_before_the_first_daemon_takes_its_unit_up(api, session):
    cards = node_object("a", [128, 128], unit_mib=512, allocatable_units=256)
    metadata, amounts = cards["metadata"], cards["status"]["allocatable"]
    api.add_node("a")
    api.add_pod({"metadata": {"name": "early"}, "spec": {"containers": [container(units=8)]}})
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        stream = messages(answer)
        await until(stream, lambda message: message.get("pending", {}).get("pods"))  # in GiB, so far
        api.patch_node("a", {"metadata": {"annotations": metadata["annotations"]}})
        api.patch_node("a", {"status": {"capacity": amounts, "allocatable": amounts}})
        _, news = await until(stream, lambda message: message.get("fits"))
        assert {each["unit"] for each in news["fits"]} == {512}
        assert max(each["units"] for each in news["fits"]) == 128


async def test_why_and_what_fits_are_those_of_the_commands(api, session):
    fleet = Fleet(4, uniform=True)
    fill(api, fleet)
    for pod in fleet.pending_objects():
        api.add_pod(pod)
    async with following(api) as url:
        async with session.get(f"{url}api/events") as answer:
            stream = messages(answer)
            _, news = await until(stream, lambda message: message.get("pending", {}).get("pods"))
            waits = {each["name"]: each for each in news["pending"]["pods"]}
            assert sorted(waits) == ["train-90001", "train-90002", "train-90003"]
            assert waits["train-90001"]["nodes"] == [
                "4 nodes: the largest healthy card has 79 GiB, asked 80 GiB"
            ]
        async with session.get(f"{url}api/state") as answer:
            fits = {each["units"]: each for each in (await answer.json())["fits"]}
        for units, found in fits.items():
            by_hand = [sum(each.free(card) // units for card in range(8)) for each in fleet.nodes]
            if units >= 8:  # kube-scheduler admits 110 pods to a node
                assert found["pods"] == sum(by_hand), units
        assert max(fits) == 79
        async with session.get(
            f"{url}api/why", params={"namespace": "speech", "pod": "train-90001"}
        ) as answer:
            assert "79 GiB" in (await answer.json())["ways_out"][0]["text"]
        async with session.get(f"{url}api/why", params={"pod": "nobody"}) as answer:
            assert answer.status == 404
            assert "no pod 'nobody'" in (await answer.text()).replace('\\"', "'")
        by_size = {units: fits[units]["pods"] for units in (8, 79)}
        for units, pods in by_size.items():
            async with session.get(f"{url}api/fit", params={"units": units}) as answer:
                assert (await answer.json())["pods"] == pods
        async with session.get(f"{url}api/fit", params={"units": 100, "cards": 2, "percent": 1}) as answer:
            assert (await answer.json())["asked"] == "2 x 50 percent"
        for wrong, said in (
            ({"units": "-1"}, "units '-1'; allowed: 1 to 131072"),
            ({"units": "1", "cards": "65"}, "cards '65'; allowed: 1 to 64"),
            (
                {"units": "3", "cards": "2"},
                "3 units on 2 cards; allowed: a multiple of the number of cards",
            ),
        ):
            async with session.get(f"{url}api/fit", params=wrong) as answer:
                assert (answer.status, (await answer.json())["error"].replace('"', "'")) == (400, said)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200), ("localhost:9", 200), ("LOCALHOST", 200), ("[::1]:80", 200),
        ("gpu.example.com", 200), ("10.1.2.3", 200), ("evil.example", 421), ("localhost.evil.example", 421),
        ("", 421), ("127.0.0.1.evil", 421),
    ],
)  # fmt: skip
async def test_names_that_may_stand_for_us_by_trickery_are_refused(session, host, status):
    async with shown(Fleet(1), allowed_hosts=("gpu.example.com",)) as (_, url):
        for path in ("", "api/state", "static/app.js", "api/events"):
            async with session.get(f"{url}{path}", headers={"Host": host}) as answer:
                assert answer.status == status, path


async def test_every_answer_carries_the_rules_for_browsers_and_no_address_is_absolute(session):
    async with shown(Fleet(1)) as (_, url):
        for path in (
            "",
            "static/app.js",
            "static/vendor/uPlot.min.css",
            "api/state",
            "api/node?name=x",
            "no",
            "api/events",
        ):
            async with session.get(f"{url}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert (
                    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in policy
                ), path
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                if path == "":
                    page = await answer.text()
        # Behind the API server's proxy the page does not lie at the root.
        assert 'src="/' not in page
        assert 'href="/' not in page
        async with session.get(f"{url}static/app.js") as answer:
            etag = answer.headers["ETag"]
        async with session.get(f"{url}static/app.js", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        for path in ("static/../app.py", "static/%2e%2e/app.py", "static/vendor", "static//etc/passwd"):
            async with session.get(f"{url}{path}") as answer:
                assert answer.status == 404
        async with session.post(f"{url}api/state") as answer:
            assert answer.status == 405


async def test_a_page_that_takes_nothing_costs_no_more_than_the_names_of_its_nodes(session):
    fleet = Fleet(30, uniform=True)
    async with shown(fleet) as (dashboard, url):
        reader, writer = await asyncio.open_connection(
            *url.removeprefix("http://").rstrip("/").split(":"), limit=1024
        )
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (page,) = dashboard.hub._pages
        for turn in range(600):
            each = fleet.nodes[turn % 30]
            card = turn // 30 % 8
            each.beyond = {}
            each.beyond = {card: min(each.free(card), 1 + turn % 3)}
            each.revision += 1
            dashboard.board.put_node(node(fleet.node_object(each)))
            dashboard.flush_changes()
            if turn % 100 == 0:
                await asyncio.sleep(0)
        assert len(page.nodes) <= 30
        async with session.get(f"{url}api/events") as answer:
            await until(messages(answer), lambda message: len(message["nodes"]) == 30)
        writer.close()


async def test_no_more_pages_than_allowed(session):
    async with shown(Fleet(1)) as (dashboard, url):
        pages = [dashboard.hub.open_page() for _ in range(MAX_PAGES)]
        for page in pages:
            page.__enter__()
        async with session.get(f"{url}api/events") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "30")
            assert await answer.text() == "64 pages are open; allowed: no more; close one\n"
        pages[0].__exit__(None, None, None)
        async with session.get(f"{url}api/events") as answer:
            assert answer.status == 200


async def test_without_the_right_to_pods_cards_are_shown_and_the_page_says_so(api, session):
    fleet = Fleet(2, uniform=True)
    fill(api, fleet)

    said = "pods is forbidden: not for you"

    async def forbid(request):
        if request.path.endswith("/pods"):
            body = {
                "kind": "Status",
                "code": 403,
                "reason": "Forbidden",
                "message": "pods is forbidden: not for you",
            }
            return web.json_response(body, status=403)
        return None

    api.http.intercept = forbid
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        _, message = await until(messages(answer), lambda message: message.get("problems"))
        (problem,) = message["problems"]
        loss = "Pods cannot be read, so cards are shown without their pods"
        assert problem == f"{loss}: GET /api/v1/pods: {said}"
        async with session.get(f"{url}readyz") as ready:
            assert ready.status == 200
        async with session.get(f"{url}api/state") as state:
            nodes = (await state.json())["nodes"]
        assert sum(card[2] for each in nodes for card in each["cards"]) == sum(
            each.promised(card) for each in fleet.nodes for card in range(8)
        )


@pytest.mark.parametrize(
    ("served", "metadata", "spec"),
    [
        ("scheduling.x-k8s.io/v1alpha1", {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, {}),
        ("scheduling.k8s.io/v1beta1", {}, {"schedulingGroup": {"podGroupName": "g"}}),
    ],
    ids=["coscheduling", "kubernetes"],
)
async def test_pod_groups_are_followed_once_a_pod_names_one(
    api, session, monkeypatch, served, metadata, spec
):
    monkeypatch.setattr("scheduler_plugin.cache.watcher.LOOK_S", 0.05)
    groups = {"metadata": {"resourceVersion": "1"}, "items": []}
    size = {"minMember": 2, "schedulingPolicy": {"gang": {"minCount": 2}}}
    groups["items"].append({"metadata": {"name": "g", "namespace": "default"}, "spec": size})
    allowed = False
    asked = []

    async def intercept(request):
        if not request.path.startswith(f"/apis/{served}/"):
            return None
        asked.append(request.path)
        if allowed:
            return web.json_response(groups)
        return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)

    api.http.intercept = intercept
    cards = node_object("a", [16, 16], allocatable_units=32)
    meta, amounts = cards["metadata"], cards["status"]["allocatable"]
    api.add_node("a", meta.get("labels", {}), amounts, meta["annotations"])
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        stream = messages(answer)
        await until(stream, lambda message: message.get("nodes"))
        assert not asked
        api.add_pod(
            {"metadata": {"name": "p", **metadata}, "spec": {"containers": [container(units=8)], **spec}}
        )
        _, message = await until(stream, lambda message: message.get("problems"))
        (problem,) = message["problems"]
        loss = "PodGroups cannot be read, so pods whose gangs' sizes they say are asked about one by one"
        assert problem == f"{loss}: Forbidden"
        allowed = True
        _, message = await until(
            stream,
            lambda message: (
                [pod["gang"] for pod in message.get("pending", {"pods": []})["pods"]] == ["g (2)"]
            ),
        )


async def test_half_a_cluster_corrupt_words_and_none_at_all(api, session):
    fleet = Fleet(2, uniform=True)
    fleet.nodes[1].corrupt = True
    fill(api, fleet)
    api.add_node("cpu-only")
    api.add_node("labelled", {"gpupack.io/node": "true"})
    async with following(api) as url:
        async with session.get(f"{url}api/events") as answer:
            await until(messages(answer), lambda message: len(message.get("nodes", ())) == 3)
        async with session.get(f"{url}api/state") as answer:
            remarks = {each["name"]: each["remark"] for each in (await answer.json())["nodes"]}
    assert remarks[fleet.nodes[0].name] == ""
    assert "gpupack.io/packed-revision is missing" in remarks[fleet.nodes[1].name]
    assert remarks["labelled"] == "publishes no words: no daemon has run here"


async def test_the_api_server_goes_and_comes_again(api, session):
    fill(api, Fleet(1, uniform=True))
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        stream = messages(answer)
        await until(stream, lambda message: message.get("nodes"))
        await api.away(True)
        api.drop_connections()
        _, message = await until(stream, lambda message: message.get("problems"))
        assert message["problems"][0].startswith(("Nodes are not up to date: ", "Pods are not up to date: "))
        await api.away(False)
        await until(stream, lambda message: message.get("problems") == [])


async def test_one_namespace_is_read_where_it_is_named(api, session):
    fleet = Fleet(2, uniform=True)
    fill(api, fleet)
    team = fleet.team(next(iter(fleet.nodes[0].pods)))
    async with following(api, namespace=team) as url, session.get(f"{url}api/events") as answer:
        stream = messages(answer)
        await until(stream, lambda message: len(message.get("nodes", ())) == 2)
        async with session.get(f"{url}api/node", params={"name": fleet.nodes[0].name}) as detail:
            cards = (await detail.json())["cards"]
        assert {pod["namespace"] for card in cards for pod in card["pods"]} <= {team, ""}
        async with session.get(f"{url}api/state") as state:
            assert f"Only pods of namespace {team} are read" in (await state.json())["problems"][0]


QUEUE_STATUS = {
    "mode": "gate",
    "queues": [
        {
            "name": "red", "cohort": "", "weight": 1.0, "nominal": 100, "used": 40, "borrowed": 0, "lent": 0,
            "running": 5, "waiting": 300, "oldestWaitS": 60.0, "stop": "None",
        }
    ],
    "pods": [
        {
            "namespace": "red", "name": f"p{number}", "queue": "red", "position": number + 1,
            "reason": "Quota", "message": "it needs 8 units", "waitsS": 60.0,
        }
        for number in range(300)
    ],
}  # fmt: skip


PROXY = "/api/v1/namespaces/gpupack-system/services/https:gpupack-dashboard:teams/proxy/"


async def test_who_may_not_list_nodes_is_shown_what_the_cluster_tells_members(api, session):
    page = {"nodes": [], "places": {"n1": ["p"]}, "pending": [], "more": 3, "fits": []}
    refusals = {"node": (422, "no node"), "why": (503, "away")}

    async def intercept(request):
        if request.path == "/api/v1/nodes":
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not for you"}
            return web.json_response(status, status=403)
        if request.path == "/api/v1/namespaces/team/serviceaccounts/gpupack-member/token":
            return web.json_response({"status": {"token": "t"}}, status=201)
        if request.path.startswith(PROXY):
            assert request.headers["X-Gpupack-Token"] == "t"
            assert request.query["namespace"] == "team"
            question = request.path.removeprefix(PROXY)
            if question in refusals:
                code, message = refusals[question]
                status = {"kind": "Status", "code": code, "message": f"GET {request.path}: {message}"}
                return web.json_response(status, status=code)
            return web.json_response(page)
        return None

    api.http.intercept = intercept
    async with following(api, namespace="team") as url, session.get(f"{url}api/events") as answer:
        _, message = await until(messages(answer), lambda message: message.get("pending", {}).get("more"))
        assert message["pending"] == {"pods": [], "more": 3}
        async with session.get(f"{url}readyz") as ready:
            assert ready.status == 200
        async with session.get(f"{url}api/find?pod=team/p") as found:
            assert await found.json() == {"nodes": ["n1"]}
        async with session.get(f"{url}api/node?name=n1") as node:
            assert (node.status, await node.json()) == (404, {"error": "no node"})
        async with session.get(f"{url}api/why?namespace=team&pod=p") as why:
            assert (why.status, "away" in (await why.json())["error"]) == (502, True)


async def test_who_is_no_member_either_is_told_what_cannot_be_read(api, session):
    async def intercept(request):
        if request.path == "/api/v1/nodes":
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not for you"}
            return web.json_response(status, status=403)
        return None

    api.http.intercept = intercept
    async with following(api) as url, session.get(f"{url}api/events") as answer:
        _, message = await until(messages(answer), lambda message: message.get("problems"))
        assert "Nodes cannot be read" in message["problems"][0]


async def test_the_queues_tenants_are_shown_and_what_is_no_queue_is_said(api, session):
    answers = [web.json_response(QUEUE_STATUS), web.Response(text="<html>"), web.Response(status=503)]

    async def status(request):
        assert request.path == "/status"
        return answers[0]

    said = []
    async with serving(status) as address:
        for url, expected in (
            (f"{address}/status/", {"there": True, "more": 100}),
            (address, {"there": False}),
            (address, {"there": False}),
            ("http://127.0.0.1:1", {"there": False}),
        ):
            async with following(api, queue_url=url) as page, session.get(f"{page}api/events") as answer:
                _, message = await until(
                    messages(answer),
                    lambda message: "been asked" not in message.get("queues", {}).get("text", "been asked"),
                )
            assert expected.items() <= message["queues"].items()
            said.append(message["queues"]["text"])
            answers = answers[1:] or answers
    assert said[0] == ""
    assert "the answer is not a queue's" in said[1]
    assert "503" in said[2]
    assert said[3].startswith(
        "No queue was found: no queue answers at http://127.0.0.1:1: Connection refused"
    )


async def test_pending_pods_are_told_what_the_queue_says(api, session):
    """The view said that a node would take a pod whose queue does not exist."""
    told = {**QUEUE_STATUS["pods"][0], "namespace": "default", "name": "gated", "reason": "Refused"}

    async def status(_request):
        return web.json_response({**QUEUE_STATUS, "pods": [{**told, "message": "there is no such queue"}]})

    fill(api, Fleet(1, uniform=True))
    container = {"name": "c", "image": "i", "resources": {"limits": {"gpupack.io/gpu-memory-gib": "1"}}}
    spec = {"containers": [container], "schedulingGates": [{"name": "gpupack.io/queue"}]}
    api.add_pod({"metadata": {"name": "gated"}, "spec": spec})

    def texts(message):
        for pod in message.get("pending", {}).get("pods", ()):
            if pod["reason"]:
                assert (pod["queue"], pod["position"], pod["reason"]) == (
                    told["queue"],
                    told["position"],
                    "Refused",
                )
        return [pod["text"] for pod in message.get("pending", {}).get("pods", ()) if pod["name"] == "gated"]

    async with (
        serving(status) as url,
        following(api, queue_url=url) as page,
        session.get(f"{page}api/events") as answer,
    ):
        _, message = await until(messages(answer), lambda message: "queue says" in "".join(texts(message)))
        async with session.get(f"{page}api/why", params={"pod": "gated"}) as why:
            found = await why.json()
    assert texts(message)[0].endswith("; the queue says Refused: there is no such queue")
    assert found["ways_out"][0]["kind"] == "queue"


async def test_a_page_ends_with_the_process(api, session):
    fill(api, Fleet(1, uniform=True))
    async with following(api) as url:
        answer = await session.get(f"{url}api/events")
        stream = messages(answer)
        await until(stream, lambda message: "nodes" in message)
    async with asyncio.timeout(60):
        assert [name async for name, _ in stream if name == "whole"] == []
    answer.close()
