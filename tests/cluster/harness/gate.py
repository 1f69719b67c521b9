"""A gate between kube-scheduler and the extender: a test can stop the world in front of one verb."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.harness.polling import PATIENCE_S


class Gate:
    """An HTTP proxy; calls of the verb named by `close` wait in it until `open`."""

    def __init__(self, target: str) -> None:
        """Forward to `target`, the extender's URL."""
        self.seen: list[str] = []
        self._target = urlsplit(target)
        self._closed = ""
        self._arrived = threading.Event()
        self._opened = threading.Event()
        self._opened.set()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                gate._pass(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self, verb: str) -> None:
        """Let calls of `verb` wait from now on."""
        self._arrived.clear()
        self._opened.clear()
        self._closed = verb

    def wait_arrived(self, timeout_s: float = PATIENCE_S) -> None:
        """Return once a call waits in front of the gate.

        Raises:
            AssertionError: If none comes in time.
        """
        assert self._arrived.wait(timeout_s), (
            f"no call of {self._closed} within {timeout_s} s; seen {self.seen}"
        )

    def open(self) -> None:
        self._closed = ""
        self._opened.set()

    def stop(self) -> None:
        self.open()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _pass(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        verb = handler.path.rsplit("/", 1)[-1]
        self.seen.append(verb)
        if verb == self._closed:
            self._arrived.set()
            self._opened.wait(60)
        connection = http.client.HTTPConnection(self._target.hostname or "", self._target.port, timeout=20)
        try:
            connection.request("POST", handler.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        except OSError as error:
            status, data = 502, str(error).encode()
        finally:
            connection.close()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
