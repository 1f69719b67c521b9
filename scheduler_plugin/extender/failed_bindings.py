"""Nodes on which pods that the queue placed could not be bound: the next node of the list is tried."""

from typing import Final

import numpy as np

from kubeapi.bounded import BoundedDict
from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays

REMEMBERED: Final = 4096
"""Pods whose Binding failed."""

LONGEST_LIST: Final = 4
"""Nodes that the queue names for a pod in batch mode at most: the best and `candidate_lists.OTHERS` more."""


class FailedBindings:
    """FailedBindings is the nodes where a Binding failed, by UID of the pod."""

    def __init__(self) -> None:
        self._nodes: BoundedDict[str, frozenset[str]] = BoundedDict(REMEMBERED)

    def add(self, uid: str, node: str) -> None:
        """Remember a node; when all of the list have had their turn, it is gone through again."""
        failed = self._nodes.get(uid, frozenset())
        self._nodes[uid] = frozenset((node,)) if node in failed else failed | {node}

    def forget(self, uid: str) -> None:
        self._nodes.pop(uid, None)

    def mask_untried(self, nodes: NodeArrays, uid: str, rows: RowArray, fits: BoolArray) -> BoolArray:
        """Leave out where a Binding failed, while some other node of the list fits.

        Args:
            rows: intp[m], nodes that kube-scheduler asks about; of more than a list none is left out.
            fits: bool[m].
        """
        failed = self._nodes.get(uid)
        if failed is None or len(rows) > LONGEST_LIST:
            return fits
        left = fits & np.array([nodes.names[row] not in failed for row in rows.tolist()], dtype=np.bool_)
        return left if left.any() else fits
