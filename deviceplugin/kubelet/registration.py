"""Being registered with the kubelet, whatever happens to it, to its sockets and to ours.

What the kubelet does, and what follows for us:

- The kubelet dials our socket and asks for our options before it answers Register: serve first, register
  then.
- On its start it deletes every socket in the folder, then it listens. Both sockets are watched from before
  Register, and once we are connected ours must still be there.
- Up to 1.36 it knows a plugin by its resource only. When it sees the end of an old ListAndWatch stream after
  a new registration, it takes the new one down. So before we register our old stream must be over, and the
  kubelet must have noticed. Should it still happen, our new stream ends, and we register again.
- From 1.37 on it knows a plugin by its socket too, and may refuse one until it is restarted: see
  `name_of_our_own`. Then we serve at another one.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from deviceplugin.errors import RegistrationError
from deviceplugin.kubelet.grpc_sockets import CHANNEL_OPTIONS, SERVER_OPTIONS, GrpcSockets
from deviceplugin.kubelet.plugin_service import DevicePlugin, DeviceStream
from deviceplugin.kubelet.sockets import FolderWatch, SocketId, identify, name_of_our_own
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from kubeapi.backoff import Backoff
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

API_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
_ALREADY_CONNECTED: Final = "already connected"
"""Answer of a kubelet from 1.37 on for a socket at which it knows a plugin."""

_LOOK_S: Final = 0.01
_UNDECIDED: Final = {grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING}


@dataclass(frozen=True, slots=True)
class RegistrationTimeouts:
    """How long each step may take, in seconds.

    Attributes:
        connect_s: for the connection to the kubelet's socket.
        register_s: for the kubelet's answer to Register, which dials back for up to 10 s.
        stream_s: from that answer to the kubelet's ListAndWatch call.
        settle_s: from the end of our stream until the kubelet has surely noticed.
        lasting_s: a stream that lived this long was no failure of registration.
        grace_s: for streams that are to end, and for calls in progress when our server stops.
    """

    connect_s: float = 2.0
    register_s: float = 12.0
    stream_s: float = 5.0
    settle_s: float = 0.25
    lasting_s: float = 1.0
    grace_s: float = 1.0


@dataclass(slots=True)
class _OpenRegistration:
    streams_before: int
    since: float
    stream: DeviceStream | None = None


class Registrar:
    """Serves a plugin on its socket and keeps it registered, until `run` is cancelled.

    Each turn of its loop looks at the sockets and the streams as they are and takes the next step. So no
    order of events can confuse it: events only wake it up.

    Args:
        endpoint: file name of our socket in it.
        on_registered: the kubelet is listening to our list of devices.
        on_kubelet_restart: the kubelet restarted, or may have: what it says of its pods is not to be trusted
            until it has caught up. May come twice for one restart.

    Raises:
        RegistrationError: the path of our socket is too long.
    """

    def __init__(
        self,
        plugin: DevicePlugin,
        folder: Path,
        endpoint: str,
        resource: str,
        *,
        on_registered: Callable[[], None],
        on_kubelet_restart: Callable[[], None],
        backoff: Backoff | None = None,
        timing: RegistrationTimeouts | None = None,
    ) -> None:
        self._plugin = plugin
        self._folder = folder
        self._kubelet_path = folder / KUBELET_SOCKET
        self._first_endpoint = self._endpoint = endpoint
        self._resource = resource
        self._on_registered = on_registered
        self._on_kubelet_restart = on_kubelet_restart
        self._backoff = backoff or Backoff(0.1, 5.0)
        self._timing = timing or RegistrationTimeouts()
        self._stepper = Stepper(self._step)
        self._sockets = self._make_sockets()
        self._known_kubelet: SocketId | None = None
        self._registration: _OpenRegistration | None = None
        self._not_before = 0.0
        self._registrations = 0

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet is listening to our list of devices."""
        if self._registration is None or self._registration.stream is None:
            return False
        return not self._registration.stream.ended.is_set()

    @property
    def registrations(self) -> int:
        """Number of registrations that came to a ListAndWatch stream."""
        return self._registrations

    async def run(self) -> None:
        """Serve and keep registered until cancelled; then end the streams and take our socket away."""
        self._plugin.set_stream_listener(self._stepper.wake)
        try:
            async with FolderWatch(self._folder, self._stepper.wake):
                await self._stepper.run()
        finally:
            await self._stop_serving()

    async def _step(self) -> float | None:
        """Take the next step; return the seconds after which to check again even if nothing happens."""
        self._notice_lost()
        if self._sockets.is_serving and not self._sockets.are_ours:
            log.warning("own socket is gone", socket=str(self._folder / self._endpoint))
            registration = self._registration
            await self._stop_serving()
            self._rest_unless_lasting(registration)
        kubelet = identify(self._kubelet_path)
        self._notice_restart(kubelet)
        if self._registration is not None:
            return self._follow(self._registration)
        if kubelet is None:
            return None
        await self._end_streams()
        wait_s = self._not_before - time.monotonic()
        if wait_s > 0:
            return wait_s
        if not self._sockets.is_serving:
            try:
                await self._sockets.serve()
            except RegistrationError as error:
                return self._failed(str(error))
        return await self._register()

    # --- what happened ------------------------------------------------------------------------------

    def _notice_restart(self, kubelet: SocketId | None) -> None:
        if kubelet is None or kubelet == self._known_kubelet:
            return
        if self._known_kubelet is not None:
            log.info("kubelet restarted", socket=str(self._kubelet_path))
            self._on_kubelet_restart()
            self._registration = None
        self._known_kubelet = kubelet
        # Failures with the previous kubelet say nothing about this one.
        self._backoff.reset()
        self._not_before = 0.0

    def _notice_lost(self) -> None:
        registration = self._registration
        if registration is None or registration.stream is None or not registration.stream.ended.is_set():
            return
        self._registration = None
        if registration.stream.stopping:
            return
        log.warning("kubelet ended the list of devices", resource=self._resource)
        self._on_kubelet_restart()
        self._rest_unless_lasting(registration)

    def _rest_unless_lasting(self, registration: _OpenRegistration | None) -> None:
        """Pause before the next registration, longer each time, until one has lasted."""
        now, lasting_s = time.monotonic(), self._timing.lasting_s
        if registration and registration.stream and now - registration.since >= lasting_s:
            self._backoff.reset()
        else:
            self._not_before = max(self._not_before, now + self._backoff.failed())

    def _follow(self, registration: _OpenRegistration) -> float | None:
        """Wait for the kubelet to open its stream; nothing to do once it has."""
        if registration.stream is not None:
            return None
        for stream in self._plugin.open_streams:
            if stream.number > registration.streams_before:
                registration.stream = stream
                registration.since = time.monotonic()
                self._registrations += 1
                log.info("registered with the kubelet", resource=self._resource)
                self._on_registered()
                return None
        left_s = registration.since + self._timing.stream_s - time.monotonic()
        opened_and_ended = self._plugin.streams_opened > registration.streams_before
        if left_s > 0 and not opened_and_ended:
            return left_s
        self._registration = None
        return self._failed("the kubelet did not listen to our list of devices")

    def _failed(self, reason: str) -> float:
        delay_s = self._backoff.log_failure(log, "registration failed", reason, resource=self._resource)
        self._not_before = time.monotonic() + delay_s
        return delay_s

    # --- what we do ---------------------------------------------------------------------------------

    async def _end_streams(self) -> None:
        """End all open streams, and give a kubelet that is alive time to notice."""
        if self._plugin.open_streams:
            self._not_before = max(self._not_before, time.monotonic() + self._timing.settle_s)
            try:
                async with asyncio.timeout(self._timing.grace_s):
                    await self._plugin.end_streams()
            except TimeoutError:
                # The kubelet does not read from a stream: only stopping the server ends it.
                await self._sockets.stop()

    def _make_sockets(self) -> GrpcSockets:
        path, grace_s = self._folder / self._endpoint, self._timing.grace_s
        return GrpcSockets([path], self._add_services, grace_s=grace_s, options=SERVER_OPTIONS)

    def _add_services(self, server: Any) -> None:
        rpc.add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]

    async def _stop_serving(self) -> None:
        await self._end_streams()
        self._registration = None
        await self._sockets.stop()

    async def _register(self) -> float | None:
        """Ask the kubelet to register us; give up when its socket or ours is replaced meanwhile."""
        streams_before = self._plugin.streams_opened
        asking = asyncio.create_task(self._call_register())
        asking.add_done_callback(lambda _: self._stepper.wake())
        try:
            while not asking.done():
                if self._sockets_changed():
                    return 0.0
                await self._stepper.wait_for_news()
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        refused = asking.result()
        if refused is not None:
            if self._sockets_changed():
                return 0.0
            if _ALREADY_CONNECTED in refused:
                await self._stop_serving()
                self._endpoint = name_of_our_own(self._first_endpoint)
                self._sockets = self._make_sockets()
            return self._failed(refused)
        self._registration = _OpenRegistration(streams_before, time.monotonic())
        return self._follow(self._registration)

    def _sockets_changed(self) -> bool:
        return identify(self._kubelet_path) != self._known_kubelet or not self._sockets.are_ours

    async def _call_register(self) -> str | None:
        """Call Register; return why it failed, if it did."""
        request = pb.RegisterRequest(
            version=API_VERSION,
            endpoint=self._endpoint,
            resource_name=self._resource,
            options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(
            f"unix:{self._kubelet_path}", options=CHANNEL_OPTIONS
        ) as channel:
            await self._connect(channel)
            # A kubelet deletes every socket before it listens, so it will not delete ours from now on. If
            # ours is gone already, it would try to connect for 10 s.
            if not self._sockets.are_ours:
                return "own socket is gone"
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=self._timing.register_s)  # type: ignore[no-untyped-call]
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        return None

    async def _connect(self, channel: Any) -> None:
        """Connect to the kubelet, or find out that it does not listen, so that the next call fails at once.

        Looks again and again instead of waiting for a change. A connection that opens and closes between two
        looks leaves the channel as idle as it was.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.connect_s):
                while channel.get_state(try_to_connect=True) in _UNDECIDED:  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_LOOK_S)
