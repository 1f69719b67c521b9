"""`manifests/` on the real API server: all of it applies, its policies refuse, its rights suffice."""

import json
from pathlib import Path

import pytest

from tests.cluster.harness import Api, ApiError, Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import denied, refused
from tests.cluster.harness.cluster import NAMESPACE, PODS
from tests.cluster.harness.controlplane import RESOURCE, free_ports
from tests.cluster.harness.daemons import run_gpupack
from tests.cluster.harness.installed import (
    OTHER_NODE,
    SCHEDULER,
    filter_calls,
    node_events,
    start_as_installed,
)
from tests.cluster.harness.manifests import (
    MANIFESTS,
    OVERLAYS,
    apply_all,
    build,
    build_for,
    has_mutating_policies,
    named,
    path_of,
)
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.slowlink import SlowLink
from tests.cluster.harness.views import wait_agree

pytestmark = pytest.mark.telling

HOST = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def installed(make_cluster) -> Cluster:
    return make_cluster(w.cards(8192, 8192), start=start_as_installed)


@pytest.fixture
def cluster(installed) -> Cluster:
    installed.clear()
    return installed


@pytest.fixture
def node_daemon(cluster) -> Api:
    """The API server as the node daemon of the real node sees it."""
    return cluster.as_account("gpupack-node", bound_node=cluster.node_name)


def test_applied_twice_is_applied_once(cluster):
    objects = build_for(cluster.api, MANIFESTS / "base")
    kinds = {one["kind"] for one in objects}
    assert kinds >= {"DaemonSet", "Deployment", "ConfigMap", "ValidatingAdmissionPolicy", "ClusterRole"}
    paths = [path_of(cluster.api, one) for one in objects if "spec" in one]
    before = [cluster.api.get(path)["metadata"]["generation"] for path in paths]
    apply_all(cluster.api, objects)
    assert [cluster.api.get(path)["metadata"]["generation"] for path in paths] == before


def test_check_says_whether_the_api_server_can_serve_claims(cluster, tmp_path: Path):
    """With no rights but those that every account has."""
    command = ["node", "--check", "--serve=dra", "--output=json", "--gpus=simulated", "--profile=2xt4"]
    command += [f"--cdi-dirs={tmp_path}", f"--kubelet-dir={cluster.host.kubelet_dir}"]
    command += [f"--device-plugin-dir={cluster.host.device_plugin_dir}"]
    done = run_gpupack(cluster.make_account("nobody"), *command)
    (claims,) = [each for each in json.loads(done.stdout) if each["what"] == "claims (--serve dra)"]
    version = cluster.api.get("/version")
    if version["minor"] in {"34", "35"}:
        assert claims["verdict"] == "bad"
        assert f"is Kubernetes {version['gitVersion']}; allowed: 1.36 or later" in claims["found"]
    else:
        assert claims["verdict"] == "ok", claims


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_accepted(cluster, overlay):
    if overlay == "scheduler-name-v1beta1" and has_mutating_policies(cluster.api):
        # For 1.34 and 1.35; from 1.36 on v1beta1 is not served.
        with pytest.raises(ApiError, match="404"):
            apply_all(cluster.api, build(MANIFESTS / "overlays" / overlay), dry_run=True)
        return
    # Those of the Prometheus operator are not here.
    objects = [
        one
        for one in build_for(cluster.api, MANIFESTS / "overlays" / overlay)
        if not one["apiVersion"].startswith("monitoring.coreos.com/")
    ]
    stored = apply_all(cluster.api, objects, dry_run=True)
    assert len(stored) > 5


@pytest.mark.parametrize("component", ["memory-limits", "mig"])
def test_the_right_to_set_limits_goes_with_the_rest_of_the_daemons_rights(cluster, component):
    """CAP_SYS_ADMIN beside allowPrivilegeEscalation false: Kubernetes refuses it under its full name."""
    objects = build(MANIFESTS / "base", MANIFESTS / "components" / component)
    (daemon,) = [one for one in objects if one["kind"] == "DaemonSet"]
    (stored,) = apply_all(cluster.api, [daemon], dry_run=True)
    (rights,) = [one["securityContext"] for one in stored["spec"]["template"]["spec"]["containers"]]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert rights["allowPrivilegeEscalation"] is False


def test_the_right_to_set_limits_is_effective_in_a_container(cluster):
    """Though it may gain none: root has it from the start."""
    (daemon,) = [
        one
        for one in build(MANIFESTS / "base", MANIFESTS / "components" / "memory-limits")
        if one["kind"] == "DaemonSet"
    ]
    (rights,) = [one["securityContext"] for one in daemon["spec"]["template"]["spec"]["containers"]]
    for name, given in (("with", rights), ("without", {**rights, "capabilities": {"drop": ["ALL"]}})):
        container = w.container(gib=1, command=("/bin/sh", "-c", "cat /proc/self/status; sleep 1000"))
        cluster.run(w.pod(name, {**container, "securityContext": given}))

        def told(pod: str = name) -> list[str]:
            return [line for line in cluster.output(pod, "main").splitlines() if "CapEff:" in line]

        (line,) = until(told, f"what {name} wrote")
        effective = line.split()[-1]
        assert int(effective, 16) == (1 << 21 if name == "with" else 0)


def test_policies_have_no_type_warnings(cluster):
    for kind in ("validatingadmissionpolicies",):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}"

        def checked(path=path) -> list:
            policies = [
                one for one in cluster.api.get(path)["items"] if one["metadata"]["name"].startswith("gpupack")
            ]
            assert all("typeChecking" in one.get("status", {}) for one in policies), "not checked yet"
            return policies

        policies = until(checked, "policies type-checked")
        assert len(policies) >= 3
        assert [one["status"]["typeChecking"].get("expressionWarnings", []) for one in policies] == [
            []
        ] * len(policies)


def test_pod_runs_under_the_shipped_rights_and_configuration(cluster):
    cluster.run(w.pod("one", w.container(gib=5)))
    assert cluster.pod("one")["spec"]["schedulerName"] == SCHEDULER
    assert sorted(wait_agree(cluster).used) == [0, 5]
    until(lambda: cluster.allocation("one"), "allocation annotation")
    lease = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SCHEDULER}")
    assert lease["spec"]["holderIdentity"]


def test_pods_that_forget_the_scheduler_wait_instead_of_failing(cluster):
    """The node's sum has room and no card has: the default scheduler would bind one pod after the other."""
    cluster.run(*(w.pod(f"half-{number}", w.container(gib=5)) for number in range(2)))
    pod = w.pod("x", w.container(gib=6), restartPolicy="Always")
    labels = {"app": "forgetful"}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    cluster.api.post(path, {"metadata": {"name": "forgetful"}, "spec": spec})

    def pods() -> list[dict]:
        return cluster.api.get(PODS, labelSelector="app=forgetful")["items"]

    def refused_by_us() -> bool:
        (pod,) = pods()
        conditions = pod["status"].get("conditions", [])
        return any("no card with 6 GiB free" in one.get("message", "") for one in conditions)

    until(refused_by_us, "the pod waits with our reason")
    cluster.delete("half-0")
    (pod,) = pods()
    cluster.wait_running(pod["metadata"]["name"])
    assert [one["metadata"]["uid"] for one in pods()] == [pod["metadata"]["uid"]]
    # Deleted with pods, its controller may make another one before it hears of it.
    cluster.api.merge(f"{path}/forgetful", {"spec": {"replicas": 0}})
    until(lambda: not pods(), "no pod of the deployment")
    cluster.api.delete(f"{path}/forgetful")


def test_a_pod_that_was_refused_on_old_news_is_tried_again(cluster):
    """kube-scheduler reads of the free card first, asks, is refused, and sees no change after that."""
    link = SlowLink(cluster.control.url)
    token = cluster.token(NAMESPACE, SCHEDULER)
    lagging = cluster.control.write_kubeconfig("lagging", token, link.url)
    cluster.extender.kill()
    cluster.extender.flags = ["--kubeconfig", str(lagging)]
    try:
        cluster.extender.start()
        for name, gib in {"half-0": 5, "half-1": 5, "waits": 6}.items():
            cluster.create(w.pod(name, w.container(gib=gib)))
        for name in ("half-0", "half-1"):
            cluster.wait_running(name)
        cluster.wait_event("waits", "WaitingForCards")
        link.hold()
        cluster.delete("half-0")
        asked = 0.0

        def is_free() -> bool:
            """Ask whether the card is free; if not, remember how often kube-scheduler has asked by now."""
            nonlocal asked
            calls = filter_calls(cluster)
            if sorted(cluster.state().used) == [0, 5]:
                return True
            asked = calls
            return False

        until(is_free, "the card is free")
        until(lambda: filter_calls(cluster) > asked, "kube-scheduler asks and is refused")
        holds_for(lambda: not cluster.node_of("waits"), "it waits", 1)
        link.flow()
        cluster.wait_running("waits")
    finally:
        link.stop()
        cluster.extender.kill()
        cluster.extender.flags = []
        cluster.extender.start()
    scheduled = cluster.scheduled("waits")
    assert scheduled["status"] == "True"
    assert scheduled["lastProbeTime"] is None


def test_a_daemon_sets_pod_gets_the_schedulers_name_as_well(cluster):
    labels = {"app": "everywhere"}
    pod = w.pod("x", w.container(gib=1), restartPolicy="Always", nodeSelector={HOST: cluster.node_name})
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    spec = {"selector": {"matchLabels": labels}, "template": template}
    cluster.api.post(path, {"metadata": {"name": "everywhere"}, "spec": spec})
    pods = until(lambda: cluster.api.get(PODS, labelSelector="app=everywhere")["items"], "the pod")
    assert pods[0]["spec"]["schedulerName"] == SCHEDULER
    cluster.wait_running(pods[0]["metadata"]["name"])
    # Deleted with pods, its controller may make another one before it hears of it.
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {HOST: "nowhere"}}}}}
    cluster.api.merge(f"{path}/everywhere", nowhere)
    until(lambda: not cluster.api.names(PODS), "the pod gone")
    cluster.api.delete(f"{path}/everywhere")


def test_a_selector_that_no_card_matches_is_told_with_the_models_that_there_are(cluster):
    cluster.create(w.pod("misspelt", w.container(gib=1), annotations={"gpupack.io/gpu-model": "*A10O*"}))
    said = cluster.wait_event("misspelt", "WaitingForCards")
    assert "no card of the cluster that the pod's gpu-model and gpu-uuid admit" in said
    assert """gpu-model is "*a10o*"; the cluster has Test GPU.""" in said
    cluster.wait_event("misspelt", "FailedScheduling")


def test_a_cordon_of_a_card_that_the_node_does_not_have_is_told(cluster):
    path = f"/api/v1/nodes/{cluster.node_name}"
    cluster.api.merge(path, {"metadata": {"annotations": {"gpupack.io/cordon": "GPU-of-another-node"}}})
    (message,) = until(lambda: node_events(cluster, "InvalidCordon"), "the event of the node")
    assert '"GPU-of-another-node", no card of this node; allowed: "GPU-00000000-0000-' in message
    assert cluster.daemon.metric("gpupack_node_unknown_cordoned_cards") == 1
    cluster.api.merge(path, {"metadata": {"annotations": {"gpupack.io/cordon": None}}})


def words(value: str) -> dict:
    return {
        "capacity": {"gpupack.io/packed-used-9": value},
        "allocatable": {"gpupack.io/packed-used-9": value},
    }


def test_daemon_writes_words_to_its_own_node_only(cluster, node_daemon):
    own, other = (f"/api/v1/nodes/{name}/status" for name in (cluster.node_name, OTHER_NODE))
    body = {"metadata": {"annotations": {"gpupack.io/holds": "{}"}}, "status": words("1")}
    assert f"may not write to node {OTHER_NODE}" in refused(node_daemon.merge, other, body)
    # On its own node it may; the running daemon repairs what this test writes.
    node_daemon.merge(own, {"status": words("1")})
    cluster.api.merge(
        own, {"status": {part: {"gpupack.io/packed-used-9": None} for part in ("capacity", "allocatable")}}
    )


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"example.com/foreign": "x"}}},
        {"metadata": {"annotations": {"gpupack.io/cordon": "GPU-0"}}},
        {"metadata": {"labels": {"example.com/foreign": "x"}}},
        {"status": {"capacity": {"cpu": "1000"}}},
        {"status": {"allocatable": {RESOURCE: "1000"}}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_daemon_changes_nothing_else_of_its_node(cluster, node_daemon, change):
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    assert "may change" in refused(node_daemon.merge, path, change)


def test_daemon_annotates_pods_of_its_own_node_only(cluster, node_daemon):
    here = w.pod("here", w.container(), nodeName=cluster.node_name)
    there = w.pod("there", w.container(), nodeName=OTHER_NODE)
    for pod in (here, there):
        cluster.create(pod)
    allocation = {"metadata": {"annotations": {"gpupack.io/allocation": "{}"}}}
    node_daemon.merge(f"{PODS}/here", allocation)
    assert "not on its node" in refused(node_daemon.merge, f"{PODS}/there", allocation)
    foreign = {"metadata": {"annotations": {"gpupack.io/assigned": "{}"}}}
    assert "gpupack.io/allocation" in refused(node_daemon.merge, f"{PODS}/here", foreign)
    label = {"metadata": {"labels": {"a": "b"}}}
    refused(node_daemon.merge, f"{PODS}/here", label)


def test_daemon_evicts_where_it_may_and_by_uid_only(cluster, node_daemon):
    """The base gives it no such right, the component does; a pod that has the name by then is left alone."""
    uid = cluster.create(w.pod("evictee", w.container()))
    path = f"{PODS}/evictee/eviction"

    def eviction(uid: str | None) -> dict:
        meta = {"name": "evictee", "namespace": "default"}
        named = {} if uid is None else {"deleteOptions": {"preconditions": {"uid": uid}}}
        return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, **named}

    with pytest.raises(ApiError) as error:
        node_daemon.post(path, eviction(uid))
    assert "cannot create resource" in error.value.message
    component = build(MANIFESTS / "base", MANIFESTS / "components" / "evict-over-use")
    apply_all(cluster.api, named(component, "gpupack-node-evict"))
    assert "must name the UID" in until(lambda: denied(node_daemon, path, eviction(None)), "right to evict")
    with pytest.raises(ApiError) as error:
        node_daemon.post(path, eviction("another"))
    assert error.value.status == 409
    node_daemon.post(path, eviction(uid))
    cluster.wait_gone("evictee")


def test_token_without_a_node_may_write_nothing(cluster):
    homeless = cluster.as_account("gpupack-node")
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    assert "does not name a node" in refused(homeless.merge, path, {"status": words("1")})


def test_daemon_has_no_further_rights(cluster, node_daemon):
    for call in (
        lambda: node_daemon.delete(f"/api/v1/nodes/{OTHER_NODE}"),
        lambda: node_daemon.post("/api/v1/nodes", {"metadata": {"name": "n3"}}),
        lambda: node_daemon.merge(f"/api/v1/nodes/{cluster.node_name}", {"metadata": {"labels": {"a": "b"}}}),
        lambda: node_daemon.get(f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        lambda: node_daemon.delete(f"{PODS}/any"),
    ):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.status == 403


def test_a_daemon_whose_right_to_patch_is_taken_away_is_not_ready(cluster, node_daemon):
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpupack-node"
    shipped = cluster.api.get(path)
    rules = [rule for rule in shipped["rules"] if rule["resources"] != ["nodes/status"]]
    cluster.api.put(path, {**shipped, "rules": rules})

    def is_taken_away() -> bool:
        """The authorizer has a view of its own of roles."""
        try:
            node_daemon.merge(f"/api/v1/nodes/{cluster.node_name}/status", {})
        except ApiError as error:
            return error.status == 403
        return False

    try:
        until(is_taken_away, "the right taken away")
        cluster.daemon.kill()
        cluster.daemon.start(ready=False)
        reason = until(lambda: patch_refusal(cluster), "not ready")
        assert "the status of Node n1 cannot be patched" in reason
    finally:
        cluster.api.merge(path, {"rules": shipped["rules"]})
    cluster.daemon.wait_ready()
    until(cluster.allocatable, "the kubelet's count of units")


def patch_refusal(cluster: Cluster) -> str:
    reason = cluster.daemon.why_not_ready()
    return reason if 'cannot patch resource "nodes/status"' in reason else ""


def test_another_device_plugin_is_told_as_an_event_of_the_node(cluster):
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    for count, reason in (("4", "ConflictingDevicePlugin"), (None, "ConflictingDevicePluginGone")):
        offers = {"nvidia.com/gpu": count}
        cluster.api.merge(path, {"status": {"capacity": offers, "allocatable": offers}})
        until(lambda reason=reason: node_events(cluster, reason), f"Event {reason}")
    (told,) = node_events(cluster, "ConflictingDevicePlugin")
    assert "nvidia.com/gpu: 4" in told


def test_a_second_daemon_waits_and_goes_on_when_the_first_is_killed(cluster):
    cluster.run(w.pod("runs", w.container(gib=5)))
    second = cluster.daemon.beside(*free_ports(1))
    second.start(ready=False)
    try:
        reason = f"another gpupack node daemon (process {cluster.daemon.pid}) serves the kubelet"
        until(lambda: reason in second.why_not_ready(), "the second daemon says why it waits")
        until(lambda: node_events(cluster, "ConflictingDaemon"), "Event ConflictingDaemon")
        assert cluster.daemon.is_ready()
        until(lambda: sorted(cluster.state().used) == [0, 5], "the first daemon's words")
        cluster.daemon.kill()
        second.wait_ready()
        # Pods come to the second, and its words say what runs.
        cluster.run(w.pod("comes", w.container(gib=6)))
        assert sorted(wait_agree(cluster).used) == [5, 6]
    finally:
        second.kill()


def test_others_are_not_held_back(cluster):
    cordon = {"metadata": {"annotations": {"gpupack.io/cordon": "GPU-0"}}}
    cluster.api.merge(f"/api/v1/nodes/{OTHER_NODE}", cordon)
