"""The methods in the queue as a process: what its configuration asks for is where pods go."""

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from allocator.names import POD_DATA
from scheduler_plugin.queue.controller import controller
from scheduler_plugin.queue.controller.status import HELD_BACK
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, in_percent
from tests.integration.test_queue_process import ONE_QUEUE, Running, make_node, make_pod, queue
from tests.waiting import until

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def dated() -> ApiServer:
    """An API server by whose clock each object is a second younger than the one before."""
    seconds = count()
    return ApiServer(seed=1, now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds)))


def node_of(running: Running, name: str) -> str:
    """The first node that an admitted pod may run on, empty where its admission named none."""
    affinity = running.api.pod("default", name)["spec"].get("affinity")
    if affinity is None:
        return ""
    (term, *_) = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])


async def placed(running: Running, name: str, units: int, **options: Any) -> str:
    """Admit a pod; its node."""
    make_pod(running.api, name, units, **options)
    await running.admitted(name)
    return node_of(running, name)


def policy(name: str, *more: str, **parameters: str) -> str:
    """Configure batch mode with a node policy, `_` for `-` in parameters' names."""
    given = ", ".join(f"{key.replace('_', '-')}: '{value}'" for key, value in parameters.items())
    lines = [
        ONE_QUEUE,
        "mode: batch",
        f"nodePolicy: {name}",
        f"nodePolicyParameters: {{{name}: {{{given}}}}}",
    ]
    return "\n".join([*lines, *more])


def fill(api: ApiServer, node: str, cpu: str, memory: str = "1Gi") -> None:
    """Put a pod without GPU on a node."""
    amounts = {"cpu": cpu, "memory": memory}
    plain = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    make_pod(api, f"on-{node}", 1, "", gates=(), containers=[plain], spec={"nodeName": node})


async def test_the_index_finds_a_node_with_less_than_a_core_left(tmp_path: Path) -> None:
    """The processor is what the pod takes the largest part of; more than it asks for is left."""
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16,) * 8, cpu="4")
        fill(api, "n1", "3200m")
        async with queue(api, tmp_path, policy("best-fit")) as running:
            small = [container(units=1, cpu="500m", memory="1Mi")]
            assert await placed(running, "p", 1, containers=small) == "n1"


async def test_of_cards_of_several_sizes_the_tightest_for_percent_wins(tmp_path: Path) -> None:
    """Half of a card leaves nothing of the small one."""
    async with ApiServer(seed=1) as api:
        make_node(api, "large", (80,), (20,))
        make_node(api, "small", (16,), (8,))
        async with queue(api, tmp_path, policy("best-fit")) as running:
            assert await placed(running, "p", 1, containers=[in_percent(50)]) == "small"


@pytest.mark.parametrize(
    ("parameters", "node"),
    [
        ({"width_gpu_memory": "4", "buckets": "3", "limit": "1"}, "middle"),
        ({"width_gpu_memory": "4", "buckets": "3", "limit": "1", "fallback": "largest"}, "large"),
        (
            {
                "width_gpu_memory": "4",
                "buckets": "3",
                "limit": "1",
                "fallback": "largest",
                "outermost": "closed",
            },
            "middle",
        ),
    ],
    ids=["closest remaining", "largest remaining", "outermost ring closed"],
)
async def test_the_way_down_and_the_outermost_ring(
    tmp_path: Path, parameters: dict[str, str], node: str
) -> None:
    """Three buckets of 4, up to 12: the pod's own is empty, and 16 is beyond a closed last one."""
    async with ApiServer(seed=1) as api:
        make_node(api, "middle", (9,))
        make_node(api, "large", (16,))
        async with queue(api, tmp_path, policy("best-fit", **parameters)) as running:
            assert await placed(running, "p", 2) == node


JOBS = {5: (20, 500, 4), 2: (30, 400, 2), 1: (40, 200, 2), 4: (40, 300, 4), 3: (30, 300, 1), 6: (30, 200, 1)}
"""Cpu, GiB of memory and units of the headline of weighted balance, in the order in which they come."""


@pytest.mark.parametrize(
    ("parameters", "runs"),
    [({"on_no_improvement": "hold", "threshold": "1"}, [5, 1, 4]), ({}, [5, 2])],
    ids=["hold", "place"],
)
async def test_holding_back_leaves_nothing_of_a_node(
    tmp_path: Path, parameters: dict[str, str], runs: list[int]
) -> None:
    """Three jobs use all that there is; first come, first served, what two leave fits nobody."""
    async with dated() as api:
        make_node(api, "n1", (10,), cpu="100", memory="1000Gi")
        for number, (cpu, memory, units) in JOBS.items():
            made = [container(units=units, cpu=str(cpu), memory=f"{memory}Gi")]
            make_pod(api, f"job-{number}", units, containers=made)
        async with queue(api, tmp_path, policy("weighted-balance", **parameters)) as running:
            await running.admitted(*(f"job-{number}" for number in runs))
            for number in set(JOBS) - set(runs):
                await running.waits(f"job-{number}", "NoRoom")


async def test_holding_ends_after_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node becomes more level by the pod, and none is without GPU use."""
    monkeypatch.setattr(controller, "CHECK_EVERY_S", 1.0)
    parameters = {"on_no_improvement": "hold", "hold_rounds": "2", "threshold": "1"}
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16,), (6,))
        fill(api, "n1", "4", "50Gi")
        async with queue(api, tmp_path, policy("weighted-balance", **parameters)) as running:
            make_pod(api, "p", 1, containers=[container(units=1, cpu="0", memory="40Gi")])
            assert await running.waits("p", "NoRoom") == HELD_BACK
            await running.admitted("p")


USED = {"a": (32, 26, 14), "b": (35, 42, 5)}
"""Of 40 cores, 100 GiB and 16 units; which node is best depends on who waits."""


@pytest.mark.parametrize(("waits", "node"), [(False, "b"), (True, "a")], ids=["nobody waits", "one for cpu"])
async def test_who_waits_in_the_queue_steers(tmp_path: Path, node: str, *, waits: bool) -> None:
    async with ApiServer(seed=1) as api:
        for name, (cpu, memory, units) in USED.items():
            make_node(api, name, (16,), (units,))
            fill(api, name, str(cpu), f"{memory}Gi")
        if waits:
            make_pod(api, "waits", 1, containers=[container(units=1, cpu="41", memory="1Gi")])
        async with queue(api, tmp_path, policy("weighted-balance")) as running:
            asks = [container(units=2, cpu="4", memory="10Gi")]
            assert await placed(running, "p", 2, containers=asks) == node


async def test_a_slot_near_the_data_is_offered_first(tmp_path: Path) -> None:
    """n1 and n2 are idle and have slots of both types, data is on n2 only."""
    slots = "slots: {per: node, local: {count: 1}, free: {count: 1}}"
    async with dated() as api:
        make_node(api, "n1", (16,))
        make_node(api, "n2", (16,), labels={"data.gpupack.io/d": ""})
        names = [f"map-{number}" for number in range(4)]
        for name in names:
            make_pod(api, name, 1, annotations={POD_DATA: "d"})
        async with queue(api, tmp_path, f"{ONE_QUEUE}\n{slots}") as running:
            await running.admitted(*names)
            assert [node_of(running, name) for name in names] == ["n2", "n2", "n1", "n1"]


@pytest.mark.parametrize(
    ("launch", "order"), [("free-first", ["reduce", "map"]), ("fifo", ["map", "reduce"])]
)
async def test_the_order_of_launch(tmp_path: Path, launch: str, order: list[str]) -> None:
    """Both start on one node at one moment; of the second stage first, or the older one."""
    slots = "slots: {per: node, local: {count: 2}, free: {count: 0}}"
    async with dated() as api:
        make_node(api, "n1", (16, 16), labels={"data.gpupack.io/d": ""})
        make_pod(api, "map", 1, annotations={POD_DATA: "d"})
        make_pod(api, "reduce", 1)
        async with queue(api, tmp_path, f"{ONE_QUEUE}\n{slots}\nlaunchOrder: {launch}") as running:
            await running.admitted("map", "reduce")

            async def is_told() -> bool:
                return bool(running.events("map") and running.events("reduce"))

            await until(is_told)
            versions = {name: int(api.pod("default", name)["metadata"]["resourceVersion"]) for name in order}
            assert sorted(versions, key=versions.__getitem__) == order


async def test_further_resources_decide_where_the_configuration_names_them(tmp_path: Path) -> None:
    """While the process runs; a node where too little of it is left takes no pod."""
    disk = "ephemeral-storage"

    def asks(gib: int) -> list[dict[str, object]]:
        return [container(units=1, resources={disk: f"{gib}Gi"})]

    async with ApiServer(seed=1) as api:
        for name, used in (("n1", 950), ("n2", 600)):
            make_node(api, name, (16,), resources={disk: "1000Gi"})
            amounts = {"cpu": "1", disk: f"{used}Gi"}
            plain = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
            make_pod(api, f"on-{name}", 1, "", gates=(), containers=[plain], spec={"nodeName": name})
        config = policy("balanced", resources=disk)
        async with queue(api, tmp_path, f"{ONE_QUEUE}\nmode: batch", node_policy="balanced") as running:
            assert await placed(running, "before", 1, containers=asks(10)) == "n1"
            running.config.write_text(config.replace(disk, "disk"))

            async def refused() -> bool:
                return 'resources names "disk"; allowed:' in (await running.status())["fault"]

            await until(refused)
            api.delete_pod("default", "before", grace_s=0)
            running.config.write_text(config)

            async def taken() -> bool:
                return not (await running.status())["fault"]

            await until(taken)
            assert await placed(running, "after", 1, containers=asks(10)) == "n2"
            make_pod(api, "large", 1, containers=asks(500))
            assert disk in await running.waits("large", "NoRoom")
            make_pod(api, "too-large", 1, containers=asks(2000))
            assert disk in await running.waits("too-large", "NeverFits")
