"""Finds which autoscaler adds nodes: Karpenter where the API server serves its NodePools.

Discovery is open to every account, so it needs no right of its own. Cluster Autoscaler has no kind
that is always there, so it is taken for the one that runs where there are no NodePools.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from gpupack.autoscale.settings import AUTO, CLUSTER_AUTOSCALER, KARPENTER
from kubeapi.errors import UNREADABLE, KubeApiError, Malformed, NotFound

GROUP: Final = "karpenter.sh"
KIND: Final = "nodepools"
NODE_POOLS: Final = f"{KIND}.{GROUP}"
LOOK_AGAIN_S: Final = 60.0
"""An autoscaler may be installed while this process runs."""

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer", bound=msgspec.Struct)


class DiscoveryApi(Protocol):
    """Requests to the API server that finding the autoscaler needs; `kubeapi.client.KubeClient` has them."""

    async def get(self, path: str, *, timeout_s: float = ...) -> bytes: ...


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


class _Kind(msgspec.Struct):
    name: str


class _Kinds(msgspec.Struct):
    resources: list[_Kind]


async def serves_node_pools(api: DiscoveryApi, timeout_s: float) -> bool:
    """Ask whether an API server serves NodePools of Karpenter in any version.

    Raises:
        KubeApiError: it did not say.
    """
    path = f"/apis/{GROUP}"
    try:
        group = await _read(api, path, _Group, timeout_s)
        for each in group.versions:
            kinds = await _read(api, f"{path}/{each.version}", _Kinds, timeout_s)
            if any(kind.name == KIND for kind in kinds.resources):
                return True
    except NotFound:
        pass
    return False


async def _read(api: DiscoveryApi, path: str, shape: type[Answer], timeout_s: float) -> Answer:
    try:
        return msgspec.json.decode(await api.get(path, timeout_s=timeout_s), type=shape)
    except UNREADABLE as error:
        raise Malformed(f"GET {path}: {error}") from error


class AutoscalerDetector:
    """Knows which autoscaler adds nodes: the named one, or the one that the API server shows.

    Args:
        named: What `--autoscaler` says.
        timeout_s: Longest time of a request.
        clock: Monotonic seconds.

    Attributes:
        name: Name of the autoscaler, empty while it is not known.
        trouble: Why it is not known, empty where it is.
    """

    def __init__(
        self, api: DiscoveryApi, named: str, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._clock = clock
        self._look_at = float("-inf") if named == AUTO else float("inf")
        self.name = "" if named == AUTO else named
        self.trouble = ""

    async def refresh(self) -> None:
        if self._clock() < self._look_at:
            return
        try:
            found = await serves_node_pools(self._api, self._timeout_s)
        except KubeApiError as error:
            # What was found before is still the best guess.
            if not self.name:
                self.trouble = f"{error}; so the autoscaler is not known: name it by --autoscaler"
            return
        self._look_at = self._clock() + LOOK_AGAIN_S
        self.trouble = ""
        self._note(KARPENTER if found else CLUSTER_AUTOSCALER)

    def _note(self, name: str) -> None:
        if name == self.name:
            return
        self.name = name
        serves = "serves" if name == KARPENTER else "does not serve"
        why = f"the API server {serves} {NODE_POOLS}"
        log.info("autoscaler found", autoscaler=name, why=why, otherwise="--autoscaler names another one")
