"""Being registered with the kubelet as a driver for claims, whatever happens to it and to our sockets.

The kubelet finds plugins by their sockets in `plugins_registry`, also when it starts, and calls them: what
they are, and then whether they are registered. So there is nothing to ask for; the sockets must be there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from allocator.names import DRA_DRIVER
from deviceplugin.dra.plugin_service import DraPlugin, PluginRegistration
from deviceplugin.errors import RegistrationError
from deviceplugin.kubelet.grpc_sockets import GrpcSockets
from deviceplugin.kubelet.sockets import FolderWatch
from deviceplugin.kubelet.wire import dra_pb2_grpc as rpc
from deviceplugin.kubelet.wire import pluginregistration_pb2_grpc as registration_rpc
from kubeapi.backoff import Backoff
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

GRACE_S: Final = 1.0
"""How long calls in progress may take when our server stops."""


def plugin_folder(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins" / DRA_DRIVER


class DraRegistrar:
    """Serves the plugin on its two sockets until `run` is cancelled.

    Args:
        kubelet_dir: the kubelet's folder, under the same path for the kubelet and for this process.

    Raises:
        RegistrationError: the path of a socket is too long.
    """

    def __init__(self, plugin: DraPlugin, kubelet_dir: Path, *, on_registered: Callable[[], None]) -> None:
        self._plugin = plugin
        self._socket = plugin_folder(kubelet_dir) / "dra.sock"
        self.registry = kubelet_dir / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"
        # In this order: a kubelet that finds the registry's socket calls the plugin's socket at once.
        self._sockets = GrpcSockets([self._socket, self.registry], self._add_services, grace_s=GRACE_S)
        self._on_registered = on_registered
        self._stepper = Stepper(self._step, backoff=Backoff(0.1, 5.0))
        self.is_registered = False
        self.registrations = 0

    async def run(self) -> None:
        """Serve, and serve again whenever a socket disappears, until cancelled; then remove the sockets."""
        try:
            async with FolderWatch(self.registry.parent, self._stepper.wake):
                await self._stepper.run()
        finally:
            await self._stop()

    async def _step(self) -> float | None:
        if self._sockets.is_serving:
            if self._sockets.are_ours:
                return None
            await self._stop()
            return await self._stepper.back_off(log, "sockets not served", f"{self.registry} is gone")
        try:
            for path in (self._socket, self.registry):
                path.parent.mkdir(parents=True, exist_ok=True)
            await self._sockets.serve()
        except (RegistrationError, OSError) as error:
            return await self._stepper.back_off(log, "sockets not served", error)
        return None

    def _add_services(self, server: Any) -> None:
        rpc.add_DRAPluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        what = PluginRegistration(self._socket, self._on_status)
        registration_rpc.add_RegistrationServicer_to_server(what, server)  # type: ignore[no-untyped-call]

    async def _stop(self) -> None:
        self.is_registered = False
        await self._sockets.stop()

    def _on_status(self, registered: bool, error: str) -> None:
        self.is_registered = registered
        if not registered:
            log.warning("registration failed", driver=DRA_DRIVER, reason=error[:256])
            return
        self.registrations += 1
        log.info("registered with the kubelet", driver=DRA_DRIVER)
        self._on_registered()
