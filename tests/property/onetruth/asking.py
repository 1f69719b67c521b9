"""Compares which nodes take a pod that waits, and what is said of the others."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from allocator.cards import Card
from allocator.names import POD_REQUEUED
from allocator.request import PodRequest
from gpupack.rebalance.advise import advise_start
from gpupack.rebalance.planning import SearchLimits
from gpupack.whatif import FitQuestion, answer_fit
from kubeapi.selectors import UNSCHEDULABLE
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.queue.controller.status import BY_RULES, BY_SUM, WaitReason
from scheduler_plugin.scheduling.reasons import REQUEUED, FilterReason, format_event_text

from . import truth
from .agreeing import agree
from .claimhost import ClaimHost
from .host import UNIT_MIB, request_of
from .places import Places
from .scene import NOT_READY, Scene

QUICK: Final = SearchLimits(steps=50)


def check_asking(scene: Scene, places: Places, name: str) -> None:
    """Which nodes take a pod that waits, and why the others do not."""
    reasons = places.filtered(name, places.extender)[1]
    if scene.under_way is None:
        watched = places.filtered(name, places.watched)[1]
        agree(f"filter's reasons for {name}", {"started now": reasons, "told event by event": watched})
    why_not = {node: _why_not(scene, places, name, node, reasons) for node in scene.nodes}
    passes = {node for node, text in why_not.items() if not text}
    for node in passes:
        check_kubelet(scene, places, name, node)
    check_people(scene, places, name, passes, why_not)
    check_queue(scene, places, name, passes)
    check_preempt(places, name, passes)


def _why_not(scene: Scene, places: Places, name: str, node: str, reasons: Mapping[str, str]) -> str:
    """Compare what is said of a pod on a node; why it does not take it, empty where it does."""
    request, nodes = request_of(scene.pods[name]), places.extender.state.nodes
    row = nodes.rows[node]
    can_have = bool(nodes.usable[row]) and (not request.percent or bool(nodes.percent[row]))
    error, _ = places.bound(name, node)
    answers = {
        "truth": can_have and truth.fits(build_cards(nodes, row), request),
        "bind": not error,
        "filter": reasons.get(node) == "",
    }
    agree(f"whether the cards of {node} take {name}", answers)
    if not error:
        return ""
    misfit = _misfit(places, node, request, can_have=can_have)
    text = format_event_text(misfit, request.demands, UNIT_MIB, request.rules)
    found = {"truth": text, "bind": error.rpartition("no longer fits: ")[2]}
    if node in reasons:
        found["filter"] = reasons[node]
    agree(f"why the cards of {node} do not take {name}", found)
    return text


def _misfit(places: Places, node: str, request: PodRequest, *, can_have: bool) -> FilterReason:
    """The first thing in the way of a pod on a node that does not take it."""
    nodes = places.extender.state.nodes
    row = nodes.rows[node]
    if not can_have:
        return FilterReason.NO_PLUGIN
    if request.asks_compute and not nodes.compute_limit[row]:
        return FilterReason.NO_COMPUTE
    cards = [card for card in build_cards(nodes, row) if card.size_units]
    most = max(demand.cards for demand in request.demands)
    if sum(map(request.selector.admits, cards)) < most and not request.selector.admits_all:
        everywhere = [
            card for at in nodes.rows.values() for card in build_cards(nodes, at) if card.size_units
        ]
        somewhere = any(map(request.selector.admits, everywhere))
        return FilterReason.NOT_ADMITTED if somewhere else FilterReason.NO_SUCH_CARD
    anywhere = replace(request, mixed_models=True, places="" if request.places == "apart" else request.places)
    if truth.fits(build_cards(nodes, row), anywhere):
        return FilterReason.CARD_RULES
    emptied = _emptied(places, node)
    if truth.fits(emptied, request):
        memory = replace(request, containers=tuple(replace(each, compute=0) for each in request.containers))
        has_memory = truth.fits(build_cards(nodes, row), memory)
        return FilterReason.COMPUTE_NOT_FREE if has_memory else FilterReason.NOT_FREE
    return FilterReason.CARD_RULES if truth.fits(emptied, anywhere) else FilterReason.TOO_SMALL


def _emptied(places: Places, node: str) -> list[Card]:
    nodes = places.extender.state.nodes
    row = nodes.rows[node]
    evictable = nodes.evictable[row].tolist()
    return [
        replace(card, used_units=card.size_units - evictable[at], compute_used=0)
        for at, card in enumerate(build_cards(nodes, row))
    ]


def _offers(scene: Scene, node: str, pod: dict[str, Any]) -> bool:
    """Whether kube-scheduler offers a node to a pod, cards aside."""
    request = request_of(pod)
    return (
        not truth.closed_to(scene, node, bool(pod["spec"]["tolerations"]))
        and truth.cpu_left(scene, node) >= truth.cpu_of(pod)
        and truth.sum_left(scene, node, percent=request.percent) >= request.effective_units
    )


def check_kubelet(scene: Scene, places: Places, name: str, node: str) -> None:
    """The kubelet gives a pod what bind has chosen, where the node has told all and awaits no other."""
    if node not in scene.clean or scene.under_way is not None:
        return
    if any(truth.lives(pod) and not truth.is_held(scene, pod) for pod in scene.on(node)):
        return
    host = scene.hosts[node].copy()
    pod, claim = places.with_cards(name, node)
    host.hear(pod)
    if isinstance(host, ClaimHost):
        assert claim is not None
        is_served = host.prepare(claim, pod)
    else:
        is_served = host.admit(pod) is not None
    units = host.ledger.allocated_units_by_pod() if is_served else {}
    compute = host.compute_by_pod(f"uid-{name}") if is_served else {}
    uuids = truth.uuids(scene.nodes[node])
    found = {
        (node, uuids.index(uuid)): (by_uid[f"uid-{name}"], compute.get(uuid, 0))
        for uuid, by_uid in units.items()
        if f"uid-{name}" in by_uid
    }
    charged = places.bound(name, node)[1]
    if host.serves_claims and len(request_of(pod).demands) > 1:
        # Which container has which card of a claim stands in the pod's status, which scenes leave out.
        found = {at: (units, charged[at][1]) for at, (units, _) in found.items()}
    agree(f"the cards of {name} once it is bound to {node}", {"bind": charged, "ledger": found})


def check_people(
    scene: Scene, places: Places, name: str, passes: set[str], why_not: Mapping[str, str]
) -> None:
    """What `why`, the dashboard, `fit` and `advise` say of the same."""
    pod = scene.pods[name]
    expected = {node for node in passes if _offers(scene, node, pod)}
    told = places.why(name)
    if not places.usable:
        return
    pending = places.pending(name)
    agree(f"nodes that take {name}", {"truth": expected, "why": set(told.fits)})
    agree(
        f"what is said of {name}",
        {"why": (told.state, told.text), "dashboard": (pending.state, pending.text)},
    )
    by_node = {node: group for group in told.nodes for node in group.examples}
    words = {reason.json_name: reason for reason in FilterReason}
    request = request_of(pod)
    for node, group in by_node.items():
        if group.reason in words:
            text = format_event_text(words[group.reason], request.demands, UNIT_MIB, request.rules)
            agree(f"why {node} does not take {name}", {"truth": why_not[node], "why": text})
        else:
            assert group.reason == "NodeSum" or not _offers(scene, node, pod), (node, group)
    refused = places.filtered(name, places.extender)[0].unschedulable
    if refused is not None and not passes:
        first = next((group.reason for group in told.nodes if group.reason in words), None)
        counted = [words[group.reason] for group in told.nodes if group.reason in words]
        if first is not None and len(counted) == len(told.nodes):
            agree(
                f"what is most in the way of {name}",
                {"metric": refused.label, "why": words[first].metric_label},
            )
    check_fit(scene, places, pod, passes)


def check_fit(scene: Scene, places: Places, pod: dict[str, Any], passes: set[str]) -> None:
    """What `fit` and `advise` count of pods that ask for so much, of which nothing else is known."""
    request = request_of(pod)
    compute = {container.compute for container in request.containers}
    if request.shared or not request.selector.admits_all or len(compute) > 1:
        return
    units, *more = (container.units for container in request.containers)
    ask = FitQuestion(
        units,
        request.cards,
        percent=request.percent,
        more=tuple(more),
        mixed_models=request.mixed_models,
        containers=request.places,
        compute=compute.pop(),
    )
    found = answer_fit(places.cluster, ask)
    systems = {UNSCHEDULABLE.key, NOT_READY}
    open_nodes = {
        node
        for node in passes
        if not scene.nodes[node]["spec"].get("unschedulable")
        and systems.isdisjoint(each["key"] for each in scene.nodes[node]["spec"].get("taints", ()))
        and truth.sum_left(scene, node, percent=request.percent) >= request.effective_units
    }
    agree(
        f"nodes for pods like {pod['metadata']['name']}",
        {"truth": open_nodes, "fit": {each.node for each in found.nodes}},
    )
    if more:
        return  # `advise` is asked about pods with one container
    untainted = sum(each.pods for each in found.nodes if not scene.nodes[each.node]["spec"].get("taints"))
    advice = advise_start(places.cluster, ask, 1, QUICK)
    agree(
        f"pods like {pod['metadata']['name']} that fit",
        {"fit": untainted, "advise": advice.before.pods},
    )


def check_queue(scene: Scene, places: Places, name: str, passes: set[str]) -> None:
    """Where the queue has room for a pod, and why it waits there."""
    pod = scene.pods[name]
    room, told = places.queued(name)
    agree(
        f"nodes that take {name}",
        {"truth": {node for node in passes if _offers(scene, node, pod)}, "queue": room},
    )
    if told is None:
        return
    request = request_of(pod)
    could = any(
        truth.fits(_emptied(places, node), request)
        and not truth.closed_to(scene, node, bool(pod["spec"]["tolerations"]))
        and int(scene.nodes[node]["status"]["allocatable"]["cpu"]) >= truth.cpu_of(pod)
        and (
            not request.percent or bool(places.queue.state.nodes.percent[places.queue.state.nodes.rows[node]])
        )
        for node in places.usable
    )
    expected = (
        WaitReason.TURN if room else WaitReason.ROOM if could or not places.usable else WaitReason.NEVER
    )
    agree(f"why the queue keeps {name}", {"truth": expected, "queue": told.reason})
    if told.reason is WaitReason.ROOM:
        agree(
            f"whether {name} lacks cards",
            {"truth": not passes, "queue": not any(words in told.message for words in (BY_RULES, BY_SUM))},
        )
    if POD_REQUEUED in pod["metadata"]["annotations"]:
        body = json.dumps({"Pod": pod, "NodeNames": sorted(scene.nodes)}).encode()
        answer = json.loads(places.extender.filter(body, 100.0).answer)
        assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(sorted(scene.nodes), REQUEUED)


def check_preempt(places: Places, name: str, passes: set[str]) -> None:
    """Whom preemption names, and that the pod fits once they have gone."""
    for node in set(places.usable) - passes:
        uids = sorted(places.extender.state.node_records[node].pods)
        named = places.preempted(name, node, uids)
        agree(
            f"whether evicting pods of {node} helps {name}",
            {"cards": places.makes_room(name, node, uids), "preempt": named is not None},
        )
        assert named is None or places.makes_room(name, node, named)
