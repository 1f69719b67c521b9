"""ResourceClaims as node daemon and scheduler read and write them: what of which cards a claim was allocated.

The names of the fields that are read stand here and nowhere else; who writes a claim has its own.
"""

import uuid
from typing import Any, Final
from urllib.parse import quote

import msgspec

from allocator.errors import QuantityError
from allocator.names import DRA_API, DRA_COMPUTE, DRA_DRIVER, DRA_MEMORY, MIB
from allocator.quantity import parse_bytes

CLAIMS_PATH: Final = f"{DRA_API}/resourceclaims"
"""Path of the claims of every namespace."""


def make_claims_path(namespace: str) -> str:
    return f"{DRA_API}/namespaces/{quote(namespace, safe='')}/resourceclaims"


def make_claim_path(namespace: str, name: str) -> str:
    return f"{make_claims_path(namespace)}/{quote(name, safe='')}"


class ClaimOwner(msgspec.Struct):
    """An object that owns a claim."""

    kind: str = ""
    uid: str = ""


class ClaimMetadata(msgspec.Struct, rename="camel"):
    """Metadata of a ResourceClaim."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[ClaimOwner] | None = None


class AllocatedDevice(msgspec.Struct, rename="camel"):
    """A device that a claim was allocated, or a share of it."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = msgspec.field(default="", name="shareID")
    consumed_capacity: dict[str, Any] | None = None

    def make_share_id(self, pod_uid: str) -> str:
        """Make the ID of this share as the extender gives it to a pod: another one for each amount and card.

        Raises:
            QuantityError: the amount is none.
        """
        amount = parse_bytes((self.consumed_capacity or {}).get(DRA_MEMORY, ""))
        text = f"{pod_uid}/{self.pool}/{self.request}/{self.device}/{amount}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, text))

    def count_units(self, unit_mib: int) -> int | None:
        """Count the units of memory, a part of a unit as a whole one; None means all of the device.

        Raises:
            QuantityError: the amount is none.
        """
        amount = self._read(DRA_MEMORY)
        return None if amount is None else -(-amount // (unit_mib * MIB))

    def count_compute(self) -> int:
        """Count the percent of the card's compute, a part of one as a whole one; 0 if it asks for none.

        Raises:
            QuantityError: the amount is none.
        """
        return self._read(DRA_COMPUTE) or 0

    def _read(self, capacity: str) -> int | None:
        amount = (self.consumed_capacity or {}).get(capacity)
        try:
            return None if amount is None else parse_bytes(amount)
        except QuantityError as error:
            raise QuantityError(f"{capacity}: {error}") from error


class AllocatedDevices(msgspec.Struct):
    """Devices of an allocation."""

    results: list[AllocatedDevice] | None = None


class ClaimAllocation(msgspec.Struct):
    """Allocation of a claim."""

    devices: AllocatedDevices | None = None


class ClaimConsumer(msgspec.Struct):
    """A pod, or another object, that may use a claim."""

    resource: str
    name: str
    uid: str


class ClaimStatus(msgspec.Struct, rename="camel"):
    """Status of a claim; without an allocation no pod may use it."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class ClaimObject(msgspec.Struct):
    """A ResourceClaim."""

    metadata: ClaimMetadata
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def pods(self) -> dict[str, str]:
        """Names of the pods that may use the claim, by UID."""
        found = self.status.reserved_for or ()
        return {consumer.uid: consumer.name for consumer in found if consumer.resource == "pods"}

    @property
    def devices(self) -> list[AllocatedDevice]:
        """Devices of every driver that the claim was allocated."""
        allocation = self.status.allocation
        devices = allocation.devices if allocation is not None else None
        return (devices.results if devices is not None else None) or []

    @property
    def results(self) -> list[AllocatedDevice] | None:
        """Devices of our driver that the claim was allocated; None while it is not allocated."""
        if self.status.allocation is None:
            return None
        return [result for result in self.devices if result.driver == DRA_DRIVER]

    @property
    def share_ids(self) -> frozenset[str]:
        return frozenset(device.share_id for device in self.devices)

    @property
    def owner_pod_uid(self) -> str:
        """UID of the pod that owns the claim; empty if there is none."""
        owners = self.metadata.owner_references or ()
        return next((owner.uid for owner in owners if owner.kind == "Pod"), "")

    @property
    def is_for_limits(self) -> bool:
        """Return True if the extender allocated it for a pod that asks by its limits: that pod is charged.

        The IDs of the shares tell: only a scheduler writes them, and kube-scheduler's are random. Label,
        owner and name are anybody's who may create claims.
        """
        results, uid = self.results, self.owner_pod_uid
        try:
            return bool(uid and results) and all(
                result.share_id == result.make_share_id(uid) for result in results or ()
            )
        except QuantityError:
            return False


def read_claim(body: dict[str, Any]) -> ClaimObject:
    """Read a claim that will be written back unchanged except for its status."""
    return msgspec.convert(body, ClaimObject)


def decode_writable_claim(answer: bytes) -> dict[str, Any]:
    """Decode a claim with all its fields, which `read_claim` can read."""
    body: dict[str, Any] = msgspec.json.decode(answer)
    read_claim(body)
    return body
