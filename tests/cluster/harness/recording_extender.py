"""A scheduler extender that binds nothing: it records where kube-scheduler's own filters allow a pod."""

import json
from typing import Any, Final

from tests.cluster.harness.post_server import PostServer

RECORDED: Final = "recorded"
"""What the extender says of every node, so that the pod stays where it is."""


class RecordingExtender(PostServer):
    """Refuses every node of every pod, and remembers which ones it was asked about.

    Attributes:
        allowed: Nodes that passed kube-scheduler's filters, by UID of the pod; no entry where none did.
        asked: Paths of its calls.
    """

    def __init__(self) -> None:
        self.allowed: dict[str, frozenset[str]] = {}
        self.asked: set[str] = set()
        super().__init__(self._answer)

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked.add(path)
        call = json.loads(body)
        names = call.get("NodeNames") or ()
        self.allowed[call["Pod"]["metadata"]["uid"]] = frozenset(names)
        return 200, json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(names, RECORDED)}).encode()

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in `extenders` of KubeSchedulerConfiguration."""
        return {"urlPrefix": self.url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "60s"}
