"""The API server of the model: one node, its pods and claims, and one sequence of events."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from allocator.claims import ClaimObject
from allocator.names import DRA_COMPUTE, DRA_DRIVER, DRA_MEMORY, POD_ASSIGNED
from kubeapi.errors import NotFound
from tests.property.kernel.api import Event

NODE = "n"

Json = dict[str, Any]


def name_compute(card: str) -> str:
    """Name the compute of a card, or of a device, among amounts by card."""
    return f"{card} compute"


@dataclass
class ModelApi:
    """What is true in etcd, and how it came about: `objects` by resource and UID, `events` by resource."""

    version: int = 1
    now: float = 0.0
    objects: dict[str, dict[str, Json]] = field(
        default_factory=lambda: {"nodes": {}, "pods": {}, "claims": {}}
    )
    events: dict[str, list[Event[Json]]] = field(
        default_factory=lambda: {"nodes": [], "pods": [], "claims": []}
    )
    _amounts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def put(self, what: str, item: Json) -> None:
        uid = item["metadata"]["uid"]
        kind = "MODIFIED" if uid in self.objects[what] else "ADDED"
        self.objects[what][uid] = self._record(what, kind, item)

    def delete(self, what: str, uid: str) -> None:
        if (item := self.objects[what].pop(uid, None)) is not None:
            self._record(what, "DELETED", item)

    def change(self, what: str, uid: str, **parts: Json) -> None:
        item = self.objects[what].get(uid)
        if item is not None:
            self.put(what, {**item, **parts})

    def _record(self, what: str, kind: str, item: Json) -> Json:
        self.version += 1
        item = msgspec.json.decode(msgspec.json.encode(item))  # a copy, and the quickest
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events[what].append(Event(self.version, kind, item))
        return item

    @property
    def pods(self) -> dict[str, Json]:
        return self.objects["pods"]

    @property
    def claims(self) -> dict[str, Json]:
        return self.objects["claims"]

    def read(self, path: str) -> bytes:
        """Answer a GET of a pod or a claim."""
        what = "claims" if "/resourceclaims/" in path else "pods"
        name = path.rpartition("/")[2]
        for item in self.objects[what].values():
            if item["metadata"]["name"] == name:
                return json.dumps(item).encode()
        raise NotFound(path, status=404)

    # Pods.

    def bind(self, uid: str, version: str | None, assigned: str | None) -> bool:
        """The Binding: a compare-and-swap on UID and, where it is given, resourceVersion."""
        pod = self.pods.get(uid)
        if pod is None or pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending":
            return False
        if version is not None and pod["metadata"]["resourceVersion"] != version:
            return False
        notes = dict(pod["metadata"].get("annotations") or {})
        if assigned is not None:
            notes[POD_ASSIGNED] = assigned
        metadata = {**pod["metadata"], "annotations": notes}
        self.change("pods", uid, metadata=metadata, spec={**pod["spec"], "nodeName": NODE})
        return True

    def is_live(self, uid: str) -> bool:
        """Whether a pod is there and has not ended."""
        pod = self.pods.get(uid)
        return pod is not None and pod["status"]["phase"] not in {"Succeeded", "Failed"}

    def claims_of(self, pod: Json) -> list[Json]:
        made = (pod["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
        names = {each["resourceClaimName"] for each in pod["spec"].get("resourceClaims") or ()}
        names |= {made} if made else set()
        return [claim for claim in self.claims.values() if claim["metadata"]["name"] in names]

    # Claims.

    def allocate(self, uid: str, device: str, units: int, compute: int, pods: list[str]) -> None:
        result = {
            "request": "gpu",
            "driver": DRA_DRIVER,
            "pool": NODE,
            "device": device,
            "shareID": f"{uid}-{self.version}",
            "consumedCapacity": {DRA_MEMORY: f"{units}Gi", DRA_COMPUTE: str(compute)},
        }
        allocation = {"devices": {"results": [result]}}
        self.change("claims", uid, status={"allocation": allocation, "reservedFor": self.reserve(pods)})

    def reserve(self, pods: list[str]) -> list[Json]:
        return [
            {"resource": "pods", "name": self.pods[uid]["metadata"]["name"], "uid": uid}
            for uid in pods
            if uid in self.pods
        ]

    def amounts_by_device(self, claim: ClaimObject) -> dict[str, int]:
        """Units of an allocated claim by the device's name, and its compute, see `name_compute`."""
        key = claim.metadata.uid, claim.metadata.resource_version
        if key not in self._amounts:
            amounts: dict[str, int] = {}
            for result in claim.results or ():
                mine = {result.device: result.count_units(1024) or 0}
                for name, amount in (mine | {name_compute(result.device): result.count_compute()}).items():
                    amounts[name] = amounts.get(name, 0) + amount
            self._amounts[key] = amounts
        return self._amounts[key]

    def tidy_claim(self, claim: Json) -> None:
        """Do what kube-controller-manager does with a claim: its pods end, and with the last one its use."""
        status, metadata = claim.get("status") or {}, claim["metadata"]
        owners = [owner["uid"] for owner in metadata.get("ownerReferences") or ()]
        if owners and not any(self.is_live(uid) for uid in owners):
            self.delete("claims", metadata["uid"])
            return
        reserved = status.get("reservedFor") or []
        left = [one for one in reserved if self.is_live(one["uid"])]
        if len(left) < len(reserved):
            new = {**status, "reservedFor": left} if left else {}
            self.change("claims", metadata["uid"], status=new)
