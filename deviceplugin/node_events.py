"""Kubernetes Events about a node, which people read in `kubectl describe node`, by their reasons.

Faults of applications make no Event: a pod that fails again and again would use up the Node's budget. Events
that matter would then be held back. The metrics count such faults.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from allocator.ledger import Pod
from allocator.texts import list_some
from kubeapi.events import EventType, ObjectRef, make_node_ref, make_pod_ref
from kubeapi.objects import ObjectMeta

UNHEALTHY: Final = "GPUUnhealthy"
NOT_OFFERED: Final = "GPUNotOffered"
FORBIDDEN: Final = "GPUMemoryLimitsForbidden"
RECOVERED: Final = "GPURecovered"
GONE: Final = "GPUGone"
CARDS_CHANGED: Final = "GPUsChanged"
HANGS: Final = "GPUDriverHangs"
ANSWERS: Final = "GPUDriverAnswers"
DRIVER_GONE: Final = "GPUDriverGone"
DETACHED: Final = "GPUDriverDetached"
ATTACHED: Final = "GPUDriverAttached"
OTHER_PLUGIN: Final = "ConflictingDevicePlugin"
OTHER_PLUGIN_GONE: Final = "ConflictingDevicePluginGone"
OTHER_DAEMON: Final = "ConflictingDaemon"
WRONG_CORDON: Final = "InvalidCordon"

_NAMED: Final = 8

Record = Callable[[ObjectRef, EventType, str, str], None]


class NodeEvents:
    """Writes Events about one Node."""

    def __init__(
        self, record: Record, node_name: str, models: Mapping[str, str], fault_event: str = "GPUFault"
    ) -> None:
        self._record = record
        self._ref = make_node_ref(node_name)
        self._models = dict(models)
        self._fault_event = fault_event

    def record_fault(self, uuid: str, reason: str) -> None:
        """Tell of a numbered error that makes a card unhealthy."""
        self._record(self._ref, "Warning", self._fault_event, f"{self._card(uuid)}: {reason}")

    def add_models(self, models: Mapping[str, str]) -> None:
        self._models.update(models)

    def record_unhealthy(self, uuid: str, reason: str, pods: Sequence[Pod] = ()) -> None:
        """Tell that a card is given to no pod any more, and the pods that are on it."""
        said = f"{self._card(uuid)} is unhealthy and takes no new pods: {reason}"
        self._record(self._ref, "Warning", UNHEALTHY, said + _running(pods))
        for pod in pods:
            theirs = f"{self._card(uuid)}, which this pod has a share of, is unhealthy: {reason}"
            self._record(refer_to_pod(pod), "Warning", UNHEALTHY, theirs)

    def record_not_offered(self, uuid: str, reason: str) -> None:
        """Tell that a card is well and yet given to no pod."""
        self._record(self._ref, "Warning", NOT_OFFERED, f"{self._card(uuid)} takes no new pods: {reason}")

    def record_limits_forbidden(self, uuids: Sequence[str], reason: str) -> None:
        """Tell that containers on cards are not limited for want of a right of this daemon."""
        cards = list_some([self._card(uuid) for uuid in uuids], _NAMED)
        said = f"containers' memory is accounted, not limited, on {cards}: {reason}"
        self._record(self._ref, "Warning", FORBIDDEN, said)

    def record_recovered(self, uuid: str, pods: Sequence[Pod] = ()) -> None:
        """Tell that a card is given to pods again, and the pods that are on it."""
        self._record(self._ref, "Normal", RECOVERED, f"{self._card(uuid)} is healthy again")
        for pod in pods:
            theirs = f"{self._card(uuid)}, which this pod has a share of, is healthy again"
            self._record(refer_to_pod(pod), "Normal", RECOVERED, theirs)

    def record_cards_changed(self, came: Sequence[str], went: Sequence[str]) -> None:
        parts = [
            f"{what}: {', '.join(self._card(uuid) for uuid in uuids)}"
            for what, uuids in (("new", came), ("gone", went))
            if uuids
        ]
        self._record(self._ref, "Normal", CARDS_CHANGED, "; ".join(parts))

    def record_gone(self, uuid: str, pods: Sequence[Pod]) -> None:
        """Tell that a card went while pods had shares of it."""
        self._record(self._ref, "Warning", GONE, f"{self._card(uuid)} is gone{_running(pods)}")
        for pod in pods:
            said = f"{self._card(uuid)}, which this pod has a share of, is gone: delete the pod"
            self._record(refer_to_pod(pod), "Warning", GONE, said)

    def record_too_small(self, uuid: str, reason: str, pods: Sequence[Pod]) -> None:
        """Tell that a card has fewer units than pods have shares of it, perhaps none."""
        said = f"{self._card(uuid)} has no longer what pods were given of it: {reason}"
        self._record(self._ref, "Warning", GONE, said + _running(pods))
        for pod in pods:
            theirs = (
                f"{self._card(uuid)} has no longer what this pod was given of it: {reason}: delete the pod"
            )
            self._record(refer_to_pod(pod), "Warning", GONE, theirs)

    def record_driver_hangs(self) -> None:
        said = "the cards' driver does not answer: look at dmesg"
        self._record(self._ref, "Warning", HANGS, said)

    def record_driver_answers(self) -> None:
        self._record(self._ref, "Normal", ANSWERS, "the cards' driver answers again")

    def record_driver_detached(self) -> None:
        said = "all cards are cordoned and empty, and the driver is let go: they may be reset or partitioned"
        self._record(self._ref, "Normal", DETACHED, said)

    def record_driver_attached(self) -> None:
        self._record(self._ref, "Normal", ATTACHED, "the driver is taken up again, the cards are measured")

    def record_driver_gone(self, reason: str) -> None:
        self._record(self._ref, "Warning", DRIVER_GONE, reason)

    def record_foreign_plugin(self, said: str) -> None:
        self._record(self._ref, "Warning", OTHER_PLUGIN, said)

    def record_foreign_plugin_gone(self) -> None:
        said = "no other device plugin offers GPUs here any more"
        self._record(self._ref, "Normal", OTHER_PLUGIN_GONE, said)

    def record_other_daemon(self, said: str) -> None:
        self._record(self._ref, "Warning", OTHER_DAEMON, said)

    def record_wrong_cordon(self, said: str) -> None:
        self._record(self._ref, "Warning", WRONG_CORDON, said)

    def _card(self, uuid: str) -> str:
        model = self._models.get(uuid)
        return f"card {uuid} ({model})" if model else f"card {uuid}"


def _running(pods: Sequence[Pod]) -> str:
    """Name the first pods on a card; an Event's message is short."""
    if not pods:
        return ""
    return f"; pods on it: {list_some([f'{pod.namespace}/{pod.name}' for pod in pods], _NAMED)}"


def refer_to_pod(pod: Pod | ObjectMeta) -> ObjectRef:
    return make_pod_ref(pod.namespace, pod.name, pod.uid)


def make_silent_events() -> NodeEvents:
    return NodeEvents(lambda *_: None, "", {})
