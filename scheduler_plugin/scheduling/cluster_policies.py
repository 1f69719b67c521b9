"""Policies of the cluster and of single pods, and a pod's request made ready for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, POD_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.policy import card_policy, node_policy_chooses
from allocator.request import PodRequest, unknown_policy
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.pods import ResourceAmounts
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.scheduling.card_costs import card_costs
from scheduler_plugin.scheduling.filtering import Selectors
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make
from scheduler_plugin.scheduling.policies.registry import (
    Ask,
    AttemptCounter,
    BacklogReader,
    CardChooser,
    CardDemand,
    Learner,
    NodePolicy,
    other_resources,
)
from scheduler_plugin.scheduling.request import Query


def slow_line(policy: NodePolicy, name: str) -> str:
    """Say that a card policy is asked card by card for each node that a node policy ranks; empty: it is not.

    Args:
        policy: The node policy.
        name: Of the card policy.
    """
    if not isinstance(policy, CardChooser) or node_policy_chooses(name) or card_costs(name) is not None:
        return ""
    return (
        f"{CARD_POLICIES.called(name)} has neither array_costs nor by_fill: node policies that look "
        "at the cards ask it node by node, up to a hundred times as slow; see docs/policies/writing.md"
    )


class Policies:
    """The cluster's policies, and those that pods may name instead.

    Args:
        node_policy: Name of the cluster's node policy.
        card_policy_name: Name of the cluster's card policy.
        parameters: Of the cluster's node policy, text by name.
        defaults: Parameters of policies where nobody says otherwise, by name of the policy.

    Raises:
        PolicyError: of this package for the node policy or its parameters, of allocator for the card policy.

    Attributes:
        learners: The policies in use that learn from what happens to pods.
        backlog_readers: Those whose weights depend on the pods that wait.
        other_resources: Further resources that those want to see, in the order of their names.
        resources_changed: Says that they are others now.
        slow: Says, once a card policy, why it takes long, see `slow_line`.
        told: What it has said.
    """

    def __init__(
        self,
        node_policy: str = DEFAULT_NODE_POLICY,
        card_policy_name: str = DEFAULT_CARD_POLICY,
        parameters: Mapping[str, str] | None = None,
        defaults: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        card_policy(card_policy_name)
        self.node_policy = node_policy
        self._defaults = dict(defaults or {})
        self._first = (node_policy, dict(parameters or {}))
        self._parameters = self._with_defaults({node_policy: parameters or {}})
        self.card_policy = card_policy_name
        self._selectors = Selectors()
        self._made: dict[str, NodePolicy] = {}
        self._counters: dict[str, AttemptCounter] = {}
        self.learners: list[Learner] = []
        self.backlog_readers: list[BacklogReader] = []
        self.other_resources: tuple[str, ...] = ()
        self.resources_changed: Signal[[Sequence[str]]] = Signal()
        self.slow: Signal[[str]] = Signal()
        self.told: list[str] = []
        self._looked_at: set[tuple[str, str]] = set()
        self._add(node_policy, make(node_policy, self._parameters[node_policy]))

    def _with_defaults(self, parameters: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """Complete parameters by those that hold where nobody says otherwise."""
        return {
            policy: {**self._defaults.get(policy, {}), **parameters.get(policy, {})}
            for policy in (*self._defaults, *parameters)
        }

    @property
    def of_cluster(self) -> NodePolicy:
        """The policy of pods that name none."""
        return self._made[self.node_policy]

    def configure(self, node_policy: str | None, parameters: Mapping[str, Mapping[str, str]]) -> bool:
        """Take another node policy of the cluster, and parameters of this and of those that pods name.

        What a policy has learned is forgotten where anything changes.

        Args:
            node_policy: Its name; None: that of the beginning.
            parameters: By name of the policy, in place of those of the beginning; text by name.

        Returns:
            Whether anything changed.

        Raises:
            PolicyError: a policy does not exist, or refuses its parameters; then nothing has changed.
        """
        first, texts = self._first
        name = first if node_policy is None else node_policy
        known = self._with_defaults({first: texts, **parameters})
        if (name, known) == (self.node_policy, self._parameters):
            return False
        made = {each: make(each, known.get(each)) for each in {name, *known}}
        self.node_policy, self._parameters = name, known
        for kept in (self._made, self._counters, self.learners, self.backlog_readers):
            kept.clear()
        self._see(made.values())
        self._add(name, made[name])
        return True

    def of(self, request: PodRequest) -> NodePolicy:
        """The policy that ranks nodes for a pod: its own, else the cluster's."""
        name = request.node_policy or self.node_policy
        policy = self._made.get(name)
        if policy is None:
            policy = self._add(name, make(name, self._parameters.get(name)))
        return policy

    def _see(self, policies: Iterable[NodePolicy]) -> None:
        """Say which further resources these policies want to see."""
        wanted = tuple(sorted({name for policy in policies for name in other_resources(policy)}))
        if wanted != self.other_resources:
            self.other_resources = wanted
            self.resources_changed(wanted)

    def _add(self, name: str, policy: NodePolicy) -> NodePolicy:
        self._made[name] = policy
        if not set(other_resources(policy)) <= set(self.other_resources):
            self._see(self._made.values())
        if isinstance(policy, Learner):
            self.learners.append(policy)
        if isinstance(policy, BacklogReader):
            self.backlog_readers.append(policy)
        if isinstance(policy, AttemptCounter):
            self._counters[name] = policy
        return policy

    def attempted(self, nodes: NodeArrays, query: Query, row: int | None) -> None:
        """Count an attempt to place a pod, where its policy counts them.

        Args:
            nodes: The arrays.
            query: The pod, with its UID.
            row: The policy's best; None: it held the pod back from every row that fits.
        """
        counter = self._counters.get(query.request.node_policy or self.node_policy)
        if counter is not None:
            counter.attempted(nodes, query.ask.pod, row)

    def query(
        self,
        nodes: NodeArrays,
        request: PodRequest,
        cpu_milli: int,
        memory_bytes: int,
        pod: str = "",
        others: ResourceAmounts = (),
    ) -> Query:
        """Make a pod's request ready.

        Args:
            nodes: The arrays that it will be asked of, before any of them changes.
            request: What the pod asks of cards.
            cpu_milli: Thousandths of a core.
            memory_bytes: Bytes of host memory.
            pod: UID, for policies that count attempts.
            others: Amounts of further resources.

        Raises:
            RequestError: it names a node policy that does not exist.
        """
        if request.node_policy is not None and request.node_policy not in NODE_POLICIES:
            raise unknown_policy(POD_NODE_POLICY, request.node_policy, NODE_POLICIES)
        ask = self.lesson(request, cpu_milli, memory_bytes, pod, others)
        names = request.node_policy or self.node_policy, ask.card_policy
        if names not in self._looked_at:
            self._looked_at.add(names)
            self._tell_slow(slow_line(self.of(request), ask.card_policy))
        admits = self._selectors.mask(nodes, request.selector)
        return Query(request, ask if admits is None else replace(ask, admits=admits))

    def _tell_slow(self, line: str) -> None:
        if line and line not in self.told:
            self.told.append(line)
            self.slow(line)

    def lesson(
        self,
        request: PodRequest,
        cpu_milli: int,
        memory_bytes: int,
        pod: str = "",
        others: ResourceAmounts = (),
    ) -> Ask:
        """Write a pod's request for policies that learn: with the selector, without the cards it admits."""
        return Ask(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            demands=tuple(CardDemand(d.per_card, d.cards) for d in request.demands),
            card_policy=request.card_policy or self.card_policy,
            selector=request.selector,
            pod=pod,
            other_resources=others,
        )
