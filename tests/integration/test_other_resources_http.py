"""Further resources, kept level beside cpu, memory and GPU memory where a parameter names them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.settings import Settings
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, without_cards
from tests.extender_client import Client, extender
from tests.waiting import until

DISK = "ephemeral-storage"
HALF = {"cpu": "20", "memory": "50Gi"}

NODES = {
    "a": (8, {DISK: "1000Gi"}, {**HALF, DISK: "950Gi"}),
    "b": (8, {DISK: "1000Gi"}, {**HALF, DISK: "600Gi"}),
}
"""Nodes of 40 cores, 100 GiB and 16 units: units in use, what they have beside that, and what pods use."""


@asynccontextmanager
async def cluster(tmp_path: Path, policy: str, **options: Any) -> AsyncIterator[Client]:
    given = {"node_policy": policy, "node_policy_parameters": {"resources": DISK}, **options}
    async with ApiServer() as api, extender(tmp_path, api, **given) as client:
        for name, (units, resources, used) in NODES.items():
            client.make_node(name, (16,), (units,), resources=resources)
            client.make_pod(f"filler-{name}", 1, containers=without_cards(**used), spec={"nodeName": name})
        await until(client.ready)
        await until(lambda: (client.state.nodes.cpu_used > 0).sum() == len(NODES))
        yield client


async def ranked(client: Client, containers: list[dict[str, object]], name: str = "p") -> list[str]:
    pod = client.make_pod(name, 1, containers=containers)
    await client.knows(pod["metadata"]["uid"])
    return list((await client.filter(pod, *NODES))["NodeNames"])


async def test_what_the_pod_asks_of_it_counts(tmp_path: Path) -> None:
    """After it b's disk is used as much as a's; its cards are then less level than a's."""
    asks = [container(units=4, cpu="10", memory="25Gi", resources={DISK: "350Gi"})]
    async with cluster(tmp_path, "least-requested") as client:
        assert await ranked(client, asks) == ["b", "a"]
        taken = client.make_pod("q", 4, containers=asks)
        await client.knows(taken["metadata"]["uid"])
        assert await client.bind(taken, "b") == ""
        more = [container(units=1, cpu="1", memory="1Gi", resources={DISK: "1Gi"})]
        assert await ranked(client, more, "r") == ["a", "b"]


async def test_nodes_are_ranked_by_it_for_pods_without_gpu(tmp_path: Path) -> None:
    async with cluster(tmp_path, "balanced", rank_all_pods=True) as client:
        pod = client.make_pod("p", 1, containers=without_cards(cpu="1", memory="1Gi"))
        _, scores = await client.post("/prioritize", {"Pod": pod, "NodeNames": [*NODES]})
        assert {each["Host"]: each["Score"] for each in scores} == {"a": 9, "b": 10}


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        ("balanced", {"resources": "cpu"}, 'resources names "cpu"; allowed: ephemeral-storage, hugepages'),
        ("balanced", {"resources": "disk"}, 'balanced: resources names "disk"; allowed:'),
        ("weighted-balance", {"resources": "gpupack.io/gpu-memory-gib"}, "resources names"),
        (
            "least-requested",
            {"resources": f"{DISK},{DISK}"},
            f"least-requested: resources names {DISK} twice",
        ),
        (
            "weighted-balance",
            {"resources": DISK, "weights": "1/3,1/3,1/3"},
            f"allowed: 4 from 0 that sum to 1, of cpu, memory, gpu-memory, {DISK}",
        ),
        ("fragmentation", {"resources": DISK}, 'parameter "resources" does not exist'),
    ],
)
def test_what_is_wrong_is_told_at_the_start(policy: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(node_policy=policy, node_policy_parameters=parameters).check()
