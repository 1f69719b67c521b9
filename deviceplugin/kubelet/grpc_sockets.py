"""A gRPC server on sockets that others may delete."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.errors import RegistrationError
from deviceplugin.kubelet.sockets import SocketId, check_socket_path, clear_socket_path, identify

# A list of all device IDs, or of all pods with theirs, is larger than the 4 MiB that gRPC takes by itself.
SERVER_OPTIONS: Final = (("grpc.max_receive_message_length", 64 * 1024 * 1024),)
CHANNEL_OPTIONS: Final = (
    *SERVER_OPTIONS,
    # Channels share connections, and their back-off, unless told not to.
    ("grpc.use_local_subchannel_pool", 1),
    # A connection that said GOAWAY before the channel watched it stays READY for ever. A call on it is then
    # tried again without a pause, below the event loop, until its deadline: 250 MiB a second.
    ("grpc.enable_retries", 0),
)


class GrpcSockets:
    """One server on several sockets, which appear in the order of their paths.

    Raises:
        RegistrationError: a path is too long.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        add_services: Callable[[Any], None],
        *,
        grace_s: float,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        for path in paths:
            check_socket_path(path)
        self._paths = tuple(paths)
        self._add_services = add_services
        self._grace_s = grace_s
        self._options = tuple(options)
        self._server: Any = None
        self._own: tuple[SocketId | None, ...] = ()

    @property
    def is_serving(self) -> bool:
        """Whether the server runs; its sockets may be gone all the same."""
        return self._server is not None

    @property
    def are_ours(self) -> bool:
        """Whether the files at the paths are the sockets of the server that runs."""
        # One that was deleted before it could be identified is gone, too.
        return None not in self._own and self._own == self._identify()

    def _identify(self) -> tuple[SocketId | None, ...]:
        return tuple(map(identify, self._paths))

    async def serve(self) -> None:
        """Start a server; the one before must have been stopped.

        Raises:
            RegistrationError: a socket cannot be had.
        """
        for path in self._paths:
            clear_socket_path(path)
        server = self._server = grpc.aio.server(options=self._options)
        self._add_services(server)
        try:
            for path in self._paths:
                server.add_insecure_port(f"unix:{path}")
            await server.start()
        except RuntimeError as error:
            await self.stop()
            raise RegistrationError(f"cannot serve on {self._paths[0]}: {error}") from error
        self._own = self._identify()

    async def stop(self) -> None:
        """Stop the server. gRPC removes the sockets' paths, so the next server must come after this."""
        server, self._server, self._own = self._server, None, ()
        if server is not None:
            await server.stop(self._grace_s)
