"""The ledger of a node: records what happens, keeps the accounts, and answers by the functions on them.

Invariant: the kubelet never has more units for bound pods, now or later, than the words and what the
scheduler assumes add up to.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ledger import charges, release
from allocator.ledger.accounts import NodeAccounts
from allocator.ledger.choice import AllocationRequest
from allocator.ledger.pods import CheckpointEntry, Pod, PodAccount, Units, add
from allocator.names import DEFAULT_CARD_POLICY
from allocator.packing import NodeWords
from allocator.request import WHOLE, PodRequest

UnavailableReason = Literal["unhealthy", "not_enforced", "cordoned", "client_limit", "detached"]
"""Why a card is unavailable: health, no memory limit, a cordon, MPS clients as fit, a released driver."""

_SHOWN_IDS: Final = 4


class Ledger:
    """Keeps a node's accounts. Pure and synchronous: what happens is a call with its time in seconds."""

    def __init__(
        self, cards: Sequence[Card], *, policy: str = DEFAULT_CARD_POLICY, compute_limit: int = WHOLE
    ) -> None:
        self._accounts = NodeAccounts(policy, compute_limit)
        self._out: dict[UnavailableReason, frozenset[str]] = dict.fromkeys(
            get_args(UnavailableReason), frozenset()
        )
        self.set_cards(cards)

    @property
    def accounts(self) -> NodeAccounts:
        """The accounts, to be read only."""
        return self._accounts

    # Cards.

    @property
    def installed(self) -> tuple[Card, ...]:
        """Cards in word order as they are without pods: `used_units` 0."""
        return tuple(self._accounts.cards.values())

    @property
    def cordoned(self) -> frozenset[str]:
        """UUIDs that people keep free, among them such as are no card of this node."""
        return self._out["cordoned"]

    def cards(self) -> tuple[Card, ...]:
        """Return every card in word order, with its charged units as used ones."""
        promised = self.allocated_units()
        return tuple(replace(card, used_units=promised[uuid]) for uuid, card in self._accounts.cards.items())

    def set_cards(self, cards: Sequence[Card]) -> dict[str, Units]:
        """Take another list of cards while pods run; return the units by UID that pods had on lost cards."""
        before = self.allocated_units_by_pod()
        self._accounts.set_cards(cards)
        self.set_unavailable("unhealthy", (card.uuid for card in cards if not card.healthy))
        return {uuid: pods for uuid, pods in before.items() if uuid not in self._accounts.cards}

    def set_healthy(self, uuid: str, healthy: bool) -> None:
        """Take a card in or out; an unhealthy card counts as full."""
        self.set_unavailable(
            "unhealthy", self._out["unhealthy"] - {uuid} if healthy else self._out["unhealthy"] | {uuid}
        )

    def set_unavailable(self, why: UnavailableReason, uuids: Iterable[str]) -> bool:
        """Make exactly these cards unavailable for one reason; return True if these are others than before.

        To the kubelet those are unhealthy that are `unhealthy` or `not_enforced`; the others are only kept
        free of new pods. UUIDs that are no card of this node count once they are.
        """
        out = self._out
        before, out[why] = out[why], frozenset(uuids)
        for uuid, card in self._accounts.cards.items():
            healthy = uuid not in out["unhealthy"] and uuid not in out["not_enforced"]
            is_closed = any(uuid in out[other] for other in ("cordoned", "client_limit", "detached"))
            if (card.healthy, card.is_closed) != (healthy, is_closed):
                self._accounts.cards[uuid] = replace(card, healthy=healthy, is_closed=is_closed)
        return out[why] != before

    def is_unavailable(self, why: UnavailableReason) -> bool:
        """Tell whether every card that has units is unavailable for this reason."""
        with_units = {uuid for uuid, card in self._accounts.cards.items() if card.size_units}
        return bool(self._out[why]) and with_units <= self._out[why]

    def set_unaccounted_use(self, units: Mapping[str, int]) -> bool:
        """Set the units by card in use beyond what is allocated; return True if anything changed."""
        in_use = {uuid: count for uuid, count in units.items() if uuid in self._accounts.cards and count}
        changed, self._accounts.unaccounted_use = in_use != self._accounts.unaccounted_use, in_use
        return changed

    # The kubelet.

    def apply_checkpoint(self, entries: Iterable[CheckpointEntry], now_s: float) -> None:
        """Apply what the kubelet's checkpoint says now, after it was written anew.

        What the checkpoint showed of a pod stays until the pod's charge ends. IDs of cards that this node
        has no more count for nobody.
        """
        accounts = self._accounts
        checkpoint: dict[str, dict[str, frozenset[str]]] = {}
        claimed: dict[str, tuple[Units, set[str]]] = {}
        for entry in entries:
            if entry.compute is not None:
                compute, ids = claimed.setdefault(entry.uid, ({}, set()))
                add(compute, entry.compute)
                ids |= entry.ids
            mine = checkpoint.setdefault(entry.uid, {})
            other = mine.get(entry.container)
            mine[entry.container] = entry.ids if other is None else entry.ids | other
        accounts.checkpoint_read_at_s = now_s
        shown: dict[frozenset[str], tuple[str, str]] = {}
        for uid in accounts.pods.keys() | checkpoint.keys():
            account, mine = self._known(uid), checkpoint.get(uid, {})
            compute, ids = claimed.get(uid, (account.claimed_compute, set()))
            if compute != account.claimed_compute or not ids <= account.claimed_ids:
                account = replace(account, claimed_compute=compute, claimed_ids=account.claimed_ids | ids)
                accounts.replace_pod(account)
            if account.checkpoint_ids != mine:
                shown |= {ids: (uid, c) for c, ids in mine.items() if account.checkpoint_ids.get(c) != ids}
                over = account.ended_at_s if mine or account.ended_at_s is None else now_s
                accounts.replace_pod(
                    replace(account, checkpoint_ids=mine, known_ids=account.known_ids | mine, ended_at_s=over)
                )
        for uid, account in [(uid, account) for uid, account in accounts.pods.items() if account.pending_ids]:
            # What another container turns out to have was not this one's.
            given = {c: ids for c, ids in account.pending_ids.items() if shown.get(ids, (uid, c)) == (uid, c)}
            accounts.replace_pod(replace(account, pending_ids=given))
            if not account.bound and not given:
                accounts.remove_pod(uid)

    def _known(self, uid: str) -> PodAccount:
        """Return the account of a pod by the kubelet's UID, a new one where there is none."""
        account = self._accounts.pods.get(uid)
        return account if account is not None else PodAccount(Pod(uid, "", "", PodRequest(())))

    def read_request(
        self,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
        taken_up: Collection[tuple[str, str]] | None = None,
    ) -> AllocationRequest:
        """Read what the kubelet asks for: exactly `size` of the available IDs, `must_include` among them.

        The IDs are all of units or all of percent: the kubelet asks for each of its resources by itself. IDs
        of cards that this node has no more are not offered. `taken_up` are namespace and name of the pods
        that the kubelet had taken up when it asked.

        Raises:
            LedgerError: an ID that must be included is not available.
        """
        offered, fixed = frozenset(available) & self._accounts.card_of.keys(), frozenset(must_include)
        if not fixed <= offered:
            raise LedgerError(
                f"must_include has {shown(min(fixed - offered))}; allowed: available IDs of this node"
            )
        percent = not self._accounts.percent_ids.isdisjoint(offered)
        return AllocationRequest(self._accounts, offered, fixed, size, percent, taken_up)

    def allocate(
        self, wanted: Collection[str], now_s: float, taken_up: Collection[tuple[str, str]] | None = None
    ) -> tuple[Units, int]:
        """Record an Allocate of IDs that a container was told to prefer.

        Where no container of a known pod asks for it the Allocate has an account of its own, until the
        checkpoint shows its IDs.

        Returns:
            Units by card, in word order, and the percent of compute of each that the container asks for.

        Raises:
            LedgerError: none, or unknown ones.
        """
        accounts, wanted = self._accounts, frozenset(wanted)
        unknown = sorted(wanted.difference(accounts.card_of))
        if not wanted or unknown:
            raise LedgerError(f"Allocate of {shown(unknown[:_SHOWN_IDS])}; allowed: IDs of this node's cards")
        found = (
            None
            if taken_up is None
            else self.read_request(wanted, (), len(wanted), taken_up).find_container()
        )
        if found is not None:
            account, name, compute = found[0], found[1].name, found[1].compute
        else:
            account, name, compute = self._known(f"allocate {now_s} {min(wanted)}"), "", 0
        # What the container had before counts no more: the kubelet had lost it, and it does not run. Nor does
        # what another one had before, if this one is given of it: that one asks too, or runs beside this one.
        kept = {
            other: had
            for other, had in account.known_ids.items()
            if other in account.current_ids or had.isdisjoint(wanted)
        }
        ids = {other: had for other, had in kept.items() if other != name}
        accounts.replace_pod(
            replace(account, known_ids=ids, pending_ids=account.pending_ids | {name: wanted})
        )
        return accounts.units_by_card(wanted), compute

    def apply_kubelet_restart(self) -> None:
        """Apply a restart of the kubelet, which forgot pending IDs; containers may run with them."""
        for account in [account for account in self._accounts.pods.values() if account.pending_ids]:
            self._accounts.replace_pod(replace(account, pending_ids={}, known_ids=account.given_ids))

    def needs_checkpoint_purge(self) -> bool:
        """Tell whether the kubelet should purge its checkpoint: it has entries of pods that ended."""
        return any(release.needs_checkpoint_purge(account) for account in self._accounts.pods.values())

    # The API server.

    def restore_published(self, holds: Mapping[str, Units | None]) -> None:
        """Restore the own Node's `holds` of before this daemon; must come before the first list of pods.

        Where they do not say on which cards a pod is, it counts on all of them.
        """
        sizes = {uuid: card.size_units for uuid, card in self._accounts.cards.items()}
        for uid, units in holds.items():
            account, said = self._known(uid), sizes if units is None else units
            self._accounts.replace_pod(
                replace(account, previously_published={uuid: count for uuid, count in said.items() if count})
            )

    def apply_pod_list(self, pods: Iterable[Pod], began_s: float, now_s: float) -> None:
        """Apply a complete list of the pods with our resource on this node, asked for at `began_s`.

        Known pods that it lacks are gone. The list is believed also with lower versions than those known:
        then etcd was restored from an older copy.
        """
        accounts = self._accounts
        present = set()
        for pod in pods:
            present.add(pod.key)
            self._update(pod, now_s)
        for uid, account in list(accounts.pods.items()):
            # A list older than the checkpoint says nothing of pods that only the checkpoint has shown.
            if uid not in present and (
                account.bound
                or accounts.checkpoint_read_at_s is None
                or accounts.checkpoint_read_at_s <= began_s
            ):
                accounts.replace_pod(
                    replace(account, ended_at_s=now_s if account.ended_at_s is None else account.ended_at_s)
                )
        accounts.listed_at_s = began_s
        accounts.list_count += 1

    def apply_pod(self, pod: Pod, now_s: float) -> None:
        self._update(pod, now_s)

    def remove_pod(self, uid: str, now_s: float) -> None:
        """Apply the deletion of a pod; an unknown UID is ignored."""
        for account in [
            account for account in self._accounts.pods.values() if account.bound and account.pod.uid == uid
        ]:
            self._accounts.replace_pod(replace(account, ended_at_s=now_s))

    def _update(self, pod: Pod, now_s: float) -> None:
        accounts = self._accounts
        words = accounts.remove_pod(pod.uid) if pod.key != pod.uid else None
        if pod.terminal and words is None and pod.key not in accounts.pods:
            return  # its charge has ended
        account = self._known(pod.key)
        if words is not None:
            account = replace(account, previously_published=words.previously_published)
        if not account.bound or account.pod.uid != pod.uid:
            account = replace(
                account,
                bound=True,
                ended_at_s=None,
                known_ids=account.given_ids,
                pending_ids={},
            )
        account = replace(
            account,
            pod=accounts.with_sizes(pod),
            has_run=account.has_run or pod.has_run,
            admitted=account.admitted or pod.admitted or account.previously_published is not None,
            ended_at_s=(now_s if account.ended_at_s is None else account.ended_at_s)
            if pod.terminal
            else None,
        )
        accounts.replace_pod(account)

    # The cgroups.

    def pods_to_probe(self) -> frozenset[str]:
        """Return the UIDs whose cgroups are to be probed: of ended pods, and of those not seen to run."""
        pods = self._accounts.pods.items()
        return frozenset(
            uid
            for uid, account in pods
            if account.ended_at_s is not None or (account.bound and not account.has_run)
        )

    def record_cgroup_probe(self, uids: Collection[str], alive: Collection[str], began_s: float) -> None:
        """Record a probe of the cgroups of `uids` that began at `began_s` and found `alive`."""
        for uid in self._accounts.pods.keys() & frozenset(uids):
            account = self._accounts.pods[uid]
            runs = uid in alive
            self._accounts.replace_pod(
                replace(account, has_run=account.has_run or runs, cgroups_gone_at_s=None if runs else began_s)
            )
            if release.can_release(self._accounts.pods[uid]):
                self._accounts.remove_pod(uid)

    # What can be asked.

    @property
    def is_complete(self) -> bool:
        """True once checkpoint and pods were read since the start: the words may be published."""
        return self._accounts.checkpoint_read_at_s is not None and self._accounts.listed_at_s is not None

    @property
    def is_empty(self) -> bool:
        """True once it is certain that no pod has, or is about to get, anything of any card."""
        on_their_way = self.has_pods_in_flight() or self.unpublished_pods()
        return (
            self.is_complete and not on_their_way and not any(charges.charge_cards(self._accounts).values())
        )

    def has_pods_in_flight(self) -> bool:
        """Tell whether some pod is between Allocate and `holds`."""
        return any(account.units and not account.is_complete for account in self._accounts.pods.values())

    def allocated_units(self) -> Units:
        """Return the units by card that are allocated, at most the card's size."""
        charged = charges.charge_cards(self._accounts)
        return {uuid: min(units, self._accounts.cards[uuid].size_units) for uuid, units in charged.items()}

    def used(self) -> tuple[int, ...]:
        """Units of each card in word order as published."""
        return charges.used_units(self._accounts)

    def make_words(self, unit_mib: int) -> NodeWords:
        """Say what each card has and what of it is used, as published but for the revision, which is 0."""
        sizes = [card.size_units for card in self.installed]
        limit, compute = self._accounts.compute_limit, charges.used_compute(self._accounts)
        return NodeWords.of(unit_mib, sizes, self.used(), 0, limit, compute)

    def offered_compute(self) -> int:
        """Percent of compute that the node offers to Kubernetes' own sums."""
        return charges.offer_compute(self._accounts)

    def allocated_units_by_pod(self) -> dict[str, Units]:
        shares: dict[str, Units] = {uuid: {} for uuid in self._accounts.cards}
        for uid, account in self._accounts.pods.items():
            for uuid, count in charges.charge_pod(self._accounts, account).items():
                shares[uuid][uid] = count
        return shares

    def live_pods_by_card(self) -> dict[str, list[Pod]]:
        """List the pods of each card that hear of its trouble; one that has ended is only charged on."""
        pods = self._accounts.pods
        return {
            uuid: [pods[uid].pod for uid in shares if pods[uid].is_live]
            for uuid, shares in self.allocated_units_by_pod().items()
        }

    def published_holds(self) -> dict[str, dict[int, int]]:
        """Units of the pods that `used` contains, by UID of the API and the card's position in the words."""
        position = {uuid: number for number, uuid in enumerate(self._accounts.cards)}
        return {
            uid: {position[uuid]: count for uuid, count in units.items()}
            for uid, units in charges.charge_published_pods(self._accounts).items()
        }

    def has_unsettled_pods(self) -> bool:
        """Tell whether accounts change without any event: a pod has ended or is unknown."""
        return any(not account.is_live for account in self._accounts.pods.values())

    def has_live_pod(self, uid: str) -> bool:
        """Tell whether a pod with cards is known, by the kubelet's UID, and neither gone nor ended."""
        account = self._accounts.pods.get(uid)
        return account is not None and account.is_live

    def unpublished_pods(self) -> frozenset[str]:
        """Return the UIDs of live pods that `used` does not contain yet."""
        pods = self._accounts.pods.values()
        return frozenset(account.pod.uid for account in pods if account.is_live and not account.is_complete)
