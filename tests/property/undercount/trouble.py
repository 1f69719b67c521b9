"""What goes wrong in the model, one method for each thing, and how it gets well again."""

from collections.abc import Iterable
from dataclasses import replace

from allocator.errors import AllocatorError
from allocator.names import POD_ASSIGNED, POD_GPU_MODEL
from scheduler_plugin.binding.committer import PendingBinding
from tests.placements import fits

from .deviceids import card_of
from .node import Node
from .peace import Peace
from .plugin import Admission
from .scene import UNSAID
from .world import ModelPod


class Trouble(Peace):
    """A scene in which things go wrong."""

    def _any(self) -> Node:
        return self.random.choice(self.nodes)

    def _tear(self) -> None:
        self._any().kubelet.torn = True

    def _hush(self) -> None:
        node = self._any()
        self._say(f"PodResources of {node.name} is mute")
        node.kubelet.mute = True

    def _fall_sick(self) -> None:
        self._fall_sick_unheard().daemon.send_list()

    def _fall_sick_unheard(self) -> Node:
        """A card falls sick, and the kubelet hears of it later."""
        node = self._any()
        card = self.random.choice(node.daemon.cards)
        self._say(f"card {card.index} of {node.name} is sick")
        node.daemon.sick.add(card.index)
        node.sick_until = UNSAID
        self._excuse()
        node.daemon.set_health()
        return node

    def _change_cards(self) -> None:
        """A card goes, or loses its units, or is as it was."""
        node = self._any()
        daemon = node.daemon
        card = self.random.choice(daemon.every)
        others = [other for other in daemon.cards if other.uuid != card.uuid]
        ways = [None, replace(card, size_units=0, healthy=False), card]
        new = self.random.choice([way for way in ways if way not in daemon.cards])
        if not any(other.size_units for other in (*others, *filter(None, (new,)))):
            return
        self._say(f"card {card.index} of {node.name} is {'gone' if new is None else new.size_units}")
        cards = (*others, *((new,) if new is not None else ()))
        if new is not card:
            node.sick_until = UNSAID
            self._excuse()
        daemon.set_cards(tuple(sorted(cards, key=lambda card: card.index)))
        if self.random.random() < 0.7:  # else the kubelet asks once more, of the devices that it knows
            daemon.send_list()

    def _recover(self) -> None:
        """One thing that went wrong on a node is well again."""
        node = self._any()
        ways = {
            self._sync_kubelet: not node.kubelet.synced and not node.daemon.away and node.daemon_up,
            self._start_stopped_daemon: not node.daemon_up,
            self._come_back: node.daemon.away,
            self._create_node: node.name not in self.world.nodes,
            self._speak: node.kubelet.mute,
            self._get_well: bool(node.daemon.sick) and self.random.random() < 0.2,
        }
        open_ways = [way for way, needed in ways.items() if needed]
        if open_ways:
            self.random.choice(open_ways)(node)

    def _speak(self, node: Node) -> None:
        self._say(f"PodResources of {node.name} answers again")
        node.kubelet.mute = False

    def _get_well(self, node: Node) -> None:
        self._say(f"all cards of {node.name} are well")
        node.daemon.sick.clear()
        node.daemon.set_health()
        node.daemon.send_list()

    def _cordon(self) -> None:
        node = self._any()
        chosen = tuple(card.uuid for card in node.daemon.cards if self.random.random() < 0.3)
        self.world.cordon(node.name, chosen)

    def _pressure(self) -> None:
        node = self._any()
        card = self.random.choice([card for card in node.daemon.cards if card.size_units])
        if node.daemon_up:
            node.daemon.ledger.set_unaccounted_use({card.uuid: self.random.randrange(card.size_units)})

    def _blind(self, node: Node) -> bool:
        """Whether a daemon cannot know whom the scheduler promised what.

        It starts while the API server is away, or knows less of it than the kubelet does. It serves the
        kubelet all the same, but its blind choices are outside the invariant.
        """
        return node.daemon.away and (
            not node.daemon.synced or node.daemon.watch.cursor < node.kubelet.watch.cursor
        )

    def _crash(self) -> None:
        """A container starts again of which the kubelet has lost what it had: it asks anew."""
        node = self._any()
        kubelet = node.kubelet
        running = kubelet.running & kubelet.admitted & kubelet.known.keys() - kubelet.devices.keys()
        lost = [uid for uid in sorted(running) if len(kubelet.known[uid].containers) == 1]
        ready = node.daemon_up and kubelet.synced and kubelet.admitting is None
        if lost and ready and node.daemon.register() and not self._blind(node):
            uid = self.random.choice(lost)
            moved = self._start_again(node, uid)
            self._say(f"the container of {uid} starts again on {node.name}, elsewhere: {moved}")
            if moved:  # the extender hears of that a moment later
                node.ever_held.discard(uid)
                node.sick_until = UNSAID
                self._excuse()

    def _start_again(self, node: Node, uid: str) -> bool:
        """Have the only container of a pod served again; tells whether it is on other cards now."""
        kubelet = node.kubelet
        before, kubelet.admitting = kubelet.truth.pop(uid), Admission(kubelet.known[uid])
        (container,) = kubelet.admitting.pod.request.containers
        try:
            kubelet.serve(kubelet.admitting, container.name, container.units, container.kind, node.daemon)
        except AllocatorError:  # the kubelet tries it again, and the pod does not fail
            kubelet.truth[uid] = before
        kubelet.write()  # before the container runs
        kubelet.admitting = None
        node.daemon.refresh()
        cards = [{card_of(text) for ids in sets for text in ids} for sets in (before, kubelet.truth[uid])]
        return cards[0] != cards[1]

    def _force_delete(self) -> None:
        if self.world.pods:
            bound = [pod for pod in self.world.pods.values() if pod.node]
            pod = self.random.choice(bound or list(self.world.pods.values()))
            self._say(f"force-delete {pod.name} {pod.uid} on {pod.node!r}")
            self.world.delete(pod.name, pod.uid)

    def _restart_kubelet(self) -> None:
        node = self._any()
        # What the kubelet forgets before anybody has read it, nobody can know.
        known = node.kubelet.admitted <= self._told(node)
        if node.daemon_up:
            known = known or node.kubelet.admitted <= node.daemon.holds.keys()
        lost = self.random.random() < 0.25 and known and node.kubelet.unwritten is None
        if lost or node.kubelet.torn:
            if not known:
                return
            node.amnesia |= node.kubelet.admitted
        file = node.kubelet.file.entries if node.kubelet.file is not None else ()
        written = {(line.uid, line.container) for line in file}
        self._come_again(node, {uid for uid, _ in written})
        held = {(uid, name) for uid, mine in node.kubelet.devices.items() for name in mine}
        forgotten = {uid for uid, _ in held - written}
        node.amnesia |= forgotten & node.kubelet.admitted
        node.kubelet.late |= forgotten - node.kubelet.admitted
        if lost or node.kubelet.torn:
            # What does not run yet is admitted anew, maybe elsewhere: the words have it where it was.
            node.ever_held &= node.kubelet.running
        # Where it was not known whose an Allocate was, the daemon cannot know that it was forgotten.
        node.clouded |= any(
            one.pending_ids and not one.bound for one in node.daemon.ledger.accounts.pods.values()
        )
        self._say(f"kubelet of {node.name} restarts, checkpoint lost {lost}, torn {node.kubelet.torn}")
        node.kubelet.restart(checkpoint_lost=lost)
        self._lose(node)

    def _come_again(self, node: Node, uids: Iterable[str]) -> None:
        """After an older copy of the checkpoint pods have devices again that it had called free.

        The node is full of them until the daemon has had the kubelet drop them.
        """
        if node.kubelet.overwritten and not self._held(node).issuperset(uids):
            node.sick_until = UNSAID
            self._excuse()

    def _lose(self, node: Node) -> None:
        """Where a pod runs that another scheduler bound nobody may know any more: the node must be full."""
        lost = node.amnesia & node.kubelet.admitted - self._held(node)
        if any(pod.uid in lost and not pod.ours for pod in self.world.pods.values()):
            node.sick_until = UNSAID
            self._excuse()

    def _told(self, node: Node) -> set[str]:
        """Pods that the next daemon will hear of: the words hold them, or their status says what they are.

        The words do not say what pods have on cards that were not there when they were written, nor does the
        status of one that was served elsewhere than its annotation says, for its card was not there.
        """
        said = {card.uuid for card in node.daemon.said if card.size_units}
        has = {uid: node.kubelet.units([uid]).keys() for uid in node.kubelet.truth}
        told = {uid for uid in self._held(node) if has.get(uid, set()) <= said}
        for pod in self.world.pods.values():
            assigned = dict(pod.annotations).get(POD_ASSIGNED)
            if pod.started and (assigned is None or all(uuid in assigned for uuid in has.get(pod.uid, ()))):
                told.add(pod.uid)
        return told

    def _sync_kubelet(self, node: Node) -> None:
        self._say(f"kubelet of {node.name} lists its pods")
        self._sync(node)

    def _stop_daemon(self) -> None:
        node = self._any()
        # What kubelet and daemon both forget before it was written down, nobody can know.
        if node.daemon_up and node.amnesia & node.kubelet.admitted <= self._told(node):
            self._say(f"daemon of {node.name} stops")
            node.daemon_up = False
            self._lose(node)

    def _start_stopped_daemon(self, node: Node) -> None:
        self._say(f"daemon of {node.name} starts")
        node.daemon_up = True
        self._come_again(node, node.kubelet.devices)
        self._start_daemon(node)

    def _roll_out(self) -> None:
        """A stopped daemon comes again with another limit of compute, or as one that publishes none."""
        node = self._any()
        if node.daemon_up:
            return
        daemon, before = node.daemon, node.daemon.compute_limit
        daemon.compute_limit, daemon.older = self.random.choice((50, 100, 300)), self.random.random() < 0.4
        self._say(f"with a limit of {daemon.compute_limit} percent of compute, older: {daemon.older}")
        if daemon.compute_limit < before:
            node.sick_until = UNSAID
            self._excuse()
        self._start_stopped_daemon(node)

    def _restart_extender(self) -> None:
        if any(self._unwritten(node) or self._unheard(node) or self._unsaid(node) for node in self.nodes):
            return  # what the words and the API server lack, a new extender cannot know
        self._say("extender restarts")
        self.extender.start()

    def _relist(self) -> None:
        if self.random.random() < 0.5:
            self.extender.relist_nodes()
        else:
            for pod in [pod for pod in self.extender.unheard_of() if not pod.ours]:
                # Another scheduler's pod came and went: only the words tell of it.
                self.extender.never_heard_of.append(pod)
                node = next(node for node in self.nodes if node.name == pod.node)
                node.sick_until = max(node.sick_until or 0, self.world.version)
            self.extender.relist_pods()

    def _delete_node(self) -> None:
        node = self._any()
        # What kubelet, daemon and Node all forget, nobody can know.
        knows = node.daemon_up and node.daemon.own.listed.is_set()
        kept = knows or not node.amnesia & node.kubelet.admitted
        if node.name in self.world.nodes and kept:
            self._say(f"Node {node.name} deleted")
            self.world.delete_node(node.name)
            # A daemon that restarts now has nothing to remember.
            node.kubelet.late |= node.kubelet.running - node.kubelet.admitted
            node.ever_held &= node.kubelet.admitted
            self._lose(node)

    def _create_node(self, node: Node) -> None:
        self._say(f"Node {node.name} created again")
        self.world.put_node(node.name, {}, {})

    def _away(self) -> None:
        node = self._any()
        if not node.daemon.away:
            self._say(f"API server away for {node.name}")
            node.daemon.away = True
            node.daemon.disconnect(lost=self.random.random() < 0.3)

    def _come_back(self, node: Node) -> None:
        self._say(f"API server back for {node.name}")
        node.daemon.away = False

    def _foreign(self) -> None:
        """Another scheduler binds a pod in a race with ours, or one that fits while nothing is on its way."""
        node = self._any()
        if self.random.random() < 0.3:
            self._rival(node)
            return
        if (
            self.extender.bindings
            or node.name not in self.world.nodes
            or node.daemon.said != node.daemon.cards
        ):
            return
        while self.extender.deliver_node() or self.extender.deliver_pod():
            pass
        waiting = self._unpicky()
        row = self.extender.state.nodes.rows.get(node.name)
        if not waiting or row is None or self.extender.state.node_records[node.name].assumed:
            return
        pod = self.random.choice(waiting)
        sizes = [card.size_units for card in node.daemon.cards]
        nodes = self.extender.state.nodes
        free = nodes.free[row, : len(sizes)].tolist()
        compute = nodes.compute_free[row, : len(sizes)].tolist()
        demands = [
            (tuple(d.units_on(size) for size in sizes), d.cards, d.compute) for d in pod.request.demands
        ]
        if fits(free, sorted(demands, reverse=True), compute_free=compute):
            self._say(f"foreign scheduler binds {pod.name} {pod.uid} to {node.name}")
            self.world.bind(pod.name, pod.uid, pod.version, node.name, None, ours=False)
            while self.extender.deliver_pod():
                pass

    def _unpicky(self) -> list[ModelPod]:
        """Pods that wait to be bound, and take any card."""
        return [
            pod
            for pod in self.world.pods.values()
            if not pod.node and not pod.ended and POD_GPU_MODEL not in dict(pod.annotations)
        ]

    def _rival(self, node: Node) -> None:
        """Another scheduler binds a pod to a node, of which the extender hears later."""
        waiting = self._unpicky()
        if not waiting or node.name not in self.world.nodes:
            return
        pod = self.random.choice(waiting)
        self._say(f"foreign scheduler binds {pod.name} {pod.uid} to {node.name}, in a race")
        self.world.bind(pod.name, pod.uid, pod.version, node.name, None, ours=False)
        node.rivals[pod.uid] = self.world.version
        for binding in self.extender.bindings:
            if binding.commitment.node == node.name:
                node.racing.setdefault(binding.commitment.pod.uid, set()).add(pod.uid)

    def _race(self, commitment: PendingBinding) -> None:
        """Note of which pods the extender had not heard when it chose cards."""
        node = next(node for node in self.nodes if node.name == commitment.node)
        unheard = {uid for uid, version in node.rivals.items() if version > self.extender.heard}
        if unheard:
            node.racing[commitment.pod.uid] = unheard

    def _finish_races(self, node: Node) -> None:
        """Excuse pods that were not bound yet when the kubelet served another scheduler's.

        Where one is too many, which of those that are on their way finds no room is chance. And no kubelet
        refuses a pod for want of compute, so that it may have what was promised to others.
        """
        bound = {pod.uid for pod in self.world.pods.values() if pod.node == node.name}
        node.served |= node.rivals.keys() & node.kubelet.devices.keys()
        if self.compute and node.served:
            node.excused |= bound - node.kubelet.admitted
        for uid, rivals in node.racing.items():
            served = rivals & node.served
            if served and (uid not in bound or node.daemon.away or not node.daemon.synced):
                node.excused |= {uid} | bound - node.kubelet.admitted
            rivals.difference_update(served)

    def _sleep(self) -> None:
        self.settle_bindings()
        self._pass(self.random.choice((2.0, 12.0, 35.0)))

    def _excuse(self) -> None:
        """Nobody can know of a card that fell sick after a pod was bound there, or just before."""
        for node in self.nodes:
            self._finish_races(node)
            record = self.extender.state.node_records.get(node.name)
            if node.sick_until is None:
                continue
            if record is not None and record.version >= node.sick_until:
                node.sick_until = None
                continue
            node.excused |= {pod.uid for pod in self.world.pods.values() if pod.node == node.name} | {
                binding.commitment.pod.uid
                for binding in self.extender.bindings
                if binding.commitment.node == node.name
            }
