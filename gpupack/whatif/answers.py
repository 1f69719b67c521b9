"""Answers of why, fit and advise: values, and the JSON of `-o json`, to which keys are only added."""

from typing import Literal

import msgspec

State = Literal["pending", "gated", "fits", "running", "ending", "ended", "failed", "refused", "no-cards"]
"""`fits`: it waits, and a node would take it now. `refused`: what it asks for cannot be given."""


class JsonAnswer(msgspec.Struct, frozen=True, omit_defaults=False):
    """Base of the answers."""


class ClosestNode(JsonAnswer, frozen=True):
    """The node of a group that comes closest, and its card: the driver's number and its free units.

    Without a card where the host's cpu or memory, or the sum of its units, is the reason. With the percent of
    the card's compute that is left where that is the reason.
    """

    node: str
    card: int | None
    free_units: int | None
    compute_free: int | None = None


class NodeGroup(JsonAnswer, frozen=True):
    """Nodes that refuse a pod for the same reason.

    Attributes:
        reason: In one word, see docs/ask.md.
        best: The one that comes closest, None if cards are not the reason.
        asked_units: Units that the pod asks of a card; on a card of the size of the best one.
    """

    reason: str
    count: int
    best: ClosestNode | None
    asked_units: int
    text: str
    examples: tuple[str, ...] = ()


class PodUnits(JsonAnswer, frozen=True):
    """A pod and what it has: units over its cards, and the cards' numbers."""

    namespace: str
    pod: str
    units: int
    cards: tuple[int, ...] = ()


class NodeCards(JsonAnswer, frozen=True):
    """Cards of a node.

    Attributes:
        cards: Their numbers; instances have that of their card.
        uuids: Empty where nobody says them.
    """

    node: str
    cards: tuple[int, ...]
    uuids: tuple[str, ...] = ()

    def list_cards(self) -> list[tuple[int, str]]:
        """List the number and the UUID of each, which is empty where nobody says it."""
        return list(zip(self.cards, self.uuids or ("",) * len(self.cards), strict=True))


class Move(JsonAnswer, frozen=True, rename={"source": "from", "target": "to"}):
    """A pod that is ended, and started by its controller, so that it runs elsewhere."""

    namespace: str
    pod: str
    units: int
    source: NodeCards
    target: NodeCards
    text: str = ""


class WayOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that lets a pod start.

    Attributes:
        node: Where the pod fits then.
        units: Units of a smaller request: per container where there are several, see `container`.
        container: Whose request it is.
        compute: Percent of the compute of each card to ask for, of a smaller share.
        model: A model of card that the pod fits on.
        taint: That the pod would have to tolerate.
        pods: That end, or have to.
        fewest: No smaller number of pods does.
        position: In that queue, from 1.
    """

    kind: str
    text: str
    node: str = ""
    units: int = 0
    container: str = ""
    compute: int = 0
    cards: int = 0
    model: str = ""
    taint: str = ""
    pods: tuple[PodUnits, ...] = ()
    fewest: bool | None = None
    moves: tuple[Move, ...] = ()
    queue: str = ""
    position: int = 0


class PodCard(JsonAnswer, frozen=True):
    """A card that a pod runs on.

    Attributes:
        card: The driver's number.
        uuid: None if the node publishes no inventory.
        used_units: As the words say, of all together.
        share: Where that is from, see docs/top.md.
        used_mib: What the pod used lately, None if the node has not said.
        limit_mib: What it can use at most, None if nothing refuses more.
        held: What holds it to that, see docs/limits.md; empty if the node has not said.
        compute: Percent of the card's compute that it asks for; 0 if it takes what is left.
        compute_in_use: Percent that all together ask for, None if the node has not said.
        compute_held: What holds it to its compute, as `held`.
    """

    card: int
    uuid: str | None
    model: str | None
    size_units: int
    used_units: int
    free_units: int
    promised_units: int
    share: str
    neighbours: tuple[PodUnits, ...]
    used_mib: int | None = None
    limit_mib: int | None = None
    held: str = ""
    compute: int = 0
    compute_in_use: int | None = None
    compute_held: str = ""


class PodExplanation(JsonAnswer, frozen=True):
    """The explanation of a pod's state.

    Attributes:
        state: In one word.
        nodes: Nodes of a pod that waits: every node that does not take it, in groups.
        ways_out: What would let it start, each checked.
        text: What is the matter, in a sentence.
        fits: Names of nodes that would take it now.
        scheduler: What kube-scheduler wrote into the pod.
    """

    namespace: str
    pod: str
    state: State
    nodes: tuple[NodeGroup, ...] = ()
    ways_out: tuple[WayOut, ...] = ()
    unit_mib: int = 1024
    asked: str = ""
    text: str = ""
    node: str = ""
    fits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scheduler: str = ""
    events: tuple[str, ...] = ()
    cards: tuple[PodCard, ...] = ()


class NodePods(JsonAnswer, frozen=True):
    """How many pods a node takes; `tolerations` they need for its taints."""

    node: str
    pods: int
    tolerations: tuple[str, ...] = ()


class FitCount(JsonAnswer, frozen=True):
    """How many pods fit, and where.

    Attributes:
        pods: Pods that fit without a toleration.
        largest_units: The largest such request, over as many cards; 0: none, or several containers.
        tolerating_pods: Further pods that fit if they tolerate the taints of their nodes.
        largest_tolerating_units: The largest request that fits if the pod tolerates every such taint.
        missing_pods: Pods of the gang that was asked about that find no card beside the others.
        pods_on_empty_nodes: If some do not: how many of them all empty nodes would take, at most.
    """

    pods: int
    largest_units: int
    nodes: tuple[NodePods, ...]
    tolerating_pods: int = 0
    largest_tolerating_units: int = 0
    missing_pods: int = 0
    pods_on_empty_nodes: int = 0


class FitAnswer(FitCount, frozen=True):
    """What fits now, and after a change.

    Attributes:
        gang: Pods that have to fit at once; 0 where nothing was asked about a gang.
        after: Numbers after the change that was asked about, None without one.
    """

    asked: str = ""
    gang: int = 0
    after: FitCount | None = None
    notes: tuple[str, ...] = ()
    unit_mib: int = 1024


class PodCount(JsonAnswer, frozen=True):
    """A number of pods."""

    pods: int


class Advice(JsonAnswer, frozen=True):
    """A list of moves and its purpose. None of the moves has been made.

    Attributes:
        gained: Pods more that start; cards that become empty.
        before: Pods of the size that fit now; pods on the cards that are to be empty.
        after: Numbers once the moves are done.
        at_least: Moves that any list needs that achieves as much: a lower bound.
    """

    gained: int
    moves: tuple[Move, ...]
    before: PodCount
    after: PodCount
    at_least: int = 0
    text: str = ""
    notes: tuple[str, ...] = ()
    unit_mib: int = 1024


def add_notes(advice: Advice, more: tuple[str, ...]) -> Advice:
    return msgspec.structs.replace(advice, notes=(*advice.notes, *more))
