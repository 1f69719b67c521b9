"""Counts a card's use beyond what was allocated to pods; pure.

A card's published use is promised + foreign + beyond promise. Pods may still grow into their promise, so
what others use adds up with it.

- beyond: for each pod `max(0, measured - promised)`, so that one pod's modesty never hides another's excess.
- foreign: what processes of no pod of ours use, and what is measured and is no process's.
- Where processes cannot be told apart: the high-water mark of `measured - promised`, over all pods. While the
  pods use less than promised, the present difference hides foreign use, hence the mark. The mark comes down
  for one reason only: nobody can use more than is measured, so the mark is never above the present
  measurement. A card whose pods have all ended therefore shows exactly what is measured.
- The operating system manages the memory of some cards, as on GH200 and GB200 in NUMA mode. Pages stay there
  after their process has ended, and files are cached there. What no process uses is then `residue`, and
  counts for nobody: the kernel takes it back for who allocates. Residue is known as such only where all
  processes can be told apart and tell what they use. Else it counts as on other cards.
- A small fall waits: use that swings about a whole unit, or about the dead band, would have the Node written
  at every look.
- Dead band: without any foreign process, up to 256 MiB in all cost nothing (the context of an idle card).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.gpus.api.source import GpuSample

DEAD_BAND_MIB = 256

FALL_MIB = 256
FALL_S = 60.0
"""A fall of less than so many MiB is published once it has lasted for so long; what rises is at once."""

_FOREIGN = None


@dataclass(frozen=True, slots=True)
class UnaccountedUse:
    """The use of one card, and the part of it that no pod was allocated.

    Attributes:
        foreign_mib: MiB used by processes that belong to no pod of ours, after the dead band.
        beyond_mib: MiB that our pods use beyond their promises, after the dead band.
        mark_mib: the least that a sample without distinguishable processes will count; carried along.
        residue_mib: MiB that no process uses and that do not count, because the operating system keeps them.
    """

    uuid: str
    measured_mib: int
    foreign_mib: int
    beyond_mib: int
    mark_mib: int
    residue_mib: int = 0

    def extra_units(self, unit_mib: int) -> int:
        """Return the units to publish on top of the promised ones, rounded up."""
        return -(-(self.foreign_mib + self.beyond_mib) // unit_mib)


class PublishedUnits:
    """Rounds the use of cards up to units, and remembers what was published of each."""

    def __init__(self, unit_mib: int, clock: Callable[[], float]) -> None:
        self._unit_mib = unit_mib
        self._clock = clock
        self._held: dict[str, tuple[int, float]] = {}

    def round_up(self, uses: Iterable[UnaccountedUse]) -> dict[str, int]:
        """Return the units to publish of all cards, by UUID."""
        now_s = self._clock()
        before, self._held = self._held, {}
        for use in uses:
            units = use.extra_units(self._unit_mib)
            held, needed_s = before.get(use.uuid, (0, now_s))
            if units < held and now_s - needed_s < FALL_S and self._is_small_fall(use, held):
                self._held[use.uuid] = held, needed_s
            else:
                self._held[use.uuid] = units, now_s
        return {uuid: units for uuid, (units, _) in self._held.items()}

    def _is_small_fall(self, use: UnaccountedUse, held: int) -> bool:
        # The mark has what the dead band takes away; where it is 0 nobody uses anything any more.
        used_mib = use.foreign_mib + use.beyond_mib
        return use.mark_mib > 0 and used_mib + FALL_MIB > (held - 1) * self._unit_mib


def measure_unaccounted_use(
    sample: GpuSample,
    owners: Mapping[int, str | None],
    promised_mib: Mapping[str, int],
    previous: UnaccountedUse | None = None,
) -> UnaccountedUse:
    """Judge one measurement of one card.

    Args:
        owners: pid -> UID of its pod, None when it belongs to no pod; absent when that is not known.
        promised_mib: UID -> MiB promised to that pod on this card, for every pod with a promise there. The
            mapping should not be older than the sample: a promise that ended meanwhile would look foreign
            once.
        previous: this function's last answer for the card, which stands if the measurement failed.
    """
    if sample.error is not None:
        return previous or UnaccountedUse(sample.uuid, 0, 0, 0, 0)
    by_owner: dict[str | None, int] = {_FOREIGN: 0}
    unmeasured: set[str | None] = set()
    foreign_there = False
    told_apart = sample.processes is not None
    for process in sample.processes or ():
        if process.pid not in owners:
            told_apart = False
            continue
        owner = owners[process.pid]
        owner = owner if owner in promised_mib else _FOREIGN
        foreign_there |= owner is _FOREIGN
        by_owner[owner] = by_owner.get(owner, 0) + (process.used_mib or 0)
        if process.used_mib is None:
            unmeasured.add(owner)
    residual_mib = max(0, sample.used_mib - sum(by_owner.values()))
    told_apart = told_apart and len(unmeasured) <= 1
    residue_mib = residual_mib if sample.keeps_pages and told_apart and not unmeasured else 0
    residual_mib -= residue_mib
    if told_apart:
        # What one owner alone did not tell is the rest; without such an owner the rest is nobody's.
        by_owner[next(iter(unmeasured), _FOREIGN)] += residual_mib
    foreign_mib = by_owner.pop(_FOREIGN)
    beyond_mib = sum(max(0, used - promised_mib[str(owner)]) for owner, used in by_owner.items())
    if told_apart:
        mark_mib = foreign_mib + beyond_mib
    else:
        difference_mib = sample.used_mib - sum(promised_mib.values())
        before_mib = previous.mark_mib if previous else 0
        mark_mib = max(min(max(before_mib, difference_mib), sample.used_mib), foreign_mib + beyond_mib)
        foreign_mib = mark_mib - beyond_mib
    if not foreign_there and foreign_mib + beyond_mib <= DEAD_BAND_MIB:
        foreign_mib = beyond_mib = 0
    return UnaccountedUse(sample.uuid, sample.used_mib, foreign_mib, beyond_mib, mark_mib, residue_mib)
