"""Words that messages for people share."""

from collections.abc import Sequence


def count_of(number: int, noun: str) -> str:
    """Write a number of things: "1 pod", "3 pods"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name_cards(names: Sequence[int | str]) -> str:
    """Name cards by their numbers or UUIDs: "card 3", "cards 0, 1"."""
    return f"card{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"


def list_some(names: Sequence[str], most: int) -> str:
    """List the first names, and how many more there are: "a, b and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
