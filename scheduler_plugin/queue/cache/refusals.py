"""Reasons why gated pods are in no queue, in words. Pure."""

from typing import Final

from allocator.names import PERCENT_RESOURCE
from allocator.texts import list_some
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.cache.queued_pods import QueuedPod

GATES_SHOWN: Final = 10


def has_no_request(resource: str) -> str:
    return f"it asks for no {resource} and no {PERCENT_RESOURCE}; allowed: 1 or more of one of them"


def explain_refusal(pod: QueuedPod, membership: QueueMembership) -> str:
    """Say why a gated pod is in no queue; empty if it can be in one."""
    wrong = pod.fault or membership.explain_wrong_queue(pod)
    if wrong:
        return wrong
    if pod.queue_info.foreign_gates:
        return f"it waits for the scheduling gates {list_some(pod.queue_info.foreign_gates, GATES_SHOWN)}"
    return "it is being deleted" if pod.queue_info.ending else ""
