"""Errors of the scheduler_plugin package.

SchedulerError
├── ProtocolError    a request over HTTP that is not the extender's protocol
├── PolicyError      an unknown node policy, parameters it cannot take, or scores or cards that are none
├── SettingsError    a configuration that cannot work, all its faults at once
├── TraceError       a trace for the simulator that cannot be used at all
├── QueueConfigError a configuration of the queue that cannot be used, all its faults at once
├── StateError       an event that contradicts the cluster state's own rules
└── CommitError      a bind that cannot be done; the message goes back to kube-scheduler
"""

from collections.abc import Sequence
from typing import Final

FAULT: Final = "the gpupack scheduler failed in this call; its log says why"
"""What callers get as the reason where gpupack itself is at fault."""


class SchedulerError(Exception):
    """Root of the package's errors; the message names the value seen and what is allowed."""


class ProtocolError(SchedulerError):
    """A request that is not the extender's protocol.

    Attributes:
        status: The HTTP status to answer with, 400 (not JSON) or 422 (JSON of another shape).
    """

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class PolicyError(SchedulerError):
    """A node policy that does not exist, parameters it cannot take, or scores or cards that are none."""


class SettingsError(SchedulerError):
    """A configuration that cannot work; the message lists every fault, one a line."""


class TraceError(SchedulerError):
    """A trace for the simulator that cannot be used at all; the message names file, line and value."""


class QueueConfigError(SchedulerError):
    """A configuration of the queue that cannot be used."""

    def __init__(self, name: str, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{name}: {fault}" for fault in faults))
        self.faults = tuple(faults)


class StateError(SchedulerError):
    """An event that contradicts the cluster state's own rules."""


class CommitError(SchedulerError):
    """A bind that cannot be done, in words for kube-scheduler's event."""
