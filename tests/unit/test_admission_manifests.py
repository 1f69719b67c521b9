"""The policies about pods say what the code says; that they do it, tests/cluster/test_admission.py shows."""

import re

import msgspec
import pytest

from allocator import names
from allocator.policies import CARD_POLICIES
from allocator.registry import NAME, is_name
from allocator.request import MAX_POD_CARDS, MAX_UNITS
from allocator.selector import MAX_PATTERNS
from kubeapi.objects import Pod
from scheduler_plugin.cache.gang_names import MAX_GANG
from scheduler_plugin.queue.cache.pods import MAX_DATA, read_queue_info
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.cluster_builders import pod_object
from tests.manifest_objects import BUILDS, objects, text_of


def test_the_annotation_policy_knows_every_annotation_of_a_pod() -> None:
    policy = objects("base")["ValidatingAdmissionPolicy", "gpupack-pod-annotations"]
    expressions = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    known = [re.findall(r"'([^']+)'", expressions[name]) for name in ("forUsers", "byGpupack")]
    ours = {value for key, value in vars(names).items() if key.startswith("POD_")}
    assert known[1] == sorted(
        {names.POD_ALLOCATION, names.POD_ASSIGNED, names.POD_PLANNED, names.POD_REQUEUED}
    )
    assert known[0] == sorted(ours - set(known[1]))
    assert str(MAX_POD_CARDS) in expressions["mistakes"]
    assert str(MAX_PATTERNS) in expressions["mistakes"]
    assert str(MAX_GANG) in expressions["mistakes"]
    assert MAX_DATA == MAX_PATTERNS


@pytest.mark.parametrize(("count", "fault"), [(64, ""), (65, "has 65 names; allowed: 64")])
def test_a_name_of_data_that_is_written_twice_is_counted_twice_as_the_policy_does(
    count: int, fault: str
) -> None:
    pod = pod_object("p", annotations={names.POD_DATA: ",".join("a" * count)})
    found = read_queue_info(msgspec.convert(pod, Pod))
    assert found.fault == (fault and f"annotation {names.POD_DATA} {fault}")
    assert found.data == {"a"}


def test_whatever_gpupack_writes_on_pods_nobody_else_changes() -> None:
    """Half of it by the policies of the base, half by those of the queue."""
    policies = (("base", "gpupack-pod-records"), ("components/queue", "gpupack-queue-pods"))
    kept = set[str]()
    for build, name in policies:
        spec = objects(build)["ValidatingAdmissionPolicy", name]["spec"]
        (asked,) = (one["expression"] for one in spec["matchConditions"] if "changes" in one["name"])
        (changed,) = (one["expression"] for one in spec["variables"] if one["name"] == "changed")
        listed = set(re.findall(r"'([^']+)'", changed))
        assert listed <= set(re.findall(r"'([^']+)'", asked))
        kept |= listed
    policy = objects("base")["ValidatingAdmissionPolicy", "gpupack-pod-annotations"]
    (ours,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "byGpupack")
    assert kept == set(re.findall(r"'([^']+)'", ours))


def test_the_request_policy_bounds_amounts_as_the_code_does() -> None:
    policy = text_of(objects("base")["ValidatingAdmissionPolicy", "gpupack-pod-request"])
    assert f"isGreaterThan(quantity('{MAX_UNITS}'))" in policy
    assert f"from 1 to {MAX_UNITS}" in policy
    assert f"> {names.MAX_UNIT_MIB}" in policy
    # A resource of another kind must be made known to this policy.
    others = {value for key, value in vars(names).items() if re.fullmatch("[A-Z].*_RESOURCE", key)}
    assert others == {names.PERCENT_RESOURCE, names.COMPUTE_RESOURCE}
    assert all(f"name == '{other}'" in policy for other in others)


def listed(name: str, key: str) -> list[str]:
    """A comma list of the ConfigMap that the policies about pods read."""
    return str(objects(name)["ConfigMap", "gpupack-admission"]["data"][key]).split(", ")


def test_the_schedulers_that_call_the_extender_are_those_of_the_code() -> None:
    assert listed("base", "schedulerNames") == [names.SCHEDULER_NAME]
    assert listed("overlays/join-existing-scheduler", "schedulerNames") == ["default-scheduler"]


def test_a_policy_is_not_listed_and_any_name_is_allowed() -> None:
    """Who installs a policy, or writes one here, need not tell the API server."""
    assert (listed("base", "nodePolicies"), listed("base", "cardPolicies")) == ([""], [""])
    policy = objects("base")["ValidatingAdmissionPolicy", "gpupack-pod-annotations"]
    (mistakes,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "mistakes")
    assert f"value.matches('^{NAME.pattern}$')" in mistakes
    assert all(map(is_name, (*NODE_POLICIES.names(), *CARD_POLICIES.names())))


def test_the_ways_to_have_the_schedulers_name_set() -> None:
    group = "admissionregistration.k8s.io"
    ours = ("MutatingAdmissionPolicy", "gpupack-scheduler-name")
    found = {name: objects(name) for name in BUILDS}
    policy = text_of(found["base"][ours])
    assert f"startsWith('{names.GPU_PREFIX}')" in policy
    versions = {name: one[ours]["apiVersion"] for name, one in found.items() if ours in one}
    without = {"overlays/scheduler-name-by-hand", "overlays/join-existing-scheduler"}
    assert set(versions) == set(BUILDS) - without
    assert {name for name, version in versions.items() if version != f"{group}/v1"} == {
        "overlays/scheduler-name-v1beta1"
    }
    for name, version in versions.items():
        assert found[name]["MutatingAdmissionPolicyBinding", ours[1]]["apiVersion"] == version
    assert versions["overlays/scheduler-name-v1beta1"] == f"{group}/v1beta1"
    assert found["overlays/scheduler-name-by-hand"].keys() == found["base"].keys() - {
        ours,
        ("MutatingAdmissionPolicyBinding", ours[1]),
    }


def test_the_policies_of_the_queue_gate_everything_that_is_queued() -> None:
    kind = "MutatingAdmissionPolicy"
    found = {key[1]: text_of(one) for key, one in objects("components/queue").items() if key[0] == kind}
    assert found.keys() == {"gpupack-queue-name", "gpupack-queue-name-bound", "gpupack-queue-gate"}
    assert all(f"name.startsWith('{names.GPU_PREFIX}')" in text for text in found.values())
    # The API server asks them in any order, and one that did not match at first not again.
    gates = {name for name, text in found.items() if 'schedulingGates{name: "gpupack.io/queue"}' in text}
    assert gates == {"gpupack-queue-name", "gpupack-queue-gate"}
