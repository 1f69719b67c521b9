"""`gpupack top --queues` as people and scripts call it: the queue's Service through the API server."""

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from tests.credentials_world import kubeconfig
from tests.http_server import serving
from tests.integration.top_world import CLUSTER, RECORDS, run

__all__ = ["run"]


STATUS = {
    "queues": [
        {
            "name": "a",
            "cohort": "x",
            "weight": 2,
            "nominal": 8,
            "used": 12,
            "borrowed": 4,
            "lent": 0,
            "running": 3,
            "waiting": 1,
            "oldestWaitS": 90.5,
            "stop": "None",
            "firstStage": 0,
            "weightedShare": 0.0,
            "dominantResource": "",
            "claimed": 0,
        }
    ],
    "pods": [
        {
            "namespace": "ns",
            "name": "train",
            "queue": "a",
            "position": 1,
            "reason": "NoRoom",
            "message": "it needs 8 units on one card; the largest free card has 6",
            "waitsS": 90.5,
            "gangSize": 0,
            "gang": "",
        }
    ],
    "mode": "gate",
}


@contextlib.asynccontextmanager
async def queue_service(tmp_path, status=200):
    """An API server that has the nodes above and forwards to the queue's Service; yields a kubeconfig."""
    paths = {
        "/api/v1/nodes": {"kind": "NodeList", "metadata": {}, "items": CLUSTER["items"]},
        "/api/v1/namespaces/gpupack-system/services/gpupack-queue:http/proxy/status": STATUS,
    }

    async def answer(request):
        found = paths.get(request.path)
        if status != 200 and found is STATUS:
            return web.json_response({"kind": "Status", "message": "no endpoints"}, status=status)
        return web.json_response(found, status=200 if found else 404)

    async with serving(answer) as url:
        yield kubeconfig(tmp_path / "kubeconfig", url)


def with_queue(tmp_path, look, **options):
    async def ask():
        async with queue_service(tmp_path, **options) as config:
            return await asyncio.to_thread(look, config)

    return asyncio.run(ask())


def test_the_queues_of_a_cluster(run, tmp_path):
    """Who has what and who waits, with the nodes; as tables, or in one JSON object."""
    text, raw = with_queue(
        tmp_path,
        lambda config: (
            run("--kubeconfig", config, "--queues"),
            run("--kubeconfig", config, "--queues", "-o", "json"),
        ),
    )
    assert text[0] == raw[0] == 0
    lines = text[1].splitlines()
    assert lines[0].split()[0] == "NODE"
    assert any(line.startswith("a      x       2       8        12    4") for line in lines)
    assert lines[-1].startswith("a      1         ns/train  -     90s    NoRoom  it needs 8 units")
    told = json.loads(raw[1])
    assert told["nodes"][:2] == RECORDS[:2]
    assert told["queue"]["queues"] == STATUS["queues"]
    assert told["queue"]["pods"] == STATUS["pods"]


def test_a_queue_that_is_not_there(run, tmp_path):
    status, out, err = with_queue(
        tmp_path, lambda config: run("--kubeconfig", config, "--queues"), status=503
    )
    assert (status, out) == (1, "")
    assert "services/gpupack-queue:http/proxy/status" in err
    assert "no endpoints" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queues", "-w"), "--queues is asked once: leave it out with --watch"),
        (("--queues", "-f", "x"), "--queues is for a cluster: leave it out with --filename"),
    ],
)
def test_queues_of_what_has_none(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_a_service_without_a_namespace(run, tmp_path):
    status, _, err = with_queue(
        tmp_path, lambda config: run("--kubeconfig", config, "--queues", "--queue-service", "mine")
    )
    assert status == 2
    assert "--queue-service is 'mine'; allowed: NAMESPACE/NAME of a Service" in err
