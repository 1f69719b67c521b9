"""Says who answers differently."""

from collections.abc import Mapping
from typing import Any

from tests.property.kernel.history import ViolationError


def agree(what: str, answers: Mapping[str, Any]) -> None:
    """Check that all places say the same.

    Raises:
        ViolationError: they do not.
    """
    first, *others = answers.items()
    for place, said in others:
        if said != first[1]:
            raise ViolationError(f"{what}: {first[0]} says {first[1]}, {place} says {said}")
