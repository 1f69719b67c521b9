"""The extender protocol: JSON with Go's field names in, JSON out.

kube-scheduler sends all node names with every call, 100 kB and more. So a list seen before is recognised by
comparing bytes, and what was computed for it (rows, names in JSON) is kept with it, within bounds.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final, TypeVar

import msgspec
import numpy as np

from allocator.errors import shown
from kubeapi.objects import Pod
from scheduler_plugin.cache.arrays import IntArray, RowArray
from scheduler_plugin.cache.node_index import NodeIndex
from scheduler_plugin.errors import ProtocolError
from scheduler_plugin.extender.name_index import CutNames, NameIndex, cut_names

_MARK: Final = b'"NodeNames":["'
_END: Final = b'"]}'
_KEPT_LISTS: Final = 4
_KEPT_BYTES: Final = 32 * 2**20
"""Bound for all lists together: four of 15 000 nodes take half of it."""
_COST_OF_A_NAME: Final = 100  # bytes kept besides its text: where it begins and ends, its row, its JSON
_COPIES: Final = 3  # of a list's text: to recognise it, to cut it, and padded to look its names up
_SHORT_LIST: Final = 2**15
"""Bytes of a list of names up to which Python objects are quicker than arrays."""
_SHOWN: Final = 256

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)

T = TypeVar("T")


class _Args(msgspec.Struct):
    pod: Pod | None = msgspec.field(name="Pod", default=None)
    nodes: "_ArgsNodeList | None" = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class _ArgsNodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _NameOnly(msgspec.Struct):
    name: str = ""


class _NodeName(msgspec.Struct):
    metadata: _NameOnly = msgspec.field(default_factory=_NameOnly)


class BindArgs(msgspec.Struct):
    """Body of the bind verb."""

    pod_name: str = msgspec.field(name="PodName", default="")
    pod_namespace: str = msgspec.field(name="PodNamespace", default="")
    pod_uid: str = msgspec.field(name="PodUID", default="")
    node: str = msgspec.field(name="Node", default="")


class MetaPod(msgspec.Struct):
    """A victim by UID."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct):
    """Victims on one node, by UID."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct):
    """Victims on one node, whole pods."""

    pods: list[Pod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptArgs(msgspec.Struct):
    """Body of the preempt verb; one of the two maps is filled."""

    pod: Pod | None = msgspec.field(name="Pod", default=None)
    victims: dict[str, Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta_victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)

    @property
    def proposed(self) -> dict[str, MetaVictims]:
        if self.meta_victims is not None:
            return self.meta_victims
        return {
            node: MetaVictims(
                [MetaPod(pod.metadata.uid) for pod in victims.pods or ()], victims.pdb_violations
            )
            for node, victims in (self.victims or {}).items()
        }


_args_decoder = msgspec.json.Decoder(_Args)
_names_decoder = msgspec.json.Decoder(list[str])
_node_name_decoder = msgspec.json.Decoder(_NodeName)
_bind_decoder = msgspec.json.Decoder(BindArgs)
_preempt_decoder = msgspec.json.Decoder(_PreemptArgs)


class Candidates:
    """The nodes that a call names, in its order; their rows are those of now."""

    def __init__(
        self,
        index: NameIndex,
        names: Sequence[str] = (),
        *,
        items: Sequence[bytes] | None = None,
        cut: CutNames | None = None,
    ) -> None:
        self.items = items
        self._names = names
        self._cut = cut
        self._index = index
        self._rows: RowArray | None = None
        self._quoted: list[bytes] | None = None
        self._epoch = -1

    @property
    def cost(self) -> int:
        """Approximate bytes needed to remember the nodes; at least those of their names."""
        if self._cut is None:
            return _COST_OF_A_NAME * len(self._names)
        return _COPIES * len(self._cut.text) + _COST_OF_A_NAME * len(self._cut.starts)

    @property
    def few(self) -> Sequence[str]:
        """The names if they are few enough to look up one by one, else empty."""
        return self._names

    @property
    def rows(self) -> RowArray:
        """Rows of the nodes: intp[m], -1 for nodes without one."""
        nodes = self._index.nodes
        if self._rows is None or self._epoch != nodes.epoch:
            if self._cut is not None:
                self._rows = self._index.rows(self._cut)
            else:
                known = map(nodes.rows.get, self._names, repeat(-1))
                self._rows = np.fromiter(known, np.intp, len(self._names))
            self._quoted = None
            self._epoch = nodes.epoch
        return self._rows

    def find_known_rows(self) -> tuple[RowArray, RowArray]:
        """Find the rows of those that have one, and their positions among all."""
        rows = self.rows
        at = np.flatnonzero(rows >= 0)
        return (rows, at) if len(at) == len(rows) else (rows[at], at)

    @property
    def quoted(self) -> list[bytes]:
        rows = self.rows
        if self._quoted is None:
            known = self._index.nodes.quoted
            self._quoted = [known[row] for row in rows.tolist()]
            for position in np.flatnonzero(rows < 0).tolist():
                self._quoted[position] = self._quote_unknown(position)
        return self._quoted

    def quote_chosen(self, chosen: Sequence[int]) -> list[bytes]:
        rows = self.rows[np.fromiter(chosen, np.intp, len(chosen))].tolist()
        return [
            self._index.nodes.quoted[row] if row >= 0 else self._quote_unknown(position)
            for row, position in zip(rows, chosen, strict=True)
        ]

    def _quote_unknown(self, position: int) -> bytes:
        """Write the name of a node without a row as JSON text."""
        return self._cut.quoted(position) if self._cut else msgspec.json.encode(self._names[position])


class CallDecoder:
    """Decodes filter and prioritize calls; it knows the newest lists of names by the end of their calls."""

    def __init__(self, nodes: NodeIndex) -> None:
        self._index = NameIndex(nodes)
        self.kept: list[tuple[bytes, Candidates]] = []

    def decode(self, body: bytes) -> tuple[Pod, Candidates]:
        """Read a filter or prioritize call.

        Raises:
            ProtocolError: status 400 for what is no JSON, 422 for JSON of another shape.
        """
        for at, (tail, candidates) in enumerate(self.kept):
            if body.endswith(tail):
                pod = _pod_before(body, len(body) - len(tail))
                if pod is not None:
                    if at:
                        self.kept.insert(0, self.kept.pop(at))
                    return pod, candidates
        mark = body.rfind(_MARK)
        pod = _pod_before(body, mark) if mark > 0 else None
        if pod is not None and body.endswith(_END):
            raw = body[mark + len(_MARK) - 2 : -1]
            if len(raw) <= _SHORT_LIST:
                names = _decode_if_readable(_names_decoder, raw)
                if names is not None:
                    return pod, Candidates(self._index, names)
            elif (cut := cut_names(raw)) is not None:
                candidates = Candidates(self._index, cut=cut)
                self._keep(body[mark:], candidates)
                return pod, candidates
        return _whole(self._index, body)

    def _keep(self, tail: bytes, candidates: Candidates) -> None:
        if candidates.cost > _KEPT_BYTES:
            return
        self.kept.insert(0, (tail, candidates))
        room = _KEPT_BYTES
        for at, (_, each) in enumerate(self.kept):
            room -= each.cost
            if at == _KEPT_LISTS or room < 0:
                del self.kept[at:]
                return


def _pod_before(body: bytes, end: int) -> Pod | None:
    """Read a call up to its last field NodeNames; None if it has another form.

    If the part before it plus `}` is a JSON object, and the rest is a list and `}`, then the whole is that
    object with the list added.
    """
    head = body[:end].rstrip()
    if not head.endswith(b","):
        return None
    args = _decode_if_readable(_args_decoder, head[:-1] + b"}")
    return None if args is None or (args.nodes is not None and args.nodes.items is not None) else args.pod


def _decode_if_readable(decoder: msgspec.json.Decoder[T], raw: bytes) -> T | None:
    try:
        return decoder.decode(raw)
    except _UNREADABLE:
        return None


def _whole(index: NameIndex, body: bytes) -> tuple[Pod, Candidates]:
    args = _decode(_args_decoder, body, "ExtenderArgs")
    if args.pod is None:
        raise ProtocolError("ExtenderArgs without Pod; allowed: an object with Pod and NodeNames or Nodes")
    if args.node_names is not None:
        return args.pod, Candidates(index, args.node_names)
    if args.nodes is None:
        raise ProtocolError(
            "ExtenderArgs without NodeNames and Nodes; allowed: an object with Pod and one of them"
        )
    # They are answered as they came, and what is not read of them is not looked at either.
    _check_text(body)
    items = [bytes(item) for item in args.nodes.items or ()]
    named = [_decode(_node_name_decoder, item, "Nodes.items").metadata.name for item in items]
    return args.pod, Candidates(index, named, items=items)


def _check_text(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"ExtenderArgs is not UTF-8: {error}; allowed: one JSON object", 400) from error


def decode_bind(body: bytes) -> BindArgs:
    """Read a bind call.

    Raises:
        ProtocolError: 400 for what is no JSON, 422 for another shape or an empty field.
    """
    args = _decode(_bind_decoder, body, "ExtenderBindingArgs")
    missing = [
        field
        for field, value in (
            ("PodName", args.pod_name),
            ("PodNamespace", args.pod_namespace),
            ("PodUID", args.pod_uid),
            ("Node", args.node),
        )
        if not value
    ]
    if missing:
        raise ProtocolError(f"ExtenderBindingArgs without {', '.join(missing)}; allowed: all four filled")
    return args


def decode_preempt(body: bytes) -> tuple[Pod, dict[str, MetaVictims]]:
    """Read a preempt call: the pod, and kube-scheduler's victims by node, whichever form they came in.

    Raises:
        ProtocolError: 400 for what is no JSON, 422 for another shape.
    """
    args = _decode(_preempt_decoder, body, "ExtenderPreemptionArgs")
    if args.pod is None:
        raise ProtocolError("ExtenderPreemptionArgs without Pod; allowed: an object with Pod and victims")
    return args.pod, args.proposed


def _decode(decoder: msgspec.json.Decoder[T], body: bytes, what: str) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{what} of another shape: {str(error)[:_SHOWN]}") from error
    except _UNREADABLE as error:
        seen = shown(body[:_SHOWN])
        raise ProtocolError(
            f"{what} is not JSON but {seen}: {str(error)[:_SHOWN]}; allowed: one JSON object", 400
        ) from error


def encode_passed(candidates: Candidates, chosen: Sequence[int]) -> bytes:
    """Write filter's answer when the nodes at these positions pass, best first; failure maps stay empty."""
    if candidates.items is not None:
        items = b",".join([candidates.items[i] for i in chosen])
        return (
            b'{"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null,"FailedNodes":{},'
            b'"FailedAndUnresolvableNodes":{},"Error":""}' % items
        )
    names = b",".join(candidates.quote_chosen(chosen))
    return (
        b'{"Nodes":null,"NodeNames":[%b],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}' % names
    )


def encode_refused(candidates: Candidates, groups: Sequence[tuple[str, bool, Sequence[int]]]) -> bytes:
    """Write filter's answer when no node passes.

    Args:
        groups: Reason, whether evicting pods could help, positions among the candidates.
    """
    quoted = candidates.quoted
    maps: dict[bool, list[bytes]] = {True: [], False: []}
    for text, evictable, positions in groups:
        if len(positions):
            ending = b":" + msgspec.json.encode(text)
            names = quoted if len(positions) == len(quoted) else [quoted[i] for i in positions]
            maps[evictable].append((ending + b",").join(names) + ending)
    none = b'"Nodes":null,"NodeNames":[]'
    if candidates.items is not None:
        none = b'"Nodes":{"metadata":{},"items":[]},"NodeNames":null'
    return b'{%b,"FailedNodes":{%b},"FailedAndUnresolvableNodes":{%b},"Error":""}' % (
        none,
        b",".join(maps[True]),
        b",".join(maps[False]),
    )


def encode_filter_error(message: str) -> bytes:
    """Write filter's answer for an error: the scheduling attempt fails and is repeated."""
    return (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":%b}'
        % msgspec.json.encode(message)
    )


def encode_scores(candidates: Candidates, scores: IntArray) -> bytes:
    """Write prioritize's answer, nodes with a score above 0 first; the order says nothing."""
    rest = candidates.quoted.copy()
    entries = [
        b'{"Host":%b,"Score":%d}' % (rest.pop(i), scores[i]) for i in np.flatnonzero(scores)[::-1].tolist()
    ]
    if rest:
        entries.append(b'{"Host":' + b',"Score":0},{"Host":'.join(rest) + b',"Score":0}')
    return b"[" + b",".join(entries) + b"]"


def encode_bind(error: str) -> bytes:
    """Write bind's answer; empty text means bound."""
    return b'{"Error":%b}' % msgspec.json.encode(error)


def encode_preempt(victims: Mapping[str, MetaVictims]) -> bytes:
    return b'{"NodeNameToMetaVictims":%b}' % msgspec.json.encode(victims)
