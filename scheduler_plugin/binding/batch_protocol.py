"""Messages between the queue and the committer, JSON in both directions. Pure."""

from enum import StrEnum
from typing import Final

import msgspec

from allocator.errors import shown
from scheduler_plugin.errors import ProtocolError

MOST_PODS: Final = 1024

MOST_CANDIDATES: Final = 64


class PodCandidates(msgspec.Struct, frozen=True):
    """A pod and its candidates, the best first.

    Attributes:
        nodes: Names of the nodes where it may be bound, in the order in which to try.
        cards: UUIDs of the cards that the queue planned for it on the first node; preferred where they are
            free.
    """

    namespace: str
    name: str
    uid: str
    nodes: tuple[str, ...]
    cards: tuple[str, ...] = ()


class CommitCall(msgspec.Struct, frozen=True):
    """Body of a call: the pods of each inner tuple are bound together or not at all.

    Attributes:
        headroom: Part of a node's cpu and memory that stays free beside each pod, 0 to 1.
    """

    groups: tuple[tuple[PodCandidates, ...], ...]
    headroom: float = 0.0


class CommitOutcome(StrEnum):
    """The result of committing a pod."""

    BOUND = "bound"
    REFUSED = "refused"
    """No Binding was sent, or the API server refused it: the pod may be handed in again, for any node."""
    UNKNOWN = "unknown"
    """A Binding was sent and may still take effect: the committer sends no other one until it knows."""


class PodResult(msgspec.Struct, frozen=True):
    """The outcome of one pod, with its reason.

    Attributes:
        node: Where it was bound, or where its Binding went.
        rejected: Nodes of its list that kube-scheduler would reject, or on which batch mode pauses; for a
            gang, those of all its pods.
    """

    uid: str
    outcome: CommitOutcome
    node: str = ""
    why: str = ""
    rejected: tuple[str, ...] = ()


class CommitReply(msgspec.Struct, frozen=True):
    """Body of the answer: a result for each pod, in the order of the call."""

    results: tuple[PodResult, ...]


_decode_call = msgspec.json.Decoder(CommitCall).decode
_decode_reply = msgspec.json.Decoder(CommitReply).decode
encode = msgspec.json.encode


def decode_commit_call(body: bytes) -> CommitCall:
    """Read a call.

    Raises:
        ProtocolError: 400 for what is no JSON, 422 for another shape or too much.
    """
    try:
        call = _decode_call(body)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"commit call: {error}; allowed: groups of pods with their nodes") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"commit call is not JSON: {error}", 400) from error
    pods = [pod for group in call.groups for pod in group]
    if len(pods) > MOST_PODS:
        raise ProtocolError(f"commit call with {len(pods)} pods; allowed: {MOST_PODS}")
    for pod in pods:
        if not (pod.namespace and pod.name and pod.uid and 0 < len(pod.nodes) <= MOST_CANDIDATES):
            what = f"pod {shown(pod.namespace)}/{shown(pod.name)} with {len(pod.nodes)} nodes"
            allowed = f"a namespace, a name, a UID and 1 to {MOST_CANDIDATES} nodes"
            raise ProtocolError(f"commit call: {what}; allowed: {allowed}")
    if not 0 <= call.headroom < 1:
        raise ProtocolError(f"commit call: headroom {call.headroom}; allowed: 0 to below 1")
    return call


def decode_commit_reply(body: bytes) -> CommitReply:
    try:
        return _decode_reply(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"commit answer cannot be read: {error}") from error
