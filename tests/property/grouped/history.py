"""PodGroups and pods on their own, two kube-schedulers and one extender, driven through random histories.

The extender reads the API late, and restarts. Bindings come in any order, fail, and take their time.
"""

import json
from dataclasses import dataclass
from typing import Final

from scheduler_plugin.binding.committer import Committer, PendingBinding
from scheduler_plugin.cache.group_holds import BINDING_HOLD_S, HOLD_S
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import uuid
from tests.property.kernel.api import Watch
from tests.property.kernel.history import History, replayable

from .api import GroupApi, ModelPod
from .scheduler import ModelScheduler, PendingBind

MAX_GROUPS: Final = 5
MAX_SINGLES: Final = 6


@dataclass(slots=True)
class SentBinding:
    """A Binding that the API server has not carried out yet.

    Attributes:
        is_known: kube-scheduler has not begun anew since, and counts the pod.
    """

    pod: ModelPod
    pending: PendingBinding
    is_known: bool = True


class GroupHistory(History):
    """One random history.

    Attributes:
        called_at: Time of the last filter call for each group.
        excused: Groups of which a Binding failed or came late, of which a pod was deleted, or whose cycle
            lost the extender: such a group may be bound in part.
    """

    longest_step_s = 0.02

    def __init__(self, seed: int, trouble: float) -> None:
        super().__init__(seed)
        self._now = 0.0
        self.trouble = trouble
        self.card_policy = self.random.choice(("least-used", "most-used"))
        self.api = GroupApi()
        for at in range(self.random.randint(2, 4)):
            sizes = tuple(self.random.randint(4, 9) for _ in range(self.random.randint(1, 3)))
            self.api.nodes[f"n{at}"] = sizes
        self.called_at: dict[str, float] = {}
        self.excused: set[str] = set()
        self.sent: list[SentBinding] = []
        self.schedulers = [ModelScheduler(self, name) for name in ("first", "second")]
        self._created = 0
        self._start_extender()
        self.actions = [
            (14.0, self._advance),
            (10.0, self._deliver),
            (9.0, self._bind),
            (9.0, self._land),
            (2.0, self._create_group),
            (2.0, self._create_single),
            (1.2, self._delete),
            (1.0 * trouble, self._nominate),
            (0.3 * trouble, self._fail_binding),
            (0.15 * trouble, self._restart_extender),
            (0.15 * trouble, self._restart_scheduler),
            (1.0, self._wait),
        ]
        self.weights = [weight for weight, _ in self.actions]

    @property
    def now(self) -> float:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds

    # ---- the extender

    def _start_extender(self) -> None:
        self.state = ClusterState()
        policies = ClusterPolicies("least-requested", self.card_policy)
        self.extender = Extender(self.state, policies, 16)
        self.committer = Committer(self.state, policies)
        self.watch = Watch(self.api.events)
        pods = [self.api.make_pod(pod) for pod in self.api.pods.values()]
        self.state.replace_pods(pods, str(self.api.version), self.now)
        self.state.pod_groups.replace_groups(self.api.make_group(name) for name in self.api.groups)
        self._publish()

    def _publish(self) -> None:
        """Have every node say that it has seen all pods that the extender has heard of."""
        if not self.watch.unread:
            nodes = [self.api.make_node(name) for name in self.api.nodes]
            self.state.replace_nodes(nodes, str(self.api.version), self.now)

    def _deliver(self) -> None:
        event = self.watch.read()
        if event is None:
            return
        if isinstance(event.item, str):
            self.state.pod_groups.put_group(self.api.make_group(event.item))
        elif event.kind == "DELETED":
            self.state.delete_pod(self.api.make_pod(event.item), str(event.version), self.now)
        else:
            self.state.apply_pod(self.api.make_pod(event.item), self.now)
        self._publish()

    def filter(self, pod: ModelPod, body: bytes) -> bytes:
        if pod.group:
            self.called_at[pod.group] = self.now
        answer = self.extender.filter(body, self.now).answer
        self._say(f"filter {pod.uid} ({pod.units}, {pod.group}): {json.loads(answer)['NodeNames']}")
        return answer

    # ---- what happens

    def _advance(self) -> None:
        self.random.choice(self.schedulers).advance()

    def _bind(self, bind: PendingBind | None = None) -> None:
        """Have one bind call come, for a pod that the extender knows."""
        pending = [(each, scheduler) for scheduler in self.schedulers for each in scheduler.pending]
        if not pending:
            return
        bind, scheduler = self.random.choice(pending)
        known = self.state.pods.get(bind.pod.uid)
        current = self.api.pods.get(bind.pod.uid)
        if known is None and current is not None:
            return  # it waits until the extender has heard of the pod
        scheduler.pending.remove(bind)
        if current is None:
            return
        if self.now - bind.passed_at >= HOLD_S:
            self._excuse(bind.pod.group, "a Binding came late")
        try:
            pending_binding = self.committer.assume(
                "default", bind.pod.uid, bind.pod.uid, bind.node, self.now
            )
        except CommitError as error:
            self._say(f"bind {bind.pod.uid} on {bind.node}: {error}")
            self.extender.record_bind_failure(bind.pod.uid, bind.node, self.now)
            return
        self._say(f"bind {bind.pod.uid} on {bind.node}: sent, {pending_binding.assigned}")
        self.sent.append(SentBinding(bind.pod, pending_binding))

    def _land(self) -> None:
        """Have the API server carry out a Binding."""
        if not self.sent:
            return
        sent = self.sent.pop(self.random.randrange(len(self.sent)))
        pod = self.api.pods.get(sent.pod.uid)
        if pod is None or pod.node:
            return
        assumed = sent.pending.assumed
        assert assumed is not None
        assert assumed.assigned is not None
        ((card, _),) = assumed.assigned["main"]
        cards = {uuid(assumed.node, at): at for at in range(len(self.api.nodes[assumed.node]))}
        self.api.put_pod(pod, node=assumed.node, card=cards[card], nominated="")
        self._say(f"bound {pod.uid} on {assumed.node}, card {cards[card]}")

    def _fail_binding(self) -> None:
        if not self.sent:
            return
        sent = self.sent.pop(self.random.randrange(len(self.sent)))
        assumed = sent.pending.assumed
        assert assumed is not None
        self.state.forget(assumed, self.now)
        self.extender.record_bind_failure(sent.pod.uid, assumed.node, self.now)
        self._excuse(sent.pod.group, f"the Binding of {sent.pod.uid} failed")

    def _nominate(self) -> None:
        """Have kube-scheduler write the node into a pod whose Binding it has sent, or is about to send."""
        placed = [(each.pod.uid, each.node) for scheduler in self.schedulers for each in scheduler.pending]
        placed += [(each.pod.uid, each.pending.node) for each in self.sent]
        placed = [(uid, node) for uid, node in placed if uid in self.api.pods and not self.api.pods[uid].node]
        if placed:
            uid, node = self.random.choice(placed)
            self.api.put_pod(self.api.pods[uid], nominated=node)

    def _create_group(self) -> None:
        alive = {pod.group for pod in self.api.pods.values() if pod.group}
        if len(alive) >= MAX_GROUPS:
            return
        self._created += 1
        name = f"g{self._created}"
        size = self.random.randint(2, 5)
        self.api.put_group(name, size if self.random.random() < 0.6 else self.random.randint(2, size))
        scheduler = self.random.choice(self.schedulers).name
        for at in range(size):
            self.api.put_pod(ModelPod(f"{name}-{at}", self.random.randint(2, 7), name, scheduler, 0))

    def _create_single(self) -> None:
        if sum(not pod.group for pod in self.api.pods.values()) < MAX_SINGLES:
            self._created += 1
            scheduler = self.random.choice(self.schedulers).name
            self.api.put_pod(ModelPod(f"s{self._created}", self.random.randint(1, 6), "", scheduler, 0))

    def _delete(self) -> None:
        """Delete a pod on its own, or all pods of a group; now and then a single pod of a group."""
        if not self.api.pods:
            return
        pod = self.random.choice([*self.api.pods.values()])
        if pod.group and self.random.random() < 0.9:
            gone = [each.uid for each in self.api.pods.values() if each.group == pod.group]
        else:
            gone = [pod.uid]
            self._excuse(pod.group, f"{pod.uid} is deleted")
        for uid in gone:
            self.api.delete_pod(uid)

    def _restart_extender(self) -> None:
        """Begin anew, once the Bindings that were sent are carried out: its fence waits for that."""
        while self.sent:
            self._land()
        for pod in self.api.pods.values():
            if not pod.node:
                self._excuse(pod.group, "the extender began anew")
        self._start_extender()

    def _restart_scheduler(self) -> None:
        scheduler = self.random.choice(self.schedulers)
        for bind in scheduler.pending:
            self._excuse(bind.pod.group, "kube-scheduler began anew")
        scheduler.kill()
        for sent in self.sent:
            sent.is_known = False

    def _wait(self) -> None:
        """Let much time pass; a cycle of kube-scheduler takes less."""
        if all(scheduler.cycle is None for scheduler in self.schedulers):
            self._now += self.random.uniform(0, 2 * HOLD_S)

    def _excuse(self, group: str, why: str) -> None:
        if group:
            self._say(f"{group} is excused: {why}")
            self.excused.add(group)

    # ---- what must hold

    def check(self) -> None:
        self._check_cards()
        self._check_groups()
        self._check_holds()

    def _check_cards(self) -> None:
        used: dict[tuple[str, int], int] = {}
        for pod in self.api.pods.values():
            if pod.node:
                place = (pod.node, pod.card)
                used[place] = used.get(place, 0) + pod.units
        for (node, card), units in used.items():
            if units > self.api.nodes[node][card]:
                self._fail(f"card {card} of {node} has {units} of {self.api.nodes[node][card]} units")

    def _check_groups(self) -> None:
        """No group is bound in part while nothing has gone wrong and no Binding of it is to come."""
        coming = {each.pod.group for scheduler in self.schedulers for each in scheduler.pending}
        coming |= {each.pod.group for each in self.sent}
        for name in {pod.group for pod in self.api.pods.values()} - coming - self.excused - {""}:
            bound = sum(pod.group == name and bool(pod.node) for pod in self.api.pods.values())
            if 0 < bound < self.api.groups[name]:
                self._fail(f"{bound} of {self.api.groups[name]} pods of {name} are bound")

    def _check_holds(self) -> None:
        """Nothing is held for a pod that is bound, assumed or gone, nor for longer than is promised."""
        self.state.expire_tombstones(self.now)
        for uid, node in self.state.reservations.held:
            pod = self.state.pods.get(uid)
            # A pod of which the extender has not heard yet can be asked about.
            heard_of = pod is not None or uid in self.api.pods or self.watch.unread
            if not heard_of or (pod is not None and not self.state.is_pending(uid)):
                self._fail(f"a card of {node} is held for {uid}, which is not waiting")
            group = uid.partition("-")[0]
            held_s = self.now - self.called_at[group]
            binding = any(each.pod.group == group for each in self.sent) or any(
                each.nominated or self.state.get_assumed(each.uid) is not None
                for each in self.state.pods.values()
                if each.scheduling_group == ("default", group)
            )
            if held_s >= (BINDING_HOLD_S if binding else HOLD_S):
                self._fail(f"a card of {node} is held for {uid} {held_s:.1f} s after the last call")

    def rest(self) -> None:
        """Let everything arrive: then a pod passes filter just where a card has room for it."""
        while self.watch.unread:
            self._deliver()
        for scheduler in self.schedulers:
            scheduler.cycle = None
        while any(scheduler.pending for scheduler in self.schedulers) or self.sent:
            self._bind()
            self._land()
            while self.watch.unread:
                self._deliver()
        self.check()
        self._now += BINDING_HOLD_S
        self.state.expire_tombstones(self.now)
        if self.state.reservations.held:
            self._fail(f"held at rest: {[*self.state.reservations.held]}")
        free = self._list_free()
        for units in range(1, 10):
            probe = ModelPod(f"probe{units}", units, "", "first", 1)
            body = {"Pod": probe.raw(), "Nodes": None, "NodeNames": [*self.api.nodes]}
            passed = json.loads(self.extender.filter(json.dumps(body).encode(), self.now).answer)["NodeNames"]
            fits = {node for node, left in free.items() if max(left) >= units}
            if set(passed or ()) != fits:
                self._fail(f"{units} units pass on {passed}, there is room on {fits}")

    def _list_free(self) -> dict[str, list[int]]:
        free = {name: [*sizes] for name, sizes in self.api.nodes.items()}
        for pod in self.api.pods.values():
            if pod.node:
                free[pod.node][pod.card] -= pod.units
        return free

    def end(self) -> None:
        self.rest()


@replayable
def run(seed: int, steps: int, trouble: float = 1.0) -> GroupHistory:
    """Run one history.

    Raises:
        ViolationError: something does not hold.
    """
    history = GroupHistory(seed, trouble)
    history.play(steps)
    return history
