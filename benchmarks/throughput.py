"""Pods bound per second through the real kube-scheduler: alone, with gpupack's extender, behind its queue.

`python -m benchmarks.throughput --nodes N --pods P [--sides none,extender,batch]`, as root, starts a control
plane on this machine with fake nodes of eight 80 GiB cards that carry packed words. Rounds take turns, so
that a slow minute of the machine hurts all sides. All sides run the same KubeSchedulerConfiguration but for
`extenders`. With `batch` the pods have no gate and name `gpupack-batch`: `gpupack queue`, started last, hands
them to the scheduler, which binds them. With `gates` the pods are born with the gate, and the queue in batch
mode releases them to kube-scheduler.

More sides show what nobody can save. With `patches` a client that decides nothing names the nodes in place
of the queue, and kube-scheduler binds without the extender. With `writes` that client sends the Bindings too,
and there is no kube-scheduler. With `direct` the pods have no gate, and that client sends the Bindings alone:
the ceiling of a scheduler with one write a pod. With `compute` the pods of `extender` ask for percent of
their card's compute too, and with `none-compute` those of `none`: each extended resource of a pod costs
kube-scheduler time of its own on each node. `claims` and `dra`: see `benchmarks.claim_sides`. With `gangs`
the pods are those of PodGroups of eight; the gates for that are on for all sides of the run then.

A round's figure is its pods over the time from the first binding to the last. How fast that is depends on who
else uses the machine. So the processor time that each process uses meanwhile is printed beside the rate, in
milliseconds a pod. kube-scheduler, the extender and the queue work on one pod after the other. From the time
of the busiest of the three follow the pods a second that it allows on one core. So sides can be compared
where the API server and etcd, which are not measured, have cores of their own. kube-scheduler looks at the
nodes of a pod with several threads, so it may do better on more cores.
The last line is JSON.
"""

import http.client
import json
import os
import ssl
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from allocator.names import (
    BATCH_SCHEDULER,
    COMPUTE_RESOURCE,
    NODE_CARDS,
    NODE_HOLDS,
    QUEUE_GATE,
    QUEUE_NAME,
)
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from allocator.request import WHOLE
from benchmarks import claim_sides
from benchmarks.floors import BareClient
from benchmarks.machine import at_least, cpu_s, machine, make_parser
from benchmarks.profiled import FILE
from scheduler_plugin.settings import Settings
from tests.cluster.harness import Api, Cluster, until, workload
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.controlplane import RESOURCE, free_ports
from tests.cluster.harness.daemons import QueueController

CARDS = 8
CARD_GIB = 80
REQUESTS_GIB = (4, 8, 10, 16, 20, 24, 40)
WRITERS = 8
GANG_PODS = 8
ASKED_COMPUTE = "10"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
WITH_EXTENDER = ("extender", "compute", "gangs", "claims", "batch", "gates")
WITH_COMPUTE = ("compute", "none-compute")
SIDES = ("none", "none-compute", *WITH_EXTENDER, "dra", "patches", "writes", "direct")
WITH_QUEUE = ("batch", "gates")
GATED = ("gates", "patches", "writes")
BARE = ("patches", "writes", "direct")
"""Sides of which a client that decides nothing sends the writes."""
WITHOUT_SCHEDULER = ("writes", "direct")
PROGRAMS = ("kube-scheduler", "kube-apiserver", "etcd")
EXTENDER = "extender"
QUEUE = "queue"
ONE_AFTER_THE_OTHER = ("kube-scheduler", EXTENDER, QUEUE)
"""Processes that work on one pod after the other."""
NOBODY = "nobody"
"""A scheduler that does not run: the API server needs a name."""
BENCHMARK = "benchmark"
"""This process: it watches, and of some sides it is the client."""
SETTLED_S = Settings().bind_timeout_s + 1
"""What has to be ready before the clock starts gets this time. An extender that has just started holds its
first Binding back, and kube-scheduler would decide for all pods meanwhile, before the clock starts."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round showed.

    Attributes:
        pods_per_s: Pods bound per second.
        cpu_ms: Processor milliseconds a pod by process.
    """

    pods_per_s: float
    cpu_ms: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.pods_per_s:.1f} pods/s; processor ms a pod: {listed(self.cpu_ms)}"


def main() -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser("throughput", __doc__, nodes=(1000, "fake nodes"), rounds=(9, "rounds a side"))
    parser.add_argument("--pods", type=at_least(2), default=1000, help="pods a round (default 1000)")
    parser.add_argument(
        "--sides", default="none,extender", help=f"of {','.join(SIDES)} (default %(default)s)"
    )
    parser.add_argument(
        "--shortlist", type=int, default=1, help="the extender's (default 1, as manifests/scheduler has it)"
    )
    parser.add_argument("--profile", help="file for what each library costs the extender; slows it down")
    options = parser.parse_args()
    sides = tuple(options.sides.split(","))
    if not set(sides) <= set(SIDES) or len(set(sides)) != len(sides):
        parser.error(f"--sides {options.sides!r}; allowed: {', '.join(SIDES)}, by commas, each once")
    print(machine())
    print(f"shortlist {options.shortlist}")
    rounds = measure(
        options.nodes, options.pods, options.rounds, options.shortlist, sides, profile=options.profile
    )
    rates = {side: round(statistics.median(each.pods_per_s for each in rounds[side]), 1) for side in sides}
    cpu_ms = {side: median_cpu_ms(rounds[side]) for side in sides}
    if "none" in sides:
        for side in sides:
            print(f"{side} / none: {rates[side] / rates['none']:.2f}")
    for side in sides:
        print(f"processor ms a pod, {side}: {listed(cpu_ms[side])}")
    allowed = {side: bound for side in sides if (bound := allowed_pods_per_s(cpu_ms[side])) is not None}
    for side, (name, pods_per_s) in allowed.items():
        print(f"computed, not measured, {side}: {name} on one core allows {pods_per_s:.0f} pods/s")
    print(
        json.dumps(
            {
                "nodes": options.nodes,
                "pods_per_s": rates,
                "cpu_ms_per_pod": cpu_ms,
                "computed_pods_per_s_of_one_core": {
                    side: round(bound, 1) for side, (_, bound) in allowed.items()
                },
            }
        )
    )


def allowed_pods_per_s(cpu_ms: Mapping[str, float]) -> tuple[str, float] | None:
    """The busiest process that works on one pod after the other, and the pods a second of a core with it.

    Returns:
        None where no such process runs.
    """
    busiest = max(((cpu_ms[name], name) for name in ONE_AFTER_THE_OTHER if cpu_ms.get(name)), default=None)
    return None if busiest is None else (busiest[1], 1000 / busiest[0])


def median_cpu_ms(rounds: Sequence[Round]) -> dict[str, float]:
    """The median of the rounds, process by process."""
    return {
        name: round(statistics.median(each.cpu_ms[name] for each in rounds), 2) for name in rounds[0].cpu_ms
    }


def listed(cpu_ms: Mapping[str, float]) -> str:
    """Write processor times for people."""
    return ", ".join(f"{name} {value:.2f}" for name, value in cpu_ms.items())


def measure(
    nodes: int, pods: int, rounds: int, shortlist: int, sides: Sequence[str], *, profile: str | None = None
) -> dict[str, list[Round]]:
    """Run all rounds on one control plane.

    Returns:
        What each round showed, by side.
    """
    cluster = Cluster(with_node=False)
    results: dict[str, list[Round]] = {side: [] for side in sides}
    if profile:
        cluster.extender.module = "benchmarks.profiled"
        cluster.extender.environment[FILE] = str(Path(profile).absolute())
    try:
        cluster.control.with_pod_groups = "gangs" in sides
        cluster.control.start_without_controllers()
        in_parallel(nodes, lambda index: cluster.api.post(NODES, fake_node(index)))
        print(f"{nodes} nodes of {CARDS} x {CARD_GIB} GiB")
        for number in range(rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                results[side].append(one_round(cluster, pods, side, ["--shortlist", str(shortlist)]))
                print(f"round {number + 1} {side}: {results[side][-1]}", flush=True)
    finally:
        cluster.stop()
    return results


def one_round(cluster: Cluster, pods: int, side: str, flags: Sequence[str]) -> Round:
    """Create pods, start kube-scheduler (and what belongs to the side), wait until all are bound."""
    control, api = cluster.control, cluster.api
    control.configure_scheduler(cluster.extender.url if side in WITH_EXTENDER else None)
    claim_sides.prepare(cluster, side, in_parallel)
    queue = queue_of(cluster, side) if side in WITH_QUEUE else None
    if side in WITH_EXTENDER:
        cluster.extender.flags = [*flags, "--commit"] if side == "batch" else list(flags)
        cluster.extender.start()
    groups = -(-pods // GANG_PODS) if side == "gangs" else 0
    in_parallel(groups, lambda i: api.post(GROUPS, fake_group(i, min(GANG_PODS, pods - i * GANG_PODS))))
    in_parallel(pods, lambda i: api.post(PODS, fake_pod(cluster, i, side)))
    start = api.get(PODS, limit=1)["metadata"]["resourceVersion"]
    try:
        if side in ("extender", "compute", "gangs", "claims"):
            time.sleep(SETTLED_S)
        pids = {BENCHMARK: os.getpid()}
        if side not in WITHOUT_SCHEDULER:
            control.start_scheduler()
        pids |= {name: control.running[name].pid for name in PROGRAMS if name in control.running}
        if side in WITH_EXTENDER:
            pids[EXTENDER] = cluster.extender.pid
        client: AbstractContextManager[object] = nullcontext()
        if queue is not None:
            queue.start(ready=False)
            pids[QUEUE] = queue.pid
        elif side in BARE:
            if side not in WITHOUT_SCHEDULER:
                time.sleep(SETTLED_S)
            client = bare_client(cluster, bind=side in WITHOUT_SCHEDULER)
        with client:
            first, last = binding_times(api, start, pods, pids)
    finally:
        if "kube-scheduler" in control.running:
            control.kill("kube-scheduler")
        cluster.extender.kill()
        if queue is not None:
            queue.kill()
    api.delete(PODS, grace_s=0)
    until(lambda: not api.get(PODS, limit=1)["items"], "pods deleted", 120)
    claim_sides.clear(cluster, in_parallel)
    in_parallel(groups, lambda i: delete_group(api, i))
    more = pods - 1
    cpu_ms = {name: 1000 * (last.cpu_s[name] - first.cpu_s[name]) / more for name in pids}
    return Round(more / (last.at_s - first.at_s), cpu_ms)


def fake_group(index: int, pods: int) -> dict[str, Any]:
    """A PodGroup whose pods start together."""
    policy = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    return {"metadata": {"name": f"gang-{index}"}, "spec": policy}


def delete_group(api: Api, index: int) -> None:
    """Delete a PodGroup, whose finalizer is that of a controller that does not run."""
    path = f"{GROUPS}/gang-{index}"
    api.delete(path)
    api.merge(path, {"metadata": {"finalizers": None}})


def bare_client(cluster: Cluster, *, bind: bool) -> BareClient:
    """A client for all pods that exist, not started."""
    api = cluster.api
    pods = api.get(PODS)["items"]
    return BareClient(str(cluster.control.admin_config), pods, api.names(NODES), bind=bind)


def queue_of(cluster: Cluster, side: str) -> QueueController:
    """`gpupack queue` in batch mode with one queue, not started."""
    control = cluster.control
    (port,) = free_ports(1)
    queue = QueueController(control.admin_config, cluster.home, control.log_dir, port)
    if side == "batch":
        queue.flags = ["--committer", cluster.extender.url]
    queue.config.write_text("mode: batch\nqueues: [{name: bench}]\n")
    return queue


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment.

    Attributes:
        at_s: Seconds of the monotonic clock.
        cpu_s: Processor seconds so far, by process.
    """

    at_s: float
    cpu_s: Mapping[str, float]


def binding_times(
    api: Api, resource_version: str, count: int, pids: Mapping[str, int]
) -> tuple[Reading, Reading]:
    """Watch until `count` pods have a node.

    Returns:
        The clocks when the first and the last of them were seen bound.
    """
    bound: set[str] = set()
    first: Reading | None = None
    for event in watch(api, PODS, resource_version):
        pod = event["object"]
        if pod["spec"].get("nodeName") and pod["metadata"]["name"] not in bound:
            bound.add(pod["metadata"]["name"])
            if first is None or len(bound) == count:
                now = Reading(time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()})
                if first is not None:
                    return first, now
                first = now
    raise AssertionError("the watch ended")


def watch(api: Api, path: str, resource_version: str) -> Iterator[Any]:
    """Yield the events of the objects below a path for ever; two silent minutes are an error.

    An API server with much to do ends a watch that is slow for a moment: it goes on from where it was.
    """
    parts = urlsplit(api.url)
    context = ssl.create_default_context(cafile=api.ca)
    while True:
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=120, context=context
        )
        query = f"watch=true&resourceVersion={resource_version}"
        connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Bearer {api.token}"})
        try:
            for line in connection.getresponse():
                event = json.loads(line)
                assert event["type"] != "ERROR", event
                resource_version = event["object"]["metadata"]["resourceVersion"]
                yield event
        finally:
            connection.close()


def in_parallel(count: int, write: Callable[[int], Any]) -> None:
    """Call `write` for 0..count-1 with a few threads."""
    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(write, range(count)):
            pass


def fake_node(index: int, *, compute: bool = True, used_gib: int = 0) -> dict[str, Any]:
    """A Node object without a kubelet: ready, and roomy in all but cards.

    Args:
        compute: Publish the cards' compute too, which a daemon of an older release does not.
        used_gib: What is in use on every card.
    """
    of_compute = (WHOLE, [0] * CARDS) if compute else ()
    words = node_resources(NodeWords.of(1024, [CARD_GIB] * CARDS, [used_gib] * CARDS, 1, *of_compute))
    name = f"node-{index:05d}"
    resources = {"cpu": "128", "memory": "1Ti", "pods": "250", RESOURCE: str(CARDS * CARD_GIB)}
    if compute:
        resources[COMPUTE_RESOURCE] = str(CARDS * WHOLE)
    resources.update({key: str(value) for key, value in words.items()})
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {
                NODE_CARDS: dump_cards(inventory(index)),
                NODE_HOLDS: dump_holds(Holds(0, frozenset())),
            },
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"}],
        },
    }


def inventory(node: int) -> list[CardRecord]:
    """The cards of one fake node."""
    uuids = [f"GPU-00000000-0000-4000-{node:04x}-{card:012x}" for card in range(CARDS)]
    return [
        CardRecord(uuid, card, "NVIDIA H100 80GB HBM3", CARD_GIB * 1024, card // 4, healthy=True)
        for card, uuid in enumerate(uuids)
    ]


def fake_pod(cluster: Cluster, index: int, side: str) -> dict[str, Any]:
    """A pod with one container, of the request shapes in turn; it waits for whoever binds it on that side."""
    gib = REQUESTS_GIB[index % len(REQUESTS_GIB)]
    limits: dict[str, str | int] = {"cpu": "100m", "memory": "256Mi"}
    if side in WITH_COMPUTE:
        limits[COMPUTE_RESOURCE] = ASKED_COMPUTE
    if side == "dra":
        return claim_sides.claim_pod(cluster, f"pod-{index:05d}", gib, limits)
    spec: dict[str, Any] = {}
    if side == "gangs":
        spec["schedulingGroup"] = {"podGroupName": f"gang-{index // GANG_PODS}"}
    if side == "direct":
        spec["schedulerName"] = NOBODY
    if side == "batch":
        spec["schedulerName"] = BATCH_SCHEDULER
    if side in GATED:
        spec["schedulingGates"] = [{"name": QUEUE_GATE}]
    labels = {QUEUE_NAME: "bench"} if side in (*GATED, "batch") else {}
    return workload.pod(f"pod-{index:05d}", workload.container(gib=gib, limits=limits), labels=labels, **spec)


if __name__ == "__main__":
    main()
