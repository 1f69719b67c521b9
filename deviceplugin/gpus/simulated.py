"""Simulated GPUs from a profile, for laptops, clusters without GPUs and tests; nothing is read again.

What happens to the cards is told to the object: `set_used`, `fail` and `heal`.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deviceplugin.errors import GpuError
from deviceplugin.gpus.events import EventQueue
from deviceplugin.gpus.health import DEFAULT_IGNORED_XIDS, fault_event
from deviceplugin.gpus.profile import FAILURE_MODES, LOST_MODES, Failure, Profile
from deviceplugin.gpus.simulated_limits import SimulatedLimits
from deviceplugin.gpus.source import GpuCard, GpuProcess, GpuSample, HealthEvent
from deviceplugin.gpus.vendor import Vendor


@dataclass(slots=True)
class _State:
    """What one simulated card is like now; `tripped` once its failure has come."""

    used_mib: int
    processes: tuple[GpuProcess, ...]
    failure: Failure | None
    calls: int = 0
    tripped: bool = False


class SimulatedGpus:
    """A `GpuSource` made of a profile. Safe to use from several threads.

    Args:
        profile: the cards and what is to happen to them.
        ignored_xids: XID codes that leave a card healthy.

    Attributes:
        limits: holds memory limits, and has the processes of `SimulatedLimits.use`, which `sample` shows too.
    """

    def __init__(self, profile: Profile, ignored_xids: frozenset[int] = DEFAULT_IGNORED_XIDS) -> None:
        self._cards = tuple(simulated.card for simulated in profile.cards)
        self._vendor = profile.vendor
        self._ignored_xids = ignored_xids
        self._lock = threading.Lock()
        self._events = EventQueue()
        self._states = {
            simulated.card.uuid: _State(simulated.used_mib, simulated.processes, simulated.failure)
            for simulated in profile.cards
        }
        self.limits = SimulatedLimits({card.uuid: card.schedulable_mib for card in self._cards})

    @property
    def vendor(self) -> Vendor:
        """The profile's."""
        return self._vendor

    def open(self) -> None:
        """Start taking events."""
        self._events.open()

    def close(self) -> None:
        """Let a waiting `events` return."""
        self._events.close()

    def cards(self) -> Sequence[GpuCard]:
        """Return the profile's cards by index."""
        return self._cards

    def sample(self) -> Sequence[GpuSample]:
        """Measure every card; a failure that is due trips now."""
        with self._lock:
            return [self._sample(card.uuid, self._states[card.uuid]) for card in self._cards]

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait up to `timeout_s` seconds for news."""
        return self._events.take(timeout_s)

    def set_used(self, uuid: str, used_mib: int, processes: Iterable[GpuProcess] = ()) -> None:
        """Set what the card measures from now on.

        Raises:
            GpuError: no such card, or more than it has.
        """
        card = next((card for card in self._cards if card.uuid == uuid), None)
        if card is None:
            raise self._unknown(uuid)
        if not 0 <= used_mib <= card.schedulable_mib:
            raise GpuError(f"card {uuid}: used {used_mib} MiB, allowed are 0 to {card.schedulable_mib} MiB")
        with self._lock:
            state = self._states[uuid]
            state.used_mib = used_mib
            state.processes = tuple(processes)

    def fail(self, uuid: str, mode: str = "lost", xid: int | None = None) -> None:
        """Break a card at once.

        Args:
            uuid: the card.
            mode: one of FAILURE_MODES; `lost` and `fallen_off_bus` also make its samples fail.
            xid: code of the XID error that comes with it.

        Raises:
            GpuError: no such card or no such mode.
        """
        if mode not in FAILURE_MODES:
            raise GpuError(f"failure mode {mode[:256]!r}: allowed are {', '.join(FAILURE_MODES)}")
        if uuid not in self._states:
            raise self._unknown(uuid)
        with self._lock:
            state = self._states[uuid]
            state.failure = Failure(mode, after_calls=0, xid=xid)
            self._trip(uuid, state, state.failure)

    def heal(self, uuid: str) -> None:
        """Mend a card; its next good sample ends the trouble.

        Raises:
            GpuError: no such card.
        """
        if uuid not in self._states:
            raise self._unknown(uuid)
        with self._lock:
            state = self._states[uuid]
            state.failure = None
            state.tripped = False
        self._events.put(HealthEvent(uuid, healthy=True, reason="mended"))

    def _sample(self, uuid: str, state: _State) -> GpuSample:
        state.calls += 1
        failure = state.failure
        if failure is not None and not state.tripped and state.calls > failure.after_calls:
            self._trip(uuid, state, failure)
        if failure is not None and state.tripped and failure.mode in LOST_MODES:
            return GpuSample(uuid, 0, None, error=LOST_MODES[failure.mode])
        measured = max(state.used_mib, sum(process.used_mib or 0 for process in state.processes))
        limited = self.limits.processes(uuid)
        measured += sum(process.used_mib or 0 for process in limited)
        return GpuSample(uuid, measured, (*state.processes, *limited))

    def _trip(self, uuid: str, state: _State, failure: Failure) -> None:
        state.tripped = True
        if failure.xid is None:
            if failure.mode not in LOST_MODES:
                self._events.put(HealthEvent(uuid, healthy=False, reason="uncorrectable ECC errors"))
        else:
            self._events.put(fault_event(uuid, failure.xid, self._ignored_xids, self._vendor))

    def _unknown(self, uuid: str) -> GpuError:
        known = ", ".join(card.uuid for card in self._cards)
        return GpuError(f"card {uuid[:256]!r}: allowed are {known}")
