"""A proxy between kube-scheduler and the extender, which records calls and may keep Bindings waiting."""

import http.client
import json
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.cluster.harness.post_server import PostServer

if TYPE_CHECKING:
    from collections.abc import Callable

UNAVAILABLE: Final = 503


class Call(NamedTuple):
    """One call that was answered.

    Attributes:
        verb: `filter`, `prioritize`, `bind` or `preempt`.
        pod: Name of the pod.
        node: The node that filter gave, or that bind named; empty if there was none.
        why: Why filter refused all nodes, or bind failed; empty if they did not.
    """

    verb: str
    pod: str
    node: str
    why: str


class ExtenderProxy(PostServer):
    """Forwards every call to the first extender that answers: of two replicas that is the leader.

    Attributes:
        calls: All calls that were answered, the newest last.
        before_bind: Called with the pod's name before a bind call is forwarded.
        binds_may_pass: Bind calls wait for this.
        waiting_binds: Names of the pods whose bind call waits.
    """

    def __init__(self, *targets: str) -> None:
        self.calls: list[Call] = []
        self.waiting_binds: set[str] = set()
        self.binds_may_pass = threading.Event()
        self.reset()
        self._targets = targets
        super().__init__(self._answer)

    def reset(self) -> None:
        """Forget the calls, and let Bindings pass."""
        self.calls.clear()
        self.before_bind: Callable[[str], object] = lambda _pod: None
        self.binds_may_pass.set()

    def stop(self) -> None:
        self.binds_may_pass.set()
        super().stop()

    def list_calls(self, verb: str, *pods: str) -> list[Call]:
        return [call for call in [*self.calls] if call.verb == verb and (not pods or call.pod in pods)]

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        asked, verb = json.loads(body), path.rpartition("/")[2]
        pod = asked["PodName"] if verb == "bind" else asked["Pod"]["metadata"]["name"]
        if verb == "bind":
            self.waiting_binds.add(pod)
            self.binds_may_pass.wait()
            self.waiting_binds.discard(pod)
            self.before_bind(pod)
        status, answer = self._forward(path, body)
        told: Any = json.loads(answer) if status == http.client.OK else {}
        if isinstance(told, dict):
            refused = {**(told.get("FailedNodes") or {}), **(told.get("FailedAndUnresolvableNodes") or {})}
            node = asked["Node"] if verb == "bind" else next(iter(told.get("NodeNames") or ()), "")
            self.calls.append(Call(verb, pod, node, told.get("Error") or next(iter(refused.values()), "")))
        return status, answer

    def _forward(self, path: str, body: bytes) -> tuple[int, bytes]:
        for target in self._targets:
            at = urlsplit(target)
            connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                if reply.status != UNAVAILABLE:
                    return reply.status, reply.read()
            except OSError:
                continue  # it was killed, or has not started yet
            finally:
                connection.close()
        return UNAVAILABLE, b"{}"
