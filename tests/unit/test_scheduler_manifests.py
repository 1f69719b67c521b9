"""The scheduler's manifests: our kube-scheduler with the extender, or the extender for another one."""

from allocator import names
from scheduler_plugin.settings import Settings
from tests.manifest_objects import NAMESPACE, SNIPPETS, container, objects, scheduler_configuration
from tests.yaml_text import read_yaml


def test_our_kube_scheduler_calls_the_extender_beside_it() -> None:
    configuration = scheduler_configuration()
    assert configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert configuration["kind"] == "KubeSchedulerConfiguration"
    assert configuration["percentageOfNodesToScore"] == 100
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == [names.SCHEDULER_NAME]
    deployment = objects("base")["Deployment", "gpupack-scheduler"]
    (extender,) = configuration["extenders"]
    assert f"--http={extender['urlPrefix'].removeprefix('http://')}" in container(deployment)["args"]
    kube_scheduler = container(deployment, "kube-scheduler")
    (mount,) = kube_scheduler["volumeMounts"]
    assert f"--config={mount['mountPath']}/scheduler.yaml" in kube_scheduler["command"]
    assert deployment["spec"]["replicas"] == 2


def test_the_leases_gap_is_longer_than_a_binding_is_waited_for() -> None:
    election = scheduler_configuration()["leaderElection"]
    lease_s, renew_s = (int(election[key].removesuffix("s")) for key in ("leaseDuration", "renewDeadline"))
    assert lease_s - renew_s > Settings().bind_timeout_s
    assert election["leaderElect"] is True
    rules = objects("base")["Role", "gpupack-scheduler"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [
        [election["resourceName"]]
    ]
    assert election["resourceNamespace"] == NAMESPACE


def test_a_kube_scheduler_that_is_told_to_end_keeps_its_lease_until_no_binding_can_land() -> None:
    deployment = objects("base")["Deployment", "gpupack-scheduler"]
    pause_s = container(deployment, "kube-scheduler")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert "lifecycle" not in container(deployment)
    assert pause_s > Settings().bind_timeout_s
    grace_s = deployment["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    assert grace_s > 2 * pause_s
    retry_s = int(scheduler_configuration()["leaderElection"]["retryPeriod"].removesuffix("s"))
    assert deployment["spec"]["minReadySeconds"] > pause_s + retry_s


def test_both_ways_to_join_the_extender_agree() -> None:
    (snippet,) = SNIPPETS
    joined = read_yaml(snippet.read_text())
    (ours,) = scheduler_configuration()["extenders"]
    (theirs,) = joined["extenders"]
    assert joined["percentageOfNodesToScore"] == 100
    tls = {"enableHTTPS", "tlsConfig"}
    assert {key: value for key, value in theirs.items() if key not in tls | {"urlPrefix"}} == {
        key: value for key, value in ours.items() if key != "urlPrefix"
    }
    service = objects("overlays/join-existing-scheduler")["Service", "gpupack-extender"]["metadata"]
    host = f"{service['name']}.{service['namespace']}.svc"
    assert (theirs["urlPrefix"], theirs["tlsConfig"]["serverName"]) == (f"https://{host}", host)
    sums = (names.resource_name(1024), names.PERCENT_RESOURCE)
    assert ours["managedResources"] == [
        *({"name": name, "ignoredByScheduler": False} for name in sums),
        {"name": names.COMPUTE_RESOURCE, "ignoredByScheduler": True},
    ]
    assert (ours["filterVerb"], ours["prioritizeVerb"], ours["bindVerb"]) == ("filter", "prioritize", "bind")


def test_behind_a_service_verbs_want_a_client_certificate() -> None:
    """Else whoever reaches the Service could bind and evict pods."""
    deployment = objects("overlays/join-existing-scheduler")["Deployment", "gpupack-extender"]
    extender = container(deployment)
    options = dict(flag.partition("=")[::2] for flag in extender["args"][1:])
    assert "--anonymous-auth" not in options
    (mount,) = [each for each in extender["volumeMounts"] if each["name"] == "tls"]
    assert options["--tls-client-ca-file"] == f"{mount['mountPath']}/ca.crt"
    (snippet,) = SNIPPETS
    (theirs,) = read_yaml(snippet.read_text())["extenders"]
    assert {"caFile", "certFile", "keyFile", "serverName"} == set(theirs["tlsConfig"])


def test_the_foreign_schedulers_extender_has_the_lease_of_an_own_kube_scheduler() -> None:
    """Only one of them chooses cards, should `kubectl apply -k` have left the other one behind."""
    found = objects("overlays/join-existing-scheduler")
    assert ("Deployment", "gpupack-scheduler") not in found
    args = container(found["Deployment", "gpupack-extender"])["args"]
    assert {"--leader-elect", f"--lease-namespace={NAMESPACE}"} < set(args)
    (lease,) = [flag.partition("=")[2] for flag in args if flag.startswith("--lease-name=")]
    assert lease == scheduler_configuration()["leaderElection"]["resourceName"]
    rules = found["Role", "gpupack-extender"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [[lease]]
