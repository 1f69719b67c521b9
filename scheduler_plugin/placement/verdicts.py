"""What filter finds: which nodes take a pod now, and why the others do not. Pure.

The extender answers kube-scheduler with it, and the commands that explain and plan ask the same of arrays
that were changed to see what would be.
"""

from collections.abc import Collection

import numpy as np

from scheduler_plugin.cluster.arrays import BoolArray, RowArray
from scheduler_plugin.cluster.nodes import NodeArrays
from scheduler_plugin.placement.filtering import CodeArray, Misfit, fitting, misfits
from scheduler_plugin.placement.query import Query


def busy_rows(nodes: NodeArrays, names: Collection[str]) -> BoolArray | None:
    """Mark the rows where a pod is starting that the kubelet could mistake for the one asked about.

    Args:
        nodes: The arrays.
        names: Of the nodes, as `ClusterState.busy_nodes` says.

    Returns:
        bool[R], None where there are no such nodes.
    """
    if not names:
        return None
    busy = np.zeros(nodes.row_count, dtype=np.bool_)
    busy[[row for name in names if (row := nodes.rows.get(name)) is not None]] = True
    return busy


def takes(nodes: NodeArrays, query: Query, rows: RowArray, busy: BoolArray | None) -> BoolArray:
    """Tell which nodes have the cards, and no pod starting that the kubelet could mistake for this one.

    Args:
        nodes: The arrays.
        query: The pod.
        rows: intp[m], rows in use.
        busy: Of `busy_rows`.

    Returns:
        bool[m].
    """
    fits = fitting(nodes, query, rows)
    if busy is not None:
        fits &= ~busy[rows]
    return fits


def why_not(
    nodes: NodeArrays, query: Query, rows: RowArray, busy: BoolArray | None, held: BoolArray
) -> CodeArray:
    """Say of every node why it does not take a pod.

    Args:
        nodes: The arrays.
        query: The pod.
        rows: intp[m], rows in use, none of which will do.
        busy: Of `busy_rows`.
        held: bool[m], rows that `takes` admits, and that the policy refuses for now.

    Returns:
        int8[m], a `Misfit` each.
    """
    found: CodeArray = np.full(len(rows), Misfit.HELD_BACK, dtype=np.int8)
    out = np.flatnonzero(~held)
    found[out] = misfits(nodes, query, rows[out])
    if busy is not None:
        waiting = out[busy[rows[out]]]
        found[waiting[fitting(nodes, query, rows[waiting])]] = Misfit.BUSY
    return found
