"""The verbs filter, prioritize and preempt: bytes in, bytes out, on the state's arrays. Pure."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from allocator.errors import RequestError
from allocator.request import PodRequest
from kubeapi.backoff import KeyedBackoff
from kubeapi.bounded import BoundedDict
from kubeapi.objects import Pod
from scheduler_plugin.cache.arrays import BoolArray, FloatArray, IntArray, RowArray
from scheduler_plugin.cache.cards import has_card
from scheduler_plugin.cache.disruption_budgets import DisruptionBudgets
from scheduler_plugin.cache.pod_groups import GroupKey
from scheduler_plugin.cache.pods import (
    PodRecord,
    is_requeued,
    parse_pod_request,
    ranks_nodes_itself,
    read_planned_uuids,
    requests_cards,
)
from scheduler_plugin.cache.published_nodes import Exclusion
from scheduler_plugin.cache.reservations import ABOVE_ALL_PRIORITIES, Reservation
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.failed_bindings import FailedBindings
from scheduler_plugin.extender.filter_cache import MAX_NODES, MAX_RESULTS, FilterResult
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.node_set import NodeSet
from scheduler_plugin.extender.protocol import (
    CallDecoder,
    Candidates,
    MetaPod,
    MetaVictims,
    decode_preempt,
    encode_filter_error,
    encode_passed,
    encode_preempt,
    encode_refused,
    encode_scores,
)
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePod
from scheduler_plugin.preemption.node_victims import view_node
from scheduler_plugin.preemption.reprieving import VictimSet, choose_victims
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import (
    CodeArray,
    explain_rejections,
    filter_nodes,
)
from scheduler_plugin.scheduling.pending_pods import PendingPods
from scheduler_plugin.scheduling.placing import (
    POLICY_FAULTS,
    compute_scores,
    place_by_policy,
    score_nodes,
)
from scheduler_plugin.scheduling.policies.registry import NodePolicy, PolicyRequest
from scheduler_plugin.scheduling.ranking import MAX_SCORE, convert_to_protocol, rank_best
from scheduler_plugin.scheduling.reasons import REQUEUED, Cure, FilterReason, format_event_text
from scheduler_plugin.scheduling.request import SchedulingRequest, make_learning_request

MAX_EVICTABLE: Final = 256
"""Nodes of a refusal that are remembered for preemption at most; the next refusal begins after them."""

REFUSED_BINDING_S: Final = (1.0, 60.0)
"""Shortest and longest time for which filter refuses a pod of a PodGroup whose Binding was refused."""

LASTING_REFUSALS: Final = 3
"""After so many refused Bindings a pod's next one is expected to be refused, too."""

BINDING_REFUSED: Final = "its last Binding was refused; it is tried again after a pause"
GROUP_FAILED: Final = "too few pods of its PodGroup find cards"

MAX_RESOLVED: Final = 4096
"""Bound or deleted pods that are remembered: a filter call for one of them may still be on its way."""


class Extender:
    """Answers the verbs from the cache; it assumes no cards.

    Args:
        shortlist: Largest number of nodes that filter returns if a policy ranks them; 0 returns all.
        rank_all_pods: Prioritize also ranks nodes for pods that ask for no card.

    Attributes:
        pending_pods: The pods that wait, for policies whose weights depend on them.
        left_to_kube_scheduler: Signals the UID of a pod for which kube-scheduler was told whom to evict.
    """

    def __init__(
        self,
        state: ClusterState,
        policies: ClusterPolicies,
        shortlist: int,
        budgets: DisruptionBudgets | None = None,
        *,
        rank_all_pods: bool = False,
    ) -> None:
        self.state = state
        self.budgets = budgets or DisruptionBudgets()
        self.policies = policies
        self.pending_pods = PendingPods(state, policies)
        self.filter_results: BoundedDict[str, FilterResult] = BoundedDict(MAX_RESULTS)
        self.shortlist = shortlist
        self._rank_all_pods = rank_all_pods
        self.left_to_kube_scheduler: Signal[[str]] = Signal()
        self._calls = CallDecoder(state.nodes.index)
        self._resolved_uids: BoundedDict[str, None] = BoundedDict(MAX_RESOLVED)
        self._failed_bindings = FailedBindings()
        self._refused_bindings: KeyedBackoff[str] = KeyedBackoff(*REFUSED_BINDING_S)
        self._first_evictable = 0
        state.pod_resolved.connect(self._handle_resolved)
        state.set_other_resources(policies.other_resources)
        policies.resources_changed.connect(state.set_other_resources)

    def filter(self, body: bytes, now: float, stale: str = "") -> FilterReply:
        """Answer a filter call.

        Raises:
            ProtocolError: the body is rubbish.
            PolicyError: a policy returns invalid scores or costs; this holds for the other verbs too.
        """
        pod, candidates = self._calls.decode(body)
        if not requests_cards(pod, self.state.resource):
            return self._pass_all(candidates)
        if is_requeued(pod):
            return FilterReply(self._refuse_everywhere(candidates, REQUEUED))
        if stale:
            return FilterReply(encode_filter_error(stale))
        self.state.expire_tombstones(now)
        try:
            query = self._make_request(pod)
        except RequestError as error:
            refusal = UnschedulablePod(pod.metadata, problem=str(error))
            return FilterReply(self._refuse_everywhere(candidates, str(error)), unschedulable=refusal)
        if query is None:
            return self._pass_all(candidates)
        return self._filter_alone_or_in_group(pod, candidates, query, now)

    def _filter_alone_or_in_group(
        self, pod: Pod, candidates: Candidates, query: SchedulingRequest, now: float
    ) -> FilterReply:
        group = pod.scheduling_group
        if group is not None:
            return self._filter_group_member(group, pod, candidates, query, now)
        with self.state.reservations.charged_against(self.state.nodes, pod.metadata.uid, pod.priority):
            return self._filter_cards(pod, None, candidates, query, now)

    def _filter_group_member(
        self, group: GroupKey, pod: Pod, candidates: Candidates, query: SchedulingRequest, now: float
    ) -> FilterReply:
        """Filter for a pod of a PodGroup: it gets one node, whose cards are held for it.

        kube-scheduler tries a refused gang again by itself, as a whole. So nothing waits or retries for one
        of its pods, and others are evicted for all of them or for none.
        """
        holds, nodes, uid = self.state.group_holds, self.state.nodes, pod.metadata.uid
        rows, _ = candidates.find_known_rows()
        self._refused_bindings.pop_due(now)
        can_start = holds.begin_call(group, uid, nodes, rows, now)
        if can_start and not self._refused_bindings.is_paused(uid):
            with self.state.reservations.charged_against(nodes, uid, pod.priority):
                reply = self._filter_cards(pod, group, candidates, query, now)
        else:
            reply = FilterReply(
                self._refuse_everywhere(candidates, BINDING_REFUSED if can_start else GROUP_FAILED)
            )
        if reply.passed:
            return reply
        offered = holds.list_held_nodes(group)
        holds.record_refusal(group, uid, nodes, rows)
        if not self.state.pod_groups.ends_together(group):
            return reply
        is_lasting = (
            reply.unschedulable is not None or self._refused_bindings.count_failures(uid) >= LASTING_REFUSALS
        )
        in_part = group if is_lasting and holds.is_bound_in_part(group) else None
        evictable = tuple(dict.fromkeys([*reply.evictable, *offered])) if reply.evictable else ()
        return replace(
            reply,
            refused="",
            evictable=evictable,
            gang_refused=reply.refused,
            asked_nodes=None,
            group_in_part=in_part,
        )

    def would_pass(self, pod: PodRecord, among: NodeSet, now: float, *, held: bool) -> bool:
        """Return True if a node can take a refused pod now; this does not count as an attempt to place it.

        Args:
            among: Nodes that kube-scheduler asked about.
            held: Nodes that the policy holds the pod back from count too.
        """
        self.state.expire_tombstones(now)
        if pod.request is None or not pod.can_be_scheduled:
            return False
        try:
            query = self.policies.make_request(self.state.nodes, pod.request, pod.amounts, pod.uid)
            with self.state.reservations.charged_against(self.state.nodes, pod.uid, pod.priority):
                rows = among.rows(self.state.nodes.index)
                fitting_rows = rows[filter_nodes(self.state.nodes, query, rows)]
                if held or pod.planned_uuids:  # the policy of a planned pod was asked already
                    return bool(len(fitting_rows))
                policy = self.policies.get_policy(query.request)
                scores = score_nodes(policy, self.state.nodes, query, fitting_rows)
        except (RequestError, *POLICY_FAULTS):
            return False
        return bool((scores < np.inf).any())

    def explain_unasked(self, pod: Pod, now: float) -> UnschedulablePod | None:
        """Explain a refusal of kube-scheduler's own, as of a pod that asks for more than any node's sum.

        None if the cards are not the reason: a node has them, or none offers any.
        """
        if not requests_cards(pod, self.state.resource) or is_requeued(pod):
            return None
        self.state.expire_tombstones(now)
        nodes = self.state.nodes
        every = np.fromiter(nodes.rows.values(), np.intp, len(nodes.rows))
        rows = every[nodes.exclusion[every] != Exclusion.NO_WORDS]
        try:
            query = self._make_request(pod)
        except RequestError as error:
            return UnschedulablePod(pod.metadata, problem=str(error))
        if query is None or not len(rows):
            return None
        with self.state.reservations.charged_against(nodes, pod.metadata.uid, pod.priority):
            if filter_nodes(nodes, query, rows).any():
                return None
            codes = explain_rejections(nodes, query, rows).tolist()
        counts = Counter(FilterReason.from_code(code) for code in codes)
        return UnschedulablePod(pod.metadata, counts, query, rows)

    def _filter_cards(
        self,
        pod: Pod,
        group: GroupKey | None,
        candidates: Candidates,
        query: SchedulingRequest,
        now: float,
    ) -> FilterReply:
        """Offer the nodes with the cards that the node policy ranks first; of a group's pod only one."""
        nodes, uid, nominated = self.state.nodes, pod.metadata.uid, pod.status.nominated_node_name
        planned, ranks_itself = read_planned_uuids(pod.metadata.annotations), ranks_nodes_itself(pod)
        # 1. Find the nodes that take the pod, and rank them by the node policy.
        rows, at = candidates.find_known_rows()
        may_leave = ranks_itself or bool(nominated)
        fits, placed = self._mask_takers(uid, query, rows, planned, may_leave=may_leave)
        fitting_rows = rows[fits]
        self.pending_pods.report_to_policies(now)
        policy = self.policies.get_policy(query.request)
        scores = self._score_fitting(policy, bool(planned), placed, query, fitting_rows)
        most = len(rows) if self.shortlist <= 0 or ranks_itself else self.shortlist
        first = rank_best(scores, nodes.name_rank[fitting_rows], most if group is None else 1)
        best = fitting_rows[first]
        tried = (query, int(best[0]) if len(best) else None) if len(scores) else None
        if not len(best):
            return replace(self._refuse(pod, candidates, query, rows, at, fits), attempt=tried)
        # 2. Keep what prioritize and bind need of the answer.
        if group is not None:
            self._hold_cards(group, pod, query, int(best[0]))
        if not ranks_itself and len(best) <= MAX_NODES:
            self.filter_results[uid] = FilterResult.from_rows(policy, nodes, best)
        # 3. Answer.
        chosen = at[fits.nonzero()[0][first]].tolist()
        if group is None and nominated:
            chosen = self._add_nominated(nominated, candidates, chosen, fitting_rows[scores < np.inf])
        return FilterReply(encode_passed(candidates, chosen), passed=uid, attempt=tried)

    def _mask_takers(
        self,
        uid: str,
        query: SchedulingRequest,
        rows: RowArray,
        planned: Collection[str],
        *,
        may_leave: bool,
    ) -> tuple[BoolArray, bool]:
        """Find the nodes that have the cards and come into question for a pod.

        Args:
            planned: UUIDs of the cards that the queue planned for it.
            may_leave: It may also go where these cards are not.

        Returns:
            bool[m], and whether they are where the queue placed the pod.
        """
        nodes = self.state.nodes
        fits = self._failed_bindings.mask_untried(nodes, uid, rows, filter_nodes(nodes, query, rows))
        if not planned or len(rows) == 1:
            return fits, bool(planned)
        if may_leave:
            return fits, False
        # Elsewhere it would take room that the queue keeps for others.
        there = fits & has_card(nodes, rows, min(planned))
        return (there, True) if there.any() else (fits, False)

    def _hold_cards(self, group: GroupKey, pod: Pod, query: SchedulingRequest, row: int) -> None:
        """Hold the cards of a node for a pod of a group, as its Binding would choose them."""
        nodes, uid = self.state.nodes, pod.metadata.uid
        known = self.state.pods.get(uid)
        if known is not None and not self.state.is_pending(uid):
            return  # a kube-scheduler that began anew asks about a pod whose Binding is under way
        planned = known.planned_uuids if known is not None else ()
        placement = place_by_policy(self.policies.get_policy(query.request), nodes, row, query, planned)
        if placement is not None:
            self.state.group_holds.hold(
                group,
                Reservation(uid, ABOVE_ALL_PRIORITIES, nodes.names[row], placement.amounts, nodes.uuids[row]),
            )

    def record_bind_failure(self, uid: str, node: str, now: float) -> None:
        """Record a failed Binding: a pod that the queue placed tries the next node on its list.

        kube-scheduler tries a pod of a PodGroup again at once and for ever, so filter refuses it for a while,
        longer each time.
        """
        pod = self.state.pods.get(uid)
        if pod is None or pod.charged is None or pod.node or pod.ended:
            return  # filter is not asked for it again, and no signal of its end would come
        if pod.planned_uuids:
            self._failed_bindings.add(uid, node)
        if pod.scheduling_group is not None:
            self._refused_bindings.failed(uid, now)

    def record_attempt(self, reply: FilterReply) -> None:
        """Report an answer to kube-scheduler as an attempt to policies that count attempts."""
        if reply.attempt is not None:
            self.policies.record_attempt(self.state.nodes, *reply.attempt)

    def _score_fitting(
        self,
        policy: NodePolicy,
        planned: bool,
        placed: bool,
        query: SchedulingRequest,
        fitting_rows: RowArray,
    ) -> FloatArray:
        """Score nodes that fit.

        For a pod that the queue has planned, its policy was asked already: it is not held back a second time
        if the node it was placed on has filled up.
        """
        if placed:
            return np.zeros(len(fitting_rows), dtype=np.float64)
        scores = score_nodes(policy, self.state.nodes, query, fitting_rows)
        return np.minimum(scores, np.finfo(np.float64).max) if planned else scores

    def prioritize(self, body: bytes, now: float, stale: str = "") -> bytes:
        """Answer a prioritize call: 10 for the best node, one less for each next, never below 0.

        A pod that states preferences gets 0 everywhere, because a single score of ours would outvote them.

        Raises:
            ProtocolError: the body is rubbish.
        """
        pod, candidates = self._calls.decode(body)
        result = np.zeros(len(candidates.rows), dtype=np.int32)
        if stale or ranks_nodes_itself(pod):
            return encode_scores(candidates, result)
        offered = self._order_as_filtered(pod.metadata.uid, candidates)
        if offered is not None:
            result[offered[:MAX_SCORE]] = MAX_SCORE - np.arange(min(MAX_SCORE, len(offered)))
            return encode_scores(candidates, result)
        self.state.expire_tombstones(now)
        try:
            query = self._make_request(pod)
        except RequestError:
            return encode_scores(candidates, result)
        rows, at = candidates.find_known_rows()
        if query is None:
            if self._rank_all_pods:
                result[at] = self._rank_for_plain_pod(pod, rows)
            return encode_scores(candidates, result)
        with self.state.reservations.charged_against(self.state.nodes, pod.metadata.uid, pod.priority):
            positions = np.flatnonzero(filter_nodes(self.state.nodes, query, rows))
            fitting_rows = rows[positions]
            scores = score_nodes(
                self.policies.get_policy(query.request), self.state.nodes, query, fitting_rows
            )
        ranked = convert_to_protocol(scores, self.state.nodes.name_rank[fitting_rows])
        result[at[positions]] = ranked
        return encode_scores(candidates, result)

    def _rank_for_plain_pod(self, pod: Pod, rows: RowArray) -> IntArray:
        """Rank nodes for a pod that asks for no card: int32[m], by the cluster's policy."""
        nodes = self.state.nodes
        asked = parse_pod_request(pod, self.state.resource)
        ask = PolicyRequest(asked.amounts, (), pod=pod.metadata.uid)
        scores = compute_scores(self.policies.cluster_policy, nodes, ask, rows)
        return convert_to_protocol(scores, nodes.name_rank[rows])

    def preempt(self, body: bytes, now: float, stale: str = "") -> bytes:
        """Answer a preempt call: the victims of each node on which evicting pods frees the cards.

        No victims are named for a pod that has reserved cards already, because pods are leaving on its
        behalf; nor from a stale view, because kube-scheduler deletes every pod that is named.

        Raises:
            ProtocolError: the body is rubbish.
        """
        pod, proposed = decode_preempt(body)
        if not proposed or is_requeued(pod):
            return encode_preempt({})
        self.state.expire_tombstones(now)
        try:
            query = self._make_request(pod)
        except RequestError:
            return encode_preempt({})
        if query is None:
            return encode_preempt(proposed)
        if stale:
            return encode_preempt({})
        uid, priority = pod.metadata.uid, pod.priority
        if self.state.reservations.get_reservation(uid) is not None:
            return encode_preempt({})
        answer: dict[str, MetaVictims] = {}
        with self.state.reservations.charged_against(self.state.nodes, uid, priority):
            for node, victims in proposed.items():
                room = view_node(self.state, node, query)
                if room is not None:
                    named = VictimSet(tuple(each.uid for each in victims.pods or ()), victims.pdb_violations)
                    chosen = choose_victims(room, query, priority, named, self.budgets, self.state.pods)
                    if chosen is not None:
                        answer[node] = MetaVictims([MetaPod(each) for each in chosen.uids], chosen.violations)
        if answer:
            self.left_to_kube_scheduler(uid)
        return encode_preempt(answer)

    def _handle_resolved(self, pod: PodRecord) -> None:
        """Report a pod that was bound (by any scheduler) or is gone to policies that learn."""
        self.filter_results.pop(pod.uid, None)
        self._failed_bindings.forget(pod.uid)
        self._refused_bindings.forget(pod.uid)
        self._resolved_uids[pod.uid] = None
        for learner in self.policies.learners:
            request = pod.charged if pod.node else None
            learned = None if request is None else self._make_learning_request(pod, request)
            learner.pod_resolved(pod.uid, learned)

    def _make_learning_request(self, pod: PodRecord, request: PodRequest) -> PolicyRequest:
        """Make the request of a bound pod, for policies that learn."""
        nodes = self.state.nodes
        query = SchedulingRequest(request, self.policies.make_policy_request(request, pod.amounts))
        row = nodes.rows.get(pod.node)
        return make_learning_request(nodes, query, np.array([] if row is None else [row], dtype=np.intp))

    def _refuse_everywhere(self, candidates: Candidates, why: str) -> bytes:
        everywhere = (why, False, range(len(candidates.rows)))
        return encode_refused(candidates, [everywhere])

    def _pass_all(self, candidates: Candidates) -> FilterReply:
        everywhere = range(len(candidates.rows))
        return FilterReply(encode_passed(candidates, everywhere))

    def _order_as_filtered(self, uid: str, candidates: Candidates) -> list[int] | None:
        """Order nodes as filter did a moment ago.

        Returns:
            Positions among the candidates, best first. None if a candidate was not in filter's answer, or if
            a node or the policy's weights have changed since.
        """
        names = candidates.few
        offer = self.filter_results.get(uid)
        if offer is None or not names:
            return None
        places = {name: position for position, name in enumerate(names)}
        asked = [name for name in offer.versions if name in places]
        if len(asked) != len(names) or not offer.is_current(self.state.nodes, asked):
            return None
        return [places[name] for name in asked]

    def _make_request(self, pod: Pod) -> SchedulingRequest | None:
        parsed = parse_pod_request(pod, self.state.resource)
        if parsed.error:
            raise RequestError(parsed.error)
        if parsed.request is None:
            return None
        return self.policies.make_request(self.state.nodes, parsed.request, parsed.amounts, pod.metadata.uid)

    def _refuse(
        self,
        pod: Pod,
        candidates: Candidates,
        query: SchedulingRequest,
        rows: RowArray,
        at: RowArray,
        held: BoolArray,
    ) -> FilterReply:
        """Answer with the reason of every node; `held` are nodes that fit but that the policy holds back.

        kube-scheduler dry-runs preemption on every node that may be resolvable by it. These nodes have passed
        its own filters, so it finds no victim and reports an error (up to 1.37). The errors are written into
        the pod in a different order each time, so the pod is tried again at once, and so on. So all nodes are
        called unresolvable, except the one that is reserved for the pod: its error keeps kube-scheduler from
        clearing the pod's nominatedNodeName.
        """
        codes: CodeArray = np.full(len(candidates.rows), FilterReason.UNKNOWN_NODE, dtype=np.int8)
        known_codes: CodeArray = np.full(len(rows), FilterReason.HELD_BACK, dtype=np.int8)
        known_codes[~held] = explain_rejections(self.state.nodes, query, rows[~held])
        codes[at] = known_codes
        if pod.metadata.uid not in self._resolved_uids:
            for learner in self.policies.learners:
                learner.pending(
                    pod.metadata.uid,
                    self.state.nodes,
                    make_learning_request(self.state.nodes, query, rows),
                    rows,
                )
        kept = candidates.rows == self._find_reserved_row(pod)
        groups, counts = [], {}
        for code in np.unique(codes).tolist():
            reason = FilterReason.from_code(code)
            text = format_event_text(reason, query.request.demands, self.state.unit_mib, query.request.rules)
            groups += [
                (text, curable, np.flatnonzero((codes == code) & (kept == curable)).tolist())
                for curable in (True, False)
            ]
            counts[reason] = int(np.count_nonzero(codes == code))
        answer = encode_refused(candidates, groups)
        evictable: tuple[str, ...] = ()
        # A node that is held back has the cards, and takes the pod soon: nobody need be evicted for it.
        if pod.spec.can_preempt and not held.any():
            curable = [reason for reason in counts if Cure.PODS_END in reason.cures]
            helped = rows[np.isin(known_codes, curable)]
            # Of the curable reasons only this one stands also where the pod cannot run on empty cards.
            if FilterReason.CARD_RULES in counts:
                helped = helped[filter_nodes(self.state.nodes.as_emptied(), query, helped)]
            evictable = self._list_evictable(helped)
        refusal = UnschedulablePod(pod.metadata, counts, query, rows) if counts else None
        among = NodeSet.from_rows(self.state.nodes.index, rows)
        return FilterReply(
            answer, pod.metadata.uid, unschedulable=refusal, evictable=evictable, asked_nodes=among
        )

    def _find_reserved_row(self, pod: Pod) -> int:
        """Find the row of the node that is reserved for a pod; the row count where there is none."""
        nodes = self.state.nodes
        reservation = self.state.reservations.get_reservation(pod.metadata.uid)
        return nodes.rows.get(reservation.node if reservation is not None else "", nodes.row_count)

    def _list_evictable(self, rows: RowArray) -> tuple[str, ...]:
        """List names of nodes, a different part of them with each call if there are too many."""
        first = self._first_evictable % len(rows) if len(rows) > MAX_EVICTABLE else 0
        self._first_evictable = first + MAX_EVICTABLE
        names = self.state.nodes.names
        return tuple(names[row] for row in np.roll(rows, -first)[:MAX_EVICTABLE].tolist())

    def _add_nominated(
        self, nominated: str, candidates: Candidates, chosen: list[int], fitting_rows: RowArray
    ) -> list[int]:
        """Add the node that preemption has freed for the pod, if it fits and the shortlist cut it off."""
        row = self.state.nodes.rows.get(nominated)
        if row is None or row not in fitting_rows:
            return chosen
        position = int(np.flatnonzero(candidates.rows == row)[0])
        return chosen if position in chosen else [*chosen, position]
