"""Who must go so that a lender gets back what others borrowed: the fewest, youngest borrowed pods. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler_plugin.placement.preemption import Room as NodeRoom
from scheduler_plugin.placement.preemption import room_on
from scheduler_plugin.queue.configuration.quota import Cohort
from scheduler_plugin.queue.deciding.backoffs import Backoffs
from scheduler_plugin.queue.deciding.gangroom import GangRoom
from scheduler_plugin.queue.deciding.queue import Queue
from scheduler_plugin.queue.entering.entries import Entry, Phase
from scheduler_plugin.queue.places.clearing import Clearing
from scheduler_plugin.queue.places.kept import Kept
from scheduler_plugin.queue.places.wants import GangWants, Needs, Wants
from scheduler_plugin.queue.sharing.tenants import TenantState
from scheduler_plugin.queue.sharing.waiting import Kind, Task

SETTLE_S: Final = 15.0

PROTECTED_S: Final = (15.0, 300.0)
"""The shortest and the longest time for which a pod that could not be evicted is passed over for others."""

MOST_CANDIDATES: Final = 64
"""Borrowed pods of a node that are considered, the youngest ones."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What is to be done for one tenant.

    Attributes:
        tenant: The lender.
        uid: Its pod, or gang, that waits.
        node: Where it will have room; empty: it has room, only quota is missing, or it is a gang.
        victims: Pods to evict.
        kept: Cards to keep free meanwhile for the pods of a gang, by UID.
    """

    tenant: str
    uid: str
    node: str
    victims: tuple[Entry, ...]
    kept: Mapping[str, Kept] = field(default_factory=dict)

    def keep(self, queue: Queue) -> None:
        """Keep what becomes free from others, and nothing else for those who wait."""
        room, entry, spots = queue.room, queue.entries.get(self.uid), self.kept
        if self.node and entry is not None and entry.wants is not None:
            only = np.arange(room.state.nodes.row_count) == room.state.nodes.rows.get(self.node, -1)
            spots = Clearing(room, self.uid).find([(self.uid, entry.wants)], lambda _: only)
        if spots:
            room.kept.give_up(self.uid)
        for uid, kept in spots.items():
            room.kept.put(uid, kept)


@dataclass(slots=True)
class _Going:
    """What was evicted for a tenant.

    Attributes:
        waiting: UID of the pod, or gang, that waits.
        uids: Victims that are still there.
        gone: When the last one went, seconds.
        left: Victims that did not refuse to go.
    """

    waiting: str
    uids: set[str]
    gone: float
    left: int


class Reclaimer:
    """Finds victims, for one pod of a tenant at a time.

    Not before that pod was released: a victim's node needs a moment to say that its cards are free. Or some
    seconds after the last victim went, when something else took the room.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._going: dict[str, _Going] = {}
        self._protected: Backoffs[str] = Backoffs(*PROTECTED_S)

    def find(self, now: float) -> list[Reclaim]:
        """Find what is to be done now; nobody is named twice.

        Args:
            now: Seconds.
        """
        if self._queue.config.reclaim != "evict":
            return []
        self._protected.due(now)
        self._protected.keep(self._queue.entries)
        for lender, going in list(self._going.items()):
            going.uids &= self._queue.entries.keys()
            if going.uids:
                going.gone = now
            elif going.waiting not in self._queue.tenants[lender].waiting or now - going.gone >= SETTLE_S:
                del self._going[lender]
        found = []
        for tenant in self._queue.tenants:
            if tenant.is_open and tenant.name not in self._going:
                reclaim = self._for(tenant, now)
                if reclaim is not None:
                    uids = {victim.uid for victim in reclaim.victims}
                    self._going[tenant.name] = _Going(reclaim.uid, uids, now, len(uids))
                    found.append(reclaim)
        return found

    def refused(self, tenant: str, uid: str, now: float, *, stays: bool = True) -> None:
        """A victim does not go: a PodDisruptionBudget protects it, or it is not what it was.

        Others are looked for: at once where nobody goes, else when it is known what those that went free.

        Args:
            tenant: The lender.
            uid: Of the victim.
            now: Seconds.
            stays: That is certain; it is not where the API server did not answer.
        """
        going = self._going.get(tenant)
        if going is not None and uid in going.uids:
            going.uids.discard(uid)
            if stays:
                going.left -= 1
                self._protected.refused(uid, now)
            if not going.left:
                del self._going[tenant]

    def _for(self, tenant: TenantState, now: float) -> Reclaim | None:
        """Find what is to be done for the oldest pod of a tenant that its own quota covers."""
        task = self._oldest(tenant)
        if task is None:
            return None
        cohort = self._queue.tenants.cohort(tenant.name)
        if cohort is None or not cohort.is_own(tenant.name, self._queue.amounts.least(task.wants)):
            return None
        borrowed = self._borrowed_pods(cohort.borrowers(tenant.name), self._priority(task))
        if not borrowed:
            return None
        if isinstance(task.wants, GangWants):
            return self._for_gang(tenant, cohort, task, task.wants, borrowed, now)
        fits = self._queue.room.fits(task.wants, holder=task.uid)
        if fits.any():
            lacks = cohort.lacks(tenant.name, self._queue.amounts.least(task.wants, fits))
            return self._by_quota(tenant, task, lacks, borrowed) if lacks else None
        return self._by_room(tenant, cohort, task, task.wants, borrowed, now)

    def _oldest(self, tenant: TenantState) -> Task[Needs] | None:
        oldest = [group.oldest() for kind in Kind for group in tenant.waiting.groups(kind)]
        return min(oldest, key=lambda task: task.age_key, default=None)

    def _priority(self, task: Task[Needs]) -> int:
        """The priority of a waiting pod, of a gang the smallest of its pods."""
        uids = [uid for uid, _ in task.wants.members] if isinstance(task.wants, GangWants) else [task.uid]
        entries = (self._queue.entries.get(uid) for uid in uids)
        return min((entry.record.priority for entry in entries if entry is not None), default=0)

    def _borrowed_pods(self, borrowers: Sequence[str], priority: int) -> list[Entry]:
        """The pods with which borrowers exceed their own quota: smallest priority first, then youngest."""
        found: list[Entry] = []
        queue = self._queue
        going = set().union(*(each.uids for each in self._going.values()))
        for name in borrowers:
            cohort = queue.tenants.cohort(name)
            left = cohort.accounts[name].borrowed if cohort is not None else 0
            pods = [queue.entries[uid] for uid in queue.tenants[name].released if uid in queue.entries]
            pods.sort(key=lambda entry: (entry.record.priority, -entry.since, entry.uid))
            for entry in pods:
                if left <= 0:
                    break
                if entry.wants is None or entry.phase is not Phase.BOUND or entry.ticket.ending:
                    continue
                if self._protected.pauses(entry.uid):
                    continue
                left -= self._units([entry])
                if entry.uid not in going and entry.record.priority <= priority:
                    found.append(entry)
        return found

    def _units(self, entries: Iterable[Entry]) -> int:
        """Units that pods count for."""
        tenants = self._queue.tenants
        return sum(tenants[entry.holder].released.get(entry.uid, 0) for entry in entries if entry.holder)

    def _by_quota(
        self, tenant: TenantState, task: Task[Needs], lacks: int, borrowed: Iterable[Entry]
    ) -> Reclaim | None:
        """Evict until the lender's own quota is free again."""
        victims: list[Entry] = []
        for entry in borrowed:
            if lacks <= self._units(victims):
                break
            victims.append(entry)
        if self._units(victims) < lacks:
            return None
        kept = [v for v in victims if self._units(victims) - self._units([v]) < lacks] or victims
        return Reclaim(tenant.name, task.uid, "", tuple(kept))

    def _for_gang(
        self,
        tenant: TenantState,
        cohort: Cohort,
        task: Task[Needs],
        wants: GangWants,
        borrowed: Sequence[Entry],
        now: float,
    ) -> Reclaim | None:
        """Evict so that all pods of a gang have room at once, and their quota."""
        queue = self._queue
        queue.state.expire(now)
        room = GangRoom(queue.room, task.uid, queue.amounts.members(wants, task.uid))
        victims = room.victims(_by_node(borrowed)) if room.rest else []
        if victims is None:
            return None
        spots = room.spots(victims)
        if len(spots) < len(wants.members):
            return None
        total = sum(queue.amounts.on_node(each, spots[uid].node) or 0 for uid, each in wants.members)
        if not cohort.is_own(tenant.name, total):
            return None
        lacks = cohort.lacks(tenant.name, total)
        for entry in borrowed:
            if self._units(victims) >= lacks:
                break
            if entry not in victims:
                victims.append(entry)
        if not victims or self._units(victims) < lacks:
            return None
        victims = room.needed(victims, lambda some: self._units(some) >= lacks)
        return Reclaim(tenant.name, task.uid, "", tuple(victims), room.spots(victims))

    def _by_room(
        self,
        tenant: TenantState,
        cohort: Cohort,
        task: Task[Needs],
        wants: Wants,
        borrowed: Sequence[Entry],
        now: float,
    ) -> Reclaim | None:
        """Evict on the node where the fewest pods must go."""
        self._queue.state.expire(now)
        best: tuple[int, str, list[Entry]] | None = None
        for node, candidates in _by_node(borrowed).items():
            units = self._queue.amounts.on_node(wants, node)
            if units is None or not cohort.is_own(tenant.name, units):
                continue
            victims = self._on(node, wants, candidates)
            if victims is not None and cohort.lacks(tenant.name, units) <= self._units(victims):
                rank = (len(victims), node, victims)
                best = rank if best is None or rank[:2] < best[:2] else best
        if best is None:
            return None
        return Reclaim(tenant.name, task.uid, best[1], tuple(best[2]))

    def _on(self, node: str, wants: Wants, candidates: Sequence[Entry]) -> list[Entry] | None:
        """The fewest of some pods of a node that must go for a pod to fit, None where that does not help."""
        queue = self._queue
        if not queue.room.allowed(wants, node):
            return None
        query = queue.room.query(wants)
        room = room_on(queue.state, node, query)
        if room is None:
            return None
        victims: list[Entry] = []
        for entry in candidates:
            if _fits(room, wants, victims, queue):
                break
            victims.append(entry)
        if not _fits(room, wants, victims, queue):
            return None
        for entry in list(victims):
            fewer = [other for other in victims if other is not entry]
            if _fits(room, wants, fewer, queue):
                victims = fewer
        return victims or None


def _by_node(borrowed: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Who may go, by node: not more of one than can be considered."""
    by_node: dict[str, list[Entry]] = {}
    for entry in borrowed:
        on_node = by_node.setdefault(entry.record.node, [])
        if len(on_node) < MOST_CANDIDATES:
            on_node.append(entry)
    return by_node


def _fits(room: NodeRoom, wants: Wants, victims: Collection[Entry], queue: Queue) -> bool:
    uids = [entry.uid for entry in victims]
    return room.has_host(uids) and room.fits(queue.room.query(wants), uids)
