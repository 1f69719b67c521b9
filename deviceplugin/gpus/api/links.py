"""Pairs the cards of one node that are linked to each other (NVLink), from what each end says."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Links = tuple[tuple[str, int], ...]
"""UUIDs of other cards of the node, and how many links lead there; sorted."""


def count_links(
    cards: Iterable[str], direct: Mapping[str, Sequence[str]], switched: Mapping[str, int]
) -> dict[str, Links]:
    """Count the links between every two cards.

    Through switches every card reaches every other one, with as many links as the one of the two with fewer
    has there. Where only one end tells of a direct link it counts all the same.

    Args:
        direct: by card, the card at the other end of each of its links.
        switched: by card, links that end at a switch.
    """
    uuids = sorted(cards)
    ends = {uuid: Counter(direct.get(uuid, ())) for uuid in uuids}
    result = {}
    for uuid in uuids:
        counts = (
            (
                other,
                max(ends[uuid][other], ends[other][uuid])
                + min(switched.get(uuid, 0), switched.get(other, 0)),
            )
            for other in uuids
            if other != uuid
        )
        result[uuid] = tuple((other, count) for other, count in counts if count)
    return result
