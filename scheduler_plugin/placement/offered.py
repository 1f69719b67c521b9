"""What a cluster has, for somebody whose selector matches none of it. Pure."""

import numpy as np

from allocator.selector import Selector
from scheduler_plugin.cluster.arrays import RowArray
from scheduler_plugin.cluster.nodes import NodeArrays


def offered(nodes: NodeArrays, selector: Selector, rows: RowArray, most: int) -> str:
    """Name what a selector is best compared with: models, or UUIDs where the models are admitted.

    Args:
        nodes: The nodes.
        selector: Admits none of the cards.
        rows: Of the nodes to look at.
        most: Names to give; of the others only the number is told.

    Returns:
        A list for people, empty where neither is known.
    """
    cards = nodes.size[rows] > 0
    present = {nodes.model_names[at] for at in np.unique(nodes.model[rows][cards]).tolist() if at >= 0}
    names, what = sorted(present), "models"
    admitted = {model for model in present if model and selector.admits_model(model)}
    if admitted and (selector.uuids or selector.excluded_uuids):
        what = "cards"
        names = sorted(
            uuid
            for row in rows.tolist()
            for uuid, at in zip(nodes.uuids[row], nodes.model[row].tolist(), strict=False)
            if at >= 0 and nodes.model_names[at] in admitted
        )
    shown = ", ".join(name or "no name" for name in names[:most])
    more = len(names) - most
    return shown + (f" and {more} more {what}" if more > 0 else "")
