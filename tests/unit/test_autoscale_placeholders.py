"""Which placeholder pods are created and deleted, so that those are there that should be."""

import json
from dataclasses import replace

import msgspec

from gpupack.autoscale.placeholders import MESSAGE, find_changes
from gpupack.dashboard.advice import explain_pending_pod, list_waiting_pods
from gpupack.diagnose.why import explain_pod
from kubeapi.objects import SCHEDULED, Pod
from kubeapi.pod_scheduled import make_refusal
from scheduler_plugin.extender.unschedulable_pods import UnschedulablePods
from tests.autoscale_world import fragments, grown, plan_of, waits

NAMESPACE = "gpupack-system"


def two_alike():
    """The placeholders of two pods that need a node each."""
    nodes, pods = fragments(5, free=50)
    return plan_of(grown(nodes, [*pods, *(waits(f"w{at}", 80) for at in range(4))])).placeholders[:2]


def there(placeholder, number, *, namespace=NAMESPACE, marked=True, **meta):
    made = placeholder.manifest(namespace, number)
    made["metadata"] |= {"uid": f"uid-{number}", **meta}
    if marked:
        condition = {"type": SCHEDULED, **make_refusal("Unschedulable", MESSAGE, 1800000000.0)}
        made["status"] = {"conditions": [condition]}
    return msgspec.json.decode(json.dumps(made), type=Pod)


def test_what_is_missing_is_created_under_names_of_its_own():
    one, other = two_alike()
    assert one.fingerprint == other.fingerprint
    changes = find_changes([one, other], [], NAMESPACE)
    assert sorted(changes.create) == [one.name(1), one.name(2)]
    assert (changes.delete, changes.mark, changes.rename) == ((), (), {})


def test_what_is_there_stays_and_what_nobody_needs_goes():
    one, other = two_alike()
    first, second = there(one, 1), there(other, 2)
    assert find_changes([one, other], [first, second], NAMESPACE).create == {}
    changes = find_changes([one], [first, second], NAMESPACE)
    assert ([pod.metadata.name for pod in changes.delete], changes.create) == ([one.name(2)], {})


def test_a_placeholder_without_the_condition_gets_it():
    one, _ = two_alike()
    assert find_changes([one], [there(one, 1, marked=False)], NAMESPACE).mark == (one.name(1),)


def test_whom_a_placeholder_stands_for_is_kept_current():
    one, other = two_alike()
    assert one.stands_for != other.stands_for
    changes = find_changes([other], [there(one, 1)], NAMESPACE)
    assert (changes.rename, changes.create, changes.delete) == ({one.name(1): other.named}, {}, ())


def test_one_that_is_ending_is_neither_deleted_again_nor_replaced_before_it_is_gone():
    one, _ = two_alike()
    ending = there(one, 1, deletionTimestamp="2027-01-15T08:00:00Z")
    changes = find_changes([one], [ending], NAMESPACE)
    assert (changes.create, changes.delete, changes.mark, changes.rename) == ({}, (), (), {})


def test_pods_of_others_are_left_alone():
    one, _ = two_alike()
    elsewhere = there(one, 1, namespace="default")
    assert find_changes([], [elsewhere], NAMESPACE).delete == ()
    other = there(one, 1)
    other.metadata.labels = {}
    assert find_changes([], [other], NAMESPACE).delete == ()


def test_names_of_very_many_pods_are_cut():
    one, _ = two_alike()
    many = replace(one, stands_for=tuple(f"default/{at}" for at in range(60)))
    assert many.named.endswith("default/49,and 10 more")


def with_placeholder():
    nodes, pods = fragments()
    world = grown(nodes, [*pods, waits("waits", 40)])
    (made,) = plan_of(world).placeholders
    cluster = world.cluster
    cluster.put_pod(there(made, 1))
    return made.name(1), cluster


def test_why_says_which_placeholder_stands_for_a_pod_and_what_that_is():
    name, cluster = with_placeholder()
    said = explain_pod(cluster, "default", "waits")
    assert f"pod {NAMESPACE}/{name} stands for it, and asks a cluster autoscaler for a node" in said.notes
    said = explain_pod(cluster, NAMESPACE, name)
    assert said.text == "never runs: it asks a cluster autoscaler for a node, for default/waits"


def test_the_dashboard_says_it_too_and_lists_no_placeholders():
    _, cluster = with_placeholder()
    (pod,) = list_waiting_pods(cluster)
    assert any(
        "asks a cluster autoscaler for a node" in said
        for said in explain_pending_pod(cluster, pod, nobody).notes
    )


def nobody(_namespace, _name):
    return None


def test_placeholders_do_not_count_as_pods_that_wait():
    _, cluster = with_placeholder()
    assert [pod.metadata.name for pod in cluster.list_waiting_pods()] == ["waits"]
    assert UnschedulablePods(cluster.state.pods).count_by_reason()["not_refused"] == 1
