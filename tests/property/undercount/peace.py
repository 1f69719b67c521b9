"""How the model comes to peace, and what must hold then: all views are equal, and every charge ends."""

from allocator.ledger import charges

from .deviceids import units_of
from .invariant import Invariant
from .node import Node


class Peace(Invariant):
    """A scene in which everything arrives."""

    def heal(self, node: Node) -> None:
        """All cards that are there are well, in use and free of others, and at times all are there."""
        if node.daemon.cards != node.daemon.every and self.random.random() < 0.5:
            node.daemon.set_cards(node.daemon.every)
            node.daemon.send_list()
        node.daemon.ledger.set_unaccounted_use({})
        if node.daemon.sick:
            node.daemon.sick.clear()
            node.daemon.set_health()
            node.daemon.send_list()
        self.world.cordon(node.name, ())

    def _settle_node(self, node: Node) -> None:
        """Everything on its way to or from a node arrives."""
        node.daemon.away = False
        if node.name not in self.world.nodes:
            self.world.put_node(node.name, {}, {})
        if not node.daemon_up:
            node.daemon_up = True
            self._start_daemon(node)
        if not node.kubelet.synced:
            self._sync(node)
        node.kubelet.torn = node.kubelet.mute = False
        node.daemon.refresh()
        node.daemon.register()
        if not node.daemon.synced:  # the kubelet's first question waits for a pod that may be asking
            self._look_at_pods(node)
        moved = True
        while moved:
            moved = node.kubelet.deliver() or node.kubelet.admit(node.daemon)
            moved = node.kubelet.run_one() or node.kubelet.start_one() or node.kubelet.reap_one() or moved
            self._say(f"{node.name} settles, devices {units_of(node.kubelet.devices)}")
            self.check()
        node.kubelet.flush()
        node.daemon.refresh()
        self._look_at_pods(node)
        node.daemon.look_at_cgroups()
        node.daemon.refresh()

    def _sync(self, node: Node) -> None:
        node.kubelet.sync()
        if node.daemon_up:
            node.daemon.ledger.apply_kubelet_restart()
            node.daemon.registered = False
            node.daemon.register()
            node.daemon.look_at_cgroups()

    def _look_at_pods(self, node: Node) -> None:
        node.daemon.disconnect(lost=False)
        node.daemon.begin_view()
        node.daemon.end_view()
        node.daemon.bookmark()

    def quiesce(self) -> None:
        """Deliver everything, give time to everything, and compare all views."""
        self.settle_bindings()
        for node in self.nodes:
            self.heal(node)
        for _ in range(4):
            for node in self.nodes:
                self._settle_node(node)
            self._pass(11.0)
            for node in self.nodes:
                self._settle_node(node)
                node.daemon.publish()
            while self.extender.deliver_node() or self.extender.deliver_pod():
                pass
        self._pass(31.0)
        self.extender.settle_due()
        self.extender.state.expire_tombstones(self.now)
        self.compare()
        for node in self.nodes:
            node.clouded = self._unknowable(node)
            node.kubelet.late |= node.amnesia & node.kubelet.admitted if node.clouded else set()
            node.sick_until = None
            node.rivals.clear()
            node.racing.clear()
            node.served.clear()
            node.excused &= node.kubelet.truth.keys()

    @staticmethod
    def _unknowable(node: Node) -> bool:
        """Who has what was mistaken, and the checkpoint that said so is gone."""
        return node.clouded and bool(node.kubelet.overwritten or node.amnesia & node.kubelet.admitted)

    def compare(self) -> None:
        """Kubelet, ledger, words and extender say the same."""
        for node in self.nodes:
            if self._unknowable(node):
                continue
            # Where an init container asks all containers have one share, to the extender too.
            shared = {pod.uid for pod in self.world.pods.values() if pod.request.shared}
            units = node.kubelet.units(node.kubelet.admitted, shared)
            truth = {
                card.uuid: units.get(card.uuid, 0) if card.size_units else 0 for card in node.daemon.cards
            }
            ledger = node.daemon.ledger
            charged = charges.charge_cards(ledger.accounts)
            words = self.world.words(node.name)
            asked, limit = node.kubelet.compute(node.kubelet.admitted), ledger.accounts.compute_limit
            compute = {
                # A card that the driver has lost gives nothing away.
                "kubelet": tuple(
                    min(limit, asked.get(card.uuid, 0)) if card.size_units else limit
                    for card in node.daemon.cards
                ),
                "words": words.compute_used if words else None,
            }
            arrays, row = self.extender.state.nodes, self.extender.state.nodes.rows[node.name]
            assumed = arrays.used[row] + arrays.assumed[row]
            views = {
                "kubelet": tuple(truth.values()),
                "ledger": tuple(charged[uuid] for uuid in truth),
                # Of a full card it counts all units of the pods in `holds`: words stop at the size.
                "extender": tuple(arrays.used[row].tolist()[: len(truth)]),
                "assumed and used": tuple(assumed.tolist()[: len(truth)]),
            }
            shown = {
                "at most the size": tuple(min(charged[uuid], node.daemon.size(uuid) or 0) for uuid in truth),
                "allocated": tuple(ledger.allocated_units()[uuid] for uuid in truth),
                "words": words.used if words else None,
            }
            forgotten = node.amnesia & node.kubelet.admitted - node.kubelet.served()
            if forgotten or node.kubelet.overwritten:
                # After the daemon forgot these too, or with an older copy of the checkpoint, nobody knows:
                # fuller is allowed, emptier is not.
                full = views["ledger"]
                if all(units <= more for units, more in zip(truth.values(), full, strict=True)):
                    views["kubelet"] = full
                compute = {}
            if node.daemon.older:
                compute = {}
            if any(len(set(each.values())) > 1 for each in (views, shown, compute)):
                self._fail(f"{node.name}: views differ {views} {shown} {compute}\n{node.daemon.explain()}")
            if node.daemon.holds.keys() != node.kubelet.admitted:
                self._fail(f"{node.name}: holds {node.daemon.holds}, admitted {node.kubelet.admitted}")

    def end(self) -> None:
        """Every pod ends; so does every charge."""
        for pod in list(self.world.pods.values()):
            self.world.delete(pod.name, pod.uid)
        self.quiesce()
        for node in self.nodes:
            if any(node.daemon.ledger.used()):
                self._fail(f"{node.name}: charges without pods {node.daemon.explain()}")
