"""A scheduler extender that binds nothing: it records where kube-scheduler's own filters allow a pod."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

RECORDED: Final = "recorded"
"""What the extender says of every node, so that the pod stays where it is."""


class RecordingExtender:
    """Refuses every node of every pod, and remembers which ones it was asked about.

    Attributes:
        allowed: Nodes that passed kube-scheduler's filters, by UID of the pod; no entry where none did.
        url: Where kube-scheduler finds it.
    """

    def __init__(self) -> None:
        self.allowed: dict[str, frozenset[str]] = {}
        allowed = self.allowed

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = asked["NodeNames"]
                allowed[asked["Pod"]["metadata"]["uid"]] = frozenset(names)
                answer = json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(names, RECORDED)}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in `extenders` of KubeSchedulerConfiguration."""
        return {"urlPrefix": self.url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "60s"}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
