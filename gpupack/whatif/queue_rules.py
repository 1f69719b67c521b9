"""By what the queue decides, as far as it is known: `rebalance.queue_rehearsal` decides likewise."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpupack.errors import InputError

if TYPE_CHECKING:
    from scheduler_plugin.queue.cache.membership import QueueMembership
    from scheduler_plugin.queue.config.queues import QueueConfig
    from scheduler_plugin.queue.controller.settings import DecisionSettings, QueueSettings


@dataclass(frozen=True)
class QueueRules:
    """All by which the queue's leader decides.

    Attributes:
        namespaces: Labels by namespace: they say which queue a pod belongs to.
        read_at_s: When that was so, with pods and nodes: seconds since 1970.
    """

    config: "QueueConfig"
    settings: "QueueSettings"
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    read_at_s: float = field(default_factory=time.time)

    def find_queue(self, namespace: str, label: str) -> str:
        """Find the queue that a pod belongs to, empty for none."""
        return self._membership.find_queue(namespace, label)

    @cached_property
    def _membership(self) -> "QueueMembership":
        from scheduler_plugin.queue.cache.membership import QueueMembership  # noqa: PLC0415

        membership = QueueMembership(self.config)
        for name, labels in self.namespaces.items():
            membership.set_namespace(name, labels)
        return membership


def read_rules(
    served: "DecisionSettings", namespaces: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> QueueRules:
    """Read what a leader says of itself.

    Raises:
        InputError: it has policies that are not known here, or is of another version.
    """
    from scheduler_plugin.errors import SchedulerError  # noqa: PLC0415
    from scheduler_plugin.queue.config.queues import parse_config  # noqa: PLC0415 - it loads YAML

    settings = served.make_settings()
    try:
        settings.check()
        config = parse_config("queues.yaml", served.configuration, settings.find_policy_faults)
        return QueueRules(config, settings, namespaces)
    except SchedulerError as error:
        raise InputError(f"its settings cannot be used here: {error}") from error
