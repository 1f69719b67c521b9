"""Compares what the places say of a scene, with each other and with what is true."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from allocator.cards import Card
from allocator.request import PodRequest
from gpupack.ask import FitAsk, fit
from gpupack.ask.cluster import Cluster
from gpupack.ask.fit import count
from gpupack.ask.groups import WORDS
from gpupack.ask.hosts import plain_pod
from gpupack.ask.planning import Limits
from gpupack.ask.advise import advise_start
from gpupack.ask.simulating import trace_of
from gpupack.ask.snapshot import NODE_HEADER, POD_HEADER
from scheduler_plugin.cluster.cards import cards_of
from scheduler_plugin.errors import TraceError
from scheduler_plugin.simulator.cluster import Cluster as Simulated
from scheduler_plugin.simulator.trace import read_nodes, read_pods
from scheduler_plugin.placement.filtering import Misfit
from scheduler_plugin.placement.reasons import CLOSEST_FIRST, REQUEUED, reason
from scheduler_plugin.queue.running.explain import Reason
from scheduler_plugin.queue.places.labels import UNSCHEDULABLE
from allocator.names import POD_REQUEUED

from . import truth
from .host import request_of
from .places import Places
from .scene import NOT_READY, PRIORITY, TAINT, Scene

QUICK: Final = Limits(steps=50)


class DisagreementError(AssertionError):
    """Two places answer differently."""


def agree(what: str, answers: Mapping[str, Any]) -> None:
    """Check that all places say the same.

    Raises:
        DisagreementError: they do not.
    """
    first, *others = answers.items()
    for place, said in others:
        if said != first[1]:
            raise DisagreementError(f"{what}: {first[0]} says {first[1]}, {place} says {said}")


def check(scene: Scene) -> None:
    """Ask every place about everything in a scene."""
    places = Places(scene)
    check_words(scene)
    for pod in scene.pods.values():
        if truth.lives(pod):
            check_cards(scene, places, pod)
    for node in places.usable:
        check_free(scene, places, node)
    check_under_way(scene, places)
    check_end(scene, places)
    check_simulator(scene, places)
    for name in scene.asking:
        if places.extender.state.pods[f"uid-{name}"].request is not None:
            check_asking(scene, places, name)


def check_words(scene: Scene) -> None:
    """What the node's ledger counts is what everybody reads, where the node has published since."""
    for name in scene.clean:
        host = scene.hosts[name]
        row = Places(scene).top[name]
        agree(
            f"units in use on the cards of {name}",
            {"ledger": list(host.ledger.used()), "top": [card.used_units for card in row.cards]},
        )


def check_cards(scene: Scene, places: Places, pod: dict[str, Any]) -> None:
    """The cards of a pod, the units there, and what its end frees."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    answers = places.cards_of(name)
    uid, host = pod["metadata"]["uid"], scene.hosts[node]
    uuids = truth.uuids(scene.nodes[node])
    held = truth.is_held(scene, pod)
    if node in scene.clean and held and host.tells_units:
        promises = host.ledger.promises()
        sizes = {card.uuid: card.size_units for card in host.ledger.installed}
        answers["ledger"] = {
            (node, uuids.index(uuid)): units[uid]
            for uuid, units in promises.items()
            if uid in units and sizes[uuid]
        }
    assigned = truth.assigned_units(scene, pod)
    if not held and assigned is not None and "gpupack.io/allocation" not in pod["metadata"]["annotations"]:
        answers["bind"] = {(node, uuids.index(uuid)): units for uuid, units in assigned.items()}
        if node in places.usable:
            answers["filter"] = _charged(places, uid, node)
    agree(f"the cards of {name} on {node}", answers)
    if node in places.usable:
        agree(f"what the end of {name} on {node} frees", places.freed_by(name))


def _charged(places: Places, uid: str, node: str) -> dict[tuple[str, int], int]:
    """What the extender counts of a pod that the words of its node do not have yet."""
    state = places.extender.state
    book = state.books[node]
    for claim in state.rules.claims(book):
        if claim.uid == uid:
            found = state.rules.assigned_cards(book, claim)
            return {(node, at): units for at, units in (found or {}).items()}
    return {}


def check_free(scene: Scene, places: Places, node: str) -> None:
    """What is free of every card of a node."""
    answers: dict[str, list[int]] = dict(places.free_on(node))
    out = [card.state != "ok" for card in places.top[node].cards]
    free = truth.free_on(scene, node, out)
    if free is not None:
        answers["truth"] = free
    agree(f"free units on {node}", answers)


def check_under_way(scene: Scene, places: Places) -> None:
    """Only the extender knows of a Binding that the API server has not: what it counts is the difference."""
    for node in places.usable:
        taken = [0] * len(places.top[node].cards)
        if scene.under_way is not None and scene.under_way[1] == node:
            take = scene.scheduler.taken(f"uid-{scene.under_way[0]}")
            assert take is not None
            for claim in scene.scheduler.rules.taken(scene.scheduler.books[node]):
                units = scene.scheduler.rules.assigned_cards(scene.scheduler.books[node], claim)
                assert units is not None
                for at, number in units.items():
                    taken[at] += number
        nodes = places.watched.state.nodes
        row = nodes.rows[node]
        there = int(nodes.cards[row])
        fresh = places.extender.state.nodes.assumed[places.extender.state.nodes.rows[node], :there].tolist()
        agree(
            f"units assumed on {node}",
            {
                "filter, started now": [a + b for a, b in zip(fresh, taken, strict=True)],
                "filter, told event by event": nodes.assumed[row, :there].tolist(),
            },
        )


def check_asking(scene: Scene, places: Places, name: str) -> None:
    """Which nodes take a pod that waits, and why the others do not."""
    pod = scene.pods[name]
    filtered, reasons = places.filtered(name, places.extender)
    if scene.under_way is None:
        agree(f"filter's reasons for {name}", {"now": reasons, "watched": places.filtered(name, places.watched)[1]})
    request = request_of(pod)
    query = places.query(name)
    passes: set[str] = set()
    why_not: dict[str, str] = {}
    for node in scene.nodes:
        refused = reasons.get(node, "")
        error, charged = places.bound(name, node)
        answers = {"bind": not error}
        state = places.extender.state
        row = state.nodes.rows[node]
        cards = cards_of(state.nodes, row)
        open_percent = not request.percent or bool(state.nodes.percent[row])
        answers["truth"] = bool(state.nodes.usable[row]) and open_percent and truth.fits(cards, request)
        answers["filter"] = node in reasons and not refused
        agree(f"whether the cards of {node} take {name}", answers)
        if answers["bind"]:
            passes.add(node)
            check_kubelet(scene, places, name, node, charged)
        else:
            misfit = _misfit(places, node, request, open_percent)
            text = reason(misfit, request.demands, 1024)
            why_not[node] = text
            found = {"truth": text, "bind": error.rpartition("no longer fits: ")[2]}
            if refused:
                found["filter"] = refused
            agree(f"why the cards of {node} do not take {name}", found)
    check_people(scene, places, name, passes, why_not)
    check_queue(scene, places, name, passes)
    check_preempt(scene, places, name, passes)


def _misfit(places: Places, node: str, request: PodRequest, open_percent: bool) -> Misfit:
    """The first thing in the way of a pod on a node that does not take it."""
    nodes = places.extender.state.nodes
    row = nodes.rows[node]
    if not nodes.usable[row] or not open_percent:
        return Misfit.NO_PLUGIN
    cards = [card for card in cards_of(nodes, row) if card.size_units]
    most = max(demand.cards for demand in request.demands)
    if sum(map(request.selector.admits, cards)) < most and not request.selector.admits_all:
        everywhere = [card for at in nodes.rows.values() for card in cards_of(nodes, at) if card.size_units]
        somewhere = any(map(request.selector.admits, everywhere))
        return Misfit.NOT_ADMITTED if somewhere else Misfit.NO_SUCH_CARD
    return Misfit.NOT_FREE if truth.fits(_emptied(places, node), request) else Misfit.TOO_SMALL


def _emptied(places: Places, node: str) -> list[Card]:
    """The cards of a node as if all pods had ended."""
    from dataclasses import replace  # noqa: PLC0415

    nodes = places.extender.state.nodes
    row = nodes.rows[node]
    evictable = nodes.evictable[row].tolist()
    return [
        replace(card, used_units=card.size_units - evictable[at]) for at, card in enumerate(cards_of(nodes, row))
    ]


def _offers(scene: Scene, node: str, pod: dict[str, Any]) -> bool:
    """Whether kube-scheduler offers a node to a pod, cards aside."""
    request = request_of(pod)
    return (
        not truth.closed_to(scene, node, bool(pod["spec"]["tolerations"]))
        and truth.cpu_left(scene, node) >= truth.cpu_of(pod)
        and truth.sum_left(scene, node, percent=request.percent) >= request.effective_units
    )


def check_kubelet(
    scene: Scene, places: Places, name: str, node: str, charged: dict[tuple[str, int], int]
) -> None:
    """The kubelet gives a pod what bind has chosen, where the node has told all and waits for no other pod."""
    if node not in scene.clean or scene.under_way is not None:
        return
    if any(truth.lives(pod) and not truth.is_held(scene, pod) for pod in scene.on(node)):
        return
    host = scene.hosts[node].copy()
    pod = places.with_cards(name, node)
    host.hear(pod)
    given = host.admit(pod)
    units = host.ledger.promises() if given is not None else {}
    uuids = truth.uuids(scene.nodes[node])
    found = {
        (node, uuids.index(uuid)): by_uid[f"uid-{name}"]
        for uuid, by_uid in units.items()
        if f"uid-{name}" in by_uid
    }
    agree(f"the cards of {name} once it is bound to {node}", {"bind": charged, "ledger": found})


def check_end(scene: Scene, places: Places) -> None:
    """A pod's end frees what preemption and the ways out of `why` reckon with; never less.

    Nobody but the node can know what processes of others use of a card that pods fill: words stop at its size.
    """
    able = [
        pod
        for pod in scene.pods.values()
        if truth.lives(pod) and pod["spec"]["nodeName"] in scene.clean.intersection(places.usable)
    ]
    if not able:
        return
    pod = scene.random.choice(able)
    name, node, uid = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["uid"]
    room = places.room(node)
    host = scene.hosts[node]
    over = host.over_full()
    told = [
        0 if card.uuid in over else max(0, card.size_units - card.used_units) for card in room.after([uid])
    ]
    then = Places(scene.without(pod))
    nodes = then.extender.state.nodes
    row = nodes.rows[node]
    free = [
        0 if uuid in over else units
        for uuid, units in zip(nodes.uuids[row], nodes.free[row].tolist(), strict=False)
    ]
    assert all(a <= b for a, b in zip(told, free, strict=True)), (name, told, free)
    units, freed = places.cards_of(name)["ways out"], places.freed_by(name)["preempt"]
    known = truth.is_held(scene, pod) or truth.assigned_units(scene, pod) is not None
    if known and units == freed and host.tells_units:
        agree(f"what is free on {node} once {name} has ended", {"preempt": told, "truth": free})


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
    simulated = {
        (str(row["sn"])[:2], row["model"], row["card_units"]): row["gpu"] for row in rows
    }
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
    words = {word: misfit for misfit, word in WORDS.items()}
    request = request_of(pod)
    for node, group in by_node.items():
        if group.reason in words:
            text = reason(words[group.reason], request.demands, 1024)
            agree(f"why {node} does not take {name}", {"truth": why_not[node], "why": text})
        else:
            assert group.reason == "NodeSum" or not _offers(scene, node, pod), (node, group)
    refused = places.filtered(name, places.extender)[0].refusal
    if refused is not None and not passes:
        first = next((group.reason for group in told.nodes if group.reason in words), None)
        counted = [words[group.reason] for group in told.nodes if group.reason in words]
        if first is not None and len(counted) == len(told.nodes):
            agree(f"what is most in the way of {name}", {"metric": refused.label, "why": words[first].name.lower()})
    check_fit(scene, places, pod, passes)


def check_fit(scene: Scene, places: Places, pod: dict[str, Any], passes: set[str]) -> None:
    """What `fit` and `advise` count of pods that ask for so much, of which nothing else is known."""
    request = request_of(pod)
    if len(request.containers) > 1 or not request.selector.admits_all:
        return
    ask = FitAsk(request.containers[0].units, request.cards, percent=request.percent)
    found = fit(places.cluster, ask)
    systems = {UNSCHEDULABLE.key, NOT_READY}
    open_nodes = {
        node
        for node in passes
        if not scene.nodes[node]["spec"].get("unschedulable")
        and systems.isdisjoint(each["key"] for each in scene.nodes[node]["spec"].get("taints", ()))
        and truth.sum_left(scene, node, percent=request.percent) >= request.effective_units
    }
    agree(f"nodes for pods like {pod['metadata']['name']}", {"truth": open_nodes, "fit": {each.node for each in found.nodes}})
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
    agree(f"nodes that take {name}", {"truth": {node for node in passes if _offers(scene, node, pod)}, "queue": room})
    if told is None:
        return
    request = request_of(pod)
    could = any(
        truth.fits(_emptied(places, node), request)
        and not truth.closed_to(scene, node, bool(pod["spec"]["tolerations"]))
        and int(scene.nodes[node]["status"]["allocatable"]["cpu"]) >= truth.cpu_of(pod)
        and (not request.percent or bool(places.queue.state.nodes.percent[places.queue.state.nodes.rows[node]]))
        for node in places.usable
    )
    expected = Reason.TURN if room else Reason.ROOM if could or not places.usable else Reason.NEVER
    agree(f"why the queue keeps {name}", {"truth": expected, "queue": told.reason})
    if POD_REQUEUED in pod["metadata"]["annotations"]:
        import json  # noqa: PLC0415

        body = json.dumps({"Pod": pod, "NodeNames": sorted(scene.nodes)}).encode()
        answer = json.loads(places.extender.filter(body, 100.0).answer)
        assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(sorted(scene.nodes), REQUEUED)


def check_preempt(scene: Scene, places: Places, name: str, passes: set[str]) -> None:
    """Whom preemption names, and that the pod fits once they have gone."""
    for node in set(places.usable) - passes:
        uids = sorted(places.extender.state.books[node].pods)
        named = places.preempted(name, node, uids)
        room = places.room(node, places.query(name))
        everybody = room.fits(places.query(name), uids)
        agree(f"whether evicting pods of {node} helps {name}", {"room": everybody, "preempt": named is not None})
        if named is not None:
            assert room.fits(places.query(name), named)
