"""Read a ResourceClaim's shares of this node's cards: which share of which card, and for which containers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from allocator.claims import ClaimObject
from allocator.errors import QuantityError, shown
from allocator.names import DRA_COMPUTE, DRA_MEMORY
from allocator.request import WHOLE
from deviceplugin.errors import AllocationRefusedError
from kubeapi.objects import Pod


@dataclass(frozen=True, slots=True)
class ClaimShare:
    """A share of one card.

    Attributes:
        request: name of the claim's request that it answers; `main/sub` of a prioritized list.
        device: name of the card in the ResourceSlice.
        share_id: distinguishes it from other shares of the same card; empty for none.
        compute: percent of the card's compute; 0 if it takes what is left.
    """

    request: str
    device: str
    uuid: str
    units: int
    share_id: str
    compute: int = 0


class PreparedDevice(msgspec.Struct, frozen=True):
    """A share as the kubelet is answered it, with the names of its CDI devices."""

    request: str
    device: str
    share_id: str
    cdi: tuple[str, ...]


def read_shares(
    claim: ClaimObject, pool: str, sizes: Mapping[str, int], devices: Mapping[str, str], unit_mib: int
) -> tuple[ClaimShare, ...]:
    """Read a claim's shares of this node's cards; a part of a unit counts as a whole one.

    Raises:
        AllocationRefusedError: it is not allocated, or with what this node does not have.
    """
    name = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    results = claim.results
    if results is None:
        raise AllocationRefusedError("not-ready", f"{name} is not allocated")
    found = []
    for result in results:
        uuid = devices.get(result.device)
        if result.pool != pool or uuid is None:
            raise AllocationRefusedError(
                "unknown",
                f"{name}: device {shown(result.device)} of pool {shown(result.pool)} is no card of this "
                f"node; allowed: {shown(', '.join(devices), 512)} of pool {pool}",
            )
        try:
            units, compute = result.count_units(unit_mib), result.count_compute()
        except QuantityError as error:
            raise AllocationRefusedError("invalid", f"{name}: {error}") from error
        if units is None:
            units = sizes[uuid]
        elif units < 1:
            amount = (result.consumed_capacity or {}).get(DRA_MEMORY)
            raise AllocationRefusedError(
                "invalid", f"{name}: memory {shown(amount)} of device {result.device}; allowed: more than 0"
            )
        if not 0 <= compute <= WHOLE:
            raise AllocationRefusedError(
                "invalid",
                f"{name}: {DRA_COMPUTE} {compute} of device {result.device}; allowed: 0 to {WHOLE}",
            )
        found.append(ClaimShare(result.request, result.device, uuid, units, result.share_id, compute))
    return tuple(found)


def list_claim_users(pod: Pod, claim: str) -> Iterator[tuple[str, str]]:
    """List the containers of a pod that use a claim of this name, with the request, empty for all."""
    made = pod.status.extended_resource_claim_status
    if made is not None and made.resource_claim_name == claim:
        for mapping in made.request_mappings or ():
            yield mapping.container_name, mapping.request_name
    generated = pod.status.resource_claim_statuses or ()
    names = {entry.name: entry.resource_claim_name for entry in generated}
    mine = {
        entry.name
        for entry in pod.spec.resource_claims or ()
        if (entry.resource_claim_name or names.get(entry.name)) == claim
    }
    for container in pod.spec.all_containers:
        for use in (container.resources.claims if container.resources is not None else None) or ():
            if use.name in mine:
                yield container.name, use.request


def shares_by_container(
    pod: Pod, claim: str, shares: Sequence[ClaimShare]
) -> dict[str, tuple[ClaimShare, ...]]:
    """Tell which container of a pod has which shares of a claim.

    A claim that no container uses is the first container's: the pod has it all the same.
    """
    found: dict[str, list[ClaimShare]] = {}
    for container, request in list_claim_users(pod, claim):
        mine = [share for share in shares if request in {"", share.request.partition("/")[0]}]
        known = found.setdefault(container, [])
        known += [share for share in mine if share not in known]
    used = {share for mine in found.values() for share in mine}
    rest = [share for share in shares if share not in used]
    if rest and pod.spec.containers:
        found.setdefault(pod.spec.containers[0].name, []).extend(rest)
    return {container: tuple(mine) for container, mine in found.items()}
