"""Reasons why pods wait, and the state of queues: for Events, metrics, `gpupack queue status`. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from allocator.errors import shown
from allocator.texts import count_of
from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.queue.cache.job_stages import TO_COME
from scheduler_plugin.queue.cache.queued_pods import Gang, Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements
from scheduler_plugin.queue.config.quota import Cohort
from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.scheduling.available import explain_widened, widen_patterns
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes, get_usable_units
from scheduler_plugin.scheduling.fit_counts import can_ever_hold_all
from scheduler_plugin.scheduling.reasons import FilterReason, format_demands, format_event_text, format_rules
from scheduler_plugin.scheduling.request import SchedulingRequest, compute_largest_percent

STAGE_NAMED: Final = 3
"""Pods of a first stage that a message names."""

MAX_STAGE_PODS: Final = 64
"""Pods of a first stage that are looked at, the oldest ones."""


KEPT: Final = "the cards that it would fit on are kept free for pods that wait longer"
KEPT_QUOTA: Final = "the quota that it needs is kept for pods that wait longer"
KEPT_SLOTS: Final = "the slots that it would take are kept free for pods that wait longer"
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
    """Reason why a pod is not admitted, in one word."""

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
    """The reason why one pod waits, with a message for people.

    Attributes:
        position: Its place among the workloads of its queue, from 1; 0: it is in no queue.
        waits_s: Seconds since it began to wait.
        gang_size: Pods of its gang, which has one position for all of them; 0: it waits alone.
        gang: Name of its gang, empty for none.
    """

    namespace: str
    name: str
    queue: str
    position: int
    reason: WaitReason
    message: str
    waits_s: float
    gang_size: int = 0
    gang: str = ""


class QueueReport(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a queue; amounts are units of GPU memory.

    Attributes:
        nominal: Its own quota, None for no limit.
        used: What its admitted pods have, and pods with claims.
        borrowed: Beyond its own quota.
        lent: What others have of its own quota.
        oldest_wait_s: Seconds that its longest waiting pod has waited.
        first_stage: Pods that wait for the first stage of their job.
        weighted_share: Its dominant share divided by its weight if queues are ordered by that; else 0.
        dominant_resource: Resource of that share, `gpu-memory`, `cpu` or `memory`; empty for none.
        claimed: What claims have of `used`.
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
    claimed: int = 0


def explain_pod(queue: Queue, pod: QueuedPod, now: float, position: int | None = None) -> WaitExplanation:
    """Say why a gated pod waits."""
    word, message = _explain_pod(queue, pod)
    if word is WaitReason.REFUSED:
        position = 0
    elif position is None:
        uid = pod.workload_uid
        position = next(
            (at for at, each in number_positions(queue.queues[pod.queue_info.queue]) if each == uid), 0
        )
    gang = queue.gangs.get(pod.gang)
    return WaitExplanation(
        namespace=pod.record.namespace,
        name=pod.record.name,
        queue=pod.queue_info.queue,
        position=position,
        reason=word,
        message=message,
        waits_s=max(0.0, now - pod.wait_start),
        gang_size=0 if gang is None else gang.size + gang.outside,
        gang=pod.queue_info.gang,
    )


def explain_waiting(queue: Queue, now: float) -> list[WaitExplanation]:
    """Say why every gated pod waits, sorted by queue and position; pods in no queue come first."""
    places = {uid: at for queue_state in queue.queues for at, uid in number_positions(queue_state)}
    gated = [pod for pod in queue.queued_pods.values() if pod.phase is Phase.GATED]
    found = [explain_pod(queue, pod, now, places.get(pod.workload_uid, 0)) for pod in gated]
    return sorted(found, key=lambda each: (each.queue, each.position, each.namespace, each.name))


def number_positions(queue: QueueState) -> Iterator[tuple[int, str]]:
    """Number the workloads of a queue in the order in which it would admit them, from 1."""
    order = sorted(queue.waiting, key=lambda workload: workload.age_key)
    return ((at, workload.uid) for at, workload in enumerate(order, start=1))


def report_queues(queue: Queue, now: float) -> list[QueueReport]:
    """Report the state of every queue, sorted by name."""
    waits: dict[str, list[float]] = {}
    for pod in queue.queued_pods.values():
        if pod.phase is Phase.GATED:
            waits.setdefault(pod.queue_info.queue, []).append(max(0.0, now - pod.wait_start))
    lent: dict[str, int] = {}
    for name in queue.config.queues:
        cohort = queue.queues.get_cohort(name)
        if cohort is not None and name not in lent:
            lent |= cohort.compute_lent()
    return [
        _report_queue(queue, queue_state, waits.get(queue_state.name, []), lent.get(queue_state.name, 0))
        for queue_state in sorted(queue.queues, key=lambda queue_state: queue_state.name)
    ]


def _report_queue(queue: Queue, queue_state: QueueState, waits: list[float], lent: int) -> QueueReport:
    cohort = queue.queues.get_cohort(queue_state.name)
    return QueueReport(
        name=queue_state.name,
        cohort=queue_state.form.cohort if queue_state.form is not None else "",
        weight=queue_state.weight,
        nominal=queue_state.form.nominal_quota if queue_state.form is not None else None,
        used=queue_state.units,
        borrowed=0 if cohort is None else cohort.accounts[queue_state.name].borrowed,
        lent=lent,
        running=len(queue_state.admitted),
        waiting=len(waits),
        oldest_wait_s=max(waits, default=0.0),
        stop="not configured" if queue_state.form is None else queue_state.form.stop_policy,
        weighted_share=queue_state.dominant[1] / queue_state.weight,
        dominant_resource=queue_state.dominant[0],
        claimed=sum(queue_state.claimed.values()),
        first_stage=sum(
            _count_pods(workload.requirements) for workload in queue_state.waiting.list_waiting_for_stage()
        ),
    )


def _count_pods(needs: Needs) -> int:
    return len(needs.members) if isinstance(needs, GangRequirements) else 1


def _explain_pod(queue: Queue, pod: QueuedPod) -> tuple[WaitReason, str]:
    refusal = queue.refusals.explain(pod)
    if refusal or pod.requirements is None:
        return (
            WaitReason.ROOM if queue.refusals.is_rejected_everywhere(pod) else WaitReason.REFUSED
        ), refusal
    if pod.requirements in queue.capacity.faults:
        return WaitReason.REFUSED, queue.capacity.faults[pod.requirements]
    gang = queue.gangs.get(pod.gang)
    pause = (
        queue.equivalence_backoff.explain_pause(pod)
        if gang is None
        else queue.gangs.equivalence_backoff.explain_pause(gang)
    )
    if pause:
        return WaitReason.HELD, pause
    if gang is not None and not gang.waiting_queue:
        return WaitReason.GANG, gang.fault or _explain_incomplete_gang(queue, gang)
    queue_state = queue.queues[pod.queue_info.queue]
    never = _explain_never(queue, queue_state, pod, pod.requirements)
    if never and gang is not None and gang.group is not None and queue.gangs.starts_one_by_one(gang):
        whole = f"kube-scheduler tries no pod of PodGroup {shown(gang.group[1])} before all gates are gone"
        never = f"{never}; {whole}: make the Job smaller, or without a PodGroup"
    if never:
        return WaitReason.NEVER, never
    return _explain_waiting_in_queue(queue, queue_state, pod, pod.requirements)


def _explain_waiting_in_queue(
    queue: Queue, queue_state: QueueState, pod: QueuedPod, requirements: PodRequirements
) -> tuple[WaitReason, str]:
    """Say why a pod that waits in a queue is not the one admitted."""
    workload = queue_state.waiting.get(pod.workload_uid)
    if workload is not None and queue_state.waiting.waits_for_stage(workload.uid):
        return WaitReason.STAGE, _explain_first_stage(
            queue, queue_state.waiting.list_unfinished(workload.job), workload.job
        )
    if not queue_state.is_open:
        return WaitReason.STOPPED, f"queue {queue_state.name} is stopped"
    fits = queue.capacity.mask_fits(requirements, holder=pod.workload_uid)
    if workload is None or not isinstance(workload.requirements, GangRequirements):
        least = [
            queue.quota_usage.compute_least_units(requirements),
            queue.quota_usage.compute_least_units(requirements, fits),
        ]
    else:
        least = [queue.quota_usage.compute_least_units(workload.requirements)]
    cohort = queue.queues.get_cohort(queue_state.name)
    for needs in least:
        if cohort is not None and not cohort.allows_units(queue_state.name, needs):
            return WaitReason.QUOTA, _explain_quota(cohort, queue_state, needs)
        if not queue.queues.allows_units(queue_state.name, needs, pod.workload_uid):
            return WaitReason.QUOTA, KEPT_QUOTA
    if workload is not None and isinstance(workload.requirements, PodRequirements):
        # A share counts for more on a larger card, and the quota may allow it on small ones only.
        headroom = queue.queues.compute_headroom(queue_state.name, workload.uid)
        fits = queue.quota_usage.mask_within(requirements, fits, headroom)
    lack = _explain_missing_cards(queue, pod, requirements, fits) or (
        _explain_not_admitted(queue, pod, workload) if workload is not None else ""
    )
    if lack:
        return WaitReason.ROOM, lack
    return WaitReason.TURN, "pods of queues with a smaller share, or older ones, come first"


def _explain_never(
    queue: Queue, queue_state: QueueState, pod: QueuedPod, requirements: PodRequirements
) -> str:
    """Say why a pod or gang could not even run on an empty cluster; empty if it could, as far as is known."""
    workload = queue_state.waiting.get(pod.workload_uid)
    needs = requirements if workload is None else workload.requirements
    cohort = queue.queues.get_cohort(queue_state.name)
    most = None if cohort is None else cohort.compute_most(queue_state.name)
    units = queue.quota_usage.compute_least_units(needs)
    if most is not None and units > most:
        return f"it needs {units} units; queue {queue_state.name} can never have more than {most}"
    if not queue.state.nodes.usable.any():
        return ""
    capacity = queue.capacity.capacity
    if isinstance(needs, GangRequirements):
        return _explain_gang_never(queue, [member for _, member in needs.members])
    if capacity.count_pods(requirements):
        return _explain_no_slot_ever(queue, requirements)
    if queue.capacity.mask_fits(requirements, holder=pod.uid).any():
        return ""
    return _explain_no_node_ever(queue, requirements)


def _explain_no_slot_ever(queue: Queue, requirements: PodRequirements) -> str:
    """Say that no node that could take a pod has slots; empty if one has."""
    if queue.config.slots is None:
        return ""
    if any(queue.slots.count_total(name) for name in queue.capacity.capacity.list_nodes(requirements)):
        return ""
    return "no node that could take it has slots"


def _explain_gang_never(queue: Queue, members: Sequence[PodRequirements]) -> str:
    """Say why the pods of a gang could never run at once; empty if they could, as far as is known."""
    capacity = queue.capacity.capacity
    pods = len(members)
    for requirements in members:
        if not capacity.count_pods(requirements):
            return _explain_no_node_ever(queue, requirements)
        if without_slots := _explain_no_slot_ever(queue, requirements):
            return without_slots
    lacks = capacity.count_missing(members)
    if lacks:
        room = f"the cluster has room for {pods - lacks} of them at once"
        return f"its gang has {pods} waiting pods, and {room} {EVEN_EMPTY}"
    kinds = Counter(members)
    asked = ((queue.capacity.make_query(requirements), count) for requirements, count in kinds.items())
    if len(kinds) > 1 and not can_ever_hold_all(queue.state.nodes, asked):
        return f"its gang has {pods} waiting pods, and the cards do not hold all of them at once {EVEN_EMPTY}"
    slots = sum(sum(node.total.values()) for node in queue.slots.nodes.values())
    if queue.config.slots is not None and pods > slots:
        return f"its gang has {pods} waiting pods, and the cluster has {slots} slots in all"
    return ""


def _explain_no_node_ever(queue: Queue, requirements: PodRequirements) -> str:
    """Say why no node could ever take a pod: filter's reason, or its needs beside cards."""
    nodes, demands = queue.state.nodes, requirements.request.demands
    rows = np.flatnonzero(nodes.usable)
    query = queue.capacity.make_query(requirements)
    what = f"it needs {format_demands(demands, queue.state.unit_mib)}"
    if filter_nodes(nodes.as_emptied(), query, rows).any():
        others = _describe_other_needs(requirements)
        why = f"{what}, and its rules, {others} allow no node with such cards,"
    else:
        closest = FilterReason.from_code(min(explain_rejections(nodes, query, rows).tolist()))
        said = format_event_text(closest, demands, queue.state.unit_mib, requirements.request.rules)
        why = f"{what}: {said}"
    return f"{why} {EVEN_EMPTY}{explain_widened(widen_patterns(nodes, requirements.request.selector, rows))}"


def _explain_first_stage(queue: Queue, unfinished: Collection[str], job: str) -> str:
    """Say what a job's first stage lacks: pods that will not end by themselves come first.

    Then come the pods that are still to be created.
    """
    lacks = queue.job_stages.explain_missing(job) if TO_COME in unfinished else ""
    count = len(unfinished) - (TO_COME in unfinished)
    if not count:
        return f"its job waits for its first stage: {lacks}"
    known = (uid for uid in unfinished if uid != TO_COME)
    found = sorted(_rank_unfinished_pod(queue, uid) for uid in islice(known, MAX_STAGE_PODS))
    named = ", ".join(text for _, text in found[:STAGE_NAMED])
    more = count - min(len(found), STAGE_NAMED)
    said = f"its job waits for {count_of(count, 'unfinished pod')} with data, its first stage: {named}"
    return said + (f" and {more} more" if more else "") + (f"; {lacks}" if lacks else "")


def _rank_unfinished_pod(queue: Queue, uid: str) -> tuple[int, str]:
    """Rank an unfinished first-stage pod by how serious its state is, and describe it."""
    failed, pod = queue.job_stages.failed.get(uid), queue.queued_pods.get(uid)
    if failed is not None:
        return 0, f"{failed} (failed: it counts until it is deleted)"
    if pod is None:
        return 4, uid
    name = pod.record.full_name
    match pod.phase:
        case Phase.BOUND:
            return 4, f"{name} (on node {pod.record.node})"
        case Phase.ADMITTED:
            return 3, f"{name} (admitted, without a node yet)"
    return (1, f"{name} (refused)") if queue.refusals.explain(pod) else (2, f"{name} (waits)")


def _explain_incomplete_gang(queue: Queue, gang: Gang) -> str:
    size, ready = gang.size, len(gang.ready_uids)
    if gang.succeeded and (missing := queue.gangs.count_missing(gang)):
        least = size + gang.outside
        there = f"{least - missing} of the {least} pods that its PodGroup needs are there"
        those = f"{gang.succeeded} that {'has' if gang.succeeded == 1 else 'have'} succeeded"
        return f"{there}: kube-scheduler does not count {those}. Lower its minCount"
    if gang.group is not None:
        size = max(size, len(gang.members))
    if ready == size < len(gang.members):
        earlier = len(gang.members) - size
        end = "1 earlier one still ends" if earlier == 1 else f"{earlier} earlier ones still end"
        return f"all {size} pods of its gang are ready, and {end}"
    done = f", and {gang.succeeded} have succeeded" if gang.succeeded else ""
    if gang.group is not None and size > len(gang.members) and queue.gangs.starts_one_by_one(gang):
        done = f"{done}; none of another PodGroup than {shown(gang.group[1])} counts"
    return f"{ready + gang.outside} of {size + gang.outside} pods of its gang are ready{done}"


def _explain_missing_cards(
    queue: Queue, pod: QueuedPod, requirements: PodRequirements, fits: BoolArray
) -> str:
    if not fits.any():
        if (
            queue.capacity.fits_without_reservations(requirements)
            and queue.capacity.reservations.get_reservation(pod.uid) is None
        ):
            return KEPT
        return _explain_no_capacity(queue, requirements) + _describe_reservation(queue, pod)
    return _explain_missing_slots(queue, pod, requirements, fits) if queue.config.slots is not None else ""


def _explain_not_admitted(queue: Queue, pod: QueuedPod, workload: QueuedWorkload[Needs]) -> str:
    """Say why a pod that fits somewhere was not admitted; empty if there is no such reason."""
    unplaced = workload.requirements in queue.admission.unplaced
    if not isinstance(workload.requirements, GangRequirements):
        held_back = workload.requirements in queue.capacity.held_back
        return (HELD_BACK if held_back else NOT_TAKEN) if unplaced else ""
    _, first = queue.quota_usage.list_members(workload.requirements, workload.uid)[0]
    fits = queue.capacity.mask_fits(first, holder=workload.uid)
    if not unplaced and not _explain_missing_cards(queue, pod, first, fits):
        return ""
    pods = count_of(len(workload.requirements.members), "waiting pod")
    return f"cards for {pods} of its gang are not free at once{_describe_reservation(queue, pod)}"


def _explain_missing_slots(
    queue: Queue, pod: QueuedPod, requirements: PodRequirements, fits: BoolArray
) -> str:
    slots, names = queue.slots, queue.state.nodes.names
    rows = np.flatnonzero(fits).tolist()
    idle = [row for row in rows if any(slots.count_idle(names[row], kind) for kind in SlotType)]
    if not idle:
        return f"no node that it fits on has an idle slot{_describe_reservation(queue, pod)}"
    left = queue.admission.mask_fits(requirements, pod.workload_uid)
    return "" if left[idle].any() else KEPT_SLOTS


def _explain_quota(cohort: Cohort, queue: QueueState, needs: int) -> str:
    account = cohort.accounts[queue.name]
    nominal = account.quota.nominal
    text = f"it needs {needs} units; queue {queue.name} uses {account.used} units"
    if queue.claimed:
        text += f", {sum(queue.claimed.values())} of them by claims,"
    if nominal is not None:
        beyond = account.used - nominal
        text += (
            f", {beyond} more than its quota of {nominal}" if beyond > 0 else f" of its quota of {nominal}"
        )
    if queue.form is not None and queue.form.cohort:
        text += f", and its cohort has {max(0, cohort.compute_free(queue.name))} more"
    if account.quota.borrowing_limit is None:
        return text
    return f"{text}, of which it may have {max(0, cohort.compute_headroom(queue.name) or 0)}"


def _explain_no_capacity(queue: Queue, requirements: PodRequirements) -> str:
    nodes, query = queue.state.nodes, queue.capacity.make_query(requirements)
    need = _format_need(requirements, queue.state.unit_mib)
    usable = np.flatnonzero(nodes.mask_offering(query.request))
    able = usable[filter_nodes(nodes, query, usable)]
    if able.size:
        if queue.capacity.lacks_sum(requirements, able):
            return f"it needs {need}; {BY_SUM}"
        return f"it needs {need}{BY_RULES} {_describe_other_needs(requirements)} allow: none has that"
    if requirements.request.asks_compute:
        reasons = explain_rejections(nodes, query, usable)
        if (reasons == FilterReason.COMPUTE_NOT_FREE).any():
            return f"it needs {need}; {FilterReason.COMPUTE_NOT_FREE.sentence}"
        # From NO_COMPUTE on, a node is refused whatever is free on its cards.
        usable = usable[reasons < FilterReason.NO_COMPUTE]
    return _explain_memory(queue, requirements, query, usable)


def _explain_memory(
    queue: Queue, requirements: PodRequirements, query: SchedulingRequest, usable: RowArray
) -> str:
    """Say how much of the GPU memory that a pod needs is free together."""
    need = _format_need(requirements, queue.state.unit_mib)
    nodes, demands = queue.state.nodes, requirements.request.demands
    cards = max(demand.cards for demand in demands)
    units = max(demand.per_card for demand in demands)
    free = get_usable_units(nodes, query.policy_request, usable)
    if requirements.percent:
        free = compute_largest_percent(free, nodes.size[usable].astype(np.int64))
    largest = int(free.max(initial=0))
    if largest >= units and len(demands) > 1:
        return f"it needs {need}: no node has all of that free together"
    if largest >= units and cards > 1:
        most = int(np.count_nonzero(free >= units, axis=1).max(initial=0))
        if most >= cards:
            rules = format_rules(demands, requirements.request.rules, queue.state.unit_mib)
            return f"it needs {rules}, and no node has that free"
        return f"it needs {need}; the node with the most has {most}"
    admitted = "" if requirements.request.selector.admits_all else " that it admits"
    return f"it needs {need}; the largest free card{admitted} has {largest}"


def _format_need(requirements: PodRequirements, unit_mib: int) -> str:
    demands = requirements.request.demands
    if len(demands) > 1 or requirements.request.asks_compute:
        return format_demands(demands, unit_mib)
    units, cards = demands[0].per_card, demands[0].cards
    if cards > 1:
        return (
            f"{cards} cards of a node with {units} {'percent' if requirements.percent else 'units'} free each"
        )
    return f"{units} percent of one card" if requirements.percent else f"{units} units on one card"


def _describe_other_needs(requirements: PodRequirements) -> str:
    """Name what a pod needs beside cards."""
    names = ["processor", "memory", *(name for name, _ in requirements.amounts.others), "number of pods"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _describe_reservation(queue: Queue, pod: QueuedPod) -> str:
    """Say on which node cards are reserved for a pod, empty for none."""
    reservation = queue.capacity.reservations.get_reservation(pod.uid)
    return f"; cards of node {reservation.node} are reserved for it" if reservation is not None else ""
