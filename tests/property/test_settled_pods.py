"""What the settled pods come to is what one gets by a look at each of them, after every step of a history.

The judge is the slow definition: the same functions on the same facts, with every pod taken to be open.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from allocator.errors import LedgerError
from allocator.ledger import Ask, Ledger, charges, choice, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.settled import Settled
from deviceplugin.node.telling.explain import explain
from tests.ledger_world import Containers, World, cards, pod
from tests.property.undercount.simulation import Simulation

STEPS = 200
MANY_RUN = {"create": 2.0, "start": 3.0, "run": 4.0, "cgroups": 8.0, "view": 4.0, "finish": 0.1, "sleep": 0.3}


def one_by_one(facts: Facts) -> Facts:
    """The same facts, where no pod is settled."""
    return replace(facts, open=dict(facts.pods), settled=Settled())


def positive(counts: dict[Any, Any]) -> dict[Any, Any]:
    return {key: count for key, count in counts.items() if count}


def answers(facts: Facts, *, percent: bool) -> list[object]:
    """What the kubelet is told of each size, with all IDs offered and with those of each pod that may ask."""
    offered = frozenset(facts.share_of if percent else facts.card_of)
    fixed = {
        frozenset[str](),
        *(one.ids_of(one.ids) & offered for one in facts.pods.values() if one.may_ask and not one.settled),
    }
    found: list[object] = []
    for must in sorted(fixed, key=sorted):
        for size in (2, 3, 5, 8, 33, 50):
            ask = Ask(facts, offered, must, max(size, len(must)), percent)
            who = ask.whose()
            found += [ask.is_displaced(), ask.is_expected(), who and (who[0].pod.key, who[1])]
            try:
                found.append(choice.prefer(ask))
            except LedgerError as error:
                found.append(str(error))
    return found


def of_charges(facts: Facts) -> object:
    return (
        charges.charged(facts),
        charges.assumed(facts),
        charges.holds(facts),
        charges.used(facts, places.reserved(facts)),
        *(
            positive(charges.booked(facts, percent=percent, wanted=one.ids_of(one.ids)))
            for one in facts.pods.values()
            for percent in (False, True)
        ),
    )


def of_places(facts: Facts) -> object:
    return places.places(facts), places.reserved(facts)


def of_release(facts: Facts) -> object:
    return release.stale(facts, 1e9), choice.is_behind(facts)


QUESTIONS: tuple[Callable[[Facts], object], ...] = (of_charges, of_places, of_release, explain)


def check(ledger: Ledger, *, kubelet: bool) -> None:
    """Compare everything, what the kubelet is told only if so asked: that takes long."""
    facts = ledger.facts
    plain = one_by_one(facts)
    for question in QUESTIONS:
        assert question(facts) == question(plain), question
    if kubelet:
        for percent in (False, True):
            assert answers(facts, percent=percent) == answers(plain, percent=percent)
    assert facts.open == {uid: one for uid, one in facts.pods.items() if not one.settled}
    bound = [one for one in facts.pods.values() if one.live and not one.missing]
    assert ledger.allocations() == positive({one.pod.uid: facts.assignment(one) for one in bound})
    assert ledger.published_holds() == {
        uid: {facts.position[uuid]: count for uuid, count in units.items() if count}
        for uid, units in charges.holds(plain).items()
    }
    assert ledger.unheld() == {
        one.pod.uid for one in facts.pods.values() if one.live and not charges.complete(one)
    }


class Crowd:
    """Many pods of one node, most of them settled; the kubelet may serve them in any order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World.of(*(12,) * 5)
        self.names = iter(range(10_000))
        self.gone: set[str] = set()

    def bind(self) -> None:
        some, count = self.random.sample([f"c{n}" for n in range(5)], 2), self.random.choice((1, 1, 1, 2))
        two: Containers = [("a", 2, "init"), ("b", 2, "main")]
        units = self.random.choice((2, 2, 2 + count % 2, two if count == 1 else 2))
        on = self.random.choice((some, some, some, ()))[:count]
        self.world.bind(pod(f"p{next(self.names)}", units, *on, count=count))

    def admit(self) -> None:
        served = {uid for uid, _ in self.world.book}
        for uid in self.random.sample(sorted(self.world.pods.keys() - served), 1):
            with suppress(LedgerError):
                self.world.admit(uid)

    def admit_elsewhere(self) -> None:
        """The kubelet does not ask what is preferred, as where one card has what the init container had."""
        served = {uid for uid, _ in self.world.book}
        for uid in self.random.sample(sorted(self.world.pods.keys() - served), 1):
            asking = self.world.pods[uid].request
            free = sorted(
                text for text in self.world.offered() if text.startswith(f"c{self.random.randrange(5)}:")
            )
            if asking.cards == 1 and not asking.shared and len(free) >= asking.effective_units:
                self.world.allocate(frozenset(free[: asking.effective_units]), (uid, "main"))

    def begin(self) -> None:
        """An Allocate that the book does not show yet."""
        with suppress(LedgerError):
            self.world.allocate(self.world.choose(2))

    def look(self) -> None:
        self.world.look(*(uid for uid, _ in self.world.book if uid not in self.gone))

    def delete(self) -> None:
        for uid in self.random.sample(sorted(self.world.pods), 1):
            self.world.delete(uid)
            self.gone.add(uid)

    def drop(self) -> None:
        for uid in self.random.sample(sorted(self.gone), 1):
            self.world.drop(uid)

    def pass_time(self) -> None:
        self.world.now += 6.0
        self.world.ledger.settle(self.world.now)

    def lose_book(self) -> None:
        """The kubelet gives out the same IDs again, while containers still run with them."""
        self.world.book = {}
        self.world.write()

    def restart_kubelet(self) -> None:
        self.world.ledger.kubelet_restarted()

    def change_cards(self) -> None:
        sizes = [self.random.choice((0, 12, 12, 13)) for _ in range(5)]
        self.world.ledger.set_cards([card for card in cards(*sizes) if card.size_units])

    def step(self) -> None:
        often = (self.bind, self.admit, self.admit_elsewhere, self.look)
        seldom = (self.begin, self.delete, self.drop, self.pass_time, self.world.sync)
        rare = (self.lose_book, self.restart_kubelet, self.change_cards)
        weights = [8] * len(often) + [2] * len(seldom) + [0.2] * len(rare)
        with suppress(ValueError):  # nobody to take
            self.random.choices((*often, *seldom, *rare), weights)[0]()


@pytest.mark.parametrize("seed", range(3))
def test_many_settled_pods_together_are_what_they_are_one_by_one(seed: int) -> None:
    crowd, most = Crowd(seed), 0
    for number in range(STEPS):
        crowd.step()
        check(crowd.world.ledger, kubelet=number % 25 == 0)
        most = max(most, len(crowd.world.ledger.facts.settled.shares))
    assert most >= 10


@pytest.mark.parametrize("seed", [3, 21])
def test_settled_pods_of_a_cluster_together_are_what_they_are_one_by_one(seed: int) -> None:
    simulation, most = Simulation(seed, density=0.5, more=MANY_RUN, percent=0.5), 0
    for number in range(3 * STEPS):
        simulation.step()
        for node in simulation.nodes:
            check(node.daemon.ledger, kubelet=number % 25 == 0)
            most = max(most, len(node.daemon.ledger.facts.settled.shares))
    assert most >= 1
    simulation.end_all()
    for node in simulation.nodes:
        kept = node.daemon.ledger.facts.settled
        assert (kept.shares, kept.ids) == ({}, {})
        assert not any(any(units.values()) for units in kept.units)
