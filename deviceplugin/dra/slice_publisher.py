"""Keeps the node's ResourceSlices correct, even if others change or delete them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from allocator.ids import device_names
from allocator.ledger.charges import charge_cards
from allocator.names import DRA_DRIVER
from allocator.policy import is_spreading
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.dra.resource_slices import (
    SLICES,
    describe_device,
    differs,
    is_shared,
    make_slices,
    order_by_room,
)
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound, decode_answer
from kubeapi.objects import KubeObject
from kubeapi.paths import quote_segment
from kubeapi.reflect import Kind, Reflector, Sink
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

TOO_OLD: Final = (
    "--serve dra: the API server drops allowMultipleAllocations of devices; it takes Kubernetes 1.36 or "
    "later with the feature gate DRAConsumableCapacity"
)
TOO_OLD_AGAIN_S: Final = 30.0


class SliceObject(KubeObject):
    """A ResourceSlice; its spec as it is."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)


_decode_slice: Final = msgspec.json.Decoder(SliceObject).decode


class SlicePublisher(Sink[SliceObject]):
    """Publishes the cards, in the order in which kube-scheduler is to try them.

    The kubelet deletes the slices of its node when it starts, and those of a driver that stays away. A watch
    shows it, and they are written again.

    Args:
        account: the ledger; its followers are woken when cards or their use change.
        node_name: also the name of the pool.
        card_policy: the cluster's; one that spreads puts the emptiest card first.
        gap_s: least seconds between two writes.

    Attributes:
        problem: why the slices cannot be written, None if they can.
    """

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        own_node: OwnNode,
        gpus: Callable[[], Sequence[GpuCard]],
        *,
        node_name: str,
        unit_mib: int,
        card_policy: str,
        driver: Callable[[], str | None],
        ready: Callable[[], bool],
        gap_s: float,
    ) -> None:
        self._client = client
        self._account = account
        self._own_node = own_node
        self._gpus = gpus
        self._node_name = node_name
        self._unit_mib = unit_mib
        self._spreads = is_spreading(card_policy)
        self._driver = driver
        self._ready = ready
        self._gap_s = gap_s
        self._found: dict[str, SliceObject] | None = None
        self._written: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._generation = 0
        self._stepper = Stepper(self._step, gap_s)
        self.problem: str | None = None
        self.writes = 0
        account.subscribe(self._stepper.wake)

    async def run(self) -> None:
        selector = f"spec.nodeName={self._node_name},spec.driver={DRA_DRIVER}"
        reflector = Reflector(self._client, SLICES, SliceObject, self, params={"fieldSelector": selector})
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            group.create_task(self._stepper.run())

    # What the watch shows.

    def replace(self, items: Sequence[SliceObject], _resource_version: str) -> None:
        self._found = {item.metadata.name: item for item in items}
        self._stepper.wake()

    def event(self, kind: Kind, item: SliceObject, _resource_version: str) -> None:
        found = self._found if self._found is not None else {}
        if kind == "DELETED":
            found.pop(item.metadata.name, None)
        else:
            found[item.metadata.name] = item
        self._stepper.wake()

    # What is written.

    def wanted(self) -> list[dict[str, Any]]:
        """Make the slices as they should be, without the pool's generation."""
        ledger = self._account.ledger
        gpus = {gpu.uuid: gpu for gpu in self._gpus()}
        used = dict(zip((card.uuid for card in ledger.installed), ledger.used(), strict=True))
        cards = [card for card in ledger.cards() if card.size_units and card.uuid in gpus]
        names = device_names(used)
        by_room = order_by_room(cards, fullest_first=not self._spreads)
        charged = charge_cards(ledger.accounts)
        devices = [
            describe_device(
                names[card.uuid],
                card,
                gpus[card.uuid],
                self._unit_mib,
                self._driver(),
                cordoned=card.uuid in ledger.cordoned,
                # kube-scheduler knows of claims alone.
                overused=charged[card.uuid] < card.size_units <= used[card.uuid],
            )
            for card in by_room
        ]
        node = self._own_node.node
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node_name,
            "uid": node.metadata.uid if node is not None else "",
        }
        return make_slices(self._node_name, devices, owner)

    async def _step(self) -> float | None:
        if self._found is None or self._own_node.node is None or not self._ready():
            return None
        wait_s = await self._write_slices(self._found)
        if wait_s is not None:
            return wait_s + self._gap_s
        # Also after a write without an answer, which may have gone through.
        self.problem = None
        return None

    async def _write_slices(self, found: dict[str, SliceObject]) -> float | None:
        """Write what differs; return the seconds after which to try again, None if all is as it should be."""
        wanted = {item["metadata"]["name"]: item for item in self.wanted()}
        changed = [name for name, item in wanted.items() if self._is_due(item, found.get(name))]
        surplus = found.keys() - wanted.keys()
        if not changed and not surplus:
            return None
        if len(wanted) > 1 or surplus:
            # A pool counts when all of its slices have one generation.
            changed = list(wanted)
        generation = 1 + max([self._generation, *map(_generation, found.values())])
        try:
            for name in changed:
                found[name] = await self._write(wanted[name], found.get(name), generation)
            if not all(is_shared(item.spec) for item in found.values()):
                return await self._withdraw(found)
            for name in surplus:
                await self._client.delete(f"{SLICES}/{quote_segment(name)}", timeout_s=WRITE_TIMEOUT_S)
                found.pop(name, None)
        except (Conflict, NotFound):
            return await self._stepper.pause_for_watch()
        except KubeApiError as error:
            self.problem = f"the ResourceSlices of node {self._node_name} cannot be written: {error}"
            return await self._stepper.back_off(log, "slices not published", error)
        self._generation = generation
        log.info("slices published", slices=len(changed), generation=generation)
        return None

    async def _withdraw(self, found: dict[str, SliceObject]) -> float:
        """Remove the slices where the API server would give each card to one claim, and pause."""
        if self.problem != TOO_OLD:
            log.error("slices withdrawn", reason=TOO_OLD)
        self.problem = TOO_OLD
        for name in list(found):
            await self._client.delete(f"{SLICES}/{quote_segment(name)}", timeout_s=WRITE_TIMEOUT_S)
            del found[name]
        return await self._stepper.pause(TOO_OLD_AGAIN_S)

    def _is_due(self, wanted: Mapping[str, Any], found: SliceObject | None) -> bool:
        if found is None:
            return True
        name = found.metadata.name
        if self._written.get(name) == (wanted, found.metadata.resource_version):
            return False  # the API server drops fields of features that are off
        return differs(wanted, {"spec": found.spec})

    async def _write(
        self, wanted: Mapping[str, Any], found: SliceObject | None, generation: int
    ) -> SliceObject:
        pool = {**wanted["spec"]["pool"], "generation": generation}
        body: dict[str, Any] = {**wanted, "spec": {**wanted["spec"], "pool": pool}}
        name = wanted["metadata"]["name"]
        if found is None:
            answer = await self._client.post(SLICES, body, timeout_s=WRITE_TIMEOUT_S)
        else:
            version = {"resourceVersion": found.metadata.resource_version}
            body["metadata"] = {**wanted["metadata"], **version}
            answer = await self._client.put(
                f"{SLICES}/{quote_segment(name)}", body, timeout_s=WRITE_TIMEOUT_S
            )
        written = decode_answer(answer, _decode_slice, "a ResourceSlice")
        self._written[name] = wanted, written.metadata.resource_version
        self.writes += 1
        return written


def _generation(item: SliceObject) -> int:
    return int((item.spec.get("pool") or {}).get("generation") or 0)
