"""The node of the model: the shipped parts that serve claims, on a disk and an API that are slow or gone."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from allocator.cards import Card
from allocator.ledger import Ledger
from allocator.names import NODE_SERVES, SERVES_CLAIMS, resource_name
from allocator.records import CardRecord
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, PodObject
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.dra.cdi_files import CdiFiles
from deviceplugin.dra.claim_service import ClaimService
from deviceplugin.dra.prepared_claims import PreparedClaim, PreparedClaims
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.publishing.node_publication import (
    NodePublication,
    make_status_patch,
    next_revision,
    place_claims,
    publish_reason,
)
from kubeapi.errors import KubeApiError, NotFound
from tests.api_requests import ApiRequests
from tests.property.kernel.api import Watch
from tests.property.kernel.loop import new_inline_loop, run_ready

from .api import NODE, ModelApi, name_compute

if TYPE_CHECKING:
    from deviceplugin.dra.claims import PreparedDevice

UNIT_MIB = 1024
RESOURCE = resource_name(UNIT_MIB)
COMPUTE = "PERCENT_OF_COMPUTE"
"""Variable that says what a container has of its card's compute."""


class DiskClaims(PreparedClaims):
    """Prepared claims on a disk that outlives the daemon."""

    def __init__(self, disk: dict[str, bytes]) -> None:
        super().__init__(Path("/nowhere"), RESOURCE)
        self._disk = disk

    def load(self) -> None:
        for text in self._disk.values():
            self.add(msgspec.json.decode(text, type=PreparedClaim))

    def write(self, claim: PreparedClaim) -> None:
        self._disk[claim.uid] = msgspec.json.encode(claim)

    def erase(self, uid: str) -> None:
        self._disk.pop(uid, None)


class DiskCdi(CdiFiles):
    """CDI files by the UID of their claim."""

    def __init__(self, files: dict[str, object]) -> None:
        super().__init__([Path("/nowhere")])
        self._files = files

    def write(self, claim_uid: str, spec: object) -> None:
        self._files[claim_uid] = spec

    def remove(self, claim_uid: str) -> None:
        self._files.pop(claim_uid, None)

    def list_claims(self) -> set[str]:
        return set(self._files)


class SlowApi:
    """Answers what the daemon reads when the history says so, and at times not."""

    def __init__(self, api: ModelApi, random: Random) -> None:
        self.api, self.random = api, random
        self.asked: list[tuple[asyncio.Future[bytes], str]] = []

    async def get(self, path: str, *, timeout_s: float = 0) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked.append((future, path))
        return await future

    def answer(self) -> bool:
        """Answer one question; False: nobody asks."""
        if not self.asked:
            return False
        future, path = self.asked.pop(self.random.randrange(len(self.asked)))
        if future.done():
            return True
        if self.random.random() < 0.03:
            future.set_exception(KubeApiError("away"))
            return True
        try:
            future.set_result(self.api.read(path))
        except NotFound as error:
            future.set_exception(error)
        return True


class AtOnce(ApiRequests):
    """Answers what the daemon reads at once."""

    def __init__(self, api: ModelApi) -> None:
        super().__init__()
        self.api = api

    def answer(self, verb: str, path: str, body: Any) -> bytes:
        return self.api.read(path)


class ModelDaemon:
    """The daemon of a node of claims.

    Attributes:
        running: pods with containers, which the kubelet runs; their cgroups are what the daemon sees of them.
        disk: files of prepared claims.
        cdi: CDI files.
        up: it runs.
    """

    def __init__(self, api: ModelApi, random: Random, sizes: tuple[int, ...], running: set[str]) -> None:
        self.api, self.random, self.running = api, random, running
        self.cards = tuple(Card(i, f"GPU-{NODE}-{i}", "A100", size, 0) for i, size in enumerate(sizes))
        self.disk: dict[str, bytes] = {}
        self.cdi: dict[str, Any] = {}
        self._told: dict[str, tuple[PreparedClaim, dict[str, int]]] = {}
        self.revision = 0
        self.loop = new_inline_loop()
        self.slow = SlowApi(api, random)
        self.up = False
        self.start()

    def start(self) -> None:
        self.up, self.watch, self.listed = True, Watch(self.api.events["pods"]), False
        self.prepared = DiskClaims(self.disk)
        self.ledger = Ledger(self.cards)
        self.account = LedgerService(self.ledger, self.prepared.read, RESOURCE, clock=lambda: self.api.now)
        self.pods = OwnPods(
            self.account,
            RESOURCE,
            lambda: None,
            self.prepared.read_request,
            self.prepared.awaits_claim,
        )
        self.slow = SlowApi(self.api, self.random)
        self.service = ClaimService(
            self.account,
            self.pods,
            self.slow,
            self.prepared,
            DiskCdi(self.cdi),
            _make_grant,
            node_name=NODE,
            unit_mib=UNIT_MIB,
            room_wait_s=0,
        )
        self.loop.run_until_complete(self.service.restore())
        self.account.read_checkpoint()

    def kill(self) -> None:
        """End at once: calls under way have no answer."""
        self.up = False
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.pump()

    def pump(self) -> None:
        """Let everything go on that waits for nothing."""
        run_ready(self.loop)

    def begin_prepare(self, name: str, uid: str) -> "asyncio.Task[tuple[PreparedDevice, ...]]":
        task = self.loop.create_task(self.service.prepare("default", name, uid))
        self.pump()
        return task

    def unprepare(self, uid: str) -> None:
        self.loop.run_until_complete(self.service.unprepare(uid))

    def hear(self) -> bool:
        """Take the list of its pods, or one event of them."""
        if not self.listed or self.ledger.accounts.has_unlisted_pods:
            self.pods.request_list()
            items = [pod for pod in self.api.pods.values() if pod["spec"].get("nodeName") == NODE]
            self.pods.replace([_pod(item) for item in items], str(self.api.version))
            self.watch.skip()
            self.listed = True
            return True
        while (event := self.watch.read()) is not None:
            if event.item["spec"].get("nodeName") == NODE:
                self.pods.event(event.kind, _pod(event.item), str(event.version))  # type: ignore[arg-type]
                return True
        return False

    def hand_over_claims(self) -> None:
        """Look for claims whose pod has ended; the API server answers at once."""
        self.service._api = AtOnce(self.api)
        try:
            self.loop.run_until_complete(self.service.hand_over_claims())
        finally:
            self.service._api = self.slow

    def look_at_cgroups(self) -> None:
        uids, began_s = self.ledger.pods_to_probe(), self.api.now
        self.account.read_checkpoint()
        self.ledger.record_cgroup_probe(uids, uids & self.running, began_s)

    def publish(self) -> None:
        """One PATCH of the Node, if it does not say it all."""
        if not self.listed or not self.ledger.is_complete:
            return
        uuids = [card.uuid for card in self.cards]
        wanted = NodePublication(
            words=self.ledger.make_words(UNIT_MIB),
            accounted_pods=self.ledger.published_holds(),
            inventory=tuple(
                CardRecord(card.uuid, card.index, card.model, card.size_units * UNIT_MIB, None, healthy=True)
                for card in self.ledger.installed
            ),
            seen_version=self.pods.seen_version,
            claims=place_claims(self.prepared.published, uuids),
        )
        item = self.api.objects["nodes"].get("uid-n") or {"metadata": {"name": NODE, "uid": "uid-n"}}
        node = msgspec.convert(item, type=NodeObject)
        if publish_reason(wanted, node, self.pods.owed_version) is None:
            return
        self.revision = next_revision(self.revision, node, 0)
        patch = make_status_patch(wanted, node, self.revision)
        notes = {**patch["metadata"]["annotations"], NODE_SERVES: SERVES_CLAIMS}
        amounts = {key: str(value) for key, value in patch["status"]["allocatable"].items()}
        self.api.put(
            "nodes",
            {
                "metadata": {"name": NODE, "uid": "uid-n", "annotations": notes},
                "status": {"allocatable": amounts, "capacity": amounts},
            },
        )

    def share_ids(self, uid: str) -> frozenset[str]:
        claim = self.prepared.get(uid)
        return frozenset(share.share_id for share in claim.shares) if claim is not None else frozenset()

    def used(self) -> list[int]:
        """Units by card that its words say, then the percent of compute."""
        words = self.ledger.make_words(UNIT_MIB)
        return [*words.used, *words.compute_used]

    def amounts(self) -> dict[str, dict[str, int]]:
        """Units by card and compute that containers were told of, by the UID of their claim."""
        found: dict[str, dict[str, int]] = {}
        for claim in self.prepared:
            if (known := self._told.get(claim.uid)) is not None and known[0] is claim:
                found[claim.uid] = known[1]
                continue
            spec = self.cdi.get(claim.uid)
            if spec is None:
                continue
            (device,) = spec["devices"]
            told = dict(text.split("=", 1) for text in device["containerEdits"]["env"])
            pairs = [pair.rpartition(":") for pair in told["GPUPACK_CARDS"].split(",")]
            units = {card: int(units) for card, _, units in pairs}
            found[claim.uid] = units | {name_compute(card): int(told[COMPUTE]) for card in units}
            self._told[claim.uid] = claim, found[claim.uid]
        return found


async def _make_grant(_mib: Mapping[str, int], compute: int, _ids: Collection[str]) -> ContainerGrant:
    return ContainerGrant({COMPUTE: str(compute)})


def _pod(item: dict[str, Any]) -> PodObject:
    return msgspec.json.decode(msgspec.json.encode(item), type=PodObject)
