"""A source of cards that leaves helpers of our own out of its measurements.

A process that serves the containers of a card uses a little of its memory. That is nobody's use. Without its
line among the processes it counts as what no process uses. That costs nothing while it is as little as an
idle card's context.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from deviceplugin.gpus.api.memory_limits import MemoryLimits
from deviceplugin.gpus.api.source import GpuCard, GpuSample, GpuSource, HealthEvent
from deviceplugin.gpus.api.vendor import Vendor


class HelperProcessFilter:
    """A `GpuSource` made of another one.

    Args:
        helpers: pids of the helpers there are now.
    """

    def __init__(self, source: GpuSource, helpers: Callable[[], Collection[int]]) -> None:
        self._source = source
        self._helpers = helpers

    @property
    def vendor(self) -> Vendor:
        """Vendor of the source's cards."""
        return self._source.vendor

    @property
    def limits(self) -> MemoryLimits | None:
        """Adapter of the source that limits memory."""
        return self._source.limits

    def open(self) -> None:
        """Open the source."""
        self._source.open()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def cards(self) -> Sequence[GpuCard]:
        """List the source's cards."""
        return self._source.cards()

    def sample(self) -> Sequence[GpuSample]:
        """Measure every card, without the helpers among its processes."""
        return [self._without(sample) for sample in self._source.sample()]

    def detach(self) -> None:
        """Detach the source."""
        self._source.detach()

    def events(self, timeout_s: float) -> Sequence[HealthEvent]:
        """Wait for the source's health events."""
        return self._source.events(timeout_s)

    def _without(self, sample: GpuSample) -> GpuSample:
        helpers = self._helpers()
        if sample.processes is None or not helpers:
            return sample
        return replace(
            sample, processes=tuple(process for process in sample.processes if process.pid not in helpers)
        )
