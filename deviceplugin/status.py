"""Status of the daemon: whether it is ready, /explain, and the values of its metrics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deviceplugin.allocation.foreign_plugins import ForeignPluginWatcher
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.allocation.reconciler import Reconciler
from deviceplugin.container_memory import ContainerMemoryService
from deviceplugin.device_plugin_serving import DevicePluginServing
from deviceplugin.dra.serving import ClaimServing
from deviceplugin.kubelet.pod_resources import PodResources
from deviceplugin.metrics import CardState, Counts, Gauges, NodeState
from deviceplugin.monitoring.sampling import CardSampler
from deviceplugin.publishing.annotator import AllocationAnnotator
from deviceplugin.publishing.explain import explain_node
from deviceplugin.publishing.ownership import NodeOwnership
from deviceplugin.publishing.publisher import NodePublisher
from deviceplugin.settings import Settings
from kubeapi.events import EventRecorder


@dataclass(slots=True, kw_only=True)
class DaemonStatus:
    """Reads the daemon's parts."""

    settings: Settings
    account: LedgerService
    reconciler: Reconciler
    serving: ClaimServing | DevicePluginServing
    pod_resources: PodResources
    sampler: CardSampler
    own_node: OwnNode
    pods: OwnPods
    ownership: NodeOwnership
    publisher: NodePublisher
    annotator: AllocationAnnotator
    memory: ContainerMemoryService
    neighbours: ForeignPluginWatcher
    recorder: EventRecorder
    why_no_names: Callable[[], str | None]
    waiting: str | None = None

    def explain_not_ready(self) -> list[str]:
        """Say why pods cannot be served yet; empty when they can."""
        if self.waiting is not None:
            return [self.waiting]
        no_names = self.why_no_names()
        reasons = [] if no_names is None else [no_names]
        if not self.serving.registrars.is_registered:
            reasons.append(
                f"not registered with the kubelet, which is to {self.serving.registrars.expectation}"
            )
        if self.serving.problem is not None:
            reasons.append(self.serving.problem)
        if self.account.checkpoint_problem is not None:
            reasons.append(self.account.checkpoint_problem)
        reasons += [
            f"pod {uid} has {resource}, of another unit than ours: has it ended?"
            for uid, resource in list(self.account.other_unit_pods.resource_by_pod.items())[:1]
        ]
        if self.pod_resources.problem is not None:
            reasons.append(self.pod_resources.problem)
        if self.sampler.problem is not None:
            reasons.append(self.sampler.problem)
        if self.own_node.is_missing:
            reasons.append(f"no Node is named {self.settings.node_name}")
        if self.ownership.problem is not None:
            reasons.append(self.ownership.problem)
        # Mostly it is what was said above that keeps the first patch waiting.
        if self.publisher.problem is not None and (self.publisher.is_failing or not reasons):
            reasons.append(self.publisher.problem)
        return reasons

    def explain(self) -> dict[str, Any]:
        return {
            "node": self.settings.node_name,
            "resource": self.settings.resource,
            "unit_mib": self.settings.unit_mib,
            "not_ready": self.explain_not_ready(),
            "foreign_gpus": dict(self.neighbours.foreign_gpus),
            "api_connected": self.pods.is_connected,
            "seen": self.pods.seen_version,
            "revision": self.publisher.revision,
            "cgroups": {
                "unreadable": self.reconciler.cgroup_problem,
                "unwatched": self.memory.cgroup_problem,
            },
            "driver": {"detached": self.sampler.driver.is_detached, "gone": self.sampler.driver_gone_reason},
            "memory": self.memory.explain(),
            "ledger": explain_node(self.account.ledger.accounts),
        }

    def describe_node(self) -> NodeState:
        return NodeState(
            foreign_gpus=self.neighbours.foreign_gpus,
            faults=self.sampler.health.faults,
            health_changes=self.sampler.health.changes,
        )

    def list_gauges(self) -> Gauges:
        return {
            "registered": (
                "1 while the kubelet listens to our list of devices.",
                lambda: self.serving.registrars.is_registered,
            ),
            "ready": ("1 while /readyz answers 200.", lambda: not self.explain_not_ready()),
            "other_daemon": (
                "1 where another gpupack node daemon is at this node.",
                lambda: self.waiting is not None or self.ownership.is_disputed,
            ),
            "driver_detached": (
                "1 while the cards' driver is let go, all cards being cordoned and empty.",
                lambda: self.sampler.driver.is_detached,
            ),
            "cgroups_unreadable": (
                "1 while cgroups of pods cannot be read: their charges do not end.",
                lambda: self.reconciler.cgroup_problem is not None,
            ),
            "cgroups_unwatched": (
                "1 while the kernel does not tell of new cgroups: limits come up to 0.25 s late.",
                lambda: self.memory.cgroup_problem is not None,
            ),
            "unknown_cordoned_cards": (
                "UUIDs of the cordon that are no card of this node.",
                lambda: len(self.own_node.unknown_cordoned),
            ),
            "driver_hangs_seconds": (
                "Seconds that the cards' driver has not answered, 0 while it does.",
                lambda: self.sampler.driver.hangs_s,
            ),
        }

    def list_counters(self) -> Counts:
        counts: dict[str, tuple[str, Callable[[], int]]] = {
            "patches": ("Patches of the Node's words.", lambda: self.publisher.patches),
            "patch_errors": (
                "Failed patches of the Node.",
                lambda: self.publisher.errors + self.ownership.errors,
            ),
            "annotation_errors": ("Failed writes of allocations.", lambda: self.annotator.errors),
            "clean_errors": (
                "Failed requests to PodResources.",
                lambda: self.pod_resources.errors,
            ),
            "sample_errors": ("Failed measurements of all cards.", lambda: self.sampler.errors),
            "registrations": (
                "Registrations of both resources.",
                lambda: self.serving.registrars.registrations,
            ),
            "events": ("Writes of Kubernetes Events.", lambda: self.recorder.written),
            "events_dropped": ("Kubernetes Events that were lost.", lambda: self.recorder.dropped),
        }
        return {**counts, **self.memory.list_counters()}

    def list_card_states(self) -> Iterator[CardState]:
        ledger = self.account.ledger
        words = ledger.make_words(self.settings.unit_mib)
        measured, residue_mib = self.sampler.fresh_uses, self.sampler.residue_mib
        for card, used, compute in zip(ledger.cards(), words.used, words.compute_used, strict=True):
            use = self.sampler.uses.get(card.uuid)
            yield CardState(
                uuid=card.uuid,
                model=card.model,
                size=card.size_units,
                used=used,
                promised=card.used_units,
                compute=compute,
                compute_limit=words.compute_limit,
                beyond=use.extra_units(self.settings.unit_mib) if use is not None else 0,
                measured_mib=measured[card.uuid].measured_mib if card.uuid in measured else None,
                healthy=card.healthy,
                cordoned=card.uuid in ledger.cordoned,
                memory_errors=self.sampler.memory_errors.get(card.uuid, {}),
                residue_mib=residue_mib.get(card.uuid),
            )
