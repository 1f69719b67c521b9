"""Reasons why gated pods are in no queue, in words. Pure."""

from collections.abc import Mapping
from typing import Final

from allocator.errors import shown
from allocator.names import PERCENT_RESOURCE, QUEUE_NAME
from allocator.texts import list_some
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.config.queues import QueueConfig, QueueForm

NAMES_SHOWN: Final = 10


def has_no_request(resource: str) -> str:
    return f"it asks for no {resource} and no {PERCENT_RESOURCE}; allowed: 1 or more of one of them"


def admits_namespace(form: QueueForm, namespace_labels: Mapping[str, str] | None) -> bool:
    """Return True if a queue admits pods of a namespace; no selector matches unknown labels (None)."""
    selector = form.namespace_selector
    return selector is None or (namespace_labels is not None and selector.matches(namespace_labels))


def explain_refusal(pod: QueuedPod, config: QueueConfig, namespace_labels: Mapping[str, str] | None) -> str:
    """Say why a gated pod is in no queue; empty if it can be in one."""
    wrong = pod.fault or _explain_wrong_queue(pod, config, namespace_labels)
    if wrong:
        return wrong
    if pod.queue_info.foreign_gates:
        return f"it waits for the scheduling gates {list_some(pod.queue_info.foreign_gates, NAMES_SHOWN)}"
    return "it is being deleted" if pod.queue_info.ending else ""


def _explain_wrong_queue(
    pod: QueuedPod, config: QueueConfig, namespace_labels: Mapping[str, str] | None
) -> str:
    name = pod.queue_info.queue
    if not name:
        return f"label {QUEUE_NAME} is missing; allowed: {_format_names(config)}"
    form = config.queues.get(name)
    if form is None:
        return f"queue {shown(name)} does not exist; allowed: {_format_names(config)}"
    if admits_namespace(form, namespace_labels):
        return ""
    namespace = shown(pod.record.namespace)
    if namespace_labels is None:
        return f"the labels of namespace {namespace} are not known yet, and queue {shown(name)} asks for some"
    return f"queue {shown(name)} is not for namespace {namespace}"


def _format_names(config: QueueConfig) -> str:
    names = sorted(config.queues)
    return ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
