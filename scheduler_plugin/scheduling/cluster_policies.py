"""The node policies in use: the cluster's own, and those that pods name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, POD_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.policy import card_policy, node_policy_chooses
from allocator.request import PodRequest, unknown_policy
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.card_inventory import SelectorMasks
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.scheduling.card_costs import get_array_costs
from scheduler_plugin.scheduling.policies import NODE_POLICIES, make_policy
from scheduler_plugin.scheduling.policies.registry import (
    AttemptCounter,
    BacklogReader,
    Learner,
    NodePolicy,
    PolicyRequest,
    chooses_cards,
    get_other_resources,
)
from scheduler_plugin.scheduling.request import SchedulingRequest, make_policy_request


def explain_slow_policy(policy: NodePolicy, name: str) -> str:
    """Explain that a card policy must be called node by node for a node policy; empty if it need not."""
    if not chooses_cards(policy) or node_policy_chooses(name) or get_array_costs(name) is not None:
        return ""
    return (
        f"{CARD_POLICIES.called(name)} has neither array_costs nor by_fill: node policies that look "
        "at the cards ask it node by node, up to a hundred times as slow; see docs/policies/writing.md"
    )


class ClusterPolicies:
    """The cluster's policies, and those that pods name instead.

    Raises:
        PolicyError: Error of this package for the node policy or its parameters, of allocator for the card
            policy.

    Attributes:
        learners: The policies in use that learn from what happens to pods.
        backlog_readers: The policies in use whose weights depend on the waiting pods.
        other_resources: Further resources that the policies use, sorted by name.
        resources_changed: Signals a change of `other_resources`.
        slow_policy_found: Signals, once for each card policy, why it is slow, see `explain_slow_policy`.
        warnings: Texts that `slow_policy_found` has signalled.
    """

    def __init__(
        self,
        node_policy: str = DEFAULT_NODE_POLICY,
        card_policy_name: str = DEFAULT_CARD_POLICY,
        parameters: Mapping[str, str] | None = None,
        defaults: Mapping[str, Mapping[str, str]] | None = None,
        make: Callable[[str, Mapping[str, str] | None], NodePolicy] = make_policy,
    ) -> None:
        card_policy(card_policy_name)
        self._make = make
        self.node_policy = node_policy
        self._defaults = dict(defaults or {})
        self._initial = (node_policy, dict(parameters or {}))
        self._parameters = self._with_defaults({node_policy: parameters or {}})
        self.card_policy = card_policy_name
        self._selectors = SelectorMasks()
        self._policies: dict[str, NodePolicy] = {}
        self._counters: dict[str, AttemptCounter] = {}
        self.learners: list[Learner] = []
        self.backlog_readers: list[BacklogReader] = []
        self.other_resources: tuple[str, ...] = ()
        self.resources_changed: Signal[[Sequence[str]]] = Signal()
        self.slow_policy_found: Signal[[str]] = Signal()
        self.warnings: list[str] = []
        self._checked: set[tuple[str, str]] = set()
        self._add_policy(node_policy, self._make(node_policy, self._parameters[node_policy]))

    def _with_defaults(self, parameters: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        return {
            policy: {**self._defaults.get(policy, {}), **parameters.get(policy, {})}
            for policy in (*self._defaults, *parameters)
        }

    @property
    def cluster_policy(self) -> NodePolicy:
        return self._policies[self.node_policy]

    def configure(self, node_policy: str | None, parameters: Mapping[str, Mapping[str, str]]) -> bool:
        """Replace the cluster's node policy and the parameters of policies; return True if anything changed.

        What a policy has learned is forgotten where anything changes.

        Args:
            node_policy: Its name; None: the one given to the constructor.

        Raises:
            PolicyError: a policy does not exist, or refuses its parameters; then nothing has changed.
        """
        first, texts = self._initial
        name = first if node_policy is None else node_policy
        known = self._with_defaults({first: texts, **parameters})
        if (name, known) == (self.node_policy, self._parameters):
            return False
        made = {each: self._make(each, known.get(each)) for each in {name, *known}}
        self.node_policy, self._parameters = name, known
        for kept in (self._policies, self._counters, self.learners, self.backlog_readers):
            kept.clear()
        self._set_other_resources(made.values())
        self._add_policy(name, made[name])
        return True

    def get_policy(self, request: PodRequest) -> NodePolicy:
        """Return the policy that ranks nodes for a pod: the pod's own, else the cluster's."""
        name = request.node_policy or self.node_policy
        policy = self._policies.get(name)
        if policy is None:
            policy = self._add_policy(name, self._make(name, self._parameters.get(name)))
        return policy

    def _set_other_resources(self, policies: Iterable[NodePolicy]) -> None:
        wanted = tuple(sorted({name for policy in policies for name in get_other_resources(policy)}))
        if wanted != self.other_resources:
            self.other_resources = wanted
            self.resources_changed(wanted)

    def _add_policy(self, name: str, policy: NodePolicy) -> NodePolicy:
        self._policies[name] = policy
        if not set(get_other_resources(policy)) <= set(self.other_resources):
            self._set_other_resources(self._policies.values())
        if isinstance(policy, Learner):
            self.learners.append(policy)
        if isinstance(policy, BacklogReader):
            self.backlog_readers.append(policy)
        if isinstance(policy, AttemptCounter):
            self._counters[name] = policy
        return policy

    def record_attempt(self, nodes: NodeArrays, query: SchedulingRequest, row: int | None) -> None:
        """Report an attempt to place a pod to its policy, where the policy counts attempts.

        Args:
            row: The policy's best row; None: it held the pod back from every fitting row.
        """
        counter = self._counters.get(query.request.node_policy or self.node_policy)
        if counter is not None:
            counter.record_attempt(nodes, query.policy_request.pod, row)

    def make_request(
        self,
        nodes: NodeArrays,
        request: PodRequest,
        amounts: Amounts,
        pod: str = "",
    ) -> SchedulingRequest:
        """Make the scheduling request of a pod.

        Args:
            nodes: The arrays that the request is for; it is valid until they change.
            pod: UID, for policies that count attempts.

        Raises:
            RequestError: it names a node policy that does not exist.
        """
        if request.node_policy is not None and request.node_policy not in NODE_POLICIES:
            raise unknown_policy(POD_NODE_POLICY, request.node_policy, NODE_POLICIES)
        ask = self.make_policy_request(request, amounts, pod)
        names = request.node_policy or self.node_policy, ask.card_policy
        if names not in self._checked:
            self._checked.add(names)
            line = explain_slow_policy(self.get_policy(request), ask.card_policy)
            if line and line not in self.warnings:
                self.warnings.append(line)
                self.slow_policy_found(line)
        admits = self._selectors.get_mask(nodes.inventory, request.selector)
        return SchedulingRequest(request, ask if admits is None else replace(ask, admits=admits))

    def make_policy_request(self, request: PodRequest, amounts: Amounts, pod: str = "") -> PolicyRequest:
        """Make the request as policies see it: with the selector, without the mask of admitted cards."""
        return make_policy_request(request, amounts, self.card_policy, pod=pod)
