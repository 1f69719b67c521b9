"""How long pods on their own wait until they are bound while gangs fail beside them, and whose time that is.

`python -m benchmarks.beside_gangs [--nodes N] [--gangs G] [--pods P] [--rounds R]`, as root, starts a control
plane on this machine with fake nodes on whose cards 60 of 80 GiB are in use. The gangs are PodGroups of eight
pods of 40 GiB: for kube-scheduler's sum they fit, and for no card. The pods on their own ask for 4 GiB, one
after the other: the next one is created once the one before is bound.

kube-scheduler works on one pod or PodGroup after the other, and a PodGroup is more work. So every round is
run a second time with an extender that decides nothing: it lets every pod pass on all nodes, refuses every
pod of a gang on all nodes, and sends the Binding. How much longer pods wait there is kube-scheduler's own
share. The processor time of both is printed, too, because waits say little on a busy machine.

The last line is JSON; its `ours` is how much longer pods wait beside gangs than without them, with gpupack,
over the same with the extender that decides nothing. 1.1 is 10 % worse.
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.machine import cpu_s, machine, make_parser
from benchmarks.throughput import (
    EXTENDER,
    GANG_PODS,
    GROUPS,
    SETTLED_S,
    delete_group,
    fake_group,
    fake_node,
    in_parallel,
    listed,
    watch,
)
from tests.cluster.harness import Api, Cluster, until, workload
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.post_server import PostServer

USED_GIB, GANG_GIB, POD_GIB = 60, 40, 4
OURS, NOBODY = "gpupack", "an extender that decides nothing"
EXTENDERS: Final = (OURS, NOBODY)


def main() -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser(
        "beside_gangs",
        __doc__,
        nodes=(50, "fake nodes"),
        gangs=(10, "gangs that fail"),
        pods=(50, "pods on their own in a round"),
        rounds=(4, "rounds"),
    )
    options = parser.parse_args()
    print(machine())
    waits: dict[tuple[str, int], list[float]] = {}
    costs: dict[tuple[str, int], list[dict[str, float]]] = {}
    cluster = Cluster(with_node=False)
    try:
        cluster.control.with_pod_groups = True
        cluster.control.start_without_controllers()
        in_parallel(options.nodes, lambda index: cluster.api.post(NODES, fake_node(index, used_gib=USED_GIB)))
        for number in range(options.rounds):
            for extender in EXTENDERS if number % 2 == 0 else reversed(EXTENDERS):
                for gangs in (0, options.gangs):
                    found, cpu_ms = one_round(cluster, extender, gangs, options.pods)
                    waits.setdefault((extender, gangs), []).extend(found)
                    costs.setdefault((extender, gangs), []).append(cpu_ms)
                    what = f"{quantiles(found)}; processor ms a pod: {listed(cpu_ms)}"
                    print(f"round {number + 1}, {extender}, {gangs} gangs: {what}", flush=True)
    finally:
        cluster.stop()
    longer = {
        extender: statistics.median(waits[extender, options.gangs]) / statistics.median(waits[extender, 0])
        for extender in EXTENDERS
    }
    for extender, ratio in longer.items():
        alone, beside = mean_of(costs[extender, 0]), mean_of(costs[extender, options.gangs])
        more = {name: beside[name] - alone[name] for name in alone}
        print(f"{extender}: pods wait {ratio:.2f} times as long beside gangs that fail")
        print(f"{extender}: processor ms a pod more beside gangs that fail: {listed(more)}")
    figures = {"ours": round(longer[OURS] / longer[NOBODY], 3)}
    print(json.dumps({**figures, **{name: round(ratio, 3) for name, ratio in longer.items()}}))


def mean_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The mean of the rounds, process by process."""
    return {name: statistics.mean(each[name] for each in rounds) for name in rounds[0]}


def quantiles(waits: list[float]) -> str:
    """Write how long pods waited, for people."""
    tenths = statistics.quantiles(waits, n=10, method="inclusive")
    return f"median {1000 * statistics.median(waits):.0f} ms, 90 % within {1000 * tenths[-1]:.0f} ms"


def one_round(cluster: Cluster, extender: str, gangs: int, pods: int) -> tuple[list[float], dict[str, float]]:
    """Let gangs fail, and time pods on their own.

    Returns:
        Seconds from the creation of each of the pods to its node; processor milliseconds a pod by process.
    """
    control, api = cluster.control, cluster.api
    with serve(cluster, extender) as url:
        control.configure_scheduler(url)
        control.start_scheduler()
        in_parallel(gangs, lambda index: api.post(GROUPS, fake_group(index, GANG_PODS)))
        in_parallel(gangs * GANG_PODS, lambda index: api.post(PODS, member(index)))
        time.sleep(SETTLED_S)
        until(lambda: count_refused(api) == gangs * GANG_PODS, "every gang has failed", 120)
        pids = {"kube-scheduler": control.running["kube-scheduler"].pid}
        if extender == OURS:
            pids[EXTENDER] = cluster.extender.pid
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        try:
            waits = [time_pod(api, f"single-{number:05d}") for number in range(pods)]
            return waits, {name: 1000 * (cpu_s(pid) - before[name]) / pods for name, pid in pids.items()}
        finally:
            control.kill("kube-scheduler")
            api.delete(PODS, grace_s=0)
            until(lambda: not api.get(PODS, limit=1)["items"], "pods deleted", 120)
            in_parallel(gangs, lambda index: delete_group(api, index))


@contextmanager
def serve(cluster: Cluster, extender: str) -> Iterator[str]:
    """Run an extender; give its URL."""
    if extender == NOBODY:
        server = IdleExtender(cluster.api)
        try:
            yield server.url
        finally:
            server.stop()
        return
    cluster.extender.start()
    try:
        yield cluster.extender.url
    finally:
        cluster.extender.kill()


class IdleExtender(PostServer):
    """An extender that decides nothing but that no pod of a gang fits."""

    def __init__(self, api: Api) -> None:
        self.api = api
        super().__init__(lambda path, body: (200, json.dumps(self.answer(path, json.loads(body))).encode()))

    def answer(self, path: str, asked: Any) -> Any:
        """Answer a call as an extender does."""
        verb = path.rpartition("/")[2]
        if verb == "bind":
            target = {"apiVersion": "v1", "kind": "Node", "name": asked["Node"]}
            body = {"metadata": {"name": asked["PodName"], "uid": asked["PodUID"]}, "target": target}
            self.api.post(f"{PODS}/{asked['PodName']}/binding", body)
            return {"Error": ""}
        names = asked["NodeNames"]
        if verb == "prioritize":
            return [{"Host": name, "Score": 0} for name in names]
        if asked["Pod"]["spec"].get("schedulingGroup"):
            return {"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(names, "no")}
        return {"NodeNames": names[:1]}


def count_refused(api: Api) -> int:
    """Count the pods that kube-scheduler has found no node for."""
    conditions = [pod["status"].get("conditions") or () for pod in api.get(PODS)["items"]]
    return sum(any(each.get("reason") == "Unschedulable" for each in of_pod) for of_pod in conditions)


def time_pod(api: Api, name: str) -> float:
    """Create a pod, and return the seconds until it is seen bound."""
    limits: dict[str, str | int] = {"cpu": "100m", "memory": "256Mi"}
    made = workload.pod(name, workload.container(gib=POD_GIB, limits=limits))
    began = time.monotonic()
    version = api.post(PODS, made)["metadata"]["resourceVersion"]
    for event in watch(api, PODS, version):
        pod = event["object"]
        if pod["metadata"]["name"] == name and pod["spec"].get("nodeName"):
            break
    return time.monotonic() - began


def member(index: int) -> dict[str, Any]:
    """A pod of a gang that no card takes."""
    container = workload.container(gib=GANG_GIB, limits={"cpu": "100m", "memory": "256Mi"})
    pod = workload.pod(f"member-{index:05d}", container)
    pod["spec"]["schedulingGroup"] = {"podGroupName": f"gang-{index // GANG_PODS}"}
    return pod


if __name__ == "__main__":
    main()
