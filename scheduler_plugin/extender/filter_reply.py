"""The reply of filter: its answer, and what retries, preemption and reports need afterwards."""

from dataclasses import dataclass, field

from scheduler_plugin.cache.pod_groups import GroupKey
from scheduler_plugin.extender.node_set import NodeSet
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePod
from scheduler_plugin.scheduling.request import SchedulingRequest


@dataclass(frozen=True, slots=True)
class FilterReply:
    """The answer of filter, and what others need afterwards.

    Attributes:
        refused: UID of a pod that was refused only for lack of room, else empty.
        passed: UID of a pod that asks for cards and found a node, else empty.
        unschedulable: Why no node will do, for people; None also where the call names no node.
        evictable: Names of nodes, not always all, on which pods may be evicted for this one.
        gang_refused: UID of a pod of a gang that lacks a card on `evictable`; with the nodes that others of
            its gang were offered before.
        asked_nodes: Nodes to check again later; set together with `refused`.
        group_in_part: PodGroup of a refused pod that is bound in part, and lacks a card, or a Binding that is
            accepted, for this pod.
        attempt: If a node policy was asked: the pod and the best row, None if the policy held the pod back.
    """

    answer: bytes
    refused: str = ""
    passed: str = ""
    unschedulable: UnschedulablePod | None = field(default=None, compare=False)
    evictable: tuple[str, ...] = ()
    asked_nodes: NodeSet | None = field(default=None, compare=False)
    gang_refused: str = ""
    group_in_part: GroupKey | None = None
    attempt: tuple[SchedulingRequest, int | None] | None = field(default=None, compare=False)
