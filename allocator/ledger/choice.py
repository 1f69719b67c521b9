"""Choice of a container's device IDs: the answer of GetPreferredAllocation, which also checks an Allocate."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from allocator.cards import Card
from allocator.errors import CardPolicyError, LedgerError, shown
from allocator.ledger import charges
from allocator.ledger.accounts import NodeAccounts
from allocator.ledger.pods import PodAccount, Units, add
from allocator.names import DEFAULT_CARD_POLICY
from allocator.place import choose_each
from allocator.request import WHOLE, ContainerRequest, Demand, PodRequest


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """A request of the kubelet for one container. The request does not say for which one.

    Attributes:
        offered: device IDs of this node's cards, all of units or all of percent.
        must_include: those of them that must be chosen.
        size: how many IDs are wanted.
        kubelet_pods: namespace and name of the pods that PodResources listed, None if it did not answer.
            The pod that asks is among them, a pod that the kubelet admits later is not.
    """

    accounts: NodeAccounts
    offered: frozenset[str]
    must_include: frozenset[str]
    size: int
    percent: bool
    kubelet_pods: Collection[tuple[str, str]] | None = None

    def find_container(self) -> tuple[PodAccount, ContainerRequest] | None:
        """Find the container that asks, among the pods that the kubelet has listed.

        As a rule all but one of them have what they asked for. Else one that lives; a container that starts
        again in a pod that runs comes last. Where there are several such pods, none is found: what the others
        run with is in use.
        """
        waiting = [
            (account, container)
            for account in self.accounts.pods.values()
            for container in account.pod.request.containers
            # The size comes first: it rules most pods out, and the kubelet waits.
            if container.units == self.size
            and container.name not in account.current_ids
            and self._may_be_of(account)
        ]
        waiting.sort(key=lambda found: (found[0].has_run, not found[0].is_live))
        if not waiting or (waiting[0][0].has_run and waiting[0][0] is not waiting[-1][0]):
            return None
        return waiting[0]

    def _may_be_of(self, account: PodAccount) -> bool:
        if account.pod.request.percent != self.percent:
            return False
        return self.kubelet_pods is None or (account.pod.namespace, account.pod.name) in self.kubelet_pods

    def target_cards(self) -> tuple[str, ...]:
        """Return the cards that the container must get, none if nobody said.

        Where its demand has devices, else where the scheduler said.
        """
        accounts, found = self.accounts, self.find_container()
        if found is not None:
            account, demand = found[0], found[0].pod.request.demand_of(found[1].name)
            cards = accounts.units_of_containers(account.id_sets(demand.containers))
            if target := tuple(cards) or accounts.assigned_cards(account.pod, demand):
                return target
        return tuple(accounts.count_ids(self.must_include))

    def is_expected(self) -> bool:
        """Tell whether a live pod is known that waits for a container of that size.

        Else the view of pods is behind the kubelet's, or the pod is not in the API. Where the container had
        devices before, or the pod was admitted, another one may be asking, perhaps under its name.
        """
        found = self.find_container()
        if found is None or not found[0].is_live:
            return False
        account, container = found
        return not (account.admitted or account.has_run or container.name in account.known_ids)

    def is_unambiguous(self) -> bool:
        """Tell whether another list of pods could change neither who asks, nor its cards, nor their room."""
        return (
            self.is_expected()
            and not self.accounts.has_unlisted_pods
            and bool(self.target_cards())
            and self.has_room()
        )

    def has_ended_pods(self) -> bool:
        """Return True if there are ended pods, whose containers may still run."""
        return any(account.ended_at_s is not None for account in self.accounts.pods.values())

    def has_room(self) -> bool:
        try:
            self.choose_ids()
        except LedgerError:
            return False
        return True

    def choose_ids(self) -> tuple[str, ...]:
        """Choose exactly as many of the offered IDs as are asked for.

        Where the container belongs, or else on the best cards by the card policy: first those that nothing
        else uses.

        Raises:
            LedgerError: no card (or not enough cards) can take the container.
        """
        accounts, found, cards = self.accounts, self.find_container(), self.target_cards()
        account, request, demand = None, PodRequest(()), Demand((), self.size, 1, self.percent, self.size)
        if found is not None:
            account, request = found[0], found[0].pod.request
            demand = request.demand_of(found[1].name)
        elif self.must_include:  # another container of an unknown pod
            pods = accounts.pods.values()
            account = next(
                (pod for pod in pods if self.must_include <= frozenset().union(*pod.current_ids.values())),
                None,
            )
        # What this container takes of each card; the demand may be of several containers.
        each = self.size // demand.cards
        alone = replace(demand, per_card=each, least=each, shares=())
        room = self._room(account, each, belongs=bool(cards))
        cards = cards or self._by_policy(account, room, request, demand)
        fits = len(cards) == demand.cards and accounts.count_ids(self.must_include).keys() <= {*cards}
        if fits and all(room[uuid] >= self._need(account, alone, uuid) for uuid in cards):
            return tuple(text for uuid in cards for text in self._on(uuid)[:each])
        asked = f"{each} {'percent' if self.percent else 'units'} free"
        lack = "no card has" if demand.cards == 1 else f"fewer than {demand.cards} cards have"
        if cards:
            lack = f"cards {shown(list(cards))} do not have"
        raise LedgerError(f"{lack} {asked}; free units by card: {shown([max(0, n) for n in room.values()])}")

    def _need(self, account: PodAccount | None, alone: Demand, uuid: str) -> int:
        """Count the units that a container adds to its pod's on a card, see `NodeAccounts.units_of_pod`."""
        size = self.accounts.cards[uuid].size_units
        units = alone.units_on(size)
        if (
            account is None
            or not self.percent
            or units > size
            or not (account.bound and account.pod.request.shared)
        ):
            return units
        own = self.accounts.count_ids(frozenset().union(*account.current_ids.values()) - self.offered).get(
            uuid, 0
        )
        return (own + alone.per_card) * size // WHOLE - own * size // WHOLE

    def _room(self, account: PodAccount | None, units_each: int, *, belongs: bool) -> Units:
        """Units by card that the container can have beside what others have or may have.

        The kubelet must offer them. Where percent are asked for it must offer as many, since it does not know
        their units. What it has for the pod that asks counts, what it had does not.

        A container that `belongs` may have what the kubelet offers again of pods that ended and are not known
        to run. The kubelet drops those before it asks, and writes its checkpoint after that.
        """
        accounts, counts = self.accounts, self.accounts.count_ids(self.offered)
        taken: Units = dict.fromkeys(accounts.cards, 0)
        for pod in accounts.pods.values():
            gone = pod.ended_at_s is not None and not pod.has_run
            if pod is account or (belongs and gone):
                has = pod.current_ids if pod is account else pod.checkpoint_ids
                add(taken, accounts.units_of_pod(pod, [ids - self.offered for ids in has.values()]))
            else:
                add(taken, charges.charge_pod(accounts, pod))
        room = {}
        for uuid, card in accounts.cards.items():
            offered = counts.get(uuid, 0)
            if self.percent:
                offered = card.size_units if offered >= units_each else 0
            room[uuid] = min(offered, card.size_units - taken[uuid]) if card.healthy else 0
        return room

    def _by_policy(
        self, account: PodAccount | None, room: Units, request: PodRequest, demand: Demand
    ) -> tuple[str, ...]:
        """Choose cards by the scheduler's policy beside what other bound pods wait for; none if none fit.

        Only cards that leave the pod's other containers room count, as the kubelet asks for those later.
        """
        accounts, expected = self.accounts, Units()
        has = {} if account is None else account.current_ids
        later = [
            other
            for other in request.demands
            if other is not demand and has.keys().isdisjoint(other.containers)
        ]
        taken = accounts.units_of_containers(has.values()) if request.rules.apart else {}
        for pod in accounts.pods.values():
            if pod is not account and pod.bound and not pod.is_complete:
                add(expected, pod.pod.assigned_costs or {})
        compute = charges.promised_compute(accounts) if request.asks_compute else {}
        # Nobody is refused for compute here: a card whose compute others have is better than none.
        tries = [(accounts.unaccounted_use, True), (Units(), True), (Units(), False)]
        for used, with_compute in tries if compute else tries[:2]:
            cards = [
                replace(
                    card.with_free_units(max(0, room[uuid] - expected.get(uuid, 0) - used.get(uuid, 0))),
                    compute_used=compute.get(uuid, 0),
                )
                for uuid, card in accounts.cards.items()
            ]
            if request.rules.apart:
                # Another container of the pod has these.
                cards = [card.with_free_units(0) if card.uuid in taken else card for card in cards]
            for demands in ((demand, *later), (demand,)) if later else ((demand,),):
                asked = demands if with_compute else [replace(each, compute=0) for each in demands]
                chosen = self._chosen(cards, asked, request)
                if chosen is not None:
                    return tuple(cards[position].uuid for position in chosen[0])
        return ()

    def _chosen(
        self, cards: Sequence[Card], demands: Iterable[Demand], request: PodRequest
    ) -> list[tuple[int, ...]] | None:
        """Ask the pod's policy or the node's; if its costs are invalid the default, as the pod is bound."""
        asked = [each.need for each in demands]
        policy = request.card_policy or self.accounts.policy
        try:
            return choose_each(cards, asked, policy, request.selector, request.rules)
        except CardPolicyError:
            return choose_each(cards, asked, DEFAULT_CARD_POLICY, request.selector, request.rules)

    def _on(self, uuid: str) -> list[str]:
        """List the offered IDs of one card, those that must be in the answer first."""
        mine = (text for text in self.offered if self.accounts.card_of.get(text) == uuid)
        return sorted(mine, key=lambda text: (text not in self.must_include, len(text), text))
