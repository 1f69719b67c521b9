"""The component for batch mode says what the code says."""

import pytest

from tests.batch_policy import COMPONENT, FILES
from tests.manifest_objects import objects


@pytest.mark.parametrize("name", FILES)
def test_the_rule_of_the_component_is_the_codes(name: str) -> None:
    """`python -m tests.batch_policy` writes it again."""
    assert (COMPONENT / name).read_text() == FILES[name]()


def test_the_queue_runs_beside_the_kube_scheduler_whose_lease_it_follows() -> None:
    found = objects("overlays/queue-batch")
    assert ("Deployment", "gpupack-queue") not in found
    containers = found["Deployment", "gpupack-scheduler"]["spec"]["template"]["spec"]["containers"]
    arguments = {each["name"]: each.get("args", []) for each in containers}
    follow = "--follow-lease=gpupack-system/gpupack-scheduler"
    assert {"--commit", follow} <= set(arguments["gpupack"])
    assert {"--committer=http://127.0.0.1:8910", follow} <= set(arguments["queue"])
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
