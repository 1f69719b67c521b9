"""A connection to the API server on which answers can be held up: a view of the cluster that lags behind."""

import contextlib
import select
import socket
import threading
from urllib.parse import urlsplit


class SlowLink:
    """A TCP proxy; what the server says waits in it while it is held.

    Attributes:
        url: Where it listens; TLS goes through it as it is.
    """

    def __init__(self, target: str) -> None:
        """Forward to `target`, a URL with a port."""
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 0)
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def hold(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def stop(self) -> None:
        self.flow()
        # Wakes the thread that accepts, which a close alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._target)

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, self._connect() as server:
            while True:
                for readable in select.select([client, server], [], [])[0]:
                    data = readable.recv(65536)
                    if not data:
                        return
                    if readable is server:
                        self._flows.wait()
                    (client if readable is server else server).sendall(data)
