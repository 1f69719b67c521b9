"""One ledger with a kubelet, its checkpoint and an API server around it; none lies, each may be late."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allocator.cards import Card
from allocator.ids import device_id, parse_device_id
from allocator.ledger import AllocationRequest, CheckpointEntry, Ledger, Pod, charges
from allocator.request import ContainerRequest, Kind, PodRequest
from allocator.selector import ANY_CARD, Selector

RESOURCE = "gpupack.io/gpu-memory-gib"
SETTLED_S = 11.0
"""Longer than a container that the kubelet is about to start needs for its cgroup."""

Containers = Sequence[tuple[str, int, Kind]]


def cards(*sizes: int) -> list[Card]:
    return [Card(i, f"c{i}", "M", size_units=size, used_units=0) for i, size in enumerate(sizes)]


def ids(card: str, *slots: int) -> frozenset[str]:
    return frozenset(device_id(card, slot) for slot in slots)


def by_card(given: frozenset[str]) -> dict[str, int]:
    """Count IDs per card."""
    return dict(Counter(parse_device_id(text)[0] for text in given))


def request(units: int | Containers, count: int = 1, selector: Selector = ANY_CARD) -> PodRequest:
    containers: Containers = [("main", units, "main")] if isinstance(units, int) else units
    return PodRequest(
        tuple(ContainerRequest(name, size, kind) for name, size, kind in containers), count, selector
    )


def pod(
    uid: str,
    units: int | Containers,
    *on: str,
    count: int = 1,
    selector: Selector = ANY_CARD,
    **more: object,
) -> Pod:
    """A bound pod; `on` are its assigned cards: for each container, in order, its card or cards."""
    wanted = request(units, count, selector)
    assigned = {}
    for position, container in enumerate(wanted.containers):
        mine = on[position * count : position * count + count] or on[:count]
        assigned[container.name] = tuple((card, container.units // count) for card in mine)
    known = {"assigned": assigned if on else None} | more
    return Pod(uid=uid, namespace="ns", name=f"pod-{uid}", request=wanted, **known)  # type: ignore[arg-type]


@dataclass
class World:
    """`pods` is what the API server has, `checkpoint` the kubelet's; each method is one thing that happens.

    Attributes:
        sick: the kubelet does not offer these cards.
    """

    ledger: Ledger
    now: float = 1000.0
    pods: dict[str, Pod] = field(default_factory=dict)
    checkpoint: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    sick: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, *sizes: int, policy: str = "least-used") -> "World":
        """A ledger that has read an empty checkpoint and an empty list of pods."""
        world = cls(Ledger(cards(*sizes), policy=policy))
        world.write()
        world.sync()
        return world

    @classmethod
    def restored(
        cls, published: Mapping[str, Mapping[str, int] | None], *listed: Pod, cards_of: int = 1
    ) -> "World":
        """A daemon that starts: the words had these pods of cards of 8 units, the API server lists those."""
        world = cls(Ledger(cards(*[8] * cards_of)), pods={each.uid: each for each in listed})
        world.ledger.restore_published(published)
        world.write()
        world.sync()
        return world

    def restart_daemon(self) -> None:
        """Begin with an empty memory and the words that were published; nothing is read or listed yet."""
        old = self.ledger
        self.ledger = Ledger(old.installed)
        self.ledger.restore_published(charges.charge_published_pods(old.accounts))

    @property
    def used(self) -> list[int]:
        return list(self.ledger.used())

    @property
    def promised(self) -> list[int]:
        return list(self.ledger.allocated_units().values())

    @property
    def published(self) -> dict[str, dict[str, int]]:
        """What the words say: units by pod and card."""
        return charges.charge_published_pods(self.ledger.accounts)

    # The kubelet.

    def offered(self) -> frozenset[str]:
        """What the kubelet would offer: everything healthy that its checkpoint does not have."""
        facts = self.ledger.accounts
        healthy = {text for text, card in facts.card_of.items() if card not in self.sick}
        return frozenset(healthy - facts.percent_ids).difference(*self.checkpoint.values())

    def write(self) -> None:
        """The kubelet writes its checkpoint, the daemon reads it."""
        entries = [
            CheckpointEntry(uid, name, RESOURCE, given) for (uid, name), given in self.checkpoint.items()
        ]
        self.ledger.apply_checkpoint(entries, self.now)

    def ask(self, size: int, *taken_up: str, must: frozenset[str] = frozenset()) -> AllocationRequest:
        """A question of the kubelet, which lists these UIDs; with none PodResources does not answer."""
        listed = frozenset(("ns", f"pod-{uid}") for uid in taken_up) if taken_up else None
        return self.ledger.read_request(self.offered() | must, must, size, listed)

    def choose(self, size: int, uid: str | None = None, must: frozenset[str] = frozenset()) -> frozenset[str]:
        """GetPreferredAllocation; without the UID of who asks PodResources does not answer."""
        ask = self.ask(size, *self.taken_up(uid), must=must)
        answer = ask.choose_ids()
        assert len(answer) == size == len(set(answer))
        assert must <= set(answer) <= ask.offered
        return frozenset(answer)

    def prefer(self, available: Collection[str], must: Collection[str], size: int) -> tuple[str, ...]:
        """What the ledger answers a kubelet that offers exactly this."""
        return self.ledger.read_request(available, must, size).choose_ids()

    def taken_up(self, uid: str | None) -> frozenset[str]:
        """Whom PodResources lists while one asks."""
        return frozenset() if uid is None else frozenset({uid, *(owner for owner, _ in self.checkpoint)})

    def allocate(self, given: frozenset[str], uid: str | None = None) -> dict[str, int]:
        """Allocate, checked like a question; the checkpoint does not show it yet. Returns units by card."""
        listed = frozenset(("ns", f"pod-{each}") for each in self.taken_up(uid)) or None
        self.ledger.read_request(given, given, len(given), listed).choose_ids()
        return self.ledger.allocate(given, self.now, listed)[0]

    def show(self, uid: str, given: frozenset[str], container: str = "main") -> None:
        self.checkpoint[uid, container] = given
        self.write()

    def hand(self, size: int, uid: str = "unknown", container: str = "main") -> dict[str, int]:
        """The kubelet gives one container devices; returns units by card."""
        given = self.choose(size, uid)
        self.allocate(given, uid)
        self.show(uid, given, container)
        return by_card(given)

    def admit(self, uid: str) -> list[dict[str, int]]:
        """Devices for each container of a pod; main containers get those of init containers again."""
        units, reusable = [], frozenset[str]()
        for container in self.pods[uid].request.containers:
            must = frozenset(sorted(reusable)[: container.units])
            given = must if len(must) == container.units else self.choose(container.units, uid, must)
            self.allocate(given, uid)
            self.show(uid, given, container.name)
            reusable = reusable | given if container.kind == "init" else reusable - given
            units.append(by_card(given))
        return units

    def drop(self, uid: str) -> None:
        """The kubelet takes a pod out of its checkpoint."""
        self.checkpoint = {key: given for key, given in self.checkpoint.items() if key[0] != uid}
        self.write()

    def lose_checkpoint(self) -> None:
        """The kubelet starts without its checkpoint; containers run on."""
        self.checkpoint.clear()
        self.ledger.apply_kubelet_restart()
        self.write()

    # The API server.

    def bind(self, bound: Pod) -> Pod:
        self.pods[bound.uid] = bound
        self.ledger.apply_pod(bound, self.now)
        return bound

    def change(self, uid: str, **changes: object) -> Pod:
        return self.bind(replace(self.pods[uid], **changes))  # type: ignore[arg-type]

    def delete(self, uid: str) -> None:
        del self.pods[uid]
        self.ledger.remove_pod(uid, self.now)

    def sync(self) -> None:
        """A complete list of pods, begun now."""
        self.ledger.apply_pod_list(list(self.pods.values()), self.now, self.now)

    # The cgroups.

    def look(self, *alive: str, later: float = 0.0) -> None:
        """A look at all cgroups that somebody should look for, of which those of `alive` have containers."""
        self.now += later
        self.ledger.record_cgroup_probe(self.ledger.pods_to_probe(), alive, self.now)

    def assert_ends_after(self, seconds: float) -> None:
        """All charges stay for so long, and end then, while nobody finds a cgroup."""
        before = self.promised
        self.look(later=seconds - 1)
        assert self.promised == before != [0]
        self.look(later=1)
        assert self.promised == [0]

    # A pod's whole way.

    def run(self, bound: Pod) -> list[dict[str, int]]:
        """From its binding until its containers run, everything seen."""
        self.bind(bound)
        units = self.admit(bound.uid)
        self.look(*self.pods)
        self.change(bound.uid, admitted=True, has_run=True)
        return units

    def forget(self, uid: str) -> None:
        """Deleted and dropped from the checkpoint; nobody has looked whether something of it runs."""
        self.delete(uid)
        self.drop(uid)

    def end(self, uid: str) -> None:
        """Deleted, dropped from the checkpoint, and nothing of it runs, everything seen."""
        self.forget(uid)
        self.look(*self.pods)
