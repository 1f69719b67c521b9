"""Whose turn it is: by units of GPU memory, or by each queue's dominant share."""

import pytest

from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.queue.cache.queues import find_dominant
from scheduler_plugin.queue.controller.status import report_queues
from tests.queue_world import QueueWorld

DOMINANT = "fairSharing: dominant\n"
TWO = "queues: [{name: a}, {name: b}]"


def make(config: str) -> QueueWorld:
    """Queue a has little GPU memory and much of the processor, queue b it is the other way round."""
    world = QueueWorld(config)
    world.node("n1", (16, 16), cpu="20", memory="100Gi")
    world.pod("a0", 1, queue="a", cpu="12")
    world.pod("b0", 4, queue="b", cpu="1")
    assert sorted(world.admitted()) == ["a0", "b0"]
    world.bind("uid-a0", "uid-b0")
    # There is processor for one of them.
    world.pod("a1", 1, queue="a", cpu="5", created=1)
    world.pod("b1", 1, queue="b", cpu="5", created=2)
    return world


@pytest.mark.parametrize(
    ("config", "admitted"),
    [
        (TWO, "a1"),
        (f"fairSharing: units\n{TWO}", "a1"),
        (DOMINANT + TWO, "b1"),
        (f"{DOMINANT}queues: [{{name: a, weight: 6}}, {{name: b}}]", "a1"),
        (f"{DOMINANT}{TWO}\nslots: {{per: node, local: {{count: 2}}, free: {{count: 2}}}}", "b1"),
    ],
    ids=("default", "units", "dominant", "weight", "slots"),
)
def test_the_dominant_share_decides_where_that_is_asked_for(config: str, admitted: str) -> None:
    """Units: 1 and 4. Dominant: a has 12 of 20 cores, b 4 of 32 units; by a weight of 6 a has less."""
    assert make(config).admitted() == [admitted]


def test_shares_follow_what_runs_and_what_there_is() -> None:
    """And are told, with the resource that dominates."""
    world = make(DOMINANT + TWO)
    assert world.admitted() == ["b1"]

    def shares() -> dict[str, tuple[float, str]]:
        return {
            each.name: (each.weighted_share, each.dominant_resource) for each in report_queues(world.queue, 0)
        }

    assert shares() == {"a": (0.6, "cpu"), "b": (0.3, "cpu")}
    world.node("n2", (16, 16), cpu="60", memory="100Gi")
    world.decide()
    assert shares() == {"a": (0.2125, "cpu"), "b": (5 / 64, "gpu-memory")}
    world.delete("uid-a0")
    assert shares()["a"] == (0.0625, "cpu")
    world.configure(TWO)
    assert shares()["a"] == (0.0, "")


def make_amounts(units: int, cpu_milli: int, memory_bytes: int) -> Amounts:
    return Amounts(units=units, cpu_milli=cpu_milli, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("has", "total", "found"),
    [
        ((8, 16, 20), (320, 256, 1024), ("cpu", 1 / 16)),
        ((20, 8, 16), (320, 256, 1024), ("gpu-memory", 1 / 16)),
        ((20, 4, 128), (320, 256, 1024), ("memory", 1 / 8)),
        ((20, 16, 64), (320, 256, 1024), ("gpu-memory", 1 / 16)),
        ((1, 5, 0), (2, 0, 0), ("gpu-memory", 1 / 2)),
        ((0, 0, 0), (2, 2, 2), ("", 0.0)),
    ],
)
def test_the_resource_that_dominates(
    has: tuple[int, int, int], total: tuple[int, int, int], found: tuple[str, float]
) -> None:
    """The largest part counts, of equal ones the first; what the cluster has none of is left out."""
    assert find_dominant(make_amounts(*has), make_amounts(*total)) == found
