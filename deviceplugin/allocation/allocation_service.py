"""Answers to the kubelet about one resource of the node's cards, from the ledger."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from allocator.errors import LedgerError
from allocator.ledger import AllocationRequest
from allocator.names import SCHEDULER_NAME
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.gpus.api.container_grant import ContainerGrant

VIEW_WAIT_S: Final = 1.0
"""How long a container waits for a fresh list of pods; usually the API's watch is a moment behind."""

ROOM_WAIT_S: Final = 5.0
"""How long it waits for room, where containers that end may make some or the API may say more."""

CHECKPOINT_WAIT_S: Final = 5.0
"""The first container waits so long for a torn checkpoint: the kubelet is writing it."""

AGAIN: Final = "delete this pod, what made it makes another"
NOT_OURS: Final = (
    f"was this pod bound by gpupack's scheduler? If not, set spec.schedulerName: {SCHEDULER_NAME} in its "
    "template, and delete this pod"
)
TAKEN: Final = (
    "the card that the scheduler chose has been taken since, perhaps by a pod that was bound without "
    f"schedulerName: {SCHEDULER_NAME}; {AGAIN}"
)
CROWDED: Final = f"containers of pods that were deleted still run on this node's cards; {AGAIN}"

MakeGrant = Callable[[Mapping[str, int], int, Collection[str]], Awaitable[ContainerGrant]]
"""Says what a container is given, by its MiB on each card's UUID, the compute that it asks for and its IDs.

It may refuse with an `AllocationRefusedError`.
"""

log = structlog.get_logger(__name__)


class AllocationService:
    """The `DeviceAllocator` of one resource.

    Args:
        percent: the resource is percent of cards, not units.
        request_list: Asks for a complete list of this node's pods that begins now.
        list_admitted_pods: Asks the kubelet which pods it has begun to admit, by namespace and name; None
            where it does not say.
    """

    def __init__(
        self,
        account: LedgerService,
        unit_mib: int,
        *,
        percent: bool = False,
        request_list: Callable[[], None],
        list_admitted_pods: Callable[[], Awaitable[Collection[tuple[str, str]] | None]],
        make_grant: MakeGrant,
        view_wait_s: float = VIEW_WAIT_S,
        room_wait_s: float = ROOM_WAIT_S,
    ) -> None:
        self._account = account
        self._unit_mib = unit_mib
        self._percent = percent
        self._request_list = request_list
        self._list_admitted_pods = list_admitted_pods
        self._make_grant = make_grant
        self._view_wait_s = view_wait_s
        self._room_wait_s = room_wait_s
        self._listed: tuple[object, object, dict[str, bool]] = None, None, {}
        self._answered: dict[frozenset[str], Collection[tuple[str, str]] | None] = {}

    def list_devices(self) -> Mapping[str, bool]:
        accounts = self._account.ledger.accounts
        healthy = {uuid: card.healthy for uuid, card in accounts.cards.items()}
        if self._listed[0] is not accounts.card_of or self._listed[1] != healthy:
            ids = [text for text in accounts.card_of if (text in accounts.percent_ids) is self._percent]
            self._listed = accounts.card_of, healthy, {text: healthy[accounts.card_of[text]] for text in ids}
        return self._listed[2]

    def explain_unavailable(self, identifier: str) -> str:
        """Say why a known ID cannot be had though it is on a card."""
        return self._account.explain_unhealthy(self._account.ledger.accounts.card_of.get(identifier, ""))

    async def choose_ids(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Collection[str]:
        """Choose `size` of the available IDs.

        Waits briefly for a fresh list of pods where the pod that asks is not in view, lacks assigned cards
        or may be another one. Where ended pods leave no room, waits for the end of their containers.

        Raises:
            AllocationRefusedError: no card has room.
        """
        account, ledger = self._account, self._account.ledger
        taken_up = await self._list_admitted_pods()
        account.read_checkpoint()
        if not await account.wait_until(
            lambda: ledger.accounts.checkpoint_read_at_s is not None, CHECKPOINT_WAIT_S
        ):
            raise AllocationRefusedError("not-ready", f"{account.checkpoint_problem}; {AGAIN}")
        ask, asked_s = ledger.read_request(available, must_include, size, taken_up), account.now_s()

        def settled() -> bool:
            view = ledger.accounts.listed_at_s
            return (view is not None and view > asked_s) or ask.is_unambiguous()

        if not settled():
            self._request_list()
            await account.wait_until(settled, self._view_wait_s)
        known = ask.is_expected()
        if not known:
            log.warning("container of an unknown pod", size=size, percent=ask.percent)
        if ask.has_ended_pods() or not known:
            await account.wait_until(ask.has_room, self._room_wait_s)
        answer = self._answer(ask)
        self._answered = {frozenset(answer): taken_up}
        return answer

    def _answer(self, ask: AllocationRequest) -> Collection[str]:
        """Choose, or raise the likely cause and the way out: the pod's status says nothing else."""
        try:
            return ask.choose_ids()
        except LedgerError as error:
            found = ask.find_container()
            ours = found is not None and found[0].pod.assigned is not None
            cause = CROWDED if ask.has_ended_pods() else TAKEN if ours else NOT_OURS
            for uuid in ask.target_cards():
                if not ask.accounts.cards[uuid].healthy:
                    cause = f"card {uuid} cannot be had: {self._account.explain_unhealthy(uuid)}; {AGAIN}"
            raise AllocationRefusedError("no-room", f"{error}; {cause}") from error

    async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
        """Record what the kubelet hands out and describe it to the container.

        Raises:
            AllocationRefusedError: the IDs do not belong together, or a limit that is required is missing.
        """
        account = self._account
        try:
            if frozenset(ids) not in self._answered:
                # The kubelet did not ask: an init container of the pod had as many.
                await self.choose_ids(ids, ids, len(ids))
            taken_up = self._answered.pop(frozenset(ids), None)
            units, compute = account.ledger.allocate(ids, account.now_s(), taken_up)
        except LedgerError as error:
            raise AllocationRefusedError("spans-cards", f"{error}; {AGAIN}") from error
        account.notify_given(frozenset(ids) - self._list_shared(frozenset(ids)))
        # The kubelet waits for the answer; nobody else waits for the rest.
        asyncio.get_running_loop().call_soon(self._tell, units)
        return await container_grant(self._make_grant, units, self._unit_mib, ids, compute)

    def _list_shared(self, given: frozenset[str]) -> frozenset[str]:
        """List what other containers of the pod that was just given these IDs have: an init container's."""
        shared: set[str] = set()
        for pod in self._account.ledger.accounts.pods.values():
            if pod.ended_at_s is None and given in pod.pending_ids.values():
                had = list(pod.current_ids.values())
                had.remove(given)
                shared.update(*had)
        return frozenset(shared)

    def _tell(self, units: Mapping[str, int]) -> None:
        log.info("allocated", cards=units)
        self._account.notify_subscribers()


async def container_grant(
    make_grant: MakeGrant, units: Mapping[str, int], unit_mib: int, ids: Collection[str], compute: int = 0
) -> ContainerGrant:
    """Describe its cards to a container that has so many units of each, by UUID, and these device IDs."""
    mib = {uuid: count * unit_mib for uuid, count in units.items()}
    share = {
        "GPUPACK_MEMORY_MIB": str(min(mib.values())),
        "GPUPACK_CARDS": ",".join(f"{uuid}:{count}" for uuid, count in units.items()),
    }
    return ContainerGrant(share) + await make_grant(mib, compute, ids)
