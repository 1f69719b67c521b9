"""Compares what the simulator makes of a scene."""

import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from allocator.cards import Card
from allocator.ids import device_names
from allocator.names import DRA_MEMORY
from allocator.selector import ANY_CARD
from gpupack.whatif.simulation import make_trace
from gpupack.whatif.snapshot import NODE_HEADER, POD_HEADER
from scheduler_plugin.errors import TraceError
from scheduler_plugin.simulator.cluster import SimulatedCluster as Simulated
from scheduler_plugin.simulator.trace import read_nodes, read_pods

from . import truth
from .agreeing import agree
from .host import request_of
from .places import Places
from .scene import Scene
from .truth import MANY


def check_simulator(scene: Scene, places: Places) -> None:
    """The simulator has the cards and the requests of the cluster; nobody runs there when it begins.

    It differs on purpose: cards that are out of use are cards there, and cards of several kinds on a node are
    several nodes.
    """
    try:
        taken = make_trace(places.cluster)
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
    _check_claims(scene, places, {name: str(row["gpu_units"]) for name, row in asked.items()})
    for name in scene.asking:
        request = request_of(scene.pods[name])
        if f"default/{name}" not in traced:
            continue
        row, pod = asked[f"default/{name}"], traced[f"default/{name}"]
        agree(
            f"what {name} asks for",
            {
                "filter": [
                    (demand.cards, demand.per_card, request.percent, demand.compute)
                    for demand in request.demands
                ],
                "simulator": [
                    (demand.cards, demand.per_card, pod.percent, demand.compute)
                    for demand in pod.make_request(pod.gpu_units).demands
                ],
            },
        )
        if not row["gpu_spec"]:
            # A pod that admits no model that is there is written as if it admitted all.
            request = replace(request, selector=ANY_CARD)
        if request.percent and request.same_cards:
            # A trace does not say how small the smallest of the containers is that share a card.
            continue
        fitting = cluster.filter_rows(cluster.get_kind(pod, "least-used"))
        found = {cluster.arrays.names[row] for row in fitting.tolist()}
        cpu = truth.cpu_of(scene.pods[name]) * 1000
        expected = {
            str(node["sn"])
            for node in rows
            if truth.fits(_empty_cards(node), request) and int(node["cpu_milli"]) >= cpu
        }
        agree(f"empty nodes that take {name}", {"truth": expected, "simulator": found})


def _check_claims(scene: Scene, places: Places, asked: dict[str, str]) -> None:
    """Pods with claims ask for what these have of the cards that are there."""
    for pod in scene.pods.values():
        if truth.asks(pod):
            continue
        name, units = pod["metadata"]["name"], []
        for claim in scene.claims_of(pod):
            users = [each["name"] for each in claim["status"]["reservedFor"] if each["name"] in scene.pods]
            if users[0] != name:
                continue  # a claim that pods share is the first one's
            for result in claim["status"]["allocation"]["devices"]["results"]:
                cards = places.top[result["pool"]].cards
                devices = device_names([card.uuid for card in cards if card.uuid is not None])
                size = {devices[card.uuid]: card.size_units for card in cards if card.uuid is not None}
                amount = result.get("consumedCapacity", {}).get(DRA_MEMORY, "0Gi")
                count = int(amount[:-2])
                units.append(min(count or MANY, size.get(result["device"], count)))
        told = "|".join(str(count) for count in units if count)
        agree(f"what {name} has", {"truth": told, "simulator": asked.get(f"default/{name}", "")})


def _empty_cards(node: dict[str, Any]) -> list[Card]:
    """Empty cards, as many and as large as those of a row, which give away as much of their compute."""
    card = Card(
        0, "", str(node["model"]), int(node["card_units"]), 0, compute_limit=int(node["compute_limit"])
    )
    return [replace(card, index=at, uuid=f"GPU-{at}") for at in range(int(node["gpu"]))]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One folder for all scenes: to remove one takes longer than all else."""
    return tempfile.TemporaryDirectory(prefix="gpupack-")


def _unsaid(_line: str) -> None:
    """Say nothing."""
