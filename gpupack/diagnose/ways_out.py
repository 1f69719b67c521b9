"""What would let a pod that waits start: each way is computed, and checked by asking filter again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from allocator.names import POD_CARDS, POD_GPU_MODEL, POD_GPU_UUID
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector
from gpupack.diagnose.evictions import fewest_ends
from gpupack.rebalance.verified_ways import moves_for
from gpupack.whatif.answers import PodUnits, WayOut
from gpupack.whatif.kube_checks import CORDONED, NOT_READY, PORTS, SELECTOR, SYSTEM, TAINT
from gpupack.whatif.node_results import Verdicts
from gpupack.whatif.trials import Held, Trial, numbers
from kubeapi.selectors import UNSCHEDULABLE, NodeRules
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.scheduling.available import widened
from scheduler_plugin.scheduling.reasons import REASONS, memory

_MOST_CARDS: Final = 8
_MODELS: Final = 3
_NEVER_BY_ENDS: Final = frozenset(
    {SELECTOR, TAINT, CORDONED, NOT_READY, PORTS}
    | {reason.json_name for reason, wording in REASONS.items() if not wording.freed_by_ends}
)
"""Nodes that no pod's end opens."""


def ways_out(trial: Trial, verdicts: Verdicts, held: Held) -> Iterator[WayOut]:
    """Give what would let a pod start, the cheapest first.

    Args:
        trial: The pod; no node takes it.
        verdicts: Why not.
        held: What pods have.
    """
    yield from _smaller(trial)
    yield from _more_cards(trial)
    yield from _stars(trial)
    yield from _other_cards(trial)
    yield from _other_nodes(trial, verdicts)
    yield from _ends(trial, verdicts, held)
    moves = moves_for(trial, held)
    if moves is not None:
        yield moves


def _with_units(request: PodRequest, number: int, units: int) -> PodRequest:
    containers = list(request.containers)
    containers[number] = replace(containers[number], units=units)
    return replace(request, containers=tuple(containers))


def _smaller(trial: Trial) -> Iterator[WayOut]:
    """The largest smaller request of the container that asks for most."""
    request = trial.query.request
    number = max(range(len(request.containers)), key=lambda i: request.containers[i].units)
    container = request.containers[number]
    fits, too_much = 0, container.units // request.cards
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if len(trial.asking(_with_units(request, number, middle * request.cards)).rows()):
            fits = middle
        else:
            too_much = middle
    if not fits:
        return
    units = fits * request.cards
    node = trial.asking(_with_units(request, number, units)).nodes()[0]
    several = len(request.containers) > 1
    whose = f"container {container.name} asking for " if several else "a request of "
    yield WayOut(
        "smaller-request",
        f"{whose}{_amount(trial, units)}{_on(request)} in place of {_amount(trial, container.units)} "
        f"{trial.fits} now, on node {node}",
        node=node,
        units=units,
        container=container.name if several else "",
    )


def _for(trial: Trial) -> str:
    return "" if trial.is_alone else f" for {trial.who}"


def _on(request: PodRequest) -> str:
    return "" if request.cards == 1 else f" over {request.cards} cards"


def _amount(trial: Trial, units: int) -> str:
    return f"{units} percent" if trial.query.request.percent else memory(units, trial.cluster.unit_mib)


def _more_cards(trial: Trial) -> Iterator[WayOut]:
    """The same units over more cards, for software that can split."""
    request = trial.query.request
    if request.percent or any(container.kind == "init" for container in request.containers):
        return
    for cards in range(request.cards + 1, _MOST_CARDS + 1):
        if not any(_splits(container, cards) for container in request.containers):
            continue
        if all(container.units % cards == 0 for container in request.containers):
            found = trial.asking(replace(request, cards=cards)).nodes()
            if found:
                how = f'annotation {POD_CARDS}: "{cards}"'
                yield WayOut(
                    "more-cards",
                    f"the same units over {cards} cards of one node ({how}){_for(trial)} fit now, on node "
                    f"{found[0]}, "
                    "if the software can split",
                    node=found[0],
                    cards=cards,
                )
                return


def _splits(container: ContainerRequest, cards: int) -> bool:
    return container.units >= cards


def _stars(trial: Trial) -> Iterator[WayOut]:
    """Stars around the patterns of models, which people forget."""
    request, cluster = trial.query.request, trial.cluster
    wider = widened(cluster.state.nodes, request.selector, cluster.rows)
    if wider is None:
        return
    starred = trial.asking(replace(request, selector=wider))
    found = starred.nodes()
    if found:
        how = f'annotation {POD_GPU_MODEL}: "{", ".join(wider.models)}"'
        model = _model(starred, found[0])
        yield WayOut(
            "model-pattern",
            f"with stars ({how}) it {trial.fits} now, on {_count(found)}, first {found[0]}"
            + (f" ({model})" if model else ""),
            node=found[0],
            model=model,
        )


def _other_cards(trial: Trial) -> Iterator[WayOut]:
    """Cards that the pod's selectors do not admit."""
    request = trial.query.request
    selector = request.selector
    wider = []
    if selector.models or selector.excluded_models:
        wider.append((POD_GPU_MODEL, Selector(uuids=selector.uuids, excluded_uuids=selector.excluded_uuids)))
    if selector.uuids or selector.excluded_uuids:
        models = Selector(models=selector.models, excluded_models=selector.excluded_models)
        wider.append((POD_GPU_UUID, models))
    for annotation, other in wider:
        freed = trial.asking(replace(request, selector=other))
        found = freed.nodes()
        if found:
            model = _model(freed, found[0])
            yield WayOut(
                "other-model" if annotation == POD_GPU_MODEL else "other-card",
                f"without the annotation {annotation} it {trial.fits} now, on {_count(found)}, "
                f"first {found[0]}" + (f" ({model})" if model else ""),
                node=found[0],
                model=model,
            )


def _count(names: list[str]) -> str:
    return "1 node" if len(names) == 1 else f"{len(names)} nodes"


def _model(trial: Trial, node: str) -> str:
    """The model of the card that the pod would get."""
    placement = trial.place(node)
    nodes = trial.cluster.state.nodes
    if placement is None:
        return ""
    model = int(nodes.model[nodes.rows[node], min(placement.charge)])
    return nodes.model_names[model] if model >= 0 else ""


def _other_nodes(trial: Trial, verdicts: Verdicts) -> Iterator[WayOut]:
    """Nodes that have the cards, and that taints, selectors or a cordon keep from the pod."""
    reasons = {block.reason for block in verdicts.blocks.values()}
    wish, tolerates = trial.wish, trial.wish.tolerates
    if TAINT in reasons:
        tolerant = replace(
            trial,
            wish=replace(wish, tolerates=lambda taint: not taint.key.startswith(SYSTEM) or tolerates(taint)),
        )
        for node in tolerant.nodes(only=_rows(trial, verdicts, TAINT))[:1]:
            taint = ", ".join(trial.cluster.hosts.taints(node, wish))
            yield WayOut(
                "toleration",
                f"node {node} has the cards{_for(trial)}: it takes the pod once the pod tolerates {taint}",
                node=node,
                taint=taint,
            )
    if SELECTOR in reasons:
        free = replace(trial, wish=replace(wish, rules=NodeRules()))
        for node in free.nodes(only=_rows(trial, verdicts, SELECTOR))[:1]:
            yield WayOut(
                "node-selector",
                f"node {node} has the cards{_for(trial)}: "
                "the pod's nodeSelector or node affinity keeps it off",
                node=node,
            )
    if CORDONED in reasons:
        tolerant = replace(
            trial, wish=replace(wish, tolerates=lambda taint: taint == UNSCHEDULABLE or tolerates(taint))
        )
        for node in tolerant.nodes(only=_rows(trial, verdicts, CORDONED))[:1]:
            yield WayOut(
                "uncordon",
                f"node {node} has the cards{_for(trial)} and is cordoned: `kubectl uncordon {node}` opens it",
                node=node,
            )


def _rows(trial: Trial, verdicts: Verdicts, reason: str) -> RowArray:
    nodes = trial.cluster.state.nodes
    rows = trial.cluster.rows
    return rows[
        [
            (block := verdicts.blocks.get(nodes.names[row])) is not None and block.reason == reason
            for row in rows.tolist()
        ]
    ]


def _ends(trial: Trial, verdicts: Verdicts, held: Held) -> Iterator[WayOut]:
    """The fewest pods whose end frees the cards."""
    skip = frozenset(name for name, block in verdicts.blocks.items() if block.reason in _NEVER_BY_ENDS)
    end = fewest_ends(trial, held, skip)
    if end is None:
        return
    pods = tuple(
        PodUnits(
            pod.namespace,
            pod.name,
            sum(held.of(pod).values()),
            numbers(trial.cluster, end.node, held.of(pod).keys()),
        )
        for pod in end.pods
    )
    said = ", ".join(
        f"{pod.namespace}/{pod.pod} ({memory(pod.units, trial.cluster.unit_mib)})" for pod in pods
    )
    what = "the end of one pod frees" if len(pods) == 1 else f"the end of {len(pods)} pods frees"
    yield WayOut(
        "pods-end",
        f"{what} the cards{_for(trial)} on node {end.node}: {said}",
        node=end.node,
        pods=pods,
        fewest=end.fewest,
    )
