"""Notices another device plugin that offers GPUs on this node, as long as it does."""

import structlog

from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.gpus.foreign_resources import count_foreign_gpus, describe_foreign
from deviceplugin.node_events import NodeEvents

log = structlog.get_logger(__name__)


class ForeignPluginWatcher:
    """Reads the own Node for GPUs of other device plugins."""

    def __init__(self, account: LedgerService, own_node: OwnNode, notices: NodeEvents) -> None:
        self._own_node = own_node
        self._notices = notices
        self._seen: object = None
        self.foreign_gpus: dict[str, int] = {}
        account.subscribe(self._compare_node)

    def _compare_node(self) -> None:
        node = self._own_node.node
        if node is None or node is self._seen:
            return
        self._seen = node
        found = count_foreign_gpus(node.status.capacity, node.status.allocatable)
        before, self.foreign_gpus = self.foreign_gpus, found
        if found == before:
            return
        if found:
            said = describe_foreign(found)
            log.warning("another device plugin is on this node", resources=found, advice=said)
            self._notices.record_foreign_plugin(said)
        else:
            log.info("no other device plugin offers GPUs any more")
            self._notices.record_foreign_plugin_gone()
