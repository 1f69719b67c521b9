"""What admitted pods are charged: capacity of a node, a slot there, and quota of their queue. Pure."""

from collections.abc import Mapping

from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler


class PodCharges:
    """Charges admitted and bound pods, and gives what they had to others.

    A decision of `AdmissionScheduler` charges all three at once. This class keeps them right afterwards: for
    pods that were admitted before this process started, whose cards have changed, or that are gone.

    Attributes:
        unplaced: UIDs of admitted pods that are not assumed on any node; they are placed before others are
            admitted.
    """

    def __init__(
        self, pods: Mapping[str, QueuedPod], admission: AdmissionScheduler, membership: QueueMembership
    ) -> None:
        self._queued_pods = pods
        self._admission = admission
        self._state = admission.capacity.state
        self._slots = admission.slots
        self._queues = admission.queues
        self._membership = membership
        self.unplaced: set[str] = set()
        # Charged pods whose units are not known before they have cards.
        self._estimated: set[str] = set()

    def complete(self, now: float) -> None:
        """Place the admitted pods that are assumed nowhere, and charge by their cards what was estimated."""
        self.unplaced = {uid for uid in sorted(self.unplaced) if not self._place_pod(uid, now)}
        for uid in list(self._estimated):
            self._charge_quota(self._queued_pods[uid])

    def charge_pod(self, pod: QueuedPod) -> None:
        """Charge a pod that was admitted: its current units, and the slot of the node that it is bound to."""
        self._charge_quota(pod)
        if pod.phase is Phase.BOUND:
            pod.capacity_freed = False
            self._slots.occupy(pod.uid, pod.record.node, pod.kind)

    def free_capacity(self, pod: QueuedPod, now: float) -> None:
        """Give the capacity of an unbound pod to others.

        Its quota and slot stay charged until it is requeued, because kube-scheduler may bind it at any time.
        """
        if (assumed := self._state.get_assumed(pod.uid)) is not None:
            self._state.forget(assumed, now)
        pod.capacity_freed = True

    def end(self, pod: QueuedPod, now: float) -> None:
        """Give capacity, slot and quota of a pod that was not admitted, or is gone, to others."""
        self.free_capacity(pod, now)
        self._slots.vacate(pod.uid)
        self._uncharge_quota(pod)
        self._estimated.discard(pod.uid)

    def displace_pods(self, node: str) -> None:
        """Give up the places of admitted pods whose cards on a node are full now: they get other cards."""
        for uid in _find_displaced(self._state, node):
            assumed = self._state.get_assumed(uid)
            if assumed is not None:
                self._state.forget(assumed, 0.0)
                self._slots.vacate(uid)
                self.unplaced.add(uid)

    def _charge_quota(self, pod: QueuedPod) -> None:
        """Charge a pod to its queue's quota, with its current units."""
        allowed = pod.charged_queue or self._membership.may_charge(pod.queue_info.queue, pod.record.namespace)
        if pod.requirements is None or not allowed:
            return
        usage = self._admission.quota_usage
        units = usage.compute_pod_units(pod.record, pod.requirements)
        if units is None:
            self._estimated.add(pod.uid)
            if pod.charged_queue == pod.queue_info.queue:
                return
            units = usage.compute_least_units(pod.requirements)
        else:
            self._estimated.discard(pod.uid)
        has = pod.requirements.amounts._replace(units=units)
        if self._queues[pod.queue_info.queue].admitted.get(pod.uid) == has:
            return
        self._uncharge_quota(pod)
        self._queues.charge_pod(pod.queue_info.queue, pod.uid, has)
        pod.charged_queue = pod.queue_info.queue

    def _uncharge_quota(self, pod: QueuedPod) -> None:
        if pod.charged_queue:
            self._queues.uncharge_pod(pod.charged_queue, pod.uid)
            self._queues.forget_if_unused(pod.charged_queue)
            pod.charged_queue = ""

    def _place_pod(self, uid: str, now: float) -> bool:
        """Assume an admitted pod that is assumed nowhere; return True if it needs no place any more."""
        pod = self._queued_pods.get(uid)
        if pod is None or pod.requirements is None or pod.phase is not Phase.ADMITTED:
            return True
        if pod.capacity_freed or pod.fault:
            # It may be bound at any time: its slot stays its own, whoever admitted it.
            if len(pod.queue_info.pinned_nodes) == 1:
                self._slots.occupy(uid, pod.queue_info.pinned_nodes[0], pod.kind)
            return True
        node = self._admission.place_pod(uid, pod.requirements, now)
        if node:
            self._slots.occupy(uid, node, pod.kind)
            self._charge_quota(pod)
        return bool(node)


def _find_displaced(state: ClusterState, node: str) -> list[str]:
    """Find assumed pods whose cards no longer have room for them; those assumed last are displaced first.

    Such a pod would be charged on every card of the node, because it is unknown which card will serve it. So
    it would block room that it cannot use.

    Returns:
        UIDs, in the order in which the pods were assumed.
    """
    record, nodes, rules = state.node_records.get(node), state.nodes, state.rules
    row = nodes.rows.get(node)
    if record is None or row is None or not record.assumed or not record.sizes:
        return []
    # A quick check rules out most nodes.
    if not nodes.mask_overcharged(row).any():
        return []
    units = [size - used for size, used in zip(record.sizes, record.used, strict=True)]
    compute = (nodes.compute.limit[row] - nodes.compute.used[row]).tolist()
    assumed = {charge.uid: charge for charge in rules.charges_of_assumed(record)}
    displaced = []
    for charge in (*rules.charges_of_bound(record), *rules.charges_of_vanished(record), *assumed.values()):
        has = rules.charge_assigned_cards(record, charge)
        if has is None:
            continue
        percent = rules.charge_compute(record, charge)
        has_room = all(units[card] >= count for card, count in has.items()) and all(
            compute[card] >= count for card, count in percent.items()
        )
        if charge.uid in assumed and not has_room:
            displaced.append(charge.uid)
            continue
        for left, taken in ((units, has), (compute, percent)):
            for card, count in taken.items():
                left[card] -= count
    return displaced
