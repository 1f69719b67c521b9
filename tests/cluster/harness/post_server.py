"""An HTTP server of a test that answers POSTs, on loopback and in threads of its own."""

import ssl
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class _Server(ThreadingHTTPServer):
    def handle_error(self, *asked: Any) -> None:
        """Say nothing of whoever was killed as it asked."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*asked)


class PostServer:
    """Answers each POST as told.

    Args:
        answer: Given a path and a body; returns a status and JSON. What it raises is no answer.
        certificate: Of the server, with its key in the file with the ending .key; None: there is no TLS.

    Attributes:
        url: Where it listens.
    """

    def __init__(
        self, answer: Callable[[str, bytes], tuple[int, bytes]], certificate: Path | None = None
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                status, body = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # whoever asked was killed meanwhile

            def log_message(self, *_: object) -> None:
                """Say nothing on stderr."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'' if certificate is None else 's'}://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
