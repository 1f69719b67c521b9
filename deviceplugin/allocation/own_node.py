"""Follows the own Node: which cards are cordoned, and what its packed capacity said before."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from allocator.errors import shown
from allocator.names import NODE_CORDON
from allocator.records import add_instances
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject
from kubeapi.reflect import Kind, Sink

log = structlog.get_logger(__name__)


class OwnNode(Sink[NodeObject]):
    """Keeps the newest state of the own Node.

    Args:
        unit_mib: MiB a unit of the ledger.
        tell: called with each fault of the Node's cordon, once.
        parents: UUID of the whole card by that of its instance.

    Attributes:
        unknown_cordoned: UUIDs of the Node's cordon that are no card of this node, sorted.
        listed: set once the API server has said whether the Node is there.
    """

    def __init__(
        self,
        account: LedgerService,
        name: str,
        unit_mib: int,
        tell: Callable[[str], None] = lambda _: None,
        parents: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._account = account
        self._name = name
        self._unit_mib = unit_mib
        self._tell = tell
        self._parents = parents
        self._told_missing = False
        self._cordon_problem: str | None = None
        self.node: NodeObject | None = None
        self.unknown_cordoned: tuple[str, ...] = ()
        self.listed = asyncio.Event()

    @property
    def is_missing(self) -> bool:
        """Whether the API server has said that there is no such Node; the kubelet may still create it."""
        return self.listed.is_set() and self.node is None

    def replace(self, items: Sequence[NodeObject], _resource_version: str) -> None:
        if not self.listed.is_set() and items:
            self._remember(items[0])
        self.listed.set()
        self.node = None
        if items:
            self.apply_node(items[0])
        self._tell_missing()
        self._account.notify_subscribers()

    def event(self, kind: Kind, item: NodeObject, _resource_version: str) -> None:
        if kind == "DELETED":
            self.node = None
        else:
            self.apply_node(item)
        self._tell_missing()
        self._account.notify_subscribers()

    def holds_pod(self, uid: str) -> bool:
        holds = None if self.node is None else self.node.read_accounted_pods()
        return holds is not None and uid in holds.uids

    def apply_node(self, node: NodeObject) -> None:
        """Apply a state of the Node, from the watch or the answer to a patch; an older one is ignored."""
        if self.node is not None and node.metadata.version < self.node.metadata.version:
            return
        self.node = node
        cordoned, problem = node.read_cordon()
        if problem is not None:
            self._cordon_is_wrong(f"{problem}; the cards stay as they were")
            return
        parents = self._parents()
        self._account.ledger.set_unavailable("cordoned", add_instances(cordoned, parents.items()))
        cards = [card.uuid for card in self._account.ledger.installed]
        self.unknown_cordoned = tuple(sorted(cordoned.difference(cards, parents.values())))
        self._cordon_is_wrong(
            f"annotation {NODE_CORDON} holds {shown(', '.join(self.unknown_cordoned), 256)}, no card of this "
            f"node; allowed: {shown(', '.join(cards), 512)}"
            if self.unknown_cordoned
            else None
        )

    def _cordon_is_wrong(self, problem: str | None) -> None:
        """Report a fault of the cordon once; None: nothing is wrong."""
        if problem is not None and problem != self._cordon_problem:
            log.warning("cordon is wrong", error=problem)
            self._tell(problem)
        self._cordon_problem = problem

    def _tell_missing(self) -> None:
        """Log once that there is no Node of this name: most likely --node-name is wrong."""
        if self.is_missing and not self._told_missing:
            log.warning("no Node has this name, nothing is published until one has", node_name=self._name)
        self._told_missing = self.is_missing

    def _remember(self, node: NodeObject) -> None:
        """Tell the ledger which pods the words contained before this daemon started, and on which cards.

        A daemon of an older version did not write the cards. Units of another size are rounded up to ours: a
        pod may run on though its node was not drained, and the kubelet has lost the checkpoint that names it.
        """
        (holds, problem), cards = node.read_accounted_pods_or_error(), node.read_cards() or ()
        if problem is not None:
            log.warning("what the words held before cannot be read, taken as nothing", error=str(problem))
        if holds is None:
            return
        words = node.read_words()
        before_mib = self._unit_mib if words is None else words.layout.unit_mib
        cards_by_pod: dict[str, dict[str, int] | None] = {}
        for uid in holds.uids:
            units = holds.units.get(uid)
            if units is None or any(position >= len(cards) for position in units):
                cards_by_pod[uid] = None
                continue
            cards_by_pod[uid] = {
                cards[position].uuid: -(-count * before_mib // self._unit_mib)
                for position, count in units.items()
            }
        self._account.ledger.restore_published(cards_by_pod)
