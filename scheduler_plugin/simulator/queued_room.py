"""Room in a replay through queues: cards kept free for pods that wait long, and who must go for a lender."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allocator.exact import fit_together
from allocator.request import Demand
from scheduler_plugin.cache.host_resources import NO_HOST_REQUEST, fits_host
from scheduler_plugin.simulator.cluster import SimulatedCluster, SimulatedPodKind
from scheduler_plugin.simulator.replay import Running


@dataclass(slots=True)
class _SimulatedReservation:
    """Cards of a row that are kept for a pod: units that it needs of each, and that are kept by now."""

    kind: SimulatedPodKind
    row: int
    needs: Mapping[int, int]
    blocked: dict[int, int] = field(default_factory=dict)


class SimulatedReservations:
    """Cards that become free for one pod each, and that others do not get.

    Args:
        cluster: What is kept counts there as used.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, _SimulatedReservation] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._kept

    @property
    def uids(self) -> tuple[str, ...]:
        """UIDs of the tasks for which something is kept."""
        return tuple(self._kept)

    def reserve(self, uid: str, kind: SimulatedPodKind) -> bool:
        """Keep the cards of one node that need the fewest units to become free; False where none will do."""
        arrays = self._cluster.arrays
        if not kind.ask.demands:
            return False
        taken = {kept.row for kept in self._kept.values()}
        best: tuple[int, str, int, Mapping[int, int]] | None = None
        for name, row in arrays.rows.items():
            large = fits_host(arrays, kind.host, row, emptied=True)
            if row in taken or not large or (kind.nodes is not None and not kind.nodes[row]):
                continue
            cards = int(arrays.cards[row])
            free = arrays.free[row, :cards].tolist()
            needs = _cheapest(kind, arrays.size[row, :cards].tolist(), free)
            if needs is not None:
                missing = sum(max(0, units - free[card]) for card, units in needs.items())
                best = (missing, name, row, needs) if best is None or (missing, name) < best[:2] else best
        if best is None:
            return False
        self._kept[uid] = _SimulatedReservation(kind, best[2], best[3])
        self.charge_freed()
        return True

    def charge_freed(self) -> None:
        """Take what has become free of the cards that are kept."""
        for kept in self._kept.values():
            for card in kept.needs:
                units = int(self._cluster.arrays.free[kept.row, card])
                if units:
                    self._cluster.block(kept.row, card, units)
                    kept.blocked[card] = kept.blocked.get(card, 0) + units

    def remove(self, uid: str) -> int | None:
        """Keep nothing for a pod any more; the row where something was."""
        kept = self._kept.pop(uid, None)
        if kept is None:
            return None
        for card, units in kept.blocked.items():
            self._cluster.block(kept.row, card, -units)
        return kept.row

    def list_ready(self) -> list[tuple[str, int]]:
        """Tasks that fit on what is kept for them, and the rows; what they do not need is kept on."""
        found = []
        for uid, kept in self._kept.items():
            row, arrays = kept.row, self._cluster.arrays
            host = fits_host(arrays, kept.kind.host, row)
            if host and all(kept.blocked.get(card, 0) >= units for card, units in kept.needs.items()):
                found.append((uid, kept.row))
        return found


def _cheapest(kind: SimulatedPodKind, sizes: Sequence[int], free: Sequence[int]) -> dict[int, int] | None:
    """Find cards of a node of which the fewest units must become free, the largest demand first.

    Args:
        kind: Of the pod.
        sizes: Of the node's cards.
        free: Units of each.

    Returns:
        Units that the pod needs by card; None where it does not fit even on empty cards.
    """
    demands = kind.query.request.demands if kind.query is not None else ()
    needs: dict[int, int] = {}
    for demand in sorted(demands, key=lambda demand: -demand.per_card):
        costs = []
        for card, size in enumerate(sizes):
            before = needs.get(card, 0)
            after = before + demand.units_on(size)
            if after <= size:
                costs.append((max(0, after - free[card]) - max(0, before - free[card]), card))
        if len(costs) < demand.cards:
            return _anyhow(sizes, demands)
        for _, card in sorted(costs)[: demand.cards]:
            needs[card] = needs.get(card, 0) + demand.units_on(sizes[card])
    return needs


def _anyhow(sizes: Sequence[int], demands: Sequence[Demand]) -> dict[int, int] | None:
    """Find any cards on which a pod fits once they are empty."""
    asked = [(demand.asked, demand.cards) for demand in demands]
    picks = fit_together([(size, size) for size in sizes], asked).picks
    if picks is None:
        return None
    needs: Counter[int] = Counter()
    for demand, positions in zip(demands, picks, strict=True):
        needs.update({card: demand.units_on(sizes[card]) for card in positions})
    return dict(needs)


def victims(
    cluster: SimulatedCluster,
    kind: SimulatedPodKind,
    borrowed: Sequence[Running],
    lacks: Callable[[Collection[Running]], int],
) -> tuple[list[Running], int] | None:
    """The fewest borrowed pods that must go so that a pod of a lender fits and has its quota, and its row.

    Args:
        cluster: Where all of them are.
        kind: Of the lender's pod.
        borrowed: Pods with which others exceed their quota, those that must go first first.
        lacks: Units of quota that the lender misses once some of them are gone.
    """
    by_row: dict[int, list[Running]] = {}
    for pod in borrowed:
        by_row.setdefault(pod.place.row, []).append(pod)
    best: tuple[int, int, list[Running]] | None = None
    for row, pods in sorted(by_row.items()):
        gone = _until_it_fits(cluster, kind, row, pods)
        gone = None if gone is None else with_quota(gone, borrowed, lacks)
        if gone is not None and (best is None or len(gone) < best[0]):
            best = (len(gone), row, gone)
    return (best[2], best[1]) if best is not None else None


def with_quota(
    gone: Sequence[Running], borrowed: Iterable[Running], lacks: Callable[[Collection[Running]], int]
) -> list[Running] | None:
    """Add borrowed pods until the lender has its quota, as few as possible; None where that is in vain."""
    chosen = list(gone)
    rest = [pod for pod in borrowed if pod not in chosen]
    while missing := lacks(chosen):
        left = [lacks([*chosen, pod]) for pod in rest]
        # Whoever is enough alone, the first of them; else whoever brings most.
        if min(left, default=missing) == missing:
            return None
        chosen.append(rest.pop(left.index(min(left))))
    return chosen


def _until_it_fits(
    cluster: SimulatedCluster, kind: SimulatedPodKind, row: int, pods: Sequence[Running]
) -> list[Running] | None:
    """The first pods of a row that must go for another one to fit; None where that is in vain."""
    if kind.nodes is not None and not kind.nodes[row]:
        return None
    for count in range(1, len(pods) + 1):
        if _fits_without(cluster, kind, row, pods[:count]):
            needed = list(pods[:count])
            for pod in reversed(pods[: count - 1]):
                fewer = [other for other in needed if other is not pod]
                if _fits_without(cluster, kind, row, fewer):
                    needed = fewer
            return needed
    return None


def _fits_without(
    cluster: SimulatedCluster, kind: SimulatedPodKind, row: int, gone: Iterable[Running]
) -> bool:
    """Whether a pod fits on a row once some pods are gone."""
    arrays = cluster.arrays
    free = arrays.free[row].tolist()
    freed = NO_HOST_REQUEST
    for pod in gone:
        freed = freed.add(pod.kind.host)
        for card, units in pod.place.charge.items():
            free[card] += units
    if not fits_host(arrays, kind.host, row, freed):
        return False
    if kind.query is None:
        return True
    sizes = arrays.size[row].tolist()
    cards = [(size, units) for size, units in zip(sizes, free, strict=True) if size]
    asked = [(demand.asked, demand.cards) for demand in kind.query.request.demands]
    return fit_together(cards, asked).picks is not None
