"""The claims that are prepared: which containers have which devices, one file a claim.

```
            NodePrepareResources                 NodeUnprepareResources
  (none) ------------------------> prepared ------------------------------> (none)
                                   file of the claim, CDI file
```

The files are what the kubelet's checkpoint is for a device plugin. These files say who has what, also after a
restart of the daemon or the machine. So they name cards by UUID alone: a device node, an index or a name in
somebody's CDI specification may be another card's after a reboot.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from allocator.cards import CardAmounts, pair_amounts
from allocator.errors import DeviceIdError, shown
from allocator.ids import parse_device_id
from allocator.ledger import CheckpointEntry
from allocator.request import ContainerRequest, PodRequest
from deviceplugin.dra.claims import ClaimShare
from deviceplugin.errors import CheckpointError, TornCheckpointError
from deviceplugin.files import make_folder, remove_file, replace_file

FOLDER: Final = "claims"


class PreparedClaim(msgspec.Struct, frozen=True):
    """A claim that a pod has.

    Attributes:
        pod_uid: UID of the pod; of several that share the claim, that for which it was prepared first. Once
            that has ended it is another one's.
        ids: device IDs by container of that pod, as in the kubelet's checkpoint.
        shares: what was allocated of which card.
        is_for_limits: the extender wrote it for a pod that asks by its limits.
        resource: resource of which the IDs are; its name says their unit. Empty in files of older daemons.
    """

    uid: str
    namespace: str
    name: str
    pod_uid: str
    pod_name: str
    ids: dict[str, list[str]]
    shares: tuple[ClaimShare, ...]
    is_for_limits: bool = False
    resource: str = ""

    @property
    def units(self) -> dict[str, int]:
        """Units by card; containers that share some count them once."""
        ids = {text for mine in self.ids.values() for text in mine}
        return dict(Counter(parse_device_id(text)[0] for text in ids))

    @property
    def compute(self) -> dict[str, int]:
        """Percent of compute by card, of the cards of which it has some."""
        return add_compute(self.shares)

    def compute_of(self, container: str) -> int:
        """Percent of compute that a container has of each of its cards: of different shares the largest."""
        cards = {parse_device_id(text)[0] for text in self.ids.get(container, ())}
        return max((share.compute for share in self.shares if share.uuid in cards), default=0)


_DECODER: Final = msgspec.json.Decoder(PreparedClaim)


def _decode(uid: str, content: bytes) -> PreparedClaim:
    """Read the file of a claim."""
    claim = _DECODER.decode(content)
    if claim.uid != uid:
        raise ValueError(f"it is that of claim {shown(claim.uid)}")
    for ids in claim.ids.values():
        for text in ids:
            parse_device_id(text)
    return claim


def add_compute(shares: Iterable[ClaimShare]) -> dict[str, int]:
    """Add up the percent of compute that shares have, by card."""
    compute: Counter[str] = Counter()
    for share in shares:
        compute[share.uuid] += share.compute
    return {uuid: percent for uuid, percent in compute.items() if percent}


class ClaimEntries:
    """The claims at one moment, in the form of the kubelet's checkpoint."""

    def __init__(self, entries: tuple[CheckpointEntry, ...]) -> None:
        self.entries = entries


class PreparedClaims:
    """Keeps the claims, in memory and in files.

    Attributes:
        published: what the Node's `holds` says of them.
    """

    def __init__(self, folder: Path, resource: str) -> None:
        self._folder = folder
        self.resource = resource
        self._claims: dict[str, PreparedClaim] = {}
        self._unread: dict[str, str] = {}
        self._entries = ClaimEntries(())
        self.published: dict[str, dict[str, CardAmounts]] = {}

    def load(self) -> None:
        """Read what an earlier daemon prepared. Blocking.

        Raises:
            CheckpointError: the folder cannot be created or read, so prepared claims would be lost.
        """
        try:
            make_folder(self._folder)
            self._unread = {path.stem: "" for path in self._folder.iterdir() if path.suffix == ".json"}
        except OSError as error:
            raise CheckpointError(f"claims in {self._folder} cannot be read: {error}") from error
        self._read_files()

    def _read_files(self) -> None:
        """Read files that are not read yet; a file removed meanwhile is skipped."""
        for uid in sorted(self._unread):
            path = self._path(uid)
            try:
                claim = _decode(uid, path.read_bytes())
            except FileNotFoundError:
                del self._unread[uid]
            except (OSError, ValueError, RecursionError, DeviceIdError) as error:
                self._unread[uid] = (
                    f"prepared claim {path} cannot be read: {error}; if that lasts, delete its pod"
                )
            else:
                self._claims[uid] = claim
                del self._unread[uid]
        self._changed()

    @property
    def unread_uids(self) -> frozenset[str]:
        """UIDs of claims whose files cannot be read, which may hold any share."""
        return frozenset(self._unread)

    def __iter__(self) -> Iterator[PreparedClaim]:
        return iter(tuple(self._claims.values()))

    def get(self, uid: str) -> PreparedClaim | None:
        return self._claims.get(uid)

    def of_pod(self, pod_uid: str) -> list[PreparedClaim]:
        return [claim for claim in self._claims.values() if claim.pod_uid == pod_uid]

    def read_request(self, pod_uid: str) -> PodRequest | None:
        """Say what a pod asks for that has prepared claims; None for any other one."""
        units: Counter[str] = Counter()
        compute: Counter[str] = Counter()
        for claim in self.of_pod(pod_uid):
            for container, ids in claim.ids.items():
                units[container] += len(ids)
                compute[container] = max(compute[container], claim.compute_of(container))
        if not units:
            return None
        return PodRequest(
            tuple(ContainerRequest(name, count, "main", compute[name]) for name, count in units.items())
        )

    def awaits_claim(self, pod_uid: str) -> bool:
        """Tell whether a pod has prepared claims, and none that the extender wrote for its limits."""
        claims = self.of_pod(pod_uid)
        return bool(claims) and not any(claim.is_for_limits for claim in claims)

    def read(self) -> ClaimEntries:
        """Return all as the kubelet's checkpoint would have it; the same object until something changes.

        Raises:
            TornCheckpointError: a file cannot be read. That ends once the kubelet has its claim prepared
                anew, or lets it go.
        """
        if self._unread:
            self._read_files()
        if self._unread:
            raise TornCheckpointError(min(self._unread.values()))
        return self._entries

    def add(self, claim: PreparedClaim) -> None:
        """Count a claim, before its file is written."""
        self._unread.pop(claim.uid, None)
        self._claims[claim.uid] = claim
        self._changed()

    def remove(self, uid: str) -> None:
        """Count a claim no more, after its file is gone."""
        self._unread.pop(uid, None)
        if self._claims.pop(uid, None) is not None:
            self._changed()

    def write(self, claim: PreparedClaim) -> None:
        """Write the file of a claim, so that it outlasts a loss of power. Blocking.

        Raises:
            OSError: it cannot be written.
        """
        replace_file(self._path(claim.uid), msgspec.json.encode(claim))

    def erase(self, uid: str) -> None:
        """Remove the file of a claim. Blocking.

        Raises:
            OSError: it cannot be removed.
        """
        remove_file(self._path(uid))

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def _changed(self) -> None:
        self.published = {
            claim.uid: pair_amounts(claim.units, claim.compute)
            for claim in self._claims.values()
            if not claim.is_for_limits
        }
        self._entries = ClaimEntries(
            tuple(entry for claim in self._claims.values() for entry in self._make_entries(claim))
        )

    def _make_entries(self, claim: PreparedClaim) -> Iterator[CheckpointEntry]:
        """Make an entry for each container; the first one's has the compute, which all of them share.

        Older extenders wrote none for limits, so there the pod's own request says it.
        """
        is_said = bool(claim.compute) or not claim.is_for_limits
        compute = claim.compute if is_said else None
        resource = claim.resource or self.resource
        for container, ids in claim.ids.items():
            yield CheckpointEntry(claim.pod_uid, container, resource, frozenset(ids), compute)
            compute = {} if is_said else None
