"""What the API server tells people who ask wrongly: the policies about pods, beside the Python rules."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allocator.names import (
    BATCH_SCHEDULER,
    POD_ALLOCATION,
    POD_ASSIGNED,
    POD_PLANNED,
    POD_REQUEUED,
    QUEUE_GATE,
    QUEUE_NAME,
    RESOURCE_PREFIX,
    unit_of_resource,
)
from tests.cluster.harness import ApiError, Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import refused_patch, scheduler_of, told, warnings_of
from tests.cluster.harness.asks import TABLE, annotated, python_refuses
from tests.cluster.harness.cluster import PODS, RBAC, account
from tests.cluster.harness.controlplane import COMPUTE, NODE_TOKEN, PERCENT, RESOURCE
from tests.cluster.harness.manifests import (
    COMPONENTS,
    MANIFESTS,
    apply_all,
    build,
    build_for,
    has_mutating_policies,
    named,
    path_of,
)
from tests.cluster.harness.rest import Api

pytestmark = pytest.mark.telling

SCHEDULER = "gpupack-scheduler"
CONFIG_MAP = "/api/v1/namespaces/gpupack-system/configmaps/gpupack-admission"


def start_with_policies(cluster: Cluster) -> None:
    """Etcd and the API server alone, with the base: nothing is ever created, every pod is a dry run."""
    cluster.control.start_without_controllers()
    apply_all(cluster.api, build_for(cluster.api, MANIFESTS / "base"))
    until(lambda: "gpu-modle" in told(cluster, annotated(8, {"gpu-modle": "x"})), "policies in force")
    until(lambda: told(cluster, w.pod("p", w.container(gib=0))), "policies in force")
    until(lambda: told(cluster, w.pod("p", w.container(gib=1), schedulerName="x")), "policies in force")
    until(lambda: not told(cluster, w.pod("p", w.container(gib=1))), "the scheduler's name set")


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    return make_cluster(with_node=False, start=start_with_policies)


@pytest.mark.parametrize("pod", TABLE)
def test_the_api_server_refuses_what_our_code_would(cluster: Cluster, pod: dict[str, Any]) -> None:
    answer = told(cluster, pod)
    assert bool(answer) == python_refuses(pod), answer


@pytest.mark.parametrize(
    "name", ["gib", "1mib", "1024mib", "16777215mib", "16777216mib", "Gib", "8gib", "mib", "01mib"]
)
def test_the_api_server_knows_the_resources_that_our_code_knows(cluster: Cluster, name: str) -> None:
    resource = f"{RESOURCE_PREFIX}{name}"
    answer = told(cluster, w.pod("p", w.container(limits={resource: 2})))
    assert (answer == "") == (unit_of_resource(resource) is not None), answer


@pytest.mark.parametrize(
    ("percent", "gib", "cards", "words"),
    [
        (50, 0, "1", ""),
        (200, 0, "2", ""),
        (101, 0, "1", "gpupack.io/gpu-percent: 101; allowed: 100 for each card"),
        (0, 0, "1", "gpupack.io/gpu-percent: 0, and would see every card"),
        (50, 8, "1", "allowed: one of the two in a pod"),
    ],
)
def test_shares_of_cards_are_known_and_bounded(
    cluster: Cluster, percent: int, gib: int, cards: str, words: str
) -> None:
    others = [w.container("other", gib)] if gib else []
    asking = w.container(limits={PERCENT: percent})
    answer = told(cluster, w.pod("p", asking, *others, annotations={"gpupack.io/cards": cards}))
    assert words in answer
    assert bool(words) == bool(answer), answer


GIB = f"asks for {RESOURCE}"
REFUSALS = {
    f'container "main" {GIB}: 8Gi, which is 8589934592 units; allowed: a whole number of units from 1 to '
    "131072, without a suffix; for 8 GiB write 8": annotated("8Gi", {}),
    f'container "main" {GIB}: 0, and would see every card': annotated(0, {}),
    f'container "init" {GIB}: 0': annotated(1, {}, init=0),
    f'container "main" asks for {COMPUTE}: 101; allowed: a whole number from 1 to 100, the percent of the '
    "compute of each card": w.pod("p", w.container(gib=8, limits={COMPUTE: 101})),
    f"{COMPUTE}: 0; allowed: a whole number from 1 to 100": w.pod(
        "p", w.container(limits={PERCENT: 50, COMPUTE: 0})
    ),
    f'"other" asks for {COMPUTE}: 30 without GPU memory; allowed: beside {RESOURCE} or {PERCENT} of '
    "the same container": w.pod("p", w.container(gib=8), w.container("other", limits={COMPUTE: 30})),
    "asks for gpupack.io/gpu-mem, which does not exist": w.pod(
        "p", w.container(limits={"gpupack.io/gpu-mem": 8})
    ),
    "gpupack.io/packed-size-0, which says how full a node is": w.pod(
        "p", w.container(), init=[w.container("i", limits={"gpupack.io/packed-size-0": 8})]
    ),
    'annotation gpupack.io/gpu-modle is "*T4*"; gpupack has no such annotation: allowed on a pod are '
    "gpupack.io/card-policy, gpupack.io/cards, gpupack.io/containers, gpupack.io/data": annotated(
        1, {"gpu-modle": "*T4*"}
    ),
    f'annotation gpupack.io/cards is "{"x" * 64}..."; allowed: a whole number': annotated(
        1, {"cards": "x" * 70}
    ),
    r'gpupack.io/card-policy is "a\nb"; allowed: the name of a policy': annotated(1, {"card-policy": "a\nb"}),
    'gpupack.io/gpu-uuid is "a,,b"; allowed: a comma list of non-empty': annotated(1, {"gpu-uuid": "a,,b"}),
    'gpupack.io/queue-name is "a"; allowed: a label of that name': annotated(1, {"queue-name": "a"}),
    "200001 patterns; allowed: at most 64": annotated(1, {"gpu-model": "," * 200_000}),
    "spec.nodeName is n1: no scheduler would choose a card": w.pod("p", w.container(gib=8), nodeName="n1"),
    'spec.schedulerName is "other", a scheduler that chooses no cards; allowed: gpupack-scheduler': w.pod(
        "p", w.container(gib=8), schedulerName="other"
    ),
}


@pytest.mark.parametrize(("words", "pod"), list(REFUSALS.items()), ids=range(len(REFUSALS)))
def test_a_refusal_names_the_value_and_what_is_allowed(
    cluster: Cluster, words: str, pod: dict[str, Any]
) -> None:
    assert words in told(cluster, pod)


def test_a_label_in_an_annotations_place_is_told(cluster: Cluster) -> None:
    pod = annotated(8, {}, labels={"gpupack.io/cards": "2"})
    assert "label gpupack.io/cards has no effect" in told(cluster, pod)


def test_pods_of_others_are_not_held_back(cluster: Cluster) -> None:
    plain = w.container()
    for pod in (
        w.pod("p", plain, schedulerName="other"),
        w.pod("p", plain, nodeName="n1"),
        w.pod("p", plain, annotations={"example.com/cards": "many", "gpupack.iodine/x": "y"}),
        w.pod("p", w.container(limits={"nvidia.com/gpu": 1})),
        w.pod("p", w.container(gib=1), schedulingGates=[{"name": "example.com/quota"}]),
        # What a copy of a pod carries along.
        w.pod(
            "p", w.container(gib=1), annotations={"gpupack.io/assigned": "{}", "gpupack.io/allocation": "{}"}
        ),
    ):
        assert told(cluster, pod) == ""


def test_a_static_pods_mirror_is_not_hidden(cluster: Cluster) -> None:
    """The kubelet runs it already; only the scheduler would not see it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": cluster.node_name, "controller": True}
    made = cluster.api.post("/api/v1/nodes", {"metadata": {"name": cluster.node_name}})
    mirror = w.pod("p", w.container(gib=1), w.container("none", gib=0), nodeName=cluster.node_name)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x", "gpupack.io/cards": "none"}
    mirror["metadata"]["ownerReferences"] = [owner | {"uid": made["metadata"]["uid"]}]
    assert told(cluster, mirror) != ""
    kubelet = cluster.api.as_user(NODE_TOKEN)
    # NodeRestriction has a view of its own of the Node.
    until(lambda: kubelet.post(PODS, mirror, dryRun="All"), "the mirror taken")


def test_only_what_is_written_to_a_living_pod_is_checked(cluster: Cluster) -> None:
    """An annotation that was there before the policy must not keep a finalizer from being removed."""
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpupack-pod-annotations"
    binding = cluster.api.get(policy)
    pod = annotated(8, {"gpu-modle": "old"}, schedulerName="gpupack-scheduler")
    cluster.api.delete(policy)
    until(lambda: told(cluster, pod) == "", "policy gone")
    pod["metadata"]["name"] = "living"
    cluster.create(pod)
    for field in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
        binding["metadata"].pop(field, None)
    cluster.api.apply(policy, binding)
    until(lambda: told(cluster, annotated(8, {"gpu-modle": "new"})) != "", "policy back")
    living = f"{PODS}/living"
    cluster.api.merge(living, {"metadata": {"labels": {"a": "b"}}})
    for key, value, words in (("cards", "0", "from 1 to 64"), ("gpu-modle", "new", "no such annotation")):
        with pytest.raises(ApiError, match=words):
            cluster.api.merge(living, {"metadata": {"annotations": {f"gpupack.io/{key}": value}}})
    cluster.api.merge(living, {"metadata": {"annotations": {"gpupack.io/gpu-modle": None}}})
    cluster.api.delete(living, grace_s=0)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_a_workload_whose_pods_would_be_refused_is_warned_of(cluster: Cluster, kind: str) -> None:
    metadata: dict[str, Any] = {"labels": {"app": "x"}, "annotations": {}}
    pod = {"metadata": metadata, "spec": annotated(8, {})["spec"]}
    pod["spec"]["restartPolicy"] = "Never" if "Job" in kind else "Always"
    spec: dict[str, Any] = {"template": pod}
    if "Job" not in kind:
        spec["selector"] = {"matchLabels": {"app": "x"}}
    if kind == "CronJob":
        spec = {"schedule": "@daily", "jobTemplate": {"spec": spec}}
    group = "batch" if "Job" in kind else "apps"
    body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    path = f"/apis/{group}/v1/namespaces/default/{kind.lower()}s"
    assert warnings_of(cluster, path, body) == []
    metadata["annotations"]["gpupack.io/gpu-modle"] = "*T4*"
    pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] = "8Gi"
    body["metadata"]["annotations"] = {"gpupack.io/cards": "2"}
    request, annotation, misplaced = sorted(
        warnings_of(cluster, path, body), key=lambda text: "annotation" in text
    )
    assert "for 8 GiB write 8" in request
    assert "gpupack.io/gpu-modle" in annotation
    assert f"annotation gpupack.io/cards of the {kind} has no effect" in misplaced


@pytest.fixture
def changed(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """A function that sets a key of the policies' ConfigMap; the old values are put back in the end."""
    before = cluster.api.get(CONFIG_MAP)["data"]

    def change(key: str, value: str) -> None:
        cluster.api.merge(CONFIG_MAP, {"data": {key: value}})

    yield change
    cluster.api.merge(CONFIG_MAP, {"data": before})
    asks = w.pod("p", w.container(gib=1))
    until(lambda: scheduler_of(cluster, asks) == SCHEDULER, "ConfigMap as it was")
    until(lambda: told(cluster, annotated(1, {"node-policy": "balanced"})) == "", "ConfigMap as it was")


def test_the_lists_of_the_config_map_count(cluster: Cluster, changed: Callable[[str, str], None]) -> None:
    changed("schedulerNames", " batch-scheduler ,gpupack-scheduler")
    changed("nodePolicies", "best-fit, mine")
    asks = w.pod("p", w.container(gib=1))
    until(lambda: scheduler_of(cluster, asks) == "batch-scheduler", "the first name set")
    assert scheduler_of(cluster, w.pod("p", w.container(gib=1), schedulerName=SCHEDULER)) == SCHEDULER
    other = annotated(1, {"node-policy": "balanced"})
    until(lambda: "allowed: best-fit, mine" in told(cluster, other), "the other list known")
    assert told(cluster, annotated(1, {"node-policy": "mine"})) == ""


def test_a_scheduler_that_was_joined_is_allowed_and_nothing_is_set(
    cluster: Cluster, changed: Callable[[str, str], None]
) -> None:
    overlay = build(MANIFESTS / "overlays" / "join-existing-scheduler")
    (admission,) = named(overlay, "gpupack-admission")
    changed("schedulerNames", admission["data"]["schedulerNames"])
    asks = w.pod("p", w.container(gib=1))
    until(lambda: scheduler_of(cluster, asks) == "default-scheduler", "kube-scheduler's own name left")
    refused = told(cluster, w.pod("p", w.container(gib=1), schedulerName=SCHEDULER))
    assert "allowed: default-scheduler" in refused


def test_a_config_map_that_is_missing_keeps_nobody_from_creating_pods(cluster: Cluster) -> None:
    before = cluster.api.get(CONFIG_MAP)
    cluster.api.delete(CONFIG_MAP)
    strange = w.pod("p", w.container(gib=1), schedulerName="strange")
    until(lambda: told(cluster, strange) == "", "policy without its parameter")
    assert told(cluster, w.pod("p", w.container())) == ""
    cluster.api.apply(
        CONFIG_MAP, {**before, "metadata": {"name": "gpupack-admission", "namespace": "gpupack-system"}}
    )
    until(lambda: told(cluster, strange) != "", "policy as it was")


def test_no_pod_names_cards_past_our_account(cluster: Cluster) -> None:
    """The component for clusters where a card that was given to one pod alone must have no other user."""

    def naming(value: str | None, namespace: str = "default", **more: Any) -> str:
        source = {"fieldRef": {"fieldPath": "metadata.name"}}
        variable = {
            "name": "NVIDIA_VISIBLE_DEVICES",
            **({"valueFrom": source} if value is None else {"value": value}),
        }
        return told(cluster, w.pod("p", {**w.container(**more), "env": [variable]}, namespace=namespace))

    component = build(MANIFESTS / "base", MANIFESTS / "components" / "visible-devices")
    added = named(component, "gpupack-visible-devices", "gpupack-admission")
    apply_all(cluster.api, added)
    try:
        said = until(lambda: naming("all"), "the component in force")
        assert 'container "main" names cards itself, in NVIDIA_VISIBLE_DEVICES; allowed: void or none' in said
        for value in (None, "GPU-1", "0"):
            assert naming(value) != ""
            assert naming(value, gib=1) != ""
        for value in ("", "void", "none"):
            assert naming(value) == ""
        # The list of namespaces reaches the policy a little later than the policy itself.
        until(lambda: naming("all", "kube-system") == "", "the component's list in force")
        assert told(cluster, w.pod("p", w.container())) == ""
    finally:
        for one in added:
            if one["kind"] != "ConfigMap":
                cluster.api.delete(path_of(cluster.api, one))
        until(lambda: naming("all") == "", "the component no longer in force")


def test_pods_tolerate_the_taint_of_gpu_nodes(cluster: Cluster) -> None:
    """The component for nodes with the taint nvidia.com/gpu, which nothing else lets our pods tolerate."""

    def tolerated(pod: dict[str, Any]) -> list[dict[str, Any]]:
        found = cluster.api.post(PODS, pod, dryRun="All")["spec"].get("tolerations", [])
        # Those of the admission plugin ExtendedResourceToleration, where it is on, name our own resources.
        others = ("node.kubernetes.io/", "gpupack.io/")
        return [each for each in found if not each.get("key", "").startswith(others)]

    version = [] if has_mutating_policies(cluster.api) else [COMPONENTS / "scheduler-name-v1beta1"]
    component = build(MANIFESTS / "base", COMPONENTS / "gpu-taint", *version)
    added = named(component, "gpupack-gpu-taint")
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    other = {"key": "example.com/a", "operator": "Exists"}
    narrow = {**taint, "effect": "NoExecute"}
    asking = w.container(gib=1)
    assert tolerated(w.pod("p", asking)) == []
    apply_all(cluster.api, added)
    try:
        until(lambda: tolerated(w.pod("p", asking)) == [taint], "the component in force")
        assert tolerated(w.pod("p", w.container(limits={PERCENT: 50}))) == [taint]
        assert tolerated(w.pod("p", w.container(), init=[w.container("i", gib=1)])) == [taint]
        assert tolerated(w.pod("p", asking, tolerations=[other])) == [other, taint]
        assert tolerated(w.pod("p", asking, tolerations=[narrow])) == [narrow, taint]
        for enough in (taint, {"operator": "Exists"}):
            assert tolerated(w.pod("p", asking, tolerations=[enough])) == [enough]
        assert tolerated(w.pod("p", w.container())) == []
    finally:
        for one in added:
            cluster.api.delete(path_of(cluster.api, one))
        until(lambda: tolerated(w.pod("p", asking)) == [], "the component no longer in force")


@pytest.fixture(scope="module")
def member(cluster: Cluster) -> Api:
    """Somebody with the rights of the role `edit` in the namespace `default`."""
    cluster.make_account("member")
    # A controller, which does not run here, makes `edit` of these two.
    for role in ("system:aggregate-to-edit", "system:aggregate-to-view"):
        cluster.grant_role("ClusterRole", role, "default", account("member"))
    user = cluster.as_account("member", "default")
    until(lambda: not refused_patch(user, "nobody", {}), "the rights of a member")
    return user


@pytest.fixture(scope="module")
def queue(cluster: Cluster, member: Api) -> Iterator[Api]:
    """The queue's account, with its rights and its policies for members."""
    objects = [
        one
        for one in build(MANIFESTS / "components" / "queue")
        if one["kind"] not in {"Deployment", "Service"} and not one["kind"].startswith("Mutating")
    ]
    apply_all(cluster.api, objects)
    cluster.create(gated_pod("probe"))
    until(lambda: refused_patch(member, "probe", UNGATE), "the queue's policies")
    yield cluster.as_account("gpupack-queue")
    for one in objects:
        if one["kind"].startswith("Validating"):
            cluster.api.delete(path_of(cluster.api, one))


def gated_pod(name: str, *, gated: bool = True, queue: str = "a", **annotations: str) -> dict[str, Any]:
    labels = {QUEUE_NAME: queue} if queue else {}
    pod = annotated(1, annotations, labels=labels, schedulerName=SCHEDULER)
    pod["metadata"]["name"] = name
    pod["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}] if gated else []
    return pod


UNGATE: list[dict[str, Any]] = [{"op": "remove", "path": "/spec/schedulingGates"}]


def annotate(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def label(queue: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {QUEUE_NAME: queue}}}


@pytest.mark.parametrize("key", [POD_ALLOCATION, POD_ASSIGNED])
def test_nobody_but_gpupack_changes_which_cards_a_pod_is_said_to_have(
    cluster: Cluster, member: Api, key: str
) -> None:
    name = key.rpartition("/")[2]
    assert told(cluster, annotated(1, {name: "{}"})) == "", "a copy carries it along"
    cluster.create(gated_pod(f"has-{name}", queue="", **{name: "{}"}))
    cluster.create(gated_pod(f"lacks-{name}", queue=""))
    stays = f"annotation {key} of pod default/has-{name} stays: gpupack writes it"
    for value in ("{ }", None):
        assert stays in refused_patch(member, f"has-{name}", annotate(key, value))
    assert "stays: gpupack writes it" in refused_patch(member, f"lacks-{name}", annotate(key, "{}"))
    assert refused_patch(member, f"has-{name}", annotate("mine", "1")) == ""
    assert refused_patch(cluster.api, f"has-{name}", annotate(key, None)) == ""


def test_two_patches_take_no_pod_out_of_its_quota(cluster: Cluster, member: Api, queue: Api) -> None:
    """Of a pod that waits, that was admitted, and that was admitted and waits again."""
    cluster.create(gated_pod("waits"))
    cluster.create(gated_pod("admitted", gated=False, planned="GPU-1"))
    cluster.create(gated_pod("requeued", gated=False, requeued="true"))
    gate = "scheduling gate gpupack.io/queue of pod default/waits stays: the queue takes it away"
    assert gate in refused_patch(member, "waits", UNGATE)
    for name, patch in (
        ("waits", annotate(POD_PLANNED, "GPU-2")),
        ("waits", annotate(POD_REQUEUED, "true")),
        ("admitted", annotate(POD_PLANNED, None)),
        ("admitted", annotate(POD_REQUEUED, "true")),
        ("requeued", annotate(POD_REQUEUED, None)),
    ):
        said = refused_patch(member, name, patch)
        assert f"of pod default/{name} stays: the queue writes it" in said
        assert "who may update ConfigMap gpupack-system/gpupack-queues" in said
        assert refused_patch(queue, name, patch) == refused_patch(cluster.api, name, patch) == ""
    for name in ("waits", "admitted", "requeued"):
        stays = f'label gpupack.io/queue-name of pod default/{name} stays "a"'
        assert stays in refused_patch(member, name, label(None))
        moved = refused_patch(member, name, label("b"))
        assert (stays in moved) == (name == "admitted"), moved
        assert refused_patch(member, name, {"metadata": {"labels": {"mine": "1"}}}) == ""
    for patch in (UNGATE, label(None)):
        assert refused_patch(queue, "waits", patch) == refused_patch(cluster.api, "waits", patch) == ""


def test_who_may_change_the_queues_may_let_a_pod_go(cluster: Cluster, member: Api, queue: Api) -> None:
    rules = [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["gpupack-queues"],
            "verbs": ["update"],
        }
    ]
    root = f"{RBAC}/namespaces/gpupack-system"
    cluster.api.post(f"{root}/roles", {"metadata": {"name": "queues"}, "rules": rules})
    cluster.create(gated_pod("leaves"))
    assert refused_patch(member, "leaves", UNGATE)
    cluster.grant_role("Role", "queues", "gpupack-system", account("member"))
    for patch in (UNGATE, label(None), annotate(POD_REQUEUED, "true")):
        until(lambda patch=patch: refused_patch(member, "leaves", patch) == "", "the right to change queues")
    cluster.api.delete(f"{root}/rolebindings/queues")
    until(lambda: refused_patch(member, "leaves", UNGATE), "the right to change queues taken back")


def test_a_pod_of_a_queue_without_the_gate_is_refused(cluster: Cluster, member: Api, queue: Api) -> None:
    """Where the API server does not write it: Kubernetes 1.34 and 1.35 by default."""

    def answer(pod: dict[str, Any]) -> str:
        return told(cluster, pod, member)

    said = 'the pod belongs to queue "a" and would not wait for its turn; allowed: with the scheduling gate'
    until(lambda: said in answer(gated_pod("p", gated=False)), "the policy in force")
    assert answer(gated_pod("p")) == answer(gated_pod("p", gated=False, queue="")) == ""
    assert told(cluster, gated_pod("p", gated=False)) == ""
    plain = w.pod("p", w.container(), labels={QUEUE_NAME: "a"})
    assert answer(plain) == "", "it asks for no GPU"
    batch = gated_pod("p", gated=False)
    batch["spec"]["schedulerName"] = BATCH_SCHEDULER
    assert "would not wait" not in answer(batch)
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "team", "labels": {QUEUE_NAME: "a"}}})
    cluster.grant_role("ClusterRole", "system:aggregate-to-edit", "team", account("member"))
    unlabelled = gated_pod("p", gated=False, queue="")
    unlabelled["metadata"]["namespace"] = "team"
    until(lambda: said in answer(unlabelled), "the namespace's queue")


def test_where_nothing_sets_the_name_a_pod_without_it_is_refused(cluster: Cluster) -> None:
    # Behind all tests that change the ConfigMap: once a MutatingAdmissionPolicyBinding with a parameter is
    # deleted, kube-apiserver (1.34, 1.37) follows ConfigMaps no more, for any policy.
    by_hand = {one["metadata"]["name"] for one in build(MANIFESTS / "overlays" / "scheduler-name-by-hand")}
    served = build_for(cluster.api, MANIFESTS / "base")
    (binding,) = [one for one in served if one["kind"] == "MutatingAdmissionPolicyBinding"]
    assert binding["metadata"]["name"] not in by_hand
    cluster.api.delete(path_of(cluster.api, binding))
    forgetful = w.pod("p", w.container(gib=1))
    answer = until(lambda: told(cluster, forgetful), "nothing sets the name")
    assert 'spec.schedulerName is "default-scheduler", a scheduler that chooses no cards' in answer
    apply_all(cluster.api, [binding])
    until(lambda: told(cluster, forgetful) == "", "the name is set again")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_GPU_MEMORY_LIMIT",
        "NVIDIA_GPU_MEMORY_REQUEST",
        "NVIDIA_VISIBLE_DEVICES",
        "GPUPACK_CARDS",
        "CUDA_MPS_PIPE_DIRECTORY",
    ],
)
def test_no_pod_writes_its_own_limits(cluster: Cluster, name: str) -> None:
    """What it writes would come after what the node daemon gives it."""
    variable = {"env": [{"name": name, "value": "1"}]}
    said = f'container "{{}}" sets {name}, which says what it was given'
    assert said.format("main") in told(cluster, w.pod("p", {**w.container(gib=1), **variable}))
    beside = {**w.container("side"), **variable}
    assert said.format("side") in told(cluster, w.pod("p", w.container(gib=1), beside))
    assert said.format("side") in told(cluster, w.pod("p", w.container(limits={PERCENT: 5}), init=[beside]))
    # Pods that ask for no memory are not ours to judge.
    assert told(cluster, w.pod("p", beside)) == ""
    # A container that asks for nothing may say that it wants no card; one that asks was mistaken.
    for value in ("", "void", "none"):
        no_card = {"env": [{"name": name, "value": value}]}
        answer = told(cluster, w.pod("p", w.container(gib=1), {**w.container("side"), **no_card}))
        assert (answer == "") == (name == "NVIDIA_VISIBLE_DEVICES")
        assert said.format("main") in told(cluster, w.pod("p", {**w.container(gib=1), **no_card}))
    assert (
        told(cluster, w.pod("p", {**w.container(gib=1), "env": [{"name": f"MY_{name}", "value": "1"}]})) == ""
    )
