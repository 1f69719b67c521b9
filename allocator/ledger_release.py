"""When a charge ends: never on the word of one source alone."""

from allocator.ledger_book import Holding, Mark, Slot, Tracked
from allocator.ledger_charges import Charges


class Releases(Charges):
    """Rules that let go. A holding goes when the list lacks it and every pod that may own it has ended."""

    def _settle_releases(self) -> None:
        """Drop every charge that nothing supports any more, then the pods that nothing refers to."""
        self._holdings = [h for h in self._holdings if not self._may_go(h)]
        self._drop_withheld()
        for tracked in list(self._pods.values()):
            if tracked.ended and not self._owned(tracked.pod.uid):
                del self._pods[tracked.pod.uid]
                self._doubted = {slot for slot in self._doubted if slot.uid != tracked.pod.uid}
                self._dead.append(tracked.pod.uid)
        if self._view_mark is not None and self._list_mark is not None and not self._strangers:
            self._words_before, self._explained = {}, {}

    def _may_go(self, holding: Holding) -> bool:
        return (
            self._rule_list_lacks(holding)
            and self._rule_owner_is_known_or_proven_absent(holding)
            and all(tracked.ended for tracked in self._possible_owners(holding))
        )

    def _rule_list_lacks(self, holding: Holding) -> bool:
        """A list that began after the Allocate, and after the kubelet's start, does not show the IDs."""
        mark = self._list_mark
        return (
            not holding.listed and mark is not None and mark.order > max(holding.order, self._kubelet_order)
        )

    def _rule_owner_is_known_or_proven_absent(self, holding: Holding) -> bool:
        """Without a certain owner, all pods must have been listed since: the owner may be one not seen yet.

        An Allocate that no list ever showed gets some time besides, for the kubelet may still be at it.
        """
        if holding.certain:
            return True
        view, listed = self._view_mark, self._list_mark
        if view is None or listed is None or self._strangers:
            return False
        if view.order <= max(holding.order, holding.listed_order, self._kubelet_order):
            return False
        return holding.key is not None or listed.at_s >= holding.at_s + self._grace_s

    def _possible_owners(self, holding: Holding) -> list[Tracked]:
        """Pods that the holding can belong to: its certain owner, or all that its name or size allows."""
        if holding.certain and holding.slot is not None:
            owner = self._pods.get(holding.slot.uid)
            return [] if owner is None else [owner]
        if holding.key is not None:
            return [
                tracked
                for tracked in self._named(holding.key)
                if not self._certain(Slot(tracked.pod.uid, holding.key[2]))
            ]
        return [
            tracked
            for tracked in self._pods.values()
            for container in tracked.pod.request.containers
            if container.units == len(holding.ids)
            and not self._certain(Slot(tracked.pod.uid, container.name))
            and not self._has_all(tracked)
            and not (tracked.started_order is not None and tracked.started_order < holding.order)
        ]

    def _has_all(self, tracked: Tracked) -> bool:
        """Whether the proven IDs of a pod are all that it asked for, so that others are not its own."""
        ids = set().union(*(h.ids for h in self._owned(tracked.pod.uid) if h.certain))
        return tracked.pod.request.shared and len(ids) >= tracked.pod.request.effective_units

    def _drop_withheld(self) -> None:
        """Forget withheld IDs that a later complete list lacks, once every admitted pod is accounted for."""
        if self._withheld and not self._strangers and not self._anyone_vague():
            self._withheld = {
                text: since for text, since in self._withheld.items() if not self._outdated(since)
            }

    def _withheld_waits_for_view(self, view: Mark, listed: Mark) -> bool:
        """Withheld IDs would be forgotten if only the list of pods were newer than they are."""
        return any(
            view.order <= since.order and listed.at_s >= since.at_s + self._grace_s
            for since in self._withheld.values()
        )

    def _anyone_vague(self) -> bool:
        """Whether some admitted pod may hold units on a card that nobody knows."""
        return any(t.admitted and not t.ended and self._shortfall(t)[1] for t in self._pods.values())

    def _outdated(self, since: Mark) -> bool:
        view, listed = self._view_mark, self._list_mark
        return (
            view is not None
            and listed is not None
            and min(view.order, listed.order) > max(since.order, self._kubelet_order)
            and listed.at_s >= since.at_s + self._grace_s
        )

    def doubtful(self) -> frozenset[str]:
        """UIDs of finished pods that stay charged until somebody finds their cgroups gone.

        Only those that a list begun after their end does not show: the kubelet starts nothing for them.
        """
        mark = self._list_mark
        if mark is None or mark.order < self._kubelet_order:
            return frozenset()
        finished = {
            tracked.pod.uid
            for tracked in self._pods.values()
            if tracked.gone_order is not None
            and not tracked.ended
            and mark.order > tracked.gone_order
            and not any(h.listed for h in self._owned(tracked.pod.uid))
        }
        orphans = any(h.listed and h.slot is None for h in self._holdings)
        return frozenset(finished if orphans or self._view_mark is None else finished | self._strangers)

    def containers_ended(self, uid: str) -> None:
        """No process of this pod is left; only UIDs that `doubtful` names count."""
        if uid in self.doubtful():
            self._strangers.discard(uid)
            tracked = self._pods.get(uid)
            if tracked is not None:
                tracked.ended = True
            self._settle()

    def _settle(self) -> None:
        """Draw all conclusions from the newest event."""
