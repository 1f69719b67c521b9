"""`gpupack advise --apply`: makes moves, one after the other, and stops at the first that fails.

A move is an eviction: the pod's controller makes another pod, and kube-scheduler places that. The cards that
are to become empty are cordoned first, so that neither the new pod nor anybody else takes them meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from allocator.errors import shown
from allocator.names import QUEUE_NAME
from gpupack.cordon import CordonOutcome, CordonRequest
from gpupack.errors import InputError
from gpupack.rebalance.movable_pods import MovablePod, MovablePods
from gpupack.rebalance.queue_rehearsal import QueueRefusal, QueueRehearsal
from gpupack.whatif.answers import Advice, JsonAnswer, Move, NodeCards
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.objects import waits_in_queue
from gpupack.whatif.what_if import PodCardUsage, describe_node_cards, list_node_cards
from kubeapi.errors import BudgetRefused, KubeApiError, is_gone
from kubeapi.eviction import evict_pod
from kubeapi.objects import Pod
from scheduler_plugin.cache.charges import NodeRecord

if TYPE_CHECKING:
    from gpupack.rebalance.planning import SearchLimits
    from kubeapi.object_api import ObjectApi

CORDON_REASON: Final = "gpupack advise --apply empties it"
POLL_S: Final = 1.0
"""Time between two checks of the pods of a namespace."""
EVICTION_PAUSE_S: Final = 5.0
"""Pause before an eviction that was refused, as by a PodDisruptionBudget, is tried again."""

State = Literal["done", "stopped", "dry-run"]
_Card = tuple[str, int, str]
"""Node, number and UUID of a card; the UUID is empty where nobody says it."""


class AppliedMove(JsonAnswer, frozen=True):
    """A move that was made: the pod, its successor and the node of that, both empty in a dry run."""

    namespace: str
    pod: str
    new_pod: str = ""
    node: str = ""


class AppliedAdvice(JsonAnswer, frozen=True):
    """The result of each move.

    Attributes:
        state: `done`: every move; `stopped`: some or none; `dry-run`: each could have been made.
        text: In a sentence; why it stopped.
        cordoned: Cards that stay cordoned, as NODE/CARD: those that were to be emptied for good. Of moves
            that stopped, cards whose cordon, or its end, the API server refused or did not answer.
    """

    state: State
    made: tuple[AppliedMove, ...]
    left: tuple[Move, ...]
    text: str
    cordoned: tuple[str, ...] = ()


class StoppedError(Exception):
    """No further move is made; the text says why."""


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How moves are made.

    Attributes:
        dry_run: Change nothing; the API server is asked whether each eviction were allowed.
        timeout_s: For each move, beside the pod's grace period.
        keeps_cordon: Leave the emptied cards cordoned once all moves are made.
    """

    dry_run: bool = False
    timeout_s: float = 300.0
    keeps_cordon: bool = False


@dataclass
class MoveApplier:
    """Makes the moves of an advice."""

    api: "ObjectApi"
    read: Callable[[], Awaitable[Cluster]]
    list_pods: Callable[[str], Awaitable[Sequence[Pod]]]
    cordon: "Callable[[str, CordonRequest], Awaitable[tuple[CordonOutcome, ...]]]"
    limits: "SearchLimits"
    options: ApplyOptions
    report: Callable[[str], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    _records: Mapping[str, NodeRecord] = field(default_factory=dict, init=False)
    _ours: set[_Card] = field(default_factory=set, init=False)
    """Cards that this process has cordoned."""
    _unanswered: set[_Card] = field(default_factory=set, init=False)
    """Cards that may be cordoned: the API server did not answer."""

    async def apply(self, cluster: Cluster, advice: Advice) -> AppliedAdvice:
        """Make the moves, in their order."""
        self._records = cluster.state.node_records
        uids = [_uid_of(cluster, move) for move in advice.moves]
        made: list[AppliedMove] = []
        problems: list[str] = []
        try:
            for number, move in enumerate(advice.moves):
                await self._cordon_sources(advice.moves, number)
                self.report(f"{number + 1}/{len(advice.moves)} {move.text}")
                made.append(await self._make(move, uids[number]))
        except (StoppedError, InputError, KubeApiError) as error:
            problems.append(str(error))
        finally:
            finished = len(made) == len(advice.moves)
            if not (finished and self.options.keeps_cordon):
                # Also after Ctrl-C: a card that stays cordoned takes no pods, and nobody would know why.
                problems += await asyncio.shield(self._give_back())
        left = advice.moves[len(made) :]
        if problems:
            text = f"stopped: {'; '.join(problems)}"
            return AppliedAdvice("stopped", tuple(made), left, text, self.list_cordoned())
        if self.options.dry_run:
            allowed = "each eviction is allowed now" if made else "there is no move to make"
            return AppliedAdvice("dry-run", tuple(made), (), f"nothing was changed; {allowed}")
        return AppliedAdvice("done", tuple(made), (), _count(len(made)), self.list_cordoned())

    def list_cordoned(self) -> tuple[str, ...]:
        """Name the cards that this process has cordoned, or may have, and not given back, as NODE/CARD."""
        return tuple(
            f"{node}/{self._records[node].name_card(number, uuid)}"
            for node, number, uuid in sorted(self._ours | self._unanswered)
        )

    async def _cordon_sources(self, moves: Sequence[Move], number: int) -> None:
        """Cordon the cards that moves empty, but those to which a pod is still to go."""
        if self.options.dry_run:
            return
        targets = {card for move in moves[number:] for card in _list_cards(move.target)}
        sources = {card for move in moves for card in _list_cards(move.source)}
        wanted: dict[str, list[_Card]] = {}
        for card in sorted(sources - targets - self._ours):
            wanted.setdefault(card[0], []).append(card)
        for node, cards in wanted.items():
            write = asyncio.ensure_future(self._cordon(node, cards))
            try:
                await asyncio.shield(write)
            except asyncio.CancelledError:
                # The API server may have it already: only its answer says which cards have to be given back.
                await write
                raise

    async def _cordon(self, node: str, cards: Sequence[_Card]) -> None:
        names = tuple(uuid or str(number) for _, number, uuid in cards)
        try:
            outcomes = await self.cordon(node, CordonRequest(True, names, CORDON_REASON))
        except KubeApiError as error:
            if error.maybe_done:
                self._unanswered.update(cards)
            raise
        for outcome in outcomes:
            if outcome.changed and outcome.index is not None:
                self._ours.add((node, outcome.index, outcome.uuid))

    async def _give_back(self) -> list[str]:
        """Uncordon the cards that this process has cordoned; return why some stay so."""
        problems = []
        for node in sorted({node for node, _, _ in self._ours}):
            cards = sorted(card for card in self._ours if card[0] == node)
            try:
                await self.cordon(node, CordonRequest(False, tuple(uuid for _, _, uuid in cards)))
            except (InputError, KubeApiError) as error:
                problems.append(str(error))
            else:
                self._ours.difference_update(cards)
        return problems

    async def _make(self, move: Move, uid: str) -> AppliedMove:
        """Make one move, and wait until the pod's successor has a node.

        Raises:
            StoppedError: the cluster is not as the move wants it, or does something else.
        """
        ends_s = self.clock() + self.options.timeout_s
        movable = self._check(await self.read(), move, uid)
        name = f"{move.namespace}/{move.pod}"
        before = {
            pod.metadata.uid
            for pod in await self.list_pods(move.namespace)
            if pod.metadata.is_controlled_by(movable.owner.uid)
        }
        await self._evict(move, uid, ends_s)
        if self.options.dry_run:
            return AppliedMove(move.namespace, move.pod)
        while True:
            try:
                pods = await self.list_pods(move.namespace)
            except KubeApiError as error:
                if not error.is_passing or self.clock() >= ends_s:
                    raise
                await self.sleep(POLL_S)
                continue
            old = next((pod for pod in pods if pod.metadata.uid == uid), None)
            new = [
                pod
                for pod in pods
                if pod.metadata.is_controlled_by(movable.owner.uid) and pod.metadata.uid not in before
            ]
            bound = next((pod for pod in new if pod.spec.node_name), None)
            if old is None and bound is not None:
                where = f"{bound.full_name} has node {bound.spec.node_name}"
                other = bound.spec.node_name != move.target.node
                self.report(f"  {where}{f' in place of {move.target.node}' if other else ''}")
                return AppliedMove(move.namespace, move.pod, bound.metadata.name, bound.spec.node_name)
            grace_s = 0 if old is None else old.metadata.deletion_grace_period_seconds or 0
            if self.clock() >= ends_s + grace_s:
                raise StoppedError(_late(name, gone=old is None, new=new))
            await self.sleep(POLL_S)

    def _check(self, cluster: Cluster, move: Move, uid: str) -> MovablePod:
        """Check that the pod of a move is still where the plan expects it, and find a node that takes it now.

        Raises:
            StoppedError: it is not there, may not go, or no node takes it.
        """
        name = f"{move.namespace}/{move.pod}"
        usage = PodCardUsage(cluster)
        pods = MovablePods(cluster, usage, self.limits.max_priority)
        movable = pods.find(uid)
        if movable is None:
            raise StoppedError(f"pod {name} is not there any more, or has another controller")
        was = f"it had {describe_node_cards(self._records, move.source)}"
        if not movable.node:
            raise StoppedError(f"pod {name} is not where it was: {was}, and has no node")
        place = list_node_cards(cluster, movable.node, movable.units.keys())
        if place != move.source:
            now = describe_node_cards(cluster.state.node_records, place)
            raise StoppedError(f"pod {name} is not where it was: {was}, and has {now}")
        if reason := pods.explain_protection(movable.pod, movable.record):
            raise StoppedError(f"pod {name} may not go: {reason}")
        if move.target.node not in cluster.state.nodes.rows:
            raise StoppedError(f"node {move.target.node} is not there any more")
        if not movable.make_what_if(cluster).find_rows(leaving={uid}).size:
            raise StoppedError(f"no node takes pod {name} now")
        if cluster.find_queue(movable.pod) and not isinstance(cluster.queue, str):
            found = QueueRehearsal(cluster, cluster.queue).move(movable)
            if isinstance(found, QueueRefusal):
                raise StoppedError(f"pod {name} may not go: {found.reason}")
            if (found.node, found.placement.charge) == (movable.node, movable.units):
                raise StoppedError(f"pod {name} may not go: its queue would start it where it is")
        return movable

    async def _evict(self, move: Move, uid: str, ends_s: float) -> None:
        """Evict a pod; while a PodDisruptionBudget does not allow it or the API server is busy, try again.

        Raises:
            StoppedError: it is not allowed in time, or the pod is another one.
        """
        name = f"{move.namespace}/{move.pod}"
        while True:
            try:
                await evict_pod(self.api, move.namespace, move.pod, uid, dry_run=self.options.dry_run)
            except KubeApiError as error:
                if is_gone(error):
                    raise StoppedError(
                        f"pod {name} is not the one that was to go: {error.message}"
                    ) from error
                is_refused = isinstance(error, BudgetRefused)
                may_repeat = not self.options.dry_run if is_refused else error.can_be_repeated
                if not may_repeat or self.clock() + EVICTION_PAUSE_S >= ends_s:
                    if is_refused:
                        raise StoppedError(f"pod {name} may not go: {error.message}") from error
                    raise
                self.report(f"  waits: {error.message}")
                await self.sleep(EVICTION_PAUSE_S)
            else:
                return


def _list_cards(place: NodeCards) -> Iterator[_Card]:
    return ((place.node, *card) for card in place.list_cards())


def _uid_of(cluster: Cluster, move: Move) -> str:
    return cluster.find_pod(move.namespace, move.pod).metadata.uid


def _late(name: str, *, gone: bool, new: Sequence[Pod]) -> str:
    if not gone:
        return f"pod {name} has not ended in time"
    if not new:
        return f"no controller has made another pod for {name} in time"
    successors = ", ".join(_describe_successor(pod) for pod in new)
    return f"pod {name} has ended, and {successors} in its place has no node in time: gpupack why says more"


def _describe_successor(pod: Pod) -> str:
    if not waits_in_queue(pod):
        return pod.metadata.name
    queue = pod.metadata.get_label(QUEUE_NAME) or ""
    return f"{pod.metadata.name}, which waits in {f'queue {shown(queue)}' if queue else 'its queue'},"


def _count(moves: int) -> str:
    return "1 move was made" if moves == 1 else f"{moves} moves were made"
