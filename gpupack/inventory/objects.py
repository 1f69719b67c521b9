"""Nodes and Pods as `gpupack top` reads them: from kubectl's JSON, or from the API server's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from allocator.claims import ClaimObject
from allocator.errors import shown
from gpupack.errors import InputError
from scheduler_plugin.cache.objects import PodLite

T = TypeVar("T")

_NODES_ALLOWED: Final = "allowed: the output of `kubectl get nodes -o json`"
_PODS_ALLOWED: Final = "allowed: the output of `kubectl get nodes,pods -A -o json`"


class NodeMetadata(msgspec.Struct):
    """`metadata` of a node."""

    name: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class NodeConditionStatus(msgspec.Struct):
    """NodeConditionStatus is one of a node's conditions."""

    type: str
    status: str


class InventoryNodeStatus(msgspec.Struct):
    """`status` of a node."""

    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: list[NodeConditionStatus] | None = None


class InventoryNodeSpec(msgspec.Struct):
    """`spec` of a node."""

    unschedulable: bool = False


class InventoryNode(msgspec.Struct):
    """A node."""

    metadata: NodeMetadata
    spec: InventoryNodeSpec = msgspec.field(default_factory=InventoryNodeSpec)
    status: InventoryNodeStatus = msgspec.field(default_factory=InventoryNodeStatus)


@dataclass(frozen=True, slots=True)
class NodesAndPods:
    """What was read.

    Attributes:
        nodes: in no order.
        pods: None when they were not asked for.
        claims: ResourceClaims.
    """

    nodes: Sequence[InventoryNode]
    pods: Sequence[PodLite] | None = None
    claims: Sequence[ClaimObject] = ()


def make_unknown_node_error(names: Iterable[str]) -> InputError:
    """Make the error for names that no node has."""
    return InputError(f"no node has the name {', '.join(shown(name) for name in sorted(names))}")


class _ItemMetadata(msgspec.Struct):
    name: str = ""


class _Item(msgspec.Struct):
    kind: str = "Node"
    metadata: _ItemMetadata = msgspec.field(default_factory=_ItemMetadata)


class _Input(msgspec.Struct):
    items: list[msgspec.Raw] | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def load_nodes(text: str | bytes, *, pods: bool = False) -> NodesAndPods:
    """Read the output of `kubectl get nodes -o json`, or of one node; with `pods` also the pods in it.

    Without `pods`, pods beside nodes are left out: `kubectl get nodes,pods -A -o json` is fine.

    Raises:
        InputError: not JSON, or something else than nodes and pods; the message names the place.
    """
    allowed = _PODS_ALLOWED if pods else _NODES_ALLOWED
    if not text.strip():
        raise InputError(f"the input is empty; {allowed}")
    try:
        return _read(text, pods=pods)
    except _OtherKindError as error:
        raise InputError(f"{error}; {allowed}") from error
    except msgspec.ValidationError as error:
        # It may end in rubbish all the same, which is the worse news.
        _check_json(text, allowed)
        raise InputError(f"the input does not hold nodes ({error}); {allowed}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the input is not JSON ({error}); {allowed}") from error


class _OtherKindError(Exception):
    """The input holds something else."""


def _make_other_kind_error(item: _Item) -> _OtherKindError:
    return _OtherKindError(f"the input holds a {shown(item.kind)}, {shown(item.metadata.name)}")


def _check_json(text: str | bytes, allowed: str) -> None:
    """Raise InputError where it is no JSON at all."""
    try:
        msgspec.json.decode(text)
    except msgspec.ValidationError:  # a number that is too large for any type
        return
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the input is not JSON ({error}); {allowed}") from error


def _read(text: str | bytes, *, pods: bool) -> NodesAndPods:
    found = msgspec.json.decode(text, type=_Input)
    if found.items is UNSET and found.metadata is not UNSET:
        items: list[msgspec.Raw] = [msgspec.Raw(text)]
    else:
        items = msgspec.json.decode(text, type=_List).items
    nodes: list[InventoryNode] = []
    seats: list[PodLite] = []
    claims: list[ClaimObject] = []
    unread: _Item | None = None
    for number, item in enumerate(items):
        place = f"$.items[{number}]" if found.items is not UNSET else "$"
        kind = _decode(item, _Item, place)
        if kind.kind == "Node":
            nodes.append(_decode(item, InventoryNode, place))
        elif kind.kind == "Pod" and pods:
            seats.append(_decode(item, PodLite, place))
        elif kind.kind == "ResourceClaim" and pods:
            claims.append(_decode(item, ClaimObject, place))
        elif kind.kind == "Pod":
            unread = unread or kind
        else:
            raise _make_other_kind_error(kind)
    if unread is not None and not nodes:
        raise _make_other_kind_error(unread)
    if pods and nodes and not seats:
        raise _OtherKindError("the input holds no pods")
    return NodesAndPods(nodes, seats if pods else None, claims)


def _decode(item: msgspec.Raw, kind: type[T], place: str) -> T:
    """Decode one item; a message says where it stands in the whole."""
    try:
        return msgspec.json.decode(item, type=kind)
    except msgspec.ValidationError as error:
        said, at, path = str(error).partition("`$")
        message = f"{said}`{place}{path}" if at else f"{error} - at `{place}`"
        raise msgspec.ValidationError(message) from error
