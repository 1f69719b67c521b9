"""Claims in the quotas of queues: what pods have that ask by ResourceClaims. Pure."""

from collections.abc import Collection

from scheduler_plugin.cache.claim_charges import AllocatedClaim, sum_shares
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.membership import QueueMembership
from scheduler_plugin.queue.cache.queues import Queues


class ClaimedUnits:
    """Counts each claim in the quota of one queue, as long as it is allocated.

    That is the queue of a pod for which the claim is reserved: the first one that names a queue, as
    `QueueMembership` takes what it names.
    """

    def __init__(self, state: ClusterState, queues: Queues, membership: QueueMembership) -> None:
        self._state = state
        self._queues = queues
        self._membership = membership
        self._names: dict[str, str] = {}
        self._charged: dict[str, str] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._by_source: dict[str, set[str]] = {}

    @property
    def pod_uids(self) -> Collection[str]:
        return self._names.keys()

    def set_pod(self, uid: str, queue: str) -> None:
        """Take the queue that a pod with claims names, empty for none, or where the pod is gone."""
        if self._names.get(uid, "") == queue:
            return
        self._names.pop(uid, None)
        if queue:
            self._names[uid] = queue
        self._update_claims(self._by_source.get(uid, ()))

    def update_all(self) -> None:
        self._update_claims({**self._sources, **dict.fromkeys(self._state.claims)})

    def update_namespace(self, name: str) -> None:
        """Count the claims of a namespace anew: its labels have changed."""
        self._update_claims(self._by_source.get(_describe_namespace(name), ()))

    def update_node(self, name: str) -> None:
        """Count the claims of a node anew: how large its cards are may be known now."""
        record = self._state.node_records.get(name)
        self._update_claims(record.claims if record is not None else ())

    def update_claim(self, uid: str) -> None:
        """Count a claim as the state has it now; not at all where it is not allocated."""
        shares = self._state.claims.find_shares(uid)
        claim = next(iter(shares.values()), None)
        self._note_sources(uid, () if claim is None else (_describe_namespace(claim.namespace), *claim.pods))
        queue = self._find_queue(claim) if claim is not None else ""
        before = self._charged.pop(uid, queue)
        if before != queue:
            self._queues.charge_claim(before, uid, 0)
        if queue:
            units = sum(self._count_units(node, each) for node, each in shares.items())
            self._queues.charge_claim(queue, uid, units)
            self._charged[uid] = queue

    def _update_claims(self, uids: Collection[str]) -> None:
        for uid in list(uids):
            self.update_claim(uid)

    def _note_sources(self, uid: str, sources: tuple[str, ...]) -> None:
        for source in self._sources.pop(uid, ()):
            self._by_source[source].discard(uid)
            if not self._by_source[source]:
                del self._by_source[source]
        for source in sources:
            self._sources[uid] = sources
            self._by_source.setdefault(source, set()).add(uid)

    def _find_queue(self, claim: AllocatedClaim) -> str:
        named = next((self._names[pod] for pod in claim.pods if pod in self._names), "")
        name = self._membership.find_queue(claim.namespace, named)
        return name if self._membership.may_charge(name, claim.namespace) else ""

    def _count_units(self, node: str, claim: AllocatedClaim) -> int:
        """Count the units of a claim on a node; all of a card counts once the node says how large that is."""
        record = self._state.node_records.get(node)
        if record is None or not (record.uuids and record.sizes):
            return sum(share.units or 0 for share in claim.shares)
        return sum(units for units, _ in sum_shares(claim.shares, record.uuids, record.sizes).values())


def _describe_namespace(name: str) -> str:
    return f"namespace {name}"
