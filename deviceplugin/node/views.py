"""What the API server shows of the own Node and its pods, kept up to date by reflectors."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from allocator.errors import shown
from allocator.ledger import Mark, Pod
from allocator.names import NODE_CORDON
from deviceplugin.node.account import Account
from deviceplugin.node.objects import NodeObject, PodObject, version_of
from kubeapi.errors import KubeApiError
from kubeapi.reflect import Kind

log = structlog.get_logger(__name__)


class PodView:
    """Feeds the pods of this node to the ledger; a sink of `kubeapi.reflect`.

    Attributes:
        seen: resourceVersion of the newest event that the ledger has.
        owed: a published `seen` must reach this version: a bound pod vanished that no words held.
        connected: the view is not known to be behind.
        pods: all pods of this node by UID, finished ones included until their object is gone.
    """

    def __init__(self, account: Account, resource: str) -> None:
        self._account = account
        self._resource = resource
        self._mark = self._next_mark()
        self._relist: Callable[[], None] = lambda: None
        self._relisting = False
        self._listed = False
        self._missed = False
        account.want_list = self.want_list
        account.living = self.living
        self.seen = 0
        self.owed = 0
        self.connected = False
        self.pods: dict[str, PodObject] = {}

    def on_relist(self, relist: Callable[[], None]) -> None:
        """Set how a complete list is asked for."""
        self._relist = relist

    def want_list(self) -> None:
        """Ask for a complete list that begins now, unless one is on its way."""
        if not self._relisting:
            self._relisting = True
            self._mark = self._next_mark()
            self._relist()

    def living(self) -> set[str] | None:
        """UIDs, as the kubelet knows them, of pods that have not ended; None before the first list."""
        living = {pod.runtime_uid for pod in self.pods.values() if not pod.status.terminal}
        return living if self._listed else None

    def containers(self, runtime_uid: str) -> Mapping[str, str]:
        """Names of a pod's containers by the runtime's IDs, as far as the API server has been told them."""
        found = (pod for pod in self.pods.values() if pod.runtime_uid == runtime_uid)
        return next((pod.status.containers for pod in found), {})

    def replace(self, items: Sequence[PodObject], resource_version: str) -> None:
        """Take all pods of this node, as the API server has them now.

        Also with a lower resourceVersion than was seen: then etcd was restored from an older copy.
        """
        read = [self._read(item) for item in items]
        self.pods = {item.metadata.uid: item for item in items}
        self._account.ledger.pods_synced([pod for pod in read if pod is not None], self._mark)
        self.connected, self._listed, self._relisting = True, True, False
        before, self.seen = self.seen, version_of(resource_version)
        if self._missed or self.seen < before:
            # While nobody watched, a pod may have come and gone.
            self.owed = self.seen
        self._missed = False
        self._account.changed()

    def event(self, kind: Kind, item: PodObject, resource_version: str) -> None:
        """Take one change of a pod."""
        self.connected = True
        ledger, uid, now_s = self._account.ledger, item.metadata.uid, self._account.now_s()
        waited_for, pod = uid in ledger.unheld(), self._read(item)
        self.pods[uid] = item
        if kind == "DELETED":
            del self.pods[uid]
            ledger.pod_gone(uid, now_s)
        elif pod is not None:
            ledger.pod_changed(pod, now_s)
        self._advance(resource_version)
        if waited_for and (kind == "DELETED" or item.status.terminal):
            self.owed = self.seen
        if pod is not None:
            self._account.changed()

    def bookmark(self, resource_version: str) -> None:
        """Note that nothing else happened up to this version."""
        self.connected = True
        self._advance(resource_version)

    def disconnected(self, error: KubeApiError) -> None:
        """Note that the next list, if there is one, begins after now."""
        del error
        self.connected, self._relisting = False, False
        self._missed = self._missed or self.seen > 0
        self._mark = self._next_mark()

    def _next_mark(self) -> Mark:
        return self._account.ledger.mark(self._account.now_s())

    def _advance(self, resource_version: str) -> None:
        self.seen = max(self.seen, version_of(resource_version))

    def _read(self, item: PodObject) -> Pod | None:
        """Read a pod as the ledger wants it; what is wrong with one that is not known yet is logged."""
        pod, problem = item.read(self._resource)
        if problem is not None and item.metadata.uid not in self.pods:
            name = f"{item.metadata.namespace}/{item.metadata.name}"
            log.warning("pod cannot be read", pod=name, error=str(problem))
        return pod


class NodeView:
    """Keeps the newest state of the own Node; a sink of `kubeapi.reflect`.

    Args:
        account: the ledger, which heeds the cordon.
        name: of the own Node.
        tell: called with what is wrong with the Node's cordon, once for each thing.

    Attributes:
        node: the Node, None while there is none.
        unknown_cordoned: UUIDs of the Node's cordon that are no card of this node, sorted.
        first: set once the API server has said whether the Node is there.
    """

    def __init__(self, account: Account, name: str, tell: Callable[[str], None] = lambda _: None) -> None:
        self._account = account
        self._name = name
        self._tell = tell
        self._told_missing = False
        self._cordon_problem: str | None = None
        self.node: NodeObject | None = None
        self.unknown_cordoned: tuple[str, ...] = ()
        self.first = asyncio.Event()

    @property
    def missing(self) -> bool:
        """Whether the API server has said that there is no such Node; the kubelet may still create it."""
        return self.first.is_set() and self.node is None

    def replace(self, items: Sequence[NodeObject], _resource_version: str) -> None:
        """Take the Node, or its absence."""
        if not self.first.is_set() and items:
            self._remember(items[0])
        self.first.set()
        self.node = None
        if items:
            self.take(items[0])
        self._tell_missing()
        self._account.changed()

    def event(self, kind: Kind, item: NodeObject, _resource_version: str) -> None:
        """Take a change of the Node."""
        if kind == "DELETED":
            self.node = None
        else:
            self.take(item)
        self._tell_missing()
        self._account.changed()

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed."""

    def disconnected(self, error: KubeApiError) -> None:
        """The Node is taken to be as it was."""

    def take(self, node: NodeObject) -> None:
        """Take a state of the Node, from the watch or as the answer to a patch; older ones are ignored."""
        if self.node is not None and node.version < self.node.version:
            return
        self.node = node
        cordoned, problem = node.cordon()
        if problem is not None:
            self._cordon_is_wrong(f"{problem}; the cards stay as they were")
            return
        self._account.ledger.set_cordoned(cordoned)
        cards = [card.uuid for card in self._account.ledger.installed]
        self.unknown_cordoned = tuple(sorted(cordoned.difference(cards)))
        self._cordon_is_wrong(
            f"annotation {NODE_CORDON} holds {shown(', '.join(self.unknown_cordoned), 256)}, no card of this "
            f"node: allowed are {shown(', '.join(cards), 512)}"
            if self.unknown_cordoned
            else None
        )

    def _cordon_is_wrong(self, problem: str | None) -> None:
        """Tell people once; None: nothing is wrong."""
        if problem is not None and problem != self._cordon_problem:
            log.warning("cordon is wrong", error=problem)
            self._tell(problem)
        self._cordon_problem = problem

    def _tell_missing(self) -> None:
        """Say once that there is no Node to write to: most likely its name is another."""
        if self.missing and not self._told_missing:
            log.warning("no Node has this name, nothing is published until one has", node_name=self._name)
        self._told_missing = self.missing

    def _remember(self, node: NodeObject) -> None:
        """Tell the ledger which pods the words contained before this daemon started, and on which cards.

        The release before did not write the cards.
        """
        (holds, problem), cards = node.read_holds(), node.cards() or ()
        if problem is not None:
            log.warning("what the words held before cannot be read, taken as nothing", error=str(problem))
        found: dict[str, dict[str, int] | None] = {}
        for uid in holds.uids if holds is not None else ():
            units = holds.units.get(uid) if holds is not None else None
            known = units is not None and all(position < len(cards) for position in units)
            found[uid] = (
                {cards[position].uuid: count for position, count in (units or {}).items()} if known else None
            )
        self._account.ledger.remember(found)
