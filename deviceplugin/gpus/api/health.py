"""Decides when a card is unhealthy and when it has recovered; pure, time comes in as an argument.

A card turns unhealthy at once: on a health event (an XID error) or on a failed sample (the card is lost). A
card recovers when a sample succeeds and the last trouble is `quiet_s` seconds past. Where the card's source
itself says that it is mended, the next good sample is enough. So a card that fails again and again stays
unhealthy, and none stays so for ever.
"""

from deviceplugin.gpus.api.source import GpuSample, HealthEvent
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.option_values import DEFAULT_QUIET_S

_NEVER = float("-inf")


def describe_fault(code: int, vendor: Vendor) -> str:
    """Name a numbered error for people: `XID 79: the card has fallen off the bus`."""
    meaning = vendor.fault_meanings.get(code)
    name = f"{vendor.fault} {code}"
    return f"{name}: {meaning}" if meaning else name


def fault_event(uuid: str, code: int, ignored: frozenset[int], vendor: Vendor) -> HealthEvent:
    """Make the news of a numbered error: the card is unhealthy, unless the code is ignored."""
    reason = describe_fault(code, vendor)
    return HealthEvent(uuid, healthy=None if code in ignored else False, reason=reason, code=code)


class HealthTracker:
    """The health of all cards of a node.

    Invariant: a card is in `_troubles` exactly while it is unhealthy; a card never heard of is healthy.

    Args:
        quiet_s: seconds without trouble, ended by a good sample, after which a card is healthy again.
    """

    def __init__(self, quiet_s: float = DEFAULT_QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._troubles: dict[str, tuple[str, float]] = {}

    def find_trouble(self, uuid: str) -> str | None:
        """Say why a card may not be given to pods; None while it is healthy."""
        trouble = self._troubles.get(uuid)
        return None if trouble is None else trouble[0]

    def on_event(self, event: HealthEvent, now_s: float) -> bool:
        """Take in a health event; return True if the card's state or reason changed."""
        before = self.find_trouble(event.uuid)
        if event.healthy is False:
            self._troubles[event.uuid] = (event.reason, now_s)
        elif event.healthy and event.uuid in self._troubles:
            self._troubles[event.uuid] = (self._troubles[event.uuid][0], _NEVER)
        return self.find_trouble(event.uuid) != before

    def on_sample(self, sample: GpuSample, now_s: float) -> bool:
        """Take in a measurement as a probe of the card; return True if the card's state or reason changed."""
        before = self.find_trouble(sample.uuid)
        trouble = self._troubles.get(sample.uuid)
        if sample.error is not None:
            self._troubles[sample.uuid] = (sample.error, now_s)
        elif trouble is not None and now_s - trouble[1] >= self._quiet_s:
            del self._troubles[sample.uuid]
        return self.find_trouble(sample.uuid) != before
