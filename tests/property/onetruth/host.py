"""A node of a scene: its cards, its kubelet, and the shipped ledger that publishes words and holds."""

from dataclasses import replace
from typing import Any

from allocator.cards import Card, CardAmounts
from allocator.errors import LedgerError
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.ledger import CheckpointEntry, Ledger, Pod
from allocator.ledger.charges import charge_pod_compute, used_compute
from allocator.names import NODE_HOLDS, PERCENT_RESOURCE, POD_ASSIGNED, resource_name
from allocator.records import Assignment, Holds, dump_holds, load_assigned
from allocator.request import PodRequest, parse_admitted
from tests.cluster_builders import MEMORY, node_object

UNIT_MIB = 1024
LATER_S = 100.0
"""Longer than the ledger waits for anything."""


def find_request(pod: dict[str, Any]) -> PodRequest | None:
    """What the node reads of a pod; None where it asks for nothing by its limits."""
    spec = pod["spec"]
    request, _ = parse_admitted(
        pod["metadata"]["annotations"], spec["initContainers"], spec["containers"], MEMORY
    )
    return request


def request_of(pod: dict[str, Any]) -> PodRequest:
    """What the node reads of a pod that asks by its limits."""
    request = find_request(pod)
    assert request is not None
    return request


def assigned_to(pod: dict[str, Any]) -> Assignment | None:
    """The cards that the Binding of a pod names."""
    text = pod["metadata"]["annotations"].get(POD_ASSIGNED)
    return None if text is None else load_assigned(text)


class Host:
    """A node; what it publishes is written by the shipped ledger.

    Args:
        cards: In word order.

    Attributes:
        serves_claims: Whether pods get their cards by claims.
        cards: The cards as the driver has them now; one that has gone is in none.
        sick: UUIDs of cards that the kubelet does not offer.
        withheld: UUIDs of cards that were not promised, likewise.
        cordoned: UUIDs in the node's annotation.
        checkpoint: The kubelet's checkpoint: device IDs by UID and container.
        spec: `spec` of the Node.
        ready: Its condition.
        plugin: Whether its kubelet has the device plugin.
        shares: Whether that offers percent.
        cpu: Cores.
        tells_units: Whether its holds have units, which an older version did not write.
        tells_compute: Whether its words have compute, likewise.
        compute_limit: Percent of its compute that each card gives away.
    """

    serves_claims = False

    def __init__(self, name: str, cards: list[Card]) -> None:
        self.name = name
        self.cards = cards
        self.ledger = Ledger(cards)
        self.now = 1000.0
        self.sick: frozenset[str] = frozenset()
        self.withheld: frozenset[str] = frozenset()
        self.cordoned: frozenset[str] = frozenset()
        self.checkpoint: dict[tuple[str, str], frozenset[str]] = {}
        self.spec: dict[str, Any] = {}
        self.ready = True
        self.plugin = self.shares = True
        self.cpu = 40
        self.tells_units = self.tells_compute = True
        self.compute_limit = 100
        self._know()
        self.ledger.apply_pod_list([], self.now, self.now)

    # What happens to pods.

    def hear(self, pod: dict[str, Any]) -> None:
        """The daemon learns of a pod that was bound here, or has changed."""
        phase, request = pod["status"]["phase"], self.read_request(pod)
        if request is None:
            return
        self.ledger.apply_pod(
            Pod(
                uid=pod["metadata"]["uid"],
                namespace=pod["metadata"]["namespace"],
                name=pod["metadata"]["name"],
                request=request,
                assigned=assigned_to(pod),
                admitted=phase == "Running",
                has_run=phase == "Running",
                terminal=phase in ("Succeeded", "Failed"),
                awaits_claim=self._awaits_claim(pod),
            ),
            self.now,
        )

    def read_request(self, pod: dict[str, Any]) -> PodRequest | None:
        """What the daemon knows that a pod asks for, or has."""
        return find_request(pod)

    def _awaits_claim(self, pod: dict[str, Any]) -> bool:
        """Whether a pod that asks by its limits has other claims and not yet theirs."""
        del pod
        return False

    def admit(self, pod: dict[str, Any]) -> dict[str, frozenset[str]] | None:
        """The kubelet hands devices to each container of a pod; None where it cannot, and the pod fails."""
        uid, request = pod["metadata"]["uid"], request_of(pod)
        given: dict[str, frozenset[str]] = {}
        reusable: frozenset[str] = frozenset()
        taken_up = {("default", name) for name in (pod["metadata"]["name"],)}
        for container in request.containers:
            must = frozenset(sorted(reusable)[: container.units])
            offered = self._offered(percent=request.percent) - frozenset().union(*given.values()) | must
            try:
                ask = self.ledger.read_request(offered, must, container.units, taken_up)
                ids = must if len(must) == container.units else frozenset(ask.choose_ids())
                self.ledger.allocate(ids, self.now, taken_up)
            except LedgerError:
                self.forget(uid)
                return None
            given[container.name] = ids
            reusable = reusable | ids if container.kind == "init" else reusable - ids
            self.checkpoint[uid, container.name] = ids
        self._know()
        return given

    def _offered(self, *, percent: bool) -> frozenset[str]:
        """What the kubelet would offer: everything healthy that its checkpoint does not have."""
        ids = frozenset(
            text
            for card in self.cards
            if card.uuid not in self.sick | self.withheld and card.size_units
            for text in (
                (percent_id(card.uuid, slot) for slot in range(PERCENT_IDS))
                if percent
                else (device_id(card.uuid, slot) for slot in range(card.size_units))
            )
        )
        return ids.difference(*self.checkpoint.values())

    def forget(self, uid: str) -> None:
        """The kubelet takes a pod out of its checkpoint, and nothing of it runs."""
        self.checkpoint = {key: ids for key, ids in self.checkpoint.items() if key[0] != uid}
        self._know()

    def end(self, uid: str) -> None:
        """A pod is over, and the node has seen all of it."""
        self.ledger.remove_pod(uid, self.now)
        self.forget(uid)
        self.now += LATER_S
        self.ledger.record_cgroup_probe(self.ledger.pods_to_probe(), self._alive(), self.now)

    def _alive(self) -> set[str]:
        """UIDs of the pods with containers."""
        return {uid for uid, _ in self.checkpoint}

    def _know(self) -> None:
        self.now += 1.0
        entries = [CheckpointEntry(uid, name, MEMORY, ids) for (uid, name), ids in self.checkpoint.items()]
        self.ledger.apply_checkpoint(entries, self.now)

    # What happens to cards.

    def resize(self, uuid: str, units: int | None) -> None:
        """A card has another size; None: it has gone."""
        self.cards = [
            card if card.uuid != uuid else replace(card, size_units=units or 0)
            for card in self.cards
            if card.uuid != uuid or units is not None
        ]
        self.ledger.set_cards(self.cards)
        self.ledger.set_unavailable("unhealthy", self.sick)

    def keep_out(self) -> None:
        """The daemon takes cards out of use."""
        self.ledger.set_unavailable("unhealthy", self.sick)
        self.ledger.set_unavailable("not_enforced", self.withheld)
        self.ledger.set_unavailable("cordoned", self.cordoned)

    def over_full(self) -> frozenset[str]:
        """UUIDs of cards that pods fill, and others use too."""
        promised, others = self.ledger.allocated_units(), self.ledger.accounts.unaccounted_use
        return frozenset(
            card.uuid
            for card in self.cards
            if others.get(card.uuid) and promised[card.uuid] >= card.size_units
        )

    def restart(self, *, compute_limit: int) -> None:
        """The daemon comes back with another limit, and knows what it knew."""
        self.compute_limit = compute_limit
        self.ledger = self.copy().ledger

    def compute_by_pod(self, key: str) -> dict[str, int]:
        """Percent of compute that a pod is charged with, by the card's UUID."""
        return dict(charge_pod_compute(self.ledger.accounts, self.ledger.accounts.pods[key]))

    # What the API server has.

    def published(self, version: int) -> dict[str, Any]:
        cards = self.ledger.installed
        healthy = [card for card in cards if card.healthy and card.size_units]
        holds = self.ledger.published_holds()
        told = Holds(version, frozenset(holds), holds if self.tells_units else {}, self._held_claims())
        made: dict[str, Any] = node_object(
            self.name,
            [card.size_units for card in cards],
            list(self.ledger.used()),
            version=version,
            revision=version,
            cpu=str(self.cpu),
            models=[card.model for card in cards],
            healthy=[card.healthy for card in cards],
            uuids=[card.uuid for card in cards],
            compute=used_compute(self.ledger.accounts) if self.tells_compute else None,
            compute_limit=self.compute_limit,
            extra={NODE_HOLDS: dump_holds(told)},
        )
        units = sum(card.size_units for card in healthy) if self.plugin else 0
        made["status"]["allocatable"] |= {
            resource_name(UNIT_MIB): str(units),
            PERCENT_RESOURCE: str(len(healthy) * PERCENT_IDS if self.plugin and self.shares else 0),
        }
        made["kind"] = "Node"
        made["metadata"]["labels"] = {}
        return made

    def _held_claims(self) -> dict[str, dict[int, CardAmounts]]:
        """What the claims that the words contain have by card position, by UID."""
        return {}

    def copy(self) -> "Host":
        """A host that goes on by itself, from what the kubelet and the API server show."""
        other = type(self).__new__(type(self))
        vars(other).update(vars(self))
        other.checkpoint = dict(self.checkpoint)
        other.ledger = Ledger(self.cards, compute_limit=self.compute_limit)
        facts = other.ledger.accounts
        for uid, known in self.ledger.accounts.pods.items():
            facts.pods[uid] = known
        facts.unaccounted_use = dict(self.ledger.accounts.unaccounted_use)
        facts.listed_at_s, facts.checkpoint_read_at_s = (
            self.ledger.accounts.listed_at_s,
            self.ledger.accounts.checkpoint_read_at_s,
        )
        other.keep_out()
        return other
