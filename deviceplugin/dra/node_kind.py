"""Says on the Node which way its pods get their cards, before any words offer them."""

from collections.abc import Callable
from typing import Any

import structlog

from allocator.names import NODE_SERVES, PERCENT_RESOURCE, SERVES_CLAIMS
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)


class NodeKindMark:
    """Keeps one annotation of the own Node right, and on a node of claims the allocatable resources at 0.

    A kubelet takes no notice of a resource that its Node lacks. A pod that asks for it and has no claim would
    start without a card. Where the Node has 0 of the resource, the kubelet refuses the pod.

    Args:
        owns: whether the Node is ours to write to.
    """

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        own_node: OwnNode,
        *,
        node_name: str,
        resource: str,
        serves_claims: bool,
        owns: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._owns = owns
        self._own_node = own_node
        self._node_name = node_name
        self._resources = (resource, PERCENT_RESOURCE)
        self._serves_claims = serves_claims
        self._stepper = Stepper(self._step)
        account.subscribe(self._stepper.wake)

    @property
    def is_right(self) -> bool:
        """Whether the Node's annotation and resources match the way this daemon serves."""
        node = self._own_node.node
        return node is not None and self._patch(node) is None

    async def run(self) -> None:
        await self._stepper.run()

    async def _step(self) -> float | None:
        node = self._own_node.node
        patch = self._patch(node) if node is not None and self._owns() else None
        if patch is None:
            return None
        try:
            await self._client.patch_node_status(self._node_name, patch, timeout_s=WRITE_TIMEOUT_S)
        except KubeApiError as error:
            return await self._stepper.back_off(log, "kind of node not written", error)
        log.info("kind of node written", serves_claims=self._serves_claims)
        return await self._stepper.pause_for_watch()

    def _patch(self, node: NodeObject) -> dict[str, Any] | None:
        mark = node.metadata.get_annotation(NODE_SERVES)
        if not self._serves_claims:
            return None if mark is None else {"metadata": {"annotations": {NODE_SERVES: None}}}
        # After a device plugin has stopped the kubelet writes its old capacity for another five minutes.
        amounts = [(node.status.allocatable or {}).get(name) for name in self._resources]
        if mark == SERVES_CLAIMS and all(str(amount) == "0" for amount in amounts):
            return None
        nothing = dict.fromkeys(self._resources, "0")
        return {
            "metadata": {"annotations": {NODE_SERVES: SERVES_CLAIMS}},
            "status": {"capacity": nothing, "allocatable": nothing},
        }
