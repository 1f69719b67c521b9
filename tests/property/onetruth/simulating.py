"""Compares what the simulator makes of a scene."""

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from gpupack.whatif.simulating import trace_of
from gpupack.whatif.snapshot import NODE_HEADER, POD_HEADER
from scheduler_plugin.errors import TraceError
from scheduler_plugin.simulator.cluster import Cluster as Simulated
from scheduler_plugin.simulator.trace import read_nodes, read_pods

from . import truth
from .agreeing import agree
from .host import request_of
from .places import Places
from .scene import Scene


def check_simulator(scene: Scene, places: Places) -> None:
    """The simulator has the cards and the requests of the cluster; nobody runs there when it begins.

    It differs on purpose: cards that are out of use are cards there, of a pod with several containers each
    asks for as much as the largest, and percent are units of the card that there is most.
    """
    try:
        taken = trace_of(places.cluster)
    except TraceError:
        return
    rows = [dict(zip(NODE_HEADER, row, strict=True)) for row in taken.nodes]
    kinds = Counter(
        (name, card.model, card.size_units)
        for name in places.usable
        for card in places.top[name].cards
        if card.size_units
    )
    simulated = {(str(row["sn"])[:2], row["model"], row["card_units"]): row["gpu"] for row in rows}
    agree("cards", {"top": dict(kinds), "simulator": simulated})
    asked = {str(row[0]): dict(zip(POD_HEADER, row, strict=True)) for row in taken.pods}
    nodes, pods = map(str, taken.write(Path(_folder().name)))
    cluster = Simulated(read_nodes(nodes, _unsaid))
    traced = {pod.name: pod for pod in read_pods(pods, (), _unsaid)}
    for name in scene.asking:
        request = request_of(scene.pods[name])
        if len(request.demands) > 1 or request.percent or f"default/{name}" not in traced:
            continue
        (demand,) = request.demands
        row = asked[f"default/{name}"]
        agree(
            f"what {name} asks for",
            {"filter": (demand.cards, demand.per_card), "simulator": (row["num_gpu"], row["gpu_units"])},
        )
        fitting = cluster.fitting(cluster.kind(traced[f"default/{name}"], "least-used"))
        found = {cluster.arrays.names[row] for row in fitting.tolist()}
        cpu = truth.cpu_of(scene.pods[name]) * 1000
        expected = {
            str(row["sn"])
            for row in rows
            if int(row["card_units"]) >= demand.per_card
            and int(row["gpu"]) >= demand.cards
            and int(row["cpu_milli"]) >= cpu
            and (request.selector.admits_model(str(row["model"])) or not asked[f"default/{name}"]["gpu_spec"])
        }
        agree(f"empty nodes that take {name}", {"truth": expected, "simulator": found})


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One folder for all scenes: to remove one takes longer than all else."""
    return tempfile.TemporaryDirectory(prefix="gpupack-")


def _unsaid(_line: str) -> None:
    """Say nothing."""
