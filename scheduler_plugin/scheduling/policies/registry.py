"""Interface of node policies: what one is given, what it answers, and how it is found by name.

A policy is called with three things:

- a view of the cluster: numpy arrays over node rows, live and read-only to it;
- what the pod asks for;
- the candidate rows, all of which can take the pod.

The policy answers one float a candidate: **lower is better**, `inf` means that the policy holds the pod back
from this node for now. Ties are broken by node name by the caller.

A policy may keep state of its own as long as that is keyed by `view.version`. The version of a row grows by
at least one whenever anything about the row changes, also when another node gets the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeGuard, runtime_checkable

from allocator.card_rules import NO_RULES, CardRules
from allocator.installed import installed
from allocator.names import COMPUTE_RESOURCE, DEFAULT_CARD_POLICY
from allocator.registry import Parameters, Registry
from allocator.selector import ANY_CARD, Selector
from scheduler_plugin.cache.amounts import Amounts, ResourceAmounts
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, FloatArray, RowArray
from scheduler_plugin.errors import PolicyError


class CardDemand(NamedTuple):
    """`cards` cards with `units` free units each, for one container (or one pod with shared cards).

    Attributes:
        compute: Percent of compute that is free on each, 0 if it does not matter.
    """

    units: int
    cards: int
    compute: int = 0


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A pod's request, as policies see it.

    Attributes:
        amounts: What it requests besides cards, by Kubernetes' rule for init containers and sidecars.
        demands: Card demands in placement order; each is served on what the ones before left.
        admits: bool[R, K], cards that the pod's selectors admit and that have the compute; None: every card.
        card_policy: Name of the card policy that will choose the cards.
        selector: What `admits` was made of, for policies that learn what is asked for.
        pod: UID of the pod, for policies that count attempts; empty if there is none.
        rules: What the cards have to keep together. Candidates do; a policy that chooses cards has to.
    """

    amounts: Amounts
    demands: tuple[CardDemand, ...]
    admits: BoolArray | None = None
    card_policy: str = DEFAULT_CARD_POLICY
    selector: Selector = ANY_CARD
    pod: str = ""
    rules: CardRules = NO_RULES

    @property
    def cpu_milli(self) -> int:
        """Thousandths of a core."""
        return self.amounts.cpu_milli

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory."""
        return self.amounts.memory_bytes

    @property
    def other_resources(self) -> ResourceAmounts:
        """What the pod asks of further resources."""
        return self.amounts.others

    @property
    def gpu_units(self) -> int:
        """Units over all cards and demands."""
        return sum(demand.units * demand.cards for demand in self.demands)

    @property
    def least_compute(self) -> int:
        """Percent of compute that each demand asks of a card at least; 0 if one asks for none."""
        return min((demand.compute for demand in self.demands), default=0)

    @property
    def compute(self) -> int:
        """Percent of compute over all cards and demands."""
        return sum(demand.compute * demand.cards for demand in self.demands)


class NodePolicy(Protocol):
    """Ranks nodes for a pod; see the module's text for the rules.

    `epoch` and `score` are all that a policy needs. More attributes:

    - by_row = True: while `epoch` stays, the score of a node changes with `view.version` of that node only.
      The queue then scores again only the nodes that changed. With other policies it scores all nodes for
      each pod.
    - ranks_plain_pods = True: it ranks nodes, also those without cards, for pods that ask for no card.
    - other_resources = ("ephemeral-storage",): further resources of nodes that it wants to see in the view.
    """

    @property
    def epoch(self) -> int:
        """Grows when weights that every node's score depends on change; constant 0 if there are none."""
        ...

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score candidate rows for one pod.

        A mere question calls this too, any number of times: it counts as no attempt to place the pod.

        Args:
            rows: intp[m], the candidates.

        Returns:
            float64[m], lower is better, inf: not on this node for now.
        """
        ...


@runtime_checkable
class Learner(Protocol):
    """The further interface of a policy that learns from pods seen, pending and settled."""

    def pending(self, uid: str, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> None:
        """No candidate of `rows` could take the pod (called once for each failed attempt)."""
        ...

    def pod_resolved(self, uid: str, ask: PolicyRequest | None) -> None:
        """The pod was bound (its ask), or is gone (None)."""
        ...


@runtime_checkable
class AttemptCounter(Protocol):
    """The further interface of a policy that counts the attempts to place a pod."""

    def record_attempt(self, view: ClusterView, pod: str, row: int | None) -> None:
        """Somebody tried to place a pod: kube-scheduler asked, or it was its turn in the queue.

        Args:
            pod: UID.
            row: The best one; None: the policy held the pod back from every row that can take it.
        """
        ...


@runtime_checkable
class BacklogReader(Protocol):
    """The further interface of a policy whose weights depend on all pods that wait."""

    def waiting(self, view: ClusterView, pods: Sequence[tuple[PolicyRequest, Sequence[str]]]) -> None:
        """Receive the pods that wait at this moment, whoever refused them and whatever gate they wear.

        Args:
            pods: UIDs by what they ask for.
        """
        ...


class CardChooser(Protocol):
    """The further interface of a node policy that chooses cards better than a card policy."""

    def choose_cards(
        self, view: ClusterView, ask: PolicyRequest, row: int
    ) -> tuple[tuple[int, ...], ...] | None:
        """Choose the cards that the row's score was computed with.

        Returns:
            For each demand, positions of its cards; None when the pod does not fit.
        """
        ...


class Picker(Protocol):
    """The further interface of a node policy that finds its best node without scoring all."""

    @property
    def picks(self) -> bool:
        """Whether it does, as it is configured."""
        ...

    def pick_row(self, view: ClusterView, ask: PolicyRequest, fits: BoolArray) -> int | None:
        """Find the row that `score` ranks first.

        Args:
            fits: bool[R], rows that can take the pod.
        """
        ...


def ranks_plain_pods(policy: NodePolicy) -> bool:
    """Tell whether a policy says that it ranks nodes for pods that ask for no card; see `NodePolicy`."""
    return bool(getattr(policy, "ranks_plain_pods", False))


def get_other_resources(policy: NodePolicy) -> tuple[str, ...]:
    """List the further resources that a policy wants to see; see `NodePolicy`.

    Compute is left out: it is counted by card, and the node's sum of it says nothing more.
    """
    return tuple(name for name in getattr(policy, "other_resources", ()) if name != COMPUTE_RESOURCE)


def chooses_cards(policy: object) -> TypeGuard[CardChooser]:
    """Tell whether a policy is a `CardChooser`; `isinstance` takes much longer, and each placement asks."""
    return hasattr(policy, "choose_cards")


def picks_nodes(policy: object) -> TypeGuard[Picker]:
    """Tell whether a policy is a `Picker`, and picks as it is configured."""
    return hasattr(policy, "pick_row") and bool(getattr(policy, "picks", False))


def is_scored_by_row(policy: NodePolicy) -> bool:
    """Tell whether a policy says that it scores each node by itself; see `NodePolicy`."""
    return bool(getattr(policy, "by_row", False))


def _find_missing(policy: object) -> str:
    """Say what an object lacks to be a node policy; empty: nothing."""
    if not callable(getattr(policy, "score", None)):
        return "a method score(view, ask, rows)"
    return "" if isinstance(getattr(policy, "epoch", None), int) else "a whole number epoch"


NODE_POLICIES: Final[Registry[NodePolicy]] = Registry(
    "node policy", "gpupack.node_policies", PolicyError, _find_missing, installed
)
"""Filled by the list in `policies/__init__`."""


def list_names() -> tuple[str, ...]:
    """List the names of the node policies, sorted."""
    return NODE_POLICIES.names()


def make_policy(name: str, parameters: Parameters | None = None) -> NodePolicy:
    """Build a node policy.

    Args:
        parameters: Text values by parameter name, as given on the command line.

    Raises:
        PolicyError: unknown name (the message lists what exists), or parameters the policy refuses.
    """
    return NODE_POLICIES.make(name, parameters)
