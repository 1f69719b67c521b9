"""Finds moves that let one waiting pod start."""

from dataclasses import replace
from shlex import quote

from allocator.names import POD_GPU_MODEL
from gpupack.rebalance.advise import describe_move, plan_start
from gpupack.rebalance.movable_pods import MovablePods
from gpupack.rebalance.planning import TOGETHER, SearchLimits
from gpupack.whatif.answers import WayOut
from gpupack.whatif.fit import count_fit
from gpupack.whatif.what_if import PodCardUsage, WhatIf

STEPS = 3_000
MOST_NODES = 500
"""Largest cluster in which `why` searches; in others `gpupack advise` is asked, as `why` answers at once."""


def find_verified_moves(what_if: WhatIf, usage: PodCardUsage) -> WayOut | None:
    """Find a short list of moves with which a pod starts, None: there is none, or it takes long to find."""
    cluster, request = what_if.cluster, what_if.query.request
    if what_if.others or len(request.demands) != 1 or _too_large(what_if):
        return None
    movable_pods = MovablePods(cluster, usage)
    before = {each.node: each.pods for each in count_fit(cluster, request, what_if.requirements).nodes}
    found = plan_start(
        cluster, request, what_if.requirements, before, what_if.pods, movable_pods, SearchLimits(steps=STEPS)
    )
    if found is None or not found[0].moves:
        return None
    plan, then = found
    node = replace(what_if, cluster=then).with_request(request).rank_nodes()
    if not node:
        return None
    moves = tuple(describe_move(cluster, movable, destination) for movable, destination in plan.moves)
    what = "one move lets" if len(moves) == 1 else f"{len(moves)} moves let"
    start = "it start" if what_if.is_alone else f"{what_if.subject} start, the first"
    how = "".join(f" ({note})" for note in plan.notes if note == TOGETHER)
    return WayOut("moves", f"{what} {start} on node {node[0]}{how}:", node=node[0], moves=moves)


def _too_large(what_if: WhatIf) -> bool:
    return len(what_if.cluster.nodes) > MOST_NODES


def explain_skipped_search(what_if: WhatIf) -> str:
    """Say why `find_verified_moves` looks for none, and in a large cluster what does; empty: it does."""
    request = what_if.query.request
    if what_if.others:
        return "moves of other pods are not looked for: the pods of its gang ask for different things"
    if len(request.demands) != 1 or not _too_large(what_if):
        return ""
    command = f"gpupack advise --for {request.effective_units}"
    if request.cards > 1:
        command += f" --cards {request.cards}"
    if request.percent:
        command += " --percent"
    if request.asks_compute:
        command += f" --compute {request.demands[0].compute}"
    pod = what_if.requirements.pod
    models = "" if pod is None else pod.metadata.get_annotation(POD_GPU_MODEL) or ""
    if models:
        command += f" --model {quote(models)}"
    return f"moves of other pods are not looked for here above {MOST_NODES} nodes: `{command}` looks for them"
