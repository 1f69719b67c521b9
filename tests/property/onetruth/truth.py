"""What is true of a scene, worked out anew from the objects: slowly, and by trying everything."""

from collections.abc import Iterator, Sequence
from typing import Any

from allocator.cards import Card
from allocator.ids import device_names
from allocator.names import DRA_MEMORY, NODE_CARDS, NODE_HOLDS, PERCENT_RESOURCE
from allocator.packing import read_node
from allocator.records import load_cards, load_holds
from allocator.request import PodRequest
from kubeapi.selectors import UNSCHEDULABLE
from tests import placements
from tests.cluster_builders import MEMORY

from .host import assigned_to, find_request, request_of
from .scene import ENDED, NOT_READY, OF_POD, Scene

MANY = 1 << 30


def lives(pod: dict[str, Any]) -> bool:
    """Whether a pod has a node and is not over."""
    return bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] not in ENDED


def asks(pod: dict[str, Any]) -> bool:
    """Whether a pod asks by its limits; the others have claims alone."""
    return find_request(pod) is not None


def is_held(scene: Scene, pod: dict[str, Any]) -> bool:
    annotations = scene.nodes[pod["spec"]["nodeName"]]["metadata"]["annotations"]
    return pod["metadata"]["uid"] in load_holds(annotations[NODE_HOLDS]).uids


def assigned_units(scene: Scene, pod: dict[str, Any]) -> dict[str, int] | None:
    """Units by card of a Binding, on the cards that its node has; None where it cannot be as it says."""
    node = scene.nodes[pod["spec"]["nodeName"]]
    words = read_node(node["status"]["allocatable"])
    assigned, request = assigned_to(pod), request_of(pod)
    if words is None or assigned is None:
        return None
    sizes = dict(zip(uuids(node), words.sizes, strict=True))
    if any(not sizes.get(uuid) for shares in assigned.values() for uuid, _ in shares):
        return None
    found: dict[str, int] = {}
    for each in request.containers:
        for uuid, units in assigned[each.name]:
            if units != request.units_of(each, sizes[uuid]):
                return None
            found[uuid] = found.get(uuid, 0) + units
    if request.same_cards and len(found) != request.cards:
        return None
    if request.shared:
        (uuid,) = found
        size, effective = sizes[uuid], request.effective_units
        found = {uuid: effective * size // 100 if request.percent else effective}
    return found


def left_of_assigned(scene: Scene, pod: dict[str, Any]) -> dict[str, int] | None:
    """Units by card of a Binding, without cards that are gone or have no units; None where it names none.

    Of pods that ask for units: what a share was worth of a card that is gone nobody can say.
    """
    node = scene.nodes[pod["spec"]["nodeName"]]
    words = read_node(node["status"]["allocatable"])
    assigned, request = assigned_to(pod), request_of(pod)
    if words is None or assigned is None or request.percent:
        return None
    sizes = dict(zip(uuids(node), words.sizes, strict=True))
    found: dict[str, int] = {}
    for each in request.containers:
        for uuid, units in assigned[each.name]:
            if sizes.get(uuid):
                found[uuid] = request.effective_units if request.shared else found.get(uuid, 0) + units
    return found


def uuids(node: dict[str, Any]) -> list[str]:
    """The cards of a node, in word order."""
    return [card.uuid for card in load_cards(node["metadata"]["annotations"][NODE_CARDS])]


def free_on(scene: Scene, name: str, out: Sequence[bool]) -> list[int] | None:
    """Free units of a node's cards; None where a pod counts there and its cards are not known.

    Args:
        out: By card, whether it is out of use.
    """
    node = scene.nodes[name]
    words = read_node(node["status"]["allocatable"])
    assert words is not None
    used = dict(zip(uuids(node), words.used, strict=True))
    for card, count in unheld_claims(scene, name):
        used[card] += count
    for pod in scene.on(name):
        if lives(pod) and asks(pod) and not is_held(scene, pod):
            units = assigned_units(scene, pod)
            if units is None:
                return None
            for uuid, count in units.items():
                used[uuid] += count
    return [
        0 if is_out else max(0, size - count)
        for is_out, size, count in zip(out, words.sizes, used.values(), strict=True)
    ]


def compute_free_on(scene: Scene, name: str, out: Sequence[bool]) -> list[int] | None:
    """Percent of compute that a node's cards have free; arguments and None as of `free_on`."""
    node = scene.nodes[name]
    words = read_node(node["status"]["allocatable"])
    assert words is not None
    cards = uuids(node)
    free = [words.compute_limit - used for used in words.compute_used or [0] * len(cards)]
    for pod in scene.on(name):
        if lives(pod) and asks(pod) and not is_held(scene, pod):
            assigned, request = assigned_to(pod), request_of(pod)
            if assigned is None or assigned_units(scene, pod) is None:
                return None
            for demand in request.demands:
                for uuid, _ in assigned[demand.containers[0]]:
                    free[cards.index(uuid)] -= demand.compute
    return [0 if is_out else max(0, percent) for is_out, percent in zip(out, free, strict=True)]


def unheld_claims(scene: Scene, name: str) -> Iterator[tuple[str, int]]:
    """Give cards with the units that claims were allocated there, and that the words do not have."""
    node = scene.nodes[name]
    words = read_node(node["status"]["allocatable"])
    assert words is not None
    held = load_holds(node["metadata"]["annotations"][NODE_HOLDS]).claims
    cards = uuids(node)
    sizes, named = dict(zip(cards, words.sizes, strict=True)), device_names(cards)
    for uid, claim in scene.claims.items():
        if uid.startswith(OF_POD):
            continue
        for at, uuid in enumerate(cards):
            units = sum(
                min(sizes[uuid], int(result.get("consumedCapacity", {}).get(DRA_MEMORY, "1000Gi")[:-2]))
                for result in claim["status"]["allocation"]["devices"]["results"]
                if (result["pool"], result["device"]) == (name, named[uuid])
            )
            yield uuid, max(0, units - held.get(uid, {}).get(at, (0, 0))[0])


def fits(cards: Sequence[Card], request: PodRequest) -> bool:
    """Whether there is any choice of cards for all of a pod's demands."""
    return placements.fits(
        [card.size_units - card.used_units if request.selector.admits(card) else -1 for card in cards],
        [
            ([demand.units_on(card.size_units) for card in cards], demand.cards, demand.compute)
            for demand in request.demands
        ],
        compute_free=[card.compute_free for card in cards],
        models=None if request.mixed_models else [card.model for card in cards],
        apart=request.places == "apart",
    )


def closed_to(scene: Scene, name: str, tolerates: bool) -> bool:
    """Whether cordon and taints keep a pod off a node."""
    spec = scene.nodes[name]["spec"]
    keys = {taint["key"] for taint in spec.get("taints", ())}
    if tolerates:
        keys -= {key for key in keys if key not in (UNSCHEDULABLE.key, NOT_READY)}
    return bool(keys) or bool(spec.get("unschedulable"))


def cpu_left(scene: Scene, name: str) -> int:
    """Cores that the pods of a node leave."""
    asked = sum(cpu_of(pod) for pod in scene.on(name) if lives(pod))
    return int(scene.nodes[name]["status"]["allocatable"]["cpu"]) - asked


def cpu_of(pod: dict[str, Any]) -> int:
    """Cores that a pod asks for: every container of a scene asks for one."""
    init = [each.get("restartPolicy") for each in pod["spec"]["initContainers"]]
    sidecars, mains = init.count("Always"), len(pod["spec"]["containers"])
    return max(mains + sidecars, 1 if None in init else 0)


def sum_left(scene: Scene, name: str, *, percent: bool) -> int:
    """What kube-scheduler's count of a node's units, or percent, leaves."""
    if scene.hosts[name].serves_claims:
        return MANY  # kube-scheduler does not look at it
    resource = PERCENT_RESOURCE if percent else MEMORY
    asked = sum(
        request.effective_units
        for pod in scene.on(name)
        if lives(pod)
        for request in [find_request(pod)]
        if request is not None and request.percent == percent
    )
    return int(scene.nodes[name]["status"]["allocatable"][resource]) - asked
