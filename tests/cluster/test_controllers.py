"""The examples of docs/howto/gangs.md on a real cluster, with the controllers that make their pods."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest

from scheduler_plugin.cache.pod_groups import COSCHEDULING, list_pod_group_paths
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, binaries, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controllers import running
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster.harness.daemons import REPOSITORY, QueueController
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
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


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
    gated = w.queued("p", 1, "research")
    until(
        lambda: cluster.api.post(PODS, gated, dryRun="All")["spec"].get("schedulingGates") == GATE,
        "the gate in force",
    )
    return cluster


@pytest.fixture(scope="module")
def queue(shared: Cluster, start_queue: StartQueue) -> QueueController:
    return start_queue(shared, "queues: [{name: research}]\n")


@pytest.fixture
def cluster(shared: Cluster, queue: QueueController) -> Iterator[Cluster]:
    until(lambda: not queue.status()["pods"], "an empty queue")
    yield shared
    shared.clear()


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


@contextmanager
def applied(cluster: Cluster, documents: list[dict[str, Any]]) -> Iterator[None]:
    """Create documents in their order, and delete them with all of their pods at the end."""
    with ExitStack() as stack:
        stack.callback(until, lambda: not pods_of(cluster), "their pods gone")
        for document in documents:
            # Some controllers are ready before their webhooks are.
            until(lambda document=document: apply_all(cluster.api, [document]), document["kind"])
            stack.callback(delete, cluster, document)
        yield


def delete(cluster: Cluster, document: dict[str, Any]) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    cluster.api.delete(path_of(cluster.api, document), body=options)
    wait_gone(cluster, path_of(cluster.api, document))


def wait_gone(cluster: Cluster, path: str) -> None:
    folder, _, name = path.rpartition("/")
    until(lambda: name not in cluster.api.names(folder), f"{path} gone")


def pods_of(cluster: Cluster) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = cluster.api.get(PODS)["items"]
    return [pod for pod in pods if not pod["metadata"]["name"].startswith("other")]


def waiting(queue: QueueController) -> list[tuple[str, int, str]]:
    """Gang, size and reason of each pod that waits."""
    return sorted((pod["gang"], pod["gangSize"], pod["reason"]) for pod in queue.status()["pods"])


def gangs_of(documents: list[dict[str, Any]]) -> dict[str, int]:
    name, kind = documents[-1]["metadata"]["name"], documents[0]["kind"]
    pods = sum(count for _, count in templates_of(documents[0]))
    return {name: pods} if kind != "LeaderWorkerSet" else {f"{name}-0": pods // 2, f"{name}-1": pods // 2}


def gpupack(*arguments: str) -> str:
    command = [sys.executable, "-m", "gpupack", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_pods_of_a_controller_wait_together_and_run_together(
    cluster: Cluster, queue: QueueController, kind: str
) -> None:
    require(*CONTROLLERS[kind])
    for number in range(2):
        cluster.run(w.pod(f"other{number}", w.container(gib=80)))
    documents = documents_of(kind)
    gangs = gangs_of(documents)
    with running(cluster, *CONTROLLERS[kind]), applied(cluster, documents):
        expected = sorted((gang, pods, "NoRoom") for gang, pods in gangs.items() for _ in range(pods))
        # On the third card two of them have room. PodGroups are known a minute after their CRD.
        until(lambda: waiting(queue) == expected, f"all pods of {gangs} wait")
        assert [pod["spec"]["schedulingGates"] for pod in pods_of(cluster)] == [GATE] * len(expected)
        workload = f"{kind}/{documents[-1]['metadata']['name']}".lower()
        config = f"--kubeconfig={cluster.control.admin_config}"
        listed = json.loads(gpupack("why", workload, "-n", "default", "-o", "json", config))["pods"]
        assert [line["pod"] for line in listed] == sorted(pod["metadata"]["name"] for pod in pods_of(cluster))
        for number in range(2):
            cluster.delete(f"other{number}")
        # The second group of a LeaderWorkerSet, whichever that is, has no room as a whole.
        behind = [[each for each in expected if each[0] != gang] for gang in gangs]
        until(lambda: waiting(queue) in behind, "one gang admitted")
        until(lambda: count_running(cluster) == next(iter(gangs.values())), "one gang runs")
        assert waiting(queue) in behind


# The example of a RayCluster has no more pods than there are cards.
@pytest.mark.parametrize("kind", sorted(CONTROLLERS.keys() - {"RayCluster"}))
def test_a_gang_of_more_pods_than_cards_is_said_never_to_fit(
    cluster: Cluster, queue: QueueController, kind: str
) -> None:
    require(*CONTROLLERS[kind])
    documents = documents_of(kind)
    for template, _ in templates_of(documents[0]):
        for container in template["spec"]["containers"]:
            container["resources"] = {"limits": {RESOURCE: "80"}}
    gangs = gangs_of(documents)
    with running(cluster, *CONTROLLERS[kind]), applied(cluster, documents):
        expected = sorted((gang, pods, "NeverFits") for gang, pods in gangs.items() for _ in range(pods))
        until(lambda: waiting(queue) == expected, f"no pod of {gangs} ever fits")
        _, table = gpupack("queue", "status", f"--url={queue.url}").split("\n\n")
        rows = [re.split(r" {2,}", line) for line in table.splitlines()[1:]]
        never = "the cluster has room for 3 of them at once even if all other pods ended"
        for _, _, _, gang, _, reason, why in rows:
            assert (gang, reason) in {(f"{name} ({pods})", "NeverFits") for name, pods in gangs.items()}
            assert never in why
        # All pods of a gang have one position.
        assert {row[1] for row in rows} == {str(at) for at in range(1, len(gangs) + 1)}
        assert len(rows) == len(expected)


def count_running(cluster: Cluster) -> int:
    pods = [pod["status"] for pod in pods_of(cluster)]
    return sum(
        status["phase"] == "Running"
        and all("running" in each["state"] for each in status["containerStatuses"])
        for status in pods
    )


def test_a_train_job_with_an_initializer_is_a_gang_of_its_trainers(
    cluster: Cluster, queue: QueueController
) -> None:
    require(*CONTROLLERS["TrainJob"])
    documents = documents_of("TrainJob")
    jobs = documents[0]["spec"]["template"]["spec"]["replicatedJobs"]
    (trainers,) = copy.deepcopy(jobs)
    trainers["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    trainers["template"]["spec"]["template"]["metadata"]["annotations"] = {"gpupack.io/gang-size": "4"}
    (initializer,) = jobs
    initializer["name"] = "dataset-initializer"
    initializer["template"]["metadata"]["labels"] = {ANCESTOR: "dataset-initializer"}
    (container,) = initializer["template"]["spec"]["template"]["spec"]["containers"]
    container |= {"name": "dataset-initializer", "command": ["/bin/true"], "resources": {}}
    jobs.append(trainers)
    overwritten = {
        "targetJobs": [{"name": "node"}],
        "metadata": {"annotations": {"gpupack.io/gang-size": "3"}},
    }
    documents[1]["spec"] |= {"trainer": {"numNodes": 3}, "podTemplateOverrides": [overwritten]}
    with running(cluster, *CONTROLLERS["TrainJob"]), applied(cluster, documents):
        until(lambda: count_running(cluster) == 3, "all trainers run")
        (group,) = cluster.api.get(list_pod_group_paths(COSCHEDULING, "default")[0])["items"]
        assert group["spec"]["minMember"] == 4
        until(lambda: not queue.status()["pods"], "nobody waits")


@pytest.mark.parametrize("kind", ["JobSet", "LeaderWorkerSet"])
def test_a_gang_of_which_a_container_ends_is_made_again_and_runs_whole(
    cluster: Cluster, queue: QueueController, kind: str
) -> None:
    require(*CONTROLLERS[kind])
    (document,) = documents_of(kind)
    if kind == "JobSet":
        document["spec"]["failurePolicy"] = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
        for job in document["spec"]["replicatedJobs"]:
            job["template"]["spec"]["backoffLimit"] = 0
    else:
        document["spec"]["replicas"] = 1
    size = sum(count for _, count in templates_of(document))
    with running(cluster, *CONTROLLERS[kind]), applied(cluster, [document]):
        until(lambda: count_running(cluster) == size, "all run")
        before = {pod["metadata"]["uid"] for pod in pods_of(cluster)}
        (failing, *_) = pods_of(cluster)
        kill(cluster, failing)

        def runs_again() -> bool:
            uids = {pod["metadata"]["uid"] for pod in pods_of(cluster)}
            return not uids & before and count_running(cluster) == size

        until(runs_again, "all run again")
        until(lambda: not queue.status()["pods"], "nobody waits")


def kill(cluster: Cluster, pod: dict[str, Any]) -> None:
    (container,) = pod["status"]["containerStatuses"]
    # The first process: the others end with it, and without one of them it would end as if all were well.
    os.kill(min(cluster.host.pids(container["containerID"].removeprefix("containerd://"))), signal.SIGKILL)
