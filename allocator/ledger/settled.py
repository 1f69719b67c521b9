"""What the settled pods come to together, so that one change does not take a look at all of them.

A pod is *settled* when nothing of it is under way (`PodFacts.settled`), as nearly all pods of a node are.
What stands here follows from their facts, and is adjusted as pods come in and go out.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from allocator.ledger.pods import PodFacts, Units
from allocator.records import Assignment

Moment = tuple[int, tuple[int, int, str, str], int]
"""The number of events before it; what happened at one moment is sorted by the pod's turn and the demand."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """What one demand of a pod did to its pool of targets, see `places.pools`.

    Attributes:
        shape: names the pool.
        target: cards assigned to it, sorted; none where nobody said.
        got: cards that it got, sorted; none as long as it has none.
        bound: when the target came.
        served: when it got cards.
    """

    shape: Hashable
    target: tuple[str, ...]
    got: tuple[str, ...]
    bound: Moment
    served: Moment

    @property
    def at_home(self) -> bool:
        """It got what was assigned to it: it gave one target to its pool and took the same."""
        return self.got == self.target


@dataclass(frozen=True, slots=True)
class Share:
    """What one settled pod adds.

    Attributes:
        uid: of the API.
        units: by card.
        positions: the same by the card's position in the words.
        assignment: what each container got, None where a card is not known.
        moves: of each of its demands that has a target or cards.
    """

    uid: str
    units: Units
    positions: dict[int, int]
    assignment: Assignment | None
    moves: tuple[Move, ...]


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
    _elsewhere: dict[Move, None] = field(default_factory=dict)
    _at_home: dict[Hashable, dict[Move, None]] = field(default_factory=dict)

    def add(self, one: PodFacts, share: Share) -> None:
        """Take a pod in."""
        self.shares[one.pod.key] = share
        self.units[one.pod.request.percent].update(share.units)
        self.ids.update(one.ids_of(one.ids))
        for move in share.moves:
            self._like(move)[move] = None

    def remove(self, one: PodFacts) -> None:
        """Take a pod out as it was taken in."""
        share = self.shares.pop(one.pod.key)
        _take_off(self.units[one.pod.request.percent], share.units)
        _take_off(self.ids, dict.fromkeys(one.ids_of(one.ids), 1))
        for move in share.moves:
            like = self._like(move)
            del like[move]
            if not like and move.at_home:
                del self._at_home[move.shape, move.got]

    def moves(self, others: Iterable[Move]) -> list[Move]:
        """List what has to be known of the pools of targets besides the moves of `others`.

        A move at home takes what it gives, whenever that is, as long as nobody else takes the same cards.
        """
        displaced = (move for move in (*self._elsewhere, *others) if move.got and not move.at_home)
        taken = {(move.shape, move.got) for move in displaced}
        return [*self._elsewhere, *(move for key in taken for move in self._at_home.get(key, ()))]

    def _like(self, move: Move) -> dict[Move, None]:
        return self._at_home.setdefault((move.shape, move.got), {}) if move.at_home else self._elsewhere


def _take_off(total: Counter[str], less: Mapping[str, int]) -> None:
    """Subtract in place, and keep nothing of what comes to nothing."""
    total.subtract(less)
    for key in less:
        if not total[key]:
            del total[key]
