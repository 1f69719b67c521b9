"""Each accounting rule taken out, one at a time: the model must find a history that breaks the invariant."""

from allocator.ledger import Ask, Ledger, charges, choice, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts
from scheduler_plugin.cluster import published
from scheduler_plugin.cluster.rules import Rules
from scheduler_plugin.cluster.state import ClusterState
from tests.property.undercount.choice_mutants import CHOICE_MUTANTS
from tests.property.undercount.extender import ModelExtender
from tests.property.undercount.mutant import (
    BUSY_WITHOUT_RESTARTS,
    DEAF_AND_OFTEN_RESTARTED,
    OTHERS_BIND_TOO,
    Mutant,
)
from tests.property.undercount.taken_out import (
    begun_is_complete,
    book_is_all,
    dead_whenever_looked,
    empty,
    forgotten_at_once,
    give_up_at_once,
    heard,
    ids_once,
    may_start_until_heard,
    never_out_of_use,
    no,
    no_cgroup_is_dead,
    nobody,
    none,
    nothing,
    of_any_pod,
    one_share,
    over_is_dead,
    policy_only,
    without_grants,
    yes,
)

MUTANTS = (
    Mutant("extender: a bound pod counts until its node holds it", Rules, "bound", nothing, seed=1001),
    Mutant("extender: a commitment counts before it is seen bound", Rules, "taken", nothing, seed=1001),
    Mutant(
        "extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", no, seed=1001
    ),
    Mutant(
        "extender: a tombstone stays until the node has seen the end",
        Rules,
        "tombstone_ends",
        yes,
        seed=1001,
    ),
    Mutant("extender: claims outlive the Node object", Rules, "keeps_without_node", no, seed=1011),
    Mutant(
        "extender: a Binding without an answer counts", ModelExtender, "_doubt", give_up_at_once, seed=1025
    ),
    Mutant(
        "extender: it reads words anew before it binds",
        ModelExtender,
        "read_words_anew",
        none,
        seed=26311183,
        more=DEAF_AND_OFTEN_RESTARTED,
    ),
    Mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", empty, seed=1006),
    Mutant("extender: only the node's own holds confirm", Rules, "holds", yes, seed=1001),
    Mutant(
        "extender: two shapes of one size are never on their way together",
        ClusterState,
        "busy_nodes",
        nobody,
        seed=1021,
        guessed=True,
    ),
    Mutant(
        "extender: claims on an overfull card count on every card",
        Rules,
        "is_overfull",
        no,
        seed=1051,
    ),
    Mutant(
        "node: what the book showed stays until the pod has ended",
        Ledger,
        "read_book",
        book_is_all,
        seed=1114,
    ),
    Mutant("node: IDs of two pods count for both", charges, "charged", ids_once, seed=1174),
    Mutant(
        "node: an Allocate counts before the book shows it",
        Ledger,
        "allocate",
        forgotten_at_once,
        seed=1579,
        more={**BUSY_WITHOUT_RESTARTS, "read_book": 0.05, "cgroups": 0.3},
        guessed=True,
    ),
    Mutant(
        "node: a pod that runs without entries is charged", charges, "is_lost", no, seed=1000, density=2.0
    ),
    Mutant(
        "node: what holds said before the start is charged",
        Ledger,
        "remember",
        none,
        seed=31000068,
        density=2.0,
    ),
    Mutant(
        "node: a pod enters holds with its last container", charges, "complete", begun_is_complete, seed=1060
    ),
    Mutant(
        "node: words reserve for pods served elsewhere",
        places,
        "reserved",
        empty,
        seed=20258,
        density=0.3,
        stale_words=True,
    ),
    Mutant("node: cgroups must be gone", release, "is_dead", over_is_dead, seed=1042),
    Mutant(
        "node: a look from before the end proves nothing",
        release,
        "is_dead",
        no_cgroup_is_dead,
        seed=7219,
    ),
    Mutant(
        "node: a container about to start gets time",
        release,
        "is_dead",
        dead_whenever_looked,
        seed=7219,
    ),
    Mutant(
        "node: it gets that time from when the kubelet heard of its end",
        release,
        "may_start_until",
        may_start_until_heard,
        seed=16000212,
    ),
    Mutant(
        "node: a lost book heard of nothing",
        PodFacts,
        "may_ask",
        heard,
        seed=23000438,
        guessed=True,
    ),
    Mutant(
        "node: a book that lacks an admitted pod's container is written anew",
        release,
        "is_behind",
        no,
        seed=27000597,
        density=2.0,
    ),
    Mutant(
        "node: forgotten goes first",
        charges,
        "forgotten",
        empty,
        seed=21001363,
        guessed=True,
    ),
    Mutant(
        "node: an Allocate that the book never showed may be of who was deleted since",
        release,
        "may_be_of",
        no,
        seed=19004343,
    ),
    Mutant(
        "node: a pod that is gone keeps its turn",
        release,
        "waits_its_turn",
        no,
        seed=270,
        more=BUSY_WITHOUT_RESTARTS,
    ),
    Mutant(
        "node: who goes elsewhere waits for all pods",
        Ask,
        "is_displaced",
        no,
        seed=495,
        more=OTHERS_BIND_TOO,
        guessed=True,
    ),
    Mutant("node: the book must lack the pod", release, "is_unlisted", yes, seed=1008),
    Mutant(
        "node: a card out of use is full",
        charges,
        "used",
        never_out_of_use,
        seed=22,
        also=(published, "_out_of_service", nobody),
    ),
    Mutant(
        "node: the scheduler's card is taken",
        choice,
        "_cards",
        policy_only,
        seed=6015,
    ),
    Mutant(
        "node: where the book is behind, a pod goes on where it was served last",
        choice,
        "_belongs_on",
        without_grants,
        seed=510231,
    ),
    Mutant(
        "node: the kubelet asks for a pod that it has taken up", Ask, "_may_be_of", of_any_pod, seed=23003879
    ),
    Mutant(
        "node: an unknown pod is waited for",
        Ask,
        "is_expected",
        yes,
        seed=1022,
    ),
    Mutant(
        "node: each container's share is rounded down by itself",
        Facts,
        "of_containers",
        one_share,
        seed=1005,
        percent=0.5,
    ),
    *CHOICE_MUTANTS,
)
