"""Tries out what a card and its driver do where NVIDIA's documents allow several ways, or were never checked.

A step that fails is one line that says so, and the others go on. Nothing is changed on a card that somebody
uses, unless that is asked for; whatever is made is undone by `scratch.UndoStack`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

from allocator.names import MIB
from deviceplugin.containers.device_nodes import DEVICES, DRIVERS, node_paths
from deviceplugin.errors import DevicePluginError, GpuError, LimitError
from deviceplugin.gpus.api.card_listing import physical_uuid
from deviceplugin.gpus.api.memory_limits import DMEM_FILE, NO_FILES, LimitReading, MemoryLimits
from deviceplugin.gpus.api.provable import FAULTS, MemoryUser, Provable
from deviceplugin.gpus.api.source import GpuCard, GpuSample, GpuSource
from deviceplugin.proof.scratch import ScratchCgroup, UndoStack, defer_signals

Result = Literal["proven", "refuted", "measured", "unproven"]
"""As documented or promised; not so; a fact that the documents leave open; not found out."""

LIMIT_MIB: Final = 2047
"""The limit that is tried: room for a context, and odd, so that a driver that rounds is found out."""

PIECE_MIB: Final = 128
IDLE_MIB: Final = 256
"""A card on which no process is and that measures no more is idle."""

BUSY: Final = "nothing was changed; --prove-busy tries it all the same"
_NOT_V2: Final = "the driver takes limits on cgroup v2 only"


class CardProof(msgspec.Struct, frozen=True):
    """A thing that was tried, and what the result means for gpupack, or why there is none."""

    card: str
    what: str
    result: Result
    found: str
    means: str = ""


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """What a proof may do, and where.

    Attributes:
        busy: try limits and instances also on a card that somebody uses.
        instances: create a MIG instance, and destroy it.
        devices: folder of device nodes; None for cards that have none.
    """

    busy: bool = False
    instances: bool = False
    cgroup_root: Path = Path("/sys/fs/cgroup")
    devices: Path | None = DEVICES
    drivers: Path = DRIVERS


class Prover:
    """Tries one card after the other; `proofs` has what was found out so far, also after an exception."""

    def __init__(
        self,
        source: GpuSource,
        provable: Provable,
        options: ProofOptions,
        scratch: ScratchCgroup,
        mps: Callable[[str], str],
    ) -> None:
        self._source = source
        self._provable = provable
        self._options = options
        self._scratch = scratch
        self._mps = mps
        self._card = ""
        self.proofs: list[CardProof] = []

    def run(self) -> None:
        """Try everything on every card; an exception leaves nothing behind."""
        cards = list(self._source.cards())
        for card in cards:
            self._card = card.uuid
            if card.error is not None:
                self._say("card", "unproven", card.error, "nothing was tried")
                continue
            self._read(card)
            if card.parent is None:
                self._try_limits(card)
            else:
                self._say_instance(card)
        for uuid in dict.fromkeys(physical_uuid(card) for card in cards):
            self._card = uuid
            self._try_mig(uuid)

    def _say(self, what: str, result: Result, found: str, means: str = "") -> None:
        self.proofs.append(CardProof(self._card, what, result, found[:256], means))

    def _record_result(self, what: str, right: bool, found: str, means: str = "") -> None:
        self._say(what, "proven" if right else "refuted", found, means)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Turn a failure into a line of the report."""
        try:
            yield
        except (DevicePluginError, OSError) as error:
            self._say(what, "unproven", str(error))

    def _sample(self) -> GpuSample:
        for sample in self._source.sample():
            if sample.uuid == self._card:
                return sample
        raise GpuError("the card is not there any more")

    # --- what is only read --------------------------------------------------------------------------

    def _read(self, card: GpuCard) -> None:
        with self._step("who manages the memory"):
            node, sample = card.memory_node, self._sample()
            system = f"the operating system, as NUMA node {node}: {sample.used_mib} MiB in use"
            means = "pages stay after their process has ended" if sample.keeps_pages else ""
            self._say("who manages the memory", "measured", "the driver" if node is None else system, means)
        with self._step("used and reserved memory"):
            self._read_memory(card)
        with self._step("news of the card"):
            kinds = self._provable.event_kinds(physical_uuid(card))
            lacks = [f"{kind}: {why}" for kind, why in kinds.items() if why]
            found = "; ".join([" and ".join(kind for kind, why in kinds.items() if not why), *lacks])
            # Cards without MIG have no news of it.
            self._record_result("news of the card", not kinds[FAULTS], found, "seen without a measurement")
        with self._step("MPS"):
            self._say("MPS", "measured", self._mps(card.uuid), "docs/mps.md")

    def _read_memory(self, card: GpuCard) -> None:
        what, info = "used and reserved memory", self._provable.memory_info(card.uuid)
        parts = {"total": info.total, "reserved": info.reserved, "free": info.free, "used": info.used}
        numbers = ", ".join(f"{name} {value / MIB:.1f}" for name, value in parts.items())
        if info.counts_reserved is None:
            self._say(what, "unproven", f"{numbers} MiB", "they do not say whether used has reserved in it")
            return
        told = "used has reserved in it" if info.counts_reserved else "used is without reserved"
        self._say(what, "measured", f"{told}: {numbers} MiB")
        sample = self._sample()
        if _describe_use(sample) is None and not sample.keeps_pages:
            alone_mib = -(-info.used_by_processes // MIB)
            empty = alone_mib <= IDLE_MIB
            self._record_result("an idle card is empty", empty, f"{alone_mib} MiB in use", "100 % of it fits")

    def _say_instance(self, card: GpuCard) -> None:
        self._say("limits", "unproven", "a MIG instance", "the driver holds none; its size is its limit")
        options = self._options
        if options.devices is not None:
            paths = node_paths(card, self._source.vendor, options.devices, options.drivers)
            found, result = (", ".join(paths), "proven") if paths else ("not all are here", "unproven")
            self._say("device nodes", cast("Result", result), found, "for --pass-device-specs")

    # --- limits -------------------------------------------------------------------------------------

    def _try_limits(self, card: GpuCard) -> None:
        """Try limits on a whole card, unless something is in the way."""
        what = "limits"
        with self._step(what):
            user = None if self._options.busy else _describe_use(self._sample())
            limits, root = self._source.limits, self._options.cgroup_root
            support = None if limits is None or user is not None else limits.support(card.uuid)
            if user is not None:
                self._say(what, "unproven", user, BUSY)
            elif limits is None or support is None:
                self._say(what, "unproven", "this source of cards has none")
            elif not support.can_limit:
                self._say(what, "unproven", str(support))
            elif not (root / "cgroup.controllers").exists():
                self._say(what, "unproven", f"cgroup v1 at {root}", _NOT_V2)
            else:
                self._try_in_scratch(card, limits)

    def _try_in_scratch(self, card: GpuCard, limits: MemoryLimits) -> None:
        undo = UndoStack()
        try:
            with undo:
                undo.add(f"cgroup {self._scratch.path}", self._scratch.remove)
                self._scratch.make()
                self._try_limit(card, limits, undo)
        finally:
            self._say_undone(undo)

    def _say_undone(self, undo: UndoStack) -> None:
        if undo.left:
            self._say("undone", "refuted", "; ".join(undo.left), "please undo it by hand")
        else:
            self._say("undone", "proven", "all that was made for this is gone")

    def _try_limit(self, card: GpuCard, limits: MemoryLimits, undo: UndoStack) -> None:
        """Set a limit, read it, exceed it, take it back, and have more than it was."""
        path = self._scratch.path
        self._say("backend", "measured", self._backend(), "the kernel's dmem, or misc, inside the driver")
        self._say("limit never set", "measured", _read_limit(limits, card.uuid, path), "what a read says")
        began_s = time.perf_counter()
        limits.set(card.uuid, path, LIMIT_MIB)
        set_ms = (time.perf_counter() - began_s) * 1000
        undo.add("limit", lambda: limits.clear(card.uuid, path))
        reading = limits.read(card.uuid, path)
        right = reading.hard_mib == LIMIT_MIB and reading.soft_mib == 0
        found = f"{LIMIT_MIB} MiB set in {set_ms:.1f} ms, {_text(reading)} read"
        self._record_result("limit set and read", right, found)
        below = _read_limit(limits, card.uuid, self._scratch.below)
        self._say("limit of a cgroup below", "measured", below, "a limit above is not taken for its own")
        user: MemoryUser | None = None
        had_mib = 0
        if right:
            with self._step("limit refuses"):
                user, had_mib = self._exceed(card, limits, undo)
        with self._step("limit taken back"):
            limits.clear(card.uuid, path)
            self._say_cleared(limits, card.uuid)
            if user is not None:
                had_mib += fill(user.allocate, LIMIT_MIB + PIECE_MIB - had_mib)
                self._record_result(
                    "more without the limit", had_mib > LIMIT_MIB, f"{had_mib} MiB were given in all"
                )

    def _backend(self) -> str:
        """Say who holds limits, by the rule of NVIDIA's "Diagnostics and Troubleshooting"."""
        if (self._scratch.path / DMEM_FILE).exists():
            return "dmem"
        controllers = (self._options.cgroup_root / "cgroup.controllers").read_text("ascii").split()
        return f"dmem, but {self._scratch.path} {NO_FILES}" if "dmem" in controllers else "misc"

    def _exceed(self, card: GpuCard, limits: MemoryLimits, undo: UndoStack) -> tuple[MemoryUser | None, int]:
        """Use memory up to the limit and beyond; return the process, if more was refused, and its MiB."""
        what, free_mib = "limit refuses", self._provable.memory_info(card.uuid).free // MIB
        if free_mib < 2 * LIMIT_MIB:
            self._say(what, "unproven", f"{free_mib} MiB are free", f"{2 * LIMIT_MIB} are needed")
            return None, 0
        with defer_signals():
            user = self._provable.memory_user(card.uuid, self._scratch.path)
            undo.add(f"process {user.pid}", user.end)
        told_mib = user.start()
        means = "frameworks size themselves by it"
        self._record_result("size that a process is told", told_mib == LIMIT_MIB, f"{told_mib} MiB", means)
        had_mib = fill(user.allocate, LIMIT_MIB + PIECE_MIB)
        if had_mib > LIMIT_MIB:
            self._say(what, "refuted", f"{had_mib} MiB were given, with a limit of {LIMIT_MIB}")
            return None, had_mib
        self._say(what, "proven", f"{had_mib} MiB were given in pieces of {PIECE_MIB}, then no more")
        with self._step("use is counted"):
            used_mib = limits.read(card.uuid, self._scratch.path).used_mib
            found = f"{used_mib} MiB, the context included"
            self._record_result("use is counted", used_mib is not None and used_mib >= had_mib, found)
        with self._step("processes"):
            self._say_listed(user, had_mib)
        return user, had_mib

    def _say_listed(self, user: MemoryUser, had_mib: int) -> None:
        what, processes = "processes", self._sample().processes
        if processes is None:
            self._say(what, "unproven", "none are told", "they are in the host's pid namespace")
            return
        ours_mib = next((each.used_mib or 0 for each in processes if each.pid == user.pid), None)
        ours = "ours is not" if ours_mib is None else f"ours with {ours_mib} MiB"
        right = ours_mib is not None and ours_mib >= had_mib
        self._record_result(what, right, f"{len(processes)} are listed, {ours}", "use is told apart by pod")

    def _say_cleared(self, limits: MemoryLimits, uuid: str) -> None:
        try:
            reading = limits.read(uuid, self._scratch.path)
        except LimitError as error:
            self._record_result("limit taken back", error.kind == "unset", str(error))
        else:
            self._record_result("limit taken back", reading.hard_mib is None, _text(reading))

    # --- MIG ----------------------------------------------------------------------------------------

    def _try_mig(self, uuid: str) -> None:
        what = "MIG mode"
        with self._step(what):
            mode = self._provable.mig_mode(uuid)
            if mode is None:
                self._say(what, "measured", "this card has none")
                return
            now, pending = ("on" if each else "off" for each in mode)
            later = f", {pending} after a reset" if pending != now else ""
            instances = sum(card.parent == uuid for card in self._source.cards())
            self._say(what, "measured", f"{now}{later}; {instances} instances")
            if self._options.instances:
                self._try_instance(uuid, on=mode[0])

    def _try_instance(self, uuid: str, *, on: bool) -> None:
        """Create an instance and destroy it, if none of the card is in use."""
        what, before = "instance that comes and goes", {card.uuid for card in self._source.cards()}
        if not on:
            self._say(what, "unproven", "MIG mode is off", "on an empty card: nvidia-smi -mig 1")
            return
        ours = {card.uuid for card in self._source.cards() if card.parent == uuid}
        uses = [_describe_use(sample) for sample in self._source.sample() if sample.uuid in ours]
        use = next(filter(None, uses), None)
        if use is not None and not self._options.busy:
            self._say(what, "unproven", use, BUSY)
            return
        undo = UndoStack()
        try:
            with undo:
                with defer_signals():
                    undo.add("MIG instance", self._provable.create_instance(uuid))
                self._source.sample()
                new = [card for card in self._source.cards() if card.uuid not in before]
                found = f"{new[0].uuid} of {new[0].total_mib} MiB" if new else "it is not listed"
                self._record_result(what, bool(new), found, "followed without a restart")
        finally:
            self._say_undone(undo)


def _describe_use(sample: GpuSample) -> str | None:
    """Say who uses a card or an instance, or that this is not told; None if nobody does."""
    if sample.error is not None:
        return sample.error
    if sample.processes is None:
        return "the driver does not tell who uses the card; it does in the host's pid namespace"
    if sample.processes:
        return f"{len(sample.processes)} processes use the card"
    is_used = sample.used_mib > IDLE_MIB and not sample.keeps_pages
    return f"{sample.used_mib} MiB of the card are used" if is_used else None


def fill(allocate: Callable[[int], bool], most_mib: int) -> int:
    """Let a process allocate memory piece by piece until it is refused or has enough; return its MiB."""
    had_mib = 0
    while had_mib < most_mib and allocate(PIECE_MIB):
        had_mib += PIECE_MIB
    return had_mib


def _read_limit(limits: MemoryLimits, uuid: str, cgroup: Path) -> str:
    """Describe what a read says, an error that means none included."""
    try:
        return _text(limits.read(uuid, cgroup))
    except LimitError as error:
        if error.kind != "unset":
            raise
        return str(error)


def _text(reading: LimitReading) -> str:
    hard = "no limit" if reading.hard_mib is None else f"{reading.hard_mib} MiB"
    return f"{hard}, soft {reading.soft_mib} MiB, used {reading.used_mib}"
