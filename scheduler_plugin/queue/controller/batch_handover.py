"""Handover of admitted batch pods: each goes to the committer with its list of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_plugin.binding.batch_protocol import (
    CommitCall,
    CommitOutcome,
    PodCandidates,
    PodResult,
)
from scheduler_plugin.queue.controller.batch_client import CommitFailedError, CommitterClient
from scheduler_plugin.queue.controller.writer import WriteOutcome, WriteResult
from scheduler_plugin.queue.scheduler.admission import AdmittedPod, AdmittedWorkload
from scheduler_plugin.queue.scheduler.queue import Queue

_WRITTEN = {
    CommitOutcome.BOUND: WriteOutcome.DONE,
    CommitOutcome.REFUSED: WriteOutcome.REFUSED,
    CommitOutcome.UNKNOWN: WriteOutcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Handed:
    """A pod that the committer is to bind."""

    admission: AdmittedWorkload
    member: AdmittedPod


class Handover:
    """Hands admissions to the committer."""

    def __init__(self, queue: Queue, client: CommitterClient | None) -> None:
        self._queue = queue
        self._client = client
        self._candidates: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def record_candidates(self, admitted: AdmittedWorkload) -> None:
        """Remember the candidate nodes of an admission and its cards, before the next one."""
        for member in admitted.members if self._client is not None else ():
            pod = self._queue.queued_pods.get(member.uid)
            if pod is not None and pod.queue_info.is_batch:
                cards = tuple(self._queue.list_planned_cards(member.uid))
                self._candidates[member.uid] = (member.node, *member.others), cards

    def split_admission(self, admitted: AdmittedWorkload) -> tuple[list[Handed], list[AdmittedPod]]:
        """Split an admission into pods that the committer binds, and pods whose gate is removed."""
        handed = [Handed(admitted, member) for member in admitted.members if member.uid in self._candidates]
        return handed, [member for member in admitted.members if member.uid not in self._candidates]

    async def commit_groups(self, groups: Sequence[Sequence[Handed]]) -> list[tuple[Handed, WriteResult]]:
        """Hand groups over, each to be bound whole or not at all; return what became of each pod."""
        handed = {pod.member.uid: pod for group in groups for pod in group}
        call = CommitCall(
            tuple(pods for group in groups if (pods := self._write_group(group))),
            self._queue.config.batch_headroom,
        )
        for uid in handed:
            self._candidates.pop(uid, None)
        results: dict[str, PodResult] = {}
        missing = WriteResult(WriteOutcome.GONE)
        if self._client is not None and call.groups:
            try:
                results = {result.uid: result for result in await self._client.commit(call)}
            except CommitFailedError as error:
                missing = WriteResult(
                    WriteOutcome.UNKNOWN if error.sent else WriteOutcome.REFUSED, str(error)
                )
        answers = []
        for uid, pod in handed.items():
            result = results.get(uid)
            if result is None:
                answers.append((pod, missing))
                continue
            at = replace(pod, member=replace(pod.member, node=result.node or pod.member.node))
            answers.append((at, WriteResult(_WRITTEN[result.outcome], result.why, result.rejected)))
        return answers

    def _write_group(self, group: Sequence[Handed]) -> tuple[PodCandidates, ...]:
        """Build a group for the committer; empty if one of its pods no longer exists."""
        pods = []
        for each in group:
            pod = self._queue.queued_pods.get(each.member.uid)
            if pod is None:
                return ()
            nodes, cards = self._candidates[pod.uid]
            pods.append(PodCandidates(pod.record.namespace, pod.record.name, pod.uid, nodes, cards))
        return tuple(pods)
