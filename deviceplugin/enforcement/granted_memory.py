"""MiB that each container was given of each card, by the kubelet's checkpoint."""

from collections import Counter
from collections.abc import Callable, Mapping

from allocator.request import PodRequest
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.enforcement.limit_plan import Grants


class GrantedMemory:
    """Follows the checkpoint's containers. Pods go by the UID that they have in cgroups.

    Args:
        find_claims: what a pod has by claims, see `OwnPods.find_claims`.
    """

    def __init__(
        self,
        account: LedgerService,
        unit_mib: int,
        find_claims: Callable[[str], PodRequest | None] = lambda _: None,
    ) -> None:
        self._account = account
        self._unit_mib = unit_mib
        self._find_claims = find_claims
        self._version: int | None = None
        self._cards: object = None
        self._ids: Mapping[str, Mapping[str, frozenset[str]]] = {}
        self._grants: dict[str, Grants] = {}

    def read(self) -> Mapping[str, Grants]:
        """Read the ledger: MiB by container and card of every pod.

        A pod's grants are the same object until they change. So each reader can tell by itself what is new
        to it.
        """
        accounts = self._account.ledger.accounts
        same_cards = accounts.card_of is self._cards
        if same_cards and accounts.version == self._version:
            return self._grants
        self._version, self._cards = accounts.version, accounts.card_of
        held = {uid: one.known_ids for uid, one in accounts.pods.items() if one.known_ids}
        before, self._grants = self._grants, {}
        for uid, mine in held.items():
            if same_cards and self._ids.get(uid) == mine:
                self._grants[uid] = before[uid]
                continue
            self._grants[uid] = {
                name: {
                    uuid: units * self._unit_mib
                    for uuid, units in accounts.units_by_card(ids).items()
                    if units
                }
                for name, ids in mine.items()
            }
        self._ids = held
        return self._grants

    def asked_compute(self, uid: str) -> Mapping[str, int]:
        """Return the percent of compute that containers ask for by limits or claims, of those that ask."""
        account = self._account.ledger.accounts.pods.get(uid)
        return _count_compute(account.pod.request if account is not None else None) | _count_compute(
            self._find_claims(uid)
        )

    def ids_of_container(self, uid: str, container: str) -> frozenset[str]:
        """Return the device IDs of a container, as of the last `read`."""
        return self._ids.get(uid, {}).get(container, frozenset())


def _count_compute(request: PodRequest | None) -> Counter[str]:
    containers = request.containers if request is not None else ()
    return Counter({container.name: container.compute for container in containers})
