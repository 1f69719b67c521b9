"""State of a pod as the API server tells it. Pure."""

from typing import Final

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod, the API's image of a static pod. Its value is the UID that the kubelet uses."""

_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def is_terminal(phase: str) -> bool:
    """Tell whether a pod of this phase has ended for good: no container of it starts again."""
    return phase in _TERMINAL_PHASES
