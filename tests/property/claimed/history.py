"""Claims and ordinary pods on one node, driven through random histories, one step at a time.

kube-scheduler allocates claims, a person does so by hand whatever is free, the extender writes claims of
ordinary pods. The kubelet has them prepared. Claims and pods are deleted by force, and all processes restart.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from allocator.claims import ClaimObject
from allocator.ids import device_names
from allocator.names import CLAIM_LABEL, COMPUTE_RESOURCE, POD_ASSIGNED
from allocator.records import Assignment, load_assigned
from deviceplugin.errors import AllocationRefusedError
from kubeapi.objects import Node, Pod
from scheduler_plugin.binding.committer import Committer, PendingBinding
from scheduler_plugin.cache.charges import TOMBSTONE_S
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.property.kernel.api import Watch
from tests.property.kernel.history import History, replayable

from .api import NODE, Json, ModelApi, name_compute
from .node import RESOURCE, UNIT_MIB, ModelDaemon

if TYPE_CHECKING:
    import asyncio

MAX_PODS: Final = 10


class Extender:
    """The shipped state and committer, fed late, and the writes of one Binding after the other.

    Attributes:
        heard: claims as its watch has brought them, by UID.
        had: when it heard that a claim it had known as allocated was so no more, and that claim, by UID.
        under_way: Bindings with the number of writes that were made.
    """

    def __init__(self, api: ModelApi, random: Random) -> None:
        self.api, self.random = api, random
        self.start()

    def start(self) -> None:
        """Begin with complete lists, and take back what the one before left to pods that are not bound."""
        self.state = ClusterState(UNIT_MIB)
        self.committer = Committer(self.state, ClusterPolicies())
        self.under_way: list[list[Any]] = []
        self.heard: dict[str, ClaimObject] = {}
        self.had: dict[str, tuple[float, ClaimObject]] = {}
        self.gone: dict[str, float] = {}
        version, now = str(self.api.version), self.api.now
        for claim in list(self.api.claims.values()):
            owner = next((one["uid"] for one in claim["metadata"].get("ownerReferences") or ()), "")
            pod = self.api.pods.get(owner)
            if claim.get("status") and pod is not None and not pod["spec"].get("nodeName"):
                self.api.change("claims", claim["metadata"]["uid"], status={})
        pods = [msgspec.convert(pod, type=Pod) for pod in self.api.pods.values()]
        nodes = [msgspec.convert(node, type=Node) for node in self.api.objects["nodes"].values()]
        claims = [msgspec.convert(claim, type=ClaimObject) for claim in self.api.claims.values()]
        self.state.replace_pods(pods, version, now)
        self.state.replace_nodes(nodes, version, now)
        self.state.claims.replace(claims, version, now)
        self.heard = {claim.metadata.uid: claim for claim in claims}
        self.watches = {what: Watch(log) for what, log in self.api.events.items()}

    def hear(self, what: str) -> bool:
        """Take the next event of one resource; at times it comes twice."""
        event = self.watches[what].read()
        if event is not None:
            for _ in range(2 if self.random.random() < 0.03 else 1):
                self._take(what, event.kind, event.item, str(event.version))
        return event is not None

    def _take(self, what: str, kind: str, item: Json, version: str) -> None:
        now, gone, state = self.api.now, kind == "DELETED", self.state
        if what == "nodes":
            state.apply_node(msgspec.convert(item, type=Node), now)
        elif what == "pods":
            pod = msgspec.convert(item, type=Pod)
            if gone:
                self.gone.setdefault(pod.metadata.uid, now)
                state.delete_pod(pod, version, now)
            else:
                state.apply_pod(pod, now)
        else:
            claim = msgspec.convert(item, type=ClaimObject)
            before = self.heard.get(claim.metadata.uid)
            if before is not None and before.results and (gone or not claim.results):
                self.had[claim.metadata.uid] = now, before
            if gone:
                self.heard.pop(claim.metadata.uid, None)
                state.claims.delete(claim, version, now)
            else:
                if claim.results:
                    self.had.pop(claim.metadata.uid, None)
                self.heard[claim.metadata.uid] = claim
                state.claims.apply(claim, now)

    def schedule(self, pod: Json) -> None:
        metadata = pod["metadata"]
        try:
            found = self.committer.assume("default", metadata["name"], metadata["uid"], NODE, self.api.now)
        except CommitError:
            return
        self.under_way.append([found, 0, found.pod.resource_version])

    def write(self) -> None:
        """The next write of one Binding: its claim, the pod's status, the Binding; or it is refused."""
        if not self.under_way:
            return
        binding = self.random.choice(self.under_way)
        found, done, version = binding
        if self.random.random() < 0.05 or not self._write(binding, found, done, version):
            self.under_way.remove(binding)
            self.state.forget(found.assumed, self.api.now)
            self._release(found)

    def _write(self, binding: list[Any], found: PendingBinding, done: int, version: str) -> bool:
        api, claim = self.api, found.claim
        assert claim is not None
        assert found.assumed is not None
        pod = api.pods.get(found.pod.uid)
        uid = f"of-{found.pod.uid}"
        if pod is None or (done < 2 and pod["metadata"]["resourceVersion"] != version):
            return False
        if done == 0:
            body = {**claim.body, "metadata": {**claim.body["metadata"], "uid": uid}}
            status = {"allocation": claim.allocation, "reservedFor": api.reserve([found.pod.uid])}
            api.put("claims", {**body, "status": status})
        elif done == 1:
            made = {"resourceClaimName": claim.name, "requestMappings": claim.mappings}
            api.change("pods", found.pod.uid, status={**pod["status"], "extendedResourceClaimStatus": made})
            binding[2] = api.pods[found.pod.uid]["metadata"]["resourceVersion"]
            found.assumed.pod = replace(found.assumed.pod, resource_version=binding[2])
            found.assumed.awaits_claim = False
        elif api.bind(found.pod.uid, version, found.assigned):
            self.under_way.remove(binding)
            return True
        else:
            return False
        binding[1] += 1
        return True

    def _release(self, found: PendingBinding) -> None:
        pod = self.api.pods.get(found.pod.uid)
        if pod is not None and not pod["spec"].get("nodeName"):
            self.api.change("claims", f"of-{found.pod.uid}", status={})

    def counted(self, sizes: tuple[int, ...]) -> list[int] | None:
        """Units by card that it takes as used, then percent of compute; None while it cannot use the node."""
        nodes = self.state.nodes
        row = nodes.rows.get(NODE)
        if row is None or not nodes.usable[row]:
            return None
        units, compute = (
            nodes.used[row] + nodes.assumed[row],
            nodes.compute_limit[row] - nodes.compute_free[row],
        )
        return [*units[: len(sizes)].tolist(), *compute[: len(sizes)].tolist()]


class ClaimHistory(History):
    """One random history of one node.

    Args:
        trouble: how much more often trouble comes.
        vanish: how much more often claims vanish, and prepared ones are told late, besides.
    """

    longest_step_s = 0.3
    rests_after = 200

    def __init__(self, seed: int, trouble: float = 1.0, vanish: float = 1.0) -> None:
        super().__init__(seed)
        self.api = ModelApi()
        self.sizes = self.random.choice(((8,), (8, 5), (8, 8)))
        self.running: set[str] = set()
        self.daemon = ModelDaemon(self.api, self.random, self.sizes, self.running)
        self.daemon.hear()
        self.daemon.publish()
        self.extender = Extender(self.api, self.random)
        self.numbers = itertools.count()
        self.devices = device_names([card.uuid for card in self.daemon.cards])
        self.devices |= {name_compute(card): name_compute(name) for card, name in self.devices.items()}
        uuids = [card.uuid for card in self.daemon.cards]
        limit = self.daemon.ledger.accounts.compute_limit
        self.limits = dict(zip(uuids, self.sizes, strict=True)) | {
            name_compute(uuid): limit for uuid in uuids
        }
        self.admitting: dict[str, dict[str, asyncio.Task[Any]]] = {}
        self.used_by: dict[str, set[str]] = {}
        self.stopped: set[str] = set()
        work = (
            (20, self._create),
            (20, self._schedule),
            (40, self._write),
            (20, self._allocate),
            (15, self._bind),
            (60, self._extender_hears),
            (30, self._daemon_hears),
            (30, self._publish),
            (30, self._admit),
            (60 / vanish, self._answer),
            (12, self._finish),
            (20, self._unprepare),
            (20, self._tidy),
            (8, self._cgroups),
            (6, self._recover),
        )
        bad = (
            (3, self._by_hand),
            (3, self._force_delete_pod),
            (3 * vanish, self._force_delete_claim),
            (1 * vanish, self._deallocate),
            (1.5, self._kill_daemon),
            (1, self._restart_extender),
            (1, self._restart_kubelet),
            (2, self._sleep),
        )
        pace = lambda: self.random.choice((0.2, 1, 1, 3))  # noqa: E731
        self.actions = [(weight * pace(), action) for weight, action in work]
        self.actions += [(trouble * weight * pace(), action) for weight, action in bad]
        self.weights = [weight for weight, _ in self.actions]

    # Steps.

    @property
    def now(self) -> float:
        return self.api.now

    def _pass(self, seconds: float) -> None:
        self.api.now += seconds

    def _pick(self, items: list[Any]) -> Any:
        return self.random.choice(items) if items else None

    def _create(self) -> None:
        """An ordinary pod, one with a claim of its own, one that has both, or one that shares a claim."""
        if len(self.api.pods) >= MAX_PODS:
            return
        number = next(self.numbers)
        name, uid, units = f"p{number}", f"u{number}", self.random.randint(1, 5)
        compute = self.random.choice((0, 10, 30, 60))
        container: Json = {"name": "main"}
        spec: Json = {"containers": [container]}
        kind = self.random.choice(("limits", "limits", "own", "own", "shared", "shared", "both"))
        pod = {"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec}
        amounts: Json = {}
        if kind in ("limits", "both"):
            asked = {RESOURCE: str(units)} | ({COMPUTE_RESOURCE: str(compute)} if compute else {})
            amounts = {"limits": asked, "requests": asked}
            container["resources"] = amounts
        if kind != "limits":
            claim = f"s{self.random.randrange(2)}" if kind == "shared" else f"c{number}"
            container["resources"] = {**amounts, "claims": [{"name": "card"}]}
            spec["resourceClaims"] = [{"name": "card", "resourceClaimName": claim}]
            if all(each["metadata"]["name"] != claim for each in self.api.claims.values()):
                metadata: Json = {"name": claim, "namespace": "default", "uid": f"{claim}-{number}"}
                metadata["annotations"] = {"units": str(units), "compute": str(compute)}
                if kind != "shared":
                    # Some look as if the extender had written them.
                    metadata["labels"] = {CLAIM_LABEL: "true"} if number % 2 else {}
                    metadata["ownerReferences"] = [{"kind": "Pod", "name": name, "uid": uid}]
                self.api.put("claims", {"metadata": metadata})
        self._say(f"create {name} {kind} {units} compute {compute}")
        self.api.put("pods", {**pod, "status": {"phase": "Pending"}})

    def _waiting(self) -> list[Json]:
        return [
            pod
            for pod in self.api.pods.values()
            if not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
        ]

    def _are_allocated(self, pod: Json) -> bool:
        """Whether the claims that a pod names are allocated; once it is bound, also that of its limits."""
        names = {each["resourceClaimName"] for each in pod["spec"].get("resourceClaims") or ()}
        if pod["spec"].get("nodeName") and asks(pod):
            names.add((pod["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
        found = [claim for claim in self.api.claims_of(pod) if claim["metadata"]["name"] in names]
        return len(found) == len(names) and all(
            (claim.get("status") or {}).get("allocation") for claim in found
        )

    def _schedule(self) -> None:
        """kube-scheduler has the extender bind a pod that asks by its limits, with its claims allocated."""
        pod = self._pick([pod for pod in self._waiting() if asks(pod) and self._are_allocated(pod)])
        if pod is not None and pod["metadata"]["uid"] in self.extender.state.pods:
            before = len(self.extender.under_way)
            self.extender.schedule(pod)
            if len(self.extender.under_way) > before:
                self._say(f"assume {pod['metadata']['name']}: {self.extender.under_way[-1][0].assigned}")

    def _write(self) -> None:
        self.extender.write()

    def _allocated(self) -> dict[str, int]:
        """Units of each device that claims have, and compute, as kube-scheduler sees it."""
        amounts: dict[str, int] = {}
        for item in self.api.claims.values():
            for name, amount in self.api.amounts_by_device(msgspec.convert(item, type=ClaimObject)).items():
                amounts[name] = amounts.get(name, 0) + amount
        return amounts

    def _unallocated(self) -> tuple[Json, Json] | None:
        """A claim that is not allocated, with a pod that waits for it."""
        found = [
            (claim, pod)
            for pod in self._waiting()
            for claim in self.api.claims_of(pod)
            if "units" in (claim["metadata"].get("annotations") or {})
            and not (claim.get("status") or {}).get("allocation")
        ]
        return self._pick(found)  # type: ignore[no-any-return]

    def _allocate(self) -> None:
        """kube-scheduler allocates the first device that has room."""
        found = self._unallocated()
        if found is None:
            return
        claim, pod = found
        asked, used = claim["metadata"]["annotations"], self._allocated()
        units, compute = int(asked["units"]), int(asked["compute"])
        for card in self.daemon.cards:
            device = self.devices[card.uuid]
            asks = {device: (units, card.uuid), name_compute(device): (compute, name_compute(card.uuid))}
            if all(used.get(name, 0) + amount <= self.limits[of] for name, (amount, of) in asks.items()):
                self._say(f"allocate {claim['metadata']['name']} {device} {units} compute {compute}")
                self.api.allocate(claim["metadata"]["uid"], device, units, compute, [pod["metadata"]["uid"]])
                return

    def _by_hand(self) -> None:
        """A person allocates whatever there is."""
        found = self._unallocated()
        if found is not None:
            claim, pod = found
            device, units = self.devices[self._pick(list(self.daemon.cards)).uuid], self.random.randint(1, 9)
            compute = self.random.choice((0, 20, 50, 100))
            self._say(f"allocate {claim['metadata']['name']} {device} {units} compute {compute} by hand")
            self.api.allocate(claim["metadata"]["uid"], device, units, compute, [pod["metadata"]["uid"]])

    def _bind(self) -> None:
        """Bind a pod whose claims are allocated, after it is among those that may use them."""
        pod = self._pick([pod for pod in self._waiting() if not asks(pod) and self._are_allocated(pod)])
        if pod is None:
            return
        claims, uid = self.api.claims_of(pod), pod["metadata"]["uid"]
        for claim in claims:
            status = claim["status"]
            users = [one["uid"] for one in status.get("reservedFor") or ()]
            if uid not in users:
                reserved = self.api.reserve([*users, uid])
                self.api.change(
                    "claims", claim["metadata"]["uid"], status={**status, "reservedFor": reserved}
                )
        self._say(f"bind {pod['metadata']['name']}")
        self.api.bind(uid, None, None)

    def _extender_hears(self) -> None:
        self.extender.hear(self.random.choice(("nodes", "pods", "claims")))

    def _daemon_hears(self) -> None:
        if self.daemon.up:
            self.daemon.hear()

    def _publish(self) -> None:
        if self.daemon.up:
            self.daemon.publish()

    def _answer(self) -> None:
        if self.daemon.up and self.daemon.slow.answer():
            self.daemon.pump()
            self._gather()

    def _cgroups(self) -> None:
        if self.daemon.up:
            self.daemon.hand_over_claims()
            self.daemon.look_at_cgroups()

    # The kubelet.

    def _admit(self) -> None:
        """Ask for the claims of a bound pod, once each is there and may be used by it."""
        if not self.daemon.up:
            return
        bound = [
            pod
            for uid, pod in self.api.pods.items()
            if pod["spec"].get("nodeName")
            and self.api.is_live(uid)
            and uid not in self.running | self.stopped
        ]
        pod = self._pick(bound)
        if pod is None or pod["metadata"]["uid"] in self.admitting:
            return
        uid, claims = pod["metadata"]["uid"], self.api.claims_of(pod)
        ready = (
            self._are_allocated(pod)
            and claims
            and all(
                uid in {one["uid"] for one in (claim.get("status") or {}).get("reservedFor") or ()}
                for claim in claims
            )
        )
        if not ready:
            return
        tasks: dict[str, asyncio.Task[Any]] = {}
        for claim in claims:
            metadata = claim["metadata"]
            self.used_by.setdefault(metadata["uid"], set()).add(uid)
            tasks[metadata["uid"]] = self.daemon.begin_prepare(metadata["name"], metadata["uid"])
        self.admitting[uid] = tasks
        self._gather()

    def _gather(self) -> None:
        """Pods whose claims are all prepared run; where one is refused the kubelet asks again later."""
        for uid, tasks in list(self.admitting.items()):
            if not all(task.done() for task in tasks.values()):
                continue
            del self.admitting[uid]
            errors = [task.cancelled() or task.exception() for task in tasks.values()]
            for error in errors:
                if error and not isinstance(error, AllocationRefusedError | bool):
                    raise error
            if not any(errors) and uid in self.api.pods:
                self._say(f"{uid} runs with {list(tasks)}")
                self.running.add(uid)

    def _finish(self) -> None:
        """Containers end; claims are unprepared before the API shows the end."""
        uid = self._pick(sorted(self.running))
        if uid is not None:
            self._say(f"containers of {uid} end")
            self.running.discard(uid)
            self.stopped.add(uid)

    def _unprepare(self) -> None:
        """The kubelet lets the claims of a pod go that ended or is gone, and then says so."""
        ended = {uid for users in self.used_by.values() for uid in users if uid not in self.api.pods}
        uid = self._pick(sorted((ended | self.stopped) - self.admitting.keys()))
        if uid is None or not self.daemon.up:
            return
        self.running.discard(uid)
        for claim, users in list(self.used_by.items()):
            users.discard(uid)
            if not users:
                self._say(f"unprepare {claim}")
                self.daemon.unprepare(claim)
                del self.used_by[claim]
        self.stopped.discard(uid)
        pod = self.api.pods.get(uid)
        if pod is not None:
            if self.random.random() < 0.5:
                self.api.change("pods", uid, status={**pod["status"], "phase": "Succeeded"})
            else:
                self.api.delete("pods", uid)

    def _tidy(self) -> None:
        claim = self._pick(list(self.api.claims.values()))
        if claim is not None:
            self.api.tidy_claim(claim)
        done = [uid for uid, pod in self.api.pods.items() if pod["status"]["phase"] == "Succeeded"]
        if done and self.random.random() < 0.5:
            self.api.delete("pods", self.random.choice(done))

    # Trouble.

    def _force_delete_pod(self) -> None:
        uid = self._pick(list(self.api.pods))
        if uid is not None:
            self._say(f"force-delete pod {uid}")
            self.api.delete("pods", uid)

    def _force_delete_claim(self) -> None:
        uid = self._pick(list(self.api.claims))
        if uid is not None:
            self._say(f"force-delete claim {uid}")
            self.api.delete("claims", uid)

    def _deallocate(self) -> None:
        """Somebody takes an allocation back though pods may use it."""
        uid = self._pick([uid for uid, claim in self.api.claims.items() if claim.get("status")])
        if uid is not None and not uid.startswith("of-"):
            self._say(f"deallocate {uid}")
            self.api.change("claims", uid, status={})

    def _kill_daemon(self) -> None:
        if self.daemon.up:
            self._say("daemon killed")
            self.daemon.kill()
            self._gather()

    def _recover(self) -> None:
        if not self.daemon.up:
            self._say("daemon starts")
            self.daemon.start()

    def _restart_extender(self) -> None:
        self._say("extender restarts")
        self.extender.start()

    def _restart_kubelet(self) -> None:
        """Its calls are cut off; what it asked for it had written down before."""
        self._say("kubelet restarts")
        for tasks in self.admitting.values():
            for task in tasks.values():
                task.cancel()
        self.daemon.pump()
        self.admitting.clear()

    def _sleep(self) -> None:
        self.api.now += self.random.choice((2.0, 12.0))

    # What must hold.

    def check(self) -> None:
        """No card has more than it has, and the extender counts what it has heard of."""
        prepared = self.daemon.amounts()
        for name, limit in self.limits.items():
            amount = sum(mine.get(name, 0) for mine in prepared.values())
            if amount > limit:
                self._fail(f"{amount} of {name} are prepared, it has {limit}")
        counted = self.extender.counted(self.sizes)
        if counted is None:
            return
        due = self._due(prepared)
        for name, amount in self._bound(prepared):
            due[name] = due.get(name, 0) + amount
        for (name, limit), count in zip(self.limits.items(), counted, strict=True):
            amount = min(limit, due.get(name, 0))
            if count < amount:
                self._fail(
                    f"the extender counts {count} of {name}, claims that it knows have {amount}: "
                    f"prepared {prepared}"
                )

    def _due(self, prepared: dict[str, dict[str, int]]) -> dict[str, int]:
        """Amounts by card of claims of which the extender has heard, and not heard the end."""
        now, state = self.api.now, self.extender.state
        uuids = {device: uuid for uuid, device in self.devices.items()}
        due: dict[str, int] = {}
        shares = dict(prepared)
        for uid, claim in self.extender.heard.items():
            if not uid.startswith("of-") and uid not in shares:
                amounts = self.api.amounts_by_device(claim)
                shares[uid] = {uuids[name]: amount for name, amount in amounts.items()}
        for uid, mine in shares.items():
            units = mine
            if uid in prepared and not uid.startswith("of-"):
                units = self._known_of(uid, mine, uuids)
            if uid.startswith("of-"):
                pod = uid.removeprefix("of-")
                record = state.pods.get(pod)
                bound = record is not None and (record.node or state.get_assumed(pod)) and not record.ended
                told = self.extender.gone.get(pod)
                if not bound and (told is None or now >= told + TOMBSTONE_S):
                    continue
            for uuid, count in units.items():
                due[uuid] = due.get(uuid, 0) + count
        return due

    def _known_of(self, uid: str, prepared: dict[str, int], uuids: dict[str, str]) -> dict[str, int]:
        """Amounts by card of a prepared claim, as far as the extender has heard of its allocation."""
        told_s, before = self.extender.had.get(uid, (0.0, None))
        heard = self.extender.heard.get(uid)
        now_has = heard if heard is not None and heard.results else None
        known = now_has or before
        if known is not None and known.share_ids == self.daemon.share_ids(uid):
            return prepared if now_has is not None or self.api.now < told_s + TOMBSTONE_S else {}
        # It was allocated anew: the extender may not have heard of it, or the node has what it had before.
        found = self.api.amounts_by_device(now_has) if now_has is not None else {}
        return {uuids[name]: count for name, count in found.items()}

    def _bound(self, prepared: dict[str, dict[str, int]]) -> Iterator[tuple[str, int]]:
        """Give cards with amounts of pods that the extender has seen bound, whose claim is not prepared."""
        for uid, pod in self.extender.state.pods.items():
            if not pod.node or pod.ended or pod.assigned is None or f"of-{uid}" in prepared:
                continue
            if self.api.is_live(uid):  # the words may have seen an end of which the extender has not heard
                yield from _find_amounts(pod.assigned, self.api.pods[uid]).items()

    def rest(self) -> None:
        """Deliver everything, give time to everything, and compare all views."""
        if not self.daemon.up:
            self._recover()
        for _ in range(4):
            while self.extender.under_way:
                self._write()
            for _ in range(30):
                self._admit()
                while self.daemon.slow.asked:
                    self._answer()
                self._gather()
                self._unprepare()
            for claim in list(self.api.claims.values()):
                self.api.tidy_claim(claim)
            self._delete_stuck_pods()
            while self.daemon.hear():
                pass
            self.api.now += 11.0
            self.daemon.look_at_cgroups()
            self.daemon.account.read_checkpoint()
            self.daemon.look_at_cgroups()
            self.daemon.publish()
            for what in self.api.objects:
                while self.extender.hear(what):
                    pass
            self.check()
        self.api.now += TOMBSTONE_S
        self.extender.state.expire_tombstones(self.api.now)
        self._compare()

    def _delete_stuck_pods(self) -> None:
        """Delete pods that are bound and whose claim somebody took away: these keep their place otherwise."""
        for uid, pod in list(self.api.pods.items()):
            if not pod["spec"].get("nodeName") or not self.api.is_live(uid) or uid in self.running:
                continue
            reserved = [
                {one["uid"] for one in (claim.get("status") or {}).get("reservedFor") or ()}
                for claim in self.api.claims_of(pod)
            ]
            if not self._are_allocated(pod) or not all(uid in uids for uids in reserved):
                self.api.delete("pods", uid)

    def _compare(self) -> None:
        """What the words say is prepared, and the extender counts what is allocated or bound besides."""
        prepared = self.daemon.amounts()
        own = [sum(mine.get(name, 0) for mine in prepared.values()) for name in self.limits]
        used = self.daemon.used()
        if used != own:
            self._fail(f"the words say {used}, prepared are {prepared}")
        shares = [*prepared.values(), *self._claimed(prepared), *self._assigned(prepared)]
        expected = [sum(mine.get(name, 0) for mine in shares) for name in self.limits]
        counted = self.extender.counted(self.sizes)
        if counted != expected:
            self._fail(f"the extender counts {counted}, not {expected}; prepared {prepared}")

    def _claimed(self, prepared: dict[str, dict[str, int]]) -> list[dict[str, int]]:
        """Amounts by card that claims of others are allocated beyond what is prepared of them."""
        cards = {self.devices[name]: name for name in self.limits}
        found = []
        for uid, item in self.api.claims.items():
            if uid.startswith("of-"):
                continue
            claim = msgspec.convert(item, type=ClaimObject)
            for name, amount in self.api.amounts_by_device(claim).items():
                card = cards[name]
                given = prepared.get(uid, {}).get(card, 0)
                found.append({card: max(0, min(amount, self.limits[card]) - given)})
        return found

    def _assigned(self, prepared: dict[str, dict[str, int]]) -> list[dict[str, int]]:
        """Amounts by card of ordinary pods that are bound and whose claim is not prepared.

        Also where somebody deleted the claim: the pod never runs, and keeps its place.
        """
        found = []
        for uid, pod in self.api.pods.items():
            assigned = (pod["metadata"].get("annotations") or {}).get(POD_ASSIGNED)
            if assigned and self.api.is_live(uid) and f"of-{uid}" not in prepared:
                found.append(_find_amounts(load_assigned(assigned), pod))
        return found

    def end(self) -> None:
        """Every pod ends; so does every charge, and no file is left."""
        for uid in list(self.api.pods):
            self.api.delete("pods", uid)
        for uid, claim in list(self.api.claims.items()):
            if not claim["metadata"].get("ownerReferences"):
                self.api.delete("claims", uid)
        self.rest()
        left = [*self.daemon.disk, *self.daemon.cdi, *self.api.claims]
        if left or any(self.daemon.used()):
            self._fail(f"left {left}, used {self.daemon.used()}")


def asks(pod: Json) -> bool:
    """Whether a pod asks by its limits, with claims besides or without."""
    return "limits" in pod["spec"]["containers"][0]["resources"]


def _find_amounts(assigned: Assignment, pod: Json) -> dict[str, int]:
    """Units by card that a pod was assigned, and the compute that its limits ask for."""
    units = dict(assigned["main"])
    compute = int(pod["spec"]["containers"][0]["resources"]["limits"].get(COMPUTE_RESOURCE, 0))
    return units | {name_compute(card): compute for card in units}


@replayable
def run(seed: int, steps: int, trouble: float = 1.0, vanish: float = 1.0) -> int:
    """Run one history; returns the steps done.

    Raises:
        ViolationError: something does not hold.
    """
    history = ClaimHistory(seed, trouble, vanish)
    try:
        history.play(steps)
    finally:
        history.daemon.kill()
        history.daemon.loop.close()
    return steps
