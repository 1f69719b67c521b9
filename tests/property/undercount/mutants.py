"""Each accounting rule taken out, one at a time: the model must find a history that breaks the invariant."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from allocator.ledger_book import Holding, Tracked

from allocator.ledger import Ledger
from scheduler_plugin.cluster.rules import Rules
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.commit.binding import Binder
from scheduler_plugin.commit.committer import Commitment
from tests.unit import test_account as account
from tests.unit import test_binding as binding
from tests.unit import test_ledger_charges as charges
from tests.unit import test_ledger_choice as choice
from tests.unit import test_ledger_owners as owners
from tests.unit import test_ledger_release as release
from tests.unit import test_scheduler_state as state

Patch = tuple[type, str, Callable[..., Any]]
"""A shipped class, its method, and what stands in the method's place."""


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: the rule.
        patches: where the shipped classes have it.
        seed: a history that breaks without it; others are tried when this one does not.
        case: in place of a history, a test of one case that fails without it: for rules that mend what takes
            several rare events at once.
    """

    name: str
    patches: tuple[Patch, ...]
    seed: int = 1000
    case: Callable[[], None] | None = None

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped classes for the length of a test."""
        own = {}
        for target, method, instead in self.patches:
            assert callable(getattr(target, method))
            if target is Rules and self.case is None:
                own[method] = instead
            else:
                monkeypatch.setattr(target, method, instead)
        return type("MutantRules", (Rules,), own)


def _mutant(
    name: str,
    target: type,
    method: str,
    instead: Callable[..., Any],
    *,
    seed: int = 1000,
    case: Callable[[], None] | None = None,
) -> Mutant:
    return Mutant(name, ((target, method, instead),), seed, case)


def _nothing(*_: object) -> tuple[()]:
    return ()


def _none(*_: object) -> None:
    return None


def _empty(*_: object, **__: object) -> dict[str, int]:
    return {}


def _nobody(*_: object) -> set[str]:
    return set()


def _no(*_: object) -> bool:
    return False


def _yes(*_: object) -> bool:
    return True


def _give_up_at_once(binder: Binder, commitment: Commitment) -> None:
    binder._roll_back(commitment)


def _a_binding_without_an_answer() -> None:
    asyncio.run(binding.test_a_binding_without_an_answer_keeps_its_cards())


def _a_pod_whose_card_is_taken() -> None:
    asyncio.run(account.test_a_pod_whose_card_is_taken_waits_until_all_pods_are_known())


_MAY_GO = Ledger._may_go


def _gone_from_the_list(ledger: Ledger, holding: Holding) -> bool:
    was_listed = holding.key is not None or holding.order == 0
    return (was_listed and not holding.listed) or _MAY_GO(ledger, holding)


def _over_when_gone(ledger: Ledger, tracked: Tracked, order: int) -> None:
    if tracked.gone_order is None:
        tracked.gone_order = order
    tracked.ended = True


MUTANTS = (
    _mutant("extender: a bound pod counts until its node holds it", Rules, "bound", _nothing, seed=1000),
    _mutant("extender: a commitment counts before it is seen bound", Rules, "taken", _nothing, seed=1000),
    _mutant(
        "extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", _no, seed=1015
    ),
    _mutant(
        "extender: a tombstone stays until the node has seen the end",
        Rules,
        "tombstone_ends",
        _yes,
        seed=1015,
    ),
    _mutant("extender: claims outlive the Node object", Rules, "keeps_without_node", _no, seed=1121),
    _mutant(
        "extender: a Binding without an answer counts",
        Binder,
        "_doubt",
        _give_up_at_once,
        case=_a_binding_without_an_answer,
    ),
    _mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", _empty, seed=1004),
    _mutant("extender: only the node's own holds confirm", Rules, "holds", _yes),
    _mutant(
        "extender: nodes where the kubelet may mistake a pod wait",
        ClusterState,
        "busy_nodes",
        _nobody,
        case=state.test_a_pod_of_the_same_size_and_another_shape_makes_its_node_busy,
    ),
    _mutant(
        "extender: claims on an overfull card count on every card",
        Rules,
        "is_overfull",
        _no,
        case=state.test_claims_on_a_card_that_cannot_serve_them_count_on_every_card,
    ),
    _mutant(
        "ledger: PodResources may only add",
        Ledger,
        "_may_go",
        _gone_from_the_list,
        case=release.test_a_listed_pod_may_be_a_living_one_that_was_not_seen_started,
    ),
    _mutant(
        "ledger: what the list shows stays",
        Ledger,
        "_rule_list_lacks",
        _yes,
        case=release.test_what_the_list_shows_stays_although_no_pod_explains_it,
    ),
    _mutant(
        "ledger: an Allocate that no pod explains gets time",
        Ledger,
        "_rule_owner_is_known_or_proven_absent",
        _yes,
        case=release.test_it_is_not_dropped_while_the_pods_were_listed_before_it,
    ),
    _mutant(
        "ledger: a listed name suggests its pod",
        Ledger,
        "_rule_name_suggests",
        _none,
        case=owners.test_of_two_pods_taken_for_each_other_one_is_listed_first,
    ),
    _mutant("ledger: containers must have ended", Ledger, "_finish", _over_when_gone, seed=1021),
    _mutant("ledger: possible owners must have ended", Ledger, "_possible_owners", _nothing, seed=1260),
    _mutant("ledger: a pod enters holds when proven", Ledger, "_rule_words_contain", _yes, seed=1002),
    _mutant(
        "ledger: admitted pods hold their request",
        Ledger,
        "_rule_admitted_pods_hold_their_request",
        _empty,
        seed=1005,
    ),
    _mutant("ledger: a started pod proves its name", Ledger, "_rule_started_proves", _none),
    _mutant("ledger: reuse proves an init container's IDs", Ledger, "_rule_reuse_proves", _none, seed=1117),
    _mutant("ledger: the end of containers ends the charge", Ledger, "containers_ended", _none),
    _mutant(
        "ledger: IDs given out twice count twice",
        Ledger,
        "_rule_ids_given_out_twice",
        _empty,
        case=charges.test_ids_of_two_living_pods_count_for_both,
    ),
    _mutant(
        "ledger: a pod whose card another got is reserved for",
        Ledger,
        "_rule_reserve",
        _empty,
        case=charges.test_a_pod_whose_card_another_got_is_reserved_where_it_goes,
    ),
    _mutant(
        "ledger: words of before the restart stand",
        Ledger,
        "_rule_leftover",
        _empty,
        case=charges.test_words_of_before_stand_for_pods_that_the_api_has_no_more,
    ),
    _mutant(
        "ledger: remembered pods were admitted",
        Ledger,
        "_rule_remembered_pods_were_admitted",
        _none,
        case=charges.test_remembered_pods_hold_their_request_although_the_list_forgot_them,
    ),
    _mutant(
        "ledger: IDs not on offer are in use",
        Ledger,
        "_rule_withheld_is_charged",
        _empty,
        case=charges.test_ids_that_the_kubelet_does_not_offer_are_in_use,
    ),
    _mutant(
        "ledger: a wrong name ends a guess",
        Ledger,
        "_rule_name_contradicts",
        _none,
        case=owners.test_a_guess_for_a_pod_of_another_name_is_taken_back,
    ),
    _mutant(
        "ledger: a guess set right exchanges targets",
        Ledger,
        "_rule_exchange_targets",
        _none,
        case=owners.test_a_target_goes_to_one_that_got_another_card_before_one_that_waits,
    ),
    _mutant(
        "ledger: a pod that has begun is served next",
        Ledger,
        "_begun",
        _none,
        case=choice.test_a_pod_that_has_begun_is_served_before_older_ones,
    ),
    _mutant(
        "ledger: containers are served in their order",
        Ledger,
        "_comes_later",
        _no,
        case=choice.test_a_container_whose_turn_comes_later_is_not_meant,
    ),
    _mutant(
        "ledger: a pod that is gone may still be asking",
        Ledger,
        "_asked_by_the_dead",
        _none,
        case=choice.test_a_pod_that_is_gone_may_be_asking_when_it_is_no_other_pods_turn,
    ),
    _mutant(
        "ledger: what is on offer and nobody's is over",
        Ledger,
        "_spare",
        Ledger._clean,
        case=choice.test_the_assigned_card_goes_before_one_where_a_finished_pods_containers_linger,
    ),
    _mutant(
        "ledger: who goes elsewhere waits for all pods",
        Ledger,
        "displaces",
        _no,
        case=_a_pod_whose_card_is_taken,
    ),
    _mutant(
        "ledger: a started pod got something before its start",
        Ledger,
        "_rule_started_needs_a_holding",
        _none,
        case=owners.test_a_pod_seen_started_takes_what_an_equal_one_seemed_to_get,
    ),
    _mutant(
        "ledger: what the kubelet keeps is not a dead pod's",
        Ledger,
        "_kept_by_the_dead",
        _none,
        case=choice.test_what_is_on_offer_was_rather_that_of_a_pod_known_to_be_over,
    ),
)
