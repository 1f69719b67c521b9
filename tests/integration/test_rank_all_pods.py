"""Pods without GPU, ranked too where that is switched on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.settings import Settings
from standins.apiserver.server import ApiServer
from tests.cluster_builders import without_cards
from tests.extender_client import Client, extender
from tests.waiting import until

NODES: dict[str, tuple[tuple[int, ...] | None, int, int]] = {
    "even": ((16,), 8, 8),
    "full": ((16,), 16, 36),
    "idle": ((16,), 0, 4),
    "no-cards": (None, 0, 4),
}
"""Cards, units in use, cores in use of 40 (and as many percent of the memory)."""


@asynccontextmanager
async def cluster(tmp_path: Path, policy: str, *, rank_all_pods: bool = True) -> AsyncIterator[Client]:
    options = {"node_policy": policy, "rank_all_pods": rank_all_pods}
    async with ApiServer() as api, extender(tmp_path, api, **options) as client:
        for name, (sizes, units, cpu) in NODES.items():
            client.make_node(name, sizes, None if sizes is None else (units,))
            containers = without_cards(cpu=str(cpu), memory=f"{100 * cpu // 40}Gi")
            client.make_pod(f"filler-{name}", 1, containers=containers, spec={"nodeName": name})
        await until(client.ready)
        await until(lambda: (client.state.nodes.cpu_used > 0).sum() == len(NODES))
        yield client


async def ranks(client: Client, **spec: Any) -> dict[str, int]:
    pod = client.make_pod("p", 1, containers=without_cards(cpu="2", memory="5Gi"), **spec)
    status, scores = await client.post("/prioritize", {"Pod": pod, "NodeNames": [*NODES, "unknown"]})
    assert status == 200
    return {entry["Host"]: entry["Score"] for entry in scores}


NOT_RANKED = dict.fromkeys([*NODES, "unknown"], 0)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # Cpu and memory are level everywhere; on `idle` and `full` GPU memory is not.
        ("balanced", ["no-cards", "full", "idle", "even"]),
        ("least-requested", ["idle", "no-cards", "even", "full"]),
    ],
)
async def test_nodes_are_ranked_for_pods_without_gpu(tmp_path: Path, policy: str, order: list[str]) -> None:
    async with cluster(tmp_path, policy) as client:
        expected = {name: 10 - place for place, name in enumerate(order)} | {"unknown": 0}
        assert await ranks(client) == expected


async def test_pods_that_wait_steer_pods_without_gpu(tmp_path: Path) -> None:
    async with cluster(tmp_path, "weighted-balance") as client:
        assert sorted((await ranks(client)).values()) == [0, 7, 8, 9, 10]


async def test_not_unless_it_is_switched_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, "balanced", rank_all_pods=False) as client:
        assert await ranks(client) == NOT_RANKED


async def test_a_pod_s_own_preferences_rank_first(tmp_path: Path) -> None:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with cluster(tmp_path, "balanced") as client:
        assert await ranks(client, spec={"affinity": affinity}) == NOT_RANKED


@pytest.mark.parametrize("policy", ["fragmentation", "best-fit"])
def test_policies_that_cannot_are_refused_at_the_start(policy: str) -> None:
    message = (
        f"--rank-all-pods with node policy {policy}; allowed: balanced, least-requested, weighted-balance"
    )
    with pytest.raises(SettingsError, match=message):
        Settings(node_policy=policy, rank_all_pods=True).check()
