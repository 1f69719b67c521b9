"""The moves that let one pod start which waits."""

from dataclasses import replace
from shlex import quote

from allocator.names import POD_GPU_MODEL
from gpupack.rebalance.advise import move_of, plan_start
from gpupack.rebalance.movable_pods import Movers
from gpupack.rebalance.planning import TOGETHER, Limits
from gpupack.whatif.answers import WayOut
from gpupack.whatif.fit import count
from gpupack.whatif.trials import Held, Trial

STEPS = 3_000
MOST_NODES = 500
"""In a larger cluster `gpupack advise` is asked: an answer to `why` is to come at once."""


def moves_for(trial: Trial, held: Held) -> WayOut | None:
    """Find a short list of moves with which a pod starts, None: there is none, or it takes long to find.

    Args:
        trial: The pod; no node takes it.
        held: What pods have.
    """
    cluster, request = trial.cluster, trial.query.request
    if trial.others or len(request.demands) != 1 or _too_large(trial):
        return None
    movers = Movers(cluster, held)
    before = {each.node: each.pods for each in count(cluster, request, trial.wish).nodes}
    found = plan_start(cluster, request, trial.wish, before, trial.pods, movers, Limits(steps=STEPS))
    if found is None or not found[0].moves:
        return None
    plan, then = found
    node = replace(trial, cluster=then).asking(request).nodes()
    if not node:
        return None
    moves = tuple(move_of(cluster, mover, target) for mover, target in plan.moves)
    what = "one move lets" if len(moves) == 1 else f"{len(moves)} moves let"
    start = "it start" if trial.is_alone else f"{trial.who} start, the first"
    how = "".join(f" ({note})" for note in plan.notes if note == TOGETHER)
    return WayOut("moves", f"{what} {start} on node {node[0]}{how}:", node=node[0], moves=moves)


def _too_large(trial: Trial) -> bool:
    return len(trial.cluster.nodes) > MOST_NODES


def not_looked_for(trial: Trial) -> str:
    """Say why `moves_for` looks for none, and in a large cluster what does; empty: it does."""
    request = trial.query.request
    if trial.others:
        return "moves of other pods are not looked for: the pods of its gang ask for different things"
    if len(request.demands) != 1 or not _too_large(trial):
        return ""
    command = f"gpupack advise --for {request.effective_units}"
    if request.cards > 1:
        command += f" --cards {request.cards}"
    if request.percent:
        command += " --percent"
    pod = trial.wish.pod
    models = "" if pod is None else (pod.metadata.annotations or {}).get(POD_GPU_MODEL, "")
    if models:
        command += f" --model {quote(models)}"
    return f"moves of other pods are not looked for here above {MOST_NODES} nodes: `{command}` looks for them"
