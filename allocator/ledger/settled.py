"""What the settled pods come to together, so that one change does not take a look at all of them.

A pod is *settled* when nothing of it is under way (`PodFacts.settled`), as nearly all pods of a node are.
What stands here follows from their facts, and is adjusted as pods come in and go out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.ledger.pods import PodFacts, Units
from allocator.records import Assignment


@dataclass(frozen=True, slots=True)
class Share:
    """What one settled pod adds.

    Attributes:
        uid: of the API.
        units: by card.
        positions: the same by the card's position in the words.
        assignment: what each container got, None where a card is not known.
    """

    uid: str
    units: Units
    positions: dict[int, int]
    assignment: Assignment | None


@dataclass(slots=True)
class Settled:
    """The settled pods together.

    Attributes:
        shares: by the UID that the kubelet uses.
        units: the sum over pods by card, of pods that ask for units (False) and for percent (True).
        ids: how many of the pods have each device ID.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    units: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    ids: Counter[str] = field(default_factory=Counter)

    def add(self, one: PodFacts, share: Share) -> None:
        """Take a pod in."""
        self.shares[one.pod.key] = share
        self.units[one.pod.request.percent].update(share.units)
        self.ids.update(one.ids_of(one.ids))

    def remove(self, one: PodFacts) -> None:
        """Take a pod out as it was taken in."""
        share = self.shares.pop(one.pod.key)
        _take_off(self.units[one.pod.request.percent], share.units)
        _take_off(self.ids, dict.fromkeys(one.ids_of(one.ids), 1))


def _take_off(total: Counter[str], less: Mapping[str, int]) -> None:
    """Subtract in place, and keep nothing of what comes to nothing."""
    total.subtract(less)
    for key in less:
        if not total[key]:
            del total[key]
