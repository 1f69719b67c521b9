"""Rules of the queue taken out one at a time: some history must break that passes with the rule."""

from gpupack.rebalance import advise
from scheduler_plugin.preemption import node_victims
from scheduler_plugin.queue.cache import claimed_units, job_stages, membership, pods, queued_pods, queues
from scheduler_plugin.queue.capacity import reservation_planner, reservations
from scheduler_plugin.queue.controller import controller, explainer
from scheduler_plugin.queue.scheduler import (
    admission,
    borrowed,
    equivalence_backoff,
    gangs,
    pod_charges,
    queue,
    reclaim,
    refusals,
    requeue,
    reservation_delay,
    reservation_manager,
)
from tests.property.kernel.mutant import Kind, Mutant

from . import simulation


def of(kind: str) -> Kind:
    def history(seed: int) -> int:
        return simulation.run(kind, seed)

    history.__name__ = kind
    return history


MUTANTS = (
    Mutant(
        "advice moves whom the queue admits again",
        advise._ask_queue,
        "if isinstance(cluster.queue, str) or not plan.moves:",
        "if True:",
        of("advised"),
    ),
    Mutant(
        "of a strict queue the oldest goes first",
        queues.QueueState.is_next,
        "if self.form is not None and self.form.is_strict:",
        "if False:",
        of("mixed"),
    ),
    Mutant(
        "slots: a release has its slot until it is taken back",
        pod_charges.PodCharges.free_capacity,
        "            self._state.forget(assumed, now)\n        pod.capacity_freed = True\n",
        "            self._state.forget(assumed, now)\n        self._slots.vacate(pod.uid)\n"
        "        pod.capacity_freed = True\n",
        of("slotted"),
    ),
    Mutant(
        "slots: pods of a gang go where a slot is idle",
        admission.AdmissionScheduler._mask_rows,
        "            fits = fits & self.mask_idle_slots(slot)\n",
        "            pass\n",
        of("slotted"),
    ),
    Mutant(
        "slots: room is kept for who fits only where no slot is idle",
        reservation_manager.ReservationManager._fits_now,
        "            fits = fits & admission.mask_idle_slots()\n",
        "            pass\n",
        of("load"),
    ),
    Mutant(
        "slots: of those for whom room is kept on a node the first need not leave the others theirs",
        reservations.QueueReservations.sum_ahead,
        "takewhile(lambda reservation: reservation.workload_uid != workload_uid, here)",
        "(reservation for reservation in here if reservation.workload_uid != workload_uid)",
        of("slotted"),
    ),
    Mutant(
        "quota: of those for whom more is reserved than is left the first need not leave it to the others",
        queues.Queues._sum_reserved_ahead,
        "takewhile(lambda other: other != name, self._reserved)",
        "(other for other in self._reserved if other != name)",
        of("claimed"),
    ),
    Mutant(
        "quota: younger pods that had what is kept for an older one borrow no more until it starts",
        queues.Queues.compute_headroom,
        "most = (min(most, nominal_left) if uid in self.overtaken else most) - own",
        "most -= own",
        of("load"),
    ),
    Mutant(
        "slots: room is kept on nodes that have some",
        reservation_planner.ReservationPlanner._find_place,
        "if not self._has_slot(load, nodes.names[row]):",
        "if False:",
        of("load"),
    ),
    Mutant(
        "data: a gang that has no room near it as a whole goes elsewhere",
        admission.AdmissionScheduler._admit_next,
        "            if not self._is_near(choice):\n",
        "            if True:\n",
        of("slotted"),
    ),
    Mutant(
        "data: who is chosen for a place near it goes there",
        admission.AdmissionScheduler._mask_rows,
        "            fits = fits & cycle.mask_near(choice.workload.data)\n",
        "            pass\n",
        of("slotted"),
    ),
    Mutant(
        "a pod whose Binding is in doubt keeps its quota",
        controller.Controller._commit_groups,
        "if pod is not None and answer.written is WriteOutcome.UNKNOWN:",
        "if False:",
        of("batch"),
    ),
    Mutant(
        "reclaim: quota is topped up where room needs fewer victims",
        reclaim._VictimSearch._find_on_nodes,
        "            victims = self._add_quota_victims(placer, victims)\n",
        "            pass\n",
        of("reclaim"),
    ),
    Mutant(
        "reclaim: who can never run does not hold up those behind it",
        reclaim._list_in_order,
        "return [workload for workload in workloads if queue.is_next(workload)]",
        "return workloads[:1]",
        of("reclaim"),
    ),
    Mutant(
        "reclaim: nobody is left out without whom the others are not enough",
        reclaim._VictimSearch._reduce_victims,
        "lambda fewer: self._is_enough(placer, fewer)",
        "bool",
        of("reclaim"),
    ),
    Mutant(
        "reclaim: who need not go is found beside those who are left, not beside all",
        node_victims.drop_needless,
        "if is_enough(fewer):",
        "if is_enough([other for other in victims if other is not victim]):",
        of("reclaim"),
        also=(
            reclaim._VictimSearch._add_quota_victims,
            "chosen.append(best)\n            rest.remove(best)",
            "chosen.extend(rest)\n            rest.clear()",
        ),
    ),
    Mutant(
        "reclaim: a victim gives back what its queue had borrowed",
        borrowed.BorrowedPods.sum_freed,
        "freed.get(name, 0) + min(units, left)",
        "freed.get(name, 0) + units",
        of("reclaim"),
    ),
    Mutant(
        "reclaim: of equally many the youngest of the smallest priority go",
        borrowed.make_reclaim_key,
        "    return (victims.priority, -oldest.waiting_since, oldest.uid)\n",
        "    return (0, oldest.waiting_since, oldest.uid)\n",
        of("reclaim"),
    ),
    Mutant(
        "reclaim: nobody goes again and again for who is refused",
        reclaim.Reclaimer._list_searches,
        "if self._was_refused(workload.uid, now) or",
        "if",
        of("refused"),
    ),
    Mutant(
        "those like one that finds no node are tried one at a time, after pauses",
        equivalence_backoff.EquivalenceBackoff.is_held_back,
        "        if group is None or unit.uid in group.tried_uids:\n            return False\n",
        "        if True:\n            return False\n",
        of("refused"),
    ),
    Mutant(
        "what the API server refuses is tried after pauses",
        refusals.PodRefusals.record,
        "        self._pauses.failed(pod.uid, now, why)\n",
        "",
        of("gangs"),
    ),
    Mutant(
        "a release that finds no node is requeued",
        requeue.RequeueFinder._find_lost,
        "            if not self._requeues.is_paused(pod.uid):",
        "            if False:",
        of("refused"),
    ),
    Mutant(
        "who is requeued waits in its queue",
        queued_pods.QueuedPod.waits_again,
        "return requeued or (",
        "return (",
        of("load"),
    ),
    Mutant(
        "the rest of a gang joins it",
        gangs.Gangs._update_waiting,
        "goes = goes and (is_complete or self._can_join(gang, pods, admitted))",
        "goes = goes and is_complete",
        of("gangs"),
    ),
    Mutant(
        "a gang is not whole while some of its pods wait",
        gangs.Gangs._update_state,
        "bound + gang.succeeded >= gang.size",
        "bound",
        of("gangs"),
    ),
    Mutant(
        "a PodGroup says how many pods start together",
        gangs.Gangs._read_group,
        "gang.size = least - gang.outside",
        "gang.size = 1",
        of("grouped"),
    ),
    Mutant(
        "a gang that the API server did not let go is removed again each time that its time is over",
        gangs.Gangs.begin_removal,
        "GangState.LEAVING, now)",
        "GangState.LEAVING, now + 1e6)",
        of("gangs"),
    ),
    Mutant(
        "where room is kept for a pod a slot is kept too",
        admission.AdmissionScheduler.mask_fits,
        "fits[row] = kept == 0 or self.slots.count_left(name) > kept",
        "pass",
        of("slotted"),
    ),
    Mutant(
        "a gang of which a part waits is taken back",
        gangs.Gangs.find_half_bound,
        "(late if gang.state is GangState.WHOLE else admitted)",
        "late",
        of("gangs"),
    ),
    Mutant(
        "a gang that ran whole and has lost a pod is in part again",
        gangs.Gangs._update_state,
        "gang.state = GangState.IN_PART\n",
        "gang.state = GangState.IN_PART if gang.state is GangState.WAITING else gang.state\n",
        of("lent"),
    ),
    Mutant(
        "reclaim: a gang goes whole",
        borrowed.BorrowedPods._list_groups,
        "if gang is not None and self._queue.gangs.ends_together(gang):",
        "if False:",
        of("lent"),
    ),
    Mutant(
        "a pod of a first stage that is gone without success is missing",
        job_stages._FirstStage.explain_uncounted,
        "        if missing:\n",
        "        if False:\n",
        of("staged"),
    ),
    Mutant(
        "how long a pod has run the queue has seen, whatever its node's clock says",
        queue.Queue.apply_pod,
        "            phase = self._find_phase(queued_pod, queue_info, phase, now)\n",
        "            phase = self._find_phase(queued_pod, queue_info, phase, now)\n"
        "            if record.node:\n"
        "                queued_pod.bound_at = min("
        "queued_pod.bound_at, record.started_at - (self._clock._wall or 0.0))\n",
        of("load"),
    ),
    Mutant(
        "room is kept for who waits long",
        reservation_delay.ReservationDelay.list_overdue,
        "        limit = now - config.keep_room_after_s\n",
        "        limit = -1e9\n",
        of("load"),
    ),
    Mutant(
        "no room stays kept for a borrower whose quota its lender needs",
        reservation_manager.ReservationManager._is_reservation_useful,
        "admission.queues.allows_units(queue.name, units, uid)",
        "cohort.allows_units(queue.name, units)",
        of("load"),
    ),
    Mutant(
        "while nothing changes little is decided",
        controller.Controller.run,
        "if not self._is_idle or self._clock() >= next_check:",
        "if True:",
        of("mixed"),
    ),
    Mutant(
        "while nothing changes reasons are found out rarely",
        explainer.Explainer.begin_round,
        "every = now >= self._next_s and (self._changed or now - self._began_s >= UNCHANGED_S)",
        "every = True",
        of("reclaim"),
    ),
    Mutant(
        "names that people are told are short and printable",
        pods._read_name,
        "    if len(name) <= MAX_NAME and name.isprintable():\n",
        "    if True:\n",
        of("mixed"),
    ),
    Mutant(
        "of an annotation that makes no sense a part is told",
        pods.read_gang,
        'seen = "missing" if text is None else shown(text)',
        'seen = "missing" if text is None else text',
        of("mixed"),
    ),
    Mutant(
        "quotas are asked before a release",
        admission.AdmissionCycle._is_admissible,
        "return self._admission.queues.allows_units(queue, least, oldest.uid)",
        "return True",
        of("reclaim"),
    ),
    Mutant(
        "what claims have counts in the quota of their queue",
        claimed_units.ClaimedUnits.update_claim,
        "        if queue:\n",
        "        if False:\n",
        of("claimed"),
    ),
    Mutant(
        "a claim that is let go counts no more",
        claimed_units.ClaimedUnits.update_claim,
        "        if before != queue:\n",
        "        if False:\n",
        of("claimed"),
    ),
    Mutant(
        "who is gone counts no more",
        queue.Queue._forget_pod,
        "        self.charges.end(pod, now)\n        self.equivalence_backoff.remove(pod)\n",
        "        self.charges.free_capacity(pod, now)\n        self.equivalence_backoff.remove(pod)\n",
        of("mixed"),
    ),
    Mutant(
        "a pod whose label names no queue of its namespace belongs to one all the same",
        membership.QueueMembership.find_queue,
        "return last or self._find_default(namespace, label) or named or label",
        "return named",
        of("tenants"),
    ),
)
