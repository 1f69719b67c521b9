"""Finds what would let a pod that waits start; each way is checked by asking filter again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from allocator.names import (
    COMPUTE_RESOURCE,
    POD_CARDS,
    POD_CONTAINERS,
    POD_GPU_MODEL,
    POD_GPU_UUID,
    POD_MIXED_MODELS,
)
from allocator.quantity import format_memory
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector
from allocator.texts import count_of, list_some
from gpupack.diagnose.evictions import can_start_without, find_fewest_evictions
from gpupack.rebalance.verified_moves import find_verified_moves
from gpupack.whatif.answers import PodUnits, WayOut
from gpupack.whatif.gangs import find_gang_key
from gpupack.whatif.kube_checks import SYSTEM
from gpupack.whatif.node_results import NodeResults
from gpupack.whatif.objects import read_revision
from gpupack.whatif.what_if import PodCardUsage, WhatIf, list_card_numbers
from kubeapi.selectors import UNSCHEDULABLE, NodeRules
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.scheduling.available import widen_patterns
from scheduler_plugin.scheduling.node_fit import CORDONED, LASTING, SELECTOR, TAINT
from scheduler_plugin.scheduling.reasons import Cure, FilterReason

_MOST_CARDS: Final = 8
_PODS_NAMED: Final = 8
_NEVER_BY_ENDS: Final = frozenset(
    LASTING | {reason.json_name for reason in FilterReason if Cure.PODS_END not in reason.cures}
)
"""Nodes that no pod's end opens."""


def find_ways_out(
    what_if: WhatIf, results: NodeResults, usage: PodCardUsage, *, moves: bool
) -> Iterator[WayOut]:
    """Give what would let a pod start, the cheapest first."""
    yield from _smaller(what_if)
    yield from _less_compute(what_if)
    yield from _more_cards(what_if)
    yield from _stars(what_if)
    yield from _no_rules(what_if)
    yield from _other_cards(what_if)
    yield from _other_nodes(what_if, results)
    yield from _ends(what_if, results, usage)
    found = find_verified_moves(what_if, usage) if moves else None
    if found is not None:
        yield found


def _with_units(request: PodRequest, number: int, units: int) -> PodRequest:
    containers = list(request.containers)
    containers[number] = replace(containers[number], units=units)
    return replace(request, containers=tuple(containers))


def _smaller(what_if: WhatIf) -> Iterator[WayOut]:
    """Try smaller requests of the container that asks for most, and give the largest one that fits."""
    request = what_if.query.request
    number = max(range(len(request.containers)), key=lambda i: request.containers[i].units)
    container = request.containers[number]
    units = request.cards * _find_largest(
        lambda each: what_if.with_request(_with_units(request, number, each * request.cards)),
        container.units // request.cards,
    )
    if not units:
        return
    node = what_if.with_request(_with_units(request, number, units)).rank_nodes()[0]
    several = len(request.containers) > 1
    whose = f"container {container.name} asking for " if several else "a request of "
    yield WayOut(
        "smaller-request",
        f"{whose}{_amount(what_if, units)}{_over_cards(request)} in place of "
        f"{_amount(what_if, container.units)} {what_if.fits_phrase} now, on node {node}",
        node=node,
        units=units,
        container=container.name if several else "",
    )


def _find_largest(ask: Callable[[int], WhatIf], too_much: int) -> int:
    """Find the largest amount below `too_much` that any node takes; 0 for none."""
    fits = 0
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if len(ask(middle).find_rows()):
            fits = middle
        else:
            too_much = middle
    return fits


def _less_compute(what_if: WhatIf) -> Iterator[WayOut]:
    """Try smaller shares of compute for all containers, and none at all."""
    request = what_if.query.request
    if not request.asks_compute:
        return

    def ask(most: int) -> WhatIf:
        containers = (replace(each, compute=min(each.compute, most)) for each in request.containers)
        return what_if.with_request(replace(request, containers=tuple(containers)))

    asked = max(container.compute for container in request.containers)
    compute = _find_largest(ask, asked)
    nodes = ask(compute).rank_nodes()
    if nodes:
        less = f"with {compute} percent of compute in place of {asked}"
        yield WayOut(
            "less-compute",
            f"{less if compute else f'without {COMPUTE_RESOURCE}'} it {what_if.fits_phrase} now, on node "
            f"{nodes[0]}",
            node=nodes[0],
            compute=compute,
        )


def _for(what_if: WhatIf) -> str:
    return "" if what_if.is_alone else f" for {what_if.subject}"


def _over_cards(request: PodRequest) -> str:
    return "" if request.cards == 1 else f" over {request.cards} cards"


def _amount(what_if: WhatIf, units: int) -> str:
    return (
        f"{units} percent"
        if what_if.query.request.percent
        else format_memory(units, what_if.cluster.unit_mib)
    )


def _more_cards(what_if: WhatIf) -> Iterator[WayOut]:
    """Try the same units over more cards, for software that can split."""
    request = what_if.query.request
    if request.percent or any(container.kind == "init" for container in request.containers):
        return
    for cards in range(request.cards + 1, _MOST_CARDS + 1):
        if not any(_splits(container, cards) for container in request.containers):
            continue
        if all(container.units % cards == 0 for container in request.containers):
            found = what_if.with_request(replace(request, cards=cards)).rank_nodes()
            if found:
                how = f'annotation {POD_CARDS}: "{cards}"'
                yield WayOut(
                    "more-cards",
                    f"the same units over {cards} cards of one node ({how}){_for(what_if)} fit now, on node "
                    f"{found[0]}, "
                    "if the software can split",
                    node=found[0],
                    cards=cards,
                )
                return


def _splits(container: ContainerRequest, cards: int) -> bool:
    return container.units >= cards


def _no_rules(what_if: WhatIf) -> Iterator[WayOut]:
    """Try cards of several models, or cards that containers share."""
    request = what_if.query.request
    tries: list[tuple[str, str, PodRequest]] = []
    if request.rules.same_model:
        how = f'on cards of several models (annotation {POD_MIXED_MODELS}: "true")'
        tries.append(("mixed-models", how, replace(request, mixed_models=True)))
    if request.places:
        how = f"without the annotation {POD_CONTAINERS}"
        tries.append(("other-containers", how, replace(request, places="")))
    for kind, how, other in tries:
        found = what_if.with_request(other).rank_nodes()
        if found:
            yield WayOut(kind, f"{how} {_say_where(what_if, found)}", node=found[0])


def _stars(what_if: WhatIf) -> Iterator[WayOut]:
    """Try stars around the patterns of models, which people forget."""
    request, cluster = what_if.query.request, what_if.cluster
    wider = widen_patterns(cluster.state.nodes, request.selector, cluster.rows)
    if wider is None:
        return
    starred = what_if.with_request(replace(request, selector=wider))
    found = starred.rank_nodes()
    if found:
        how = f'annotation {POD_GPU_MODEL}: "{", ".join(wider.models)}"'
        model = _model(starred, found[0])
        yield WayOut(
            "model-pattern",
            f"with stars ({how}) {_say_where(what_if, found, model)}",
            node=found[0],
            model=model,
        )


def _other_cards(what_if: WhatIf) -> Iterator[WayOut]:
    """Try cards that the pod's selectors do not admit."""
    request = what_if.query.request
    selector = request.selector
    wider = []
    if selector.models or selector.excluded_models:
        wider.append((POD_GPU_MODEL, Selector(uuids=selector.uuids, excluded_uuids=selector.excluded_uuids)))
    if selector.uuids or selector.excluded_uuids:
        models = Selector(models=selector.models, excluded_models=selector.excluded_models)
        wider.append((POD_GPU_UUID, models))
    for annotation, other in wider:
        freed = what_if.with_request(replace(request, selector=other))
        found = freed.rank_nodes()
        if found:
            model = _model(freed, found[0])
            yield WayOut(
                "other-model" if annotation == POD_GPU_MODEL else "other-card",
                f"without the annotation {annotation} {_say_where(what_if, found, model)}",
                node=found[0],
                model=model,
            )


def _say_where(what_if: WhatIf, found: Sequence[str], model: str = "") -> str:
    """Say on which nodes a changed pod fits, and on which model of card on the best of them."""
    first = f"{found[0]} ({model})" if model else found[0]
    return f"it {what_if.fits_phrase} now, on {count_of(len(found), 'node')}, first {first}"


def _model(what_if: WhatIf, node: str) -> str:
    """Find the model of the card that the pod would get."""
    placement = what_if.choose_cards(node)
    nodes = what_if.cluster.state.nodes
    if placement is None:
        return ""
    model = int(nodes.model[nodes.rows[node], min(placement.charge)])
    return nodes.model_names[model] if model >= 0 else ""


def _other_nodes(what_if: WhatIf, results: NodeResults) -> Iterator[WayOut]:
    """Find nodes that have the cards but are kept from the pod by taints, selectors or a cordon."""
    requirements, tolerates = what_if.requirements, what_if.requirements.tolerates

    def find(reason: str, **changed: Any) -> list[str]:
        other = replace(what_if, requirements=replace(requirements, **changed))
        return other.rank_nodes(only=_rows(what_if, results, reason))[:1]

    for node in find(TAINT, tolerates=lambda taint: not taint.key.startswith(SYSTEM) or tolerates(taint)):
        taint = ", ".join(what_if.cluster.kube_checks.list_repelling_taints(node, requirements))
        has = f"node {node} has the cards{_for(what_if)}"
        yield WayOut(
            "toleration", f"{has}: it takes the pod once the pod tolerates {taint}", node=node, taint=taint
        )
    for node in find(SELECTOR, rules=NodeRules()):
        has = f"node {node} has the cards{_for(what_if)}"
        yield WayOut(
            "node-selector", f"{has}: the pod's nodeSelector or node affinity keeps it off", node=node
        )
    for node in find(CORDONED, tolerates=lambda taint: taint == UNSCHEDULABLE or tolerates(taint)):
        has = f"node {node} has the cards{_for(what_if)}"
        yield WayOut("uncordon", f"{has} and is cordoned: `kubectl uncordon {node}` opens it", node=node)


def _rows(what_if: WhatIf, results: NodeResults, reason: str) -> RowArray:
    nodes = what_if.cluster.state.nodes
    rows = what_if.cluster.rows
    return rows[
        [
            (rejection := results.rejections.get(nodes.names[row])) is not None and rejection.reason == reason
            for row in rows.tolist()
        ]
    ]


def _ends(what_if: WhatIf, results: NodeResults, usage: PodCardUsage) -> Iterator[WayOut]:
    """Find a rollout that waits for itself, and the fewest pods whose end frees the cards."""
    skip = frozenset(
        name for name, rejection in results.rejections.items() if rejection.reason in _NEVER_BY_ENDS
    )
    others = _list_pods_of_other_revisions(what_if, usage)
    blocking = _find_blocking_revision(what_if, usage, others, skip)
    if blocking and (revision := read_revision(what_if.cluster.pods[blocking[0].uid])):
        pods, said = _describe_pods(what_if, usage, blocking)
        yield WayOut(
            "rollout",
            f"its own {revision.kind} {revision.name} has the cards{_for(what_if)} on node "
            f"{blocking[0].node}, with another revision: {said}; a rolling update keeps that one until new "
            f"pods are ready: {'strategy Recreate, or ' * (revision.kind == 'Deployment')}maxSurge 0 ends it "
            "first",
            node=blocking[0].node,
            pods=pods,
        )
    end = find_fewest_evictions(what_if, usage, skip)
    # A pod of another revision that somebody ends comes again until the rollout is over.
    if end is None or {pod.uid for pod in end.pods} <= {pod.uid for pod in others}:
        return
    pods, said = _describe_pods(what_if, usage, end.pods)
    if any(find_gang_key(what_if.cluster, what_if.cluster.pods[pod.uid]) for pod in end.pods):
        said += "; a gang ends as a whole"
    what = "the end of one pod frees" if len(pods) == 1 else f"the end of {len(pods)} pods frees"
    yield WayOut(
        "pods-end",
        f"{what} the cards{_for(what_if)} on node {end.node}: {said}",
        node=end.node,
        pods=pods,
        fewest=end.fewest,
    )


def _describe_pods(
    what_if: WhatIf, usage: PodCardUsage, records: Sequence[PodRecord]
) -> tuple[tuple[PodUnits, ...], str]:
    """Give pods with their units and cards, and the same in words."""
    pods = tuple(
        PodUnits(
            pod.namespace,
            pod.name,
            sum(usage.get_units(pod).values()),
            list_card_numbers(what_if.cluster, pod.node, usage.get_units(pod).keys()),
        )
        for pod in records
    )
    unit_mib = what_if.cluster.unit_mib
    named = [
        f"{pod.namespace}/{pod.pod} ({format_memory(pod.units, unit_mib)}"
        f"{'' if record.grace_ends_at is None else ', is being deleted'})"
        for pod, record in zip(pods, records, strict=True)
    ]
    return pods, list_some(named, _PODS_NAMED)


def _list_pods_of_other_revisions(what_if: WhatIf, usage: PodCardUsage) -> list[PodRecord]:
    """List the running pods of the pod's own workload that are of another revision."""
    own, cluster = what_if.requirements.pod, what_if.cluster
    revision = None if own is None else read_revision(own)
    if own is None or revision is None:
        return []
    others = [
        cluster.state.pods[uid]
        for uid, pod in cluster.pods.items()
        if pod.spec.node_name
        and pod.metadata.namespace == own.metadata.namespace
        and (other := read_revision(pod)) is not None
        and other[:2] == revision[:2]
        and other != revision
    ]
    return sorted((pod for pod in others if usage.get_freed_units(pod)), key=lambda pod: (pod.node, pod.name))


def _find_blocking_revision(
    what_if: WhatIf, usage: PodCardUsage, others: Sequence[PodRecord], skip: frozenset[str]
) -> tuple[PodRecord, ...]:
    """Find pods of another revision whose end lets the pod start: one, or all of them on a node."""
    by_node = {node: tuple(pods) for node, pods in groupby(others, key=lambda pod: pod.node)}
    sets = [*((pod,) for pod in others), *by_node.values()]
    return next(
        (
            pods
            for pods in sets
            if pods[0].node not in skip and can_start_without(what_if, usage, pods[0].node, pods)
        ),
        (),
    )
