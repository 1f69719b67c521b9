"""Knobs and helpers of the API server stand-in that the script of calls does not reach."""

import aiohttp
import pytest

from standins.apiserver.server import ApiServer, RefusedError

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}


@pytest.fixture
async def api():
    async with ApiServer(seed=7) as api:
        yield api


@pytest.fixture
async def call(api):
    async with aiohttp.ClientSession() as session:

        async def call(method, path, body=None, content_type="application/json"):
            headers = {"Content-Type": content_type}
            async with session.request(method, api.url + path, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        yield call


async def test_it_comes_back_on_its_port_with_its_objects(api, call) -> None:
    api.add_node("n1")
    url = api.url
    await api.away(True)
    await api.away(True)
    with pytest.raises(aiohttp.ClientConnectionError):
        await call("GET", "/api/v1/nodes/n1")
    await api.away(False)
    await api.away(False)
    assert api.url == url
    assert (await call("GET", "/api/v1/nodes/n1"))[0] == 200


async def test_stopped_and_started_again_it_keeps_its_objects() -> None:
    api = ApiServer()
    with pytest.raises(RuntimeError, match="not started"):
        await api.away(False)
    await api.stop()
    async with api:
        api.add_node("n1")
    async with api, aiohttp.ClientSession() as session, session.get(f"{api.url}/api/v1/nodes/n1") as answer:
        assert answer.status == 200


async def test_helpers_follow_the_rules(api) -> None:
    node = api.add_node("n1", {"zone": "a"}, {"gpupack.io/x": 5000}, {"k/a": "v"})
    assert node["status"]["allocatable"] == {"gpupack.io/x": "5k"}
    assert (node["metadata"]["labels"], node["metadata"]["annotations"]) == ({"zone": "a"}, {"k/a": "v"})
    assert api.patch_node("n1", {"status": {"capacity": {"gpupack.io/x": 1}}})["status"]["capacity"] == {
        "gpupack.io/x": "1"
    }
    with pytest.raises(RefusedError, match="must be an integer"):
        api.patch_node("n1", {"status": {"capacity": {"gpupack.io/x": 2**54 + 1}}})
    of_quota = {"requests.gpupack.io/x": "1500m"}
    assert api.patch_node("n1", {"status": {"capacity": of_quota}})["status"]["capacity"] == {
        "gpupack.io/x": "1",
        **of_quota,
    }
    with pytest.raises(RefusedError, match="already exists"):
        api.add_node("n1")
    pod = api.add_pod({**POD, "metadata": {"name": "a", "namespace": "new"}, "status": {"phase": "Running"}})
    assert pod["status"]["phase"] == "Running"
    assert api.has_pod("new", "a")
    api.bind_pod("new", "a", "n1", {"k/b": "v"})
    api.delete_pod("new", "a")
    assert api.pod("new", "a")["metadata"]["deletionGracePeriodSeconds"] == 30
    api.delete_pod("new", "a", 0)
    assert not api.has_pod("new", "a")
    api.delete_node("n1")
    assert api.objects("nodes") == api.objects("pods") == []
    with pytest.raises(RefusedError, match='nodes "n1" not found'):
        api.node("n1")


async def test_what_helpers_return_is_a_copy(api) -> None:
    api.add_pod(POD)["spec"]["nodeName"] = "changed"
    api.objects("pods")[0]["spec"]["nodeName"] = "changed"
    assert "nodeName" not in api.pod("default", "a")["spec"]


async def test_a_seed_repeats_names_and_uids() -> None:
    generated = {"metadata": {"generateName": "job-"}, "spec": POD["spec"]}
    first, second = (ApiServer(seed=3).add_pod(generated)["metadata"] for _ in range(2))
    assert (first["name"], first["uid"]) == (second["name"], second["uid"])
    assert first["name"].startswith("job-")
    assert len(first["name"]) == 9


async def test_requests_are_counted_and_can_be_answered_by_the_test(api, call) -> None:
    api.add_pod(POD)
    await call("PATCH", "/api/v1/namespaces/default/pods/a/status", {"status": {}}, MERGE)
    assert api.http.requests["PATCH", "pods", "status"] == 1
    slow = aiohttp.web.json_response({"kind": "Status"}, status=429, headers={"Retry-After": "1"})

    async def intercept(request):
        return slow if request.method == "GET" else None

    api.http.intercept = intercept
    assert (await call("GET", "/api/v1/pods"))[0] == 429
    assert (await call("POST", "/api/v1/namespaces/default/pods", {**POD, "metadata": {"name": "b"}}))[
        0
    ] == 201


async def test_discovery(call) -> None:
    assert (await call("GET", "/api"))[1]["versions"] == ["v1"]
    assert [group["name"] for group in (await call("GET", "/apis"))[1]["groups"]] == [
        "batch",
        "coordination.k8s.io",
        "policy",
        "resource.k8s.io",
    ]
    core = (await call("GET", "/api/v1"))[1]
    assert core["groupVersion"] == "v1"
    assert {each["name"] for each in core["resources"]} == {"pods", "nodes", "namespaces", "events"}
    leases = (await call("GET", "/apis/coordination.k8s.io/v1"))[1]
    assert (leases["groupVersion"], leases["resources"][0]["kind"]) == ("coordination.k8s.io/v1", "Lease")


async def test_a_collection_is_deleted_by_the_rules_of_each_object(api, call) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "1"}), ("c", {})):
        api.add_pod({**POD, "metadata": {"name": name, "labels": labels}})
    api.bind_pod("default", "b", "n1")
    status, _ = await call("DELETE", "/api/v1/namespaces/default/pods?labelSelector=x%3D1")
    assert status == 200
    assert [each["metadata"]["name"] for each in api.objects("pods")] == ["b", "c"]


@pytest.mark.parametrize(
    ("patch", "containers"),
    [
        ([{"name": "c", "image": "new"}], [{"name": "c", "image": "new"}, {"name": "d"}]),
        ([{"name": "d", "$patch": "delete"}], None),
    ],
    ids=["merged by name", "deletion refused by the rules"],
)
async def test_a_strategic_patch_of_containers(api, call, patch, containers) -> None:
    api.add_pod({**POD, "spec": {"containers": [{"name": "c", "image": "old"}, {"name": "d"}]}})
    body = {"spec": {"containers": patch, "$setElementOrder/containers": []}}
    status, answer = await call("PATCH", "/api/v1/namespaces/default/pods/a", body, STRATEGIC)
    if containers is None:
        assert (status, answer["reason"]) == (422, "Invalid")
    else:
        found = [
            {key: each[key] for key in ("name", "image") if key in each}
            for each in answer["spec"]["containers"]
        ]
        assert (status, found) == (200, containers)


async def test_a_strategic_patch_replaces_other_lists_and_drops_nulls(api, call) -> None:
    api.add_node("n1", annotations={"a": "1"})
    body = {"metadata": {"annotations": {"a": None}}, "status": {"images": [{"names": ["x"]}]}}
    _, answer = await call("PATCH", "/api/v1/nodes/n1/status", body, STRATEGIC)
    assert "annotations" not in answer["metadata"]
    assert answer["status"]["images"] == [{"names": ["x"]}]


@pytest.mark.parametrize(
    ("step", "conditions"),
    [
        ({"op": "add", "path": "/status/conditions/-", "value": {"type": "B"}}, ["Ready", "B"]),
        ({"op": "add", "path": "/status/conditions/0", "value": {"type": "B"}}, ["B", "Ready"]),
        ({"op": "replace", "path": "/status/conditions/0", "value": {"type": "B"}}, ["B"]),
        ({"op": "remove", "path": "/status/conditions/0"}, []),
        ({"op": "replace", "path": "/status/conditions/0/type", "value": "B"}, ["B"]),
        ({"op": "move", "path": "/status/conditions/0", "from": "/x"}, None),
        ({"op": "remove", "path": "/status/none"}, None),
        ({"op": "add", "path": "/status/conditions/x", "value": 1}, None),
        ({}, None),
    ],
)
async def test_json_patches(api, call, step, conditions) -> None:
    api.add_node("n1")
    status, answer = await call("PATCH", "/api/v1/nodes/n1/status", [step], JSON_PATCH)
    if conditions is None:
        assert (status, answer["reason"]) == (422, "Invalid")
    else:
        assert (status, [each["type"] for each in answer["status"]["conditions"]]) == (200, conditions)


async def test_bodies_that_are_no_objects(call) -> None:
    assert (await call("POST", "/api/v1/nodes", []))[0] == 400
    assert (await call("POST", "/api/v1/nodes", {}, "application/vnd.kubernetes.protobuf"))[0] == 415
    assert (await call("DELETE", "/api/v1/nodes/n?gracePeriodSeconds=x"))[0] == 400
    assert (await call("GET", "/api/v1/pods?continue=rubbish"))[1]["message"].startswith(
        "invalid continue token"
    )
    assert (await call("GET", "/api/v1/namespaces/default/pods/a/exec"))[0] == 404
    assert (await call("PUT", "/api/v1/namespaces/default/pods/a/binding", {}))[0] == 405


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"name": "n" * 253}, 201),
        ({"name": "n" * 254}, 422),
        ({"name": "n", "labels": {"k" * 63: ""}}, 201),
        ({"name": "n", "labels": {"k" * 64: ""}}, 422),
        ({"name": "n", "labels": {"Example.com/k": ""}}, 422),
        ({"name": "n", "annotations": {"Example.com/k": ""}}, 201),
    ],
)
async def test_names_have_kubernetes_limits(call, metadata, status) -> None:
    assert (await call("POST", "/api/v1/nodes", {"metadata": metadata}))[0] == status


async def test_a_node_with_a_finalizer_waits_for_it(api) -> None:
    api.add_node("n1")
    api.patch_node("n1", {"metadata": {"finalizers": ["x/y"]}})
    api.delete_node("n1")
    assert "deletionTimestamp" in api.node("n1")["metadata"]
    api.patch_node("n1", {"metadata": {"finalizers": None}})
    assert api.objects("nodes") == []
