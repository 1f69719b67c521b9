"""Room in a replay through queues: cards kept free for pods that wait long, and who must go for a lender."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler_plugin.simulator.cluster import Cluster, PodKind
from scheduler_plugin.simulator.replay import Running


@dataclass(slots=True)
class _Kept:
    """Cards of a row that are kept for a pod, and how many units of each are."""

    kind: PodKind
    row: int
    cards: tuple[int, ...]
    blocked: dict[int, int] = field(default_factory=dict)


class KeptRoom:
    """Cards that become free for one pod each, and that others do not get.

    Args:
        cluster: What is kept counts there as used.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, _Kept] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._kept

    @property
    def uids(self) -> tuple[str, ...]:
        """UIDs of the tasks for which something is kept."""
        return tuple(self._kept)

    def keep(self, uid: str, kind: PodKind) -> bool:
        """Keep the cards of one node that need the fewest units to become free; False where none will do."""
        arrays = self._cluster.arrays
        if not kind.ask.demands:
            return False
        units, count = kind.ask.demands[0]
        taken = {kept.row for kept in self._kept.values()}
        best: tuple[int, str, int, tuple[int, ...]] | None = None
        for name, row in arrays.rows.items():
            large = arrays.cpu_capacity[row] >= kind.ask.cpu_milli
            large &= arrays.memory_capacity[row] >= kind.ask.memory_bytes
            if row in taken or not large or (kind.nodes is not None and not kind.nodes[row]):
                continue
            cards = int(arrays.cards[row])
            free = arrays.free[row, :cards].tolist()
            missing = sorted(
                (max(0, units - free[card]), card) for card in range(cards) if arrays.size[row, card] >= units
            )[:count]
            if len(missing) == count:
                found = (sum(m for m, _ in missing), name, row, tuple(card for _, card in missing))
                best = found if best is None or found < best else best
        if best is None:
            return False
        self._kept[uid] = _Kept(kind, best[2], best[3])
        self.grab()
        return True

    def grab(self) -> None:
        """Take what has become free of the cards that are kept."""
        for kept in self._kept.values():
            for card in kept.cards:
                units = int(self._cluster.arrays.free[kept.row, card])
                if units:
                    self._cluster.block(kept.row, card, units)
                    kept.blocked[card] = kept.blocked.get(card, 0) + units

    def give_up(self, uid: str) -> int | None:
        """Keep nothing for a pod any more; the row where something was."""
        kept = self._kept.pop(uid, None)
        if kept is None:
            return None
        for card, units in kept.blocked.items():
            self._cluster.block(kept.row, card, -units)
        return kept.row

    def ready(self) -> list[tuple[str, int]]:
        """Tasks that fit on what is kept for them, and the rows; what they do not need is kept on."""
        found = []
        for uid, kept in self._kept.items():
            ask, row, arrays = kept.kind.ask, kept.row, self._cluster.arrays
            units = ask.demands[0].units
            host = arrays.cpu_capacity[row] - arrays.cpu_used[row] >= ask.cpu_milli
            host &= arrays.memory_capacity[row] - arrays.memory_used[row] >= ask.memory_bytes
            if host and all(kept.blocked.get(card, 0) >= units for card in kept.cards):
                found.append((uid, kept.row))
        return found


def victims(
    cluster: Cluster, kind: PodKind, borrowed: Sequence[Running], lacks: Callable[[Collection[Running]], int]
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
    cluster: Cluster, kind: PodKind, row: int, pods: Sequence[Running]
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


def _fits_without(cluster: Cluster, kind: PodKind, row: int, gone: Iterable[Running]) -> bool:
    """Whether a pod fits on a row once some pods are gone."""
    arrays, ask = cluster.arrays, kind.ask
    free = arrays.free[row].tolist()
    cpu = int(arrays.cpu_capacity[row] - arrays.cpu_used[row])
    memory = int(arrays.memory_capacity[row] - arrays.memory_used[row])
    for pod in gone:
        cpu += pod.kind.ask.cpu_milli
        memory += pod.kind.ask.memory_bytes
        for card in pod.place.cards:
            free[card] += pod.kind.ask.demands[0].units
    units, count = ask.demands[0] if ask.demands else (0, 0)
    host = cpu >= ask.cpu_milli and memory >= ask.memory_bytes
    return host and sum(each >= units for each in free) >= count
