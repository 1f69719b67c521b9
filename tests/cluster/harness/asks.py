"""Pods that ask for memory, rightly and wrongly, and whether the product's own code takes them."""

from typing import Any

import msgspec
import pytest

from allocator.errors import RequestError
from allocator.names import POD_CARD_POLICY, POD_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.registry import is_name
from allocator.request import MAX_UNITS, parse_pod
from kubeapi.objects import Pod
from scheduler_plugin.queue.cache.pods import read_queue_info
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.cluster.harness import workload as w
from tests.cluster.harness.controlplane import COMPUTE, PERCENT, RESOURCE


def annotated(
    gib: int | str,
    annotations: dict[str, str],
    init: int | None = None,
    *,
    sidecar: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A pod with annotations under our prefix and, with `init`, an init container or sidecar that asks."""
    before = [] if init is None else [w.container("init", gib=init, sidecar=sidecar)]
    own = {f"gpupack.io/{key}": value for key, value in annotations.items()}
    return w.pod("p", w.container(limits={RESOURCE: gib}), init=before, annotations=own, **more)


def python_refuses(pod: dict[str, Any]) -> bool:
    """Whether the product's own reading of a pod finds a mistake in it."""
    annotations, spec = dict(pod["metadata"]["annotations"]), pod["spec"]
    # The API server looks at the form only: which names there are the extender knows.
    policies = [annotations.pop(key, "any") for key in (POD_NODE_POLICY, POD_CARD_POLICY)]
    try:
        parse_pod(annotations, spec["initContainers"], spec["containers"], RESOURCE)
    except RequestError:
        return True
    fault = read_queue_info(msgspec.convert(pod, Pod)).fault
    return bool(fault) or not all(map(is_name, policies))


AMOUNTS = ("1", "8", "8k", "1e5", "0.5", "-1", "8Gi", "8Mi", "8G", "8192Mi", str(2**63 - 1))
COMPUTES = ("1", "100", "101", "3e1", "1k", "2.5", "-1", "50Mi")
BOUNDS = (str(MAX_UNITS), str(MAX_UNITS + 1))
VALUES = {
    "cards": ("1", "2", "3", "02", "0", "64", "65", "100", "-1", "2.0", "two", "", " 2"),
    "gpu-model": (
        "*A100*,*H100*",
        "!*T4*",
        "! T4 , L40S",
        "",
        ",",
        "a,",
        "!",
        "! ",
        "!!a",
        "a,!b",
        "é*",
        "*",
    ),
    "gpu-uuid": ("GPU-1*", "!GPU-1", "GPU-1,,GPU-2", "\ta\n", ",".join("a" * 64), ",".join("a" * 65)),
    "node-policy": (*NODE_POLICIES.names(), "of-others-2", "", "Best-Fit", "a--b", "a-"),
    "data": (
        "",
        "imagenet, llama",
        ",".join(map(str, range(64))),
        ",".join(map(str, range(65))),
        ",".join("a" * 65),
        "a, ," + "," * 64,
    ),
    "job": ("", "anything", "é a" * 84 + "b", "b" * 254, "a\tb", "a\xa0b", "a\u200bb", "a\n"),
    "card-policy": (*CARD_POLICIES.names(), "of-others-2", "", "a\nb", "a\n", "-a"),
}
GANGS = (
    ("g", "4"),
    ("g", "0"),
    ("g", "1025"),
    ("g", "many"),
    ("g", None),
    ("", "4"),
    (None, "4"),
    ("", None),
    ("g" * 253, "4"),
    ("g" * 254, "4"),
    ("a\nb", "4"),
)
TABLE = [
    *(pytest.param(annotated(amount, {}), id=f"amount {amount}") for amount in AMOUNTS + BOUNDS),
    *(
        pytest.param(
            w.pod("p", w.container(limits={memory: 8, COMPUTE: amount})), id=f"{memory}, compute {amount}"
        )
        for memory in (RESOURCE, PERCENT)
        for amount in COMPUTES
    ),
    pytest.param(w.pod("p", w.container(limits={COMPUTE: 30})), id="compute alone"),
    pytest.param(
        w.pod("p", w.container(gib=8), w.container("b", limits={COMPUTE: 30})),
        id="compute of another container",
    ),
    pytest.param(
        w.pod("p", w.container(limits={RESOURCE: 8, COMPUTE: 35}), annotations={"gpupack.io/cards": "2"}),
        id="compute of each of two cards",
    ),
    *(
        pytest.param(annotated(64, {key: value}), id=f"{key} {value!r:.20}")
        for key, values in VALUES.items()
        for value in values
    ),
    *(
        pytest.param(
            annotated(
                8, {key: text for key, text in (("gang", gang), ("gang-size", size)) if text is not None}
            ),
            id=f"gang {gang!r} of {size}",
        )
        for gang, size in GANGS
    ),
    *(
        pytest.param(
            annotated(8, {"gang-size": "4"}, labels=labels), id=f"gang size beside {next(iter(labels))}"
        )
        for labels in (
            {"scheduling.x-k8s.io/pod-group": "g"},
            {"pod-group.scheduling.sigs.k8s.io": "g"},
            {"leaderworkerset.sigs.k8s.io/name": "g", "leaderworkerset.sigs.k8s.io/group-index": "0"},
            {"leaderworkerset.sigs.k8s.io/group-index": "0"},
        )
    ),
    pytest.param(annotated(8, {"cards": "2"}, init=2), id="cards beside an init container"),
    pytest.param(annotated(8, {"cards": "2"}, init=2, sidecar=True), id="cards beside a sidecar"),
    pytest.param(
        annotated(8, {"cards": "2"}, init=3, sidecar=True), id="cards that do not divide a sidecar's"
    ),
]
