"""Pins of pods to nodes: an admission adds node names to the terms of a pod's required node affinity. Pure.

A pod without terms gets one for each node that is named; one with terms gets the first node in each of them,
as the last of its `matchFields`.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from kubeapi.selectors import REQUIRED, NodeTerm


def make_node_affinity(nodes: Iterable[str]) -> dict[str, Any]:
    """Make a node affinity for some nodes: one term each, because a field selector takes one name."""
    return {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [_make_field(name)]} for name in nodes]}}


def add_pins(terms: Sequence[NodeTerm], node: str) -> dict[int, list[dict[str, Any]]]:
    """Make the `matchFields` of each term with the node as the last one, by the term's place.

    A term without any condition selects no node, and is left alone.
    """
    return {
        place: [*(msgspec.to_builtins(field) for field in term.match_fields or ()), _make_field(node)]
        for place, term in enumerate(terms)
        if term.can_match
    }


def list_pinned_nodes(terms: Sequence[NodeTerm] | None) -> tuple[str, ...]:
    """List the nodes that the terms name; empty unless every term that can match names some."""
    able = [term for term in terms or () if term.can_match]
    if not all(term.match_fields for term in able):
        return ()
    values = (field.values or () for term in able for field in term.match_fields or ())
    return tuple(dict.fromkeys(chain.from_iterable(values)))


def remove_pins(terms: Sequence[NodeTerm]) -> tuple[NodeTerm, ...]:
    """Make the terms as they were before the pod was pinned; empty if it had none of its own."""
    pinned = [term for term in terms if term.match_fields]
    if not pinned:
        return tuple(terms)
    before = [msgspec.structs.replace(term, match_fields=(term.match_fields or ())[:-1]) for term in pinned]
    return tuple(before) if all(term.can_match for term in before) else ()


def _make_field(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}
