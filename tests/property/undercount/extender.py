"""The extender of the model: the shipped state and committer, fed late, in odd orders, twice, or anew."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from kubeapi.objects import Node
from scheduler_plugin.binding.committer import Committer, PendingBinding
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.property.kernel.api import Event, Watch

from .world import UNIT_MIB, ModelPod, World

FENCE_S = 5.0
"""A Binding without an answer takes effect within this time or never."""


@dataclass
class Binding:
    """A request under way: sent, not carried out yet.

    Attributes:
        commitment: what it is made of.
        until: it takes effect by then or never.
        heard: whether its answer will arrive.
        ours: the extender that sent it still runs.
    """

    commitment: PendingBinding
    until: float
    heard: bool
    ours: bool = True


class ModelExtender:
    """The cluster's extender.

    Attributes:
        never_heard_of: pods that a Binding of the process before bound, or another scheduler, and that were
            deleted before this one had its list: the kubelet may still admit them.
    """

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.node_watch, self.pod_watch = Watch(world.node_events), Watch(world.pod_events)
        self.now = 0.0
        self.bindings: list[Binding] = []
        self.unheard: list[Binding] = []
        self.closed_until: float | None = None
        self.never_heard_of: list[ModelPod] = []
        self.start()

    def start(self) -> None:
        """Begin with an empty memory and consistent lists; requests of the one before may still land."""
        self.state = ClusterState(UNIT_MIB)
        self.committers = [
            Committer(self.state, ClusterPolicies(card_policy_name=policy))
            for policy in ("least-used", "most-used")
        ]
        self.unheard.clear()
        for binding in self.bindings:
            binding.ours = False
        self.closed_until = self.now + FENCE_S
        self.relist_nodes()
        self.relist_pods()

    def relist_nodes(self) -> None:
        self.state.replace_nodes(list(self.world.nodes.values()), str(self.world.version), self.now)
        self.node_watch.skip()

    def relist_pods(self) -> None:
        pods = [pod.lite for pod in self.world.pods.values()]
        self.state.replace_pods(pods, str(self.world.version), self.now)
        self.pod_watch.skip()

    @property
    def heard(self) -> int:
        """Version of the newest event of pods that it has."""
        watch = self.pod_watch
        return watch.log[watch.cursor - 1].version if watch.cursor else 0

    def unheard_of(self) -> list[ModelPod]:
        """Bound pods that have ended and of whose end it has not heard."""
        ended = [e.item for e in self.pod_watch.unread if e.kind == "DELETED" or e.item.ended]
        return [pod for pod in ended if pod.node]

    def deliver_node(self) -> bool:
        return self._deliver(self.node_watch, self._take_node)

    def deliver_pod(self) -> bool:
        return self._deliver(self.pod_watch, self._take_pod)

    def _deliver(self, watch: Watch[Any], take: Callable[[Any], None]) -> bool:
        """Take the next event; at times an old one comes again."""
        event = watch.read()
        if event is None:
            return False
        take(event)
        if self.random.random() < 0.02:
            take(watch.log[self.random.randrange(watch.cursor)])
        return True

    def _take_node(self, event: Event[Node]) -> None:
        if event.kind == "DELETED":
            self.state.delete_node(event.item.metadata.name, str(event.version), self.now)
        else:
            self.state.apply_node(event.item, self.now)

    def _take_pod(self, event: Event[ModelPod]) -> None:
        if event.kind == "DELETED":
            self.state.delete_pod(event.item.lite, str(event.version), self.now)
        else:
            self.state.apply_pod(event.item.lite, self.now)

    def schedule(self, pod: ModelPod) -> bool:
        """Take cards for a pod on any node where it fits, and send the Binding."""
        if not self._open():
            return False
        committer = self.random.choice(self.committers)
        for name in self.candidates(pod):
            try:
                commitment = committer.assume("default", pod.name, pod.uid, name, self.now)
            except CommitError:
                continue
            heard = self.random.random() < 0.9
            self.bindings.append(Binding(commitment, self.now + FENCE_S, heard))
            return True
        return False

    def candidates(self, pod: ModelPod) -> list[str]:
        """Nodes that kube-scheduler may choose for a pod, in the order in which it tries them."""
        names = list(self.state.nodes.rows)
        self.random.shuffle(names)
        return names

    def _open(self) -> bool:
        """Bind only once no Binding of the one before can land any more, and all that landed are known."""
        if self.closed_until is not None and self.now >= self.closed_until:
            self.never_heard_of += self.unheard_of()
            self.relist_pods()
            self.read_words_anew()
            self.closed_until = None
        return self.closed_until is None

    def read_words_anew(self) -> None:
        """The list of nodes after that of pods: of pods that it never heard of only words tell."""
        self.relist_nodes()

    def settle_binding(self) -> bool:
        """One Binding reaches the API server, or never does; its answer arrives, or does not."""
        if not self.bindings:
            return False
        binding = self.bindings.pop(self.random.randrange(len(self.bindings)))
        commitment = binding.commitment
        pod = commitment.pod
        lost = not binding.heard and self.random.random() < 0.5
        done = not lost and self.world.bind(
            pod.name, pod.uid, int(pod.resource_version), commitment.node, commitment.assigned, ours=True
        )
        if not binding.ours:
            return True
        if not binding.heard:
            self._doubt(binding)
        elif not done:
            # What the watch has not brought yet, say that somebody else bound it, counts from now.
            self._read(commitment)
            self._roll_back(commitment)
        return True

    def _doubt(self, binding: Binding) -> None:
        """A Binding without an answer is looked at again, as `Binder` does."""
        self.unheard.append(binding)

    def read_again(self) -> None:
        """Read pods whose Binding got no answer, once it can no longer take effect, as `Binder` does."""
        for binding in [binding for binding in self.unheard if binding.until <= self.now]:
            self.unheard.remove(binding)
            pod = self._read(binding.commitment)
            if pod is not None and pod.node != binding.commitment.node:
                self._roll_back(binding.commitment)

    def _read(self, commitment: PendingBinding) -> ModelPod | None:
        pod = self.world.pods.get(commitment.pod.name)
        if pod is None or pod.uid != commitment.pod.uid:
            return None
        self.state.apply_pod(pod.lite, self.now)
        return pod

    def _roll_back(self, commitment: PendingBinding) -> None:
        if commitment.assumed is not None:
            self.state.forget(commitment.assumed, self.now)

    def settle_due(self) -> None:
        """No Binding outlives the fence."""
        while any(binding.until <= self.now + 1.0 for binding in self.bindings):
            self.settle_binding()
        self.read_again()
