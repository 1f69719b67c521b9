"""Prepares claims: takes their shares into the ledger, and writes what containers are given."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from allocator.claims import ClaimObject, make_claim_path
from allocator.ids import device_id, device_names, parse_device_id
from allocator.ledger.charges import charge_cards, charge_compute, charge_pod, charge_pod_compute
from allocator.ledger.pods import add
from allocator.names import unit_of_resource
from deviceplugin.allocation.allocation_service import MakeGrant, container_grant
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import PodObject, decode_pod
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.dra.cdi_files import KIND, CdiFiles, list_vendor_devices, make_spec, name_device
from deviceplugin.dra.claims import ClaimShare, PreparedDevice, read_shares, shares_by_container
from deviceplugin.dra.prepared_claims import PreparedClaim, PreparedClaims, add_compute
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError, NotFound, decode_answer
from kubeapi.paths import make_pod_path

log = structlog.get_logger(__name__)

_decode_claim: Final = msgspec.json.Decoder(ClaimObject).decode

ROOM_WAIT_S: Final = 40.0
"""Longest wait of a claim for room. The kubelet gives up after 45 s, and asks again a minute later."""

READ_TIMEOUT_S: Final = 3.0

SHARERS_LOOK_S: Final = 5.0
"""Time between two checks for claims to hand over from ended pods, and for files to be written."""


class ClaimService:
    """Prepares and unprepares claims; each call may come again, with the same outcome.

    Invariant: the units of a card in prepared claims, and in pods that ended and may still run, are never
    more than the card has.

    What containers get is made from the cards as they are now: at each start, when something has changed, and
    whenever the kubelet asks. A claim whose card is not there stays charged, is refused, and has no CDI file:
    that would give out the card which has the old one's device node by now.

    Args:
        account: the ledger, which reads `prepared` in place of the kubelet's checkpoint.
        pods: the node's pods; those with prepared claims are read as if they asked for these.
        node_name: also the name of the node's pool.
    """

    def __init__(
        self,
        account: LedgerService,
        pods: OwnPods,
        api: KubeClient,
        prepared: PreparedClaims,
        cdi: CdiFiles,
        make_grant: MakeGrant,
        *,
        node_name: str,
        unit_mib: int,
        room_wait_s: float = ROOM_WAIT_S,
    ) -> None:
        self._account = account
        self._pods = pods
        self._api = api
        self._prepared = prepared
        self._cdi = cdi
        self._make_grant = make_grant
        self._node_name = node_name
        self._unit_mib = unit_mib
        self._room_wait_s = room_wait_s
        # A lock is the same one as long as somebody has it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._is_stale = False
        self._problems: dict[str, str] = {}
        for subscribe in (account.subscribe, account.subscribe_devices):
            subscribe(self._expect_changes)

    async def restore(self) -> None:
        """Read what an earlier daemon prepared, and write the CDI files again: `/var/run` may be empty.

        Raises:
            CheckpointError: what is prepared cannot be read.
        """
        await asyncio.to_thread(self._prepared.load)
        await self.write_cdi_files()
        # A container of a claim whose file cannot be read may start again.
        known = {claim.uid for claim in self._prepared} | self._prepared.unread_uids
        for uid in await asyncio.to_thread(self._cdi.list_claims) - known:
            try:
                await asyncio.to_thread(self._cdi.remove, uid)
            except OSError as error:
                log.warning("CDI file of no claim cannot be removed", claim=uid, error=str(error))

    @property
    def problem(self) -> str | None:
        """Why containers of a claim cannot start now; None if no reason is known."""
        return next(iter(self._problems.values()), None)

    def _expect_changes(self) -> None:
        self._is_stale = True

    async def write_cdi_files(self) -> None:
        """Write each claim's CDI file as it should be now; what cannot be written is tried later."""
        self._is_stale = False
        for claim in self._prepared:
            async with self._lock(claim.uid):
                known = self._prepared.get(claim.uid)
                if known is None:
                    continue
                before = self._problems.get(claim.uid)
                try:
                    await self._write_cdi(known)
                except AllocationRefusedError as error:
                    if str(error) != before:
                        log.warning("containers of a claim cannot start", reason=str(error))

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[PreparedDevice, ...]:
        """Give a claim its shares, waiting for room if there is none.

        Raises:
            AllocationRefusedError: it cannot be had now, in words. The kubelet asks again.
        """
        async with self._lock(uid):
            claim = self._prepared.get(uid)
            if claim is None:
                claim = await self._prepare_new(namespace, name, uid)
            await self._write(claim)
            return _make_answer(claim, await self._write_cdi(claim))

    async def unprepare(self, uid: str) -> None:
        """Release a claim's shares; a claim that is not prepared is no error.

        Raises:
            AllocationRefusedError: a file cannot be removed. The kubelet asks again.
        """
        async with self._lock(uid):
            try:
                await _finish_in_thread(self._cdi.remove, uid)
                await _finish_in_thread(self._prepared.erase, uid)
            except OSError as error:
                raise AllocationRefusedError(
                    "not-ready", f"claim {uid} cannot be removed: {error}"
                ) from error
            if self._prepared.get(uid) is not None or uid in self._prepared.unread_uids:
                self._prepared.remove(uid)
                self._problems.pop(uid, None)
                log.info("claim unprepared", claim=uid)
                self._account.read_checkpoint()

    async def follow_ends(self) -> None:
        """Hand claims over as pods end, and write CDI files as cards change, until cancelled."""
        while True:
            await asyncio.sleep(SHARERS_LOOK_S)
            await self.hand_over_claims()
            if self._is_stale or self._problems:
                await self.write_cdi_files()

    async def hand_over_claims(self) -> None:
        """Charge claims whose pod has ended to another pod that shares them.

        A kubelet asks for a claim to be unprepared when the last of its pods has ended.
        """
        for claim in self._prepared:
            living = self._pods.living_uids
            if claim.is_for_limits or living is None or claim.pod_uid in living:
                continue
            with suppress(AllocationRefusedError):
                await self._hand_over(claim.uid)

    async def _hand_over(self, uid: str) -> None:
        """Charge a prepared claim to another pod that may use it, if there is one."""
        async with self._lock(uid):
            known = self._prepared.get(uid)
            if known is None:
                return
            _, shares, pod = await self._read_all(known.namespace, known.name, uid)
            if pod.runtime_uid == known.pod_uid or self._pods.has_seen_end(pod):
                return
            if _add_units(shares) != known.units:
                return
            # No await from here on until the shares count for the other pod.
            moved = msgspec.structs.replace(
                known,
                pod_uid=pod.runtime_uid,
                pod_name=pod.metadata.name,
                ids=_ids_by_container(pod, known.name, shares, _divide_ids(known, shares)),
            )
            self._prepared.add(moved)
            self._account.read_checkpoint()
            for runtime_uid in (known.pod_uid, moved.pod_uid):
                self._pods.claims_changed(runtime_uid)
            self._account.notify_subscribers()
            log.info("claim of another pod", claim=f"{known.namespace}/{known.name}", pod=moved.pod_name)
            await self._write(moved)

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _write(self, claim: PreparedClaim) -> None:
        try:
            await _finish_in_thread(self._prepared.write, claim)
        except OSError as error:
            raise AllocationRefusedError(
                "not-ready", f"claim {claim.name} cannot be written: {error}"
            ) from error

    async def _write_cdi(self, claim: PreparedClaim) -> dict[str, ContainerGrant]:
        """Write what containers get of a claim, by request, or remove it where a card of it is not there."""
        away = self._list_missing_cards(claim.shares)
        grants: dict[str, ContainerGrant] = {}
        problem = None
        try:
            if away:
                problem = (
                    f"card {away[0]} is not on this node; pod {claim.pod_name} has it until it is deleted"
                )
                await _finish_in_thread(self._cdi.remove, claim.uid)
            else:
                grants = await self._make_grants(claim)
                spec = make_spec(claim.uid, grants)
                await _finish_in_thread(self._cdi.write, claim.uid, spec)
        except OSError as error:
            problem = f"its CDI file cannot be written: {error}"
        except AllocationRefusedError as error:
            problem = str(error)
        if problem is None:
            self._problems.pop(claim.uid, None)
            return grants
        self._problems[claim.uid] = f"claim {claim.namespace}/{claim.name}: {problem}"
        raise AllocationRefusedError("not-ready", self._problems[claim.uid])

    async def _make_grants(self, claim: PreparedClaim) -> dict[str, ContainerGrant]:
        ids = _divide_ids(claim, claim.shares)
        # Of another unit are claims of which the daemon is about to say that the unit is not to be changed.
        unit_mib = unit_of_resource(claim.resource) or self._unit_mib
        by_request: dict[str, list[ClaimShare]] = {}
        for share in claim.shares:
            by_request.setdefault(share.request, []).append(share)
        return {
            request: await container_grant(
                self._make_grant,
                _add_units(shares),
                unit_mib,
                [text for share in shares for text in ids[share]],
                max(share.compute for share in shares),
            )
            for request, shares in by_request.items()
        }

    async def _prepare_new(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        claim, shares, pod = await self._read_all(namespace, name, uid)
        self._refuse_beside_unread(f"claim {namespace}/{name}", uid)
        known = self._prepared.get(uid)
        if known is not None:
            return known  # its file could be read meanwhile
        # A claim whose file cannot be read has its shares, room or no room.
        has_shares = uid in self._prepared.unread_uids
        problem = None if has_shares else self._find_shortage(pod, shares)
        until_s = self._account.now_s() + self._room_wait_s
        while problem is not None:
            left_s = until_s - self._account.now_s()
            await self._account.wait_until(partial(self._has_room_or_never, pod, shares), left_s)
            problem = self._find_shortage(pod, shares)
            if problem is not None:
                raise AllocationRefusedError("no-room", f"claim {namespace}/{name}: {problem}")
            # Meanwhile it may be allocated other cards, or be gone with its pod.
            claim, shares, pod = await self._read_all(namespace, name, uid)
            problem = self._find_shortage(pod, shares)
        if self._pods.has_seen_end(pod):
            raise AllocationRefusedError(
                "not-ready", f"claim {namespace}/{name}: pod {pod.metadata.name} ended"
            )
        # No await from here on until the shares count.
        prepared = self._make_prepared(claim, pod, shares)
        self._prepared.add(prepared)
        account = self._account
        if not has_shares:
            account.notify_given({text for ids in prepared.ids.values() for text in ids})
        account.read_checkpoint()
        self._pods.claims_changed(pod.runtime_uid)
        account.notify_subscribers()
        log.info(
            "claim prepared",
            claim=f"{namespace}/{name}",
            pod=pod.metadata.name,
            cards=[f"{share.uuid}:{share.units}" for share in shares],
        )
        return prepared

    def _refuse_beside_unread(self, what: str, uid: str) -> None:
        """Refuse a new claim while it is not known what others have."""
        self._account.read_checkpoint()
        unread = self._prepared.unread_uids
        if unread and uid not in unread:
            raise AllocationRefusedError("not-ready", f"{what}: {self._account.checkpoint_problem}")

    async def _read_all(
        self, namespace: str, name: str, uid: str
    ) -> tuple[ClaimObject, tuple[ClaimShare, ...], PodObject]:
        """Read a claim with its shares, and the pod for which it is prepared."""
        claim = await self._read_claim(namespace, name, uid)
        cards = self._account.ledger.accounts.cards
        shares = read_shares(
            claim,
            self._node_name,
            {card: found.size_units for card, found in cards.items()},
            {device: card for card, device in device_names(cards).items()},
            self._unit_mib,
        )
        return claim, shares, await self._read_pod(claim)

    async def _read_claim(self, namespace: str, name: str, uid: str) -> ClaimObject:
        what = f"claim {namespace}/{name}"
        try:
            body = await self._api.get(make_claim_path(namespace, name), timeout_s=READ_TIMEOUT_S)
            claim = decode_answer(body, _decode_claim, "a ResourceClaim")
        except KubeApiError as error:
            raise AllocationRefusedError("not-ready", f"{what} cannot be read: {error}") from error
        if claim.metadata.uid != uid:
            raise AllocationRefusedError("unknown", f"{what} has UID {claim.metadata.uid}, not {uid}")
        return claim

    async def _read_pod(self, claim: ClaimObject) -> PodObject:
        """Read the pod for which a claim is prepared: of several the first on this node."""
        what = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
        for uid, name in claim.pods.items():
            path = make_pod_path(claim.metadata.namespace, name)
            try:
                pod = decode_answer(await self._api.get(path, timeout_s=READ_TIMEOUT_S), decode_pod, "a Pod")
            except NotFound:
                continue
            except KubeApiError as error:
                raise AllocationRefusedError(
                    "not-ready", f"{what}: pod {name} cannot be read: {error}"
                ) from error
            if pod.metadata.uid == uid and pod.spec.node_name == self._node_name:
                return pod
        raise AllocationRefusedError("not-ready", f"{what} is reserved for no pod of node {self._node_name}")

    def _has_room_or_never(self, pod: PodObject, shares: Sequence[ClaimShare]) -> bool:
        """Tell whether there is no more to wait for: the shares can be had, or their card is gone."""
        return bool(self._list_missing_cards(shares)) or self._find_shortage(pod, shares) is None

    def _list_missing_cards(self, shares: Sequence[ClaimShare]) -> list[str]:
        """List the UUIDs of cards that are not on this node now."""
        cards = self._account.ledger.accounts.cards
        return [uuid for uuid in _add_units(shares) if uuid not in cards or not cards[uuid].size_units]

    def _find_shortage(self, pod: PodObject, shares: Sequence[ClaimShare]) -> str | None:
        """Say why shares cannot be had now: a card is unhealthy, or others have what they need of it."""
        accounts = self._account.ledger.accounts
        charged = charge_cards(accounts)
        own = accounts.pods.get(pod.runtime_uid)
        mine = charge_pod(accounts, own) if own is not None else {}
        # Units of claims that the kubelet has let go are free for the pod's next one.
        kept = own.checkpoint_ids.values() if own is not None else ()
        held = accounts.units_by_card({text for ids in kept for text in ids})
        for uuid, units in _add_units(shares).items():
            card = accounts.cards.get(uuid)
            if card is None:
                return f"card {uuid} is not on this node any more"
            if not card.healthy:
                return f"card {uuid} cannot be had: {self._account.explain_unhealthy(uuid)}"
            others = charged[uuid] - mine.get(uuid, 0)
            before = held.get(uuid, 0)
            if others + before + units > card.size_units:
                return (
                    f"card {uuid} has {card.size_units} units, of which other pods have {others} and this "
                    f"pod has {before}: {units} more are not there"
                )
        return self._find_compute_shortage(pod, shares)

    def _find_compute_shortage(self, pod: PodObject, shares: Sequence[ClaimShare]) -> str | None:
        """Say which card gives less compute than shares need of it, beside what others have."""
        asked = add_compute(shares)
        if not asked:
            return None
        accounts, uid = self._account.ledger.accounts, pod.runtime_uid
        charged = charge_compute(accounts)
        own = accounts.pods.get(uid)
        mine = charge_pod_compute(accounts, own) if own is not None else {}
        held = add_compute(share for claim in self._prepared.of_pod(uid) for share in claim.shares)
        if own is not None:
            # What no claim says the pod's request does, see `charge_pod_compute`.
            unsaid = {name: ids - own.claimed_ids for name, ids in own.checkpoint_ids.items()}
            request = own.pod.request
            demands = (
                [unsaid.get(name, frozenset()) for name in each.containers] for each in request.demands
            )
            add(held, request.charge_compute(map(accounts.cards_of, demands)))
        for uuid, percent in asked.items():
            others, before = charged[uuid] - mine.get(uuid, 0), held.get(uuid, 0)
            if others + before + percent > accounts.compute_limit:
                return (
                    f"card {uuid} gives {accounts.compute_limit} percent of its compute, of which other pods "
                    f"have {others} and this pod has {before}: {percent} more are not there"
                )
        return None

    def _make_prepared(
        self, claim: ClaimObject, pod: PodObject, shares: Sequence[ClaimShare]
    ) -> PreparedClaim:
        ids = self._choose_ids(pod.runtime_uid, shares)
        return PreparedClaim(
            uid=claim.metadata.uid,
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            pod_uid=pod.runtime_uid,
            pod_name=pod.metadata.name,
            ids=_ids_by_container(pod, claim.metadata.name, shares, ids),
            shares=tuple(shares),
            is_for_limits=claim.is_for_limits,
            resource=self._prepared.resource,
        )

    def _choose_ids(self, runtime_uid: str, shares: Sequence[ClaimShare]) -> dict[ClaimShare, list[str]]:
        """Name the lowest units of each card that nobody has, but for what the pod has let go itself.

        The ledger lacks the prepared claims while the file of one cannot be read.
        """
        accounts = self._account.ledger.accounts
        taken = {text for claim in self._prepared for ids in claim.ids.values() for text in ids}
        for uid, account in accounts.pods.items():
            if uid != runtime_uid:
                taken.update(*account.known_ids.values())
        found: dict[ClaimShare, list[str]] = {}
        for share in shares:
            every = (device_id(share.uuid, slot) for slot in range(accounts.cards[share.uuid].size_units))
            # Units that others have too count twice: that is for claims that were not asked for room.
            chosen = sorted(every, key=taken.__contains__)[: share.units]
            taken.update(chosen)
            found[share] = chosen
        return found


async def _finish_in_thread(function: Callable[..., None], *args: object) -> None:
    """Change a file in a thread, which is over when this returns, cancelled or not.

    The kubelet gives a call up, and the next one for the claim must not be overtaken by it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def _make_answer(claim: PreparedClaim, grants: Mapping[str, ContainerGrant]) -> tuple[PreparedDevice, ...]:
    """Answer the kubelet: the first share of a request brings the CDI devices of all its shares."""
    found, named = [], set()
    for share in claim.shares:
        cdi: tuple[str, ...] = ()
        if share.request not in named:
            named.add(share.request)
            device = f"{KIND}={name_device(claim.uid, share.request)}"
            cdi = (device, *list_vendor_devices(grants[share.request]))
        found.append(PreparedDevice(share.request, share.device, share.share_id, cdi))
    return tuple(found)


def _divide_ids(claim: PreparedClaim, shares: Sequence[ClaimShare]) -> dict[ClaimShare, list[str]]:
    """Divide the device IDs of a prepared claim among its shares."""
    left = sorted({text for ids in claim.ids.values() for text in ids}, key=parse_device_id)
    found: dict[ClaimShare, list[str]] = {}
    for share in shares:
        found[share] = [text for text in left if parse_device_id(text)[0] == share.uuid][: share.units]
        left = [text for text in left if text not in found[share]]
    return found


def _ids_by_container(
    pod: PodObject, claim: str, shares: Sequence[ClaimShare], ids: Mapping[ClaimShare, list[str]]
) -> dict[str, list[str]]:
    return {
        container: [text for share in mine for text in ids[share]]
        for container, mine in shares_by_container(pod, claim, shares).items()
    }


def _add_units(shares: Sequence[ClaimShare]) -> dict[str, int]:
    units: Counter[str] = Counter()
    for share in shares:
        units[share.uuid] += share.units
    return dict(units)
