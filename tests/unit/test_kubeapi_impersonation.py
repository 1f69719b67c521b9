"""Whom a kubeconfig's user acts as, in every request."""

import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kubeapi.client import KubeClient
from kubeapi.errors import ConfigError
from kubeapi.posting import make_post_client
from tests.credentials_world import kubeconfig

SOMEBODY = {
    "as": "jürgen@example.com",
    "as-uid": "u-1",
    "as-groups": ["dev", "system:masters"],
    "as-user-extra": {"scopes": ["view", "edit"], "example.com/Team%": ["red"], "né": ["x"]},
}
HEADERS = [
    ("Impersonate-User", "jürgen@example.com"),
    ("Impersonate-Uid", "u-1"),
    ("Impersonate-Group", "dev"),
    ("Impersonate-Group", "system:masters"),
    ("Impersonate-Extra-scopes", "view"),
    ("Impersonate-Extra-scopes", "edit"),
    ("Impersonate-Extra-example.com%2FTeam%25", "red"),
    ("Impersonate-Extra-n%C3%A9", "x"),
]


@pytest.fixture
async def server():
    """Keeps the headers of every request that say who is acted as."""
    seen = []

    async def handle(request: web.Request) -> web.Response:
        raw = [(name.decode(), value.decode()) for name, value in request.raw_headers]
        seen.append([(name, value) for name, value in raw if name.startswith("Impersonate")])
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        server.seen = seen
        yield server


@pytest.mark.parametrize("posts", [None, make_post_client], ids=["aiohttp", "posting"])
@pytest.mark.parametrize(
    ("user", "headers"),
    [
        (SOMEBODY, HEADERS),
        ({"as": "bob"}, [("Impersonate-User", "bob")]),
        ({"as": "", "as-uid": "", "as-groups": [], "as-user-extra": {"a": []}}, []),
        ({"as": None, "as-groups": None, "as-user-extra": None}, []),
        ({}, []),
    ],
    ids=["all", "a user", "empty", "null", "nobody"],
)
async def test_every_request_says_as_whom_it_acts(server, tmp_path, posts, user, headers) -> None:
    config = kubeconfig(tmp_path / "kc", str(server.make_url("/")), token="t", **user)
    async with await KubeClient.connect(config, posts=posts) as client:
        await client.get("/x")
        await client.post("/x", {})
        await client.patch("/x", {})
        await client.put("/x", {})
        await client.delete("/x")
        assert [line async for line in client.watch("/x", "1")] == [b"{}"]
    assert server.seen == [headers] * 6


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"as-groups": ["dev"]}, "as-groups ['dev'] and no as: allowed with the name of a user in as"),
        ({"as": "", "as-uid": "u-1"}, "as-uid 'u-1' and no as: allowed with"),
        ({"as-user-extra": {"a": ["b"]}}, "as-user-extra {'a': ['b']} and no as: allowed with"),
        ({"as": 5}, "as 5; allowed: text on one line"),
        ({"as": "a\r\nX: y"}, r"as 'a\r\nX: y'; allowed: text on one line"),
        ({"as": "a", "as-uid": 7}, "as-uid 7; allowed: text on one line"),
        ({"as": "a", "as-groups": "dev"}, "as-groups 'dev'; allowed: a list of text"),
        ({"as": "a", "as-groups": [True]}, "as-groups True; allowed: text on one line"),
        ({"as": "a", "as-user-extra": ["b"]}, "as-user-extra ['b']; allowed: a map of lists of text"),
        ({"as": "a", "as-user-extra": {"b": "c"}}, "as-user-extra 'b' 'c'; allowed: a list of text"),
        ({"as": "a", "as-user-extra": {"b": ["\0"]}}, r"as-user-extra 'b' '\x00'; allowed: text on one"),
    ],
)
async def test_what_cannot_be_acted_as_is_refused(tmp_path, user, said) -> None:
    path = kubeconfig(tmp_path / "kc", "http://h:1", token="t", **user)
    with pytest.raises(ConfigError, match=re.escape(f"kubeconfig {path}: {said}")):
        await KubeClient.connect(path)
