"""What people read of a node in `kubectl describe node`: Kubernetes Events about it, by their reasons.

Faults that are the application's make no Event: a pod that fails again and again would use up what the
Node may get, and the Events that matter would be held back. /metrics counts them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kubeapi.events import EventType, ObjectRef, node_ref

UNHEALTHY: Final = "GPUUnhealthy"
NOT_OFFERED: Final = "GPUNotOffered"
RECOVERED: Final = "GPURecovered"
OTHER_PLUGIN: Final = "ConflictingDevicePlugin"
OTHER_PLUGIN_GONE: Final = "ConflictingDevicePluginGone"
OTHER_DAEMON: Final = "ConflictingDaemon"
WRONG_CORDON: Final = "InvalidCordon"

Record = Callable[[ObjectRef, EventType, str, str], None]


class Notices:
    """Writes Events about one Node.

    Args:
        record: `EventRecorder.event`.
        node_name: of the Node.
        models: names of the cards' models by UUID.
        fault_event: reason of Events about the driver's numbered errors.
    """

    def __init__(
        self, record: Record, node_name: str, models: Mapping[str, str], fault_event: str = "GPUFault"
    ) -> None:
        self._record = record
        self._ref = node_ref(node_name)
        self._models = models
        self._fault_event = fault_event

    def fault(self, uuid: str, reason: str) -> None:
        """Tell of a numbered error that makes a card unhealthy."""
        self._record(self._ref, "Warning", self._fault_event, f"{self._card(uuid)}: {reason}")

    def unhealthy(self, uuid: str, reason: str) -> None:
        """Tell that a card is given to no pod any more."""
        said = f"{self._card(uuid)} is unhealthy and takes no new pods: {reason}"
        self._record(self._ref, "Warning", UNHEALTHY, said)

    def not_offered(self, uuid: str, reason: str) -> None:
        """Tell that a card is well and yet given to no pod."""
        self._record(self._ref, "Warning", NOT_OFFERED, f"{self._card(uuid)} takes no new pods: {reason}")

    def recovered(self, uuid: str) -> None:
        """Tell that a card is given to pods again."""
        self._record(self._ref, "Normal", RECOVERED, f"{self._card(uuid)} is healthy again")

    def other_plugin(self, said: str) -> None:
        """Tell of another device plugin."""
        self._record(self._ref, "Warning", OTHER_PLUGIN, said)

    def other_plugin_gone(self) -> None:
        """Tell that there is no other device plugin any more."""
        said = "no other device plugin offers GPUs here any more"
        self._record(self._ref, "Normal", OTHER_PLUGIN_GONE, said)

    def other_daemon(self, said: str) -> None:
        """Tell of another gpupack node daemon."""
        self._record(self._ref, "Warning", OTHER_DAEMON, said)

    def wrong_cordon(self, said: str) -> None:
        """Tell of a cordon of cards that are not here, or that cannot be read."""
        self._record(self._ref, "Warning", WRONG_CORDON, said)

    def _card(self, uuid: str) -> str:
        model = self._models.get(uuid)
        return f"card {uuid} ({model})" if model else f"card {uuid}"


def silent() -> Notices:
    """Notices that nobody reads."""
    return Notices(lambda *_: None, "", {})
