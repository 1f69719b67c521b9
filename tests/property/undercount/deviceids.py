"""What the model reads from device IDs, apart from the code under test."""

from collections import Counter
from collections.abc import Collection, Mapping


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


class UnitsByCard:
    """Counts units by card of IDs that belong together; remembered, for it is asked after every step.

    Args:
        percent: the IDs of percent.
        sizes: units of the cards by UUID.
    """

    def __init__(self, percent: frozenset[str], sizes: Mapping[str, int]) -> None:
        self._percent, self._sizes = percent, sizes
        self._counted: dict[frozenset[str], dict[str, int]] = {}

    def __call__(self, ids: frozenset[str]) -> dict[str, int]:
        if ids not in self._counted:
            cards, shares = (Counter(map(card_of, some)) for some in (ids, ids & self._percent))
            counts = {u: n - shares[u] + shares[u] * self._sizes[u] // 100 for u, n in cards.items()}
            self._counted[ids] = {uuid: count for uuid, count in counts.items() if count}
        return self._counted[ids]


def units_of(devices: Mapping[str, Mapping[str, frozenset[str]]]) -> dict[str, dict[str, dict[str, int]]]:
    """Count device IDs by pod, container and card, for people to read."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for uid, by_container in devices.items():
        for container, ids in by_container.items():
            counts = found.setdefault(uid, {}).setdefault(container, {})
            for text in ids:
                card = card_of(text).rstrip("0") + ("%" if "::p" in text else "")
                counts[card] = counts.get(card, 0) + 1
    return found
