"""kube-scheduler of the model: a group's filter calls one after the other, then its Bindings in any order."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .api import GroupApi, ModelPod

if TYPE_CHECKING:
    from .history import GroupHistory


@dataclass(slots=True)
class PendingBind:
    """A pod that has a node since `passed_at`, and whose bind call is still to come."""

    pod: ModelPod
    node: str
    passed_at: float


class ModelScheduler:
    """One kube-scheduler: it runs one cycle at a time and sees all of the API at once.

    Attributes:
        cycle: The cycle that runs; each step of it is one filter call.
        pending: Pods that have passed and whose bind call comes some time.
    """

    def __init__(self, history: "GroupHistory", name: str) -> None:
        self.history, self.name = history, name
        self.api: GroupApi = history.api
        self.random = history.random
        self.cycle: Iterator[None] | None = None
        self.pending: list[PendingBind] = []

    def kill(self) -> None:
        """Forget everything, as its death does; another one begins anew."""
        self.cycle, self.pending = None, []

    def advance(self) -> None:
        """Make one filter call, or begin another cycle."""
        if self.cycle is None:
            self.cycle = self._begin()
        if next(self.cycle, self) is self:
            self.cycle = None

    def _begin(self) -> Iterator[None]:
        waiting = [
            pod
            for pod in self.api.pods.values()
            if pod.scheduler == self.name and not pod.node and not self._has_pending(pod)
        ]
        if not waiting:
            return iter(())
        pod = self.random.choice(waiting)
        if not pod.group:
            return self._place_single(pod)
        members = [each for each in waiting if each.group == pod.group]
        return self._place_group(pod.group, members)

    def _has_pending(self, pod: ModelPod) -> bool:
        sent = any(each.pod.uid == pod.uid and each.is_known for each in self.history.sent)
        return sent or any(each.pod.uid == pod.uid for each in self.pending)

    def _place_single(self, pod: ModelPod) -> Iterator[None]:
        node = self._filter(pod, [*self.api.nodes], {})
        if node:
            self.pending.append(PendingBind(pod, node, self.history.now))
        yield

    def _place_group(self, group: str, members: list[ModelPod]) -> Iterator[None]:
        """Try each placement, and pass all pods of one that will do; which one is chosen is random."""
        zones = [[*self.api.nodes]]
        if self.random.random() < 0.4:
            zones = [[name] for name in self.api.nodes] if self.random.random() < 0.5 else self._halves()
        self.random.shuffle(zones)
        found: list[dict[str, str]] = []
        for zone in zones:
            chosen: dict[str, str] = {}
            left = len(members)
            for pod in members:
                if pod.uid not in self.api.pods:
                    return
                node = self._filter(pod, zone, chosen)
                if node:
                    chosen[pod.uid] = node
                left -= 1
                yield
                if not self._is_feasible(group, len(chosen) + left):
                    break
            if chosen and self._is_feasible(group, len(chosen)):
                found.append(chosen)
        if found:
            chosen = self.random.choice(found)
            passed = [
                PendingBind(pod, chosen[pod.uid], self.history.now) for pod in members if pod.uid in chosen
            ]
            self.random.shuffle(passed)
            self.pending += passed

    def _halves(self) -> list[list[str]]:
        names = [*self.api.nodes]
        return [names[: len(names) // 2], names[len(names) // 2 :]]

    def _is_feasible(self, group: str, placed: int) -> bool:
        bound = sum(pod.group == group and bool(pod.node) for pod in self.api.pods.values())
        return bound + placed >= self.api.groups[group]

    def _filter(self, pod: ModelPod, zone: list[str], chosen: dict[str, str]) -> str:
        """Filter by the sum of each node, then ask the extender, and choose one of the nodes it returns."""
        names = [name for name in zone if self._has_sum(name, pod, chosen)]
        if not names:
            return ""
        body = {"Pod": pod.raw(), "Nodes": None, "NodeNames": names}
        answer = json.loads(self.history.filter(pod, json.dumps(body).encode()))
        passed = answer["NodeNames"] or []
        return self.random.choice(passed) if passed else ""

    def _has_sum(self, name: str, pod: ModelPod, chosen: dict[str, str]) -> bool:
        placed = {each.pod.uid: each.node for each in self.pending} | chosen
        used = sum(
            each.units for each in self.api.pods.values() if (each.node or placed.get(each.uid)) == name
        )
        return used + pod.units <= sum(self.api.nodes[name])
