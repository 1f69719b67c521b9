"""Takes the startup taint off the own Node once pods can be served there.

A new node is Ready before the kubelet knows our devices. Until then a cluster autoscaler finds that pods do
not fit and adds a second node. With the taint, which its group gives it, the node counts as starting.
"""

from collections.abc import Callable
from typing import Final

import structlog

from allocator.names import PACKED_LAYOUT, STARTUP_TAINT
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.backoff import Backoff
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound
from kubeapi.paths import make_node_path
from kubeapi.stepper import Stepper

LONGEST_WAIT_S: Final = 60.0
"""Longest pause between two tries that fail, as for want of the right to patch Nodes."""

LOOK_AGAIN_S: Final = 1.0
"""How often it is checked, while the taint is there, whether this daemon serves pods."""

log = structlog.get_logger(__name__)


class StartupTaint:
    """Removes one taint of one Node, and nothing else.

        tainted --(words published, kubelet offers our devices)--> patch --> gone

    A daemon that never serves pods leaves the taint, so that an autoscaler replaces the node.

    Args:
        resource: that the kubelet has to offer; None if pods are served by claims.
        serves: whether this daemon owns the Node and has published its cards.
    """

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        own_node: OwnNode,
        *,
        node_name: str,
        resource: str | None,
        serves: Callable[[], bool],
    ) -> None:
        self._client = client
        self._own_node = own_node
        self._node_name = node_name
        self._resource = resource
        self._serves = serves
        self._stepper = Stepper(self._step, backoff=Backoff(0.5, LONGEST_WAIT_S))
        account.subscribe(self._stepper.wake)

    async def run(self) -> None:
        """Remove the taint whenever it is there and pods can be served, until cancelled."""
        await self._stepper.run()

    async def _step(self) -> float | None:
        """Remove the taint if it is time; return the seconds after which to check again."""
        node = self._own_node.node
        if node is None or not has_startup_taint(node):
            return None
        if not (self._serves() and is_offered(node, self._resource)):
            return LOOK_AGAIN_S
        try:
            await self._client.patch(
                make_node_path(self._node_name),
                node.make_taint_removal({STARTUP_TAINT}),
                timeout_s=WRITE_TIMEOUT_S,
            )
        except (Conflict, NotFound):
            return await self._stepper.pause_for_watch()
        except KubeApiError as error:
            return await self._stepper.back_off(log, "startup taint not removed", error)
        log.info("startup taint removed", taint=STARTUP_TAINT)
        return await self._stepper.pause_for_watch()


def has_startup_taint(node: NodeObject) -> bool:
    return any(taint.get("key") == STARTUP_TAINT for taint in node.taints)


def is_offered(node: NodeObject, resource: str | None) -> bool:
    """Tell whether the kubelet offers units, and the Node has words that say on which cards."""
    amounts = node.status.allocatable or {}
    offered = resource is None or str(amounts.get(resource, "0")) != "0"
    return offered and PACKED_LAYOUT in amounts
