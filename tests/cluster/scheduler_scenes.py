"""Random scenes for kube-scheduler: nodes, pods there, and pods to be placed; and how to shrink one.

A scene is plain objects as a client would send them, so it can be printed, made smaller and created again.
Values come from small sets: two pods should want the same port, the same last core, the same label.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from allocator.quantity import parse_bytes, parse_milli
from kubeapi.objects import Pod
from scheduler_plugin.cache.pods import sum_requests
from tests.cluster.harness.controlplane import PERCENT, RESOURCE
from tests.cluster.harness.images import SHELL

Json = dict[str, Any]

NODES: Final = 6
BOUND: Final = 12
PLACED: Final = 24

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME: Final = "kubernetes.io/hostname"
NAMESPACES: Final[dict[str, dict[str, str]]] = {
    "default": {},
    "gold": {"tier": "gold"},
    "iron": {"tier": "iron"},
}
HEAVY: Final = "heavy"
"""A RuntimeClass with an overhead: the API server writes it into the pods that name it."""

SERVED: Final = "example.com/served"
"""A resource that a DeviceClass serves on nodes whose kubelet does not offer it."""

DEVICES: Final = "example.com/devices"
"""The annotation of a node with the number of its devices by which that class could serve."""

_EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")
_SIZES: Final = ("5", "1_000", "007", "5.0", "99999999999999999999", "9223372036854775807", "x")
_LIMITS: Final = ("4", "6", "1_000", "9223372036854775806", "9223372036854775808")
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_NIC: Final = "example.com/nic"


@dataclass
class Scene:
    """One cluster, and the pods that kube-scheduler is asked about.

    Attributes:
        nodes: Node objects.
        bound: Pods with a node. `status` is written after the pod was created; one with `deletionTimestamp`
            is deleted then, and stays.
        placed: Pods to be placed.
    """

    nodes: list[Json] = field(default_factory=list)
    bound: list[Json] = field(default_factory=list)
    placed: list[Json] = field(default_factory=list)


def random_scene(random: Random, *, pod_level_status: bool = True) -> Scene:
    """Make a scene.

    Args:
        pod_level_status: Kubernetes reports the resources of a pod as a whole: from 1.36 on.
    """
    nodes = [_node(random, f"n{index}") for index in range(NODES)]
    names = [node["metadata"]["name"] for node in nodes]
    bound = [_bound(random, f"b{index}", random.choice(names), pod_level_status) for index in range(BOUND)]
    _separate_ports(bound)
    return Scene(nodes, bound, [_placed(random, f"p{index}", names) for index in range(PLACED)])


def _separate_ports(bound: list[Json]) -> None:
    """Leave each port of a node to one pod: of more kube-scheduler forgets the port when the first ends."""
    taken: set[tuple[str, int]] = set()
    for pod in bound:
        spec = pod["spec"]
        for container in (*spec["containers"], *spec["initContainers"]):
            kept = []
            for port in container.get("ports", ()):
                key = (spec["nodeName"], port["hostPort"])
                kept += [] if key in taken else [port]
                taken.add(key)
            container["ports"] = kept


# Nodes.


def _node(random: Random, name: str) -> Json:
    labels = {HOSTNAME: name} if random.random() < 0.9 else {}
    if random.random() < 0.7:
        labels["zone"] = random.choice(("a", "b", ""))
    if random.random() < 0.7:
        labels["size"] = random.choice(_SIZES)
    allocatable = {
        "cpu": random.choice(("1", "2", "4", "1500m")),
        "memory": random.choice(("1Gi", "2Gi", "4Gi")),
        "pods": random.choice(("1", "3", "10", "10", "110")),
    }
    for resource, amounts in (
        (RESOURCE, ("0", "8", "16", "16")),
        (PERCENT, ("0", "100")),
        (_NIC, ("0", "1", "2")),
        (SERVED, ("0", "2")),
        ("hugepages-2Mi", ("0", "64Mi")),
        ("ephemeral-storage", ("1Gi", "4Gi")),
    ):
        if random.random() < 0.7:
            allocatable[resource] = random.choice(amounts)
    if random.random() < 0.15:
        del allocatable[random.choice(("pods", "pods", "cpu", "memory"))]
    taints = []
    if random.random() < 0.25:
        taints.append({"key": "team", "value": random.choice("ab"), "effect": random.choice(_EFFECTS)})
    if random.random() < 0.05:
        taints.append({"key": _NOT_READY, "effect": random.choice(_EFFECTS[:2])})
    conditions = []
    if random.random() < 0.9:
        ready = random.choice(("True", "True", "True", "False", "Unknown"))
        conditions = [{"type": "Ready", "status": ready, "reason": "x", "message": "x"}]
    devices = {DEVICES: random.choice("12")} if random.random() < 0.3 else {}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": devices},
        "spec": {"taints": taints, "unschedulable": random.random() < 0.1},
        "status": {"capacity": allocatable, "allocatable": allocatable, "conditions": conditions},
    }


# Pods.


def _amounts(random: Random, *, few: bool = False) -> Json:
    cpu = random.choice(("0", "100m", "300m", "500m", "1"))
    amounts = {"cpu": cpu, "memory": random.choice(("0", "100Mi", "300Mi", "512Mi", "1Gi"))}
    amounts = {name: amount for name, amount in amounts.items() if random.random() < 0.6}
    if few:
        return amounts
    if random.random() < 0.15:
        amounts[RESOURCE] = random.choice(("1", "4", "8"))
    elif random.random() < 0.1:
        amounts[PERCENT] = random.choice(("50", "100"))
    if random.random() < 0.15:
        amounts[random.choice((_NIC, _NIC, SERVED))] = "1"
    if random.random() < 0.15:
        amounts["ephemeral-storage"] = random.choice(("512Mi", "2Gi"))
    if random.random() < 0.1:
        amounts |= {"hugepages-2Mi": "32Mi", "cpu": "100m", "memory": "100Mi"}
    return amounts


def _container(random: Random, name: str, *, few: bool = False) -> Json:
    amounts = _amounts(random, few=few)
    return {"name": name, "image": SHELL, "resources": {"requests": amounts, "limits": amounts}}


def _port(random: Random) -> Json:
    port = random.choice((53, 53, 80))
    found = {"containerPort": port, "hostPort": port, "protocol": random.choice(("TCP", "UDP"))}
    address = random.choice(("", "", "10.0.0.1", "10.0.0.2", "0.0.0.0"))
    return found | ({"hostIP": address} if address else {})


def _pod(random: Random, name: str) -> Json:
    containers = [_container(random, "main")]
    if random.random() < 0.15:
        containers.append(_container(random, "second", few=True))
    init = []
    if random.random() < 0.15:
        init.append(_container(random, "init", few=True))
    if random.random() < 0.2:
        init.insert(
            random.randrange(2), _container(random, "sidecar", few=True) | {"restartPolicy": "Always"}
        )
    if random.random() < 0.3:
        random.choice([*containers, *init])["ports"] = [_port(random)]
    pod: Json = {
        "metadata": {
            "name": name,
            "namespace": random.choice(tuple(NAMESPACES)),
            "labels": {
                "app": random.choice("xy"),
                **({"version": random.choice("12")} if random.random() < 0.5 else {}),
            },
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "initContainers": init,
            "containers": containers,
        },
    }
    if random.random() < 0.1:
        pod["spec"]["runtimeClassName"] = HEAVY
    if random.random() < 0.1:
        # At least what the containers ask for together.
        pod["spec"]["resources"] = {"requests": {"cpu": random.choice(("3", "4")), "memory": "4Gi"}}
    return pod


def _selector(random: Random) -> Json:
    match random.randrange(5):
        case 0:
            return {}
        case 1:
            return {"matchExpressions": [{"key": "version", "operator": "DoesNotExist"}]}
        case 2:
            return {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}
        case _:
            return {"matchLabels": {"app": random.choice("xy")}}


def _term(random: Random) -> Json:
    term: Json = {"topologyKey": random.choice((HOSTNAME, "zone", "zone", "rack"))}
    if random.random() < 0.95:
        term["labelSelector"] = _selector(random)
    if random.random() < 0.3:
        term["namespaces"] = random.sample(tuple(NAMESPACES), random.randint(1, 2))
    if random.random() < 0.3:
        term["namespaceSelector"] = random.choice(
            (
                {},
                {"matchLabels": {"kubernetes.io/metadata.name": random.choice(tuple(NAMESPACES))}},
                {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]},
                {"matchLabels": {"tier": random.choice(("gold", "iron"))}},
                {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
            )
        )
    if random.random() < 0.2 and "version" not in str(term.get("labelSelector", "version")):
        term[random.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
    return term


def _expression(random: Random) -> Json:
    match random.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gt", "Lt")):
        case ("In" | "NotIn") as operator:
            return {
                "key": "zone",
                "operator": operator,
                "values": random.sample(("a", "b", ""), random.randint(1, 2)),
            }
        case ("Exists" | "DoesNotExist") as operator:
            return {"key": random.choice(("zone", "size")), "operator": operator}
        case operator:
            return {"key": "size", "operator": operator, "values": [random.choice(_LIMITS)]}


def _node_term(random: Random, names: list[str]) -> Json:
    term: Json = {}
    if random.random() < 0.85:
        term["matchExpressions"] = [_expression(random) for _ in range(random.randint(1, 2))]
    if random.random() < 0.25:
        operator = random.choice(("In", "NotIn"))
        term["matchFields"] = [
            {"key": "metadata.name", "operator": operator, "values": [random.choice(names)]}
        ]
    return term


def _toleration(random: Random) -> Json:
    return random.choice(
        (
            {"operator": "Exists"},
            {"key": "team", "value": random.choice("ab")},
            {"key": "team", "operator": "Equal", "value": "a", "effect": random.choice(_EFFECTS)},
            {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
            {"key": _NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        )
    )


def _placed(random: Random, name: str, names: list[str]) -> Json:
    pod = _pod(random, name)
    spec = pod["spec"]
    if random.random() < 0.5:
        spec["tolerations"] = [_toleration(random) for _ in range(random.randint(1, 2))]
    if random.random() < 0.15:
        spec["nodeSelector"] = {"zone": random.choice(("a", "b", ""))}
    if random.random() < 0.35:
        terms = [_node_term(random, names) for _ in range(random.randint(1, 2))]
        spec.setdefault("affinity", {})["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
    for kind in ("podAffinity", "podAntiAffinity"):
        if random.random() < 0.15:
            terms = [_term(random) for _ in range(random.randint(1, 2))]
            spec.setdefault("affinity", {})[kind] = {REQUIRED: terms}
    return pod


def _bound(random: Random, name: str, node: str, pod_level_status: bool) -> Json:
    pod = _pod(random, name)
    pod["spec"]["nodeName"] = node
    if random.random() < 0.2:
        pod["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [_term(random)]}}
    pod["status"] = {
        "phase": random.choice(("Running", "Running", "Running", "Pending", "Succeeded", "Failed"))
    }
    if random.random() < 0.15:
        pod["metadata"]["deletionTimestamp"] = "set by the API server"
    if random.random() < 0.3:
        pod["status"] |= _resize(random, pod, pod_level_status)
    return pod


def _resize(random: Random, pod: Json, pod_level_status: bool) -> Json:
    """Write what the kubelet says of a pod of which a container, or all of it, is being resized."""
    spec = pod["spec"]
    found: Json = {}
    match random.choice(("Deferred", "Infeasible", "InProgress", "")):
        case ("Deferred" | "Infeasible") as reason:
            found["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        case "InProgress":
            found["conditions"] = [{"type": "PodResizeInProgress", "status": "True"}]
    resized = random.choice(
        (*spec["containers"], *(each for each in spec["initContainers"] if "restartPolicy" in each))
    )
    statuses = {}
    for container in (*spec["containers"], *spec["initContainers"]):
        # The kubelet tells all amounts; only cpu and memory can be resized.
        allocated = actual = container["resources"]["requests"]
        if container is resized:
            allocated = _resized(random, allocated)
            actual = random.choice((allocated, _resized(random, allocated)))
        statuses[container["name"]] = {
            "name": container["name"],
            "image": SHELL,
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "allocatedResources": allocated,
            "resources": {"requests": actual},
        }
    found["containerStatuses"] = [statuses[each["name"]] for each in spec["containers"]]
    found["initContainerStatuses"] = [statuses[each["name"]] for each in spec["initContainers"]]
    if pod_level_status and ("resources" in spec or random.random() < 0.5):
        sums = _sum_requests(pod)
        found["allocatedResources"] = _resized(random, sums)
        # Of its cgroup the kubelet reads cpu and memory, besides the pod's own requests.
        told = {"cpu", "memory", *spec.get("resources", {}).get("requests", ())}
        actual = {name: amount for name, amount in sums.items() if name in told}
        found["resources"] = {"requests": _resized(random, actual)}
    return found


def _sum_requests(pod: Json) -> Json:
    """Sum the requests of all resources, as the kubelet writes them into the status of a pod."""
    spec = pod["spec"]
    parts = (spec, *spec["containers"], *spec["initContainers"])
    names = sorted({name for each in parts for name in each.get("resources", {}).get("requests", ())})
    read = msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=Pod)
    return {
        name: f"{sum_requests(read, name, parse_milli)}m"
        if name == "cpu"
        else str(sum_requests(read, name, parse_bytes))
        for name in names
    }


def _resized(random: Random, amounts: Json) -> Json:
    choices = {"cpu": ("100m", "500m", "1", "4"), "memory": ("100Mi", "1Gi", "4Gi")}
    return {name: random.choice((amount, *choices.get(name, ()))) for name, amount in amounts.items()}


# Making a scene smaller.


def shrink(scene: Scene, fails: Callable[[Scene], bool]) -> Scene:
    """Leave out whatever a failure does not need: objects first, then their parts."""
    changed = True
    while changed:
        changed = False
        for smaller in list(_list_smaller(scene)):
            candidate = smaller(scene)
            if candidate is not None and fails(candidate):
                scene, changed = candidate, True
    return scene


def _list_smaller(scene: Scene) -> Iterator[Callable[[Scene], Scene | None]]:
    """List changes that make a scene smaller; one that an earlier change made senseless gives None."""
    for kind in ("placed", "bound", "nodes"):
        names = [each["metadata"]["name"] for each in getattr(scene, kind)]
        if len(names) > 4:
            half = len(names) // 2
            yield from (_without(kind, set(part)) for part in (names[:half], names[half:]))
        for name in names:
            yield _without(kind, {name})
    for kind in ("placed", "bound", "nodes"):
        for item in getattr(scene, kind):
            for path in _list_paths(item):
                # No kubelet says only a part of what it says of a pod.
                if kind != "bound" or path[0] != "status" or len(path) == 1:
                    yield _without_part(kind, item["metadata"]["name"], path)


def _without(kind: str, names: set[str]) -> Callable[[Scene], Scene | None]:
    def change(scene: Scene) -> Scene | None:
        left = [each for each in getattr(scene, kind) if each["metadata"]["name"] not in names]
        if len(left) == len(getattr(scene, kind)) or (kind == "placed" and not left):
            return None
        result = copy.deepcopy(scene)
        setattr(result, kind, left)
        if kind == "nodes":
            there = {each["metadata"]["name"] for each in left}
            result.bound = [each for each in result.bound if each["spec"]["nodeName"] in there]
        return result

    return change


_KEPT: Final = frozenset(
    {"name", "spec", "namespace", "nodeName", "image", "containers", "topologyKey", "metadata"}
)


def _list_paths(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Give the places of everything that could be left out of an object, the largest first."""
    found: list[tuple[Any, ...]] = []
    if isinstance(part, dict):
        items: list[tuple[Any, Any]] = list(part.items())
    elif isinstance(part, list):
        items = list(enumerate(part))[::-1]
    else:
        return []
    for key, value in items:
        if key not in _KEPT:
            found.append((*path, key))
        found += _list_paths(value, (*path, key))
    return sorted(found, key=len)


def _without_part(kind: str, name: str, path: tuple[Any, ...]) -> Callable[[Scene], Scene | None]:
    def change(scene: Scene) -> Scene | None:
        result = copy.deepcopy(scene)
        part: Any = next((each for each in getattr(result, kind) if each["metadata"]["name"] == name), None)
        try:
            for key in path[:-1]:
                part = part[key]
            del part[path[-1]]
        except (KeyError, IndexError, TypeError):
            return None
        return result

    return change
