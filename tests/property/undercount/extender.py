"""The extender of the model: the shipped state, fed late, in odd orders, twice, or anew."""

from dataclasses import dataclass
from random import Random

from allocator.place import place
from allocator.records import dump_assigned
from scheduler_plugin.filtering import cards_of
from scheduler_plugin.pods import shapes
from scheduler_plugin.state import ClusterState
from scheduler_plugin.state_rules import Rules, Take

from .world import Event, ModelPod, World

FENCE_S = 5.0
"""A Binding without an answer takes effect within this time or never."""


@dataclass
class Binding:
    """A request under way: sent, not carried out yet; `heard` tells whether its answer will arrive."""

    pod: ModelPod
    node: str
    assigned: str
    take: Take | None
    until: float
    heard: bool


class ModelExtender:
    """The cluster's extender; `rules` lets a mutant in."""

    def __init__(self, world: World, random: Random, rules: type[Rules]) -> None:
        self.world, self.random, self.rules = world, random, rules
        self.now = 0.0
        self.bindings: list[Binding] = []
        self.unheard: list[Binding] = []
        self.closed_until: float | None = None
        self.start()

    def start(self) -> None:
        """Begin with an empty memory and consistent lists; requests of the one before may still land."""
        self.state = ClusterState(1024, rules=self.rules())
        self.unheard.clear()
        for binding in self.bindings:
            binding.take, binding.heard = None, False
        self.closed_until = self.now + FENCE_S
        self.relist_nodes()
        self.relist_pods()

    def relist_nodes(self) -> None:
        self.state.replace_nodes(list(self.world.nodes.values()), str(self.world.version), self.now)
        self.node_cursor = len(self.world.node_events)

    def relist_pods(self) -> None:
        pods = [pod.lite for pod in self.world.pods.values()]
        self.state.replace_pods(pods, str(self.world.version), self.now)
        self.pod_cursor = len(self.world.pod_events)

    def deliver_node(self) -> bool:
        if self.node_cursor == len(self.world.node_events):
            return False
        self._take_node(self.world.node_events[self.node_cursor])
        self.node_cursor += 1
        if self.random.random() < 0.02:
            self._take_node(self.world.node_events[self.random.randrange(self.node_cursor)])
        return True

    def deliver_pod(self) -> bool:
        if self.pod_cursor == len(self.world.pod_events):
            return False
        self._take_pod(self.world.pod_events[self.pod_cursor])
        self.pod_cursor += 1
        if self.random.random() < 0.02:
            self._take_pod(self.world.pod_events[self.random.randrange(self.pod_cursor)])
        return True

    def _take_node(self, event: Event) -> None:
        assert event.node is not None
        if event.kind == "DELETED":
            self.state.delete_node(event.node.metadata.name, str(event.version), self.now)
        else:
            self.state.apply_node(event.node, self.now)

    def _take_pod(self, event: Event) -> None:
        assert event.pod is not None
        if event.kind == "DELETED":
            self.state.delete_pod(event.pod.lite, str(event.version), self.now)
        else:
            self.state.apply_pod(event.pod.lite, self.now)

    def schedule(self, pod: ModelPod, policy: str) -> bool:
        """Filter, commit and send the Binding of a pod that this extender knows in this version."""
        self.state.expire(self.now)
        if not self._open():
            return False
        record = self.state.pods.get(pod.uid)
        if record is None or record.node or record.version != pod.version or self.state.taken(pod.uid):
            return False
        busy = self.state.busy_nodes(shapes(pod.request))
        names = [name for name in self.state.nodes.rows if name not in busy]
        self.random.shuffle(names)
        for name in names:
            row = self.state.nodes.rows[name]
            cards = cards_of(self.state.nodes, row)
            placement = place(cards, pod.request, policy) if cards else None
            if placement is None:
                continue
            uuid = {card.index: card.uuid for card in cards}
            assigned = {
                container: tuple((uuid[index], units) for index, units in shares)
                for container, shares in placement.containers
            }
            take = self.state.take(pod.uid, name, assigned, self.now)
            heard = self.random.random() < 0.9
            self.bindings.append(Binding(pod, name, dump_assigned(assigned), take, self.now + FENCE_S, heard))
            return True
        return False

    def _open(self) -> bool:
        """Bind only once no Binding of the one before can land any more, and all that landed are known."""
        if self.closed_until is not None and self.now >= self.closed_until:
            self.relist_pods()
            self.closed_until = None
        return self.closed_until is None

    def settle_binding(self) -> bool:
        """One Binding reaches the API server, or never does; its answer arrives, or does not."""
        if not self.bindings:
            return False
        binding = self.bindings.pop(self.random.randrange(len(self.bindings)))
        pod = binding.pod
        lost = not binding.heard and self.random.random() < 0.5
        done = not lost and self.world.bind(
            pod.name, pod.uid, pod.version, binding.node, binding.assigned, ours=True
        )
        if binding.take is not None:
            if not binding.heard:
                self.unheard.append(binding)
            elif not done:
                self.state.roll_back(binding.take, self.now)
        return True

    def read_again(self) -> None:
        """Read pods whose Binding got no answer, once it can no longer take effect, as `Binder` does."""
        for binding in [binding for binding in self.unheard if binding.until <= self.now]:
            self.unheard.remove(binding)
            pod = self.world.pods.get(binding.pod.name)
            if pod is not None and pod.uid == binding.pod.uid:
                self.state.apply_pod(pod.lite, self.now)
                if pod.node != binding.node and binding.take is not None:
                    self.state.roll_back(binding.take, self.now)

    def settle_due(self) -> None:
        """No Binding outlives the fence."""
        while any(binding.until <= self.now + 1.0 for binding in self.bindings):
            self.settle_binding()
        self.read_again()
