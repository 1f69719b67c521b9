"""What must hold at every moment."""

from allocator.ledger import charges
from tests.placements import fits

from .deviceids import units_of
from .node import Node
from .scene import Scene
from .world import ModelPod


class Invariant(Scene):
    """A scene that is looked at."""

    def check(self) -> None:
        """No pod that the extender bound was refused or will be, and no card serves more than it has."""
        for node in self.nodes:
            if not node.daemon_up or not node.daemon.synced:
                # Nor will the next daemon know of them.
                lost = self._unwritten(node)
                node.clouded |= bool(lost)
                node.kubelet.late |= lost
                node.ever_held -= lost
            # The pod's place was given away long ago, or it got another one's.
            node.clouded |= node.kubelet.overdue or node.daemon.confused
            node.excused |= node.daemon.mistaken
            node.daemon.mistaken.clear()
            gave, node.kubelet.gave = node.kubelet.gave, set()
            if not node.daemon.confused:
                self._check_known(node, gave)
            node.kubelet.overdue = node.daemon.confused = False
            for pod, reason in node.kubelet.refused:
                now = self.world.pods.get(pod.name)
                excused = node.clouded or pod.uid in node.excused or self._beside_late(node, pod)
                if pod.ours and now is not None and now.uid == pod.uid and not excused:
                    self._fail(f"{pod.name} {pod.uid} {pod.containers} refused by {node.name}: {reason}")
            node.kubelet.refused.clear()
            for uuid, units in node.kubelet.occupied(node.excused).items():
                size = node.daemon.size(uuid)
                if size is not None and units > size:
                    self._fail(
                        f"{node.name}: {units} units of {uuid} in use, it has {size}; "
                        f"{units_of(node.kubelet.devices)} admitted {sorted(node.kubelet.admitted)}, "
                        f"{node.daemon.explain()}"
                    )

            self._check_words(node)
            self._check_promises(node)

    def _unwritten(self, node: Node) -> set[str]:
        """Pods with containers whose objects are deleted and that the words never held."""
        file = node.kubelet.file
        listed = {line.uid for line in file.entries} if file is not None and not node.kubelet.torn else set()
        # With the Node object all is gone that its words said.
        written = self._held(node) | (node.ever_held if self.world.words(node.name) else set())
        return node.kubelet.truth.keys() - written - listed - {pod.uid for pod in self.world.pods.values()}

    def _unheard(self, node: Node) -> bool:
        """Whether the kubelet may still admit a pod whose object is deleted."""
        return any(e.kind == "DELETED" and e.item.node == node.name for e in node.kubelet.watch.unread)

    def _unsaid(self, node: Node) -> bool:
        """Whether the ledger counts more than the words say, or has not read the checkpoint yet."""
        words, ledger = self.world.words(node.name), node.daemon.ledger
        if ledger.accounts.checkpoint_read_at_s is None or node.daemon.said != node.daemon.cards:
            return True
        said = words.used if words is not None else (0,) * len(node.daemon.cards)
        return any(used > shown for used, shown in zip(ledger.used(), said, strict=True))

    def _check_words(self, node: Node) -> None:
        """What words once held they hold until it ends; who failed without devices has none."""
        words = self.world.words(node.name)
        running = node.kubelet.units((node.ever_held & node.kubelet.running) - node.kubelet.late)
        for card, used in zip(node.daemon.said, words.used if words else (), strict=False):
            if used < min(card.size_units, running.get(card.uuid, 0)):
                self._fail(
                    f"{node.name}: words show {used} units of {card.uuid}, containers they once held run "
                    f"with {running[card.uuid]}, {node.daemon.explain()}"
                )

        asked = node.kubelet.compute((node.ever_held & node.kubelet.running) - node.kubelet.late)
        for card, used in zip(node.daemon.said, words.compute_used if words else (), strict=False):
            if words is not None and used < min(words.compute_limit, asked.get(card.uuid, 0)):
                self._fail(
                    f"{node.name}: words show {used} percent of the compute of {card.uuid}, containers they "
                    f"once held run with {asked[card.uuid]}, {node.daemon.explain()}"
                )

        facts = node.daemon.ledger.accounts
        for one in facts.pods.values():
            served = one.admitted or one.known_ids or one.pending_ids
            if one.pod.terminal and not served and charges.charge_pod(facts, one):
                self._fail(f"{node.name}: {one.pod.uid} failed without devices, {node.daemon.explain()}")

    def _check_promises(self, node: Node) -> None:
        """What the extender bound there and the kubelet has not admitted yet fits beside what is in use."""
        if node.clouded or node.kubelet.admitting is not None:
            return
        waiting = [
            pod
            for pod in self.world.pods.values()
            if pod.ours
            and pod.node == node.name
            and pod.uid not in node.excused
            and not pod.ended
            and pod.uid not in node.kubelet.admitted | node.kubelet.finished
        ]
        if not self._fit(node, waiting):
            self._fail(
                f"{node.name}: {[(pod.name, pod.uid, pod.containers) for pod in waiting]} are bound and not "
                f"admitted, the cards have {self._free(node)} and {self._compute_free(node)} percent free; "
                f"{units_of(node.kubelet.devices)}, "
                f"{node.daemon.explain()}"
            )

    def _free(self, node: Node) -> tuple[int, ...]:
        """Units that are free on each card, as far as somebody can know."""
        occupied = node.kubelet.occupied()
        return tuple(
            0 if card.index in node.daemon.sick else card.size_units - occupied.get(card.uuid, 0)
            for card in node.daemon.cards
        )

    def _fit(self, node: Node, pods: list[ModelPod]) -> bool:
        """Whether there is a way to serve all of the pods from what is free."""
        demands = [
            (tuple(d.units_on(card.size_units) for card in node.daemon.cards), d.cards, d.compute)
            for pod in pods
            for d in pod.request.demands
        ]
        demands.sort(reverse=True)
        return fits(self._free(node), demands, compute_free=self._compute_free(node))

    def _compute_free(self, node: Node) -> tuple[int, ...]:
        """Percent of compute that no container in use asks for on each card."""
        kubelet = node.kubelet
        asked = kubelet.compute((kubelet.admitted | kubelet.running) - kubelet.late)
        limit = node.daemon.ledger.accounts.compute_limit
        return tuple(limit - asked.get(card.uuid, 0) for card in node.daemon.cards)

    def _beside_late(self, node: Node, pod: ModelPod) -> bool:
        """Whether a pod has no room only because of one that nobody could wait for.

        The scheduler counts such a one where it bound it, and the daemon, which never heard of it, may have
        served it elsewhere. What its containers may run on with is not given out again.
        """
        pods = node.daemon.ledger.accounts.pods
        return any(uid in pods and not pods[uid].is_live for uid in node.kubelet.late) and self._fit(
            node, [pod]
        )

    def _check_known(self, node: Node, gave: set[str]) -> None:
        """Whatever else went wrong, nothing is given out that the node knows to be in use."""
        kubelet = node.kubelet
        sick = {card.uuid for card in node.daemon.cards if card.index in node.daemon.sick}
        if gave & sick:
            self._fail(f"{node.name}: {gave & sick} are known to be sick, and were given to a container")
        known = kubelet.devices.keys() | (node.daemon.saw_running & kubelet.running)
        for uuid, units in kubelet.units(known).items() if gave else ():
            size = node.daemon.size(uuid)
            if uuid in gave and size is not None and units > size:
                self._fail(
                    f"{node.name}: {units} units of {uuid} are known to be in use, it has {size}; "
                    f"{units_of(kubelet.devices)}, {node.daemon.explain()}"
                )

    def _check_selector(self, node: Node, uid: str) -> None:
        """A pod that the daemon knew gets cards that it accepts."""
        pod = next((pod for pod in self.world.pods.values() if pod.uid == uid), None)
        clouded = node.clouded or node.daemon.confused
        if pod is None or not pod.ours or clouded or not node.daemon.has_seen(uid):
            return
        names = [container.name for container in pod.request.containers]
        for card in node.daemon.cards:
            if card.uuid in node.kubelet.cards(uid, names) and not pod.request.selector.admits(card):
                self._fail(
                    f"{node.name}: {uid} got {card.uuid}, a {card.model}, which it does not accept; "
                    f"{units_of(node.kubelet.devices)}, {node.daemon.explain()}"
                )

    def _check_target(self, node: Node, uid: str) -> None:
        """A pod gets the cards that the scheduler chose for it."""
        facts = node.daemon.ledger.accounts
        if uid not in facts.pods:
            self._fail(f"{node.name}: {uid} was served unknown, {node.daemon.explain()}")
        pod = facts.pods[uid].pod
        for demand in pod.request.demands:
            chosen, got = facts.assigned_cards(pod, demand), node.kubelet.cards(uid, demand.containers)
            if got != chosen:
                self._fail(
                    f"{node.name}: {uid} got {got} for {demand}, the scheduler chose {chosen}; "
                    f"{units_of(node.kubelet.devices)}, {node.daemon.explain()}"
                )
