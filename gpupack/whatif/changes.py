"""Clusters that are not there: with nodes gone, or added."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from allocator.errors import shown
from allocator.quantity import format_memory
from allocator.request import WHOLE
from allocator.texts import count_of
from gpupack.errors import InputError
from gpupack.inventory.objects import make_unknown_node_error
from gpupack.whatif.cluster import Cluster, read_requested_unit
from kubeapi.objects import Node
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.empty_nodes import make_empty_node
from scheduler_plugin.scheduling.node_fit import DEFAULT_MAX_PODS

_TIMES: Final = re.compile(r"(.+?)x([1-9][0-9]{0,3})")
_MOST: Final = 9999
_NUMBER: Final = re.compile(r"[-+]?[0-9]+([.,][0-9]*)?")
_MILLI: Final = 128_000
_BYTES: Final = 1 << 40
"""Thousandths of a core and bytes of host memory of an added node, where no node of the cluster has more."""


def apply_changes(
    cluster: Cluster, without: Sequence[str], add: Sequence[str]
) -> tuple[Cluster | None, list[str]]:
    """Build the changed cluster, with notes about it; None if nothing changes.

    Args:
        without: Names of nodes that are gone; their pods too, and nobody starts them elsewhere.
        add: Profiles of empty nodes, with `xN` for more than one.

    Raises:
        InputError: a node that there is not, or a profile.
    """
    if not (without or add):
        return None, []
    missing = set(without) - cluster.nodes.keys()
    if missing:
        raise make_unknown_node_error(missing)
    notes = []
    gone = frozenset(without)
    nodes = {name: node for name, node in cluster.nodes.items() if name not in gone}
    pods = {uid: pod for uid, pod in cluster.pods.items() if pod.spec.node_name not in gone}
    with_claims = {uid for claim in cluster.claims.values() if claim.results for uid in claim.pods}
    for name in sorted(gone):
        there = [
            pod
            for uid, pod in cluster.pods.items()
            if pod.spec.node_name == name
            and not pod.has_ended
            and (read_requested_unit(pod) is not None or uid in with_claims)
        ]
        if there:
            notes.append(
                f"the pods that run on {name} are gone with it ({len(there)}), and need room elsewhere when "
                "they are started again"
            )
    for text in add:
        profile, count = _profile(text)
        added = make_nodes(cluster, profile, count)
        nodes |= {node.metadata.name: node for node in added}
        notes.append(_describe_added(cluster, added[0], profile, count))
    return cluster.with_objects(nodes, pods), notes


def _profile(text: str) -> tuple[str, int]:
    """Read PROFILE or PROFILExN; a profile's own name may end like that."""
    from deviceplugin.gpus.simulated.profile import shipped_profiles  # noqa: PLC0415 - it loads YAML

    shipped = shipped_profiles()
    if text in shipped:
        return text, 1
    match = _TIMES.fullmatch(text)
    if match is not None:
        return match[1], int(match[2])
    profile, _, times = text.rpartition("x")
    # A file may be called like that: only a number that is wrong is refused then, if there is no such file.
    if profile in shipped or (profile and _NUMBER.fullmatch(times) and not _is_file(text)):
        raise InputError(
            f"--add {shown(text)}; allowed: the profile alone, or {shown(f'{profile}xN')} with N a whole "
            f"number from 1 to {_MOST}"
        )
    return text, 1


def _is_file(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def make_nodes(cluster: Cluster, profile: str, count: int) -> list[Node]:
    """Make empty nodes with the cards of a profile, with names that no node has.

    Raises:
        InputError: the profile cannot be read, or has no card of a unit or more.
    """
    from deviceplugin.errors import ProfileError  # noqa: PLC0415 - it loads YAML
    from deviceplugin.gpus.simulated.profile import load_profile  # noqa: PLC0415

    try:
        loaded = [each.card for each in load_profile(profile).cards]
    except ProfileError as error:
        raise InputError(str(error)) from error
    cards = [(card.model, card.schedulable_mib) for card in loaded]
    if not any(mib >= cluster.unit_mib for _, mib in cards):
        raise InputError(f"profile {profile}: no card has {cluster.unit_mib} MiB or more")
    arrays, records_by_name = cluster.state.nodes, cluster.state.node_records.values()
    made: list[Node] = []
    number = 0
    while len(made) < count:
        number += 1
        name = f"added-{number}"
        if name in cluster.nodes:
            continue
        amounts = Amounts(
            max([DEFAULT_MAX_PODS, *(each.capacity.pods for each in records_by_name)]),
            max(_MILLI, int(arrays.cpu_capacity.max(initial=0))),
            max(_BYTES, int(arrays.memory_capacity.max(initial=0))),
        )
        limit = int(arrays.compute_limit.max(initial=0)) or WHOLE
        made.append(make_empty_node(name, cards, cluster.unit_mib, amounts, compute_limit=limit))
    return made


def _describe_added(cluster: Cluster, node: Node, profile: str, count: int) -> str:
    row = Cluster({node.name: node}, {}, cluster.unit_mib).state.nodes
    sizes = row.size[row.rows[node.name], : int(row.cards[row.rows[node.name]])].tolist()
    largest = format_memory(max(sizes), cluster.unit_mib)
    cards = count_of(len(sizes), "card")
    return f"added {count_of(count, 'node')} of {profile}: {cards} each, the largest of {largest}"
