"""The views of who has and uses what, and whether they agree: containers, node words, annotations."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness import cgroups
from tests.cluster.harness.cluster import PODS, Cluster
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json
from tests.cluster.harness.words import NodeState

MIB_PER_UNIT = 1024


def granted(environment: dict[str, str]) -> dict[str, int]:
    """Units by card UUID that a container's environment promises, its three variables agreeing."""
    pairs = [entry.rpartition(":") for entry in environment["GPUPACK_CARDS"].split(",")]
    units = {uuid: int(count) for uuid, _, count in pairs}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ",".join(units), environment
    (per_card,) = set(units.values())
    assert environment["GPUPACK_MEMORY_MIB"] == str(per_card * MIB_PER_UNIT), environment
    return units


def grants(cluster: Cluster, pod: str, *containers: str) -> dict[str, int]:
    """Units by card over some running containers of a pod (default: `main`)."""
    total: Counter[str] = Counter()
    for container in containers or ("main",):
        total.update(granted(cluster.environment(pod, container)))
    return dict(total)


def promised_now(cluster: Cluster) -> dict[str, int]:
    """Units by card over every running container; right while no pod has ordinary init containers."""
    return dict(sum(promised_to_pods(cluster).values(), Counter()))


def promised_to_pods(cluster: Cluster) -> dict[str, Counter[str]]:
    """Units by card over the running containers of each pod that has cards, by its UID."""
    found: dict[str, Counter[str]] = {}
    for pod in cluster.api.get(PODS)["items"]:
        status = pod["status"]
        for part in status.get("containerStatuses", []) + status.get("initContainerStatuses", []):
            if "running" in part["state"]:
                environment = cluster.host.environment(part["containerID"].partition("://")[2])
                if "GPUPACK_CARDS" in environment:
                    found.setdefault(pod["metadata"]["uid"], Counter()).update(granted(environment))
    return found


def wait_agree(cluster: Cluster) -> NodeState:
    """Return the node's state once its words say exactly what the containers' environments say.

    The words may have a pod's units a while before they say whose they are: then they have both.
    """

    def agree() -> NodeState:
        state, pods = cluster.state(), promised_to_pods(cluster)
        running = dict(sum(pods.values(), Counter()))
        assert state.used_by_uuid == running, f"words {state.used_by_uuid}, containers {running}"
        assert state.holds == pods.keys(), f"words have pods {state.holds}, containers {pods.keys()}"
        return state

    return until(agree, "words and containers agree")


def cgroup_of(cluster: Cluster, pod: str, container: str) -> Path:
    """The container's cgroup, in the hierarchy that the daemon looks at."""
    statuses = cluster.pod(pod)["status"]
    every = [*statuses["containerStatuses"], *statuses.get("initContainerStatuses", [])]
    (identifier,) = [each["containerID"].rpartition("/")[2] for each in every if each["name"] == container]
    return min(cgroups.find(cluster.host.cgroup, identifier))


def memory(cluster: Cluster) -> dict[tuple[str, str], Json]:
    told = json.loads(cluster.daemon.http("/explain"))["memory"]["containers"]
    return {(each["pod"].rpartition("/")[2], each["container"]): each for each in told}


@contextmanager
def words_never_below(cluster: Cluster, floor: list[int]) -> Iterator[None]:
    """Look at the words all the while; whenever they can be read, no card may show less than `floor`."""
    stop, seen = threading.Event(), []

    def look() -> None:
        while not stop.wait(0.02):
            try:
                seen.append(tuple(cluster.state().used))
            except Exception:  # noqa: BLE001 - an API server that is away has no words
                continue

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield
    finally:
        stop.set()
        looker.join()
    assert seen
    below = {used for used in seen if any(have < least for have, least in zip(used, floor, strict=True))}
    assert not below, f"words went below {floor}: {below}"
