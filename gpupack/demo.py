"""`gpupack demo`: the main job from a pod's request to its card, on one machine, with every view compared."""

import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from gpupack import top
from gpupack.audit import faults, over_committed, views
from gpupack.embedded import WAIT_S, EmbeddedCluster, NeverCameError, until
from gpupack.errors import GpupackError
from scheduler_plugin.settings import Settings
from standins.scheduler import Unschedulable

NODES: Final = {"node-a100": "8xa100-40", "node-l40s": "4xl40s", "node-t4": "2xt4"}

PODS: Final[tuple[dict[str, Any], ...]] = (
    *({"units": [4]} for _ in range(6)),
    *({"units": [10]} for _ in range(4)),
    *({"units": [20]} for _ in range(2)),
    {"units": [39]},
    {"units": [44]},
    {"units": [16], "cards": 2},
    {"units": [32], "cards": 4},
    {"units": [3, 5]},
    {"units": [6], "init": 12},
    {"units": [6], "sidecar": 2},
    {"units": [14]},
)
TOO_LARGE: Final[dict[str, Any]] = {"units": [45]}
FREED: Final = 8

Shapes = Mapping[str, dict[str, Any]]
"""Pods by name: arguments of `EmbeddedCluster.pod_manifest`."""


class DemoFailedError(GpupackError):
    """A check did not hold."""


async def run(seed: int, node_policy: str, card_policy: str) -> None:
    """Run the demo and print it.

    Raises:
        SettingsError: no such policy.
        DemoFailedError: a card was over-committed, or the views disagree.
        GpupackError: something else did not go as it must.
    """
    Settings(node_policy=node_policy, card_policy=card_policy).check()
    click.echo(
        f"Starting an API server, {len(NODES)} nodes with simulated GPUs and the scheduler extender ..."
    )
    async with EmbeddedCluster(NODES, node_policy=node_policy, card_policy=card_policy, seed=seed) as cluster:
        await play(cluster)


async def play(cluster: EmbeddedCluster, *, wait_s: float = WAIT_S) -> None:
    """Place the pods, refuse one, free some; compare all views before, during and after.

    Args:
        cluster: a started one of `NODES`.
        wait_s: how long views may disagree, in seconds.

    Raises:
        DemoFailedError: a card was over-committed, or the views disagree.
        GpupackError: something else did not go as it must.
    """
    shapes = {f"pod-{number:02}": shape for number, shape in enumerate(PODS)}
    await _agree(cluster, "before", wait_s)
    _show(cluster, "Before: all cards are free")
    running = await _place(cluster, shapes)
    await _agree(cluster, "with all pods running", wait_s)
    _show(cluster, f"{len(running)} pods run")
    await _refuse(cluster)
    running = await _free(cluster, running, shapes)
    await _agree(cluster, f"after {FREED} pods have gone", wait_s)
    _show(cluster, f"After: {FREED} pods have gone, {len(running)} run on")
    click.echo(
        "Every check held: no card over-committed; kubelets, ledgers, words, extender and containers agree."
    )


async def _place(cluster: EmbeddedCluster, shapes: Shapes) -> list[str]:
    """Create the pods and place them, as kube-scheduler would; each placement is checked while it happens.

    Returns:
        The names of the pods that run; with some policies the last ones find no room.
    """
    placed = []
    for name, shape in shapes.items():
        pod = cluster.create(cluster.pod_manifest(name, **shape))
        try:
            node = await cluster.schedule(pod)
        except Unschedulable as reason:
            _say(name, shape, f"pending: {reason}")
        else:
            _say(name, shape, node)
            placed.append(name)
        _never_over(cluster)
    await until(lambda: all(_phase(cluster, name) == "Running" for name in placed), "all placed pods run")
    return placed


async def _refuse(cluster: EmbeddedCluster) -> None:
    """A pod that fits on no card stays pending, with the reason."""
    pod = cluster.create(cluster.pod_manifest("too-large", **TOO_LARGE))
    try:
        node = await cluster.schedule(pod)
    except Unschedulable as reason:
        _say("too-large", TOO_LARGE, f"pending: {reason}")
    else:
        raise DemoFailedError(f"a pod of {TOO_LARGE['units'][0]} GiB was placed on {node}, no card has that")


async def _free(cluster: EmbeddedCluster, running: list[str], shapes: Shapes) -> list[str]:
    """Delete some pods; their units come back. Returns those that run on."""
    gone = running[::2][:FREED]
    for name in gone:
        cluster.api.delete_pod("default", name)
    stay = [name for name in running if name not in gone]
    left = sum(_cost(shapes[name]) for name in stay)
    await until(lambda: _used(cluster) == left, f"the words come down to {left} units")
    return stay


async def _agree(cluster: EmbeddedCluster, when: str, wait_s: float) -> None:
    """Wait until all views agree, which they must once all events have arrived."""
    _never_over(cluster)
    try:
        await until(lambda: not faults(cluster), "views agree", wait_s=wait_s)
    except NeverCameError:
        raise DemoFailedError("\n".join([f"views disagree {when}:", *faults(cluster)])) from None


def _never_over(cluster: EmbeddedCluster) -> None:
    """Between two events views may differ, but no card may ever hold more than it has."""
    over = over_committed(cluster)
    if over:
        raise DemoFailedError("\n".join(over))


def _phase(cluster: EmbeddedCluster, name: str) -> str:
    status = cluster.api.pod("default", name)["status"]
    if status.get("phase") == "Failed":
        raise DemoFailedError(f"{name} failed: {status.get('reason')}: {status.get('message')}")
    return str(status.get("phase"))


def _cost(shape: dict[str, Any]) -> int:
    """Units that a pod of this shape holds."""
    return int(max(sum(shape["units"]) + shape.get("sidecar", 0), shape.get("init", 0)))


def _used(cluster: EmbeddedCluster) -> int:
    """Units used on all cards, as the packed words say."""
    return sum(sum(views(cluster, node).used["words"]) for node in cluster.nodes.values())


def _say(name: str, shape: dict[str, Any], what: str) -> None:
    click.echo(f"  {name:9}  {_wish(shape):28} -> {what}")


def _wish(shape: dict[str, Any]) -> str:
    """Say what a pod asks for."""
    wish = " + ".join(f"{units} GiB" for units in shape["units"])
    if "cards" in shape:
        wish += f" over {shape['cards']} cards"
    if "init" in shape:
        wish += f", init container {shape['init']} GiB"
    if "sidecar" in shape:
        wish += f", sidecar {shape['sidecar']} GiB"
    return wish


def _show(cluster: EmbeddedCluster, title: str) -> None:
    click.echo(f"\n{title}")
    click.echo(top.render(top.rows(cluster.node_list()), "table", colour=sys.stdout.isatty()) + "\n")
