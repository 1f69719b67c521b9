"""A queue on a cluster state, told of nodes and pods as the API server tells of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from allocator.names import (
    POD_ASSIGNED,
    POD_DATA,
    POD_GANG,
    POD_GANG_SIZE,
    POD_JOB,
    POD_REQUEUED,
    QUEUE_GATE,
    QUEUE_NAME,
)
from allocator.records import dump_assigned
from kubeapi.objects import Job, Node, Pod, PodGroup
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.cache.jobs import read_job
from scheduler_plugin.queue.cache.queued_pods import Requeue, RequeueWrite
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.scheduler.admission import AdmittedWorkload
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import claim, node_object, pod_object

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
"""The world's clock is at 0; pods are dated in seconds after that."""

TEN_HOURS_S = 36_000.0

ONE_QUEUE = "queues: [{name: a}]"
TWO_QUEUES = "queues: [{name: a, cohort: all, nominalQuota: 16}, {name: b, cohort: all, nominalQuota: 16}]"

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
"""Status of a pod for which kube-scheduler found no node."""


class QueueWorld:
    """A queue, and the API server's part.

    Args:
        knows_jobs: The Jobs of the cluster were listed; there are none yet.
        nodes: By their names, the units of their cards.
    """

    def __init__(
        self,
        config: str = ONE_QUEUE,
        policy: str = "least-requested",
        *,
        knows_jobs: bool = True,
        **nodes: Sequence[int],
    ) -> None:
        self.state = ClusterState(rules=QueueChargeRules())
        parsed = parse_config("queues.yaml", config)
        self.queue = Queue(parsed, self.state, ClusterPolicies(policy), wall=NEW_YEAR.timestamp())
        self.version = 1
        self.now = 0.0
        self.objects: dict[str, dict[str, Any]] = {}
        if knows_jobs:
            self.queue.job_stages.set_jobs([])
        for name, sizes in nodes.items():
            self.node(name, sizes)

    def configure(self, config: str) -> None:
        self.queue.configure(parse_config("queues.yaml", config))

    def node(
        self,
        name: str,
        sizes: Sequence[int] = (16, 16),
        used: Sequence[int] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.version += 1
        raw: dict[str, Any] = node_object(name, sizes, used, version=self.version, **more)
        raw["metadata"]["labels"] = dict(labels or {})
        raw["spec"] = dict(spec or {})
        node = msgspec.convert(raw, Node)
        self.state.apply_node(node, self.now)
        self.queue.set_node(name, node.traits)

    def lose_node(self, name: str) -> None:
        self.version += 1
        self.state.delete_node(name, str(self.version), self.now)
        self.queue.set_node(name, None)

    def job(
        self,
        name: str,
        completions: int | None = 1,
        *,
        data: str = "",
        job: str = "",
        succeeded: int = 0,
        complete: bool = False,
        failed: bool = False,
    ) -> None:
        """Create or change a Job whose pods say this; what it makes is made by hand."""
        notes = {key: value for key, value in ((POD_DATA, data), (POD_JOB, job)) if value}
        conditions = [{"type": "Complete", "status": "True"}] if complete else []
        conditions += [{"type": "Failed", "status": "True"}] if failed else []
        raw = {
            "metadata": {"name": name, "namespace": "default", "uid": f"job-{name}"},
            "spec": {"completions": completions, "template": {"metadata": {"annotations": notes}}},
            "status": {"succeeded": succeeded, "conditions": conditions},
        }
        self.queue.job_stages.set_job(read_job(msgspec.convert(raw, Job)))

    def lose_job(self, name: str) -> None:
        self.queue.job_stages.remove_job(f"job-{name}")

    def made_by(self, job: str) -> dict[str, Any]:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "uid": f"job-{job}",
            "controller": True,
        }
        return {"ownerReferences": [owner]}

    def pod(
        self,
        name: str,
        units: int = 1,
        *,
        queue: str = "a",
        created: int | None = None,
        data: str = "",
        job: str = "",
        gang: str = "",
        size: int | str = "",
        group: str = "",
        gates: Sequence[str] = (QUEUE_GATE,),
        live: bool = False,
        annotations: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Create a gated pod, seen as an event where it is `live`; its UID."""
        notes = {POD_DATA: data, POD_JOB: job, POD_GANG: gang, POD_GANG_SIZE: str(size)}
        notes = {key: value for key, value in notes.items() if value} | dict(annotations or {})
        raw: dict[str, Any] = pod_object(name, units, annotations=notes, **more)
        second = self.version if created is None else created
        raw["metadata"]["labels"] = {QUEUE_NAME: queue} if queue else {}
        raw["metadata"]["creationTimestamp"] = (
            f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        )
        raw["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        if group:
            raw["spec"]["schedulingGroup"] = {"podGroupName": group}
        raw["metadata"].update(metadata or {})
        self.objects[raw["metadata"]["uid"]] = raw
        self._send(raw, live=live)
        return str(raw["metadata"]["uid"])

    def pod_group(self, name: str, count: int = 0, topology: str = "") -> None:
        """Create or change a PodGroup of Kubernetes, see `pod_group`."""
        self.state.pod_groups.put_group(pod_group(name, count, topology))
        self.queue.gangs.update_group(("default", name))

    def lose_pod_group(self, name: str) -> None:
        self.state.pod_groups.delete_group(("default", name))
        self.queue.gangs.update_group(("default", name))

    def decide(self) -> list[AdmittedWorkload]:
        """Let the queue decide; the gates are gone when this returns."""
        releases = list(self.queue.admit_workloads(self.now))
        for release in releases:
            for member in release.members:
                self.objects[member.uid]["metadata"]["annotations"].pop(POD_REQUEUED, None)
                self.change(member.uid, spec={"schedulingGates": []})
        return releases

    def requeue_pods(self) -> list[Requeue]:
        """Let the queue end admissions; what is requeued waits again when this returns."""
        ended = self.queue.find_requeues(self.now)
        for each in ended:
            if each.write is RequeueWrite.MARK:
                self.requeue(each.queued_pod.uid)
        return ended

    def requeue(self, uid: str) -> None:
        """Mark an admitted pod as one that waits again."""
        self.objects[uid]["metadata"]["annotations"][POD_REQUEUED] = "true"
        self.change(uid)

    def admitted(self) -> list[str]:
        """Names of the pods that the queue admits now."""
        return [self.name(member.uid) for release in self.decide() for member in release.members]

    def run(self, name: str, units: int = 1, **options: Any) -> str:
        """Create a pod that the queue admits, and no other one, and bind it; returns its UID."""
        uid = self.pod(name, units, **options)
        assert self.admitted() == [name]
        self.bind(uid)
        return uid

    def bind(self, *uids: str, node: str = "") -> None:
        """Bind admitted pods, each where its room was taken unless a node is named."""
        for uid in uids:
            assumed = self.state.get_assumed(uid)
            assert assumed is not None
            assert assumed.assigned is not None
            if not node or node == assumed.node:
                self.objects[uid]["metadata"]["annotations"][POD_ASSIGNED] = dump_assigned(assumed.assigned)
            self.change(uid, spec={"nodeName": node or assumed.node})

    def bind_to(self, uid: str, node: str) -> None:
        """Bind an admitted pod that has no room, to the first cards of a node."""
        row = self.state.nodes.rows[node]
        units = self.queue.queued_pods[uid].record.charged
        assert units is not None
        cards = ((self.state.nodes.uuids[row][0], units.demands[0].per_card),)
        self.objects[uid]["metadata"]["annotations"][POD_ASSIGNED] = dump_assigned({"main": cards})
        self.change(uid, spec={"nodeName": node})

    def claim_pod(self, name: str, queue: str = "", **more: Any) -> str:
        """Create a pod that asks by a claim, which the queue does not hold back; its UID."""
        spec = {"resourceClaims": [{"name": "card"}], **more.pop("spec", {})}
        return self.pod(name, queue=queue, gates=(), containers=[{"name": "main"}], spec=spec, **more)

    def claim(self, name: str, *shares: tuple[int, int | str | None], node: str = "n1", **more: Any) -> None:
        """Allocate a claim as `cluster_builders.claim_object` does; without shares it has nothing."""
        self.version += 1
        self.state.claims.apply(claim(name, *shares, node=node, version=self.version, **more), self.now)
        self.queue.claimed.update_claim(f"uid-{name}")

    def lose_claim(self, name: str) -> None:
        self.version += 1
        self.state.claims.delete(claim(name), str(self.version), self.now)
        self.queue.claimed.update_claim(f"uid-{name}")

    def change(
        self,
        uid: str,
        *,
        spec: Mapping[str, Any] | None = None,
        status: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        raw = self.objects[uid]
        for part, changes in (("spec", spec), ("status", status), ("metadata", metadata)):
            raw[part].update(changes or {})
        self._send(raw)

    def delete(self, uid: str) -> None:
        """Delete a pod; what it used is free at once."""
        raw = self.objects.pop(uid)
        self.version += 1
        pod = msgspec.convert(raw, Pod)
        self.state.delete_pod(pod, str(self.version), self.now)
        self.queue.delete_pod(uid, self.now)
        for record in self.state.node_records.values():
            record.tombstones.pop(uid, None)
            self.state._records.mark_changed(record.name)
        self.state.expire_tombstones(self.now)

    def name(self, uid: str) -> str:
        return str(self.objects[uid]["metadata"]["name"])

    def _send(self, raw: dict[str, Any], *, live: bool = False) -> None:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        pod = msgspec.convert(raw, Pod)
        self.state.apply_pod(pod, self.now)
        self.queue.apply_pod(pod, self.now, live=live)


def pod_group(name: str, count: int = 0, topology: str = "") -> PodGroup:
    """Make a PodGroup of Kubernetes; without `count` its policy is not gang."""
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": count}} if count else {"basic": {}}}
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    raw = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return msgspec.convert(raw, PodGroup)


@pytest.fixture
def world() -> QueueWorld:
    """One node with two cards of 16 units, one queue."""
    return QueueWorld(n1=(16, 16))


def long_runners(config: str = "") -> tuple[QueueWorld, str]:
    """Pods that have run for ten hours fill the node, and a pod waits that needs a whole card."""
    world = QueueWorld(f"queues: [{{name: a}}]{config}", n1=(16, 16))
    for number in range(4):
        world.pod(f"s{number}", 8, created=0)
    assert len(world.admitted()) == 4
    world.bind(*(f"uid-s{number}" for number in range(4)))
    world.now = TEN_HOURS_S
    return world, world.pod("large", 16, created=int(TEN_HOURS_S))
