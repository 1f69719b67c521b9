"""A random small cluster, as the API server has it, and what is true of it.

Pods are bound by the shipped extender and committer, served by a small kubelet with the shipped ledger, and
then cards go, shrink, fall sick or are cordoned, nodes are closed, and pods end, of all of which the API
server may have heard or not. On nodes that serve claims there are also pods whose claims others allocated.
Such claims may be shared by pods or deleted by force, and their node may come back with the device plugin.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any, Final

import msgspec

from allocator.cards import Card
from allocator.claims import ClaimObject
from allocator.ids import SEPARATOR, device_names
from allocator.names import (
    CLAIM_LABEL,
    COMPUTE_RESOURCE,
    DRA_DRIVER,
    DRA_MEMORY,
    NODE_CORDON,
    POD_ALLOCATION,
    POD_ASSIGNED,
    POD_CARDS,
    POD_CONTAINERS,
    POD_GPU_MODEL,
    POD_MIXED_MODELS,
    POD_REQUEUED,
    QUEUE_GATE,
    QUEUE_NAME,
)
from allocator.records import Assignment, dump_allocation, dump_assigned
from kubeapi.objects import Node, Pod
from kubeapi.selectors import UNSCHEDULABLE
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.binding.pod_claims import BoundPodClaim
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import container, in_percent, pod_object

from .claimhost import ClaimHost
from .host import Host, assigned_to, find_request, request_of

MODELS: Final = ("NVIDIA A100", "NVIDIA L40S")
TAINT: Final = "team"
NOT_READY: Final = "node.kubernetes.io/not-ready"
"""Kubernetes has this taint on a node that is not Ready; kube-scheduler looks at it, not at the condition."""

OF_POD: Final = "of-"
ENDED: Final = frozenset({"Succeeded", "Failed"})
CONTROLLER: Final = {"kind": "ReplicaSet", "name": "app", "uid": "rs", "controller": True}
PRIORITY: Final = 5
"""Of the pods that were bound; those that ask have more."""


class Scene:
    """One cluster.

    Attributes:
        hosts: Nodes as they are, by name.
        nodes: Nodes as the API server has them.
        pods: Pods likewise, by name.
        claims: ResourceClaims likewise, by UID; those of the extender begin with `OF_POD`.
        asking: Names of those that wait and are asked about.
        clean: Names of the nodes of which the API server has all that there is to know.
        under_way: Name and node of a pod whose Binding is on its way, which only the extender knows.
        scheduler: What the extender has seen, event by event.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.version = 100
        self.hosts: dict[str, Host] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.asking: list[str] = []
        self.clean: set[str] = set()
        self.under_way: tuple[str, str] | None = None
        self.scheduler = ClusterState()
        self.committer = Committer(self.scheduler, ClusterPolicies())
        for number in range(random.randint(1, 3)):
            self._host(f"n{number}")
        for _ in range(random.randint(2, 14)):
            if random.random() < 0.55:
                self._bind()
            else:
                self._happen()
            for host in self.hosts.values():
                # Drawn aside, so that scenes without such nodes stay as they are.
                aside = Random(f"{random.getstate()[1][-3:]} {host.name} claims")
                if isinstance(host, ClaimHost) and aside.random() < 0.4:
                    self._claim(host, aside)
                if aside.random() < 0.15:
                    self._happen_to_claim(host, aside)
                if aside.random() < 0.05:
                    host.restart(compute_limit=aside.choice((50, 100)))
                    self.publish(host.name)
        for _ in range(random.randint(1, 2)):
            self._ask()
        if random.random() < 0.2:
            self._send_binding()

    # How it comes about.

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _host(self, name: str) -> None:
        random = self.random
        sizes = [random.choice((4, 7, 8, 12))] * random.randint(1, 3)
        if random.random() < 0.5:
            sizes = [random.choice((4, 7, 8, 12)) for _ in sizes]
        model = random.choice(MODELS)
        models = [model if random.random() < 0.8 else random.choice(MODELS) for _ in sizes]
        cards = [
            Card(at, f"GPU-{name}-{at}", models[at], size_units=size, used_units=0)
            for at, size in enumerate(sizes)
        ]
        aside = Random(f"{random.getstate()[1][-3:]} {name} serves")
        self.hosts[name] = (ClaimHost if aside.random() < 0.35 else Host)(name, cards)
        self.hosts[name].cpu = random.choice((40, 40, 6))
        self.hosts[name].restart(compute_limit=aside.choice((100, 100, 100, 200)))
        self.publish(name)

    def publish(self, name: str) -> None:
        """The daemon writes its words, and the API server has everything of the node."""
        host = self.hosts[name]
        made = host.published(self._next())
        self.nodes[name] = made
        self.clean.add(name)
        self._write(name)

    def _write(self, name: str) -> None:
        """What others than the daemon write of a node."""
        host, made = self.hosts[name], self.nodes[name]
        made["spec"] = host.spec
        made["status"]["conditions"] = [{"type": "Ready", "status": str(host.ready)}]
        made["metadata"]["resourceVersion"] = str(self._next())
        made["metadata"]["annotations"].pop(NODE_CORDON, None)
        if host.cordoned:
            made["metadata"]["annotations"][NODE_CORDON] = ",".join(sorted(host.cordoned))
        self.scheduler.apply_node(msgspec.convert(made, Node), 0.0)

    def send(self, pod: dict[str, Any]) -> None:
        """The API server has a pod, or another version of it."""
        pod["metadata"]["resourceVersion"] = str(self._next())
        self.pods[pod["metadata"]["name"]] = pod
        self.scheduler.apply_pod(msgspec.convert(pod, Pod), 0.0)

    def send_claim(self, claim: dict[str, Any]) -> None:
        """The API server has a claim, or another version of it."""
        claim["metadata"]["resourceVersion"] = str(self._next())
        self.claims[claim["metadata"]["uid"]] = claim
        self.scheduler.claims.apply(msgspec.convert(claim, ClaimObject), 0.0)

    def _drop_claims(self, pod: dict[str, Any]) -> None:
        """The claims of a pod that is over go, too."""
        for claim in self.claims_of(pod):
            del self.claims[claim["metadata"]["uid"]]
            self.scheduler.claims.delete(msgspec.convert(claim, ClaimObject), str(self._next()), 0.0)

    def claims_of(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        return [claim for claim in self.claims.values() if reserved in claim["status"]["reservedFor"]]

    def _pod(self, name: str, priority: int) -> dict[str, Any]:
        random = self.random
        percent = random.random() < 0.4
        cards = random.choice((1, 1, 1, 2, 3))
        annotations = {POD_CARDS: str(cards)} if cards > 1 else {}
        if random.random() < 0.15:
            annotations[POD_GPU_MODEL] = random.choice((*MODELS, "*A100*", "A100"))

        shares: list[int] = []

        def asks(called: str, **more: str) -> dict[str, Any]:
            share = random.choice((10, 25, 30, 34, 40, 50, 60, 100)) if percent else random.randint(1, 8)
            shares.append(share)
            made: dict[str, Any]
            made = in_percent(share * cards, called) if percent else container(called, share * cards)
            return made | more

        containers, init = [asks("main")], []
        if random.random() < 0.35:
            kind = random.choice(("main", "sidecar", "init"))
            if kind == "main":
                containers += [asks(f"other-{at}") for at in range(random.choice((1, 1, 2)))]
            elif kind == "sidecar":
                init.append(asks("side", restartPolicy="Always"))
            elif cards == 1:
                init.append(asks("before"))
        for each in (*containers, *init):
            each["resources"] = {what: {**amounts, "cpu": "1"} for what, amounts in each["resources"].items()}
        # Drawn aside, so that the rest of a scene stays as it is.
        ask_compute((*containers, *init), Random(f"{random.getstate()[1][-3:]} {name} compute"))
        aside = Random(f"{random.getstate()[1][-3:]} {name}")
        if aside.random() < 0.75:
            annotations[POD_MIXED_MODELS] = aside.choice(("true", "true", "true", "false"))
        if aside.random() < 0.25:
            share = bool(init) and "restartPolicy" not in init[0]
            # Shares that are more than a card together are a mistake on the same card.
            fits = not percent or sum(shares) <= 100
            annotations[POD_CONTAINERS] = "same-card" if share or (fits and aside.random() < 0.5) else "apart"
        made = pod_object(
            name,
            version=self._next(),
            annotations=annotations,
            containers=containers,
            init=init,
            spec={
                "priority": priority,
                "tolerations": [{"key": TAINT, "operator": "Exists"}] if random.random() < 0.3 else [],
            },
        )
        made["kind"] = "Pod"
        made["metadata"]["ownerReferences"] = [CONTROLLER]
        return made

    def _bind(self) -> None:
        """Bind a pod as kube-scheduler does, or another scheduler; the kubelet may serve it at once."""
        random = self.random
        made = self._pod(f"p{len(self.pods)}", random.randint(0, PRIORITY))
        self.send(made)
        name = random.choice(sorted(self.hosts))
        aside, host = Random(f"{random.getstate()[1][-3:]} both"), self.hosts[name]
        if isinstance(host, ClaimHost) and aside.random() < 0.2:
            self._allocate(made, host, aside)
        if random.random() < 0.06:
            made["spec"]["nodeName"] = name
        else:
            try:
                commitment = self.committer.assume(
                    "default", made["metadata"]["name"], made["metadata"]["uid"], name, 0.0
                )
            except CommitError:
                self._drop_claims(made)
                self.scheduler.delete_pod(msgspec.convert(made, Pod), str(self._next()), 0.0)
                del self.pods[made["metadata"]["name"]]
                return
            made["spec"]["nodeName"] = name
            if commitment.claim is not None:
                self.send_claim(make_claim(commitment.claim))
            if commitment.assigned is not None:
                made["metadata"]["annotations"][POD_ASSIGNED] = commitment.assigned
        self.send(made)
        self.clean.discard(name)
        if random.random() < 0.75:
            self._serve(made)

    def _serve(self, pod: dict[str, Any]) -> None:
        """The kubelet admits a pod, of which the API server may hear, and the daemon may publish."""
        random, name = self.random, pod["spec"]["nodeName"]
        host = self.hosts[name]
        host.hear(pod)
        given: dict[str, frozenset[str]] | None = {}
        if isinstance(host, ClaimHost):
            if find_request(pod) is not None and f"{OF_POD}{pod['metadata']['uid']}" not in self.claims:
                given = None
            elif not all(host.prepare(claim, pod) for claim in self.claims_of(pod)):
                return  # it waits
        else:
            given = host.admit(pod)
        if given is None:
            pod["status"]["phase"] = "Failed"
            self.send(pod)
            host.end(pod["metadata"]["uid"])
            return
        pod["status"]["phase"] = "Running"
        host.hear(pod)
        if random.random() < 0.7:
            got = assigned_to(pod) if host.serves_claims else self._got(pod, given)
            if got is not None:
                text = dump_allocation(pod["metadata"]["uid"], got)
                pod["metadata"]["annotations"][POD_ALLOCATION] = text
        self.send(pod)
        if random.random() < 0.7:
            self.publish(name)

    def _got(self, pod: dict[str, Any], given: dict[str, frozenset[str]]) -> Assignment | None:
        """What the node writes of the cards that each container got."""
        sizes = {card.uuid: card.size_units for card in self.hosts[pod["spec"]["nodeName"]].cards}
        request = request_of(pod)
        found = {}
        for each in request.containers:
            uuids = sorted({text.partition(SEPARATOR)[0] for text in given[each.name]})
            found[each.name] = tuple((uuid, request.units_of(each, sizes[uuid])) for uuid in uuids)
        return found

    def _claim(self, host: ClaimHost, random: Random) -> None:
        """A pod with a claim that kube-scheduler, or a person, allocated; the node may have prepared it."""
        made = self._pod_with_claim(f"k{self._next()}", host, random)
        if not self._allocate(made, host, random):
            return
        self.send(made)
        self.clean.discard(host.name)
        if random.random() < 0.7:
            self._serve(made)

    def _pod_with_claim(self, name: str, host: ClaimHost, random: Random) -> dict[str, Any]:
        made: dict[str, Any] = pod_object(
            name,
            version=self._next(),
            node=host.name,
            containers=[{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            spec={"priority": random.randint(0, PRIORITY), "tolerations": []},
        )
        made["kind"] = "Pod"
        return made

    def _happen_to_claim(self, host: Host, random: Random) -> None:
        """Others share a claim of a node, or somebody deletes it, or its node changes its kind undrained."""
        claims = [each for each in self.claims.values() if _is_foreign(each, host.name)]
        if not claims:
            return
        claim, what = random.choice(claims), random.choice(("shared", "shared", "deleted", "ending", "kind"))
        if what == "shared" and isinstance(host, ClaimHost):
            self._share(claim, host, random)
        elif what == "deleted":
            del self.claims[claim["metadata"]["uid"]]
            self.scheduler.claims.delete(msgspec.convert(claim, ClaimObject), str(self._next()), 0.0)
        elif what == "ending":
            for each in claim["status"]["reservedFor"]:
                if each["name"] in self.pods:
                    self.pods[each["name"]]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                    self.send(self.pods[each["name"]])
        elif what == "kind" and isinstance(host, ClaimHost):
            self._change_kind(host)

    def _share(self, claim: dict[str, Any], host: ClaimHost, random: Random) -> None:
        """Another pod uses a claim; the node may have prepared it for the first one."""
        name = f"s{self._next()}"
        made = self._pod_with_claim(name, host, random)
        made["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": claim["metadata"]["name"]}]
        reserved = {"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}
        claim["status"]["reservedFor"].append(reserved)
        self.send_claim(claim)
        self.send(made)
        self.clean.discard(host.name)

    def _change_kind(self, host: ClaimHost) -> None:
        """All pods are deleted by force, and the node comes back with the device plugin; claims are there."""
        for pod in self.on(host.name):
            del self.pods[pod["metadata"]["name"]]
            self.scheduler.delete_pod(msgspec.convert(pod, Pod), str(self._next()), 0.0)
        plain = Host(host.name, host.cards)
        plain.cpu, plain.spec, plain.ready = host.cpu, host.spec, host.ready
        self.hosts[host.name] = plain
        self.publish(host.name)

    def _allocate(self, pod: dict[str, Any], host: ClaimHost, random: Random) -> bool:
        """Give a pod a claim that is allocated cards of a node; False where they have no room."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        devices = device_names([card.uuid for card in host.cards])
        results = []
        for card in random.sample(host.cards, min(len(host.cards), random.choice((1, 1, 2)))):
            device = devices[card.uuid]
            left = card.size_units - self._allocated(host.name, device)
            most = left if random.random() < 0.8 else card.size_units
            if most > 0:
                units = random.choice((random.randint(1, most), random.randint(1, most), most))
                result: dict[str, Any]
                result = {"request": "gpu", "driver": DRA_DRIVER, "pool": host.name, "device": device}
                if units < card.size_units or random.random() < 0.5:
                    result["consumedCapacity"] = {DRA_MEMORY: f"{units}Gi"}
                results.append({**result, "shareID": f"{name}-{device}"})
        if not results:
            return False
        owner = {"kind": "Pod", "name": name, "uid": uid}
        as_if_ours = {"ownerReferences": [owner], "labels": {CLAIM_LABEL: "true"}}
        self.send_claim(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}"}
                | (as_if_ours if random.random() < 0.3 else {}),
                "status": {
                    "allocation": {"devices": {"results": results}},
                    "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
                },
            }
        )
        pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "card"}]
        return True

    def _allocated(self, node: str, device: str) -> int:
        """Units of a card that claims have, as kube-scheduler sees it."""
        found = [msgspec.convert(claim, ClaimObject) for claim in self.claims.values()]
        return sum(
            result.count_units(1024) or 1000
            for claim in found
            for result in claim.results or ()
            if (result.pool, result.device) == (node, device)
        )

    def _happen(self) -> None:
        """Something happens to a card, a node or a pod."""
        random = self.random
        host = self.hosts[random.choice(sorted(self.hosts))]
        card = random.choice(host.cards).uuid if host.cards else ""
        what = random.choice(
            ("gone", "shrinks", "sick", "cordon", "withheld", "foreign", "node", "pod", "pod")
        )
        if what == "pod":
            self._happen_to_pod()
            return
        self.clean.discard(host.name)
        if what == "node":
            self._happen_to_node(host)
        elif what == "gone" and len(host.cards) > 1:
            host.resize(card, None)
        elif what == "shrinks" and card:
            host.resize(card, random.choice((0, 2, 4)))
        elif what == "sick":
            host.sick ^= {card}
        elif what == "withheld":
            host.withheld ^= {card}
        elif what == "cordon":
            host.cordoned ^= {card}
        elif what == "foreign":
            host.ledger.set_unaccounted_use({card: random.choice((1, 3, 20))})
        host.keep_out()
        if random.random() < 0.8:
            self.publish(host.name)
        else:
            self._write(host.name)

    def _happen_to_node(self, host: Host) -> None:
        random = self.random
        what = random.choice(
            ("cordon", "taint", "old cordon", "not ready", "no plugin", "no shares", "old release")
        )
        if what == "cordon":
            host.spec = {**host.spec, "unschedulable": True}
        elif what == "taint":
            self._taint(host, (TAINT, "NoSchedule"))
        elif what == "old cordon":
            self._taint(host, (UNSCHEDULABLE.key, UNSCHEDULABLE.effect))
        elif what == "not ready":
            host.ready = False
            self._taint(host, (NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute"))
        elif what == "no plugin":
            host.plugin = False
        elif what == "no shares":
            host.shares = False
        else:
            host.tells_units = host.serves_claims  # the release before served none
            host.tells_compute = False

    def _taint(self, host: Host, *taints: tuple[str, str]) -> None:
        more = [{"key": key, "effect": effect} for key, effect in taints]
        host.spec = {**host.spec, "taints": [*host.spec.get("taints", ()), *more]}

    def _happen_to_pod(self) -> None:
        random = self.random
        if not self.pods:
            return
        pod = self.pods[random.choice(sorted(self.pods))]
        host = self.hosts[pod["spec"]["nodeName"]]
        uid = pod["metadata"]["uid"]
        self.clean.discard(host.name)
        what = random.choice(("ending", "done", "over", "gone", "moved"))
        if what == "ending":
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        elif what in ("done", "over"):
            pod["status"]["phase"] = "Succeeded"
        self.send(pod)
        if what == "over":
            host.end(uid)
            self.publish(host.name)
        elif what == "gone":
            del self.pods[pod["metadata"]["name"]]
            self.scheduler.delete_pod(msgspec.convert(pod, Pod), str(self._next()), 0.0)
        if what in ("over", "gone") and Random(uid).random() < 0.7:
            self._drop_claims(pod)
        if what == "moved" and POD_ALLOCATION not in pod["metadata"]["annotations"]:
            self._say_otherwise(pod, host)

    def _say_otherwise(self, pod: dict[str, Any], host: Host) -> None:
        """The annotations of a pod name a card that the node has not."""
        assigned = assigned_to(pod)
        if assigned is not None:
            others = {
                name: tuple((f"{uuid}-lost", units) for uuid, units in shares)
                for name, shares in assigned.items()
            }
            pod["metadata"]["annotations"][POD_ASSIGNED] = dump_assigned(others)
            self.send(pod)
            self.clean.discard(host.name)

    def _ask(self) -> None:
        """A pod that waits: for kube-scheduler, in the queue, or in the queue again."""
        random = self.random
        made = self._pod(f"w{len(self.asking)}", PRIORITY + 1)
        made["metadata"]["labels"] = {QUEUE_NAME: "a"}
        where = random.choice(("scheduler", "scheduler", "queue", "again"))
        if where == "queue":
            made["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
        elif where == "again":
            made["metadata"]["annotations"][POD_REQUEUED] = "true"
        self.asking.append(made["metadata"]["name"])
        self.send(made)

    def _send_binding(self) -> None:
        """The extender takes a pod's cards, and the API server has not heard of it."""
        made = self._pod("under-way", PRIORITY)
        self.send(made)
        for name in sorted(self.hosts):
            try:
                self.committer.assume("default", "under-way", made["metadata"]["uid"], name, 0.0)
            except CommitError:
                continue
            self.under_way = "under-way", name
            return

    # What the API server has.

    def without(self, pod: dict[str, Any]) -> "Scene":
        """The cluster once a pod has ended, and its node has said so."""
        name = pod["spec"]["nodeName"]
        host = self.hosts[name].copy()
        host.end(pod["metadata"]["uid"])
        made, before = host.published(self._next()), self.nodes[name]
        made["spec"] = before["spec"]
        made["status"]["conditions"] = before["status"]["conditions"]
        if NODE_CORDON in before["metadata"]["annotations"]:
            made["metadata"]["annotations"][NODE_CORDON] = before["metadata"]["annotations"][NODE_CORDON]
        then = Scene.__new__(Scene)
        vars(then).update({key: value for key, value in vars(self).items() if key != "text"})
        then.nodes = {**self.nodes, name: made}
        then.pods = {key: each for key, each in self.pods.items() if each is not pod}
        left = self.claims_of(pod)
        then.claims = {key: each for key, each in self.claims.items() if each not in left}
        return then

    @cached_property
    def text(self) -> str:
        """The output of `kubectl get nodes,pods,resourceclaims -A -o json`."""
        items = [*self.nodes.values(), *self.pods.values(), *self.claims.values()]
        return json.dumps({"kind": "List", "items": items})

    def on(self, node: str) -> list[dict[str, Any]]:
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == node]


def ask_compute(containers: Sequence[dict[str, Any]], random: Random) -> None:
    """Have the containers of some pods ask for compute as well."""
    for each in containers if random.random() < 0.3 else ():
        percent = str(random.choice((0, 20, 30, 50, 60, 100)))
        for amounts in each["resources"].values():
            amounts[COMPUTE_RESOURCE] = percent


def _is_foreign(claim: dict[str, Any], node: str) -> bool:
    """Tell whether others than the extender allocated a claim cards of a node."""
    results = claim["status"]["allocation"]["devices"]["results"]
    return not claim["metadata"]["uid"].startswith(OF_POD) and any(
        result["pool"] == node for result in results
    )


def make_claim(claim: BoundPodClaim) -> dict[str, Any]:
    """The claim that the extender writes for a pod, allocated."""
    return {
        **claim.body,
        "metadata": {**claim.body["metadata"], "uid": f"{OF_POD}{claim.pod_uid}"},
        "status": {
            "allocation": claim.allocation,
            "reservedFor": [{"resource": "pods", "name": claim.pod, "uid": claim.pod_uid}],
        },
    }
