"""What the model reads from device IDs, apart from the code under test."""

from collections.abc import Collection


def card_of(text: str) -> str:
    """UUID of the card of a device ID, of a unit or of a percent."""
    return text.partition("::")[0]


def joined(sets: Collection[frozenset[str]]) -> list[frozenset[str]]:
    """Unite sets that have something in common, until none have."""
    found = list(sets)
    for ids in sets:
        same = [other for other in found if other & ids]
        found = [other for other in found if not other & ids] + [frozenset().union(*same)]
    return found
