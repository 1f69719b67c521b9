"""Writes the claims of pods before their Bindings, and releases allocations that led to no Binding.

```
  create claim --> allocate and reserve --> pod's status names it --> Binding
       |                  |                        |                     |
       +------------------+--- any step fails -----+---------------------+
                          v
                 deallocate; the claim stays, empty, with the pod
```

If a process ends between two steps, the next leader finds its claim and deallocates it unless the pod is
bound. A pod that is tried again keeps the same claim, whatever its next node is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from allocator.claims import (
    CLAIMS_PATH,
    ClaimObject,
    decode_writable_claim,
    make_claim_path,
    make_claims_path,
    read_claim,
)
from allocator.names import CLAIM_LABEL
from kubeapi.errors import Conflict, KubeApiError, NotFound, decode_answer
from kubeapi.metadata import format_time
from kubeapi.object_api import ObjectApi
from kubeapi.objects import KubeStruct, make_list_decoder
from kubeapi.paths import make_pod_path
from scheduler_plugin.binding.pod_claims import BoundPodClaim
from scheduler_plugin.errors import CommitError

log = structlog.get_logger(__name__)

RETRIES: Final = 5
RETRY_S: Final = 0.5

_DEALLOCATED: Final[dict[str, Any]] = {}


class _Version(KubeStruct):
    resource_version: str


class _PatchedPod(KubeStruct):
    metadata: _Version


_decode_pod: Final = msgspec.json.Decoder(_PatchedPod).decode
_decode_list: Final = make_list_decoder(dict[str, Any])


class ClaimWriter:
    """Writes claims, one pod's writes after the other.

    Args:
        is_pending: returns True if the pod with a UID is known, not bound, and not being bound.
    """

    def __init__(
        self,
        api: ObjectApi,
        timeout_s: float,
        is_pending: Callable[[str], bool],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._is_pending = is_pending
        self._sleep = sleep
        # A lock is the same one as long as somebody has it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._releasing: set[asyncio.Task[None]] = set()

    async def write(self, claim: BoundPodClaim, resource_version: str) -> str:
        """Prepare the claim for the kubelet and name it in the pod's status; return the pod's new version.

        Args:
            resource_version: resourceVersion of the pod as the decision saw it; any other one is refused.

        Raises:
            CommitError: the claim belongs to another pod, or is being deleted.
            KubeApiError: a write failed; nothing is bound.
        """
        async with self._lock(claim.pod_uid):
            found = await self._create(claim)
            found = await self._allocate(claim, found)
            body = {
                "metadata": {"uid": claim.pod_uid, "resourceVersion": resource_version or None},
                "status": {
                    "extendedResourceClaimStatus": {
                        "resourceClaimName": claim.name,
                        "requestMappings": claim.mappings,
                    }
                },
            }
            path = f"{make_pod_path(claim.namespace, claim.pod)}/status"
            answer = await self._api.patch(path, body, timeout_s=self._timeout_s)
            return decode_answer(answer, _decode_pod, "a Pod").metadata.resource_version

    def release(self, claim: BoundPodClaim) -> None:
        """Deallocate a claim whose Binding failed, in the background."""
        task = asyncio.create_task(self._release(claim))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def sweep(self) -> None:
        """Deallocate what earlier processes left allocated to pods that are not bound.

        Failures are only logged: when such a pod is tried again, its claim is corrected.
        """
        try:
            body = await self._api.get(
                CLAIMS_PATH,
                timeout_s=self._timeout_s,
                labelSelector=f"{CLAIM_LABEL}=true",
            )
            claims = decode_answer(body, _decode_claims, "a list of ResourceClaims")
        except KubeApiError as error:
            log.warning("claims of pods not listed", error=str(error))
            return
        for found, claim in claims:
            uid = claim.owner_pod_uid
            if claim.is_for_limits and self._is_pending(uid):
                async with self._lock(uid):
                    await self._deallocate(found)

    async def close(self) -> None:
        for task in self._releasing:
            task.cancel()
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def _create(self, claim: BoundPodClaim) -> dict[str, Any]:
        """Create the claim, or find the one that an earlier attempt created."""
        try:
            answer = await self._api.post(
                make_claims_path(claim.namespace), claim.body, timeout_s=self._timeout_s
            )
        except Conflict:
            answer = await self._api.get(claim.path, timeout_s=self._timeout_s)
        found = decode_answer(answer, decode_writable_claim, "a ResourceClaim")
        if read_claim(found).owner_pod_uid != claim.pod_uid:
            raise CommitError(f"claim {claim.namespace}/{claim.name} belongs to another pod")
        if found["metadata"].get("deletionTimestamp"):
            raise CommitError(f"claim {claim.namespace}/{claim.name} is being deleted; it is tried again")
        return found

    async def _allocate(self, claim: BoundPodClaim, found: dict[str, Any]) -> dict[str, Any]:
        shares = read_claim(found).share_ids
        if shares == claim.shares:
            return found
        if shares:
            # An allocation cannot be changed, only ended.
            found = await self._put_status(found, _DEALLOCATED)
        status = {
            # Without a time kube-scheduler tries for ever to write one.
            "allocation": {"allocationTimestamp": format_time(time.time()), **claim.allocation},
            "reservedFor": [{"resource": "pods", "name": claim.pod, "uid": claim.pod_uid}],
        }
        return await self._put_status(found, status)

    async def _put_status(self, found: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        metadata = read_claim(found).metadata
        path = f"{make_claim_path(metadata.namespace, metadata.name)}/status"
        answer = await self._api.put(path, {**found, "status": status}, timeout_s=self._timeout_s)
        return decode_answer(answer, decode_writable_claim, "a ResourceClaim")

    async def _release(self, claim: BoundPodClaim) -> None:
        for _ in range(RETRIES):
            try:
                async with self._lock(claim.pod_uid):
                    if not self._is_pending(claim.pod_uid):
                        return
                    body = await self._api.get(claim.path, timeout_s=self._timeout_s)
                    found = decode_answer(body, decode_writable_claim, "a ResourceClaim")
                    if read_claim(found).share_ids == claim.shares:
                        await self._put_status(found, _DEALLOCATED)
                    return
            except NotFound:
                return
            except KubeApiError as error:
                log.debug("claim not deallocated", claim=claim.path, error=str(error))
            await self._sleep(RETRY_S)
        log.warning("claim not deallocated, the pod's next attempt does it", claim=claim.path)

    async def _deallocate(self, found: dict[str, Any]) -> None:
        metadata = read_claim(found).metadata
        name = f"{metadata.namespace}/{metadata.name}"
        try:
            await self._put_status(found, _DEALLOCATED)
        except KubeApiError as error:
            log.warning("claim of an unbound pod not deallocated", claim=name, error=str(error))
        else:
            log.info("claim of an unbound pod deallocated", claim=name)

    def _lock(self, pod_uid: str) -> asyncio.Lock:
        return self._locks.setdefault(pod_uid, asyncio.Lock())


def _decode_claims(body: bytes) -> list[tuple[dict[str, Any], ClaimObject]]:
    return [(found, read_claim(found)) for found in _decode_list(body).items or ()]
