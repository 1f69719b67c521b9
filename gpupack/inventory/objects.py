"""Nodes and Pods as `gpupack top` reads them: from kubectl's JSON, or from the API server's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.claims import ClaimObject
from allocator.errors import AllocatorError, shown
from allocator.names import NODE_HOLDS, NODE_LABEL, SERVES_CLAIMS
from allocator.records import load_holds
from gpupack.errors import InputError
from gpupack.inventory.kubectl_json import ALL_ALLOWED, NODES_ALLOWED, read_items
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.claim_charges import serves_claims

CLAIMS_NOT_READ: Final = (
    "ResourceClaims were not read: what is allocated and not prepared yet is not counted; "
    "allowed: the right to list them, or `kubectl get nodes,pods,resourceclaims -A -o json`"
)


@dataclass(frozen=True, slots=True)
class NodesAndPods:
    """The objects that were read.

    Attributes:
        pods: None when they were not asked for.
        claims: ResourceClaims; None when they were not read though nodes have pods with claims.
    """

    nodes: Sequence[Node]
    pods: Sequence[Pod] | None = None
    claims: Sequence[ClaimObject] | None = ()


def make_unknown_node_error(names: Iterable[str]) -> InputError:
    return InputError(f"no node has the name {', '.join(shown(name) for name in sorted(names))}")


def load_nodes(text: str | bytes, *, pods: bool = False) -> NodesAndPods:
    """Read the output of `kubectl get nodes -o json`, or of one node; with `pods` also the pods in it.

    Without `pods`, pods beside nodes are left out: `kubectl get nodes,pods -A -o json` is fine.

    Raises:
        InputError: not JSON, or something else than nodes and pods; the message names the place.
    """
    kinds: dict[str, type[Any] | None] = {"Node": Node, "Pod": None}
    if pods:
        kinds.update({"Pod": Pod, "ResourceClaim": ClaimObject})
    allowed = ALL_ALLOWED if pods else NODES_ALLOWED
    found = read_items(text, kinds, content="nodes", allowed=allowed, single=True)
    if not pods:
        return NodesAndPods(found["Node"])
    if found["Node"] and not found["Pod"]:
        raise InputError(f"the input holds no pods; {allowed}")
    claims = found["ResourceClaim"]
    lacks_claims = not claims and any(map(_holds_claims, found["Node"]))
    return NodesAndPods(found["Node"], found["Pod"], None if lacks_claims else claims)


def is_chosen_for_daemon(node: Node) -> bool:
    """Tell whether a node has the label for one of the daemons: with the device plugin, or with claims."""
    return node.metadata.get_label(NODE_LABEL) in {"true", SERVES_CLAIMS}


def _holds_claims(node: Node) -> bool:
    """Tell whether a node's words contain pods that have their cards by claims."""
    if not serves_claims(node):
        return False
    try:
        return bool(load_holds(node.metadata.get_annotation(NODE_HOLDS) or "").uids)
    except AllocatorError:
        return False
