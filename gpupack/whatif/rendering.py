"""Renders the answers of why, fit and advise as text."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from allocator.quantity import format_memory
from allocator.texts import count_of
from gpupack.terminal import Style, short_age
from gpupack.whatif.answers import Advice, ClosestNode, FitAnswer, FitCount, PodCard, PodExplanation
from kubeapi.errors import make_printable
from kubeapi.metadata import parse_time

_NODES_SHOWN = 10

_STATES: Final = {
    "fits": Style.GREEN,
    "running": Style.GREEN,
    "pending": Style.YELLOW,
    "gated": Style.YELLOW,
    "ending": Style.YELLOW,
    "failed": Style.RED,
    "refused": Style.RED,
}
"""How the sentence about a pod looks on a terminal, as the rows of `gpupack top` do."""
_TITLE: Final = re.compile(r"\S.*:")
_AT: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z) ")


def format_why(answer: PodExplanation, *, colour: bool = False, now_s: float | None = None) -> str:
    """Write the explanation of a pod's state; with `now_s`, Events have ages in place of times."""
    return _joined(_why(answer, now_s), _STATES.get(answer.state, Style.PLAIN) if colour else None)


def _joined(lines: Iterable[str], first: Style | None = None) -> str:
    """Join lines; `first` is how the first of them looks, titles are bold then; None: without colours."""
    written = [make_printable(line) if line.strip() else "" for line in lines]
    if first is not None:
        titles = [Style.BOLD.render(line) if _TITLE.fullmatch(line) else line for line in written[1:]]
        written = [*(first.render(line) for line in written[:1]), *titles]
    return "\n".join(written)


def _age(event: str, now_s: float | None) -> str:
    """Write an Event's age in place of its time."""
    match = _AT.match(event)
    at_s = parse_time(match[1]) if match else None
    if now_s is None or match is None or at_s is None:
        return event
    return f"{short_age(max(0.0, now_s - at_s))} ago: {event[match.end() :]}"


def _why(answer: PodExplanation, now_s: float | None) -> Iterator[str]:
    asks = f", which asks for {answer.asked}," if answer.asked else ""
    yield f"Pod {answer.namespace}/{answer.pod}{asks} {answer.text}."
    for card in answer.cards:
        yield from _card(card, answer.unit_mib)
    if answer.nodes:
        yield ""
        yield "Why not on the other nodes:" if answer.fits else "Why not:"
        for group in answer.nodes:
            names = ", ".join(group.examples) + (", ..." if group.count > len(group.examples) else "")
            where = names if group.best is None else _best(group.best)
            yield f"  {count_of(group.count, 'node')}: {group.text} ({where})"
    if answer.ways_out:
        yield ""
        yield "Ways out, each checked against the cluster as it is:"
        for way in answer.ways_out:
            yield f"  - {way.text}"
            yield from (f"      {move.text}" for move in way.moves)
    yield from _listed("Also:", answer.notes)
    if answer.scheduler:
        yield from _listed("kube-scheduler says:", [answer.scheduler])
    yield from _listed("Events:", [_age(event, now_s) for event in answer.events])


def _best(best: ClosestNode) -> str:
    return f"node {best.node}" if best.card is None else f"node {best.node}, card {best.card}"


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    kept = list(lines)
    if kept:
        yield ""
        yield title
        yield from (f"  - {line}" for line in kept)


def _card(card: PodCard, unit_mib: int) -> Iterator[str]:
    model = f" ({card.model})" if card.model else ""
    yield (
        f"  card {card.card}{model}: promised to it {format_memory(card.promised_units, unit_mib)} of "
        f"{format_memory(card.size_units, unit_mib)}, "
        f"{format_memory(card.used_units, unit_mib)} taken by all together, "
        f"{format_memory(card.free_units, unit_mib)} free"
    )
    used = (
        "what it uses the node has not said"
        if card.used_mib is None
        else f"it used {card.used_mib} MiB lately"
    )
    if card.limit_mib is not None:
        limit = f"and can use {card.limit_mib} MiB at most ({card.held})"
    else:
        limit = (
            "and nothing refuses more than the promise" if card.held else "and not what holds it to its share"
        )
    yield f"    {used}, {limit}"
    if card.compute:
        together = "" if card.compute_in_use is None else f", {card.compute_in_use} percent by all together"
        by = card.compute_held
        holds = f" ({by})" if by == "mps" else ", and nothing refuses more" if by else ""
        yield f"    of its compute {card.compute} percent are promised to it{holds}{together}"
    for other in card.neighbours:
        name = f"{other.namespace}/{other.pod}" if other.namespace else other.pod
        yield f"    beside {name}: {format_memory(other.units, unit_mib)}"


def format_fit(answer: FitAnswer) -> str:
    return _joined(_fit(answer))


def _fit(answer: FitAnswer) -> Iterator[str]:
    yield from _count(answer, answer, "now")
    if answer.after is not None:
        yield ""
        yield from _count(answer.after, answer, "after the change")
        tolerating = answer.after.tolerating_pods - answer.tolerating_pods
        more = f", and {tolerating:+d} of those that tolerate taints" if tolerating else ""
        yield f"  that is {answer.after.pods - answer.pods:+d} pods{more}"
    yield from _listed("Also:", answer.notes)


def _count(count: FitCount, answer: FitAnswer, when: str) -> Iterator[str]:
    percent = answer.asked.partition(" and ")[0].endswith("percent")
    plain, tainted = count.pods, count.tolerating_pods
    counted = plain or tainted
    condition = (
        f", if {'it tolerates' if plain + tainted == 1 else 'they tolerate'} taints" if tainted else ""
    )
    if answer.gang:
        yield _judge_gang(count, answer, when)
    more = f", and {tainted} more" if plain and tainted else ""
    fit = f"{answer.asked} {'fits' if counted == 1 else 'fit'} {when}"
    yield f"{count_of(counted, 'pod')} of {fit}{more}{condition}."
    if " + " not in answer.asked:
        largest, tolerating = (
            f"{units} percent" if percent else format_memory(units, answer.unit_mib)
            for units in (count.largest_units, count.largest_tolerating_units)
        )
        more = f"; {tolerating} if it tolerates taints" if tolerating != largest else ""
        yield f"  The largest request that fits {when}: {largest if count.largest_units else 'none'}{more}"
    shown = sorted(count.nodes, key=lambda node: (-node.pods, node.node))
    for node in shown[:_NODES_SHOWN]:
        tolerations = f", if the pod tolerates {', '.join(node.tolerations)}" if node.tolerations else ""
        yield f"  {node.node}: {node.pods}{tolerations}"
    if len(shown) > _NODES_SHOWN:
        rest = sum(node.pods for node in shown[_NODES_SHOWN:])
        yield f"  and {rest} on {len(shown) - _NODES_SHOWN} more nodes"


def _judge_gang(count: FitCount, answer: FitAnswer, when: str) -> str:
    gang = f"a gang of {answer.gang} pods of {answer.asked}"
    if not count.missing_pods:
        condition = ", if its pods tolerate taints" if count.pods < answer.gang else ""
        return f"There is room for {gang} {when}{condition}."
    most, missing = count.pods_on_empty_nodes, count.missing_pods
    ever = "all of it" if most == answer.gang else f"at most {most} of them, so it never starts"
    return (
        f"There is no room for {gang} {when}: {missing} of them find{'s' if missing == 1 else ''} none. "
        f"Empty nodes take {ever}."
    )


def format_advice(answer: Advice, *, planned: bool = False, colour: bool = False) -> str:
    """Write a list of moves, made or, with `planned`, to be made."""
    reached = Style.GREEN if answer.moves or answer.gained or answer.after.pods else Style.YELLOW
    return _joined(_advice(answer, planned), reached if colour else None)


def _advice(answer: Advice, planned: bool) -> Iterator[str]:
    yield f"{answer.text}."
    if answer.moves:
        yield ""
        yield "Moves, in this order:" if planned else "Moves, in this order; nothing has been done:"
        yield from (f"  {number}. {move.text}" for number, move in enumerate(answer.moves, start=1))
    yield from _listed("Also:", answer.notes)
