"""The models and UUIDs of a cluster, for messages about selectors that match none of them. Pure."""

from dataclasses import replace

import numpy as np

from allocator.errors import shown
from allocator.selector import Selector
from allocator.texts import list_some
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.node_arrays import NodeArrays


def describe_available(nodes: NodeArrays, selector: Selector, rows: RowArray, most: int) -> str:
    """List the models to compare a selector with, or UUIDs if it admits the models."""
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
    listed = list_some([name or "no name" for name in names], most)
    return f"{listed} {what}" if len(names) > most else listed


def widen_patterns(nodes: NodeArrays, selector: Selector, rows: RowArray) -> Selector | None:
    """Put stars around a selector's model patterns that then match an existing model; None if none would."""
    cards = nodes.size[rows] > 0
    models = [nodes.model_names[at] for at in np.unique(nodes.model[rows][cards]).tolist() if at >= 0]
    if any(map(selector.admits_model, models)):
        return None
    wider = [f"*{pattern}*" for pattern in selector.models if "*" not in pattern]
    found = tuple(
        pattern for pattern in wider if any(map(replace(selector, models=(pattern,)).admits_model, models))
    )
    return replace(selector, models=found) if found else None


def explain_widened(wider: Selector | None) -> str:
    """Say which patterns with stars would match, as text to follow a semicolon; empty for none."""
    if wider is None:
        return ""
    return f"; {shown(', '.join(wider.models))} would match: a pattern without stars is the whole name"
