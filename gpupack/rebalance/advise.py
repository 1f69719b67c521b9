"""A short list of moves that lets pods start, or empties cards. Nothing is done, only said."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from allocator.errors import shown
from allocator.quantity import format_memory
from allocator.request import PodRequest
from allocator.texts import count_of
from gpupack.cordon import match_cards
from gpupack.errors import InputError
from gpupack.rebalance.goals import EmptyGoal, StartGoal
from gpupack.rebalance.movable_pods import MovablePod, MovablePods
from gpupack.rebalance.moved_cluster import apply_moves, find_refused_moves
from gpupack.rebalance.plan_state import Card, Destination, PlanState
from gpupack.rebalance.planning import MovePlan, MovePlanner, SearchLimits
from gpupack.whatif.answers import Advice, Move, PodCount
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion, build_request, count_fit, explain_unmatched_model, require_cards
from gpupack.whatif.kube_checks import HostRequirements, require_of_plain_pod
from gpupack.whatif.what_if import PodCardUsage, describe_node_cards, list_node_cards
from scheduler_plugin.scheduling.node_fit import CORDONED, NOT_READY, TAINT

_TRIES: Final = 5
_HALVED: Final = 3
_TAINTS: Final = 3
_NOT_FOUND: Final = "No list of moves was found that filter admits"


def advise_start(
    cluster: Cluster, ask: FitQuestion, pods: int = 1, limits: SearchLimits | None = None
) -> Advice:
    """Find a short list of moves after which a number of pods of a size can start.

    Nothing is known of the pods but their cards: they tolerate no taint.

    Raises:
        InputError: something is wrong with the question.
    """
    if pods < 1:
        raise InputError(f"{pods} pods; allowed: 1 or more")
    require_cards(cluster)
    limits = limits or SearchLimits()
    request = build_request(ask, cluster.state.resource)
    requirements = require_of_plain_pod()
    now = count_fit(cluster, request, requirements)
    notes = [*explain_unmatched_model(cluster, request), *_left_out(cluster, requirements)]
    if now.pods >= pods:
        return _advise_no_move(cluster, now.pods, f"{_pods(now.pods)} now: no move is needed", notes)
    movable_pods = MovablePods(cluster, PodCardUsage(cluster), limits.max_priority)
    before = {node.node: node.pods for node in now.nodes}
    found = plan_start(cluster, request, requirements, before, pods, movable_pods, limits)
    notes += movable_pods.notes
    if found is None:
        return _advise_no_move(cluster, now.pods, _NOT_FOUND, notes)
    plan, changed = found
    then = count_fit(changed, request, requirements).pods if plan.moves else now.pods
    text = _told_start(now.pods, then, pods, plan)
    plan.notes += notes
    return _advice(cluster, plan, then - now.pods, now.pods, then, text)


def plan_start(
    cluster: Cluster,
    request: PodRequest,
    requirements: HostRequirements,
    before: Mapping[str, int],
    pods: int,
    movable_pods: MovablePods,
    limits: SearchLimits,
) -> "tuple[MovePlan, Cluster] | None":
    """Search for moves after which a number of pods can start; return them with the cluster after them.

    Args:
        request: What such a pod asks for, of one demand.
        before: Such pods that fit now, by node.
    """

    def make_plan() -> MovePlan:
        plan_state = PlanState(cluster, movable_pods.usage)
        goal = StartGoal(plan_state, request, requirements, before)
        planner = MovePlanner(cluster, plan_state, goal, movable_pods, limits)
        return planner.plan_start(pods, sum(before.values()))

    return _find_checked(
        cluster, make_plan, movable_pods, lambda then: count_fit(then, request, requirements).pods
    )


def _left_out(cluster: Cluster, requirements: HostRequirements) -> list[str]:
    """Say which nodes with cards are no places for such a pod: not Ready, or closed by people."""
    nodes, hosts = cluster.state.nodes, cluster.kube_checks
    usable = [name for name, row in nodes.rows.items() if nodes.usable[row]]
    rejections = hosts.find_rejections(requirements, only=usable)
    notes = []
    not_ready = sorted(name for name, rejection in rejections.items() if rejection.reason == NOT_READY)
    if not_ready:
        notes.append(f"{_nodes(not_ready)} left out: not Ready")
    tainted = sorted(name for name, rejection in rejections.items() if rejection.reason == TAINT)
    if tainted:
        kinds = sorted(
            {taint for name in tainted for taint in hosts.list_repelling_taints(name, requirements)}
        )
        said = f"{', '.join(kinds[:_TAINTS])}{', ...' if len(kinds) > _TAINTS else ''}"
        what = "taint" if len(kinds) == 1 else "taints"
        notes.append(f"{_nodes(tainted)} left out: new pods do not tolerate the {what} {said}")
    cordoned = sorted(name for name, rejection in rejections.items() if rejection.reason == CORDONED)
    if cordoned:
        notes.append(f"{_nodes(cordoned)} left out: cordoned")
    return notes


def _nodes(names: Sequence[str]) -> str:
    return f"1 node ({names[0]}) is" if len(names) == 1 else f"{len(names)} nodes are"


def _advise_no_move(cluster: Cluster, pods: int, text: str, notes: Sequence[str]) -> Advice:
    count = PodCount(pods)
    return Advice(0, (), count, count, text=text, notes=tuple(notes), unit_mib=cluster.unit_mib)


def advise_empty(cluster: Cluster, what: str, limits: SearchLimits | None = None) -> Advice:
    """Find a short list of moves that empties a card (NODE/NUMBER, or a UUID) or a node.

    Raises:
        InputError: there is no such card or node.
    """
    limits = limits or SearchLimits()
    cards = _find_cards(cluster, what)
    usage = PodCardUsage(cluster)
    movable_pods = MovablePods(cluster, usage, limits.max_priority)

    def make_plan() -> MovePlan:
        there, stuck = _list_pods_on_cards(cluster, usage, movable_pods, cards)
        if stuck or not there:
            return MovePlan([], 0, [])
        plan_state = PlanState(cluster, usage, cards)
        goal = EmptyGoal(plan_state)
        return MovePlanner(cluster, plan_state, goal, movable_pods, limits).plan_empty(there)

    found = _find_checked(cluster, make_plan, movable_pods, lambda then: _count_empty(then, cards))
    there, stuck = _list_pods_on_cards(cluster, usage, movable_pods, cards)
    notes = [f"{name} stays: {reason}" for name, reason in stuck]
    others = _count_unowned_units(cluster, usage, cards)
    if others:
        notes.append(
            f"{format_memory(others, cluster.unit_mib)} on these cards are no pod's whose card is known"
        )
    if stuck or not there:
        text = "Not every pod can be moved from" if there or stuck else "No pod is on"
        return _advise_no_move(cluster, len(there) + len(stuck), f"{text} {what}", notes)
    if found is None:
        return _advise_no_move(cluster, len(there), _NOT_FOUND, movable_pods.notes)
    plan, _ = found
    left = 0 if plan.moves else len(there)
    if plan.moves:
        text = f"No pod is left on {what} after {count_of(len(plan.moves), 'move')}"
        notes.append("keep new pods off it first: gpupack cordon, see docs/ask.md")
    else:
        text = f"No list of moves was found that empties {what}"
    plan.notes += [*notes, *movable_pods.notes]
    return _advice(cluster, plan, len(cards) if plan.moves else 0, len(there), left, text)


def _pods(number: int) -> str:
    return f"{number or 'No'} such {'pods fit' if number > 1 else 'pod fits'}"


def _told_start(now: int, then: int, wanted: int, plan: MovePlan) -> str:
    if not plan.moves:
        return f"{_pods(now)} now, and no list of moves was found that lets another one start"
    said = f"{_pods(now)} now, {then} after {count_of(len(plan.moves), 'move')}"
    return said if then >= wanted else f"{said}; no list was found that lets all {wanted} start"


def _find_checked(
    cluster: Cluster,
    make_plan: Callable[[], MovePlan],
    movable_pods: MovablePods,
    measure: Callable[[Cluster], int],
) -> tuple[MovePlan, Cluster] | None:
    """Make plans until filter, kube-scheduler and the queue admit one; return it and the cluster after it."""
    number = 0
    while number < _TRIES:
        queues = len(movable_pods.refused_queues)
        plan = make_plan()
        found = _check(cluster, plan, movable_pods, number) if plan.moves else cluster
        if found is not None:
            found = _ask_queue(cluster, plan, found, movable_pods, measure)
        if found is not None:
            return plan, found
        # All pods of a queue are left out at once, so that ends by itself.
        number += len(movable_pods.refused_queues) == queues
    return None


def _check(cluster: Cluster, plan: MovePlan, movable_pods: MovablePods, number: int) -> Cluster | None:
    """Ask filter and kube-scheduler's rules whether the moves can be; None: look for others."""
    then = apply_moves(cluster, plan.moves)
    refused = find_refused_moves(cluster, then, plan.moves)
    # Of two that keep each other off a node one may go there: half of them stay, at last all.
    for uid in refused[: (len(refused) + 1) // 2] if number < _HALVED else refused:
        movable_pods.refuse(uid, "filter refuses it elsewhere")
    return None if refused else then


def _ask_queue(
    cluster: Cluster,
    plan: MovePlan,
    then: Cluster,
    movable_pods: MovablePods,
    measure: Callable[[Cluster], int],
) -> Cluster | None:
    """Ask the queue whether it admits the successors, and place them where it would start them."""
    if isinstance(cluster.queue, str) or not plan.moves:
        return then
    # Few clusters have a queue, and its code takes a tenth of a second to load.
    from gpupack.rebalance.queue_rehearsal import QueueRefusal, QueueRehearsal  # noqa: PLC0415

    moves = QueueRehearsal(cluster, cluster.queue).move_all(plan.moves)
    if isinstance(moves, QueueRefusal):
        movable_pods.refuse(moves.uid, moves.reason, moves.queue)
        return None
    if moves == plan.moves:
        return then
    found = apply_moves(cluster, moves)
    if not find_refused_moves(cluster, found, moves) and measure(found) >= measure(then):
        plan.moves = moves
        return found
    for (movable, planned), (_, place) in zip(plan.moves, moves, strict=True):
        if place != planned:
            movable_pods.refuse(movable.uid, f"its queue would start it on node {place.node}")
    return None


def _count_empty(cluster: Cluster, cards: frozenset[Card]) -> int:
    nodes = cluster.state.nodes
    return sum(
        not nodes.used[nodes.rows[node], card] + nodes.assumed[nodes.rows[node], card] for node, card in cards
    )


def _advice(cluster: Cluster, plan: MovePlan, gained: int, before: int, then: int, text: str) -> Advice:
    notes = list(plan.notes)
    if len(plan.moves) > plan.at_least:
        needed = f"{count_of(plan.at_least, 'move')} {'is' if plan.at_least == 1 else 'are'} needed"
        notes.append(f"a list of fewer moves may exist: at least {needed}")
    if plan.moves and cluster.budgets is None:
        notes.append("PodDisruptionBudgets were not read: the API server may refuse an eviction")
    return Advice(
        gained=gained,
        moves=tuple(describe_move(cluster, movable, destination) for movable, destination in plan.moves),
        before=PodCount(before),
        after=PodCount(then),
        at_least=plan.at_least,
        text=text,
        notes=tuple(notes),
        unit_mib=cluster.unit_mib,
    )


def describe_move(cluster: Cluster, movable: MovablePod, destination: Destination) -> Move:
    source = list_node_cards(cluster, movable.node, movable.units.keys())
    goes = list_node_cards(cluster, destination.node, destination.placement.charge.keys())
    meta, records = movable.pod.metadata, cluster.state.node_records
    priority = f", priority {movable.record.priority}" if movable.record.priority else ""
    since = f", running since {movable.record.start_time}" if movable.record.start_time else ""
    text = (
        f"{meta.full_name} ({format_memory(movable.total_units, cluster.unit_mib)}) "
        f"from {describe_node_cards(records, source)} to {describe_node_cards(records, goes)}: "
        f"evict it, and {movable.owner.kind} {movable.owner.name} replaces it{priority}{since}"
    )
    units = sum(destination.placement.charge.values())
    return Move(meta.namespace, meta.name, units, source, goes, text)


def _find_cards(cluster: Cluster, what: str) -> frozenset[Card]:
    """Find a node's cards by its name, those of NODE/NUMBER, or one by its UUID or the beginning of that."""
    names: dict[Card, tuple[str, str, str]] = {}
    for name, record in cluster.state.node_records.items():
        uuids = record.uuids or [""] * len(record.sizes)
        for card, uuid in enumerate(uuids):
            names[name, card] = (name, f"{name}/{record.get_card_number(card)}", uuid)
    cards = list(names)
    found = match_cards(what, list(names.values()))
    if len(found) == 1 or (found and what in names[cards[found[0]]]):
        return frozenset(cards[at] for at in found)
    if what in cluster.nodes:
        raise InputError(f"node {what} has no cards that gpupack knows")
    problem = f"the beginning of {len(found)} UUIDs" if found else "no node and no card"
    there = dict.fromkeys(number for name, number, _ in names.values() if what.startswith(f"{name}/"))
    allowed = ", ".join(there) or "a node, NODE/NUMBER, or a card's UUID or its beginning"
    raise InputError(f"{shown(what)} is {problem}; allowed: {allowed}")


def _list_pods_on_cards(
    cluster: Cluster, usage: PodCardUsage, movable_pods: MovablePods, cards: frozenset[Card]
) -> tuple[list[MovablePod], list[tuple[str, str]]]:
    """List the pods on cards that may move, and of the others the names and why they stay."""
    moving: list[MovablePod] = []
    staying: list[tuple[str, str]] = []
    for node in sorted({name for name, _ in cards}):
        here = {card for name, card in cards if name == node}
        able = {movable.uid: movable for movable in movable_pods.list_on_node(node)}
        node_record = cluster.state.node_records[node]
        for uid, record in sorted(
            node_record.pods.items(), key=lambda item: (item[1].namespace, item[1].name)
        ):
            units = usage.get_units(record)
            if not units:
                staying.append((record.full_name, "nobody says on which card it is"))
            elif here.isdisjoint(units):
                continue
            elif uid in able:
                moving.append(able[uid])
            else:
                pod = cluster.pods[uid]
                why = movable_pods.explain_why_fixed(pod, record)
                staying.append((record.full_name, why))
        named = {name for name, _ in staying}
        staying += [
            (pod.full_name, "its card is that of a ResourceClaim")
            for pod, units in usage.list_claim_pods(node)
            if pod.full_name not in named and not here.isdisjoint(units)
        ]
    return moving, staying


def _count_unowned_units(cluster: Cluster, usage: PodCardUsage, cards: frozenset[Card]) -> int:
    """Count the units in use on cards that no known pod has."""
    nodes = cluster.state.nodes
    total = 0
    for node, card in cards:
        row = nodes.rows[node]
        if nodes.evictable[row, card]:
            pods = sum(usage.get_units(record).get(card, 0) for record in usage.list_pods(node))
            claims = sum(units.get(card, 0) for _, units in usage.list_claim_pods(node))
            total += max(0, int(nodes.occupied[row, card]) - pods - claims)
    return total
