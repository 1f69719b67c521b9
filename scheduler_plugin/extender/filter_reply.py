"""What filter found: its answer, and what others do with it afterwards."""

from dataclasses import dataclass, field

from scheduler_plugin.extender.node_set import NodeSet
from scheduler_plugin.extender.unschedulable_pods import Refusal
from scheduler_plugin.scheduling.request import Query


@dataclass(frozen=True, slots=True)
class Filtered:
    """What filter found.

    Attributes:
        answer: For kube-scheduler.
        refused: UID of a pod that only found no room, else empty.
        passed: UID of a pod that asks for cards and found a node, else empty.
        refusal: Why no node will do, for people.
        evictable: Names of nodes, not always all, on which pods may be evicted for this one.
        among: Nodes to look at once more later; with `refused` only.
        tried: The pod, where its node policy was asked, and the best row; None: it held the pod back.
    """

    answer: bytes
    refused: str = ""
    passed: str = ""
    refusal: Refusal | None = field(default=None, compare=False)
    evictable: tuple[str, ...] = ()
    among: NodeSet | None = field(default=None, compare=False)
    tried: tuple[Query, int | None] | None = field(default=None, compare=False)
