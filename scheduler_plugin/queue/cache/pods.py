"""Pods as the queue reads them from the API server. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from allocator.errors import shown
from allocator.names import (
    POD_DATA,
    POD_FIRST_STAGE_SIZE,
    POD_GANG,
    POD_GANG_SIZE,
    POD_JOB,
    POD_PLANNED,
    QUEUE_GATE,
    QUEUE_NAME,
)
from kubeapi.objects import OwnerReference, Pod, PodStatus
from scheduler_plugin.cache.gang_names import MAX_GANG, parse_gang_size, read_gang_name, read_group_label
from scheduler_plugin.cache.pod_groups import PodGroups, find_coscheduling_key
from scheduler_plugin.cache.pods import is_of_batch_mode, is_requeued
from scheduler_plugin.queue.cache.node_pins import list_pinned_nodes
from scheduler_plugin.scheduling.reasons import REQUEUED

MAX_NAME: Final = 253
MAX_DATA: Final = 64
MAX_FIRST_STAGE: Final = 999_999
_FIRST_STAGE: Final = re.compile(r"[0-9]{1,6}")


class Affinities(IntEnum):
    """How much of `spec.affinity` a pod has, down to the required node terms; the patch depends on it."""

    NONE = 0
    SOME = 1
    NODES = 2
    REQUIRED = 3


@dataclass(frozen=True, slots=True)
class PodQueueInfo:
    """The part of a pod that the queue reads: labels, annotations, gates and conditions.

    Attributes:
        label: Queue that its label names, empty for none.
        created: When it was created, seconds since 1970; 0 if the API server does not say.
        gated: The pod waits for its admission: it has our gate, is requeued, or waits to be bound by batch
            mode.
        is_batch: See `is_of_batch_mode`.
        requeued: The pod was requeued after an admission, see `is_requeued`.
        foreign_gates: Names of other gates that it wears.
        owner: UID of the controller that would create it again; empty for none, and for a static pod, which
            no eviction ends.
        first_stage_size: Pods of the first stage of its job; None: it does not say.
        grace_s: Seconds that it may take to end, once it is being deleted.
        unschedulable: When and why kube-scheduler found no node for it, in its words; empty if it said
            nothing, or only that the pod is requeued.
        affinity: How much of `spec.affinity` it has, see `Affinities`.
        pinned_nodes: Nodes that an admission has named; it may run on no other.
        fault: What is wrong with it, in words, empty for nothing.
    """

    queue: str
    label: str
    created: float
    gated: bool
    has_gate: bool
    is_batch: bool
    requeued: bool
    foreign_gates: tuple[str, ...]
    data: frozenset[str]
    job: str
    gang: str
    gang_size: int
    owner: str
    maker: str
    first_stage_size: int | None
    ending: bool
    grace_s: float
    unschedulable: str
    affinity: "Affinities"
    pinned_nodes: tuple[str, ...]
    annotated: bool
    fault: str

    @property
    def has_controller(self) -> bool:
        return bool(self.owner)


def read_queue_info(pod: Pod, groups: PodGroups[Pod] | None = None) -> PodQueueInfo:
    """Read what the queue needs of a pod; a mistake in it becomes `fault`, not an exception."""
    meta, annotations = pod.metadata, pod.metadata.annotations or {}
    gates = pod.gates
    requeued = is_requeued(pod)
    is_batch = is_of_batch_mode(pod)
    gang, size, fault = read_gang(pod, groups)
    job, wrong = _read_name(annotations, POD_JOB)
    stage_size, wrong_size = _read_first_stage_size(annotations, job)
    fault = fault or wrong or wrong_size
    owner = (None if pod.is_mirror else meta.controller) or OwnerReference()
    label = meta.get_label(QUEUE_NAME) or ""
    data = read_data(annotations)
    if len(data) > MAX_DATA:
        fault = fault or f"annotation {POD_DATA} has {len(data)} names; allowed: {MAX_DATA}"
    return PodQueueInfo(
        queue=label,
        label=label,
        created=meta.created_at,
        gated=QUEUE_GATE in gates or requeued or (is_batch and not pod.spec.node_name),
        has_gate=QUEUE_GATE in gates,
        is_batch=is_batch,
        requeued=requeued,
        foreign_gates=tuple(sorted(name for name in gates if name != QUEUE_GATE)),
        data=frozenset(data),
        job=job,
        gang=gang,
        gang_size=size,
        owner=owner.uid,
        maker=owner.uid if owner.kind == "Job" and owner.api_version.startswith("batch/") else "",
        first_stage_size=stage_size,
        ending=meta.is_terminating,
        grace_s=float(meta.deletion_grace_period_seconds or 0),
        unschedulable=_read_unschedulable(pod.status),
        affinity=_read_affinities(pod),
        pinned_nodes=list_pinned_nodes(pod.spec.node_terms) if POD_PLANNED in annotations else (),
        annotated=bool(meta.annotations),
        fault=fault,
    )


def read_data(annotations: Mapping[str, str]) -> list[str]:
    """Read the names of the data that a pod with these annotations needs, as often as each is written."""
    return [name for part in annotations.get(POD_DATA, "").split(",") if (name := part.strip())]


def _read_affinities(pod: Pod) -> Affinities:
    affinity = pod.spec.affinity
    nodes = affinity.node_affinity if affinity is not None else None
    return Affinities(sum(each is not None for each in (affinity, nodes, pod.spec.node_terms)))


def read_gang(pod: Pod, groups: PodGroups[Pod] | None = None) -> tuple[str, int, str]:
    """Read the name and size of a pod's gang, and what is wrong with them, in words.

    The size of a PodGroup of Kubernetes is not the pod's to say: it is 0 where no annotation says it, too.
    `minMember` of a PodGroup of the coscheduling plugin counts where no annotation says a size.
    """
    meta = pod.metadata
    annotations, labels = meta.annotations or {}, meta.labels
    (noted, fault), text = _read_name(annotations, POD_GANG), annotations.get(POD_GANG_SIZE)
    if pod.scheduling_group is not None:
        if text is None:
            return pod.scheduling_group[1], 0, ""
    elif fault:
        return "", 1, fault
    gang = read_gang_name(pod)
    if not gang:
        alone = f"annotation {POD_GANG_SIZE} without {POD_GANG}; allowed: both or none"
        return "", 1, alone if text is not None else ""
    where = f"annotation {POD_GANG_SIZE}"
    if text is None and not noted:  # A label of a PodGroup names it
        key = find_coscheduling_key(meta)
        group = groups.get_group(key) if groups is not None and key is not None else None
        if group is None:
            how = f"allowed: a PodGroup {shown(gang)} with minMember, or annotation {POD_GANG_SIZE}"
            fault = "" if groups is None else groups.fault
            why = f": PodGroups cannot be read ({fault})" if fault else ""
            label = read_group_label(labels)[0]
            return gang, 0, f"label {label} names a gang whose size is not known{why}; {how}"
        text, where = str(group.spec.min_member), f"minMember of PodGroup {shown(gang)}"
    size = parse_gang_size(text)
    if not size:
        seen = "missing" if text is None else shown(text)
        allowed = f"allowed: a whole number from 1 to {MAX_GANG}"
        return gang, 0, f"{where} is {seen}; {allowed}"
    return gang, size, ""


def _read_first_stage_size(annotations: dict[str, str], job: str) -> tuple[int | None, str]:
    """Read how many pods the first stage of a job has, and what is wrong with that, in words."""
    text = annotations.get(POD_FIRST_STAGE_SIZE)
    if text is None:
        return None, ""
    if not job:
        return None, f"annotation {POD_FIRST_STAGE_SIZE} without {POD_JOB}; allowed: both or none"
    if not _FIRST_STAGE.fullmatch(text):
        allowed = f"allowed: a whole number from 0 to {MAX_FIRST_STAGE}"
        return None, f"annotation {POD_FIRST_STAGE_SIZE} is {shown(text)}; {allowed}"
    return int(text), ""


def _read_name(annotations: Mapping[str, str], key: str) -> tuple[str, str]:
    """Read a name that is shown to others, and what is wrong with it, in words."""
    name = annotations.get(key, "")
    if len(name) <= MAX_NAME and name.isprintable():
        return name, ""
    return (
        "",
        f"annotation {key} is {shown(name)}; allowed: {MAX_NAME} printable characters",
    )


def _read_unschedulable(status: PodStatus) -> str:
    condition = status.scheduled
    if condition is None or not status.is_unschedulable or REQUEUED in condition.message:
        return ""
    return f"{condition.last_transition_time or ''} {condition.message}"
