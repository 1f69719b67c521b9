"""Requests of the controller to the API server of the model: late, refused, lost or without an answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from allocator.names import POD_ASSIGNED
from allocator.records import load_assigned
from kubeapi.errors import BudgetRefused, Conflict, Forbidden, Invalid, NotFound, Unreachable
from tests.api_requests import ApiRequests, Binding

from .world import Pod, World, card_uuid

WRITE_S: Final = 5.0
"""A request takes effect within this time or never."""


@dataclass(slots=True)
class Troubles:
    """How the API server is, as shares of requests; all 0 where it is well.

    Attributes:
        lost: Never arrive.
        unanswered: Are carried out, and the answer is lost.
        refused: Are forbidden by an admission policy.
        slow: Take up to 4 s.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    refused: float = 0.0
    slow: float = 0.0


@dataclass(eq=False, slots=True)
class _Request:
    """One that is under way; `lost`: it never arrives."""

    lost: bool


class Api(ApiRequests):
    """What the writer takes for a client.

    Args:
        wrote: Told of each change of a pod that was carried out, after it: the request's verb, and the pod.
        evict: Begins to end a pod.
        run: A pod that was bound to a node begins to run on a card there.

    Attributes:
        troubles: How it is.
        sent: How many requests were.
        dies_after: Writes that are carried out before the process that sends them dies; 0: it does not.
        die: Ends that process, and begins another one.
    """

    def __init__(
        self,
        world: World,
        random: Random,
        wrote: Callable[[str, Pod], None],
        evict: Callable[[Pod], None],
        run: Callable[[Pod, str, int], None] = lambda _pod, _node, _card: None,
    ) -> None:
        super().__init__()
        self.troubles = Troubles()
        self.sent = 0
        self.dies_after = 0
        self.die: Callable[[], None] = lambda: None
        self._sent: dict[_Request, None] = {}
        self.random = random
        self._world, self._random = world, random
        self._wrote, self._evict, self._run = wrote, evict, run

    @property
    def under_way(self) -> int:
        """Requests that may still take effect."""
        return len(self._sent)

    def cut(self) -> None:
        """End the process that sends: of its requests some arrive all the same."""
        for each in self._sent:
            each.lost = each.lost or self._random.random() < 0.5

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        """Send a request; whoever asked may be gone when it takes effect."""
        del timeout_s
        loop, random, troubles = asyncio.get_running_loop(), self._random, self.troubles
        self.sent += 1
        takes = random.uniform(0.5, 4.0) if random.random() < troubles.slow else random.uniform(0.001, 0.1)
        answer: asyncio.Future[bytes] = loop.create_future()
        chance = random.random()
        request = _Request(chance < troubles.lost)
        unanswered = request.lost or chance < troubles.lost + troubles.unanswered
        refused = verb != "get" and random.random() < troubles.refused
        self._sent[request] = None

        def arrive() -> None:
            del self._sent[request]
            found: bytes | Exception = b""
            if not request.lost:
                found = _forbidden() if refused else self._carry_out(verb, path, body)
            if answer.done():
                return
            if unanswered:
                loop.call_later(WRITE_S - takes, _give, answer, Unreachable("no answer", maybe_done=True))
            else:
                _give(answer, found)
            if verb != "get" and not request.lost and self.dies_after:
                self.dies_after -= 1
                if not self.dies_after:
                    self.die()

        loop.call_later(takes, arrive)
        return await answer

    def _carry_out(self, verb: str, path: str, body: Any) -> bytes | Exception:
        pod = self._world.pods.get(path.removesuffix("/eviction").rpartition("/")[2])
        if pod is None:
            return NotFound("gone")
        if verb == "get":
            return bytes(msgspec.json.encode(pod.lite))
        if verb == "bind":
            return self._carry_out_binding(pod, body)
        if path.endswith("/eviction"):
            return self._carry_out_eviction(pod, body)
        return self._carry_out_patch(verb, pod, body)

    def _carry_out_patch(self, verb: str, pod: Pod, body: Any) -> bytes | Exception:
        if pod.uid in self._world.forbidden and any(step["op"] == "remove" for step in body):
            return _forbidden()
        if not self._world.patch(pod, body):
            return Invalid("a test failed")
        self._wrote(verb, pod)
        return b""

    def _carry_out_eviction(self, pod: Pod, body: Any) -> bytes | Exception:
        if body["deleteOptions"]["preconditions"]["uid"] != pod.uid:
            return NotFound("another pod")
        if pod.node and not pod.ended and pod.spec.owner in self._world.budgets:
            return BudgetRefused("Cannot evict pod as it would violate the pod's disruption budget.")
        self._evict(pod)
        return b""

    def _carry_out_binding(self, pod: Pod, binding: Binding) -> bytes | Exception:
        version = pod.raw["metadata"]["resourceVersion"]
        if pod.uid in self._world.forbidden:
            return _forbidden()
        if pod.uid != binding.uid or pod.node or pod.ending or version != binding.resource_version:
            return Conflict("the pod is another one by now", status=409)
        assigned = binding.annotations[POD_ASSIGNED]
        ((uuid, units),) = load_assigned(assigned)["main"]
        cards = [card_uuid(binding.node, card) for card in range(len(self._world.nodes[binding.node]))]
        assert units == pod.spec.units
        pod.raw["metadata"]["annotations"][POD_ASSIGNED] = assigned
        self._run(pod, binding.node, cards.index(uuid))
        self._wrote("bind", pod)
        return b""


def _forbidden() -> Exception:
    return Forbidden("an admission policy says no")


def _give(answer: asyncio.Future[bytes], found: bytes | Exception) -> None:
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
