"""A node of a scene that serves claims: the shipped service prepares them, and the shipped ledger counts."""

import json
from functools import cache
from typing import Any

import msgspec

from allocator.cards import CardAmounts
from allocator.names import MIB_PER_GIB, NODE_SERVES, PERCENT_RESOURCE, SERVES_CLAIMS
from allocator.request import PodRequest
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import PodObject
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.dra.claim_service import ClaimService
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.publishing.node_publication import place_claims
from tests.account_world import give_nothing
from tests.api_requests import ApiRequests
from tests.cluster_builders import MEMORY
from tests.property.claimed.node import DiskCdi, DiskClaims
from tests.property.kernel.loop import new_inline_loop

from .host import Host, find_request

Json = dict[str, Any]


class ClaimHost(Host):
    """A node whose pods have their cards by claims; `prepared` stands for the kubelet's checkpoint."""

    serves_claims = True

    def __init__(self, *args: Any) -> None:
        self.prepared = DiskClaims({})
        super().__init__(*args)

    def read_request(self, pod: Json) -> PodRequest | None:
        return find_request(pod) or self.prepared.read_request(pod["metadata"]["uid"])

    def _awaits_claim(self, pod: Json) -> bool:
        return find_request(pod) is not None and self.prepared.awaits_claim(pod["metadata"]["uid"])

    def prepare(self, claim: Json, pod: Json) -> bool:
        """The kubelet has a claim prepared for a pod; False: it is refused, and the kubelet asks again."""
        account = LedgerService(self.ledger, self.prepared.read, MEMORY, clock=lambda: self.now)
        prepared = self.prepared
        pods = OwnPods(account, MEMORY, lambda: None, prepared.read_request, prepared.awaits_claim)
        pods.event(
            "ADDED", msgspec.json.decode(json.dumps(pod), type=PodObject), pod["metadata"]["resourceVersion"]
        )
        service = ClaimService(
            account,
            pods,
            _Objects(claim, pod),
            self.prepared,
            DiskCdi({}),
            give_nothing,
            node_name=self.name,
            unit_mib=MIB_PER_GIB,
            room_wait_s=0,
        )
        metadata = claim["metadata"]
        try:
            _shared_loop().run_until_complete(service.prepare("default", metadata["name"], metadata["uid"]))
        except AllocationRefusedError:
            return False
        return True

    def forget(self, uid: str) -> None:
        for claim in self.prepared.of_pod(uid):
            self.prepared.remove(claim.uid)
        self._know()

    def _know(self) -> None:
        self.now += 1.0
        self.ledger.apply_checkpoint(self.prepared.read().entries, self.now)

    def _alive(self) -> set[str]:
        return {claim.pod_uid for claim in self.prepared}

    def _held_claims(self) -> dict[str, dict[int, CardAmounts]]:
        return place_claims(self.prepared.published, [card.uuid for card in self.ledger.installed])

    def published(self, version: int) -> Json:
        made = super().published(version)
        made["metadata"]["annotations"][NODE_SERVES] = SERVES_CLAIMS
        made["status"]["allocatable"] |= {MEMORY: "0", PERCENT_RESOURCE: "0"}
        return made

    def copy(self) -> "ClaimHost":
        other = super().copy()
        assert isinstance(other, ClaimHost)
        other.prepared = DiskClaims({})
        for claim in self.prepared:
            other.prepared.add(claim)
        return other


class _Objects(ApiRequests):
    """The API server, as far as the service asks it."""

    def __init__(self, claim: Json, pod: Json) -> None:
        super().__init__()
        self._claim, self._pod = claim, pod

    def answer(self, verb: str, path: str, body: Any) -> Json:
        return self._claim if "/resourceclaims/" in path else self._pod


_shared_loop = cache(new_inline_loop)
"""One loop for all scenes."""
