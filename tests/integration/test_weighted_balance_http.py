"""weighted-balance as users run it: pods that wait steer it, and holding ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from allocator.names import QUEUE_GATE
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, without_cards
from tests.extender_client import Client, extender
from tests.waiting import until

USED = {"a": (32, 26, 14), "b": (35, 42, 5)}
"""Of 40 cores, 100 GiB and 16 units: cores, GiB, units."""

WITHOUT_PENDING, PENDING_CPU = "b", "a"


def asking(units: int, cpu: int, memory_gib: int) -> list[dict[str, object]]:
    return [container(units=units, cpu=str(cpu), memory=f"{memory_gib}Gi")]


@asynccontextmanager
async def cluster(
    tmp_path: Path, used: dict[str, tuple[int, int, int]], **parameters: str
) -> AsyncIterator[Client]:
    """Nodes of one card, in use as said, the extender with the policy, `_` for `-` in parameters' names."""
    given = {name.replace("_", "-"): value for name, value in parameters.items()}
    options = {"node_policy": "weighted-balance", "node_policy_parameters": given}
    async with ApiServer() as api, extender(tmp_path, api, **options) as client:
        for name, (cpu, memory, units) in used.items():
            client.make_node(name, (16,), (units,))
            containers = without_cards(cpu=str(cpu), memory=f"{memory}Gi")
            filler = client.make_pod(f"filler-{name}", 1, containers=containers, spec={"nodeName": name})
            await client.knows(filler["metadata"]["uid"])
        await until(client.ready)

        async def counted() -> bool:
            nodes = client.state.nodes
            return bool((nodes.cpu_used > 0).sum() == len(used))

        await until(counted)
        yield client


async def first_of(client: Client) -> str:
    pod = client.make_pod("p", 1, containers=asking(2, 4, 10))
    await client.knows(pod["metadata"]["uid"])
    return str((await client.filter(pod, *USED))["NodeNames"][0])


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"containers": asking(1, 41, 1)}, PENDING_CPU),
        ({"containers": without_cards(cpu="41", memory="1Gi")}, PENDING_CPU),
        ({"containers": asking(1, 41, 1), "gates": [QUEUE_GATE]}, PENDING_CPU),
        ({"containers": asking(1, 41, 1), "gates": ["somebody.else/gate"]}, PENDING_CPU),
        ({"containers": asking(1, 1, 101)}, WITHOUT_PENDING),
        ({"containers": asking(1, 1, 1)}, WITHOUT_PENDING),
    ],
    ids=["refused for cpu", "without GPU", "in the queue", "behind a gate", "short of memory", "fits"],
)
async def test_pods_that_kube_scheduler_never_asks_about_count(
    tmp_path: Path, waiting: dict[str, Any], expected: str
) -> None:
    """It asks no extender where cpu or memory lack everywhere, nor for pods behind a gate."""
    async with cluster(tmp_path, USED) as client:
        pod = client.make_pod("waits", 1, **waiting)
        await client.knows(pod["metadata"]["uid"])
        assert await first_of(client) == expected
