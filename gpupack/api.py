"""Public interface of `import gpupack`: a cluster read once, questions, policies, the simulator.

All of it is described in docs/python.md. Nothing here changes a cluster.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any

from allocator.errors import shown
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, MAX_UNIT_MIB, POD_GPU_MODEL
from allocator.packing import NodeWords, read_node
from allocator.request import MAX_POD_CARDS, MAX_UNITS
from gpupack.diagnose.why import explain_pod as why_of
from gpupack.errors import InputError
from gpupack.inventory.records import NodeRow
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.whatif.answers import Advice, FitAnswer, PodExplanation, add_notes
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fetching import ClusterSource
from gpupack.whatif.fetching import read_cluster as read_source
from gpupack.whatif.fit import FitQuestion, build_request, require_cards
from gpupack.whatif.fit import answer_fit as fit_of
from gpupack.whatif.gangs import find_rows
from gpupack.whatif.kube_checks import require_of_any_pod
from gpupack.whatif.simulation import make_trace
from gpupack.whatif.snapshot import FILES
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.scheduling.placing import score_nodes
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.simulator.app import simulate as run_all
from scheduler_plugin.simulator.options import SimulationOptions


def read(source: str | Path | bytes, *, unit_mib: int | None = None) -> Cluster:
    """Read the output of `kubectl get nodes,pods -A -o json`.

    Args:
        source: Path of the file, or its bytes.
        unit_mib: MiB of a unit of GPU memory, None: what most nodes publish.

    Raises:
        InputError: it is something else, or cannot be read: the OSError is the cause of the error then.
    """
    if unit_mib is not None:
        unit_mib = _whole("unit_mib", unit_mib, MAX_UNIT_MIB)
    return Cluster.from_json(source if isinstance(source, bytes) else _bytes(source), unit_mib=unit_mib)


def _bytes(source: str | Path) -> bytes:
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{source}: {error.strerror or error}") from error
    except ValueError as error:  # no path can be like that
        raise InputError(f"{shown(str(source))}: {error}") from error


def _whole(name: str, value: object, most: int | None = None) -> int:
    """Check a number that a caller gave."""
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 1 or (most is not None and number > most):
        span = "of 1 or more" if most is None else f"from 1 to {most}"
        raise InputError(f"{name} is {shown(value)}; allowed: a whole number {span}")
    return number


def _make_question(units: int, cards: int, model: str, *, percent: bool = False) -> FitQuestion:
    """Make a question of what a caller gave."""
    if not isinstance(model, str):
        raise InputError(f"model is {shown(model)}; allowed: text, as in the annotation {POD_GPU_MODEL}")
    return FitQuestion(
        _whole("units", units, MAX_UNITS), _whole("cards", cards, MAX_POD_CARDS), model, percent
    )


def fetch(kubeconfig: str | None = None, context: str | None = None) -> Cluster:
    """Read all nodes, pods and PodDisruptionBudgets of a cluster; not from within a running event loop.

    Args:
        kubeconfig: Path, None: $KUBECONFIG, ~/.kube/config, or the service account in a pod.
        context: Context of the kubeconfig, None: its current one.

    Raises:
        KubeApiError: no configuration, no server, or no right to list them.
    """
    return asyncio.run(read_source(ClusterSource(None, kubeconfig, context), moves=True))


def decode(node: Mapping[str, Any]) -> NodeWords | None:
    """Decode the packed words of a Node, given as `kubectl get node NAME -o json` prints it.

    Returns:
        Sizes and used units by card, unit and revision; None if the node publishes no words.

    Raises:
        PackingError: the words do not decode.
    """
    return read_node((node.get("status") or {}).get("allocatable") or {})


def cards(cluster: Cluster) -> list[NodeRow]:
    """List every node with its cards, and the pods on them, as `gpupack top` shows them."""
    return cluster.build_inventory()


def why(cluster: Cluster, namespace: str, name: str) -> PodExplanation:
    """Say why a pod waits and what would let it start, or what it has.

    Raises:
        InputError: there is no such pod.
    """
    return why_of(cluster, namespace, name)


def fit(
    cluster: Cluster,
    units: int,
    *more: int,
    cards: int = 1,
    model: str = "",
    percent: bool = False,
    mixed_models: bool = False,
    containers: str = "",
    gang: int = 0,
    compute: int = 0,
) -> FitAnswer:
    """Say how many pods of a size fit now and where, and the largest request that fits.

    Args:
        units: Units of GPU memory over all cards of a pod; percent of a card with `percent`.
        *more: Units of further containers of a pod.
        cards: Cards of each container.
        model: As the annotation gpupack.io/gpu-model.
        percent: `units` are percent of a card.
        mixed_models: Cards of one container may be of several models.
        containers: Where several containers go: `same-card`, `apart` or empty.
        gang: Pods that have to fit at once; the answer says how many of them do not.
        compute: Percent of the compute of each card that each container asks for.

    Raises:
        InputError: something is wrong with the question, or no node has cards.
    """
    ask = _make_question(units, cards, model, percent=percent)
    others = tuple(_whole("units", each, MAX_UNITS) for each in more)
    ask = replace(ask, more=others, mixed_models=mixed_models, containers=containers, compute=compute)
    return fit_of(cluster, replace(ask, gang=_whole("gang", gang, MAX_UNITS)) if gang else ask)


def advise(
    cluster: Cluster, units: int = 0, pods: int = 1, *, cards: int = 1, model: str = "", empty: str = ""
) -> Advice:
    """Find a short list of moves with which pods of a size start, or a card or node becomes empty.

    Nothing is known of the pods that start but their cards: they tolerate no taint.

    Args:
        units: Units of GPU memory over all cards of a pod.
        model: As the annotation gpupack.io/gpu-model.
        empty: In place of units: a node, NODE/NUMBER, or the UUID of a card or its beginning.

    Raises:
        InputError: something is wrong with the question.
    """
    if empty:
        advice = advise_empty(cluster, empty)
    else:
        advice = advise_start(cluster, _make_question(units, cards, model), _whole("pods", pods))
    return add_notes(advice, cluster.list_omissions())


def rank(
    cluster: Cluster, units: int, *, cards: int = 1, model: str = "", policy: str = DEFAULT_NODE_POLICY
) -> list[tuple[str, float]]:
    """Rank the nodes that take a pod of a size, as a node policy does: best first, lower is better.

    Args:
        units: Units of GPU memory over all cards of the pod.
        model: As the annotation gpupack.io/gpu-model.

    Raises:
        InputError: something is wrong with the request.
        PolicyError: there is no such policy.
    """
    nodes = cluster.state.nodes
    request = build_request(_make_question(units, cards, model), cluster.state.resource)
    query = cluster.policies.make_request(nodes, request, ONE_POD)
    rows = find_rows(cluster, query, require_of_any_pod())
    if not len(rows):
        return []
    scores = score_nodes(make_policy(policy), nodes, query, rows).tolist()
    return sorted(zip((nodes.names[row] for row in rows.tolist()), scores, strict=True), key=_by_score)


def _by_score(pair: tuple[str, float]) -> tuple[float, str]:
    return pair[1], pair[0]


def simulate(
    cluster: Cluster,
    policies: Sequence[str] = (DEFAULT_NODE_POLICY,),
    *,
    card_policy: str = DEFAULT_CARD_POLICY,
    inflation: float = 1.3,
    seeds: Sequence[int] = (42,),
    unit_mib: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Run node policies on empty cards of a cluster with its pods, and more like them.

    Args:
        inflation: GPUs to ask for, as a multiple of the cluster's.
        unit_mib: MiB of a unit, as if the daemons ran with that.

    Returns:
        Means over the seeds by policy, with the keys of `mean` in `gpupack simulate --json`.

    Raises:
        InputError: no node has cards, a unit of no whole number of MiB, or a text in place of a list.
        SettingsError: a policy that there is not, or a number out of its range.
        TraceError: no pod asks for GPU memory, or no card has a unit of it.
    """
    require_cards(cluster)
    if isinstance(policies, str):
        raise InputError(f"policies is {shown(policies)}; allowed: a list of names")
    if unit_mib is not None:
        unit_mib = _whole("unit_mib", unit_mib, MAX_UNIT_MIB)
    with tempfile.TemporaryDirectory(prefix="gpupack-") as folder:
        make_trace(cluster, unit_mib).write(Path(folder))
        nodes, pods = (str(Path(folder) / name) for name in FILES)
        options = SimulationOptions(
            nodes, pods, tuple(policies), card_policy, inflation=inflation, seeds=tuple(seeds)
        )
        means: dict[str, dict[str, Any]] = run_all(options)["mean"]
    return means
