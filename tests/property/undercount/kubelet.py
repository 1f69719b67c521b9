"""The kubelet of the model: its device manager as measured, with everything that it forgets or hides.

It hides ordinary init containers from the list, frees the devices of pods that are gone only at the next
admission, forgets its list when it restarts and sometimes its checkpoint, and tells pods apart by name only.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from allocator.errors import AllocatorError
from allocator.ids import parse_device_id
from allocator.ledger import Listed

from .world import ModelPod, World


@dataclass
class Admission:
    """A pod that is being admitted, and the next of its containers."""

    pod: ModelPod
    next: int = 0
    reusable: set[str] = field(default_factory=set)


class ModelKubelet:
    """One node's kubelet.

    Attributes:
        truth: device IDs that each pod's containers were told of, by UID, until nothing of the pod runs.
        refused: pods that failed admission, with the reason.
        late: pods deleted before they were admitted, or whose Node was deleted with all that it said.
        amnesia: pods that run although the kubelet has forgotten which devices they have.
    """

    def __init__(self, node: str, world: World, random: Random, ids: frozenset[str]) -> None:
        self.node, self.world, self.random, self.ids = node, world, random, ids
        self.cursor = 0
        self.known: dict[str, ModelPod] = {}
        self.queue: list[str] = []
        self.admitting: Admission | None = None
        self.admitted: set[str] = set()
        self.devices: dict[str, dict[str, set[str]]] = {}
        self.running: set[str] = set()
        self.to_start: list[str] = []
        self.synced = True
        self.truth: dict[str, set[str]] = {}
        self.refused: list[tuple[ModelPod, str]] = []
        self.amnesia: set[str] = set()
        self.finished: set[str] = set()
        self.late: set[str] = set()

    # What it reads from the API.

    def deliver(self) -> bool:
        """Read one event; False when there is none."""
        while self.synced and self.cursor < len(self.world.pod_events):
            event = self.world.pod_events[self.cursor]
            self.cursor += 1
            pod = event.pod
            assert pod is not None
            if pod.node != self.node:
                continue
            if event.kind == "DELETED":
                self._forget(pod.uid)
            else:
                self._learn(pod)
            return True
        return False

    def _learn(self, pod: ModelPod) -> None:
        if pod.ended or pod.uid in self.finished:
            self._forget(pod.uid)
        elif pod.uid in self.known:
            self.known[pod.uid] = pod
        else:
            self.known[pod.uid] = pod
            if pod.uid not in self.admitted:
                self.queue.append(pod.uid)

    def _forget(self, uid: str) -> None:
        self.known.pop(uid, None)
        if uid in self.queue:
            self.queue.remove(uid)
        if self.admitting is not None and self.admitting.pod.uid == uid:
            self.admitting = None
        self.admitted.discard(uid)
        if uid in self.to_start:
            self.to_start.remove(uid)
        if uid not in self.running:
            self.truth.pop(uid, None)

    # Admission, a container at a time.

    def admit(self, daemon: "Plugin") -> bool:
        """Admit the next container of the pod at hand, or take up the oldest pod."""
        if not self.synced:
            return False
        if self.admitting is None:
            if not self.queue:
                return False
            oldest = min(self.queue, key=lambda uid: self.known[uid].created)
            uid = oldest if self.random.random() < 0.7 else self.queue[0]  # one batch, or as they came
            self.queue.remove(uid)
            self.admitting = Admission(self.known[uid])
        admission = self.admitting
        if admission.next == len(admission.pod.request.containers):
            self._admitted(admission.pod.uid)
            return True
        container = admission.pod.request.containers[admission.next]
        try:
            self._container(admission, container.name, container.units, container.kind, daemon)
        except AllocatorError as error:
            self._refuse(admission.pod, str(error))
            return True
        admission.next += 1
        if admission.next == len(admission.pod.request.containers):
            self._admitted(admission.pod.uid)
        return True

    def _container(self, admission: Admission, name: str, units: int, kind: str, daemon: "Plugin") -> None:
        uid = admission.pod.uid
        mine = self.devices.setdefault(uid, {})
        if name not in mine:
            for other in [other for other in self.devices if other not in self.known]:
                del self.devices[other]
            taken = set(self.random.sample(sorted(admission.reusable), min(units, len(admission.reusable))))
            if len(taken) < units:
                taken |= self._choose(taken, units, daemon)
            daemon.allocate(frozenset(taken))
            mine[name] = taken
            self.truth.setdefault(uid, set()).update(taken)
        if kind == "init":
            admission.reusable |= mine[name]
        else:
            admission.reusable -= mine[name]

    def _choose(self, taken: set[str], units: int, daemon: "Plugin") -> set[str]:
        in_use = set().union(*(ids for by in self.devices.values() for ids in by.values()))
        available = self.ids - in_use
        needed = units - len(taken)
        if len(available) < needed:
            raise AllocatorError(f"requested {needed} devices, available {len(available)}")
        preferred = set(daemon.preferred(frozenset(available | taken), frozenset(taken), units)) & available
        chosen = set(sorted(preferred)[:needed])
        if len(preferred) > needed:
            chosen = set(self.random.sample(sorted(preferred), needed))
        if len(chosen) < needed:
            chosen |= set(self.random.sample(sorted(available - chosen), needed - len(chosen)))
        return chosen

    def _admitted(self, uid: str) -> None:
        known = self.world.pods.get(self.known[uid].name)
        if known is None or known.uid != uid:
            self.late.add(uid)
        self.admitted.add(uid)
        self.running.add(uid)
        self.to_start.append(uid)
        self.admitting = None

    def _refuse(self, pod: ModelPod, reason: str) -> None:
        self.refused.append((pod, reason))
        self.finished.add(pod.uid)
        self._forget(pod.uid)
        self.world.change(pod.name, pod.uid, phase="Failed")

    # What it does by itself.

    def start_one(self) -> bool:
        """Tell the API that a pod has started."""
        if not self.to_start:
            return False
        uid = self.to_start.pop(0)
        pod = self.known.get(uid)
        if pod is not None:
            self.world.change(pod.name, uid, started=True, phase="Running")
        return True

    def reap_one(self) -> bool:
        """The containers of one pod that is gone end."""
        for uid in sorted(self.running):
            if self.synced and uid not in self.known:
                self.running.discard(uid)
                self.truth.pop(uid, None)
                return True
        return False

    def finish(self, uid: str, *, deleted: bool) -> None:
        """A pod's containers end by themselves, or are stopped for a graceful deletion."""
        pod = self.known.get(uid)
        if pod is None or uid not in self.running:
            return
        self.running.discard(uid)
        self.finished.add(uid)
        self._forget(uid)
        if deleted:
            self.world.delete(pod.name, uid)
        else:
            self.world.change(pod.name, uid, phase="Succeeded")

    def list(self) -> list[Listed]:
        """PodResources: main containers and sidecars of the pods it knows, without any UID."""
        if not self.synced:
            return []
        shown = []
        for uid, pod in self.known.items():
            kinds = {container.name: container.kind for container in pod.request.containers}
            for name, ids in self.devices.get(uid, {}).items():
                if kinds[name] != "init":
                    shown.append(Listed("default", pod.name, name, frozenset(ids)))
        return shown

    def occupied(self) -> dict[str, int]:
        """Units in use by card: by pods, and by containers that linger after their pod was deleted.

        Without those of pods in `late`: nobody can wait for what nobody knows.
        """
        return self.units((self.admitted | self.running) - self.late)

    def units(self, uids: Collection[str]) -> dict[str, int]:
        """Units by card that these pods were told of.

        IDs of different pods count each: a forgetful kubelet gives them out again.
        """
        units: dict[str, int] = {}
        for uid in uids:
            for text in self.truth.get(uid, ()):
                uuid = parse_device_id(text)[0]
                units[uuid] = units.get(uuid, 0) + 1
        return units

    def unknowable(self) -> bool:
        """Whether it has a pod whose cards the list does not tell.

        One whose devices it has forgotten, or one with an ordinary init container on several cards.
        """
        split = any(
            self.known[uid].request.shared and len({parse_device_id(text)[0] for text in self.truth[uid]}) > 1
            for uid in self.admitted
        )
        return split or bool(self.amnesia & self.admitted)

    # Restart.

    def restart(self, *, checkpoint_lost: bool) -> None:
        self.synced = False
        self.queue.clear()
        self.to_start.clear()
        self.known.clear()
        self.admitting = None
        if checkpoint_lost:
            self.devices.clear()
            self.amnesia |= self.admitted
            self.truth = {uid: ids for uid, ids in self.truth.items() if uid in self.running}

    def sync(self) -> None:
        """Learn all pods from the API again; those that run stay as they are."""
        self.cursor = len(self.world.pod_events)
        self.synced = True
        mine = [pod for pod in self.world.pods.values() if pod.node == self.node]
        for uid in list(self.admitted):
            if uid not in {pod.uid for pod in mine}:
                self._forget(uid)
        for pod in sorted(mine, key=lambda pod: pod.created):
            self._learn(pod)
            if pod.uid in self.admitted and pod.uid in self.known and not pod.started:
                self.to_start.append(pod.uid)


class Plugin:
    """What the kubelet calls: the device plugin's two decisions."""

    def preferred(
        self, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        raise NotImplementedError

    def allocate(self, ids: frozenset[str]) -> None:
        raise NotImplementedError
