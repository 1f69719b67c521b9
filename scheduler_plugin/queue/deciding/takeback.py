"""What is taken back: releases that do not end in a Binding, and the pods of drained queues. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from scheduler_plugin.queue.configuration.config import QueueConfig
from scheduler_plugin.queue.deciding.backoffs import Backoffs
from scheduler_plugin.queue.deciding.gangs import Gangs
from scheduler_plugin.queue.entering.entries import Entry, Phase, TakenBack
from scheduler_plugin.queue.sharing.tenants import Tenants

REMOVED_S: Final = (5.0, 60.0)
"""The shortest and the longest pause before it is asked again that a pod be removed."""


class TakeBacks:
    """Finds them. Pods that must go are named until they are gone: a PodDisruptionBudget may protect them.

    Args:
        entries: All pods by UID, kept up to date by the queue.
        tenants: Who has which of them.
        gangs: Gangs of them.
        give_back: Gives a released pod's room to others.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        tenants: Tenants,
        gangs: Gangs,
        give_back: Callable[[Entry, float], None],
    ) -> None:
        self._entries = entries
        self._tenants = tenants
        self._gangs = gangs
        self._give_back = give_back
        self._removals: Backoffs[str] = Backoffs(*REMOVED_S)
        self._refused: list[TakenBack] = []

    def unschedulable(self, entry: Entry, now: float) -> None:
        """kube-scheduler found no node for a released pod."""
        self._give_back(entry, now)
        self._refused.append(TakenBack(entry, "kube-scheduler found no node for it", remove=False))

    def find(self, config: QueueConfig, now: float) -> list[TakenBack]:
        """Find what is taken back now.

        Args:
            config: The configuration.
            now: Seconds.
        """
        self._removals.due(now)
        back = [each for each in self._refused if each.entry.phase is Phase.RELEASED]
        self._refused.clear()
        must_go: dict[str, tuple[Entry, str]] = {}
        for entry in self._late(now - config.bind_within_s):
            why = f"not bound within {config.bind_within_s:g} s of its release"
            remove = config.mode == "batch" and entry.ticket.owned
            if not entry.given_back:
                self._give_back(entry, now)
                if not remove:
                    back.append(TakenBack(entry, why, remove=False))
            if remove:
                must_go[entry.uid] = (entry, why)
        for name in [name for name, form in config.queues.items() if form.stop == "HoldAndDrain"]:
            for uid in self._tenants[name].released:
                must_go[uid] = (self._entries[uid], f"queue {name} is drained")
        back += self._remove(must_go, now)
        for entries, why in self._gangs.half_bound(now, config.gang_within_s):
            for entry in entries:
                if entry.phase is Phase.RELEASED and not entry.given_back:
                    self._give_back(entry, now)
            released = [entry for entry in entries if entry.phase is not Phase.GATED]
            back += [TakenBack(entry, why, remove=entry.ticket.owned) for entry in released]
        return [_once(each) for each in back]

    def _late(self, released: float) -> list[Entry]:
        """Pods that were released at this time at the latest, and are not bound."""
        return [
            entry
            for entry in self._entries.values()
            if entry.phase is Phase.RELEASED
            and not entry.gang
            and not entry.ticket.gated
            and entry.released <= released
        ]

    def _remove(self, must_go: Mapping[str, tuple[Entry, str]], now: float) -> list[TakenBack]:
        """Name the pods that must go and have not been asked to a moment ago."""
        self._removals.keep(must_go)
        back = []
        for uid, (entry, why) in must_go.items():
            if not entry.ticket.ending and not self._removals.pauses(uid):
                again = self._removals.refusals(uid) > 0
                self._removals.refused(uid, now)
                back.append(TakenBack(entry, why, remove=True, again=again))
        return back


def _once(back: TakenBack) -> TakenBack:
    """Say whether it is the first of its release: what has lost its room is removed later, perhaps."""
    first, back.entry.taken_back = not back.entry.taken_back, True
    return replace(back, first=first)
