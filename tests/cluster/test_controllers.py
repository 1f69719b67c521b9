"""The examples of docs/howto/gangs.md on a real cluster, with the controllers that make their pods."""

import copy
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cluster.harness import Cluster, binaries, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controllers import running
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import QueueController
from tests.cluster.harness.images import SHELL
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build, path_of
from tests.unit.test_docs_gangs import EXAMPLES, templates_of

CONTROLLERS: Final = {
    "Job": (),
    "JobSet": (binaries.JOBSET,),
    "PyTorchJob": (binaries.TRAINING_OPERATOR,),
    "TrainJob": (binaries.POD_GROUPS, binaries.JOBSET, binaries.TRAINER),
    "RayCluster": (binaries.KUBERAY,),
    "LeaderWorkerSet": (binaries.LEADER_WORKER_SET,),
}
BY_KIND = {document["kind"]: document for document in EXAMPLES}
PROGRAMS = {"Deployment", "DaemonSet", "Service"}
GATE = [{"name": "gpupack.io/queue"}]


@pytest.fixture(scope="module", autouse=True)
def _asked_for() -> None:
    if not os.environ.get("GPUPACK_CONTROLLERS"):
        pytest.skip("controllers run on request: make test-cluster CONTROLLERS=1")


def require(*controllers: binaries.Published) -> None:
    for controller in controllers:
        if not controller.folder.is_dir():
            pytest.skip(f"{controller.name} is not built: make test-cluster CONTROLLERS=1 builds it")


@pytest.fixture(scope="module")
def shared(make_cluster: Any) -> Cluster:
    """Three cards of 80 GiB, and all that `kubectl apply -k` of the queue's overlay installs but programs."""
    cluster: Cluster = make_cluster(w.cards(*[80 << 10] * 3))
    objects = [each for each in build(MANIFESTS / "overlays/queue") if each["kind"] not in PROGRAMS]
    apply_all(cluster.api, objects)
    gated = labelled("p", 1)
    until(
        lambda: cluster.api.post(PODS, gated, dryRun="All")["spec"].get("schedulingGates") == GATE,
        "the gate in force",
    )
    return cluster


@pytest.fixture(scope="module")
def queue(shared: Cluster) -> Iterator[QueueController]:
    kubeconfig = shared.use_identity("gpupack-queue", shared.token("gpupack-system", "gpupack-queue"))
    queue = QueueController(kubeconfig, shared.home, shared.control.log_dir, *free_ports(1))
    queue.config.write_text("queues: [{name: research}]\n")
    queue.start()
    yield queue
    queue.kill()


@pytest.fixture
def cluster(shared: Cluster, queue: QueueController) -> Cluster:
    until(lambda: not queue.status()["pods"], "an empty queue")
    return shared


def labelled(name: str, gib: int) -> dict[str, Any]:
    pod = w.pod(name, w.container(gib=gib))
    pod["metadata"]["labels"] = {"gpupack.io/queue-name": "research"}
    return pod


def make_runnable(example: dict[str, Any]) -> dict[str, Any]:
    """An example with the image that there is here, which sleeps."""
    document = copy.deepcopy(example)
    document["metadata"]["namespace"] = "default"
    if document["kind"] == "RayCluster":
        document["metadata"]["annotations"] = {"ray.io/overwrite-container-cmd": "true"}
    for template, _ in templates_of(document):
        template["spec"]["terminationGracePeriodSeconds"] = 0
        for container in template["spec"]["containers"]:
            container |= {"image": SHELL, "command": list(w.SLEEP)}
    return document


def documents_of(kind: str) -> list[dict[str, Any]]:
    if kind != "TrainJob":
        return [make_runnable(BY_KIND[kind])]
    runtime = make_runnable(BY_KIND["TrainingRuntime"])
    job = {
        "apiVersion": runtime["apiVersion"],
        "kind": kind,
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}},
    }
    return [runtime, job]


def create(cluster: Cluster, documents: list[dict[str, Any]]) -> None:
    for document in documents:
        # Some controllers are ready before their webhooks are.
        until(lambda document=document: apply_all(cluster.api, [document]), document["kind"])


def delete(cluster: Cluster, documents: list[dict[str, Any]]) -> None:
    for document in reversed(documents):
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        cluster.api.delete(path_of(cluster.api, document), body=options)
        wait_gone(cluster, path_of(cluster.api, document))
    until(lambda: not cluster.api.get(PODS)["items"], "its pods gone", 60)


def wait_gone(cluster: Cluster, path: str) -> None:
    folder, _, name = path.rpartition("/")
    until(
        lambda: name not in {each["metadata"]["name"] for each in cluster.api.get(folder)["items"]},
        f"{path} gone",
        60,
    )


def pods_of(cluster: Cluster) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = cluster.api.get(PODS)["items"]
    return [pod for pod in pods if not pod["metadata"]["name"].startswith("other")]


def waiting(queue: QueueController) -> list[tuple[str, int, str]]:
    """Gang, size and reason of each pod that waits."""
    return sorted((pod["gang"], pod["gangSize"], pod["reason"]) for pod in queue.status()["pods"])


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_pods_of_a_controller_wait_together_and_run_together(
    cluster: Cluster, queue: QueueController, kind: str
) -> None:
    require(*CONTROLLERS[kind])
    for number in range(2):
        cluster.create(w.pod(f"other{number}", w.container(gib=80)))
        cluster.wait_running(f"other{number}")
    documents = documents_of(kind)
    name, size = documents[-1]["metadata"]["name"], sum(count for _, count in templates_of(documents[0]))
    gangs = {name: size} if kind != "LeaderWorkerSet" else {f"{name}-0": size // 2, f"{name}-1": size // 2}
    with running(cluster, *CONTROLLERS[kind]):
        create(cluster, documents)
        expected = sorted((gang, pods, "NoRoom") for gang, pods in gangs.items() for _ in range(pods))
        # On the third card two of them have room.
        until(lambda: waiting(queue) == expected, f"all pods of {gangs} wait", 60)
        assert [pod["spec"]["schedulingGates"] for pod in pods_of(cluster)] == [GATE] * size
        for number in range(2):
            cluster.delete(f"other{number}")
        first = next(iter(gangs.values()))
        until(lambda: count_running(cluster) == first, f"{first} run", 60)
        # The second group of a LeaderWorkerSet has no room as a whole.
        assert waiting(queue) == expected[first:]
        delete(cluster, documents)


def count_running(cluster: Cluster) -> int:
    pods = [pod["status"] for pod in pods_of(cluster)]
    return sum(
        status["phase"] == "Running"
        and all("running" in each["state"] for each in status["containerStatuses"])
        for status in pods
    )


def test_a_job_set_that_starts_again_runs_whole(cluster: Cluster, queue: QueueController) -> None:
    (document,) = documents_of("JobSet")
    document["spec"]["failurePolicy"] = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    for job in document["spec"]["replicatedJobs"]:
        job["template"]["spec"]["backoffLimit"] = 0
    with running(cluster, binaries.JOBSET):
        create(cluster, [document])
        until(lambda: count_running(cluster) == 5, "all run", 60)
        before = {pod["metadata"]["uid"] for pod in pods_of(cluster)}
        (failing, *_) = pods_of(cluster)
        kill(cluster, failing)

        def runs_again() -> bool:
            uids = {pod["metadata"]["uid"] for pod in pods_of(cluster)}
            return not uids & before and count_running(cluster) == 5

        until(runs_again, "all run again", 90)
        assert queue.status()["pods"] == []
        delete(cluster, [document])


def kill(cluster: Cluster, pod: dict[str, Any]) -> None:
    (container,) = pod["status"]["containerStatuses"]
    for pid in cluster.host.pids(container["containerID"].removeprefix("containerd://")):
        os.kill(pid, signal.SIGKILL)
