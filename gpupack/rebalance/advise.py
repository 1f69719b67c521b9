"""The shortest list of moves that lets pods start, or empties cards. Nothing is done, only said."""

from collections.abc import Mapping, Sequence
from typing import Final

from allocator.request import PodRequest
from gpupack.errors import InputError
from gpupack.rebalance.emptying import cards_named, on_cards, others_on
from gpupack.rebalance.goals import Empty, Start
from gpupack.rebalance.movable_pods import Mover, Movers
from gpupack.rebalance.moved import after, objections
from gpupack.rebalance.plan_state import Table, Target
from gpupack.rebalance.planning import Limits, Plan, Planner
from gpupack.whatif.answers import Advice, Move, Pods, Seat
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitAsk, count, need_words, request_of, unmatched
from gpupack.whatif.kube_checks import CORDONED, NOT_READY, TAINT, Wish, plain_pod
from gpupack.whatif.trials import Held, numbers
from scheduler_plugin.scheduling.reasons import memory

_TRIES: Final = 5
_HALVED: Final = 3
_TAINTS: Final = 3


def advise_start(cluster: Cluster, ask: FitAsk, pods: int = 1, limits: Limits | None = None) -> Advice:
    """Find the shortest list of moves with which so many pods of a size start.

    Of the pods nothing is known but their cards: they tolerate no taint.

    Args:
        cluster: The cluster.
        ask: The size.
        pods: How many are to start.
        limits: Of the search.

    Raises:
        InputError: something is wrong with the question.
    """
    if pods < 1:
        raise InputError(f"{pods} pods: allowed is 1 or more")
    need_words(cluster)
    limits = limits or Limits()
    request = request_of(ask, cluster.state.resource)
    wish = plain_pod()
    now = count(cluster, request, wish)
    notes = [*unmatched(cluster, request), *_left_out(cluster, wish)]
    if now.pods >= pods:
        text = f"{_pods(now.pods)} now: no move is needed"
        return Advice(
            0,
            (),
            Pods(now.pods),
            Pods(now.pods),
            optimal=True,
            text=text,
            notes=tuple(notes),
            unit_mib=cluster.unit_mib,
        )
    movers = Movers(cluster, Held(cluster), limits.max_priority)
    before = {node.node: node.pods for node in now.nodes}
    found = plan_start(cluster, request, wish, before, pods, movers, limits)
    if found is None:
        return _nothing(cluster, now.pods, notes)
    plan, changed = found
    then = count(changed, request, wish).pods if plan.moves else now.pods
    text = _told_start(now.pods, then, pods, plan)
    plan.notes += notes
    return _advice(cluster, plan, then - now.pods, now.pods, then, text)


def plan_start(
    cluster: Cluster,
    request: PodRequest,
    wish: Wish,
    before: Mapping[str, int],
    pods: int,
    movers: Movers,
    limits: Limits,
) -> "tuple[Plan, Cluster] | None":
    """Look for moves with which so many pods start.

    Args:
        cluster: The cluster.
        request: What such a pod asks for, of one demand.
        wish: What it asks for besides.
        before: Such pods that fit now, by node.
        pods: How many are to start.
        movers: Who may move; those that turn out not to be are noted there.
        limits: Of the search.

    Returns:
        The moves and the cluster after them, as filter sees it; None: none was found.
    """
    for number in range(_TRIES):
        table = Table(cluster)
        goal = Start(table, request, wish, before)
        plan = Planner(cluster, table, goal, movers, limits).start(pods, sum(before.values()))
        found = _checked(cluster, plan, movers, number)
        if found is not None:
            return plan, found
    return None


def _left_out(cluster: Cluster, wish: Wish) -> list[str]:
    """Say which nodes with cards are no places for such a pod: not Ready, or closed by people."""
    nodes, hosts = cluster.state.nodes, cluster.hosts
    usable = [name for name, row in nodes.rows.items() if nodes.usable[row]]
    blocks = hosts.blocks(wish, only=usable)
    notes = []
    not_ready = sorted(name for name, block in blocks.items() if block.reason == NOT_READY)
    if not_ready:
        notes.append(f"{_nodes(not_ready)} left out: not Ready")
    tainted = sorted(name for name, block in blocks.items() if block.reason == TAINT)
    if tainted:
        kinds = sorted({taint for name in tainted for taint in hosts.taints(name, wish)})
        said = f"{', '.join(kinds[:_TAINTS])}{', ...' if len(kinds) > _TAINTS else ''}"
        what = "taint" if len(kinds) == 1 else "taints"
        notes.append(f"{_nodes(tainted)} left out: new pods do not tolerate the {what} {said}")
    cordoned = sorted(name for name, block in blocks.items() if block.reason == CORDONED)
    if cordoned:
        notes.append(f"{_nodes(cordoned)} left out: cordoned")
    return notes


def _nodes(names: Sequence[str]) -> str:
    return f"1 node ({names[0]}) is" if len(names) == 1 else f"{len(names)} nodes are"


def _nothing(cluster: Cluster, pods: int, notes: Sequence[str] = ()) -> Advice:
    return Advice(
        0,
        (),
        Pods(pods),
        Pods(pods),
        optimal=False,
        text="No list of moves was found that filter admits",
        notes=tuple(notes),
        unit_mib=cluster.unit_mib,
    )


def advise_empty(cluster: Cluster, what: str, limits: Limits | None = None) -> Advice:
    """Find the shortest list of moves that empties a card (NODE/NUMBER, or a UUID) or a node.

    Raises:
        InputError: there is no such card or node.
    """
    limits = limits or Limits()
    cards = cards_named(cluster, what)
    held = Held(cluster)
    movers = Movers(cluster, held, limits.max_priority)
    there, stuck = on_cards(cluster, held, movers, cards)
    notes = [f"{name} stays: {reason}" for name, reason in stuck]
    others = others_on(cluster, held, cards)
    if others:
        notes.append(f"{memory(others, cluster.unit_mib)} on these cards are no pod's whose card is known")
    if stuck or not there:
        text = "Not every pod can be moved from" if there or stuck else "No pod is on"
        number = len(there) + len(stuck)
        return Advice(
            0,
            (),
            Pods(number),
            Pods(number),
            optimal=True,
            text=f"{text} {what}",
            notes=tuple(notes),
            unit_mib=cluster.unit_mib,
        )
    for number in range(_TRIES):
        table = Table(cluster, cards)
        goal = Empty(table, cards)
        plan = Planner(cluster, table, goal, movers, limits).empty(there)
        if _checked(cluster, plan, movers, number) is None:
            continue
        left = 0 if plan.moves else len(there)
        if plan.moves:
            text = f"No pod is left on {what} after {_moves(len(plan.moves))}"
            notes.append("keep new pods off it first: gpupack cordon, see docs/ask.md")
        else:
            found = (
                "finds another place" if plan.optimal else "found another place in the lists that were tried"
            )
            text = f"Not every pod on {what} {found}"
        plan.notes += notes
        return _advice(cluster, plan, len(cards) if plan.moves else 0, len(there), left, text)
    return _nothing(cluster, len(there))


def _moves(number: int) -> str:
    return "1 move" if number == 1 else f"{number} moves"


def _pods(number: int) -> str:
    return f"{number or 'No'} such {'pods fit' if number > 1 else 'pod fits'}"


def _told_start(now: int, then: int, wanted: int, plan: Plan) -> str:
    if not plan.moves:
        found = "no list of moves" if plan.optimal else "of the lists of moves that were tried none"
        return f"{_pods(now)} now, and {found} lets another one start"
    said = f"{_pods(now)} now, {then} after {_moves(len(plan.moves))}"
    return said if then >= wanted else f"{said}: fewer than the {wanted} asked for"


def _checked(cluster: Cluster, plan: Plan, movers: Movers, number: int) -> Cluster | None:
    """Ask filter and kube-scheduler's rules whether the moves can be; None: look for others."""
    if not plan.moves:
        return cluster
    then = after(cluster, plan.moves)
    refused = objections(cluster, then, plan.moves)
    # Of two that keep each other off a node one may go there: half of them stay, at last all.
    movers.refused.update(refused[: (len(refused) + 1) // 2] if number < _HALVED else refused)
    return None if refused else then


def _advice(cluster: Cluster, plan: Plan, gained: int, before: int, then: int, text: str) -> Advice:
    notes = list(plan.notes)
    if plan.moves and not plan.optimal:
        verb = "is" if plan.at_least == 1 else "are"
        notes.append(f"a list of fewer moves may exist: at least {_moves(plan.at_least)} {verb} needed")
    if plan.moves and cluster.budgets is None:
        notes.append("PodDisruptionBudgets were not read: the API server may refuse an eviction")
    return Advice(
        gained=gained,
        moves=tuple(move_of(cluster, mover, target) for mover, target in plan.moves),
        before=Pods(before),
        after=Pods(then),
        optimal=plan.optimal,
        at_least=plan.at_least,
        text=text,
        notes=tuple(notes),
        unit_mib=cluster.unit_mib,
    )


def move_of(cluster: Cluster, mover: Mover, target: Target) -> Move:
    """Write a move for people and scripts."""
    source = Seat(mover.node, numbers(cluster, mover.node, mover.units.keys()))
    goes = Seat(target.node, numbers(cluster, target.node, target.placement.charge.keys()))
    meta = mover.pod.metadata
    priority = f", priority {mover.record.priority}" if mover.record.priority else ""
    since = f", running since {mover.record.start_time}" if mover.record.start_time else ""
    text = (
        f"{meta.namespace}/{meta.name} ({memory(mover.total, cluster.unit_mib)}) from {_seat(source)} to "
        f"{_seat(goes)}: it ends, and {mover.owner.kind} {mover.owner.name} starts it again{priority}{since}"
    )
    units = sum(target.placement.charge.values())
    return Move(meta.namespace, meta.name, units, source, goes, text)


def _seat(seat: Seat) -> str:
    cards = "card" if len(seat.cards) == 1 else "cards"
    return f"node {seat.node} {cards} {', '.join(map(str, seat.cards))}"
