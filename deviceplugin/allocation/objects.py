"""The parts of Pod and Node objects that the daemon reads; nothing else is decoded."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from allocator.errors import AllocatorError, RequestError
from allocator.ledger import Pod as LedgerPod
from allocator.names import (
    COMPUTE_RESOURCE,
    NODE_CARDS,
    NODE_CORDON,
    NODE_HOLDS,
    PACKED_PREFIX,
    POD_ASSIGNED,
)
from allocator.packing import NodeWords, read_node
from allocator.quantity import canonical
from allocator.records import (
    CardRecord,
    Holds,
    load_assigned,
    load_cards,
    load_cordon,
    load_holds,
)
from allocator.request import PodRequest, parse_admitted
from kubeapi.objects import SCHEDULED, KubeObject, Pod, WritableNode

# Nearly every state of the Node has the texts of the one before; a thousand pods take some 0.3 ms to read.
_load_holds: Final = lru_cache(maxsize=2)(load_holds)
_load_cards: Final = lru_cache(maxsize=2)(load_cards)

T = TypeVar("T")

_RAN: Final = frozenset({"Running", "Succeeded"})
_FAILED: Final = "Failed"


def _read_annotation(
    item: KubeObject, name: str, load: Callable[[str], T]
) -> tuple[T | None, AllocatorError | None]:
    """Read an annotation, None if it is missing or cannot be read, and say what was wrong with it."""
    text = item.metadata.get_annotation(name)
    try:
        return None if text is None else load(text), None
    except AllocatorError as error:
        return None, error


class PodObject(Pod):
    """A Pod as the daemon reads it, not yet the ledger's."""

    def parse_request(self, resource: str) -> tuple[PodRequest | None, RequestError | None]:
        """Read what the pod asks for, if it does, and what was wrong with it.

        A pod that is bound with annotations that cannot be read was bound without our scheduler, and the
        kubelet admits it all the same.
        """
        init = msgspec.to_builtins(self.spec.init_containers or ())
        mains = msgspec.to_builtins(self.spec.containers or ())
        return parse_admitted(self.metadata.annotations or {}, init, mains, resource)

    def to_ledger_pod(
        self, resource: str, claimed: PodRequest | None = None
    ) -> tuple[LedgerPod | None, AllocatorError | None]:
        """Read the pod for the ledger, None if it does not ask for cards, and what was wrong with it.

        Args:
            claimed: what a pod has by claims that asks for nothing of the resource.
        """
        request, problem = self.parse_request(resource)
        request = request or claimed
        if request is None:
            return None, problem
        assigned, wrong = _read_annotation(self, POD_ASSIGNED, load_assigned)
        pod = LedgerPod(
            uid=self.metadata.uid,
            namespace=self.metadata.namespace,
            name=self.metadata.name,
            request=request,
            assigned=assigned,
            runtime_uid=self.runtime_uid,
            admitted=self.is_admitted,
            has_run=self.status.phase in _RAN,
            terminal=self.has_ended,
        )
        return pod, problem or wrong

    @property
    def is_admitted(self) -> bool:
        """Whether the kubelet has admitted the pod.

        startTime alone does not say so. The kubelet (1.36.3, measured) may write it, and no condition, some
        10 s before it says that it has refused the pod. For an admitted pod it always writes conditions. For
        a failed pod it writes them too, so a failed pod is not known to have been admitted.
        """
        by_kubelet = any(condition.type != SCHEDULED for condition in self.status.conditions or ())
        return self.status.start_time is not None and by_kubelet and self.status.phase != _FAILED

    @property
    def container_names(self) -> dict[str, str]:
        """Names of containers by the runtime's IDs, `containerd://` and the like taken off."""
        told = self.status.list_containers()
        return {each.container_id.rpartition("/")[2]: each.name for each in told if each.container_id}

    @property
    def ended_containers(self) -> frozenset[str]:
        """Names of containers that do not run any more, at least not now."""
        told = self.status.list_containers()
        return frozenset(each.name for each in told if each.state and each.state.terminated is not None)


class NodeObject(WritableNode):
    """The Node of the daemon."""

    @property
    def taints(self) -> list[dict[str, Any]]:
        return self.spec.taints or []

    @property
    def boot_id(self) -> str:
        """Boot ID of the machine that the kubelet runs on; empty if it does not say."""
        return self.status.node_info.boot_id if self.status.node_info is not None else ""

    def read_words(self) -> NodeWords | None:
        """Read the packed words, None if they are missing, corrupt, or unlike in capacity and allocatable."""
        capacity, allocatable = self._packed(self.status.capacity), self._packed(self.status.allocatable)
        if capacity != allocatable:
            return None
        try:
            return read_node(allocatable)
        except AllocatorError:
            return None

    def offers_compute(self, percent: int | None) -> bool:
        """Tell whether the Node offers just so much compute; None: whether it lacks the resource."""
        wanted = None if percent is None else canonical(percent)
        both = (self.status.capacity, self.status.allocatable)
        return all((resources or {}).get(COMPUTE_RESOURCE) == wanted for resources in both)

    def list_published_keys(self) -> frozenset[str]:
        """List every packed resource that the Node has, ours or not, and its compute."""
        found = {**(self.status.capacity or {}), **(self.status.allocatable or {})}
        return frozenset(self._packed(found)) | found.keys() & {COMPUTE_RESOURCE}

    def read_accounted_pods(self) -> Holds | None:
        return self.read_accounted_pods_or_error()[0]

    def read_accounted_pods_or_error(self) -> tuple[Holds | None, AllocatorError | None]:
        """Read the accounted pods, None if they cannot be read, and say what was wrong with them."""
        return _read_annotation(self, NODE_HOLDS, _load_holds)

    def read_cards(self) -> tuple[CardRecord, ...] | None:
        """Read the inventory, None if it cannot be read."""
        return _read_annotation(self, NODE_CARDS, _load_cards)[0]

    def read_cordon(self) -> tuple[frozenset[str], AllocatorError | None]:
        """Read the cards that people want free, and what was wrong with the list."""
        cordoned, problem = _read_annotation(self, NODE_CORDON, load_cordon)
        return cordoned or frozenset(), problem

    @staticmethod
    def _packed(resources: Mapping[str, Any] | None) -> dict[str, Any]:
        return {name: value for name, value in (resources or {}).items() if name.startswith(PACKED_PREFIX)}


decode_node: Final = msgspec.json.Decoder(NodeObject).decode
decode_pod: Final = msgspec.json.Decoder(PodObject).decode
