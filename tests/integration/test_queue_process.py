"""The queue as a process in front of the API server stand-in."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from allocator.names import (
    LEADER_LABEL,
    POD_DATA,
    POD_FIRST_STAGE_SIZE,
    POD_JOB,
    POD_NODE_POLICY,
    QUEUE_GATE,
    QUEUE_NAME,
)
from kubeapi.client import KubeClient
from kubeapi.lease import LeaseElector
from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.controller.app import run
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.queue.scheduler.queue import Queue
from standins.apiserver.server import ApiServer
from tests.cluster_builders import node_object, pod_object
from tests.running import served
from tests.waiting import until

ONE_QUEUE = "queues: [{name: a}]"


class Running:
    """A queue that runs, and the API server that it works on."""

    def __init__(self, api: ApiServer, url: str, config: Path, session: aiohttp.ClientSession) -> None:
        self.api, self.url, self.config, self.session = api, url, config, session

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def status(self) -> dict[str, Any]:
        return json.loads((await self.get("/status"))[1])  # type: ignore[no-any-return]

    def gated(self, name: str) -> bool:
        return bool(self.api.pod("default", name)["spec"].get("schedulingGates"))

    async def admitted(self, *names: str) -> None:
        await until(lambda: not any(self.gated(name) for name in names))

    async def waits(self, name: str, reason: str) -> str:
        """Wait until a pod is said to wait for a reason; the message."""
        found: list[str] = []

        async def said() -> bool:
            found[:] = [
                pod["message"]
                for pod in (await self.status())["pods"]
                if (pod["name"], pod["reason"]) == (name, reason)
            ]
            return bool(found)

        await until(said)
        return found[0]

    async def placed(self, name: str, units: int, **options: Any) -> str:
        """Admit a pod; the node that its admission names."""
        make_pod(self.api, name, units, **options)
        await self.admitted(name)
        affinity = self.api.pod("default", name)["spec"]["affinity"]["nodeAffinity"]
        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])

    def events(self, name: str) -> list[str]:
        return [
            f"{event['reason']}: {event['message']}"
            for event in self.api.objects("events")
            if event["involvedObject"]["name"] == name
        ]


def make_node(
    api: ApiServer, name: str, *args: Any, labels: dict[str, str] | None = None, **options: Any
) -> None:
    made: Any = node_object(name, *args, **options)
    api.add_node(name, labels or {}, made["status"]["allocatable"], made["metadata"]["annotations"])


def make_pod(
    api: ApiServer,
    name: str,
    units: int,
    queue: str = "a",
    *,
    gates: tuple[str, ...] = (QUEUE_GATE,),
    **options: Any,
) -> dict[str, Any]:
    made: Any = pod_object(name, units, **options)
    del made["metadata"]["uid"], made["metadata"]["resourceVersion"], made["status"]
    made["metadata"]["labels"] = {QUEUE_NAME: queue}
    made["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    return api.add_pod(made)


@asynccontextmanager
async def queue(
    api: ApiServer, folder: Path, text: str = ONE_QUEUE, **options: Any
) -> AsyncIterator[Running]:
    config = folder / "queues.yaml"
    config.write_text(text)
    settings = QueueSettings(
        config=str(config),
        kubeconfig=api.kubeconfig(folder / "kubeconfig"),
        http="127.0.0.1:0",
        write_timeout_s=0.3,
        **options,
    )
    async with served(run, settings) as (url, _), aiohttp.ClientSession() as session:
        yield Running(api, url, config, session)


async def test_gated_pods_are_released_when_a_card_can_take_them(tmp_path: Path) -> None:
    """And only then; each decision is an Event."""
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        for name in ("one", "two"):
            make_pod(api, name, 10)
        async with queue(api, tmp_path, f"fairSharing: dominant\n{ONE_QUEUE}") as running:
            await running.admitted("one", "two")
            make_pod(api, "three", 10)
            message = await running.waits("three", "NoRoom")
            assert message == "it needs 10 units on one card; the largest free card has 6"
            assert running.gated("three")
            api.delete_pod("default", "one", grace_s=0)
            await running.admitted("three")
            await until(lambda: running.events("one"))
            assert running.events("one")[-1].startswith("Admitted: admitted from queue a for node n1")
            (queue_report,) = (await running.status())["queues"]
            assert (queue_report["used"], queue_report["running"], queue_report["waiting"]) == (20, 2, 0)
            text = (await running.get("/metrics"))[1]
            assert 'gpupack_queue_admitted_total{queue="a"} 3.0' in text
            assert 'gpupack_queue_units{kind="used",queue="a"} 20.0' in text
            assert 'gpupack_queue_weight{queue="a"} 1.0' in text
            assert 'gpupack_queue_weighted_share{queue="a"} 0.625' in text


async def test_batch_mode_names_the_node(tmp_path: Path) -> None:
    """In the same patch, also where the pod has terms of its own."""
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16,))
        make_node(api, "n2", (16,), labels={"zone": "z"})
        make_pod(api, "plain", 16, spec={"nodeSelector": {"zone": "z"}})
        affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}}
        async with queue(api, tmp_path, f"{ONE_QUEUE}\nmode: batch") as running:
            await running.admitted("plain")
            terms = api.pod("default", "plain")["spec"]["affinity"]["nodeAffinity"][required]
            field = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
            assert terms == {"nodeSelectorTerms": [{"matchFields": [field]}]}
            api.delete_pod("default", "plain", grace_s=0)
            make_pod(api, "own", 16, spec={"affinity": affinity})
            await running.admitted("own")
            terms = api.pod("default", "own")["spec"]["affinity"]["nodeAffinity"][required]
            assert terms == {"nodeSelectorTerms": [{**term, "matchFields": [field]}]}


async def test_a_node_that_slots_or_data_decide_is_named_in_gate_mode(tmp_path: Path) -> None:
    """In the write that takes the gate away; where nothing depends on the node kube-scheduler chooses it."""

    def named(running: Running, name: str) -> str:
        affinity = running.api.pod("default", name)["spec"].get("affinity")
        if affinity is None:
            return ""
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])

    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16,))
        make_node(api, "n2", (16,), labels={"data.gpupack.io/d": ""})
        async with queue(api, tmp_path) as running:
            make_pod(api, "plain", 1)
            make_pod(api, "near", 1, annotations={POD_DATA: "d"})
            await running.admitted("plain", "near")
            assert [named(running, name) for name in ("plain", "near")] == ["", "n2"]
        for name in ("plain", "near"):
            api.delete_pod("default", name, grace_s=0)
        slots = "slots: {per: node, local: {count: 1}, free: {count: 0}}"
        async with queue(api, tmp_path, f"{ONE_QUEUE}\n{slots}") as running:
            for name in ("one", "two", "three"):
                make_pod(api, name, 1)
            names = ["one", "two", "three"]

            async def two_are_released() -> bool:
                names.sort(key=running.gated)
                return [running.gated(name) for name in names] == [False, False, True]

            await until(two_are_released)
            assert sorted(named(running, name) for name in names[:2]) == ["n1", "n2"]
            assert "no node that it fits on has an idle slot" in await running.waits(names[2], "NoRoom")


async def test_the_configuration_sets_the_node_policy_and_its_parameters(tmp_path: Path) -> None:
    """While the process runs, also for a pod that names its policy; what a policy refuses is told."""
    params = "nodePolicyParameters: {{best-fit: {{mode: pick, width-gpu-memory: 4, limit: 1, fallback: {}}}}}"

    async def placed(running: Running, name: str, **options: Any) -> str:
        """Where a pod of 2 units goes: cards have 2, 9 and 16 units free, in buckets 1, 3 and 4."""
        node = await running.placed(name, 2, **options)
        running.api.delete_pod("default", name, grace_s=0)
        return node

    async with ApiServer(seed=1) as api:
        make_node(api, "small", (2,), cpu="0")
        make_node(api, "middle", (9,))
        make_node(api, "large", (16,))
        config = f"{ONE_QUEUE}\nmode: batch\nnodePolicy: best-fit\n"
        async with queue(api, tmp_path, config, node_policy="least-requested") as running:
            assert await placed(running, "tight") == "middle"
            running.config.write_text(f"{config}{params.format('farthest')}\n")

            async def refused() -> bool:
                return "fallback is 'farthest'" in (await running.status())["fault"]

            await until(refused)
            running.config.write_text(f"{config}{params.format('largest')}\n")

            async def is_taken() -> bool:
                return not (await running.status())["fault"]

            await until(is_taken)
            assert await placed(running, "loose") == "large"
            running.config.write_text(f"{config.replace('best-fit', 'balanced')}{params.format('largest')}\n")

            async def is_balanced() -> bool:
                return bool((await running.status())["nodePolicy"] == "balanced")

            await until(is_balanced)
            assert await placed(running, "own", annotations={POD_NODE_POLICY: "best-fit"}) == "large"


async def test_without_the_right_to_read_jobs_only_second_stages_wait(tmp_path: Path) -> None:
    """As with a ClusterRole of before; where an annotation says how many pods come, it counts."""

    async def forbid(request: web.Request) -> web.StreamResponse | None:
        if "/apis/batch/" not in request.path:
            return None
        return web.json_response({"kind": "Status", "message": "jobs.batch is forbidden"}, status=403)

    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        api.http.intercept = forbid
        async with queue(api, tmp_path) as running:
            make_pod(api, "map", 1, annotations={POD_JOB: "j", POD_DATA: "d"})
            make_pod(api, "reduce", 1, annotations={POD_JOB: "j"})
            make_pod(api, "alone", 1, annotations={POD_JOB: "k", POD_FIRST_STAGE_SIZE: "0"})
            await running.admitted("map", "alone")
            api.patch_pod("default", "map", {"status": {"phase": "Succeeded"}})

            async def told() -> bool:
                message = await running.waits("reduce", "FirstStage")
                return message.endswith("its first stage: the Jobs of the cluster are not known yet")

            await until(told)
            assert running.gated("reduce")
            api.http.intercept = None
            await running.admitted("reduce")


async def test_a_bad_configuration_at_the_start_ends_it(tmp_path: Path) -> None:
    """With every fault and its path."""
    async with ApiServer(seed=1) as api:
        with pytest.raises(QueueConfigError) as caught:
            async with queue(api, tmp_path, "queues: [{name: a, weight: -1}, {name: b, cohrt: x}]"):
                pass
        assert [fault.partition(":")[0] for fault in caught.value.faults] == [
            "queues[0].weight",
            "queues[1].cohrt",
        ]


async def test_a_restart_forgets_nobody_and_releases_nobody_twice(tmp_path: Path) -> None:
    """What was admitted and not bound keeps its room."""
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        for i in range(4):
            make_pod(api, f"p{i}", 16)
        names = [f"p{i}" for i in range(4)]

        def gated(running: Running) -> list[str]:
            return [name for name in names if running.gated(name)]

        async with queue(api, tmp_path) as running:
            await until(lambda: len(gated(running)) == 2)
        async with queue(api, tmp_path) as running:
            waiting = gated(running)
            await running.waits(waiting[0], "NoRoom")
            assert (await running.status())["queues"][0]["used"] == 32
            assert gated(running) == waiting
            admitted = next(name for name in names if name not in waiting)
            api.delete_pod("default", admitted, grace_s=0)
            names.remove(admitted)
            await until(lambda: len(gated(running)) == 1)


async def test_a_process_begins_a_term_each_time_that_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have decided meanwhile."""
    begun = list[float]()
    monkeypatch.setattr(Queue, "begin_term", lambda _queue, now: begun.append(now))
    async with ApiServer(seed=1) as api, queue(api, tmp_path, leader_elect=True, lease_s=1) as running:

        async def leads() -> bool:
            return (await running.status())["trouble"] == ""

        async def has_lost() -> bool:
            return (await running.status())["trouble"] == "another process is the leader"

        for terms in (1, 2):
            await until(leads)
            assert len(begun) == terms
            assert (await running.get("/configuration"))[0] == 200
            await api.away(True)
            await until(has_lost)
            assert await running.get("/configuration") == (503, "another process is the leader\n")
            await api.away(False)


async def test_a_queue_beside_kube_scheduler_and_one_with_a_deployment_never_both_admit(
    tmp_path: Path,
) -> None:
    """`kubectl apply -k` of batch mode may find the other one still there."""
    for name in ("deployment", "beside"):
        (tmp_path / name).mkdir()
    async with ApiServer(seed=1) as api, asyncio.TaskGroup() as group:
        client = await KubeClient.connect(api.kubeconfig(tmp_path / "kube-scheduler"))
        kube_scheduler = LeaseElector(client, "kube-system", "scheduler", f"{socket.gethostname()}_1")
        election = group.create_task(kube_scheduler.run())
        follow: dict[str, Any] = {"leader_elect": True, "follow_lease": "kube-system/scheduler"}
        make_node(api, "n1", (16, 16))
        async with queue(api, tmp_path / "beside", **follow, identity="beside") as beside:
            async with queue(
                api, tmp_path / "deployment", leader_elect=True, identity="deployment-1"
            ) as other:

                async def says_who_admits() -> bool:
                    trouble = (await beside.status())["trouble"]
                    return str(trouble).startswith("another queue runs, deployment-1; allowed: one")

                await until(says_who_admits)
                assert (await beside.get("/readyz"))[0] == 503
                make_pod(api, "one", 10)
                await other.admitted("one")
                assert "gpupack_queue_leader 1.0" in (await other.get("/metrics"))[1]
                metrics = (await beside.get("/metrics"))[1]
                assert "gpupack_queue_leader 0.0" in metrics
                assert "gpupack_queue_admitted_total{" not in metrics
            make_pod(api, "two", 10)
            await beside.admitted("two")
            assert api.lease("kube-system", "gpupack-queue")["spec"]["holderIdentity"] == (
                "kube-system/scheduler/beside"
            )
        election.cancel()
        await asyncio.wait((election,))
        await client.close()


async def test_a_standby_with_a_pod_is_ready_and_the_label_moves_with_the_lease(tmp_path: Path) -> None:
    """A Deployment waits for all its pods; a Service finds the one that leads."""
    async with ApiServer(seed=1) as api:
        options: dict[str, Any] = {"leader_elect": True, "lease_s": 3}

        def leaders() -> list[str]:
            pods = api.objects("pods")
            label = "gpupack-queue"
            return [
                pod["metadata"]["name"]
                for pod in pods
                if pod["metadata"].get("labels", {}).get(LEADER_LABEL) == label
            ]

        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            made: Any = pod_object(name, namespace="kube-system", containers=[{"name": "gpupack"}])
            api.add_pod({"metadata": {"name": name, "namespace": "kube-system"}, "spec": made["spec"]})
        async with queue(api, tmp_path / "b", **options, identity="b", pod_name="b") as standby:
            async with queue(api, tmp_path / "a", **options, identity="a", pod_name="a") as other:

                async def both_are_ready() -> bool:
                    statuses = [(await each.get("/readyz"))[0] for each in (standby, other)]
                    return statuses == [200, 200] and len(leaders()) == 1

                await until(both_are_ready)
                troubles = [(await each.status())["trouble"] for each in (standby, other)]
                assert "another process is the leader" in troubles

            async def moved() -> bool:
                return leaders() == ["b"] and (await standby.status())["trouble"] == ""

            await until(moved)


async def test_an_api_server_that_is_away_delays_and_loses_nothing(tmp_path: Path) -> None:
    """The admission is written when it is back."""
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        async with queue(api, tmp_path) as running:
            make_pod(api, "one", 4)
            await running.admitted("one")
            await api.away(True)
            make_pod(api, "two", 4)
            await asyncio.sleep(0.2)
            await api.away(False)
            await running.admitted("two")


async def test_quotas_over_the_cluster_are_told_and_the_queue_goes_on(tmp_path: Path) -> None:
    """As a warning: nodes may come."""
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        async with queue(api, tmp_path, "queues: [{name: a, nominalQuota: 100}]") as running:
            make_pod(api, "one", 4)
            await running.admitted("one")

            async def warned() -> bool:
                return "100 units and the cluster's cards have 32" in (await running.status())["warning"]

            await until(warned)


async def test_a_second_stage_waits_for_pods_that_a_job_is_still_to_make(tmp_path: Path) -> None:
    """The reduce pod was there first; the Job's pods have been removed as they succeeded."""
    notes = {POD_JOB: "j", POD_DATA: "d"}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "maps"},
        "spec": {"completions": 2, "template": {"metadata": {"annotations": notes}}},
    }
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16, 16))
        path = f"{api.url}/apis/batch/v1/namespaces/default/jobs"
        async with queue(api, tmp_path) as running:
            make_pod(api, "reduce", 1, annotations={POD_JOB: "j"})
            assert "no pod with data of job default/j is known yet" in await running.waits(
                "reduce", "FirstStage"
            )
            async with running.session.post(path, json=job) as answer:
                assert answer.status == 201

            async def told(lacks: str) -> None:
                async def is_told() -> bool:
                    return lacks in await running.waits("reduce", "FirstStage")

                await until(is_told)
                assert running.gated("reduce")

            await told("Job default/maps has 0 of 2 pods that succeeded")
            text = (await running.get("/metrics"))[1]
            assert 'gpupack_queue_pods{queue="a",state="first_stage"} 1.0' in text
            headers = {"Content-Type": "application/merge-patch+json"}
            complete = {"type": "Complete", "status": "True"}
            for status in ({"succeeded": 1}, {"succeeded": 2, "conditions": [complete]}):
                patch = {"status": status}
                async with running.session.patch(
                    f"{path}/maps/status", json=patch, headers=headers
                ) as answer:
                    assert answer.status == 200
                if status == {"succeeded": 1}:
                    await told("1 of 2 pods")
            await running.admitted("reduce")


async def test_a_leader_says_by_what_it_decides_also_where_a_newer_text_has_faults(tmp_path: Path) -> None:
    async with ApiServer(seed=1) as api:
        make_node(api, "n1", (16,))
        async with queue(api, tmp_path, node_policy="least-requested", card_policy="least-used") as running:

            async def answer() -> dict[str, Any]:
                status, text = await running.get("/configuration")
                return json.loads(text) if status == 200 else {}

            async def configured(text: str) -> bool:
                return (await answer()).get("configuration") == text

            await until(lambda: configured(ONE_QUEUE))
            found = await answer()
            assert (found["nodePolicy"], found["cardPolicy"]) == ("least-requested", "least-used")
            two = "queues: [{name: a}, {name: b}]"
            running.config.write_text(two)
            await until(lambda: configured(two))
            running.config.write_text("queues: [{name: a, weight: -1}]")

            async def refused() -> bool:
                return bool((await running.status())["fault"])

            await until(refused)
            assert await configured(two)
