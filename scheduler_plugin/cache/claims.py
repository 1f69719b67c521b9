"""ResourceClaims in the cache: which are allocated cards of which node.

Claims that the extender wrote for pods that ask by their limits are not here: those pods are charged instead.
"""

from collections.abc import Callable, Iterator, Sequence

from allocator.claims import ClaimObject
from kubeapi.metadata import parse_resource_version
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.claim_charges import NOT_ENDED, AllocatedClaim, ClaimTombstone, read_claim
from scheduler_plugin.cache.node_records import NodeRecords
from scheduler_plugin.cache.versions import ObjectVersions, is_other_history


class ClaimCache:
    """Claims as last seen, kept in the records of their nodes. Pure.

    The life of a claim, as its node counts it:

        (none) --allocated--> CHARGED <--> HELD: its UID is in the node's `holds`, the words show its units
                                 |           |
                                 |           +-- gone or deallocated --> (none)
                                 +-- gone or deallocated --> TOMBSTONE --> (none)
                                     words that have seen its pods end, or TOMBSTONE_S

    Args:
        find_end: Returns the resourceVersion at which a pod (by UID) ended on a node; 0 if it has another
            node, None if it has not ended.

    Attributes:
        is_wanted: Some node has said that it serves claims.
    """

    def __init__(
        self, records: NodeRecords, unit_mib: int, find_end: Callable[[str, str], int | None]
    ) -> None:
        self.is_wanted = False
        self._records = records
        self._unit_mib = unit_mib
        self._find_end = find_end
        self._nodes: dict[str, frozenset[str]] = {}
        self._known: dict[str, int] = {}
        self._versions = ObjectVersions()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def find_shares(self, uid: str) -> dict[str, AllocatedClaim]:
        nodes = self._nodes.get(uid, frozenset())
        return {node: self._records.by_name[node].claims[uid] for node in nodes}

    def apply(self, claim: ClaimObject, now: float) -> None:
        """Apply a claim's newest version; ignore one that is older than the known one."""
        self._apply(claim, now)
        self._records.update_arrays(now)

    def delete(self, claim: ClaimObject, resource_version: str, now: float) -> None:
        version = parse_resource_version(resource_version)
        self._remove(claim.metadata.uid, version, now)
        self._records.update_arrays(now)

    def replace(
        self, claims: Sequence[ClaimObject], resource_version: str, now: float, *, restored: bool = False
    ) -> bool:
        """Apply a complete list; arguments and result are those of `ClusterState.replace_nodes`."""
        version = parse_resource_version(resource_version)
        restored = restored or is_other_history(version, self._pair_versions(claims))
        if restored:
            self._versions.reset()
            self._known = dict.fromkeys(self._known, 0)
        listed = {claim.metadata.uid for claim in claims}
        for claim in claims:
            self._apply(claim, now)
        for uid in [uid for uid, known in self._known.items() if uid not in listed and known <= version]:
            self._remove(uid, version, now)
        self._versions.record_list(version)
        self._records.update_arrays(now)
        return restored

    def note_end(self, pod: str, node: str, version: int) -> None:
        """Record that a pod of a node ended at a version, which ends the wait of vanished claims."""
        record = self._records.by_name.get(node)
        for tombstone in record.claim_tombstones.values() if record is not None else ():
            if pod in tombstone.ends:
                tombstone.ends[pod] = min(version, tombstone.ends[pod])
                self._records.mark_expiring(node)

    def _pair_versions(self, claims: Sequence[ClaimObject]) -> Iterator[tuple[int, int]]:
        for claim in claims:
            if claim.metadata.uid in self._known:
                yield parse_resource_version(claim.metadata.resource_version), self._known[claim.metadata.uid]

    def _apply(self, claim: ClaimObject, now: float) -> None:
        uid, version = claim.metadata.uid, parse_resource_version(claim.metadata.resource_version)
        known = self._known.get(uid)
        if known is None and self._versions.is_old(uid, version):
            return
        if known is not None and version < known:
            return
        found = read_claim(claim, self._unit_mib)
        for node in self._nodes.get(uid, frozenset()) - found.keys():
            self._vanish(uid, node, now)
        for node, allocated in found.items():
            record = self._records.get_or_add(node)
            before = record.claims.get(uid)
            if before is not None and before.shares != allocated.shares:
                self._vanish(uid, node, now)
            record.claims[uid] = allocated
            self._records.mark_changed(node)
        self._known[uid] = version
        self._set_nodes(uid, frozenset(found))

    def _remove(self, uid: str, version: int, now: float) -> None:
        known = self._known.get(uid)
        if known is not None and version < known:
            return
        self._versions.record_deletion(uid, version)
        self._known.pop(uid, None)
        for node in self._nodes.get(uid, frozenset()):
            self._vanish(uid, node, now)
        self._set_nodes(uid, frozenset())

    def _set_nodes(self, uid: str, nodes: frozenset[str]) -> None:
        if nodes:
            self._nodes[uid] = nodes
        else:
            self._nodes.pop(uid, None)

    def _vanish(self, uid: str, node: str, now: float) -> None:
        """Keep charging a vanished claim if the node may have prepared it without its words showing that."""
        record = self._records.get_or_add(node)
        claim = record.claims.pop(uid, None)
        if claim is None:
            return
        found = {pod: self._find_end(pod, node) for pod in claim.pods}
        ends = {pod: NOT_ENDED if end is None else end for pod, end in found.items()}
        tombstone = ClaimTombstone(claim, now + TOMBSTONE_S, ends)
        self._records.mark_changed(node)
        if not self._records.rules.is_claim_over(record, tombstone, now):
            record.claim_tombstones[uid, claim.version] = tombstone
            self._records.mark_expiring(node)
