"""Compares what the places say of a scene, with each other and with what is true."""

from random import Random
from typing import Any

from allocator.names import NODE_HOLDS, POD_ALLOCATION
from allocator.records import load_holds
from tests.property.kernel.history import replayable

from . import truth
from .agreeing import agree
from .asking import check_asking
from .host import find_request
from .places import Places, Units
from .scene import Scene
from .simulating import check_simulator


def check(scene: Scene) -> None:
    """Ask every place about everything in a scene."""
    places = Places(scene)
    check_words(scene)
    for pod in scene.pods.values():
        if truth.lives(pod) and truth.asks(pod):
            check_cards(scene, places, pod)
        elif truth.lives(pod):
            check_claim_cards(scene, places, pod)
    for node in places.usable:
        check_free(scene, places, node)
    check_under_way(scene, places)
    check_end(scene, places)
    check_simulator(scene, places)
    for name in scene.asking:
        if places.extender.state.pods[f"uid-{name}"].request is not None:
            check_asking(scene, places, name)


@replayable
def ask_everybody(seed: int) -> None:
    """Make the scene of a seed, and compare all answers.

    Raises:
        AssertionError: some place answers differently.
    """
    check(Scene(Random(seed)))


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
        promises = host.ledger.allocated_units_by_pod()
        sizes = {card.uuid: card.size_units for card in host.ledger.installed}
        answers["ledger"] = {
            (node, uuids.index(uuid)): units[uid]
            for uuid, units in promises.items()
            if uid in units and sizes[uuid]
        }
    if not held:
        assigned, left = truth.assigned_units(scene, pod), truth.left_of_assigned(scene, pod)
        if left is not None and POD_ALLOCATION not in pod["metadata"]["annotations"]:
            answers["truth"] = {(node, uuids.index(uuid)): units for uuid, units in left.items()}
        if assigned is not None:
            answers["bind"] = {(node, uuids.index(uuid)): units for uuid, units in assigned.items()}
        charged = _charged(places, uid, node)
        if charged is not None:
            answers["filter"] = charged
    agree(f"the cards of {name} on {node}", answers)
    if node in places.usable:
        agree(f"what the end of {name} on {node} frees", places.freed_by(name))
        account, asked = host.ledger.accounts.pods.get(uid), find_request(pod)
        # A pod that came again under its UID with another request is charged by the first one here.
        if account is None or asked is None or account.pod.request.demands == asked.demands:
            agree(f"compute that is free on {node} once {name} has ended", places.compute_free_without(name))


def check_claim_cards(scene: Scene, places: Places, pod: dict[str, Any]) -> None:
    """The cards that a pod has by claims are shown as the words hold them; before that they are nobody's."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    cards = places.top[node].cards
    annotations = scene.nodes[node]["metadata"]["annotations"]
    held = load_holds(annotations[NODE_HOLDS]).units.get(pod["metadata"]["uid"], {})
    told = {(node, at): units for at, units in held.items() if cards[at].size_units}
    agree(f"the cards of {name} on {node}", {"holds": told, **places.shown_cards(name)})


def _charged(places: Places, uid: str, node: str) -> Units | None:
    """What the extender counts of a pod that the words of its node do not have yet; None: on any card."""
    state = places.extender.state
    record = state.node_records[node]
    found = None
    if node in places.usable:
        for claim in state.rules.list_charges(record):
            if claim.uid == uid:
                found = state.rules.charge_assigned_cards(record, claim)
    return None if found is None else {(node, at): units for at, units in found.items() if record.sizes[at]}


def check_free(scene: Scene, places: Places, node: str) -> None:
    answers: dict[str, list[int]] = dict(places.free_on(node))
    out = [card.state != "ok" for card in places.top[node].cards]
    free = truth.free_on(scene, node, out)
    if free is not None:
        answers["truth"] = free
    agree(f"free units on {node}", answers)
    compute = places.compute_free_on(node)
    if (known := truth.compute_free_on(scene, node, out)) is not None:
        compute["truth"] = known
    agree(f"free compute on {node}", compute)
    for card in places.top[node].cards:
        # What pods have there is in use, but for pods that can never start: the card has become too small.
        # Where words of an older release do not say who has what, the Binding's cards stand for those it got.
        told = scene.hosts[node].tells_units
        of_pods = sum(
            pod.units
            for pod in card.pods
            if pod.units <= card.size_units and (told or pod.share != "assigned")
        )
        assert card.in_use_units >= min(card.size_units, of_pods), (node, card)


def check_under_way(scene: Scene, places: Places) -> None:
    """Only the extender knows of a Binding that the API server has not: what it counts is the difference."""
    for node in places.usable:
        taken = [0] * len(places.top[node].cards)
        if scene.under_way is not None and scene.under_way[1] == node:
            take = scene.scheduler.get_assumed(f"uid-{scene.under_way[0]}")
            assert take is not None
            for claim in scene.scheduler.rules.charges_of_assumed(scene.scheduler.node_records[node]):
                units = scene.scheduler.rules.charge_assigned_cards(scene.scheduler.node_records[node], claim)
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


def check_end(scene: Scene, places: Places) -> None:
    """A pod's end frees what preemption and the ways out of `why` reckon with; never less.

    Nobody but the node knows what processes of others use of a card that pods fill: words stop at its size.
    """
    able = [
        pod
        for pod in scene.pods.values()
        if truth.lives(pod)
        and truth.asks(pod)
        and pod["spec"]["nodeName"] in scene.clean.intersection(places.usable)
        # Its node lets a claim go only with the last of the pods that share it.
        and all(len(claim["status"]["reservedFor"]) < 2 for claim in scene.claims_of(pod))
    ]
    if not able:
        return
    pod = scene.random.choice(able)
    name, node, uid = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["uid"]
    room = places.room(node)
    host = scene.hosts[node]
    over = host.over_full()
    told = [
        0 if card.uuid in over else max(0, card.size_units - card.used_units)
        for card in room.get_cards_without([uid])
    ]
    then = Places(scene.without(pod))
    nodes = then.extender.state.nodes
    row = nodes.rows[node]
    free = [
        0 if uuid in over else units
        for uuid, units in zip(nodes.uuids[row], nodes.free[row].tolist(), strict=False)
    ]
    assert not host.tells_units or all(a <= b for a, b in zip(told, free, strict=True)), (name, told, free)
    units, freed = places.cards_of(name)["ways out"], places.freed_by(name)["preempt"]
    known = truth.is_held(scene, pod) or truth.assigned_units(scene, pod) is not None
    # Preemption reckons with what the pod has by its limits.
    known = known and "resourceClaims" not in pod["spec"]
    if known and units == freed and host.tells_units:
        agree(f"what is free on {node} once {name} has ended", {"preempt": told, "truth": free})
