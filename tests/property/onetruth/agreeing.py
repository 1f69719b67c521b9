"""Says who answers differently."""

from collections.abc import Mapping
from typing import Any


class DisagreementError(AssertionError):
    """Two places answer differently."""


def agree(what: str, answers: Mapping[str, Any]) -> None:
    """Check that all places say the same.

    Raises:
        DisagreementError: they do not.
    """
    first, *others = answers.items()
    for place, said in others:
        if said != first[1]:
            raise DisagreementError(f"{what}: {first[0]} says {first[1]}, {place} says {said}")
