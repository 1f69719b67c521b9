"""Sets one limit and makes sure that it holds; blocking, so it runs in a thread."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from deviceplugin.enforcement.limit_plan import WantedLimit
from deviceplugin.errors import LimitError, LimitFault
from deviceplugin.gpus.api.memory_limits import UNSET, LimitReading, MemoryLimits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LimitJob:
    """A limit to be set on a card for a cgroup."""

    cgroup: Path
    wanted: WantedLimit


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """What became of a job.

    Attributes:
        reading: limit and use as read at the end; None if it could not be read.
        was_mib: the limit that stood there before; None: none, or not read.
        at_s: when the job was begun, monotonic seconds.
    """

    cgroup: Path
    reading: LimitReading | None
    was_mib: int | None = None
    fault: LimitFault | None = None
    problem: str = ""
    at_s: float = 0.0


def apply_limits(limits: MemoryLimits, uuid: str, jobs: Sequence[LimitJob]) -> list[LimitOutcome]:
    """Set the limits of one card; one that fails leaves the others alone."""
    return [_hold(limits, uuid, job) for job in jobs]


def _hold(limits: MemoryLimits, uuid: str, job: LimitJob) -> LimitOutcome:
    reading: LimitReading | None = None
    was_mib: int | None = None
    at_s = time.monotonic()
    try:
        # A limit that an earlier daemon or the vendor's toolkit has set already is not written again.
        reading = _read(limits, uuid, job.cgroup)
        was_mib = reading.hard_mib
        stays_mib = was_mib if was_mib in job.wanted.accepted else None
        if stays_mib is not None and _is_like_above(limits, uuid, job.cgroup, reading):
            stays_mib = None
        # A soft limit is reserved in every cgroup above and outlasts this one; to set the limit ends it.
        if stays_mib is None or reading.soft_mib > 0:
            limits.set(uuid, job.cgroup, job.wanted.mib if stays_mib is None else stays_mib)
            reading = _read(limits, uuid, job.cgroup)
    except LimitError as error:
        return LimitOutcome(job.cgroup, reading, was_mib, error.kind, str(error), at_s)
    except Exception as error:
        # Whatever a driver raises concerns this job only, which is tried again.
        log.exception("a call for a memory limit failed", card=uuid, cgroup=str(job.cgroup))
        problem = f"limit on card {uuid} for cgroup {job.cgroup}: {type(error).__name__}: {error}"
        return LimitOutcome(job.cgroup, reading, was_mib, "failed", problem, at_s)
    if reading.hard_mib in job.wanted.accepted:
        return LimitOutcome(job.cgroup, reading, was_mib, at_s=at_s)
    stands = "there is none" if reading.hard_mib is None else f"it is {reading.hard_mib} MiB"
    problem = f"limit of {job.wanted.mib} MiB on card {uuid} for cgroup {job.cgroup} was set, and {stands}"
    return LimitOutcome(job.cgroup, reading, was_mib, "failed", problem, at_s)


def _is_like_above(limits: MemoryLimits, uuid: str, cgroup: Path, reading: LimitReading) -> bool:
    """Return True if the limit that was read may be that of a parent cgroup, which its children share.

    A read of a cgroup without a limit of its own tells that of the nearest limited one above: see the
    sources of `gpus/simulated/memory_limits.py`. To set the limit once more than needed does no harm.
    """
    try:
        return _read(limits, uuid, cgroup.parent).hard_mib == reading.hard_mib
    except LimitError:
        return False


def _read(limits: MemoryLimits, uuid: str, cgroup: Path) -> LimitReading:
    """Read a limit; `UNSET` if none is set, which is no fault: one is about to be set."""
    try:
        return limits.read(uuid, cgroup)
    except LimitError as error:
        if error.kind != "unset":
            raise
        return UNSET
