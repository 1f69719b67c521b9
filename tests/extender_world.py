"""A state with the extender on it, and its verbs as kube-scheduler calls them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import node


class World:
    """A state with an extender on it, and calls in Go's spelling."""

    def __init__(self, shortlist: int = 16, policy: str = "least-requested") -> None:
        self.state = ClusterState()
        self.policies = ClusterPolicies(policy, "least-used")
        self.extender = Extender(self.state, self.policies, shortlist)
        self.offers = self.extender.filter_results
        self.version = 1

    def node(self, name: str, *args: Any, **options: Any) -> None:
        self.version += 1
        self.state.apply_node(node(name, *args, version=self.version, **options), 0)

    def body(self, the_pod: Mapping[str, Any], names: Sequence[str] | None = None) -> bytes:
        names = sorted(self.state.nodes.rows) if names is None else names
        return json.dumps({"Pod": the_pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()

    def filter(
        self, the_pod: Mapping[str, Any], names: Sequence[str] | None = None, **more: Any
    ) -> dict[str, Any]:
        return check(json.loads(self.extender.filter(self.body(the_pod, names), 0, **more).answer))

    def prioritize(
        self, the_pod: Mapping[str, Any], names: Sequence[str] | None = None, **more: Any
    ) -> dict[str, int]:
        answer = json.loads(self.extender.prioritize(self.body(the_pod, names), 0, **more))
        return {entry["Host"]: entry["Score"] for entry in answer}


def check(answer: dict[str, Any]) -> dict[str, Any]:
    assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    if answer["NodeNames"]:
        assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}
    return answer
