"""Bodies that are meant to harm: one that unpacks to far more, and calls that were changed at random."""

import gzip
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from scheduler_plugin.extender.server import MAX_BODY
from tests.cluster_builders import pod_object
from tests.extender_client import Client, client

MUTATIONS = 300
SEED = 9


__all__ = ["client"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_unpacks_to_more_than_the_limit(client: Client, *, chunked: bool) -> None:
    bomb = gzip.compress(b" " * (2 * MAX_BODY), compresslevel=1)
    assert len(bomb) < MAX_BODY // 8

    async def parts() -> AsyncIterator[bytes]:
        yield bomb

    async with client.session.post(
        f"{client.url}/filter", data=parts() if chunked else bomb, headers={"Content-Encoding": "gzip"}
    ) as response:
        assert response.status == 413
        what = "of more than" if chunked else "that unpacks to more than"
        assert await response.text() == f"body {what} {MAX_BODY} bytes; allowed: {MAX_BODY}\n"
    assert (await client.filter(pod_object("p", 8), "a", "b"))["NodeNames"]


def mutated(body: bytes, chance: random.Random) -> bytes:
    """The body with a few bytes changed, cut out, doubled, or another value in place of one."""
    raw = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(raw))
        match chance.randrange(5):
            case 0:
                raw[at] = chance.randrange(256)
            case 1:
                del raw[at : at + chance.randrange(1, 40)]
            case 2:
                raw[at:at] = raw[at : at + chance.randrange(1, 40)]
            case 3:
                raw[at:at] = chance.choice(
                    (b"null", b"{}", b"[[[[", b"-1e400", b'"\\ud800"', b"\x00", b"9" * 30)
                )
            case _:
                del raw[at:]
        if not raw:
            break
    return bytes(raw)


async def test_calls_that_were_changed_at_random_get_an_answer_or_one_line(client: Client) -> None:
    pod = pod_object("p", 3)
    names = {"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}
    victims = {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}
    binding = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/filter", names),
        ("/prioritize", names),
        ("/bind", binding),
        ("/preempt", victims),
    ]
    chance, seen = random.Random(SEED), set()
    with capture_logs() as logs:
        for _ in range(MUTATIONS):
            path, call = chance.choice(calls)
            body = mutated(json.dumps(call).encode(), chance)
            status, text = await client.post(path, body)
            assert status in {200, 400, 422}, (path, body, text)
            assert status == 200 or text.count("\n") <= 1, (path, body, text)
            seen.add(status)
    assert seen == {200, 400, 422}
    assert [each for each in logs if each["log_level"] == "error"] == []
    assert (await client.filter(pod, "a", "b"))["NodeNames"] == ["b", "a"]
