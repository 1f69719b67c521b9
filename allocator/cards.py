"""A card of a node as the placement code sees it."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Card:
    """Card is a GPU, or an instance of a partitioned GPU, at one moment.

    Attributes:
        index: the driver's number of the card.
        uuid: its UUID, as the driver writes it.
        model: product name; empty if the node does not publish it.
        size_units: schedulable memory in units.
        used_units: units that are taken; may exceed the size while accounts catch up.
        healthy: false takes the card out of placement.
        cordoned: true takes the card out of placement, because a user asked for it.
        numa: NUMA node the card hangs on, None if unknown.
        links: NVLinks to each card of the node, by position in the words; empty if there are none.
    """

    index: int
    uuid: str
    model: str
    size_units: int
    used_units: int
    healthy: bool = True
    cordoned: bool = False
    numa: int | None = None
    links: tuple[int, ...] = ()

    @property
    def free_units(self) -> int:
        """Units that can still be given away: never negative, 0 on an unhealthy or cordoned card."""
        if not self.healthy or self.cordoned:
            return 0
        return max(0, self.size_units - self.used_units)

    def with_free_units(self, units: int) -> "Card":
        """Return the card as if so many of its units were free; 0 makes it full."""
        return replace(self, used_units=self.size_units - units)
