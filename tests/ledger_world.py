"""One ledger with a kubelet and an API server around it; neither ever lies, both may be late."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from allocator.cards import Card
from allocator.ids import device_id, parse_device_id
from allocator.ledger import Grant, Ledger, Listed, Pod
from allocator.request import ContainerRequest, Kind, PodRequest
from allocator.selector import Selector

Containers = Sequence[tuple[str, int, Kind]]


def cards(*sizes: int) -> list[Card]:
    return [Card(i, f"c{i}", "M", size_units=size, used_units=0) for i, size in enumerate(sizes)]


def ids(card: str, *slots: int) -> frozenset[str]:
    return frozenset(device_id(card, slot) for slot in slots)


def by_card(given: frozenset[str]) -> dict[str, int]:
    """Count IDs per card."""
    return dict(Counter(parse_device_id(text)[0] for text in given))


def request(units: int | Containers, count: int = 1, selector: Selector | None = None) -> PodRequest:
    containers: Containers = [("main", units, "main")] if isinstance(units, int) else units
    return PodRequest(
        tuple(ContainerRequest(name, size, kind) for name, size, kind in containers),
        cards=count,
        selector=selector or Selector(),
    )


def pod(uid: str, units: int | Containers, *on: str, count: int = 1, name: str | None = None) -> Pod:
    """A bound pod; `on` are its assigned cards: for each container, in order, its card or cards."""
    wanted = request(units, count)
    assigned = {}
    if on:
        for position, container in enumerate(wanted.containers):
            mine = on[position * count : position * count + count] or on[:count]
            assigned[container.name] = tuple((card, container.units // count) for card in mine)
    return Pod(
        uid=uid,
        namespace="ns",
        name=name or f"pod-{uid}",
        request=wanted,
        created=uid,
        assigned=assigned or None,
    )


@dataclass
class World:
    """The kubelet's table is `table`; `bind`, `admit`, `start`, `look`, `sync` and `end` move things on."""

    ledger: Ledger
    now: float = 1000.0
    pods: dict[str, Pod] = field(default_factory=dict)
    seen: dict[str, Pod] = field(default_factory=dict)
    table: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, *sizes: int, **options: object) -> "World":
        return cls(Ledger(cards(*sizes), **options))  # type: ignore[arg-type]

    @property
    def used(self) -> list[int]:
        return list(self.ledger.used())

    @property
    def promised(self) -> list[int]:
        return list(self.ledger.promised().values())

    def all_ids(self) -> frozenset[str]:
        return frozenset(self.ledger._card_of)

    def offered(self) -> frozenset[str]:
        """What the kubelet would offer: everything that no pod in its table holds."""
        return self.all_ids() - frozenset().union(*self.table.values())

    def bind(self, bound: Pod) -> Pod:
        self.pods[bound.uid] = self.seen[bound.uid] = bound
        self.ledger.pod_changed(bound)
        return bound

    def change(self, uid: str, **changes: object) -> Pod:
        changed = replace(self.pods[uid], **changes)  # type: ignore[arg-type]
        return self.bind(changed)

    def hand(
        self, size: int, must: frozenset[str] = frozenset(), key: tuple[str, str] | None = None
    ) -> frozenset[str]:
        """GetPreferredAllocation and Allocate of a container; without a key its pod fails."""
        answer = self.ledger.preferred(self.offered() | must, must, size, self.now)
        assert len(answer) == size == len(set(answer))
        assert must <= set(answer) <= self.offered() | must
        self.allocate(frozenset(answer))
        self.table[key or ("failed", str(len(self.table)))] = frozenset(answer)
        return frozenset(answer)

    def allocate(self, given: frozenset[str]) -> Grant:
        return self.ledger.allocate(given, self.now)

    def admit(self, uid: str) -> list[frozenset[str]]:
        """The kubelet admits a pod: devices for each container, init containers' IDs are used again."""
        given, reusable = [], frozenset[str]()
        for container in self.seen[uid].request.containers:
            size = container.units
            if container.kind == "sidecar":
                taken = self.hand(size, key=(uid, container.name))
            elif len(reusable) >= size:
                taken = frozenset(sorted(reusable)[:size])
                self.allocate(taken)
            else:
                taken = self.hand(size, reusable, (uid, container.name))
            if container.kind == "init":
                reusable |= taken
            given.append(taken)
            self.table[(uid, container.name)] = taken
        return given

    def start(self, uid: str) -> None:
        self.change(uid, started=True)

    def run(self, bound: Pod) -> list[frozenset[str]]:
        """A pod's whole way to `running`, everything seen."""
        self.bind(bound)
        given = self.admit(bound.uid)
        self.start(bound.uid)
        self.look()
        return given

    def entries(self) -> list[Listed]:
        """The list of the kubelet: no ordinary init containers."""
        shown = []
        for (uid, name), given in self.table.items():
            if uid not in self.seen:
                continue
            described = self.seen[uid]
            kind = next(c.kind for c in described.request.containers if c.name == name)
            if kind != "init":
                shown.append(Listed(described.namespace, described.name, name, given))
        return shown

    def look(self, later: float = 0.0) -> None:
        """A PodResources list."""
        self.now += later
        mark = self.ledger.mark(self.now)
        self.ledger.listed(self.entries(), mark)

    def sync(self) -> None:
        """A list of pods from the API server."""
        self.ledger.pods_synced(list(self.pods.values()), self.ledger.mark(self.now))

    def forget(self, uid: str) -> None:
        """The kubelet lets go of a pod."""
        self.table = {key: given for key, given in self.table.items() if key[0] != uid}

    def delete(self, uid: str) -> None:
        """The API server lets go of a pod."""
        del self.pods[uid]
        self.ledger.pod_gone(uid)

    def end(self, uid: str) -> None:
        """A pod's whole end, everything seen."""
        self.forget(uid)
        self.delete(uid)
        self.look()
        assert uid in self.ledger.doubtful()
        self.ledger.containers_ended(uid)
