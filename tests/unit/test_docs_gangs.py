"""Examples of docs/howto/gangs.md: the pods that their controllers make are one gang of the size given.

Labels and owners are as the controllers of Kubernetes, JobSet, the Training Operator, Trainer, KubeRay and
LeaderWorkerSet write them.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpupack.diagnose.listing import parse_workload
from kubeapi.objects import Pod
from scheduler_plugin.queue.cache.pods import read_gang
from scheduler_plugin.queue.controller.status import explain_waiting
from tests.queue_world import QueueWorld
from tests.unit.test_queue_pod_groups import NEW, FeedWorld, group
from tests.yaml_text import read_yaml

PAGE = Path(__file__).parents[2] / "docs/howto/gangs.md"
EXAMPLES = [read_yaml(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def templates_of(document: Any) -> list[tuple[Any, int]]:
    """Pod templates of a document, each with the number of pods that its controller makes of it."""
    spec = document["spec"]
    match document["kind"]:
        case "Job":
            assert spec["completions"] == spec["parallelism"]
            return [(spec["template"], spec["parallelism"])]
        case "JobSet":
            jobs = [(each["template"]["spec"], each["replicas"]) for each in spec["replicatedJobs"]]
            assert all(job["completions"] == job["parallelism"] for job, _ in jobs)
            return [(job["template"], replicas * job["parallelism"]) for job, replicas in jobs]
        case "PyTorchJob":
            return [(each["template"], each["replicas"]) for each in spec["pytorchReplicaSpecs"].values()]
        case "RayCluster":
            workers = [
                (each["template"], each["replicas"] * each.get("numOfHosts", 1))
                for each in spec["workerGroupSpecs"]
            ]
            return [(spec["headGroupSpec"]["template"], 1), *workers]
        case "LeaderWorkerSet":
            group, replicas = spec["leaderWorkerTemplate"], spec["replicas"]
            leader = (group["leaderTemplate"], replicas)
            return [leader, (group["workerTemplate"], replicas * (group["size"] - 1))]
        case "TrainingRuntime":
            (job,) = spec["template"]["spec"]["replicatedJobs"]
            return [(job["template"]["spec"]["template"], spec["mlPolicy"]["numNodes"])]
        case kind:
            raise AssertionError(f"nobody has said what pods a {kind} has")


def test_every_kind_has_an_example():
    kinds = {document["kind"] for document in EXAMPLES}
    assert kinds == {"Job", "JobSet", "PyTorchJob", "TrainingRuntime", "RayCluster", "LeaderWorkerSet"}


ONE_GANG = [each for each in EXAMPLES if each["kind"] not in {"TrainingRuntime", "LeaderWorkerSet"}]


@pytest.mark.parametrize("document", ONE_GANG, ids=lambda document: document["kind"])
def test_all_pods_of_an_example_are_one_gang_in_one_queue(document):
    templates = templates_of(document)
    pods = sum(number for _, number in templates)
    gangs = {read_gang(msgspec.convert({"metadata": template["metadata"]}, Pod)) for template, _ in templates}
    assert gangs == {(document["metadata"]["name"], pods, "")}
    assert {template["metadata"]["labels"]["gpupack.io/queue-name"] for template, _ in templates} == {
        "research"
    }


MADE = {
    "Job": ("Job", {"batch.kubernetes.io/job-name": "train", "job-name": "train"}),
    "JobSet": (
        "Job",
        {"jobset.sigs.k8s.io/jobset-name": "train", "batch.kubernetes.io/job-name": "train-worker-0"},
    ),
    "PyTorchJob": ("PyTorchJob", {"training.kubeflow.org/job-name": "train"}),
    "TrainingRuntime": (
        "Job",
        {"jobset.sigs.k8s.io/jobset-name": "train", "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
    ),
    "RayCluster": ("RayCluster", {"ray.io/cluster": "train", "ray.io/is-ray-node": "yes"}),
    "LeaderWorkerSet": ("StatefulSet", {"leaderworkerset.sigs.k8s.io/name": "serve"}),
}
"""By kind: what owns the pods, and labels that the controller adds."""


def make_pods(document: Any, world: QueueWorld) -> list[str]:
    """Make the pods of a document as its controller does; their names."""
    owner, labels = MADE[document["kind"]]
    names = []
    for template, count in templates_of(document):
        metadata = template["metadata"]
        limits = template["spec"]["containers"][0]["resources"]["limits"]
        for at in range(count):
            names.append(f"train-{len(names)}")
            if document["kind"] == "LeaderWorkerSet":
                group = {"leaderworkerset.sigs.k8s.io/group-index": str(at % document["spec"]["replicas"])}
                labels = {**labels, **group}
            world.pod(
                names[-1],
                limits["gpupack.io/gpu-memory-gib"],
                queue=metadata["labels"]["gpupack.io/queue-name"],
                annotations=metadata.get("annotations"),
                metadata={
                    "labels": {**metadata["labels"], **labels},
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": owner, "name": "train", "uid": "u", "controller": True}
                    ],
                },
            )
    return names


@pytest.mark.parametrize("document", ONE_GANG, ids=lambda document: document["kind"])
def test_pods_as_the_controller_makes_them_go_together(document: Any) -> None:
    world = QueueWorld("queues: [{name: research}]", n1=(80, 80, 80))
    names = make_pods(document, world)
    world.delete(f"uid-{names[-1]}")
    assert world.admitted() == []  # one is missing
    world = QueueWorld("queues: [{name: research}]", n1=(80, 80, 80))
    assert make_pods(document, world) == names
    assert sorted(world.admitted()) == names


def test_a_head_that_asks_for_no_card_is_not_counted() -> None:
    world = QueueWorld("queues: [{name: research}]", n1=(80, 80, 80))
    gang = {"gang": "train", "size": 2, "queue": "research"}
    world.pod("head", containers=[{"name": "ray-head"}], gates=(), **gang)
    world.pod("worker-0", 40, **gang)
    assert world.admitted() == []
    world.pod("worker-1", 40, **gang)
    assert sorted(world.admitted()) == ["worker-0", "worker-1"]


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    (document,) = [each for each in EXAMPLES if each["kind"] == "LeaderWorkerSet"]
    world = QueueWorld("queues: [{name: research}]", n1=(80, 80, 80))
    names = make_pods(document, world)
    gangs = [pod.gang for pod in explain_waiting(world.queue, world.now)]
    assert sorted(gangs) == ["serve-0"] * 4 + ["serve-1"] * 4
    # There is room for six pods: one group runs whole, of the other none.
    admitted = world.admitted()
    assert sorted(admitted) == names[::2]
    for name in admitted:
        world.delete(f"uid-{name}")
    world.delete(f"uid-{names[-1]}")
    assert world.admitted() == []  # one is missing


def test_pods_of_a_train_job_are_the_gang_of_its_pod_group() -> None:
    (document,) = [each for each in EXAMPLES if each["kind"] == "TrainingRuntime"]
    assert document["spec"]["podGroupPolicy"] == {"coscheduling": {}}
    # Trainer writes the label into the template, and a PodGroup of the TrainJob's name.
    (template, count), *_ = templates_of(document)
    template["metadata"]["labels"][NEW] = "train"
    world = FeedWorld("queues: [{name: research}]")
    world.node("n1", (80, 80, 80))
    names = make_pods(document, world)
    assert world.admitted() == []
    world.groups.event("ADDED", group("train", count), "1")
    assert sorted(world.admitted()) == names


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: document["kind"])
def test_why_finds_the_pods_of_each_kind(document: Any) -> None:
    kind = document["kind"].replace("TrainingRuntime", "TrainJob")
    world = QueueWorld("queues: [{name: research}]")
    names = make_pods(document, world)
    workload = parse_workload(f"{kind.lower()}/{'serve' if kind == 'LeaderWorkerSet' else 'train'}")
    assert workload is not None
    pods = [msgspec.convert(raw, Pod) for raw in world.objects.values()]
    assert [pod.metadata.name for pod in pods if workload.owns(pod)] == names
