"""`gpupack top` against an API server: pages, a snapshot that goes away, answers that are not nodes."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpupack.errors import InputError
from gpupack.inventory import build_rows, fetch
from kubeapi.errors import Forbidden, Gone

GONE = (410, {"kind": "Status", "code": 410, "reason": "Expired", "message": "the continue token is too old"})


def page(*names, token=""):
    resources = {
        "gpupack.io/packed-layout": str(1 | 5 << 4 | 1 << 10 | 1024 << 20),
        "gpupack.io/packed-size-0": "16",
        "gpupack.io/packed-used-0": "4",
        "gpupack.io/packed-revision": "1763G",
    }
    return 200, {
        "kind": "NodeList",
        "metadata": {"resourceVersion": "9", "continue": token},
        "items": [{"metadata": {"name": name}, "status": {"allocatable": resources}} for name in names],
    }


@pytest.fixture
async def api(tmp_path):
    """Serve prepared answers in order; yields a function that takes them and returns a kubeconfig."""
    answers = []

    async def nodes(request):
        assert request.path == "/api/v1/nodes"
        status, body = answers.pop(0)
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", nodes)
    async with TestServer(app) as server:

        def prepared(*given):
            answers.extend(given)
            named = {"clusters": "cluster", "users": "user", "contexts": "context"}
            config = {kind: [{"name": "x", one: {}}] for kind, one in named.items()} | {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
            }
            config["clusters"][0]["cluster"] = {"server": str(server.make_url("")).rstrip("/")}
            config["contexts"][0]["context"] = {"cluster": "x", "user": "x"}
            path = tmp_path / "kubeconfig"
            path.write_text(json.dumps(config))
            return str(path)

        yield prepared
        assert not answers


def names(nodes):
    return [row.node for row in build_rows(nodes)]


async def test_all_pages(api):
    assert names(await fetch(api(page("b", token="t1"), page("c", token="t2"), page("a")))) == ["a", "b", "c"]


async def test_a_snapshot_that_goes_away_is_read_anew(api):
    assert names(await fetch(api(page("a", token="t1"), GONE, page("a", token="t2"), page("b")))) == [
        "a",
        "b",
    ]


async def test_a_snapshot_that_never_holds(api):
    with pytest.raises(Gone):
        await fetch(api(*[page("a", token="t1"), GONE] * 2))


async def test_no_right_to_list(api):
    with pytest.raises(Forbidden):
        await fetch(api((403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"})))


async def test_something_else_than_nodes(api):
    with pytest.raises(InputError, match=r"lists something else than nodes: .*items"):
        await fetch(api((200, {"kind": "NodeList", "metadata": {}, "items": 5})))
