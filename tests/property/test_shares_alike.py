"""Percent of cards in units: the node charges a pod that is served as the extender charged it."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.ids import PERCENT_IDS, percent_id
from allocator.ledger import CheckpointEntry, Ledger, Pod, charges
from allocator.names import PERCENT_RESOURCE, POD_CARDS
from allocator.place import place
from allocator.records import charge
from allocator.request import parse_pod


@st.composite
def requests(draw):
    """Any request in percent: init containers and sidecars in any order, then mains."""
    kinds = [*draw(st.lists(st.sampled_from(["init", "sidecar"]), max_size=3))]
    count = 1 if "init" in kinds else draw(st.integers(1, 3))

    def container(number, kind):
        percent = draw(st.integers(1, 100 if kind == "init" else 45)) * count
        spec = {"name": f"c{number}", "resources": {"limits": {PERCENT_RESOURCE: str(percent)}}}
        return spec | ({"restartPolicy": "Always"} if kind == "sidecar" else {})

    init = [container(number, kind) for number, kind in enumerate(kinds)]
    mains = [container(9 - number, "main") for number in range(draw(st.integers(1, 3)))]
    try:
        return parse_pod({POD_CARDS: str(count)}, init, mains, "gib")
    except RequestError:
        return None


class Kubelet:
    """Gives a pod's containers percent IDs as a kubelet does: those of init containers are handed on."""

    def __init__(self, ledger, cards, pick):
        self.ledger, self.pick = ledger, pick
        self.free = {percent_id(card.uuid, slot) for card in cards for slot in range(PERCENT_IDS)}
        self.checkpoint = {}

    def serve(self, pod):
        reusable = set()
        for container in pod.request.containers:
            must = frozenset(self.pick(reusable, container.units))
            given = must
            if len(must) < container.units:
                ask = self.ledger.read_request(self.free | must, must, container.units, {("ns", pod.name)})
                given = frozenset(ask.choose_ids())
            self.ledger.allocate(given, 1.0, {("ns", pod.name)})
            self.checkpoint[pod.uid, container.name] = given
            self.free -= given
            reusable = reusable | given if container.kind == "init" else reusable - given
            entries = [
                CheckpointEntry(uid, name, PERCENT_RESOURCE, ids)
                for (uid, name), ids in self.checkpoint.items()
            ]
            self.ledger.apply_checkpoint(entries, 1.0)


@given(
    st.lists(st.sampled_from([3, 5, 14, 15, 39, 44, 79]), min_size=1, max_size=4),
    st.lists(requests(), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_node_and_extender_charge_a_pod_the_same_units(sizes, drawn, random):
    cards = [Card(i, f"c{i}", "M", size, 0) for i, size in enumerate(sizes)]
    ledger = Ledger(cards, policy="least-used")
    ledger.apply_checkpoint([], 0.0)
    ledger.apply_pod_list([], 0.0, 0.0)

    def pick(reusable, most):
        """Any of those that may be used again: a kubelet takes them as its set gives them."""
        return random.sample(sorted(reusable), min(most, len(reusable)))

    kubelet = Kubelet(ledger, cards, pick)
    total = dict.fromkeys((card.uuid for card in cards), 0)
    left = cards
    for number, request in enumerate(drawn):
        placement = None if request is None else place(left, request, "least-used")
        if placement is None:
            continue
        assigned = {
            name: tuple((cards[at].uuid, units) for at, units in shares)
            for name, shares in placement.containers
        }
        expected = {cards[at].uuid: units for at, units in placement.charge.items()}
        assert charge(request, assigned, {card.uuid: card.size_units for card in cards}) == expected
        pod = Pod(f"u{number}", "ns", f"p{number}", request, assigned=assigned)
        ledger.apply_pod(pod, 1.0)
        # Before it is served it waits for what the scheduler said, beside what all others have.
        kubelet.serve(pod)
        assert charges.charge_pod(ledger.accounts, ledger.accounts.pods[pod.uid]) == expected, json.dumps(
            assigned
        )
        for uuid, units in expected.items():
            total[uuid] += units
        assert ledger.allocated_units() == total
        left = [replace(card, used_units=total[card.uuid]) for card in cards]
