"""Plays the demo: pods get their cards, some go, and the same pods without the extender."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from allocator.names import PACKED_LAYOUT, PACKED_USED_PREFIX
from allocator.packing import Layout, read_node
from allocator.quantity import parse_integer
from allocator.texts import name_cards
from gpupack import inventory
from gpupack.audit import collect_views, find_faults, find_over_committed, list_pod_units
from gpupack.demo.plain import PodFate, play_plain
from gpupack.demo.pods import (
    NODES,
    TOO_LARGE,
    Shapes,
    count_units,
    count_whole_gpus,
    describe_request,
    shuffle_shapes,
)
from gpupack.embedded import WAIT_S, EmbeddedCluster, TimedOutError, wait_until
from gpupack.errors import GpupackError
from gpupack.terminal import wants_colour
from scheduler_plugin.settings import Settings
from standins.scheduler import Unschedulable

FREED: Final = 8
SHOWN_REFUSALS: Final = 3
REFUSAL_SIGNS: Final = 120

NEXT: Final = """Next, with the pods in another order: {command} demo --seed {seed}
On a cluster, once gpupack is installed (docs/install.md), for every node whose GPUs are to be shared:
  kubectl label node NODE gpupack.io/node=true"""


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
        await play(cluster, seed)


async def play(cluster: EmbeddedCluster, seed: int = 1, *, wait_s: float = WAIT_S) -> None:
    """Place the pods, refuse one, free some, and place them without the extender; compare all views.

    Raises:
        DemoFailedError: a card was over-committed, or the views disagree.
        GpupackError: something else did not go as it must.
    """
    pods = shuffle_shapes(seed)
    await _agree(cluster, "before", wait_s)
    _show(cluster, "Before: all cards are free")
    running = await _place(cluster, pods)
    await _agree(cluster, "with all pods running", wait_s)
    _show(cluster, f"{len(running)} pods run")
    _compare(cluster, [pods[name] for name in running])
    _decode(cluster)
    await _refuse(cluster)
    gone = running[::2][:FREED]
    running = [name for name in running if name not in gone]
    await _free(cluster, gone, sum(count_units(pods[name]) for name in running))
    await _agree(cluster, f"after {FREED} pods have gone", wait_s)
    _show(cluster, f"After: {FREED} pods have gone, {len(running)} run on")
    await _free(cluster, [name for name in [*pods, "too-large"] if name not in gone], 0)
    await _without_extender(cluster, pods, seed)
    click.echo(
        "Every check held: no card over-committed; kubelets, ledgers, words, extender and containers agree.\n"
    )
    command = ".venv/bin/gpupack" if shutil.which("gpupack") is None else "gpupack"
    click.echo(NEXT.format(command=command, seed=seed + 1))


async def _place(cluster: EmbeddedCluster, pods: Shapes) -> list[str]:
    """Create and place the pods, checking each placement; return the names of those that run."""
    fates: dict[str, str] = {}
    for name, shape in pods.items():
        pod = cluster.create(cluster.make_pod_manifest(name, **shape))
        try:
            fates[name] = await cluster.schedule(pod)
        except Unschedulable as reason:
            _say(name, shape, f"pending: {reason}")
        _never_over(cluster)
    await wait_until(lambda: all(_phase(cluster, name) == "Running" for name in fates), "all placed pods run")
    for name, node in fates.items():
        cards = list_pod_units(
            cluster, cluster.nodes[node], cluster.api.pod("default", name)["metadata"]["uid"]
        )
        _say(name, pods[name], f"{node}, {name_cards(sorted(cards))}")
    return list(fates)


def _compare(cluster: EmbeddedCluster, running: list[dict[str, Any]]) -> None:
    """Count the cards that are in use, and what the same pods would need without sharing."""
    used = [units for node in cluster.nodes.values() for units in collect_views(cluster, node).used["words"]]
    need = sum(count_whole_gpus(shape) for shape in running)
    click.echo(
        f"{len(running)} pods on {sum(units > 0 for units in used)} cards; "
        f"whole GPUs need {need}, and there are {len(used)}.\n"
    )


def _decode(cluster: EmbeddedCluster) -> None:
    """Decode a word step by step, of the node with the most cards in use."""
    in_use = {
        name: sum(units > 0 for units in collect_views(cluster, node).used["words"])
        for name, node in cluster.nodes.items()
    }
    name = max(in_use, key=in_use.__getitem__)
    resources = cluster.api.node(name)["status"]["allocatable"]
    steps, values = explain_word(resources)
    words = read_node(resources)
    if words is None or list(words.used[: len(values)]) != values:
        raise DemoFailedError(f"{name}: a word decoded step by step says {values}, the product reads {words}")
    click.echo(f"How {name} says so, in two integers of its status:")
    click.echo("\n".join(f"  {step}" for step in steps) + "\n")


async def _refuse(cluster: EmbeddedCluster) -> None:
    """Create a pod that fits on no card: it stays pending, with the reason."""
    pod = cluster.create(cluster.make_pod_manifest("too-large", **TOO_LARGE))
    try:
        node = await cluster.schedule(pod)
    except Unschedulable as reason:
        _say("too-large", TOO_LARGE, f"pending: {reason}")
    else:
        raise DemoFailedError(f"a pod of {TOO_LARGE['units'][0]} GiB was placed on {node}, no card has that")


async def _free(cluster: EmbeddedCluster, gone: Iterable[str], left: int) -> None:
    """Delete pods; their units come back until `left` are in use."""
    for name in gone:
        cluster.api.delete_pod("default", name)
    await wait_until(lambda: _used(cluster) == left, f"the words come down to {left} units")
    await wait_until(
        lambda: not any(cluster.api.has_pod("default", name) for name in gone), "deleted pods are gone"
    )


async def _without_extender(cluster: EmbeddedCluster, pods: Shapes, seed: int) -> None:
    """Place the same pods by the sums of nodes, and say what becomes of them.

    Not even so may a card hold more than it has. That all views agree is not waited for: what a refused pod's
    first containers were given counts for 10 s more.
    """
    pods = {**pods, "too-large": TOO_LARGE}
    fates = await play_plain(cluster, pods, seed)
    _never_over(cluster)
    if fates["too-large"].has_started:
        raise DemoFailedError(f"a pod of {TOO_LARGE['units'][0]} GiB runs, no card has that")
    _tell_plain(fates, pods)


def _tell_plain(fates: dict[str, PodFate], pods: Shapes) -> None:
    """Say what became of the pods that kube-scheduler placed alone."""
    refused = {name: fate for name, fate in fates.items() if fate.refusal is not None}
    waiting = sum(fate.node is None for fate in fates.values())
    click.echo("The same pods with kube-scheduler alone, which sees the sum of each node's cards:")
    for name, fate in list(refused.items())[:SHOWN_REFUSALS]:
        _say(name, pods[name], f"{fate.node}, whose kubelet refuses it: {_short(fate.refusal or '')}")
    if len(refused) > SHOWN_REFUSALS:
        click.echo(f"  and {len(refused) - SHOWN_REFUSALS} more")
    if waiting:
        click.echo(f"  {waiting} pending: no node has so much left in sum")
    click.echo(
        f"{len(refused)} of {len(fates)} pods fail for good in the kubelet (UnexpectedAdmissionError); "
        "a Deployment would go on creating more."
    )
    if "too-large" in refused:
        click.echo("One of them is the pod that no card can take: with gpupack it waits, and says why.")
    click.echo()


def _short(refusal: str) -> str:
    """Extract the device plugin's own message from the kubelet's and gRPC's text around it."""
    said = (
        refusal.rpartition("desc = ")[2].partition(": the kubelet offers")[0].partition("; was this pod")[0]
    )
    return said if len(said) <= REFUSAL_SIGNS else said[: REFUSAL_SIGNS - 3] + "..."


async def _agree(cluster: EmbeddedCluster, when: str, wait_s: float) -> None:
    """Wait until all views agree, which they must once all events have arrived."""
    _never_over(cluster)
    try:
        await wait_until(lambda: not find_faults(cluster), "views agree", wait_s=wait_s)
    except TimedOutError:
        raise DemoFailedError("\n".join([f"views disagree {when}:", *find_faults(cluster)])) from None


def _never_over(cluster: EmbeddedCluster) -> None:
    """Between two events views may differ, but no card may ever hold more than it has."""
    over = find_over_committed(cluster)
    if over:
        raise DemoFailedError("\n".join(over))


def _phase(cluster: EmbeddedCluster, name: str) -> str:
    status = cluster.api.pod("default", name)["status"]
    if status.get("phase") == "Failed":
        raise DemoFailedError(f"{name} failed: {status.get('reason')}: {status.get('message')}")
    return str(status.get("phase"))


def _used(cluster: EmbeddedCluster) -> int:
    return sum(sum(collect_views(cluster, node).used["words"]) for node in cluster.nodes.values())


def _say(name: str, shape: dict[str, Any], what: str) -> None:
    click.echo(f"  {name:9}  {describe_request(shape):28} -> {what}")


def _show(cluster: EmbeddedCluster, title: str) -> None:
    click.echo(f"\n{title}")
    click.echo(
        inventory.render(inventory.build_rows(cluster.list_nodes()), "table", colour=wants_colour()) + "\n"
    )


def explain_word(resources: Mapping[str, str | int]) -> tuple[list[str], list[int]]:
    """Decode the first word of used units of a node: the steps in lines, and the units by card."""
    header = parse_integer(resources[PACKED_LAYOUT])
    layout = Layout.from_header(header)
    word = parse_integer(resources[f"{PACKED_USED_PREFIX}0"])
    fields = min(layout.cards_per_word, layout.cards)
    mask = (1 << layout.bits) - 1
    values = [word >> field * layout.bits & mask for field in range(fields)]
    return list(_steps(header, layout, word, values)), values


def _steps(header: int, layout: Layout, word: int, values: list[int]) -> Iterator[str]:
    yield f"{PACKED_LAYOUT} is {header}. From its low bits upwards:"
    yield f"    4 bits: version          {header & 0xF}"
    yield f"    6 bits: bits a card      {header >> 4 & 0x3F}"
    yield f"   10 bits: cards            {header >> 10 & 0x3FF}"
    yield f"   24 bits: MiB a unit       {header >> 20}"
    digits = f"{word:0{len(values) * layout.bits}b}"
    groups = [digits[start : start + layout.bits] for start in range(0, len(digits), layout.bits)]
    yield f"{PACKED_USED_PREFIX}0 is {word}, in groups of {layout.bits} bits: {' '.join(groups)}"
    mask = (1 << layout.bits) - 1
    for card, value in enumerate(values):
        shift = card * layout.bits
        yield f"   card {card}: {word} >> {shift:2} & {mask} = {value:2}   {value} units in use"
