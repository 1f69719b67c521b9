"""Rules of where pods are served and of what the kubelet is told, taken out one at a time."""

from allocator.ledger import Ledger, charges, choice, places, release
from allocator.ledger.places import Draft
from tests.property.undercount.mutant import OTHERS_BIND_TOO, Mutant
from tests.property.undercount.taken_out import (
    all_of_a_demand,
    charged_with_all,
    ids_add_up,
    never_on_cordoned,
    nobodys_place,
    said_before_written,
    steps,
    void_after_a_time,
)

KUBELET_RESTARTS = {"restart_kubelet": 5, "tear": 3, "sleep": 0.3, "pressure": 20}
CHOICE_MUTANTS = (
    Mutant(
        "node: what a container was given before counts no more",
        Ledger,
        "read_book",
        ids_add_up,
        seed=1036,
        density=2.0,
    ),
    Mutant(
        "node: an Allocate counts until the book was written twice without it",
        release,
        "is_void",
        void_after_a_time,
        seed=1017,
        percent=0.5,
    ),
    Mutant(
        "node: what was written down goes before what the scheduler said",
        charges,
        "_written_down",
        said_before_written,
        seed=52000012,
        more=KUBELET_RESTARTS,
    ),
    Mutant(
        "node: the charge of the pod that asks is no hindrance",
        charges,
        "charged",
        charged_with_all,
        seed=1011,
        more=OTHERS_BIND_TOO,
    ),
    Mutant(
        "node: who was bound before a cordon may go to that card",
        places,
        "by_policy",
        never_on_cordoned,
        seed=18,
    ),
    Mutant(
        "node: a demand that was served in part goes on there",
        places,
        "STEPS",
        steps(Draft.where_it_has_something),
        seed=1045,
    ),
    Mutant("node: who asks goes before who is expected", choice, "_rounds", nobodys_place, seed=1025),
    Mutant(
        "node: a container is served though the rest of its pod has no room",
        choice,
        "product",
        all_of_a_demand,
        seed=53000071,
        density=2.0,
        guessed=True,
    ),
)
