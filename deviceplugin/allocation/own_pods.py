"""Follows this node's pods with a reflector."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from allocator.errors import AllocatorError
from allocator.ledger import Pod
from allocator.request import PodRequest
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import PodObject
from kubeapi.errors import KubeApiError
from kubeapi.metadata import parse_resource_version
from kubeapi.reflect import Kind

log = structlog.get_logger(__name__)


class OwnPods:
    """Feeds the pods of this node to the ledger; a sink of `kubeapi.reflect`.

    Args:
        read_claims: Says what a pod has by claims, by the UID under which the kubelet runs it.
        awaits_claim: Tells, of a pod that asks by its limits, whether it has other claims and not yet theirs.

    Attributes:
        seen_version: resourceVersion of the newest event that the ledger has.
        owed_version: a published `seen` must reach this version: a bound pod vanished that no words held.
        is_connected: the view is not known to be behind.
        pods_by_uid: pods with our resource by UID, finished ones included until their object is gone.
    """

    def __init__(
        self,
        account: LedgerService,
        resource: str,
        relist: Callable[[], None],
        read_claims: Callable[[str], PodRequest | None] = lambda _: None,
        awaits_claim: Callable[[str], bool] = lambda _: False,
        holds_pod: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._account = account
        self._resource = resource
        self._began_s = account.now_s()
        self._relist = relist
        self._relisting = self._again = False
        self._living: set[str] | None = None
        self._read_claims = read_claims
        self._awaits_claim = awaits_claim
        self._holds_pod = holds_pod
        self._with_claims: dict[str, PodObject] = {}
        self._claims: dict[str, PodRequest] = {}
        self._missed = False
        self.seen_version = 0
        self.owed_version = 0
        self.is_connected = False
        self.pods_by_uid: dict[str, PodObject] = {}
        self._running: dict[str, PodObject] = {}

    def find_pod(self, runtime_uid: str) -> PodObject | None:
        return self._running.get(runtime_uid)

    def container_names(self, runtime_uid: str) -> Mapping[str, str]:
        """Return names of a pod's containers by the runtime's IDs, as far as its status has them."""
        found = self._running.get(runtime_uid)
        return found.container_names if found is not None else {}

    def claims_changed(self, runtime_uid: str) -> None:
        """Process a pod again after its claims have changed; a pod not seen in a watch yet is added."""
        item = self._with_claims.get(runtime_uid)
        if item is not None:
            pod, _ = self._read_pod(item)
            if pod is not None:
                self._keep(item)
                self._account.ledger.apply_pod(pod, self._account.now_s())

    @property
    def living_uids(self) -> Collection[str] | None:
        """UIDs, as the kubelet knows them, of pods that have not ended; None before the first list."""
        return self._living

    def has_seen_end(self, item: PodObject) -> bool:
        """Return True if the view is newer than this version of a pod, and shows that the pod has ended."""
        version = parse_resource_version(item.metadata.resource_version)
        ended = self._living is not None and item.runtime_uid not in self._living
        return ended and self.seen_version >= version

    def request_list(self) -> None:
        """Ask for a complete list that begins now, or after the one that is under way."""
        self._again = self._relisting
        if not self._relisting:
            self._relisting = True
            self._began_s = self._account.now_s()
            self._relist()

    def replace(self, items: Sequence[PodObject], resource_version: str) -> None:
        """Take all pods of this node, as the API server has them now.

        Also with a lower resourceVersion than was seen: then etcd was restored from an older copy.
        """
        pods = []
        known, self.pods_by_uid, self._running = self.pods_by_uid, {}, {}
        self._with_claims = {item.runtime_uid: item for item in items if item.spec.resource_claims}
        self._claims = {uid: request for uid, request in self._claims.items() if uid in self._with_claims}
        self._living = {item.runtime_uid for item in items if not item.has_ended}
        for item in items:
            pod, problem = self._read_pod(item)
            if item.metadata.uid not in known:
                self._complain(item, problem)
            if pod is not None:
                pods.append(pod)
                self._keep(item)
        self._account.ledger.apply_pod_list(pods, self._began_s, self._account.now_s())
        self.is_connected, self._relisting = True, False
        before, self.seen_version = self.seen_version, parse_resource_version(resource_version)
        if self._missed or self.seen_version < before:
            # While nobody watched, a pod may have come and gone.
            self.owed_version = self.seen_version
        self._missed = False
        if self._again:
            self.request_list()
        self._account.notify_subscribers()

    def _read_pod(self, item: PodObject) -> tuple[Pod | None, AllocatorError | None]:
        claimed = self.find_claims(item.runtime_uid)
        if claimed is not None:
            self._claims[item.runtime_uid] = claimed
        pod, problem = item.to_ledger_pod(self._resource, claimed)
        if pod is not None and pod.request is not claimed and self._awaits_claim(item.runtime_uid):
            pod = replace(pod, awaits_claim=True)
        return pod, problem

    def find_claims(self, runtime_uid: str) -> PodRequest | None:
        """Say what a pod has, or had, by claims: the kubelet unprepares them before the API shows the end."""
        return self._read_claims(runtime_uid) or self._claims.get(runtime_uid)

    def event(self, kind: Kind, item: PodObject, resource_version: str) -> None:
        self.is_connected = True
        ledger, uid = self._account.ledger, item.metadata.uid
        if self._living is not None:
            ended = kind == "DELETED" or item.has_ended
            (self._living.discard if ended else self._living.add)(item.runtime_uid)
        if item.spec.resource_claims and kind != "DELETED":
            self._with_claims[item.runtime_uid] = item
        else:
            self._with_claims.pop(item.runtime_uid, None)
        pod, problem = self._read_pod(item)
        if pod is None:
            self._complain(item, problem)
            self._advance(resource_version)
            return
        # The ledger may have it already, and the words not yet: gains are published a moment later.
        waited_for = ledger.has_live_pod(item.runtime_uid) and not self._holds_pod(uid)
        if kind == "DELETED":
            self._claims.pop(item.runtime_uid, None)
            self.pods_by_uid.pop(uid, None)
            self._running.pop(item.runtime_uid, None)
            ledger.remove_pod(uid, self._account.now_s())
        else:
            if uid not in self.pods_by_uid:
                self._complain(item, problem)
            self._keep(item)
            ledger.apply_pod(pod, self._account.now_s())
        self._advance(resource_version)
        if waited_for and (kind == "DELETED" or pod.terminal):
            self.owed_version = self.seen_version
        self._account.notify_subscribers()

    def bookmark(self, resource_version: str) -> None:
        self.is_connected = True
        self._advance(resource_version)

    def disconnected(self, error: KubeApiError) -> None:
        """Note that the next list, if there is one, begins after now."""
        del error
        self.is_connected = self._relisting = self._again = False
        self._missed = self._missed or self.seen_version > 0
        self._began_s = self._account.now_s()

    def _advance(self, resource_version: str) -> None:
        self.seen_version = max(self.seen_version, parse_resource_version(resource_version))

    def _keep(self, item: PodObject) -> None:
        self.pods_by_uid[item.metadata.uid] = self._running[item.runtime_uid] = item

    def _complain(self, item: PodObject, problem: Exception | None) -> None:
        if problem is not None:
            log.warning("pod cannot be read", pod=item.full_name, error=str(problem))
