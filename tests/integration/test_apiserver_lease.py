"""Leader election through the API server stand-in, candidates on real time."""

import asyncio

import pytest

from kubeapi.client import KubeClient
from kubeapi.lease import LeaseElector
from standins.apiserver.server import ApiServer
from tests.waiting import until


@pytest.fixture
async def api():
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def client(api, tmp_path):
    async with await KubeClient.connect(api.kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client


class Candidate:
    def __init__(self, client, name, lease_s=1) -> None:
        self.elector = LeaseElector(client, "gpupack-system", "gpupack", name, lease_s, 0.1)
        self.task = asyncio.create_task(self.elector.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_leadership_passes_on_and_comes_back(api, client) -> None:
    """The Lease is given back: it need not run out, and does not on a machine under load."""
    first = Candidate(client, "first", lease_s=60)
    await until(lambda: first.elector.is_leader, "the first leads")
    second = Candidate(client, "second", lease_s=60)
    await until(lambda: second.elector.holder == "first", "the second sees the first")
    assert not second.elector.is_leader
    await first.stop()
    await until(lambda: second.elector.is_leader, "the second leads")
    assert not first.elector.is_leader
    assert api.lease("gpupack-system", "gpupack")["spec"]["leaseTransitions"] == 1
    await second.stop()
    assert api.lease("gpupack-system", "gpupack")["spec"]["holderIdentity"] == ""


async def test_an_api_server_that_is_away_ends_leadership(api, client) -> None:
    first = Candidate(client, "first")
    await until(lambda: first.elector.is_leader, "the first leads")
    await api.away(True)
    await until(lambda: not first.elector.is_leader, "leadership lapses")
    await api.away(False)
    await until(lambda: first.elector.is_leader, "the first leads again")
    await first.stop()
