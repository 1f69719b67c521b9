"""Aggregates Events as client-go's recorder does, so that ours look like Kubernetes' own.

An Event that repeats raises the count of the one object. From the tenth different message about the same
thing on, messages share one object too. An Event that still goes on is written ever more rarely. Pure.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from kubeapi.bounded import BoundedDict
from kubeapi.ratelimit import KeyedTokenBuckets

EventType = Literal["Normal", "Warning"]

BURST: Final = 25
REFILL_S: Final = 300.0
"""An object may get `BURST` writes at once, then one every so many seconds."""

SIMILAR: Final = 10
SIMILAR_S: Final = 600.0
"""Different messages of one reason share an object unless so many seconds lie between two of them."""

REMEMBERED: Final = 4096
"""Series and objects that are remembered; what was not used for longest is forgotten first."""

COMBINED: Final = "(combined from similar events): "


class ObjectRef(NamedTuple):
    """Names the object of an Event; `make_pod_ref` and the other functions make them.

    Attributes:
        kind: "Pod".
        namespace: empty for objects that have none.
        uid: `kubectl describe` asks for it.
        api_version: "v1".
    """

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


def make_pod_ref(namespace: str, name: str, uid: str) -> ObjectRef:
    return ObjectRef("Pod", name, namespace, uid)


def make_node_ref(name: str) -> ObjectRef:
    """Refer to a node; its name stands for its UID, as in the kubelet's own Events."""
    return ObjectRef("Node", name, uid=name)


def make_pod_group_ref(namespace: str, name: str, uid: str) -> ObjectRef:
    return ObjectRef("PodGroup", name, namespace, uid, "scheduling.k8s.io/v1beta1")


@dataclass(slots=True)
class EventSeries:
    """Events that share one object of the API server.

    Attributes:
        reason: one word, as in "FailedScheduling".
        first_s: when the first came, in seconds of the wall clock.
        last_s: when the newest came.
        name: name of the Event object; empty until it is created.
        queued: a write is on its way, and will carry what comes until then.
    """

    ref: ObjectRef
    type: EventType
    reason: str
    message: str
    first_s: float
    last_s: float
    count: int = 0
    name: str = ""
    queued: bool = False


@dataclass(slots=True)
class _SimilarEvents:
    messages: dict[str, None]
    last_s: float


class EventCorrelator:
    """Finds the series of an Event, and says whether it may be written now.

    Args:
        wall: seconds of the wall clock, which Events carry.
    """

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._series: BoundedDict[Hashable, EventSeries] = BoundedDict(REMEMBERED)
        self._similar: BoundedDict[Hashable, _SimilarEvents] = BoundedDict(REMEMBERED)
        self._writes: KeyedTokenBuckets[ObjectRef] = KeyedTokenBuckets(BURST, REFILL_S, clock, REMEMBERED)

    def add(self, ref: ObjectRef, type_: EventType, reason: str, message: str) -> EventSeries:
        key: Hashable = (ref, type_, reason, message)
        if self._is_one_of_many(ref, type_, reason, message):
            key, message = (ref, type_, reason), COMBINED + message
        now_s = self._wall()
        series = self._series.recall(key, lambda: EventSeries(ref, type_, reason, message, now_s, now_s))
        series.message = message
        series.last_s = now_s
        series.count += 1
        return series

    def may_write(self, ref: ObjectRef) -> bool:
        """Use up one of the writes that an object may get; return False if none is left."""
        return self._writes.take(ref)

    def _is_one_of_many(self, ref: ObjectRef, type_: EventType, reason: str, message: str) -> bool:
        now = self._clock()
        similar = self._similar.recall((ref, type_, reason), lambda: _SimilarEvents({}, now))
        if now - similar.last_s > SIMILAR_S:
            similar.messages.clear()
        similar.last_s = now
        similar.messages[message] = None
        if len(similar.messages) < SIMILAR:
            return False
        del similar.messages[next(iter(similar.messages))]
        return True
