"""Plans which limit a container's cgroup gets on each card; pure.

A cgroup appears before anybody says which container of its pod it is. Until then it gets the least that any
container of the pod was given on the card. That is never more than it may have, and never another pod's.
Until then a limit that is one of the pod's own amounts is left alone. The vendor's toolkit, which knows the
container, may have set it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Grants = Mapping[str, Mapping[str, int]]
"""MiB by container name and card UUID, of one pod."""


@dataclass(frozen=True, slots=True)
class WantedLimit:
    """The limit of one cgroup on one card.

    Attributes:
        accepted: what may stand there instead.
    """

    mib: int
    accepted: frozenset[int]


def plan_limits(grants: Grants, container: str | None) -> dict[str, WantedLimit]:
    """Plan the limits of one cgroup by card UUID; nothing for a container that was given no memory."""
    if container is not None:
        mine = grants.get(container, {})
        return {uuid: WantedLimit(mib, frozenset({mib})) for uuid, mib in mine.items() if mib > 0}
    amounts: dict[str, set[int]] = {}
    for shares in grants.values():
        for uuid, mib in shares.items():
            if mib > 0:
                amounts.setdefault(uuid, set()).add(mib)
    return {uuid: WantedLimit(min(found), frozenset(found)) for uuid, found in amounts.items()}
