"""Says in the status of a claim which pod and containers have its shares."""

import random
import time
from typing import Any, Final

import structlog

from allocator.claims import decode_writable_claim, make_claim_path
from allocator.ids import parse_device_id
from allocator.names import DRA_DRIVER
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.dra.prepared_claims import PreparedClaim, PreparedClaims
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.backoff import Backoff, KeyedBackoff
from kubeapi.client import KubeClient
from kubeapi.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KubeApiError,
    Malformed,
    NotFound,
    decode_answer,
)
from kubeapi.metadata import format_time
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

LONGEST_WAIT_S: Final = 300.0
"""Longest wait of a claim whose status was refused, and of all where the API server does not answer."""
_NOT_WRITTEN: Final = "status of claim not written"
CONDITION: Final = {"type": "Ready", "status": "True", "reason": "Prepared"}


def device_statuses(claim: PreparedClaim, pool: str, now: str) -> list[dict[str, Any]]:
    """Make the status of each share of a prepared claim."""
    found = []
    for share in claim.shares:
        units = {
            container: len([text for text in ids if parse_device_id(text)[0] == share.uuid])
            for container, ids in claim.ids.items()
        }
        held = {container: count for container, count in units.items() if count}
        told = f"pod {claim.pod_name} has it, in containers {', '.join(held)}"
        entry: dict[str, Any] = {
            "driver": DRA_DRIVER,
            "pool": pool,
            "device": share.device,
            "conditions": [{**CONDITION, "message": told, "lastTransitionTime": now}],
            "data": {
                "card": share.uuid,
                "pod": claim.pod_name,
                "podUID": claim.pod_uid,
                "units": held,
                **({"compute": share.compute} if share.compute else {}),
            },
        }
        found.append({**entry, "shareID": share.share_id} if share.share_id else entry)
    return found


class ClaimStatusWriter:
    """Writes `status.devices` of each prepared claim once for its pod, as long as the API server has it.

    Claims that the extender wrote are left out: their pod's annotation says the same. Kubernetes takes the
    entries away when the claim is deallocated.
    """

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        prepared: PreparedClaims,
        *,
        node_name: str,
    ) -> None:
        self._client = client
        self._prepared = prepared
        self._node_name = node_name
        self._written: set[tuple[str, str]] = set()
        self._stepper = Stepper(self._step, backoff=Backoff(0.5, LONGEST_WAIT_S))
        self._refused: KeyedBackoff[str] = KeyedBackoff(0.5, LONGEST_WAIT_S, random.uniform)
        account.subscribe(self._stepper.wake)

    async def run(self) -> None:
        await self._stepper.run()

    async def _step(self) -> float | None:
        """Write the status of each claim that is due; return the seconds until a refused one is due again.

        A refused write delays only its own claim. An API server that does not answer ends the round.
        """
        self._written &= {(claim.uid, claim.pod_uid) for claim in self._prepared}
        self._refused.forget_others({claim.uid for claim in self._prepared})
        self._refused.pop_due(time.monotonic())
        for claim in self._prepared:
            if (
                claim.is_for_limits
                or (claim.uid, claim.pod_uid) in self._written
                or self._refused.is_paused(claim.uid)
            ):
                continue
            try:
                await self._write(claim)
            except NotFound:
                pass  # deleted by force: nobody is left to be told
            except (Conflict, Forbidden, Invalid, Malformed) as error:
                self._refused.log_failure(
                    claim.uid, time.monotonic(), log, _NOT_WRITTEN, error, claim=claim.name
                )
                continue
            except KubeApiError as error:
                # Changes in the meantime wait too: a server that is down is not asked more often for them.
                return await self._stepper.back_off(log, _NOT_WRITTEN, error, claim=claim.name)
            self._written.add((claim.uid, claim.pod_uid))
            self._refused.forget(claim.uid)
        return self._refused.find_wait_s(time.monotonic())

    async def _write(self, claim: PreparedClaim) -> None:
        path = make_claim_path(claim.namespace, claim.name)
        found = decode_answer(
            await self._client.get(path, timeout_s=WRITE_TIMEOUT_S), decode_writable_claim, "a ResourceClaim"
        )
        status = found.get("status") or {}
        if found["metadata"].get("uid") != claim.uid or not status.get("allocation"):
            return
        mine = device_statuses(claim, self._node_name, format_time(time.time()))
        before = status.get("devices") or []
        if _says_all(before, mine):
            return
        others = [one for one in before if one.get("driver") != DRA_DRIVER]
        body = {**found, "status": {**status, "devices": [*others, *mine]}}
        await self._client.put(f"{path}/status", body, timeout_s=WRITE_TIMEOUT_S)


def _says_all(before: list[dict[str, Any]], mine: list[dict[str, Any]]) -> bool:
    """Return True if the driver's entries already say the same."""
    said = [one.get("data") for one in before if one.get("driver") == DRA_DRIVER]
    return said == [one["data"] for one in mine]
