"""Ownership of a Node object: its annotation `gpupack.io/daemon` names the one daemon that writes to it.

Two daemons of one kubelet are kept apart by a lock (`deviceplugin.kubelet.folder_lock`). Two of different
machines that were given the same --node-name meet at the Node only. The rules end every dispute after a
bounded time and need no heartbeat:

- The annotation names the owner: the kubelet that it serves (`host`), that machine's boot (`boot`) and its
  pod. A daemon that starts again finds itself in it, whatever ended it, and goes on at once.
- A daemon that finds another there writes itself beside it, as the challenger. An owner that is alive strikes
  it out as soon as it sees it. Then the challenger waits and says so, and asks again later. An owner that
  does not answer within `CHALLENGE_S` has lost the Node.
- The Node's own status says on which boot of which machine its kubelet runs. Where that is the challenger's
  and not the owner's, the challenger need not ask. The machine was booted again, or the owner's --node-name
  is wrong.

Every write names the resourceVersion that it is based on, so of two at the same time one is refused. Ordinary
patches do not carry the annotation: the last one of an owner that lost the Node does not take it back.
"""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from allocator.names import NODE_DAEMON
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, decode_node
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.client import KubeClient
from kubeapi.errors import UNREADABLE, Conflict, KubeApiError, decode_answer
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

CHALLENGE_S: Final = 15.0
"""How long the owner has to answer; a watch that broke off is back within a few seconds."""

AGAIN_S: Final = 60.0
"""Time from an answer to the next challenge."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class DaemonIdentity(msgspec.Struct, frozen=True):
    """Identifies a daemon uniquely.

    Attributes:
        host: identifies the kubelet that it serves; the same after each restart of the daemon.
        boot: the machine's boot ID, empty if it cannot be read.
        name: for people: the daemon's host name, in a cluster that of its pod.
    """

    host: str
    boot: str = ""
    name: str = ""


class OwnershipRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation that names the daemon that writes to the Node, and one that wants to.

    Attributes:
        challenger: the daemon that asks whether the owner is alive, `claim` in the annotation.
    """

    owner: DaemonIdentity
    # An owner of an earlier version knows the challenger by this name only: it would not answer another one.
    challenger: DaemonIdentity | None = msgspec.field(default=None, name="claim")


def identify_daemon(folder: Path) -> DaemonIdentity:
    """Describe the daemon that serves the kubelet of a device plugin folder on this machine."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        boot = ""
    found = folder.stat()
    # Several kubelets on one machine, as with kind, share its boot, but no folder.
    told = f"{boot}/{found.st_dev}/{found.st_ino}"
    return DaemonIdentity(hashlib.sha256(told.encode()).hexdigest()[:12], boot, socket.gethostname())


def read_record(text: str | None) -> OwnershipRecord | None:
    """Read the annotation; an unreadable one names no daemon."""
    try:
        return None if text is None else msgspec.json.decode(text, type=OwnershipRecord)
    except UNREADABLE:
        return None


class NodeOwnership:
    """Lets one daemon write to the Node: this one, or another one while this one is silent."""

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        own_node: OwnNode,
        me: DaemonIdentity,
        *,
        node_name: str,
        on_conflict: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._account = account
        self._own_node = own_node
        self._me = me
        self._node_name = node_name
        self._on_conflict = on_conflict
        self._stepper = Stepper(self._step)
        self._error: str | None = None
        self._challenged_s: float | None = None
        self._due_s = self._turned_down_s = float("-inf")
        self._lost_to: DaemonIdentity | None = None
        self.errors = 0
        account.subscribe(self._stepper.wake)

    @property
    def owns_node(self) -> bool:
        record = self._record(self._own_node.node)
        return record is not None and record.owner.host == self._me.host

    @property
    def is_disputed(self) -> bool:
        """Whether another daemon writes to the Node, or wanted to a moment ago."""
        recently = self._account.now_s() - self._turned_down_s < 2 * AGAIN_S
        return recently or self._lost_to is not None

    @property
    def problem(self) -> str | None:
        """Why this daemon does not write; None if it may, or if there is no Node to write to."""
        node = self._own_node.node
        record = self._record(node)
        if node is None or self.owns_node:
            return None
        if self._error is not None:
            return f"the status of Node {self._node_name} cannot be written: {self._error}"
        if record is None:
            return None
        reason = self._belongs_to(record.owner)
        if node.boot_id and self._me.boot and node.boot_id != self._me.boot:
            reason += (
                f"; this machine is not that Node's (its boot ID is {node.boot_id}, ours {self._me.boot})"
            )
        return reason

    def _belongs_to(self, owner: DaemonIdentity) -> str:
        asked = self._challenged_s is not None
        return (
            f"Node {self._node_name} belongs to another gpupack node daemon, {owner.name or owner.host}: "
            f"{'asking whether it is alive' if asked else 'this one waits until that one is gone'}; "
            "two daemons must not have the same --node-name"
        )

    async def run(self) -> None:
        await self._stepper.run()

    async def _step(self) -> float | None:
        """Take the next step; return the seconds after which to check again even if nothing happens."""
        node = self._own_node.node
        record = self._record(node)
        if node is None:
            return None
        if record is not None and record.owner.host != self._me.host:
            return await self._as_another(node, record)
        self._lost_to = self._challenged_s = None
        if record == OwnershipRecord(self._me):
            return None
        return await self._write(
            node, OwnershipRecord(self._me), turned_down=record.challenger if record else None
        )

    async def _as_another(self, node: NodeObject, record: OwnershipRecord) -> float | None:
        """Try to get the Node, without taking it from a daemon that is alive."""
        owner, now_s = record.owner, self._account.now_s()
        if node.boot_id and node.boot_id == self._me.boot != owner.boot:
            log.info("takes the Node over, its kubelet runs on this boot", was=owner.name, host=owner.host)
            return await self._write(node, OwnershipRecord(self._me))
        if record.challenger is not None and record.challenger.host == self._me.host:
            self._challenged_s = now_s if self._challenged_s is None else self._challenged_s
            left_s = self._challenged_s + CHALLENGE_S - now_s
            if left_s > 0:
                return left_s
            log.warning("takes the Node over, its daemon does not answer", was=owner.name, host=owner.host)
            return await self._write(node, OwnershipRecord(self._me))
        if self._challenged_s is not None:
            self._challenged_s, self._due_s = None, now_s + AGAIN_S
            self._lose(owner)
        if now_s < self._due_s:
            return self._due_s - now_s
        return await self._write(node, OwnershipRecord(owner, self._me))

    def _lose(self, owner: DaemonIdentity) -> None:
        if self._lost_to != owner:
            log.error("another daemon has this Node, nothing is published", was=owner.name, host=owner.host)
            self._on_conflict(self._belongs_to(owner))
        self._lost_to = owner

    def _turn_down(self, challenger: DaemonIdentity) -> None:
        note = log.debug if self.is_disputed else log.warning
        note("another daemon wants this Node, turned down", name=challenger.name, host=challenger.host)
        self._turned_down_s = self._account.now_s()
        self._on_conflict(
            f"another gpupack node daemon, {challenger.name or challenger.host}, wants to write to this "
            f"Node, which belongs to {self._me.name or self._me.host}: "
            "two daemons must not have the same --node-name"
        )

    async def _write(
        self, node: NodeObject, record: OwnershipRecord, turned_down: DaemonIdentity | None = None
    ) -> float:
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "annotations": {NODE_DAEMON: msgspec.json.encode(record).decode()},
            }
        }
        try:
            answer = await self._client.patch_node_status(self._node_name, body, timeout_s=WRITE_TIMEOUT_S)
            written = decode_answer(answer, decode_node, "a Node")
        except Conflict:
            return await self._stepper.pause_for_watch()
        except KubeApiError as error:
            return await self._failed(error)
        if self._record(written) != record:
            self._own_node.apply_node(written)
            return await self._failed(f"the Node does not keep its annotation {NODE_DAEMON}")
        self._error = None
        if record.challenger is not None:
            self._challenged_s = self._account.now_s()
        if turned_down is not None:
            self._turn_down(turned_down)
        self._own_node.apply_node(written)
        self._account.notify_subscribers()
        return 0.0

    async def _failed(self, error: object) -> float:
        """Wait until it is time for another try."""
        self.errors += 1
        self._error = str(error)
        return await self._stepper.back_off(log, "the Node cannot be taken over", error)

    @staticmethod
    def _record(node: NodeObject | None) -> OwnershipRecord | None:
        return None if node is None else read_record(node.metadata.get_annotation(NODE_DAEMON))
