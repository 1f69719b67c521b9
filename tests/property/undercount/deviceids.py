"""What the model reads from device IDs, apart from the code under test."""

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
