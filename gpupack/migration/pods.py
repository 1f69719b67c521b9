"""Rewrites one pod, or one pod template, in place."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap

from allocator.errors import shown
from allocator.names import (
    COMPUTE_RESOURCE,
    POD_CARD_POLICY,
    POD_CARDS,
    POD_CONTAINERS,
    POD_GPU_MODEL,
    POD_GPU_UUID,
    POD_NODE_POLICY,
    resource_name,
)
from allocator.request import MAX_POD_CARDS
from gpupack.migration.requests import (
    GPUSHARE_MEMORY,
    KAI_AMOUNTS,
    KAI_CARDS,
    KAI_COMPUTE,
    KAI_CONTAINER,
    CardRequest,
    MigrationOptions,
    UntranslatableError,
    is_peer_compute,
    is_peer_resource,
    read_amounts,
    translate_amounts,
)
from gpupack.migration.yamltext import Scalar, remove_key, rename_key

PEER_SCHEDULERS: Final = frozenset({"", "default-scheduler", "hami-scheduler"})
QUEUEING_SCHEDULERS: Final = frozenset({"volcano", "kai-scheduler", "runai-scheduler"})
"""Schedulers that cannot call our extender: they choose cards themselves, and have queues and gangs."""

USE_TYPE: Final = "nvidia.com/use-gputype"
NO_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NO_UUID: Final = "nvidia.com/nouse-gpuuuid"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
NODE_POLICIES: Final = {"binpack": "fragmentation", "spread": "least-requested"}
CARD_POLICIES: Final = {"binpack": "fragmentation", "spread": "least-used"}
WITHOUT_PEER: Final = {
    "nvidia.com/vgpu-mode": "how memory is limited is not the pod's choice",
    "nvidia.com/numa-bind": "of equally good cards those of one NUMA node are taken, it is not required",
    "volcano.sh/vgpu-mode": "how memory is limited is not the pod's choice",
    "gpu-fraction.limit": "a container gets what it asks for and no more",
    "gpu-memory.limit": "a container gets what it asks for and no more",
    "gpu-sm-cores": "compute is asked for in percent of a card: write gpupack.io/gpu-compute-percent",
    "mps": "MPS is chosen for a node (docs/mps.md)",
}
_TRANSLATED: Final = {
    *(USE_TYPE, NO_TYPE, USE_UUID, NO_UUID, NODE_POLICY, CARD_POLICY),
    *(*WITHOUT_PEER, *KAI_AMOUNTS, KAI_CONTAINER, KAI_COMPUTE),
}
_RENAMED: Final = (
    (USE_TYPE, POD_GPU_MODEL),
    (NO_TYPE, POD_GPU_MODEL),
    (USE_UUID, POD_GPU_UUID),
    (NO_UUID, POD_GPU_UUID),
    (NODE_POLICY, POD_NODE_POLICY),
    (CARD_POLICY, POD_CARD_POLICY),
)
"""Ours stands where theirs stood, the first one that there is, and has its comments."""
WRITTEN_BY_PEERS: Final = (
    "hami.io/bind-phase",
    "hami.io/bind-time",
    "hami.io/vgpu-",
    "ALIYUN_COM_GPU_MEM_",
    "scheduler.framework.gpushare.allocation",
    "received-resource-type",
    "runai-allocated-",
)
"""Beginnings of annotations that the peers' schedulers write; they mean nothing elsewhere."""
OVERRIDING: Final = "NVIDIA_VISIBLE_DEVICES"
PRODUCT: Final = "nvidia.com/gpu.product"
PEER_VARIABLES: Final = ("ALIYUN_COM_GPU_MEM", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")

_FIELDS: Final = ("initContainers", "containers")

Say = Callable[[str], None]


def rewrite_pod(
    metadata: dict[str, Any] | None,
    spec: dict[str, Any],
    options: MigrationOptions,
    say: Say,
    *,
    takes_scheduler: bool,
) -> bool:
    """Rewrite a pod for gpupack; return False, and change nothing, if something cannot be translated."""
    for field in _FIELDS:
        if not isinstance(spec.get(field) or [], list):
            say(f"left as it is: spec.{field} is {shown(str(spec[field]))}; allowed: a list")
            return False
    containers = list(_containers(spec))
    try:
        amounts = [(container, read_amounts(container)) for container in containers]
        _read_annotations(metadata or {}, spec, amounts)
        if not any(found for _, found in amounts):
            return True
        requests = [(container, _wanted(container, found, options)) for container, found in amounts]
        cards = _cards(requests, _init_asks(spec, requests))
        pairs = zip(amounts, requests, strict=True)
        gpushare = sum(GPUSHARE_MEMORY in found and request is not None for (_, found), (_, request) in pairs)
        same_card = gpushare > 1
        _check_place(metadata, cards, same_card=same_card)
    except UntranslatableError as error:
        say(f"left as it is: {error}")
        return False
    if metadata is not None:
        _rewrite_annotations(metadata, cards, say, same_card=same_card)
    resource = resource_name(options.unit_mib)
    for container, request in requests:
        _replace(container, request, resource)
        for note in request.notes if request is not None else ():
            say(f"container {container.get('name', '')}: {note}")
    if any(request is not None for _, request in requests):
        _name_scheduler(spec, options.scheduler_name, say, takes_it=takes_scheduler)
    _warn(spec, requests, say, same_card=same_card)
    return True


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List the containers; a workflow has one under a name of its own, as `container` or `model`."""
    for field in _FIELDS:
        found = spec.get(field)
        if isinstance(found, list):
            yield from (each for each in found if isinstance(each, dict))
    yield from (each for each in spec.values() if isinstance(each, dict) and "resources" in each)


def _read_annotations(
    metadata: dict[str, Any], spec: dict[str, Any], amounts: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """Add what the pod asks for by annotations to the container that it names, else to the first one."""
    found = metadata.get("annotations")
    annotations = found if isinstance(found, dict) else {}
    asked = {key: annotations[key] for key in KAI_AMOUNTS if key in annotations}
    compute = {key: annotations[key] for key in (KAI_COMPUTE,) if key in annotations}
    if not asked or set(asked) == {KAI_CARDS}:
        next((amount for _, amount in amounts if amount), {}).update(compute)
        return
    named = annotations.get(KAI_CONTAINER)
    init = spec.get("initContainers") or []
    for container, amount in amounts:
        if container.get("name") == named if named is not None else container not in init:
            amount.update(asked | compute)
            return
    raise UntranslatableError(f"annotation {KAI_CONTAINER}: {named}; there is no such container")


def _check_place(metadata: dict[str, Any] | None, cards: int, *, same_card: bool) -> None:
    if metadata is None and (same_card or cards > 1):
        needed = f"{POD_CONTAINERS}: same-card" if same_card else f"{POD_CARDS}: {cards}"
        raise UntranslatableError(f"its pods need the annotation {needed}, which has no place here")


def _init_asks(spec: dict[str, Any], requests: list[tuple[dict[str, Any], CardRequest | None]]) -> bool:
    """Tell whether an ordinary init container asks; gpupack then gives the pod one card."""
    init = spec.get("initContainers")
    if not isinstance(init, list):
        return False
    ordinary = {id(each) for each in init if isinstance(each, dict) and each.get("restartPolicy") != "Always"}
    return any(id(container) in ordinary and request is not None for container, request in requests)


def _wanted(
    container: dict[str, Any], amounts: dict[str, Any], options: MigrationOptions
) -> CardRequest | None:
    try:
        return translate_amounts(amounts, options)
    except UntranslatableError as error:
        raise UntranslatableError(f"container {container.get('name', '')}: {error}") from error


def _cards(requests: list[tuple[dict[str, Any], CardRequest | None]], init_asks: bool) -> int:
    """Agree on what gpupack asks once for a pod: the number of cards, and GiB or percent."""
    requesting = [
        (container.get("name", ""), request) for container, request in requests if request is not None
    ]
    numbers = {request.cards for _, request in requesting}
    said = ", ".join(f"{name} {request.cards}" for name, request in requesting)
    if len(numbers) > 1:
        raise UntranslatableError(
            f"containers want different numbers of cards ({said}): gpupack.io/cards holds for all containers "
            "of a pod"
        )
    if len({bool(request.units) for _, request in requesting}) > 1:
        raise UntranslatableError(
            "one container wants memory and another a share of a card or a whole one: gpupack takes one of "
            "both in a pod; with --gpu-gib all are memory"
        )
    cards = numbers.pop() if numbers else 1
    if cards > MAX_POD_CARDS:
        raise UntranslatableError(f"{said} cards; allowed: at most {MAX_POD_CARDS}")
    if cards > 1 and init_asks:
        raise UntranslatableError(
            f"an init container asks and {said}: gpupack then gives one card to the pod"
        )
    return cards


def _rewrite_annotations(metadata: dict[str, Any], cards: int, say: Say, *, same_card: bool) -> None:
    found = metadata.get("annotations")
    annotations = found if isinstance(found, dict) else CommentedMap()
    new = _translate_annotations(annotations, cards, say)
    if same_card and POD_CONTAINERS not in annotations:
        new[POD_CONTAINERS] = "same-card"
    for key, ours in _RENAMED:
        if key in annotations and ours in new:
            rename_key(annotations, key, ours, new.pop(ours))
    for key in [key for key in annotations if key in _TRANSLATED or key.startswith(WRITTEN_BY_PEERS)]:
        remove_key(annotations, key)
    annotations.update(new)
    if annotations and found is not annotations:
        metadata["annotations"] = annotations
    elif not annotations and "annotations" in metadata:
        remove_key(metadata, "annotations")


def _translate_annotations(old: dict[str, Any], cards: int, say: Say) -> dict[str, Any]:
    new: dict[str, Any] = {}
    if cards > 1:
        new[POD_CARDS] = str(cards)
    for key, patterns in (
        (POD_GPU_MODEL, [*_models(old.get(USE_TYPE), ""), *_models(old.get(NO_TYPE), "!")]),
        # HAMi looks at the second only where the first is absent.
        (POD_GPU_UUID, [*_split(old.get(USE_UUID))] or [f"!{uuid}" for uuid in _split(old.get(NO_UUID))]),
    ):
        if patterns:
            new[key] = ",".join(patterns)
    for key, ours, policies in (
        (NODE_POLICY, POD_NODE_POLICY, NODE_POLICIES),
        (CARD_POLICY, POD_CARD_POLICY, CARD_POLICIES),
    ):
        if key in old:
            policy = policies.get(str(old[key]))
            if policy is None:
                say(f"annotation {key}: {old[key]} is left out: gpupack has no such policy")
            else:
                new[ours] = policy
    for key, why in WITHOUT_PEER.items():
        if key in old:
            say(f"annotation {key}: {old[key]} is left out: {why}")
    return new


def _split(text: Any) -> list[str]:
    return [part.strip() for part in str(text or "").split(",") if part.strip()]


def _models(text: Any, sign: str) -> Iterator[str]:
    """HAMi looks for the text anywhere in the model, whose name it begins with `NVIDIA-`."""
    for part in _split(text):
        bare = part[len("NVIDIA-") :] if part.upper().startswith("NVIDIA-") else part
        yield f"{sign}*{bare or part}*"


def _replace(container: dict[str, Any], request: CardRequest | None, resource: str) -> None:
    """Put our resources where the first of theirs stood."""
    if not isinstance(container.get("resources"), dict):
        if request is None:
            return
        container["resources"] = CommentedMap()
    resources = container["resources"]
    amounts = {} if request is None else request.list_amounts(resource)
    memory = next(iter(amounts), "")
    for field in ("limits", "requests"):
        part = resources.get(field)
        theirs = [key for key in part if is_peer_resource(key)] if isinstance(part, dict) else []
        ours = dict(amounts)
        for key in theirs:
            name = COMPUTE_RESOURCE if is_peer_compute(key) else memory
            if name in ours:
                rename_key(part, key, name, ours.pop(name))
            else:
                remove_key(part, key)
        if theirs and not part:
            remove_key(resources, field)
    # Kubernetes takes no request of an extended resource without its limit.
    if amounts:
        if not isinstance(resources.get("limits"), dict):
            resources["limits"] = CommentedMap()
        for name, amount in amounts.items():
            resources["limits"].setdefault(name, amount)


def _name_scheduler(spec: dict[str, Any], ours: str, say: Say, *, takes_it: bool) -> None:
    named = spec.get("schedulerName", "")
    if not takes_it and "schedulerName" not in spec:
        say("no schedulerName is written, the kind refuses it: policy gpupack-scheduler-name sets it")
    elif str(named) in PEER_SCHEDULERS or (isinstance(named, Scalar) and named.is_null):
        spec["schedulerName"] = ours
    elif str(named) in QUEUEING_SCHEDULERS:
        spec["schedulerName"] = ours
        say(f"schedulerName {named} becomes {ours}: its queues and gangs do not hold (docs/howto/gangs.md)")
    elif named != ours:
        say(f"schedulerName {named} is kept: it has to call gpupack's extender, else write {ours}")


def _warn(
    spec: dict[str, Any],
    requests: list[tuple[dict[str, Any], CardRequest | None]],
    say: Say,
    *,
    same_card: bool,
) -> None:
    """Say what would work otherwise than before although it needs no other words."""
    if spec.get("nodeName"):
        say(f"nodeName {spec['nodeName']} is kept: no scheduler chooses a card for such a pod; take it out")
    requesting = [container for container, request in requests if request is not None]
    if len(requesting) > 1 and not same_card:
        say("several containers ask: each gets a card by itself, maybe another one")
    for container in requesting:
        name = container.get("name", "")
        env = container.get("env")
        for variable in env if isinstance(env, list) else ():
            if isinstance(variable, dict) and variable.get("name") == OVERRIDING:
                say(f"container {name} sets {OVERRIDING}, which overrides the card it is given; take it out")
        for peer in PEER_VARIABLES:
            if any(peer in text for text in _texts([container.get(k) for k in ("env", "command", "args")])):
                say(f"container {name} uses {peer}*; gpupack sets GPUPACK_MEMORY_MIB and GPUPACK_CARDS")
    for where, key, value in _selected(spec):
        model = f"; the annotation {POD_GPU_MODEL} chooses cards by model" if key == PRODUCT else ""
        say(
            f"{where} {key}: {value} is kept: no pod starts where nodes lack that label; "
            f"gpupack's nodes have gpupack.io/node=true{model}"
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _selected(spec: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """List the labels of others that the pod's node must have: where it says so, key, value."""
    selector = spec.get("nodeSelector")
    found = [("nodeSelector", *item) for item in selector.items()] if isinstance(selector, dict) else []
    affinity = spec.get("affinity")
    for each in _mappings(affinity.get("nodeAffinity") if isinstance(affinity, dict) else None):
        if isinstance(each.get("key"), str):
            values = each.get("values")
            said = ", ".join(map(str, values)) if isinstance(values, list) else each.get("operator")
            found.append(("nodeAffinity", each["key"], said))
    for where, key, value in found:
        if key in {"gpushare", "gpu"} or key.startswith(("nvidia.com/", "aliyun.com/")):
            yield where, key, value


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _mappings(each)
