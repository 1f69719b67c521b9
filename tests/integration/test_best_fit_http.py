"""best-fit as users run it: the node whose card, or set of cards, the pod fits most tightly is the answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allocator.names import POD_CARDS, POD_GPU_MODEL
from standins.apiserver.server import ApiServer
from tests.cluster_builders import in_percent, uuid
from tests.extender_client import Client, extender
from tests.waiting import until

PICK = {"mode": "pick"}


async def ranked(client: Client, units: int, **pod: Any) -> list[str]:
    made = client.make_pod("p", units, **pod)
    await client.knows(made["metadata"]["uid"])
    return list((await client.filter(made, *sorted(client.state.nodes.rows)))["NodeNames"])


NODES = {"a": ((16, 16), (0, 14)), "b": ((16, 16), (13, 13))}
SETS = {"a": ((16,) * 4, (12, 12, 0, 0)), "b": ((16,) * 4, (11, 11, 16, 16))}
TWO_MODELS = {"a": ((16, 16), (8, 16), ("L4", "T4")), "b": ((16, 16), (13, 0), ("L4", "T4"))}


@pytest.mark.parametrize("parameters", [{}, PICK], ids=["candidates", "pick"])
@pytest.mark.parametrize(
    ("nodes", "units", "annotations", "best"),
    [
        (NODES, 2, {}, "a"),
        (NODES, 3, {}, "b"),
        (SETS, 8, {POD_CARDS: "2"}, "a"),
        (SETS, 10, {POD_CARDS: "2"}, "b"),
        (TWO_MODELS, 2, {POD_GPU_MODEL: "L4"}, "b"),
        (TWO_MODELS, 4, {POD_GPU_MODEL: "L4"}, "a"),
        (TWO_MODELS, 2, {POD_GPU_MODEL: "T4"}, "b"),
    ],
    ids=["exact card", "exact elsewhere", "exact set", "set elsewhere", "L4", "larger L4", "T4"],
)
async def test_the_tightest_admitted_cards_win(
    tmp_path: Path,
    parameters: dict[str, str],
    nodes: dict[str, Sequence[Sequence[Any]]],
    units: int,
    annotations: dict[str, str],
    best: str,
) -> None:
    """An amount that fits exactly on one card wins, whatever else the node has."""
    options = {"node_policy": "best-fit", "node_policy_parameters": parameters, "card_policy": "most-used"}
    async with ApiServer() as api, extender(tmp_path, api, **options) as client:
        for name, (sizes, used, *models) in nodes.items():
            client.make_node(name, sizes, used, models=models[0] if models else None)
        await until(client.ready)
        names = await ranked(client, units, annotations=annotations)
        assert names[0] == best
        assert parameters == {} or names == [best]


@pytest.mark.parametrize("parameters", [{}, PICK], ids=["candidates", "pick"])
async def test_nodes_are_compared_whatever_a_percent_of_their_cards_takes_most_of(
    tmp_path: Path, parameters: dict[str, str]
) -> None:
    """Beside half of 80 units 10 cores are little, beside half of 16 much: each is compared by its share."""
    options = {"node_policy": "best-fit", "node_policy_parameters": parameters}
    async with ApiServer() as api, extender(tmp_path, api, **options) as client:
        client.make_node("large", (80,), (20,))
        client.make_node("small", (16,), (0,), cpu="20")
        await until(client.ready)
        asks: Any = in_percent(50)
        asks["resources"]["requests"] = {**asks["resources"]["requests"], "cpu": "10"}
        assert (await ranked(client, 1, containers=[asks]))[0] == "small"


async def test_the_pod_gets_the_card_that_was_compared(tmp_path: Path) -> None:
    async with ApiServer() as api, extender(tmp_path, api, node_policy="best-fit") as client:
        for name, (sizes, used) in NODES.items():
            client.make_node(name, sizes, used)
        await until(client.ready)
        pod = client.make_pod("p", 2)
        await client.knows(pod["metadata"]["uid"])
        (name, *_) = (await client.filter(pod, "a", "b"))["NodeNames"]
        assert await client.bind(pod, name) == ""
        assigned = client.api.pod("default", "p")["metadata"]["annotations"]["gpupack.io/assigned"]
        assert uuid("a", 1) in assigned
