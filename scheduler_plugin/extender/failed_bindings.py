"""Nodes where the Binding of a pod that the queue placed has failed: the next node on its list is tried."""

from typing import Final

import numpy as np

from kubeapi.bounded import BoundedDict
from scheduler_plugin.binding.two_tier import OTHERS
from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays

REMEMBERED: Final = 4096

LONGEST_LIST: Final = 1 + OTHERS
"""Nodes that the queue names for a pod in batch mode: the best and those after it."""


class FailedBindings:
    """Nodes where a Binding failed, by UID of the pod."""

    def __init__(self) -> None:
        self._nodes: BoundedDict[str, frozenset[str]] = BoundedDict(REMEMBERED)

    def add(self, uid: str, node: str) -> None:
        """Remember a node; once every node on the list has failed, the list starts again."""
        failed = self._nodes.get(uid, frozenset())
        self._nodes[uid] = frozenset((node,)) if node in failed else failed | {node}

    def forget(self, uid: str) -> None:
        self._nodes.pop(uid, None)

    def mask_untried(self, nodes: NodeArrays, uid: str, rows: RowArray, fits: BoolArray) -> BoolArray:
        """Leave out nodes where a Binding failed, as long as another node on the list fits.

        Args:
            rows: intp[m], nodes that kube-scheduler asks about; if they are more than a list has, none is
                left out.
            fits: bool[m].
        """
        failed = self._nodes.get(uid)
        if failed is None or len(rows) > LONGEST_LIST:
            return fits
        left = fits & np.array([nodes.names[row] not in failed for row in rows.tolist()], dtype=np.bool_)
        return left if left.any() else fits
