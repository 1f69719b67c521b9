"""Simulated GPUs from a profile, for laptops, clusters without GPUs and tests.

What happens to the cards is told to the object, or written in the profile's `script`. A profile file that is
changed is a changed node.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from allocator.names import MIB
from deviceplugin.errors import DriverGoneError, GpuError
from deviceplugin.gpus.api.card_listing import DetectedCard, merge_cards, physical_uuid
from deviceplugin.gpus.api.health import fault_event
from deviceplugin.gpus.api.health_events import HealthEventQueue
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.api.source import ENDS, GONE_S, GpuCard, GpuProcess, GpuSample, HealthEvent
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia.mig import InstanceRequest, PartitionError, smallest_profile
from deviceplugin.gpus.nvidia.vendor import IGNORED_XIDS
from deviceplugin.gpus.simulated.board import SimulatedBoard, SimulatedUse
from deviceplugin.gpus.simulated.memory_limits import SimulatedLimits
from deviceplugin.gpus.simulated.profile import (
    FAILURE_MODES,
    LOST_MODES,
    Profile,
    SimulatedCard,
    SimulatedFailure,
)
from deviceplugin.gpus.simulated.script import ProcessGrowth, ScriptStep, SimulationScript
from deviceplugin.gpus.simulated.telemetry import simulate_telemetry

POLL_S: Final = 0.5
"""How often it is checked whether the profile was changed."""

STORM_STEP_S: Final = 0.001
"""The errors of a storm come in steps of so many seconds: with 10 000 a second ten at a time."""

UNLOADED: Final = "the driver is not loaded"
IN_USE: Final = "in use by another client"

GONE: Final = "the card is not there any more"


class SimulatedGpus:
    """A `GpuSource` made of a profile. Safe to use from several threads."""

    def __init__(
        self,
        profile: Profile,
        ignored_xids: frozenset[int] = IGNORED_XIDS,
        changed: Callable[[], Profile | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vendor = profile.vendor
        self._ignored_xids = ignored_xids
        self._changed = changed
        self._clock = clock
        self._lock = threading.RLock()
        self._works = threading.Condition(self._lock)
        self._hangs_until_s = float("-inf")
        self._events = HealthEventQueue()
        self._closing = threading.Event()
        self._boards: dict[str, SimulatedBoard] = {}
        self._present: dict[int, str] = {}
        self._uses: dict[str, SimulatedUse] = {}
        self._cards: tuple[GpuCard, ...] = ()
        self._sizes_mib: dict[str, int] = {}
        self._script, self._began_s, self._done = SimulationScript(), 0.0, 0
        self._mood = profile.driver
        self._loaded, self._exchanged, self._unloaded_s = True, False, 0.0
        self._attached = self._waiting = False
        self._there_at_open: frozenset[str] = frozenset()
        self.limits = SimulatedLimits(self._sizes_mib)
        self.become(profile)
        self._begin_container()

    def driver_version(self) -> str:
        return self._driver_version

    @property
    def vendor(self) -> Vendor:
        return self._vendor

    def open(self) -> None:
        """Start taking events; the script begins.

        Raises:
            GpuError: the driver is not loaded.
        """
        if not self._loaded:
            raise GpuError(UNLOADED)
        self._exchanged, self._attached = False, True
        self._events.open()
        self._closing.clear()
        self._began_s, self._done = self._clock(), 0
        self._begin_container()

    def close(self) -> None:
        """Let a waiting `events`, or a call that hangs, return."""
        self._closing.set()
        self._events.close()
        self._attached = False
        self.resume()

    def cards(self) -> Sequence[GpuCard]:
        return self._cards

    def sample(self) -> Sequence[GpuSample]:
        """Measure every card; what is due happens now."""
        with self._lock:
            self._attached = True
            self._tick()
            self._wait_while_it_hangs()
            self._check_driver()
            for board in self._boards.values():
                self._count(board)
            return [self._sample(card) for card in self._cards]

    def detach(self) -> None:
        """Have nothing of the driver open until the next sample."""
        with self._lock:
            self._wait_while_it_hangs()
            self._attached = False
        self._events.wake()

    def memory_info(self, uuid: str) -> MemoryInfo:
        """Return what the driver would say of a card's memory."""
        with self._lock:
            card = self._card(uuid)
            return self._boards[physical_uuid(card)].memory_info(card, self._measure(card)[0])

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait for news; the script goes on, and a changed profile is read."""
        end_s = self._clock() + timeout_s
        while True:
            with self._lock:
                self._tick()
                self._take_changed_profile()
                # A step that waits for the driver is no reason to wake: `detach` pokes.
                due_s = None if self._waiting else self._script.next_s(self._done)
            left_s = end_s - self._clock()
            wait_s = left_s if due_s is None else min(left_s, self._began_s + due_s - self._clock())
            wait_s = wait_s if self._changed is None else min(wait_s, POLL_S)
            if self._events.wait(max(0.0, wait_s)) or left_s <= wait_s:
                return self._events.take_events(0)

    # --- what can be done to the cards --------------------------------------------------------------

    def become(self, profile: Profile) -> None:
        """Become another node: of cards that stay all is as the profile says, others vanish or come.

        Raises:
            GpuError: the vendor is another one.
        """
        if profile.vendor != self._vendor:
            raise GpuError(f"vendor {profile.vendor.domain}; allowed: {self._vendor.domain} while it runs")
        self.limits.behaviour = profile.limits
        with self._lock:
            self._driver_version, self._mood = profile.driver_version, profile.driver
            for board in self._boards.values():
                board.shown = False
            for simulated in profile.cards:
                self._install(simulated)
            self._present = {simulated.card.index: simulated.card.uuid for simulated in profile.cards}
            self._boards = dict(sorted(self._boards.items(), key=lambda item: item[1].card.index))
            self._script, self._began_s, self._done = profile.script, self._clock(), 0
            self._list()

    def set_used(self, uuid: str, used_mib: int, processes: Iterable[GpuProcess] = ()) -> None:
        """Set what the card measures from now on.

        Raises:
            GpuError: no such card, or more than it has.
        """
        with self._lock:
            card = self._card(uuid)
            if not 0 <= used_mib <= card.schedulable_mib:
                raise GpuError(f"card {uuid}: used {used_mib} MiB; allowed: 0 to {card.schedulable_mib} MiB")
            self._uses[uuid] = SimulatedUse(used_mib, tuple(processes))

    def grow(self, uuid: str, growth: ProcessGrowth) -> None:
        """Let a process on the card grow."""
        with self._lock:
            card = self._card(uuid)
            use, now_s = self._uses.setdefault(uuid, SimulatedUse()), self._clock()
            before = {process.pid: process for process in use.now(now_s, card.schedulable_mib)}
            from_mib = before[growth.pid].used_mib if growth.pid in before else 0
            use.growing[growth.pid] = (growth, now_s, from_mib or 0)

    def fail(self, uuid: str, mode: str = "lost", xid: int | None = None) -> None:
        """Break a card, or that of an instance, at once, by one of FAILURE_MODES."""
        if mode not in FAILURE_MODES:
            raise GpuError(f"failure mode {mode[:256]!r}; allowed: {', '.join(FAILURE_MODES)}")
        with self._lock:
            board = self._board(uuid)
            board.failure = SimulatedFailure(mode, after_calls=0, xid=xid)
            self._trip(board, board.failure)

    def heal(self, uuid: str) -> None:
        """Mend a card; its next good sample ends the trouble."""
        with self._lock:
            board = self._board(uuid)
            board.failure, board.tripped = None, False
            for card in board.cards():
                self._events.put(HealthEvent(card.uuid, healthy=True, reason="mended"))

    def xid(self, uuid: str, code: int, times: int = 1) -> None:
        """Report a numbered error of the driver, of a card or of one instance."""
        with self._lock:
            known = {card.uuid for card in self._cards}
            uuids = [uuid] if uuid in known else [card.uuid for card in self._board(uuid).cards()]
        for each in uuids:
            event = fault_event(each, code, self._ignored_xids, self._vendor)
            self._events.put(replace(event, count=times))

    def storm(self, uuids: Sequence[str], code: int, times: int, seconds: float) -> None:
        """Report numbered errors one by one, of these cards in turn, spread evenly; return at once."""
        events = [fault_event(uuid, code, self._ignored_xids, self._vendor) for uuid in uuids]

        def blow() -> None:
            began_s, sent = self._clock(), 0
            while sent < times and not self._closing.is_set():
                part = 1.0 if seconds <= 0 else min(1.0, (self._clock() - began_s) / seconds)
                while sent < int(times * part):
                    self._events.put(events[sent % len(events)])
                    sent += 1
                self._closing.wait(STORM_STEP_S)

        threading.Thread(target=blow, name="simulated-storm", daemon=True).start()

    def vanish(self, uuid: str) -> None:
        with self._lock:
            self._board(uuid).shown = False
            self._list()

    def restore(self, uuid: str) -> None:
        with self._lock:
            self._board(uuid).shown = True
            self._list()

    def partition(self, uuid: str, profiles: Sequence[str] | None) -> None:
        """Repartition a card, None: end its MIG mode. Instances that are still wanted stay.

        Raises:
            GpuError: no such card, or it cannot be partitioned like this.
        """
        with self._lock:
            board = self._board(uuid)
            try:
                board.partition(None if profiles is None else list(map(InstanceRequest, profiles)))
            except PartitionError as error:
                raise GpuError(f"card {board.card.uuid}: {error}") from error
            self._list()

    def instance_profiles(self, uuid: str) -> tuple[str, ...] | None:
        """Name the profiles of a card's instances; None without MIG mode."""
        with self._lock:
            instances = self._board(uuid).instances
        return None if instances is None else tuple(instance.profile for instance in instances)

    def smallest_profile(self, uuid: str) -> str:
        """Name the smallest instance that a card can have."""
        with self._lock:
            card = self._board(uuid).card
        try:
            return smallest_profile(card.model, card.schedulable_mib)
        except PartitionError as error:
            raise GpuError(f"card {card.uuid}: {error}") from error

    def reset(self, uuid: str) -> None:
        """Reset a card, as `nvidia-smi --gpu-reset`: its failure ends.

        Raises:
            GpuError: no such card, or the source has the driver open.
        """
        with self._lock:
            self._refuse_while_open(uuid)
            self.heal(uuid)

    def set_mig_mode(self, uuid: str, *, on: bool) -> None:
        """Change a card's MIG mode, as `nvidia-smi -mig`; in MIG mode it has no instances yet.

        Raises:
            GpuError: no such card, or one that cannot, or the source has the driver open.
        """
        with self._lock:
            self._refuse_while_open(uuid)
            self.partition(uuid, [] if on else None)

    def hang(self, seconds: float = float("inf")) -> None:
        """Make every driver call hang from now on, for a number of seconds or until `resume`."""
        with self._lock:
            self._hangs_until_s = self._clock() + seconds
        self._events.wake()

    def unload(self) -> None:
        with self._lock:
            self._loaded, self._unloaded_s = False, self._clock()
        self._events.wake()

    def load(self, *, other: bool = False) -> None:
        """Load the driver again, or another one, for which an open source has the wrong library."""
        with self._lock:
            self._loaded, self._exchanged = True, self._exchanged or other
        self._events.wake()

    def resume(self) -> None:
        with self._lock:
            self._hangs_until_s = float("-inf")
            self._works.notify_all()

    # --- how it works -------------------------------------------------------------------------------

    def _install(self, simulated: SimulatedCard) -> None:
        card = simulated.card
        before = self._boards.get(card.uuid)
        board = self._boards[card.uuid] = SimulatedBoard(
            card,
            simulated.instances,
            simulated.failure,
            simulated.used_has_reserved,
            simulated.residue_mib,
        )
        if before is not None and before.instances and simulated.instances:
            board.instances = before.instances
            board.partition(simulated.wanted_instances)
        if before is not None and before.tripped and simulated.failure is None:
            for each in board.cards():
                self._events.put(HealthEvent(each.uuid, healthy=True, reason="mended"))
        first = board.cards()[0]
        self._uses[first.uuid] = SimulatedUse(simulated.used_mib, simulated.processes)

    def _begin_container(self) -> None:
        """Give access to the instances that there are, as a container that begins has it."""
        with self._lock:
            instances = [instance for board in self._boards.values() for instance in board.instances or ()]
            self._there_at_open = frozenset(instance.uuid for instance in instances)
            self._list()

    def _list(self) -> None:
        """Rebuild the list of shown cards, and request a sample."""
        for board in self._boards.values():
            board.accessible = self._there_at_open if self._mood.new_instances == "refused" else None
        found = [
            DetectedCard(uuid, board.cards(), True) for uuid, board in self._boards.items() if board.shown
        ]
        self._cards = tuple(merge_cards(self._cards, found))
        self._sizes_mib.update((card.uuid, card.schedulable_mib) for card in self._cards)
        self._events.wake()

    def _tick(self) -> None:
        """Take the steps of the script that are due."""
        for step in self._script.due(self._done, self._clock() - self._began_s):
            self._waiting = self._waits_for_driver(step)
            if self._waiting:
                return
            self._done += 1
            self._run_step(step)

    def _wait_while_it_hangs(self) -> None:
        while (left_s := self._hangs_until_s - self._clock()) > 0:
            self._works.wait(min(left_s, 3600.0))

    def _refuse_while_open(self, uuid: str) -> None:
        if self._attached:
            raise GpuError(f"card {self._board(uuid).card.uuid}: {IN_USE}")

    def _check_driver(self) -> None:
        """Raise what a driver that is not there, or is another one, makes of every measurement."""
        if self._loaded and self._exchanged:
            raise DriverGoneError(f"the driver was exchanged; {ENDS}")
        if not self._loaded and self._clock() - self._unloaded_s >= GONE_S:
            raise DriverGoneError(f"{UNLOADED} for {GONE_S:.0f} s; {ENDS}")
        if not self._loaded:
            raise GpuError(UNLOADED)

    def _waits_for_driver(self, step: ScriptStep) -> bool:
        """Whether a step must not happen while the source has the driver open."""
        if step.mig is None or not self._attached or self._mood.mode_change == "anytime":
            return False
        board = self._boards[self._present[-1 if step.card is None else step.card]]
        return (board.instances is None) != isinstance(step.mig, str)

    def _run_step(self, step: ScriptStep) -> None:
        if step.hang_s is not None:
            self.hang(step.hang_s)
            return
        if step.driver == "unloaded":
            self.unload()
            return
        if step.driver is not None:
            self.load(other=step.driver == "exchanged")
            return
        if step.xid is not None and (step.card is None or step.over_s > 0):
            present = set(self._present.values()) if step.card is None else {self._present[step.card]}
            uuids = [card.uuid for card in self._cards if physical_uuid(card) in present]
            self.storm(uuids, step.xid, step.times, step.over_s)
            return
        # Of the cards that a profile before this one had the script says nothing.
        uuid = self._present[-1 if step.card is None else step.card]
        if step.xid is not None:
            self.xid(uuid, step.xid, step.times)
        elif step.vanish:
            self.vanish(uuid)
        elif step.returns:
            self.restore(uuid)
        elif step.mig is not None:
            self.partition(uuid, None if isinstance(step.mig, str) else step.mig)
        elif step.grow is not None:
            self.grow(self._boards[uuid].cards()[0].uuid, step.grow)

    def _take_changed_profile(self) -> None:
        profile = None if self._changed is None else self._changed()
        if profile is not None:
            self.become(profile)

    def _count(self, board: SimulatedBoard) -> None:
        """Count a sample of the card; a failure that is due trips now."""
        board.calls += 1
        failure = board.failure
        if failure is not None and not board.tripped and board.calls > failure.after_calls:
            self._trip(board, failure)

    def _trip(self, board: SimulatedBoard, failure: SimulatedFailure) -> None:
        board.tripped = True
        if failure.xid is not None:
            self.xid(board.card.uuid, failure.xid)
        elif failure.mode not in LOST_MODES:
            for card in board.cards():
                event = HealthEvent(card.uuid, healthy=False, reason="uncorrectable ECC errors")
                self._events.put(event)

    def _sample(self, card: GpuCard) -> GpuSample:
        board = self._boards[physical_uuid(card)]
        failure = board.failure if board.tripped else None
        error = card.error if board.shown else GONE
        if failure is not None and failure.mode in LOST_MODES:
            error = LOST_MODES[failure.mode]
        if error is not None:
            return GpuSample(card.uuid, 0, None, error=error)
        used_mib, processes = self._measure(card)
        measured = -(-board.memory_info(card, used_mib).used_by_processes // MIB)
        return GpuSample(
            card.uuid,
            measured,
            processes,
            keeps_pages=card.memory_node is not None,
            telemetry=simulate_telemetry(
                board.card.architecture,
                [process for each in board.cards() for process in self._measure(each)[1]],
                self._clock() - self._began_s,
                partitioned=board.instances is not None,
            ),
        )

    def _measure(self, card: GpuCard) -> tuple[int, tuple[GpuProcess, ...]]:
        use = self._uses.setdefault(card.uuid, SimulatedUse())
        processes = use.now(self._clock(), card.schedulable_mib)
        measured = max(use.used_mib, sum(process.used_mib or 0 for process in processes))
        limited = self.limits.processes(card.uuid)
        measured += sum(process.used_mib or 0 for process in limited)
        # What the operating system keeps it gives back where processes need it.
        kept = min(card.schedulable_mib, measured + self._boards[physical_uuid(card)].residue_mib)
        return max(measured, kept), (*processes, *limited)

    def _board(self, uuid: str) -> SimulatedBoard:
        """Find a card by its own UUID or by that of an instance."""
        found = self._boards.get(uuid) or next(
            (self._boards[physical_uuid(card)] for card in self._cards if card.uuid == uuid), None
        )
        if found is None:
            raise GpuError(f"card {uuid[:256]!r}; allowed: {', '.join(self._boards)}")
        return found

    def _card(self, uuid: str) -> GpuCard:
        found = next((card for card in self._cards if card.uuid == uuid), None)
        if found is None:
            known = ", ".join(card.uuid for card in self._cards)
            raise GpuError(f"card {uuid[:256]!r}; allowed: {known}")
        return found
