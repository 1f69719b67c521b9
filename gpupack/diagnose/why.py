"""Explains the state of a pod: it waits, runs, has ended, or asks for something impossible."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from allocator.errors import RequestError, shown
from allocator.names import (
    BATCH_SCHEDULER,
    COMPUTE_RESOURCE,
    OWN_PREFIX,
    PERCENT_RESOURCE,
    POD_ASSIGNED,
    POD_REQUEUED,
    SCHEDULER_NAME,
)
from allocator.request import MAX_UNITS
from allocator.texts import list_some
from gpupack.diagnose.running import list_pod_cards
from gpupack.diagnose.ways_out import find_ways_out
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.rebalance.verified_moves import explain_skipped_search
from gpupack.whatif.answers import PodExplanation, State, WayOut
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import count_on_empty_cluster, explain_no_words
from gpupack.whatif.gangs import (
    WaitingGang,
    explain_held_group,
    explain_unknown_gang,
    find_gang,
)
from gpupack.whatif.kube_checks import HostRequirements
from gpupack.whatif.node_results import NodeResults, collect_node_results
from gpupack.whatif.objects import list_gates, list_stood_for, waits_in_queue
from gpupack.whatif.unknown_requests import describe_unknowns, find_policy_refusal
from gpupack.whatif.what_if import PodCardUsage, WhatIf
from kubeapi.objects import Pod
from scheduler_plugin.cache.pods import is_of_batch_mode, is_placeholder
from scheduler_plugin.scheduling.fit_counts import can_ever_hold_all
from scheduler_plugin.scheduling.reasons import format_demands

if TYPE_CHECKING:
    from allocator.request import PodRequest
    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

_NODES_NAMED: Final = 5


def explain_pod(
    cluster: Cluster,
    namespace: str,
    name: str,
    *,
    events: Sequence[str] = (),
    queued: "Sequence[QueueWhy] | None" = None,
    ways: bool = True,
    moves: bool = True,
) -> PodExplanation:
    """Explain the state of a pod.

    Args:
        queued: What waits in the queue, as `gpupack queue status` says; None: nobody asked.
        moves: Also search for moves of other pods as ways out.

    Raises:
        InputError: there is no such pod.
    """
    pod = cluster.find_pod(namespace, name)
    about = _PodExplainer(cluster.in_unit_of(pod), pod, tuple(events), queued)
    if not (cluster.asks_for_cards(pod) or about.has_cards_by_claims):
        return about.explain_no_cards()
    if pod.has_ended:
        return about.explain_ended()
    if pod.metadata.is_terminating:
        return about.explain_deletion()
    if pod.spec.node_name:
        return about.explain_running()
    if is_placeholder(pod):
        return about.explain_placeholder()
    return about.explain_waiting(ways=ways, moves=moves)


class _PodExplainer:
    def __init__(
        self,
        cluster: Cluster,
        pod: Pod,
        events: tuple[str, ...],
        queued: "Sequence[QueueWhy] | None",
    ) -> None:
        self._cluster = cluster
        self._pod = pod
        self._events = events
        self._queued = queued
        self._problem = ""
        self._request: PodRequest | None = None
        try:
            self._request = cluster.read_request(pod)
        except RequestError as error:
            self._problem = str(error)
        self._gates, self._is_batch = list_gates(pod), is_of_batch_mode(pod)
        condition = pod.status.scheduled
        refused = condition if pod.status.was_refused else None
        self._scheduler_message = refused.message or refused.reason if refused is not None else ""

    def _make_answer(self, state: State, text: str, **more: object) -> PodExplanation:
        meta = self._pod.metadata
        return PodExplanation(
            namespace=meta.namespace,
            pod=meta.name,
            state=state,
            text=text,
            unit_mib=self._cluster.unit_mib,
            asked=self._format_request,
            node=self._pod.spec.node_name,
            events=self._events,
            scheduler=self._scheduler_message,
            **more,  # type: ignore[arg-type]
        )

    @property
    def _format_request(self) -> str:
        if self._request is None:
            return ""
        return format_demands(self._request.demands, self._cluster.unit_mib)

    @property
    def has_cards_by_claims(self) -> bool:
        """Whether the pod has cards of its node by ResourceClaims."""
        pods = PodCardUsage(self._cluster).list_claim_pods(self._pod.spec.node_name)
        return any(units and pod is self._pod for pod, units in pods)

    def explain_no_cards(self) -> PodExplanation:
        """Explain a pod that asks for no GPU memory by its limits."""
        text = f"asks for no GPU memory: no container has {self._cluster.state.resource} in its limits"
        named = {name for name in self._pod.spec.requested_resources if name.startswith(OWN_PREFIX)}
        others = sorted(named - {COMPUTE_RESOURCE})
        if others:
            text += f"; {', '.join(others)} is no resource of this cluster's nodes"
        if self._pod.spec.resource_claims and not self._pod.has_ended:
            text += "; of its ResourceClaims the Events of kube-scheduler tell"
        return self._make_answer("no-cards", text)

    def explain_ended(self) -> PodExplanation:
        status = self._pod.status
        if status.phase == "Succeeded":
            return self._make_answer("ended", "is over: it succeeded, and holds no cards")
        said = ": ".join(part for part in (status.reason, status.message) if part)
        text = f"failed: {said}" if said else "failed, and does not say why: kubectl describe shows more"
        return self._make_answer("failed", text, notes=_advice(status.reason, status.message))

    def explain_placeholder(self) -> PodExplanation:
        stands_for = ", ".join(list_stood_for(self._pod)) or "nobody any more"
        text = f"never runs: it asks a cluster autoscaler for a node, for {stands_for}"
        return self._make_answer("pending", text)

    def explain_deletion(self) -> PodExplanation:
        node = self._pod.spec.node_name
        until = f"it was deleted, and has until {self._pod.metadata.deletion_timestamp}"
        if not node:
            return self._make_answer("ending", f"is ending: {until}; no node takes it any more")
        cards, notes = list_pod_cards(self._cluster, self._pod)
        text = f"is ending on node {node}: {until}; its cards are free once it is gone"
        return self._make_answer("ending", text, cards=cards, notes=notes)

    def explain_running(self) -> PodExplanation:
        cards, notes = list_pod_cards(self._cluster, self._pod)
        phase = self._pod.status.phase or "Pending"
        where = f"node {self._pod.spec.node_name}"
        if phase == "Running":
            text = f"runs on {where}"
        else:
            text = f"has {where}, and its containers have not started yet (phase {phase})"
        return self._make_answer("running", text, cards=cards, notes=notes)

    def explain_waiting(self, *, ways: bool, moves: bool) -> PodExplanation:
        # 1. Whether there is anything to look at.
        self._problem = self._problem or find_policy_refusal(self._pod, self._scheduler_message)
        if self._request is None or self._problem:
            return self._refused()
        unknowns = describe_unknowns(self._pod)
        if not self._cluster.has_words:
            return self._make_answer("pending", f"waits: {explain_no_words(self._cluster)}")
        # 2. What it asks for, and the pods that start with it.
        requirements = HostRequirements.from_pod(self._pod)
        query = self._cluster.make_query(self._request, requirements)
        gang = find_gang(self._cluster, self._pod)
        held = explain_held_group(self._cluster, self._pod)
        unknown_gang = explain_unknown_gang(self._cluster, self._pod)
        what_if = WhatIf(self._cluster, query, requirements)
        if gang is not None:
            what_if = replace(what_if, pods=gang.pods, others=gang.others)
        # 3. What the nodes say.
        found = collect_node_results(self._cluster, query, requirements)
        together = held or ("" if gang is None else _gang_waits(what_if, gang))
        if together:
            found = replace(found, fits=())
        # 4. What would let it start.
        outs: list[WayOut] = []
        unsought = ""
        if ways and not found.fits and not held and not (gang and gang.refused):
            outs = list(find_ways_out(what_if, found, PodCardUsage(self._cluster), moves=moves))
            unsought = explain_skipped_search(what_if) if moves else ""
        # 5. The answer, by who has to act next.
        notes = (
            *self._note_other_scheduler(),
            *unknowns,
            *((unknown_gang,) if unknown_gang else ()),
            *self._note_unchecked_rules(requirements, gang),
            *self._note_other_pods(),
            *_note_corrupt_words(found),
            *((CLAIMS_NOT_READ,) if self._cluster.lacks_claims else ()),
            *((unsought,) if unsought else ()),
        )
        if self._gates or self._is_batch:
            outs = [*self._explain_queue(), *outs]
            explain = self._explain_batch if self._is_batch else self._explain_gates
            text = explain(found, together)
            return self._make_answer(
                "gated", text, nodes=found.groups, ways_out=tuple(outs), fits=found.fits, notes=notes
            )
        if self._is_of_other_scheduler and not held:
            return self._never_asked(found, outs, notes)
        if found.fits:
            text = f"waits, but {_takes(found.fits)} take it now: kube-scheduler will try it again"
            return self._make_answer("fits", text, nodes=found.groups, fits=found.fits, notes=notes)
        text = f"waits: {together or f'0 of {len(self._cluster.nodes)} nodes take {self._format_request}'}"
        return self._make_answer("pending", text, nodes=found.groups, ways_out=tuple(outs), notes=notes)

    def _explain_batch(self, found: NodeResults, together: str) -> str:
        """Say what a pod waits for that batch mode binds without kube-scheduler."""
        text = "waits in its queue, which has it bound without kube-scheduler when its turn has come"
        said = self._find_queue_entry()
        if said is not None:
            text += f"; the queue says {said.reason}: {said.message}"
        elif self._scheduler_message:
            text += f"; it was told: {self._scheduler_message}"
        elif found.fits:
            text += f"; {_takes(found.fits)} take it then"
        return f"{text}; {together}" if together else text

    def _explain_gates(self, found: NodeResults, together: str) -> str:
        """Say what a pod waits for that kube-scheduler has not begun with."""
        held = f"is held by scheduling gate {' and '.join(self._gates)}"
        text = f"{held}: kube-scheduler does not try it until that is gone"
        if self._gates == [POD_REQUEUED]:
            text = "waits in its queue again: kube-scheduler found no node for it when it was admitted"
        said = self._find_queue_entry()
        if said is not None:
            text += f"; the queue says {said.reason}: {said.message}"
        elif found.fits:
            text += f"; {_takes(found.fits)} take it once it is admitted"
        return f"{text}; {together}" if together else text

    def _refused(self) -> PodExplanation:
        if self._problem:
            problem, advice = self._problem, "no node will ever take it as it is"
        else:
            problem = _nothing_asked(self._pod, self._cluster.state.resource)
            advice = "leave the line out of a pod that needs no GPU memory"
        return self._make_answer("refused", f"is refused: {problem}", notes=(advice,))

    @property
    def _is_of_other_scheduler(self) -> bool:
        """Whether its scheduler is another one, for which the extender has bound no pod yet."""
        name = self._pod.spec.scheduler_name
        if not name or name in {SCHEDULER_NAME, BATCH_SCHEDULER}:
            return False
        return not any(
            pod.spec.scheduler_name == name and POD_ASSIGNED in (pod.metadata.annotations or {})
            for pod in self._cluster.pods.values()
        )

    def _never_asked(
        self, found: NodeResults, outs: Sequence[WayOut], notes: tuple[str, ...]
    ) -> PodExplanation:
        text = f"waits for its scheduler {self._pod.spec.scheduler_name}, which never asks gpupack"
        if not found.fits:
            text += f"; 0 of {len(self._cluster.nodes)} nodes take {self._format_request}"
        ways = (self._scheduler_name(found.fits), *outs)
        return self._make_answer(
            "pending", text, nodes=found.groups, ways_out=ways, fits=found.fits, notes=notes
        )

    def _scheduler_name(self, fits: Sequence[str]) -> WayOut:
        text = f"make it again with schedulerName: {SCHEDULER_NAME}"
        return WayOut("scheduler-name", f"{text}; {_takes(fits)} take it now" if fits else text)

    def _find_queue_entry(self) -> "QueueWhy | None":
        if not waits_in_queue(self._pod):
            return None
        key = self._pod.metadata.namespace, self._pod.metadata.name
        return next((each for each in self._queued or () if (each.namespace, each.name) == key), None)

    def _explain_queue(self) -> list[WayOut]:
        if not waits_in_queue(self._pod):
            return []
        said = self._find_queue_entry()
        if said is not None:
            place = f"position {said.position} of queue {said.queue}" if said.position else "no queue"
            text = f"{place}: {said.message}"
            return [WayOut("queue", text, queue=said.queue, position=said.position)]
        queue = self._cluster.find_queue(self._pod)
        where = f"queue {queue}" if queue else "the queue of its namespace, if that has one"
        text = f"waits for its turn in {where}: `gpupack queue status` says its position"
        return [WayOut("queue", text, queue=queue)]

    def _note_other_scheduler(self) -> list[str]:
        if not self._is_of_other_scheduler or self._gates:
            return []
        joined = f"where the extender has joined {self._pod.spec.scheduler_name} it is asked all the same"
        return [f"{joined} (docs/install/joining.md); here no pod of that scheduler has cards from it"]

    def _note_unchecked_rules(self, requirements: HostRequirements, gang: WaitingGang | None) -> list[str]:
        unseen = self._cluster.kube_checks.list_unchecked_rules(requirements)
        if gang is not None and gang.has_unchecked_affinity(requirements):
            unseen.append("pod affinity within its gang, except anti-affinity")
        if self._cluster.pod_groups.has_topology(self._pod.scheduling_group):
            unseen.append("topology constraints of its PodGroup")
        return [f"not looked at here, and kube-scheduler looks at it: {', '.join(unseen)}"] if unseen else []

    def _note_other_pods(self) -> list[str]:
        """List the pods that cards are kept for, and those that stand for this one."""
        notes = self._cluster.note_kept_cards(self._pod.metadata.uid)
        if self._pod.status.nominated_node_name:
            node = self._pod.status.nominated_node_name
            notes.append(f"node {node} is kept for it while pods of lower priority leave")
        return notes + [
            f"pod {pod.full_name} stands for it, and asks a cluster autoscaler for a node"
            for pod in self._cluster.pods.values()
            if self._pod.full_name in list_stood_for(pod)
        ]


def _note_corrupt_words(found: NodeResults) -> list[str]:
    broken = [group for group in found.groups if group.reason == "CorruptWords"]
    return [f"words that cannot be read are on {', '.join(group.examples)}" for group in broken]


def _nothing_asked(pod: Pod, resource: str) -> str:
    """Say which container has our resource, and asks for none of it."""
    for container in pod.spec.all_containers:
        amounts = container.resources.limits if container.resources else None
        for name in (resource, PERCENT_RESOURCE):
            if name in (amounts or {}):
                most = "100 for each card" if name == PERCENT_RESOURCE else MAX_UNITS
                where = f"container {shown(container.name)} has {name}: 0 in its limits"
                return f"{where}, which asks for no GPU memory; allowed: 1 to {most}"
    return f"it asks for 0 of {resource}, which is no GPU memory; allowed: 1 to {MAX_UNITS}"


def _gang_waits(what_if: WhatIf, gang: WaitingGang) -> str:
    """Say that the pods of a gang do not fit at once, and whether they ever could; empty if they do."""
    if gang.refused:
        return f"its gang starts together, and pod {gang.refused}"
    what = "like it" if gang.pods < gang.size or gang.others else ""
    said = _too_few(what_if, what)
    for kind in gang.others:
        each = format_demands(kind.query.request.demands, what_if.cluster.unit_mib)
        others = replace(what_if, query=kind.query, requirements=kind.requirements, pods=kind.pods)
        said = said or _too_few(others, f"of {each}")
    if said or what_if.can_fit_with_others():
        return said
    count = gang.pods + sum(kind.pods for kind in gang.others)
    said = f"its gang starts together, and no room was found for all of its {count} pods at once"
    kinds = [(what_if.query, gang.pods), *((kind.query, kind.pods) for kind in gang.others)]
    if can_ever_hold_all(what_if.cluster.state.nodes, kinds):
        return said
    return f"{said}; the cards could not hold them even if all other pods ended, as nodes and cards are now"


def _too_few(what_if: WhatIf, what: str) -> str:
    """Say that equal pods of a gang do not fit at once, whatever the others ask for; empty if they do."""
    fit = what_if.count_at_once()
    if fit == what_if.pods:
        return ""
    if what_if.pods == 1:
        said = f"its gang starts together, and its pod {what or 'that waits'} fits nowhere now"
    else:
        pods = f"{what_if.pods} pods {what}".rstrip()
        said = f"its gang starts together, and {fit} of its {pods} fit at once now"
    ever = count_on_empty_cluster(what_if.cluster, what_if.query, what_if.requirements, what_if.pods)
    if ever < what_if.pods:
        could = "it could not" if what_if.pods == 1 else f"no more than {ever} could"
        said += f"; {could} even if all other pods ended, as nodes and cards are now"
    return said


def _takes(names: Sequence[str]) -> str:
    return f"{'node' if len(names) == 1 else 'nodes'} {list_some(names, _NODES_NAMED)} would"


def _advice(reason: str, message: str) -> tuple[str, ...]:
    if reason == "UnexpectedAdmissionError":
        advice = (
            "the kubelet refused it when it arrived, as a rule after a reboot, before the device plugin was "
            "back; that is final, its controller makes a new one"
        )
        return (advice,)
    if reason == "Evicted" or "preempt" in f"{reason} {message}".lower():
        return ("it made room for others; its controller makes a new one",)
    return ()
