"""`gpupack migrate`: what becomes of manifests for other ways to share GPUs."""

import json
import re
from pathlib import Path

import pytest
import yaml

from allocator.names import resource_name
from allocator.request import parse_pod
from gpupack.errors import InputError
from gpupack.migration.documents import migrate
from gpupack.migration.requests import MigrationOptions
from gpupack.migration.yamltext import MAX_VALUES
from tests.yaml_text import read_yaml, read_yaml_documents

GANGS_PAGE = Path(__file__).parents[2] / "docs/howto/gangs.md"

OPTIONS = MigrationOptions(
    unit_mib=1024, gpushare_unit_mib=1024, gpu_gib=None, scheduler_name="gpupack-scheduler"
)
GIB = "gpupack.io/gpu-memory-gib"
PERCENT = "gpupack.io/gpu-percent"
COMPUTE = "gpupack.io/gpu-compute-percent"
HAMI_TWO = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1024}


def pod(limits, annotations=None, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **({"annotations": annotations} if annotations else {})},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], **spec},
    }


def named(kind, api="v1", **rest):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "p"}, **rest}


def init(limits):
    return [{"name": "i", "resources": {"limits": limits}}]


def run(*documents, **options):
    """Migrate objects; returns them as Kubernetes would read them, and what was said."""
    changed = MigrationOptions(**{**{f: getattr(OPTIONS, f) for f in OPTIONS.__slots__}, **options})
    done = migrate(yaml.safe_dump_all(documents, sort_keys=False), "f.yaml", changed)
    return list(read_yaml_documents(done.text)), done


def one(document, **options):
    (found,), done = run(document, **options)
    return found, done


def limits_of(found):
    return found["spec"]["containers"][0]["resources"].get("limits")


@pytest.mark.parametrize(
    ("limits", "expected", "cards", "options"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}, {GIB: 8}, None, {}),
        # The trap: theirs is for each card, ours for all cards together.
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8192}, {GIB: 16}, "2", {}),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}, {GIB: 6}, "2", {}),
        ({"nvidia.com/gpumem": 2048}, {GIB: 2}, None, {}),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 30}, {PERCENT: 60}, "2", {}),
        ({"aliyun.com/gpu-mem": 3}, {GIB: 3}, None, {}),
        ({"aliyun.com/gpu-mem": 3000}, {GIB: 3}, None, {"gpushare_unit_mib": 1}),
        ({"nvidia.com/gpu": 1}, {PERCENT: 100}, None, {}),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 3000}, {GIB: 6}, "2", {}),
        ({"volcano.sh/gpu-memory": 2048}, {GIB: 2}, None, {}),
        ({"volcano.sh/vgpu-memory-percentage": 30}, {PERCENT: 30}, None, {}),
        ({"nvidia.com/gpu": "4"}, {PERCENT: 400}, "4", {}),
        ({"nvidia.com/gpu": 1}, {GIB: 8}, None, {"gpu_gib": 8}),
        ({"nvidia.com/gpu.shared": 1}, {GIB: 8}, None, {"gpu_gib": 8}),
        ({"nvidia.com/gpumem": 1000}, {"gpupack.io/gpu-memory-256mib": 4}, None, {"unit_mib": 256}),
        (
            {"nvidia.com/gpucores": 30, "nvidia.com/gpu": 2, "nvidia.com/gpumem": 8192},
            {COMPUTE: 30, GIB: 16},
            "2",
            {},
        ),
        ({"nvidia.com/gpucores": 50}, {COMPUTE: 50, PERCENT: 100}, None, {}),
        ({"nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 0}, {GIB: 1}, None, {}),
        ({"volcano.sh/vgpu-memory": 1024, "volcano.sh/vgpu-cores": 7}, {GIB: 1, COMPUTE: 7}, None, {}),
        ({"cpu": "2", "nvidia.com/gpu": 0}, {"cpu": "2"}, None, {}),
    ],
    ids=[
        "HAMi, a card", "HAMi, 2 cards", "HAMi, rounded up", "HAMi, only memory", "HAMi, percent", "gpushare",
        "gpushare, MiB", "NVIDIA, a whole card", "Volcano", "Volcano, the older name", "Volcano, percent",
        "NVIDIA, four", "replicas under the same name", "replicas", "unit", "HAMi, cores of each card",
        "HAMi, only cores", "no cores", "Volcano, cores", "none at all",
    ],
)  # fmt: skip
def test_what_a_container_asks_for(limits, expected, cards, options):
    found, done = one(pod(limits), **options)
    assert limits_of(found) == expected
    assert found["metadata"].get("annotations", {}).get("gpupack.io/cards") == cards
    assert ("schedulerName" in found["spec"]) == any(key.startswith("gpupack.io/") for key in expected)
    assert done.complete
    # gpupack itself reads the same: so much on each of so many cards.
    resource = resource_name(options.get("unit_mib", 1024))
    annotations = found["metadata"].get("annotations", {})
    request = parse_pod(annotations, [], found["spec"]["containers"], resource)
    if "schedulerName" not in found["spec"]:
        assert request is None
    else:
        assert request is not None
        assert (request.cards, request.percent) == (int(cards or 1), PERCENT in expected)
        assert request.effective_units == expected[PERCENT if request.percent else resource]
        assert [demand.compute for demand in request.demands] == [expected.get(COMPUTE, 0)]


@pytest.mark.parametrize(
    ("first", "second", "annotations", "notes"),
    [
        pytest.param(
            {"aliyun.com/gpu-mem": 3},
            {"aliyun.com/gpu-mem": 5},
            {"gpupack.io/containers": "same-card"},
            0,
            id="gpushare",
        ),
        pytest.param(
            {"aliyun.com/gpu-mem": 3}, {"aliyun.com/gpu-mem": 0}, {}, 0, id="gpushare, only one asks"
        ),
        pytest.param({"nvidia.com/gpumem": 1024}, {"nvidia.com/gpumem": 1024}, {}, 1, id="HAMi, with a note"),
    ],
)
def test_only_gpushare_has_all_containers_on_one_card(first, second, annotations, notes):
    document = pod(first)
    document["spec"]["containers"].append({"name": "d", "resources": {"limits": second}})
    found, done = one(document)
    assert found["metadata"].get("annotations", {}) == annotations
    assert (done.complete, len(done.notes)) == (True, notes)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (pod({"nvidia.com/mig-1g.5gb": 1}), "MIG instance"),
        (pod({"nvidia.com/gpu.shared": 1}), "--gpu-gib"),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "8Gi"}), "allowed: a whole number without a suffix"),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 120}), "120; allowed: 1 to 100"),
        (pod({"nvidia.com/gpu": "0.5"}), "allowed: a whole number"),
        (pod({"nvidia.com/gpumem": 1, "nvidia.com/gpucores": 150}), "gpucores: 150; allowed: 1 to 100"),
        (pod({"nvidia.com/gpu": 1}, {"gpu-sm-percentage": "half"}), "gpu-sm-percentage: "),
        (pod({"nvidia.com/gpu": "${COUNT}"}), "replace the placeholder first, as envsubst does"),
        (pod({"nvidia.com/gpu": 65}), "allowed: at most 64"),
        (pod({"aliyun.com/gpu-mem": 1, "nvidia.com/gpu": 1}), "keep one of them"),
        (pod({"aliyun.com/gpu-count": 1}), "gpupack.io/cards"),
        (
            pod(HAMI_TWO, initContainers=init({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1})),
            "different numbers of cards (i 1, c 2)",
        ),
        (pod({"nvidia.com/gpu": 2}, initContainers=init({"nvidia.com/gpu": 2})), "an init container asks"),
        (pod({"nvidia.com/gpu": 1}, initContainers=init({"nvidia.com/gpumem": 1})), "one of both in a pod"),
        (
            named("ResourceQuota", spec={"hard": {"requests.nvidia.com/gpu": 4}}),
            "nvidia.com/gpu at spec.hard: write requests.gpupack.io/gpu-memory-gib",
        ),
        (
            pod({"volcano.sh/vgpu-number": 1, "nvidia.com/gpu": 1}),
            "volcano.sh/vgpu-number and nvidia.com/gpu",
        ),
        (pod({"nvidia.com/gpu": 1}, {"gpu-fraction": "0.5"}), "nvidia.com/gpu and gpu-fraction for one"),
        (pod({}, {"gpu-fraction": "1.5"}), 'gpu-fraction: "1.5"; allowed: a number above 0, up to 1'),
        (pod({}, {"gpu-fraction": "1e999999999"}), "allowed: a number above 0, up to 1"),
        (pod({}, {"gpu-fraction": "half"}), 'gpu-fraction: "half"; allowed: a number above 0, up to 1'),
        (pod({}, {"gpu-fraction": "nan"}), "allowed: a number above 0, up to 1"),
        (pod({}, {"gpu-memory": "4Gi"}), 'gpu-memory: "4Gi"; allowed: a whole number without a suffix'),
        (
            pod({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}),
            "gpu-fraction-container-name: x; there is no such container",
        ),
    ],
)
def test_what_has_no_like_is_left_as_it_is_and_said(document, said):
    found, done = one(document)
    assert found == document
    assert not done.complete
    (note,) = done.notes
    assert note.startswith(f"{document['kind']} p: left as it is: ")
    assert said in note


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_containers_that_are_no_list_are_said(field):
    found, done = one(pod({"nvidia.com/gpumem": 1024}, **{field: "c"}))
    assert found["spec"][field] == "c"
    assert any(f'spec.{field} is "c"; allowed: a list' in note for note in done.notes)


def test_annotations():
    theirs = {
        "nvidia.com/use-gputype": "A100, NVIDIA-Tesla V100",
        "nvidia.com/nouse-gputype": "T4",
        "nvidia.com/use-gpuuuid": "GPU-a,GPU-b",
        "nvidia.com/nouse-gpuuuid": "GPU-c",
        "hami.io/node-scheduler-policy": "binpack",
        "hami.io/gpu-scheduler-policy": "spread",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": "x",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "team": "a",
    }
    found, done = one(pod({"nvidia.com/gpumem": 1024}, theirs))
    assert found["metadata"]["annotations"] == {
        "team": "a",
        "gpupack.io/gpu-model": "*A100*,*Tesla V100*,!*T4*",
        "gpupack.io/gpu-uuid": "GPU-a,GPU-b",
        "gpupack.io/node-policy": "fragmentation",
        "gpupack.io/card-policy": "least-used",
    }
    request = parse_pod(found["metadata"]["annotations"], [], found["spec"]["containers"], GIB)
    assert request is not None
    assert request.selector.admits_model("NVIDIA A100-SXM4-80GB")
    assert not request.selector.admits_model("Tesla T4")
    assert done.notes == []


def test_cores_and_priority_and_other_things_are_said():
    found, done = one(
        pod(
            {
                "nvidia.com/gpu": 1,
                "nvidia.com/gpumem": 1024,
                "nvidia.com/gpucores": 100,
                "nvidia.com/priority": 0,
            },
            {"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "topology-aware"},
            nodeName="n1",
            schedulerName="yunikorn",
            nodeSelector={"gpushare": "true", "zone": "a"},
        )
    )
    assert limits_of(found) == {GIB: 1, COMPUTE: 100}
    assert done.complete
    text = "\n".join(done.notes)
    for said in (
        "gpucores: 100 becomes gpupack.io/gpu-compute-percent, which counts everywhere",
        "for a card alone ask for gpupack.io/gpu-percent: 100",
        "priority is left out",
        "vgpu-mode: mig is left out",
        "topology-aware is left out",
        "nodeName n1 is kept",
        "schedulerName yunikorn is kept",
        "nodeSelector gpushare: true is kept",
    ):
        assert said in text
    assert "zone" not in text


def test_a_container_that_chooses_its_card_itself_is_said():
    document = pod({"nvidia.com/gpumem": 1024})
    document["spec"]["containers"][0] |= {
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        "args": ["--memory=$(ALIYUN_COM_GPU_MEM_CONTAINER)"],
    }
    _, done = one(document)
    assert len(done.notes) == 2
    assert "NVIDIA_VISIBLE_DEVICES" in done.notes[0]
    assert "GPUPACK_MEMORY_MIB" in done.notes[1]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"])
def test_every_kind_that_makes_pods(kind):
    template = {"spec": pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1024})["spec"]}
    spec = {"replicas": 1, "template": template}
    document = {"kind": kind, "metadata": {"name": "p"}, "spec": spec}
    if kind == "CronJob":
        document["spec"] = {"schedule": "0 3 * * *", "jobTemplate": {"spec": spec}}
    found, _ = one(document)
    inner = found["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else found["spec"]
    assert inner["template"]["metadata"] == {"annotations": {"gpupack.io/cards": "2"}}
    assert limits_of(inner["template"]) == {GIB: 2}
    assert inner["template"]["spec"]["schedulerName"] == "gpupack-scheduler"


def test_lists_and_a_list_of_one_kind():
    inner = pod({"nvidia.com/gpumem": 1024})
    bare = {key: value for key, value in inner.items() if key != "kind"}
    found, _ = run(
        {"kind": "List", "items": [inner, {"kind": "List", "items": [inner]}]},
        {"kind": "PodList", "items": [bare]},
    )
    assert limits_of(found[0]["items"][0]) == limits_of(found[0]["items"][1]["items"][0]) == {GIB: 1}
    assert limits_of(found[1]["items"][0]) == {GIB: 1}
    assert "kind" not in found[1]["items"][0]


def test_a_request_without_a_limit_gets_one():
    document = pod({})
    document["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpumem": 1024, "cpu": 1}}
    found, _ = one(document)
    assert found["spec"]["containers"][0]["resources"] == {"requests": {GIB: 1, "cpu": 1}, "limits": {GIB: 1}}


@pytest.mark.parametrize(
    ("annotations", "limits", "cards"),
    [
        ({"gpu-fraction": "0.5"}, {PERCENT: 50}, None),
        ({"gpu-fraction": 1}, {PERCENT: 100}, None),
        ({"gpu-fraction": "0.333", "gpu-fraction-num-devices": "2"}, {PERCENT: 68}, "2"),
        ({"gpu-memory": "3000", "gpu-fraction-num-devices": "2"}, {GIB: 6}, "2"),
        ({"gpu-fraction": "0.5", "gpu-sm-percentage": "30"}, {PERCENT: 50, COMPUTE: 30}, None),
        ({"gpu-memory": "2048", "gpu-memory.limit": "4096", "runai-allocated-gpus": "1"}, {GIB: 2}, None),
    ],
)
def test_annotations_of_kai_ask_for_the_first_container(annotations, limits, cards):
    document = pod({}, annotations, schedulerName="kai-scheduler")
    document["spec"]["containers"] = [{"name": "c"}, {"name": "d"}]
    document["spec"]["initContainers"] = [{"name": "i"}]
    found, done = one(document)
    assert done.complete
    assert [container.get("resources") for container in found["spec"]["containers"]] == [
        {"limits": limits},
        None,
    ]
    assert found["metadata"].get("annotations", {}) == ({"gpupack.io/cards": cards} if cards else {})
    assert found["spec"]["schedulerName"] == "gpupack-scheduler"
    assert "schedulerName kai-scheduler becomes gpupack-scheduler: its queues and gangs" in done.notes[-1]


def test_annotations_of_kai_may_name_the_container():
    document = pod({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "i"})
    document["spec"]["initContainers"] = [{"name": "i"}]
    found, done = one(document)
    assert done.complete
    assert found["spec"]["initContainers"] == [{"name": "i", "resources": {"limits": {PERCENT: 50}}}]
    assert "annotations" not in found["metadata"]


def test_compute_of_kai_beside_whole_cards_is_that_of_each_card():
    found, done = one(pod({"nvidia.com/gpu": 2}, {"gpu-sm-percentage": "30", "gpu-sm-cores": "20"}))
    assert limits_of(found) == {PERCENT: 200, COMPUTE: 30}
    assert found["metadata"]["annotations"] == {"gpupack.io/cards": "2"}
    assert any("gpu-sm-cores: 20 is left out: compute is asked for in percent" in note for note in done.notes)


TEMPLATE_OF_A_CARD = {"spec": pod({"nvidia.com/gpu": 2})["spec"]}


def device_class(name):
    return {"requests": [{"exactly": {"deviceClassName": name}}]}


PATCH = '{"containers":[{"name":"main","resources":{"limits":{"nvidia.com/gpumem":4096}}}]}'


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            named("Workflow", spec={"templates": [{"name": "t", "podSpecPatch": PATCH}]}),
            "nvidia.com/gpumem at spec.templates[0].podSpecPatch",
        ),
        (
            named("ConfigMap", data={"a.yaml": "limits:\n  limitsKey: nvidia.com/gpu\n"}),
            "nvidia.com/gpu at data.a.yaml",
        ),
        (named("HelmRelease", spec={"values": {"nvidiaResource": "nvidia.com/gpu.shared"}}), "by hand"),
        (
            named("Kustomization", patches=[{"patch": "path: /spec/limits/nvidia.com~1gpu"}]),
            "nvidia.com~1gpu at patches[0].patch",
        ),
        (
            named(
                "ClusterQueue",
                "kueue.x-k8s.io/v1beta2",
                spec={"resources": [{"name": "nvidia.com/total-gpumem"}]},
            ),
            "docs/howto/kueue.md",
        ),
        (named("ResourceClaimTemplate", spec=device_class("gpu.nvidia.com")), "docs/dra.md"),
        (named("Queue", "scheduling.run.ai/v2", spec={"resources": {"gpu": {"quota": 4}}}), "docs/queue.md"),
        (
            named("RayCluster", metadata={"name": "p", "annotations": {"gpu-fraction": "0.5"}}),
            "gpu-fraction at metadata.annotations",
        ),
        (
            named("TrainJob", spec={"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}),
            "resourcesPerNode.limits",
        ),
        # A name that an administrator gave NVIDIA's plugin.
        (pod({"nvidia.com/gpu-a100": 1}), "nvidia.com/gpu-a100 at spec.containers[0].resources.limits"),
        (
            pod({}, containers=[{"name": "c", "args": ["--resource=nvidia.com/gpu"]}]),
            "nvidia.com/gpu at spec.containers[0].args[0]",
        ),
        (pod({"amd.com/gpu": 1}), "amd.com/gpu at spec.containers[0].resources.limits: gpupack knows"),
        (pod({"koordinator.sh/gpu-core": 50}), "koordinator.sh/gpu-core at"),
        (
            named("DynamoGraphDeployment", spec={"services": {"W": {"resources": {"limits": {"gpu": "2"}}}}}),
            "gpu at spec.services.W.resources.limits: ",
        ),
        (named("VLLMRuntime", spec={"resources": {"cpu": 4, "gpu": 1}}), "gpu at spec.resources: "),
        (
            named("ResourceClaim", spec=device_class("vfio.gpu.nvidia.com")),
            "vfio.gpu.nvidia.com at spec.requests[0].exactly.deviceClassName: a claim has",
        ),
        (
            named("Model", "kubeai.org/v1", spec={"resourceProfile": "nvidia-gpu-l4:1"}),
            "nvidia-gpu-l4:1 at spec.resourceProfile: write the limits of the profile",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
def test_whatever_names_a_gpu_outside_of_limits_is_said(document, said):
    found, done = one(document)
    assert (found, done.complete) == (document, False)
    (note,) = done.notes
    assert f"{document['kind']} p: left as it is: " in note
    assert said in note


def test_memory_in_an_annotation_is_said():
    _, done = one(pod({"nvidia.com/gpu": 1}, {"nvidia.com/gpumem": "4096"}))
    assert not done.complete
    assert "nvidia.com/gpumem at metadata.annotations: write the amount into the limits" in done.notes[-1]


def test_labels_taints_and_records_ask_for_nothing():
    document = pod(
        {"nvidia.com/gpumem": 1024},
        {"kubectl.kubernetes.io/last-applied-configuration": "nvidia.com/gpu"},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
    )
    document["metadata"]["labels"] = {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}
    document["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"gpu": "0"}}}]
    document["metadata"]["managedFields"] = [{"fieldsV1": {"f:nvidia.com/gpu": {}}}]
    document["status"] = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    flavor = named(
        "ResourceFlavor", "kueue.x-k8s.io/v1beta2", spec={"nodeLabels": {"pool": "nvidia.com/gpu"}}
    )
    profile = named("Model", "kubeai.org/v1", spec={"resourceProfile": "cpu:2"})
    claim = named("ResourceClaim", spec={"requests": [{"exactly": {"deviceClassName": "gpupack"}}]})
    _, done = run(document, flavor, profile, claim)
    assert (done.complete, done.notes) == (True, [])


@pytest.mark.parametrize(
    ("api", "document", "path"),
    [
        ("serving.knative.dev/v1", {"template": TEMPLATE_OF_A_CARD}, ("template", "spec")),
        (
            "serving.kserve.io/v1beta1",
            {"predictor": {"model": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}},
            ("predictor",),
        ),
        (
            "serving.kserve.io/v1beta1",
            {"predictor": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]}},
            ("predictor",),
        ),
    ],
)
def test_a_scheduler_is_written_into_no_kind_that_refuses_it(api, document, path):
    kind = "Service" if "knative" in api else "InferenceService"
    found, done = one(named(kind, api, spec=document))
    assert done.complete
    holder = found["spec"]
    for step in path:
        holder = holder[step]
    assert "schedulerName" not in holder
    annotated = found["spec"]["template"]["metadata"] if kind == "Service" else holder
    assert annotated["annotations"] == {"gpupack.io/cards": "2"}
    assert f"{PERCENT}: 200" in done.text
    assert any("the kind refuses it: policy gpupack-scheduler-name sets it" in note for note in done.notes)


def test_a_template_of_a_workflow_is_a_pod():
    limits = {"limits": {"nvidia.com/gpu": 2}}
    found, done = one(
        named("Workflow", spec={"templates": [{"name": "t", "container": {"resources": limits}}]})
    )
    assert done.complete
    (template,) = found["spec"]["templates"]
    assert template["metadata"]["annotations"] == {"gpupack.io/cards": "2"}
    assert template["container"]["resources"] == {"limits": {PERCENT: 200}}
    assert template["schedulerName"] == "gpupack-scheduler"


def test_pods_without_a_place_for_annotations_are_left_where_they_need_one():
    def grove(gpus):
        limits = {"limits": {"nvidia.com/gpu": gpus}}
        return named("PodCliqueSet", spec={"podSpec": {"containers": [{"name": "c", "resources": limits}]}})

    found, done = one(grove(1))
    assert done.complete
    assert found["spec"]["podSpec"]["schedulerName"] == "gpupack-scheduler"
    found, done = one(grove(2))
    assert (found, done.complete) == (grove(2), False)
    assert "its pods need the annotation gpupack.io/cards: 2, which has no place here" in done.notes[0]


def test_a_label_of_a_model_is_said_in_selector_and_affinity():
    term = {
        "matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["L40S", "T4"]}]
    }
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    _, done = one(
        pod({"nvidia.com/gpumem": 1024}, affinity=affinity, nodeSelector={"nvidia.com/gpu.product": "L40S"})
    )
    assert done.complete
    selector, required = done.notes
    assert "nodeSelector nvidia.com/gpu.product: L40S is kept" in selector
    assert "nodeAffinity nvidia.com/gpu.product: L40S, T4 is kept" in required
    assert all("the annotation gpupack.io/gpu-model chooses cards by model" in note for note in done.notes)


def test_who_will_write_an_object_again_is_said_of_those_of_a_cluster():
    document = pod({"nvidia.com/gpumem": 1024}, {"meta.helm.sh/release-name": "chat"})
    assert one(document)[1].notes == []
    document["metadata"] |= {"resourceVersion": "5", "ownerReferences": [{"kind": "Model", "name": "m"}]}
    (note,) = one(document)[1].notes
    assert note == "Pod p: Model m and Helm's release chat will write it again: change that, too"


def test_two_times_is_as_good_as_once():
    text = yaml.safe_dump(pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1024}), sort_keys=False)
    once = migrate(text, "f", OPTIONS)
    twice = migrate(once.text, "f", OPTIONS)
    assert (twice.text, twice.notes) == (once.text, [])


def test_everything_else_stays_as_it_was_written():
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
  creationTimestamp: '2024-01-01T00:00:00Z'
spec:
  volumes:
  - secret: {secretName: s, defaultMode: 0644}
    name: v
  containers:
  - name: c
    command: ["sh", '-c']
    args:
    - |
      # no comment
      sleep 1
    env:
    - {name: A, value: "on"}
    - name: B
      value: '1e3'
    - name: C
      value: grüße
    resources:
      limits:
        memory: 1Gi
        aliyun.com/gpu-mem: 3
        cpu: "2"
  schedulerName: default-scheduler
  emptyDir: {}
  nothing:
"""
    done = migrate(text, "f", OPTIONS)
    expected = text.replace("aliyun.com/gpu-mem", GIB).replace("default-scheduler", "gpupack-scheduler")
    assert done.text == expected
    assert done.notes == []


def test_a_time_stays_a_text():
    text = WITH_GPU.replace("  name: p", "  creationTimestamp: 2024-01-01T00:00:00Z")
    assert "  creationTimestamp: 2024-01-01T00:00:00Z\n" in migrate(text, "f", OPTIONS).text


def test_json_is_read_by_its_own_rules():
    text = '{"kind":"Pod",\t"metadata":{"name":"\\ud83d\\ude00","a":null,"b":true,"c":1e3,"d":"on # x"}}'
    done = migrate(text, "f", OPTIONS)
    assert (
        done.text
        == "kind: Pod\nmetadata:\n  name: \U0001f600\n  a: null\n  b: true\n  c: 1000.0\n  d: 'on # x'\n"
    )
    assert done.notes == []


WITH_GPU = """\
# who wrote this
apiVersion: v1
kind: Pod  # one
metadata:
  name: p
  annotations:
    # why these
    nvidia.com/use-gputype: A100  # fast
    # of whom
    team: a
spec:
  containers:
    # the only one
    - name: c
      resources:
        limits:
          # for each card
          nvidia.com/gpumem: 8192  # MiB
          nvidia.com/gpu: 2  # cards
          # not too much
          memory: 1Gi
      # how
      args: ["a", 'b']   # quoted
# the end
"""


def test_comments_and_order_stay():
    done = migrate(WITH_GPU, "f.yaml", OPTIONS)
    assert done.notes == []
    assert '    gpupack.io/gpu-model: "*A100*" # fast\n' in done.text.replace("'", '"')
    kept = re.findall(r"#.*", WITH_GPU)
    assert re.findall(r"#.*", done.text) == kept
    keys = [line.split(":")[0].strip(" -") for line in done.text.splitlines() if ":" in line]
    assert keys == [
        *("apiVersion", "kind", "metadata", "name", "annotations", "gpupack.io/gpu-model", "team"),
        *("gpupack.io/cards", "spec", "containers", "name", "resources", "limits", GIB, "memory"),
        *("args", "schedulerName"),
    ]
    assert f"          {GIB}: 16 # MiB\n" in done.text
    assert """      args: ["a", 'b']   # quoted\n""" in done.text
    assert migrate(done.text, "f.yaml", OPTIONS).text == done.text


@pytest.mark.parametrize("indent", [0, 2])
def test_lists_are_indented_as_they_were(indent):
    head, key, rest = WITH_GPU.partition("containers:\n")
    text = WITH_GPU if indent else head + key + re.sub(r"^  (?= )", "", rest, flags=re.MULTILINE)
    assert read_yaml(text) == read_yaml(WITH_GPU)
    lines = migrate(text, "f", OPTIONS).text.splitlines()
    assert " " * (2 + indent) + "- name: c" in lines
    assert " " * (2 + indent) + "# the only one" in lines


def test_documents_that_do_not_change_are_the_same_bytes():
    other = "kind:   ConfigMap # odd\ndata: {a:   b,\n  c: [ 1,2 ]}\n\n\n# after\n"
    text = f"# first\n---\n{other}--- # second\n{WITH_GPU}---\n# nothing\n---\n{other}"
    done = migrate(text, "f", OPTIONS)
    first, second = done.text.split(f"--- # second\n{WITH_GPU[:20]}")
    assert first == f"# first\n---\n{other}"
    assert second.endswith(f"# the end\n---\n# nothing\n---\n{other}")
    assert len(list(read_yaml_documents(done.text))) == 4
    assert migrate(other, "f", OPTIONS).text == other


def test_a_fault_is_told_with_the_line_of_the_file():
    with pytest.raises(InputError, match="f, line 5 is not YAML"):
        migrate("kind: A\n---\nkind: B\n---\na: [", "f", OPTIONS)


def test_anchors_stay_where_nothing_of_them_changes():
    text = WITH_GPU.replace("  name: p", "  name: p\n  labels: &labels {app: x}").replace(
        "spec:\n", "spec:\n  nodeSelector: *labels\n"
    )
    done = migrate(text, "f", OPTIONS)
    assert "labels: &labels {app: x}" in done.text
    assert "nodeSelector: *labels" in done.text


def test_what_asks_for_cards_in_several_places_is_written_out():
    """So each pod is changed, or left, by itself."""
    text = """\
kind: List
items:
- kind: Pod
  metadata: {name: a}
  spec:
    containers:
    - name: c
      resources: &gpu {limits: {nvidia.com/gpumem: 1024}}
- kind: Pod
  metadata: {name: b}
  spec:
    containers:
    - name: c
      resources: *gpu
    - name: d
      resources: {limits: {nvidia.com/mig-1g.5gb: 1}}
- kind: Pod
  metadata: {name: c}
  spec:
    containers:
    - name: c
      resources:
        limits: {<<: {nvidia.com/gpumem: 2048}, cpu: 1}
"""
    done = migrate(text, "f", OPTIONS)
    items = read_yaml(done.text)["items"]
    assert limits_of(items[0]) == {GIB: 1}
    assert limits_of(items[1]) == {"nvidia.com/gpumem": 1024}
    assert limits_of(items[2]) == {GIB: 2, "cpu": 1}


TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 2048}}}]}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (
            "JobSet",
            {"replicatedJobs": [{"name": n, "template": {"spec": {"template": TEMPLATE}}} for n in "ab"]},
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {name: {"template": TEMPLATE} for name in ("Master", "Worker")}},
        ),
        (
            "RayCluster",
            {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{"template": TEMPLATE}]},
        ),
        ("RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": TEMPLATE}}}),
        (
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}},
        ),
    ],
)
def test_pod_templates_are_found_wherever_they_stand(kind, spec):
    found, done = one({"kind": kind, "metadata": {"name": "x"}, "spec": spec})
    assert (done.complete, done.notes) == (True, [])
    containers = [{"name": "c", "resources": {"limits": {GIB: 2}}}]
    changed = {"spec": {"containers": containers, "schedulerName": "gpupack-scheduler"}}
    assert json.dumps(found["spec"]) == json.dumps(spec).replace(json.dumps(TEMPLATE), json.dumps(changed))


GANGS = re.findall(r"```yaml\n(.*?)```", GANGS_PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", GANGS, ids=lambda text: read_yaml(text)["kind"])
def test_documents_of_controllers_keep_their_comments(text):
    theirs = text.replace(GIB, "aliyun.com/gpu-mem")
    lines = [f"{line}  # {number}" for number, line in enumerate(theirs.splitlines())]
    done = migrate("\n".join(["# of a team", *lines, "# the end", ""]), "f", OPTIONS)
    assert (done.complete, done.notes) == (True, [])
    numbers = [f"# {number}" for number in range(len(lines))]
    assert re.findall(r"#.*", done.text) == ["# of a team", *numbers, "# the end"]
    ours, added = re.subn(r"\n *schedulerName: gpupack-scheduler", "", done.text)
    assert read_yaml(ours) == read_yaml(text)
    assert added == text.count(GIB) > 0


def test_a_note_says_which_template_it_is_about():
    other = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]}}
    spec = {"headGroupSpec": {"template": other}, "workerGroupSpecs": [{"template": TEMPLATE}]}
    _, done = one({"kind": "RayCluster", "metadata": {"name": "x"}, "spec": spec})
    (note,) = done.notes
    assert note.startswith("RayCluster x: spec.headGroupSpec.template: left as it is: container c: ")
    assert not done.complete


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.yaml is empty"),
        ("---\n---\n", "f.yaml is empty"),
        ("a: [", "f.yaml, line 1 is not YAML"),
        ("x: {{ .Values.x }}", "helm template"),
        ("x:\n  {{- if .a }}\n  y: 1", "helm template"),
        ("- a", "document 1 has no kind"),
        ("kind: Pod\n---\nfoo: bar", "document 2 has no kind"),
        ("kind: Pod\n<<: 3", "a mapping or list of mappings for merging"),
        ("kind: \x00", "is not YAML"),
        (BOMB, f"more than {MAX_VALUES} values"),
        ("[" * 1200, "nested too deeply"),
        ('{"a":' * 10_000, "nested too deeply"),
    ],
)
def test_rubbish_is_refused_in_one_line(text, said):
    with pytest.raises(InputError, match=re.escape(said)) as error:
        migrate(text, "f.yaml", OPTIONS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spec",
    [None, "x", [], {"containers": None}, {"containers": "x"}, {"containers": [None, {"resources": "x"}]},
     {"containers": [{"resources": {"limits": None, "requests": [1]}}]}],
)  # fmt: skip
def test_pods_that_kubernetes_would_refuse_are_left_to_it(spec):
    document = {"kind": "Pod", "metadata": None, "spec": spec}
    assert one(document)[0] == document
