"""The kubelet of the model: its device manager and its checkpoint, as read in its source and measured.

Memory and file are apart: the checkpoint is written at the end of each container's allocation, a moment late
at times, and whenever the plugin sends its list. Pods that are gone are dropped from memory at the next
admission, or when PodResources is asked. After a restart it knows what the file says, and its first batch of
pods is admitted before anything is dropped.
"""

from collections import Counter
from collections.abc import Collection
from random import Random

from allocator.errors import AllocatorError
from allocator.ledger import CheckpointEntry
from allocator.names import PERCENT_RESOURCE
from tests.property.kernel.api import Watch

from .deviceids import UnitsByCard, card_of, joined
from .plugin import Admission, Checkpoint, Plugin
from .world import RESOURCE, ModelPod, World

AWAITED_S = 9.0
"""The kubelet hears of a deletion within this time; a node keeps the pod's place a little longer."""

START_S = 8.0
"""A container that the kubelet has begun to start runs by then, though its pod was deleted."""


class ModelKubelet:
    """One node's kubelet.

    Args:
        ids: of its resource for units.
        percent: of its resource for percent.
        sizes: units of the cards by UUID, which the kubelet itself does not know.

    Attributes:
        devices: its memory: device IDs by UID and container.
        file: the checkpoint, None where there is none.
        torn: the checkpoint cannot be read until it is written again.
        truth: sets of device IDs that each pod's containers were told of, by UID, until nothing of it runs.
        running: pods with a container's cgroup.
        starting: pods that are gone and whose containers may come up all the same, until when.
        refused: pods that failed admission for want of devices, with the reason.
        late: pods deleted before they had devices or were admitted, that nobody could wait for; or whose Node
            was deleted with all that it said.
        awaited: pods that the plugin had to expect when it was asked for them, though they are deleted.
        overdue: it gave devices to a pod of whose deletion it should have heard long ago, or that is bound
            here again under its name.
        gave: cards of which it has given devices since somebody looked.
        mute: its PodResources does not answer; then only the checkpoint says whose an Allocate was.
        gone: cards that its plugin's list lacks, or calls unhealthy.
        overwrites: how often an older copy of the checkpoint takes a newer one's place.
        overwritten: the checkpoint is such a copy, or has been and no pod that is gone was dropped since.
    """

    def __init__(
        self,
        node: str,
        world: World,
        random: Random,
        ids: frozenset[str],
        percent: frozenset[str],
        sizes: dict[str, int],
    ) -> None:
        self.node, self.world, self.random, self.ids = node, world, random, ids
        self.percent = percent
        self.known: dict[str, ModelPod] = {}
        self.queue: list[str] = []
        self.admitting: Admission | None = None
        self.admitted: set[str] = set()
        self.devices: dict[str, dict[str, frozenset[str]]] = {}
        self.file: Checkpoint | None = None
        self.overwrites = random.choice((0.01, 0.01, 0.1))
        self.torn = self.overwritten = self.overdue = self.mute = False
        self.unwritten: Checkpoint | None = None
        self.running: set[str] = set()
        self.to_run: list[str] = []
        self.starting: dict[str, float] = {}
        self.to_start: list[str] = []
        self.now, self.watch, self.synced = 0.0, Watch(world.pod_events), True
        self.batch: set[str] = set()
        self.truth: dict[str, set[frozenset[str]]] = {}
        self.refused: list[tuple[ModelPod, str]] = []
        self.finished: set[str] = set()
        self.late: set[str] = set()
        self.awaited: set[str] = set()
        self.gave: set[str] = set()
        self.gone: set[str] = set()
        self._by_card = UnitsByCard(percent, sizes)

    # Its checkpoint.

    def _snapshot(self) -> Checkpoint:
        return Checkpoint(
            tuple(
                CheckpointEntry(uid, name, PERCENT_RESOURCE if ids & self.percent else RESOURCE, ids)
                for uid, mine in self.devices.items()
                for name, ids in mine.items()
            )
        )

    def write(self) -> None:
        """Replace the file by what the memory says."""
        self._put(self._snapshot())

    def _put(self, checkpoint: Checkpoint) -> None:
        self.file, self.torn, self.unwritten = checkpoint, False, None
        self.overwritten = self.overwritten and not self.devices.keys() <= self.known.keys()

    def flush(self) -> None:
        """Write what was put off; at times an older copy comes after it."""
        if self.unwritten is None:
            return
        before = self.file
        self._put(self.unwritten)
        if before is not None and self.random.random() < self.overwrites:
            self.file, self.overwritten = Checkpoint(before.entries), True

    def take_list(self) -> None:
        """Take a list of devices from a plugin that registers, which always writes the checkpoint."""
        now = Counter(self._snapshot().entries)
        there = Counter(self.file.entries if self.file is not None else ())
        if self.unwritten is None and (self.torn or now != there):
            self.write()

    def clean(self) -> None:
        """Answer PodResources, which drops what is not active, and take a list of devices, which writes."""
        if self.synced and not self.batch:
            self._drop_inactive()
        self.write()

    def _drop_inactive(self) -> None:
        self.devices = {uid: mine for uid, mine in self.devices.items() if uid in self.known}

    def served(self) -> set[str]:
        """Pods of which it knows what all of their containers have."""
        return {
            uid
            for uid, mine in self.devices.items()
            if uid in self.known and mine.keys() >= {name for name, _, _ in self.known[uid].containers}
        }

    # What it reads from the API.

    def deliver(self) -> bool:
        """Read one event; False when there is none."""
        while self.synced and (event := self.watch.read()) is not None:
            pod = event.item
            if pod.node != self.node:
                continue
            if event.kind == "DELETED":
                self._forget(pod.uid)
            else:
                self._learn(pod)
            return True
        return False

    def relist(self) -> None:
        """Its watch broke: what it missed comes as one batch, the oldest pod first."""
        before = len(self.queue)
        while self.deliver():
            pass
        self.queue[before:] = sorted(self.queue[before:], key=lambda uid: self.known[uid].created)

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
        if uid in self.to_run and self.random.random() < 0.3:
            self.starting[uid] = self.now + START_S
        self.batch.discard(uid)
        self.admitted.discard(uid)
        for waiting in (self.to_start, self.to_run):
            if uid in waiting:
                waiting.remove(uid)
        if uid not in self.running and uid not in self.starting:
            self.truth.pop(uid, None)

    # Admission, a container at a time.

    def admit(self, daemon: Plugin) -> bool:
        """Admit the next container of the pod at hand, or take up the next pod."""
        if not self.synced:
            return False
        self.flush()
        if self.admitting is None and not self.queue:
            return False
        if self.admitting is None:
            # Of a batch the oldest; otherwise each event is an addition of its own.
            batch = [uid for uid in self.queue if uid in self.batch]
            uid = min(batch, key=lambda uid: self.known[uid].created) if batch else self.queue[0]
            self.queue.remove(uid)
            self.admitting = Admission(self.known[uid])
            if self.random.random() < 0.03:  # refused before it asks for devices
                self._refuse(self.admitting.pod, None)
                return True
        admission = self.admitting
        containers = admission.pod.request.containers
        if admission.next < len(containers):
            container = containers[admission.next]
            try:
                self.serve(admission, container.name, container.units, container.kind, daemon)
            except AllocatorError as error:
                self._refuse(admission.pod, str(error))
                return True
            admission.next += 1
        # The checkpoint is written before admission ends, and before anything of the pod runs.
        if admission.next == len(containers) and self.unwritten is None:
            if self.random.random() < 0.01:  # refused by another predicate, which is asked after the devices
                self._refuse(admission.pod, None)
            else:
                self._admitted(admission.pod.uid)
        return True

    def serve(self, admission: Admission, name: str, units: int, kind: str, daemon: Plugin) -> None:
        uid = admission.pod.uid
        deleted_at = self.world.deleted_at.get(uid, self.now)
        if daemon.has_seen(uid) and self.now < deleted_at + AWAITED_S:
            self.awaited.add(uid)
        else:
            self.awaited.discard(uid)
        self.late |= {uid} & self.world.deleted_at.keys() - self.awaited
        mine = self.devices.setdefault(uid, {})
        if name not in mine:
            if not self.batch:
                self._drop_inactive()
                mine = self.devices.setdefault(uid, {})
            taken = set(self.random.sample(sorted(admission.reusable), min(units, len(admission.reusable))))
            if len(taken) < units:
                taken |= self._choose(taken, units, daemon, percent=admission.pod.percent)
            daemon.allocate(frozenset(taken))
            mine[name] = frozenset(taken)
            now = self.world.pods.get(admission.pod.name)
            again = now is not None and now.uid != uid and now.node == self.node
            self.overdue |= again or self.now >= deleted_at + AWAITED_S
            self.truth.setdefault(uid, set()).add(frozenset(taken))
            self.gave |= set(map(card_of, taken))
            self.unwritten = self._snapshot()
            if self.mute:
                self.write()
            elif self.random.random() < 0.7:
                self.flush()
        if kind == "init":
            admission.reusable |= mine[name]
        else:
            admission.reusable -= mine[name]

    def _choose(self, taken: set[str], units: int, daemon: Plugin, *, percent: bool) -> set[str]:
        in_use = frozenset().union(*(ids for by in self.devices.values() for ids in by.values()))
        available = (self.percent if percent else self.ids) - in_use
        if self.gone:
            available = frozenset(text for text in available if card_of(text) not in self.gone)
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
        if (known is None or known.uid != uid) and uid not in self.awaited:
            self.late.add(uid)
        self.admitted.add(uid)
        self.to_run.append(uid)
        self.batch.discard(uid)
        self.admitting = None

    def _refuse(self, pod: ModelPod, reason: str | None) -> None:
        """Fail a pod; `reason` is None where it is not for want of devices."""
        if reason is not None:
            self.refused.append((pod, reason))
        self.finished.add(pod.uid)
        self._forget(pod.uid)
        self.world.change(pod.name, pod.uid, phase="Failed")

    # What it does by itself.

    def run_one(self) -> bool:
        """The containers of one admitted pod begin to run; also of one that is gone since a moment ago."""
        for uid, latest in sorted(self.starting.items()):
            del self.starting[uid]
            if self.now <= latest:
                self.running.add(uid)
                return True
            if uid not in self.running:
                self.truth.pop(uid, None)
        if not self.to_run or not self.synced:
            return False
        uid = self.to_run.pop(0)
        self.running.add(uid)
        self.to_start.append(uid)
        return True

    def start_one(self) -> bool:
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

    def occupied(self, but: Collection[str] = ()) -> dict[str, int]:
        """Units in use by card: by pods, and by containers that linger after their pod was deleted.

        Without those of pods in `late`: nobody can wait for what nobody knows; and without those of `but`.
        """
        return self.units((self.admitted | self.running) - self.late - set(but))

    def units(self, uids: Collection[str], shared: Collection[str] = ()) -> dict[str, int]:
        """Units by card that these pods were told of.

        IDs of different pods count each: a forgetful kubelet gives them out again. A share is rounded down,
        for all containers together that have some of it in common, and for all of pods that are `shared`.
        """
        units: dict[str, int] = {}
        for uid in uids:
            told = self.truth.get(uid, set())
            for ids in [frozenset().union(*told)] if uid in shared else joined(told):
                for uuid, count in self._by_card(ids).items():
                    units[uuid] = units.get(uuid, 0) + count
        return units

    def compute(self, uids: Collection[str]) -> dict[str, int]:
        """Percent of compute by card that the containers of these pods ask for, where they have devices."""
        compute: dict[str, int] = {}
        for uid in uids:
            pod = self.world.created[uid]
            sets = self.truth.get(uid, set()) if pod.compute else set()
            for uuid, asking in Counter(card for ids in sets for card in set(map(card_of, ids))).items():
                request = pod.request
                each = (
                    request.demands[0].compute
                    if request.shared
                    else pod.compute * min(asking, len(pod.containers))
                )
                compute[uuid] = compute.get(uuid, 0) + each
        return compute

    def cards(self, uid: str, containers: Collection[str]) -> tuple[str, ...]:
        """UUIDs of the cards that its memory has for containers of a pod, sorted."""
        mine = self.devices.get(uid, {})
        return tuple(sorted({card_of(text) for name in containers for text in mine.get(name, ())}))

    # Restart.

    def restart(self, *, checkpoint_lost: bool) -> None:
        """End, and begin with what the file says; what was not written is forgotten."""
        self.synced = False
        self.queue.clear()
        self.to_start.clear()
        self.known.clear()
        self.batch.clear()
        self.admitting = None
        self.unwritten = None
        # Pods that do not run yet are admitted anew.
        self.to_run.clear()
        self.starting.clear()
        self.truth = {uid: ids for uid, ids in self.truth.items() if uid in self.running}
        self.admitted &= self.running
        self.devices = {}
        if checkpoint_lost or self.torn:
            self.file, self.torn = None, False
        for line in self.file.entries if self.file is not None else ():
            self.devices.setdefault(line.uid, {})[line.container] = line.ids
            if line.uid not in self.running:
                self.truth.setdefault(line.uid, set()).add(line.ids)

    def sync(self) -> None:
        """Learn all pods from the API again; those that run stay as they are."""
        self.watch.skip()
        self.synced = True
        mine = [pod for pod in self.world.pods.values() if pod.node == self.node]
        here = {pod.uid for pod in mine}
        for uid in [*self.admitted, *self.truth]:
            if uid not in here:
                self._forget(uid)
        for pod in sorted(mine, key=lambda pod: pod.created):
            self._learn(pod)
            if pod.uid in self.admitted and pod.uid in self.known and not pod.started:
                self.to_start.append(pod.uid)
        self.batch = set(self.queue)
