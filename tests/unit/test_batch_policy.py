"""The component for batch mode says what the code says."""

from pathlib import Path
from typing import Any

import pytest

from allocator.names import BATCH_POOL
from tests.batch_policy import COMPONENT, COMPONENTS, FILES
from tests.cluster.harness.manifests import MANIFESTS, build
from tests.manifest_objects import objects


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_rule_of_the_component_is_the_codes(path: Path) -> None:
    """`python -m tests.batch_policy` writes it again."""
    assert path.read_text() == FILES[path]()


def test_the_queue_runs_beside_the_kube_scheduler_whose_lease_it_follows() -> None:
    found = objects("overlays/queue-batch")
    assert found["Deployment", "gpupack-queue"]["spec"]["replicas"] == 0
    containers = found["Deployment", "gpupack-scheduler"]["spec"]["template"]["spec"]["containers"]
    arguments = {each["name"]: each.get("args", []) for each in containers}
    follow = "--follow-lease=gpupack-system/gpupack-scheduler"
    assert {"--commit", follow} <= set(arguments["gpupack"])
    assert {"--committer=http://127.0.0.1:8910", follow, "--leader-elect"} <= set(arguments["queue"])
    config = found["ConfigMap", "gpupack-scheduler"]["data"]["scheduler.yaml"]
    assert "resourceName: gpupack-scheduler" in config
    gated = [
        name
        for (kind, name), policy in found.items()
        if kind == "MutatingAdmissionPolicy" and "schedulingGates{name" in str(policy)
    ]
    for name in gated:
        conditions = [
            each["name"] for each in found["MutatingAdmissionPolicy", name]["spec"]["matchConditions"]
        ]
        assert "is-left-to-kube-scheduler" in conditions
    assert len(gated) == 2


def test_batch_modes_pods_go_to_its_own_nodes_unless_that_component_is_left_out() -> None:
    def own_nodes(found: Any) -> list[str]:
        policies = [one for (kind, _), one in found.items() if kind == "MutatingAdmissionPolicy"]
        return sorted(
            one["metadata"]["name"] for one in policies if BATCH_POOL.replace("/", "~1") in str(one)
        )

    assert own_nodes(objects("overlays/queue-batch")) == ["gpupack-queue-batch", "gpupack-queue-batch-name"]
    shared = build(MANIFESTS / "base", COMPONENTS / "queue", COMPONENT)
    assert own_nodes({(one["kind"], one["metadata"]["name"]): one for one in shared}) == []
