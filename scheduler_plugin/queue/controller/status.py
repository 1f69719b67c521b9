"""Why a pod waits, and what every tenant has: for Events, metrics and `gpupack queue status`. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.queue.cache.job_stages import TO_COME
from scheduler_plugin.queue.cache.queued_pods import Gang, Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements
from scheduler_plugin.queue.config.quota import Cohort
from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.scheduling.available import explain_widened, widen_patterns
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.fit_counts import can_ever_hold_all
from scheduler_plugin.scheduling.reasons import FilterReason, format_demands, format_event_text, format_rules

STAGE_NAMED: Final = 3
"""Pods of a first stage that a message names."""

STAGE_LOOKED_AT: Final = 64
"""Of a first stage with more pods only the oldest are looked at."""


KEPT: Final = "the cards that it would fit on are kept free for pods that wait longer"
KEPT_QUOTA: Final = "the quota that it needs is kept for pods that wait longer"
EVEN_EMPTY: Final = "even if all other pods ended, as nodes and cards are now"
BY_RULES: Final = ", on a node that its rules,"
BY_SUM: Final = (
    "by kube-scheduler's count of a node's sum too little is left, which counts pods on unhealthy cards, too"
)
NOT_TAKEN: Final = "cards that looked free for it could not be taken; it is tried again"
HELD_BACK: Final = (
    f"{format_event_text(FilterReason.HELD_BACK, (), 1)} from the nodes that it fits on; it is tried again"
)


class WaitReason(StrEnum):
    """Why a pod is not released, in one word."""

    REFUSED = "Refused"
    GANG = "GangIncomplete"
    STAGE = "FirstStage"
    STOPPED = "QueueStopped"
    HELD = "HeldBack"
    QUOTA = "Quota"
    NEVER = "NeverFits"
    ROOM = "NoRoom"
    TURN = "Turn"


class WaitExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why one pod waits.

    Attributes:
        namespace: Of the pod.
        name: Of the pod.
        queue: Its queue.
        position: Its place among the tasks of its queue, from 1; 0: it is in no queue.
        reason: In one word.
        message: In words, with numbers.
        waits_s: Seconds since it began to wait.
        gang_size: Pods of its gang, which has one position for all of them; 0: it waits alone.
    """

    namespace: str
    name: str
    queue: str
    position: int
    reason: WaitReason
    message: str
    waits_s: float
    gang_size: int = 0


class QueueReport(msgspec.Struct, frozen=True, rename="camel"):
    """QueueReport is the state of a queue; amounts are units of GPU memory.

    Attributes:
        name: Its name.
        cohort: Its cohort, empty for none.
        weight: Its weight.
        nominal: Its own quota, None for no limit.
        used: Of its released pods.
        borrowed: Beyond its own quota.
        lent: Of its own quota, to others.
        running: Released pods.
        waiting: Pods.
        oldest_wait_s: Seconds that the pod waits that waits longest.
        stop: Whether it releases.
        first_stage: Pods that wait for the first stage of their job.
        weighted_share: Its dominant share by its weight, where queues are ordered by that; else 0.
        dominant_resource: `gpu-memory`, `cpu` or `memory`, of which that share is; empty for none.
    """

    name: str
    cohort: str
    weight: float
    nominal: int | None
    used: int
    borrowed: int
    lent: int
    running: int
    waiting: int
    oldest_wait_s: float
    stop: str
    first_stage: int = 0
    weighted_share: float = 0.0
    dominant_resource: str = ""


def explain_pod(queue: Queue, entry: QueuedPod, now: float, position: int | None = None) -> WaitExplanation:
    """Say why a gated pod waits.

    Args:
        queue: The queue.
        entry: The pod.
        now: Seconds.
        position: Its position where that is known already.
    """
    word, message = _explain_pod(queue, entry)
    if word is WaitReason.REFUSED:
        position = 0
    elif position is None:
        uid = entry.gang or entry.uid
        position = next(
            (at for at, each in number_positions(queue.queues[entry.queue_info.queue]) if each == uid), 0
        )
    return WaitExplanation(
        namespace=entry.record.namespace,
        name=entry.record.name,
        queue=entry.queue_info.queue,
        position=position,
        reason=word,
        message=message,
        waits_s=max(0.0, now - entry.wait_start),
        gang_size=entry.queue_info.gang_size if entry.gang else 0,
    )


def explain_waiting(queue: Queue, now: float) -> list[WaitExplanation]:
    """Say why every gated pod waits, by queue and position; those in no queue first."""
    places = {uid: at for tenant in queue.queues for at, uid in number_positions(tenant)}
    gated = [entry for entry in queue.queued_pods.values() if entry.phase is Phase.GATED]
    found = [explain_pod(queue, entry, now, places.get(entry.gang or entry.uid, 0)) for entry in gated]
    return sorted(found, key=lambda each: (each.queue, each.position, each.namespace, each.name))


def number_positions(tenant: QueueState) -> Iterator[tuple[int, str]]:
    """Number the tasks of a tenant in the order in which it would release them, from 1."""
    order = sorted(tenant.waiting, key=lambda task: task.age_key)
    return ((at, task.uid) for at, task in enumerate(order, start=1))


def report_queues(queue: Queue, now: float) -> list[QueueReport]:
    """What every tenant has and waits for, by name."""
    waits: dict[str, list[float]] = {}
    for entry in queue.queued_pods.values():
        if entry.phase is Phase.GATED:
            waits.setdefault(entry.queue_info.queue, []).append(max(0.0, now - entry.wait_start))
    return [
        _report_queue(queue, tenant, waits.get(tenant.name, []))
        for tenant in sorted(queue.queues, key=lambda tenant: tenant.name)
    ]


def _report_queue(queue: Queue, tenant: QueueState, waits: list[float]) -> QueueReport:
    cohort = queue.queues.get_cohort(tenant.name)
    return QueueReport(
        name=tenant.name,
        cohort=tenant.form.cohort if tenant.form is not None else "",
        weight=tenant.weight,
        nominal=tenant.form.nominal_quota if tenant.form is not None else None,
        used=tenant.units,
        borrowed=0 if cohort is None else cohort.accounts[tenant.name].borrowed,
        lent=0 if cohort is None else cohort.compute_lent(tenant.name),
        running=len(tenant.admitted),
        waiting=len(waits),
        oldest_wait_s=max(waits, default=0.0),
        stop="not configured" if tenant.form is None else tenant.form.stop_policy,
        weighted_share=tenant.dominant[1] / tenant.weight,
        dominant_resource=tenant.dominant[0],
        first_stage=sum(_count_pods(task.requirements) for task in tenant.waiting.list_held()),
    )


def _count_pods(needs: Needs) -> int:
    """Count the pods of a task."""
    return len(needs.members) if isinstance(needs, GangRequirements) else 1


def _explain_pod(queue: Queue, entry: QueuedPod) -> tuple[WaitReason, str]:
    refusal = queue.explain_refusal(entry)
    if refusal or entry.requirements is None:
        return WaitReason.REFUSED, refusal
    if entry.requirements in queue.capacity.faults:
        return WaitReason.REFUSED, queue.capacity.faults[entry.requirements]
    gang = queue.gangs.get(entry.gang)
    held = (
        queue.equivalence_backoff.explain_pause(entry)
        if gang is None
        else queue.gangs.equivalence_backoff.explain_pause(gang)
    )
    if held:
        return WaitReason.HELD, held
    if gang is not None and not gang.waiting_queue:
        return WaitReason.GANG, gang.fault or _explain_incomplete_gang(entry, gang)
    tenant = queue.queues[entry.queue_info.queue]
    never = _explain_never(queue, tenant, entry, entry.requirements)
    if never:
        return WaitReason.NEVER, never
    return _explain_waiting_in_queue(queue, tenant, entry, entry.requirements)


def _explain_waiting_in_queue(
    queue: Queue, tenant: QueueState, entry: QueuedPod, wants: PodRequirements
) -> tuple[WaitReason, str]:
    """Say why a pod that waits in a queue is not the one released."""
    task = tenant.waiting.get(entry.gang or entry.uid)
    if task is not None and tenant.waiting.is_held(task.uid):
        return WaitReason.STAGE, _explain_first_stage(
            queue, tenant.waiting.list_unfinished(task.job), task.job
        )
    if not tenant.is_open:
        return WaitReason.STOPPED, f"queue {tenant.name} is stopped"
    fits = queue.capacity.mask_fits(wants, holder=entry.gang or entry.uid)
    if task is None or not isinstance(task.requirements, GangRequirements):
        least = [
            queue.quota_usage.compute_least_units(wants),
            queue.quota_usage.compute_least_units(wants, fits),
        ]
    else:
        least = [queue.quota_usage.compute_least_units(task.requirements)]
    cohort = queue.queues.get_cohort(tenant.name)
    for needs in least:
        if cohort is not None and not cohort.allows_units(tenant.name, needs):
            return WaitReason.QUOTA, _explain_quota(cohort, tenant, needs)
        if not queue.queues.allows_units(tenant.name, needs, entry.gang or entry.uid):
            return WaitReason.QUOTA, KEPT_QUOTA
    lack = _explain_missing_cards(queue, entry, wants, fits) or (
        _explain_not_admitted(queue, entry, task) if task is not None else ""
    )
    if lack:
        return WaitReason.ROOM, lack
    return WaitReason.TURN, "pods of tenants with a smaller share, or older ones, come first"


def _explain_never(queue: Queue, tenant: QueueState, entry: QueuedPod, wants: PodRequirements) -> str:
    """Say why a pod or gang could not run whoever else ended, empty where it could as far as is known."""
    task = tenant.waiting.get(entry.gang or entry.uid)
    needs = wants if task is None else task.requirements
    cohort = queue.queues.get_cohort(tenant.name)
    most = None if cohort is None else cohort.compute_most(tenant.name)
    units = queue.quota_usage.compute_least_units(needs)
    if most is not None and units > most:
        return f"it needs {units} units; queue {tenant.name} can never have more than {most}"
    if not queue.state.nodes.usable.any():
        return ""
    capacity = queue.capacity.capacity
    if isinstance(needs, GangRequirements):
        return _explain_gang_never(queue, [member for _, member in needs.members])
    if capacity.count_pods(wants) or queue.capacity.mask_fits(wants, holder=entry.uid).any():
        return ""
    return _explain_no_node_ever(queue, wants)


def _explain_gang_never(queue: Queue, members: Sequence[PodRequirements]) -> str:
    """Say why the pods of a gang could never run at once, empty where they could as far as is known."""
    capacity = queue.capacity.capacity
    pods = len(members)
    for wants in members:
        if not capacity.count_pods(wants):
            return _explain_no_node_ever(queue, wants)
    lacks = capacity.count_missing(members)
    if lacks:
        room = f"the cluster has room for {pods - lacks} of them at once"
        return f"its gang has {pods} pods, and {room} {EVEN_EMPTY}"
    kinds = Counter(members)
    asked = ((queue.capacity.make_query(wants), count) for wants, count in kinds.items())
    if len(kinds) > 1 and not can_ever_hold_all(queue.state.nodes, asked):
        return f"its gang has {pods} pods, and the cards do not hold all of them at once {EVEN_EMPTY}"
    slots = sum(sum(node.total.values()) for node in queue.slots.nodes.values())
    if queue.config.slots is not None and pods > slots:
        return f"its gang has {pods} pods, and the cluster has {slots} slots in all"
    return ""


def _explain_no_node_ever(queue: Queue, wants: PodRequirements) -> str:
    """Say why no node could take a pod, as filter says it, or that its other needs are in the way."""
    nodes, demands = queue.state.nodes, wants.request.demands
    rows = np.flatnonzero(nodes.usable)
    codes = explain_rejections(nodes, queue.capacity.make_query(wants), rows)
    closest = FilterReason(min(codes.tolist()))
    what = f"it needs {format_demands(demands, queue.state.unit_mib)}"
    if closest is FilterReason.NOT_FREE:
        why = f"{what}, and its rules, {_describe_other_needs(queue, wants)} allow no node with such cards,"
    else:
        said = format_event_text(closest, demands, queue.state.unit_mib, wants.request.rules)
        why = f"{what}: {said}"
    return f"{why} {EVEN_EMPTY}{explain_widened(widen_patterns(nodes, wants.request.selector, rows))}"


def _explain_first_stage(queue: Queue, unfinished: Collection[str], job: str) -> str:
    """Say which pods of the first stage a job waits for: first those that will not end by themselves.

    Then what of its first stage is still to come.
    """
    lacks = queue.job_stages.explain_missing(job) if TO_COME in unfinished else ""
    count = len(unfinished) - (TO_COME in unfinished)
    if not count:
        return f"its job waits for its first stage: {lacks}"
    known = (uid for uid in unfinished if uid != TO_COME)
    found = sorted(_rank_unfinished_pod(queue, uid) for uid in islice(known, STAGE_LOOKED_AT))
    named = ", ".join(text for _, text in found[:STAGE_NAMED])
    more = count - min(len(found), STAGE_NAMED)
    pods = "1 unfinished pod" if count == 1 else f"{count} unfinished pods"
    said = f"its job waits for {pods} with data, its first stage: {named}"
    return said + (f" and {more} more" if more else "") + (f"; {lacks}" if lacks else "")


def _rank_unfinished_pod(queue: Queue, uid: str) -> tuple[int, str]:
    """How bad it is that a pod of the first stage has not ended, and what is known of it."""
    failed, entry = queue.job_stages.failed.get(uid), queue.queued_pods.get(uid)
    if failed is not None:
        return 0, f"{failed.name} (failed: it counts until it is deleted)"
    if entry is None:
        return 4, uid
    name = f"{entry.record.namespace}/{entry.record.name}"
    match entry.phase:
        case Phase.BOUND:
            return 4, f"{name} (on node {entry.record.node})"
        case Phase.ADMITTED:
            return 3, f"{name} (released, without a node yet)"
    return (1, f"{name} (refused)") if queue.explain_refusal(entry) else (2, f"{name} (waits)")


def _explain_incomplete_gang(entry: QueuedPod, gang: Gang) -> str:
    return f"{len(gang.ready_uids)} of {entry.queue_info.gang_size} pods of its gang are ready"


def _explain_missing_cards(queue: Queue, entry: QueuedPod, wants: PodRequirements, fits: BoolArray) -> str:
    """Say which cards or slots a pod lacks, empty for none."""
    if not fits.any():
        if (
            queue.capacity.fits_without_reservations(wants)
            and queue.capacity.reservations.get_reservation(entry.uid) is None
        ):
            return KEPT
        return _explain_no_capacity(queue, wants) + _describe_reservation(queue, entry)
    return _explain_missing_slots(queue, fits) if queue.config.slots is not None else ""


def _explain_not_admitted(queue: Queue, entry: QueuedPod, task: QueuedWorkload[Needs]) -> str:
    """Say why what a pod would fit on was not taken, empty for no such reason."""
    unplaced = task.requirements in queue.admission.unplaced
    if not isinstance(task.requirements, GangRequirements):
        held_back = task.requirements in queue.capacity.held_back
        return (HELD_BACK if held_back else NOT_TAKEN) if unplaced else ""
    _, first = queue.quota_usage.list_members(task.requirements, task.uid)[0]
    if not unplaced and queue.capacity.mask_fits(first, holder=task.uid).any():
        return ""
    at_once = f"cards for all {entry.queue_info.gang_size} pods of its gang are not free at once"
    return at_once + _describe_reservation(queue, entry)


def _explain_missing_slots(queue: Queue, fits: BoolArray) -> str:
    """Say which slots a pod lacks, empty for none."""
    slots, names = queue.slots, queue.state.nodes.names
    if any(slots.count_idle(names[row], kind) for row in np.flatnonzero(fits).tolist() for kind in SlotType):
        return ""
    return "no node that it fits on has an idle slot"


def _explain_quota(cohort: Cohort, tenant: QueueState, needs: int) -> str:
    account = cohort.accounts[tenant.name]
    nominal = account.quota.nominal
    text = f"it needs {needs} units; queue {tenant.name} uses {account.used} units"
    if nominal is not None:
        beyond = account.used - nominal
        text += (
            f", {beyond} more than its quota of {nominal}" if beyond > 0 else f" of its quota of {nominal}"
        )
    if tenant.form is not None and tenant.form.cohort:
        text += f", and its cohort has {max(0, cohort.compute_free(tenant.name))} more"
    limit = account.quota.borrowing_limit
    return text if limit is None else f"{text}, of which it may borrow {limit}"


def _explain_no_capacity(queue: Queue, wants: PodRequirements) -> str:
    """Say what no node has for a pod now."""
    nodes, demands, query = queue.state.nodes, wants.request.demands, queue.capacity.make_query(wants)
    cards = max(demand.cards for demand in demands)
    units = max(demand.per_card for demand in demands)
    kind = "percent" if wants.percent else "units"
    if len(demands) > 1:
        need = format_demands(demands, queue.state.unit_mib)
    elif cards > 1:
        need = f"{cards} cards of a node with {units} {kind} free each"
    else:
        need = f"{units} percent of one card" if wants.percent else f"{units} units on one card"
    usable = np.flatnonzero(nodes.usable)
    able = usable[filter_nodes(nodes, query, usable)]
    if able.size:
        if queue.capacity.lacks_sum(wants, able):
            return f"it needs {need}; {BY_SUM}"
        return f"it needs {need}{BY_RULES} {_describe_other_needs(queue, wants)} allow: none has that"
    free = nodes.free[usable]
    if query.policy_request.admits is not None:
        free = np.where(query.policy_request.admits[usable], free, 0)
    if wants.percent:
        free = free * 100 // np.maximum(nodes.size[usable], 1)
    largest = int(free.max(initial=0))
    if largest >= units and len(demands) > 1:
        return f"it needs {need}: no node has all of that free together"
    if largest >= units and cards > 1:
        most = int(np.count_nonzero(free >= units, axis=1).max(initial=0))
        if most >= cards:
            rules = format_rules(demands, wants.request.rules, queue.state.unit_mib)
            return f"it needs {rules}, and no node has that free"
        return f"it needs {need}; the node with the most has {most}"
    admitted = "" if wants.request.selector.admits_all else " that it admits"
    return f"it needs {need}; the largest free card{admitted} has {largest}"


def _describe_other_needs(queue: Queue, wants: PodRequirements) -> str:
    """Name what a pod needs beside cards, as far as the queue counts it."""
    others = [name for name, _ in wants.others if name in queue.state.nodes.other_resources]
    names = ["processor", "memory", *others]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _describe_reservation(queue: Queue, entry: QueuedPod) -> str:
    """Say which room is kept for a pod, empty for none."""
    kept = queue.capacity.reservations.get_reservation(entry.uid)
    return f"; room is kept for it on node {kept.node}" if kept is not None else ""
