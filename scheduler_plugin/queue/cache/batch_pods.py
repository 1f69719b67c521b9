"""Pods that name gpupack-batch, and the fields of their spec that batch mode does not support. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from allocator.names import BATCH_SCHEDULER, QUEUE_GATE, SCHEDULER_NAME
from allocator.texts import list_some
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields

FIELDS_SHOWN: Final = 5

NOT_READ: Final = "its whole spec was not read yet"

NO_COMMITTER: Final = f"nobody binds pods with schedulerName {BATCH_SCHEDULER}; allowed: --committer"


class BatchPods:
    """Remembers of each pod that names `gpupack-batch` which fields keep batch mode from binding it.

    Attributes:
        enabled: Somebody binds them.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._unsupported: dict[str, tuple[str, ...]] = {}

    def set_spec(self, uid: str, spec: Mapping[str, Any]) -> None:
        self._unsupported[uid] = tuple(list_unsupported_fields(spec))

    def forget_pod(self, uid: str) -> None:
        self._unsupported.pop(uid, None)

    def forget_others(self, uids: Sequence[str]) -> None:
        known = frozenset(uids)
        for uid in [uid for uid in self._unsupported if uid not in known]:
            del self._unsupported[uid]

    def explain_refusal(self, uid: str) -> str:
        """Say why batch mode does not bind a pod, and what to change; empty: it may."""
        if not self.enabled:
            return NO_COMMITTER
        fields = self._unsupported.get(uid)
        if fields is None:
            return NOT_READ
        if not fields:
            return ""
        return (
            f"batch mode does not know {list_some(fields, FIELDS_SHOWN)}: create the pod without"
            f" it, or with schedulerName {SCHEDULER_NAME} and the scheduling gate {QUEUE_GATE}"
        )
