"""Examples of docs/howto/gangs.md: the pods that their controllers make are one gang of the size given."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_plugin.queue.cache.pods import read_gang

PAGE = Path(__file__).parents[2] / "docs/howto/gangs.md"
EXAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


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
            workers = [(each["template"], each["replicas"]) for each in spec["workerGroupSpecs"]]
            return [(spec["headGroupSpec"]["template"], 1), *workers]
        case "LeaderWorkerSet":
            group, replicas = spec["leaderWorkerTemplate"], spec["replicas"]
            leader = (group["leaderTemplate"], replicas)
            return [leader, (group["workerTemplate"], replicas * (group["size"] - 1))]
        case kind:
            raise AssertionError(f"nobody has said what pods a {kind} has")


def test_every_kind_has_an_example():
    kinds = {document["kind"] for document in EXAMPLES}
    assert kinds == {"Job", "JobSet", "PyTorchJob", "RayCluster", "LeaderWorkerSet"}


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: document["kind"])
def test_all_pods_of_an_example_are_one_gang_in_one_queue(document):
    templates = templates_of(document)
    pods = sum(number for _, number in templates)
    gangs = {read_gang(template["metadata"]["annotations"]) for template, _ in templates}
    assert gangs == {(document["metadata"]["name"], pods, "")}
    assert {template["metadata"]["labels"]["gpupack.io/queue-name"] for template, _ in templates} == {
        "research"
    }
