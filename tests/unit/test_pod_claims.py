"""Claims of pods that ask by limits: what is written, in which order, and what a failed step leaves."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import convert

from allocator.names import (
    COMPUTE_RESOURCE,
    DRA_COMPUTE,
    DRA_DRIVER,
    NODE_SERVES,
    PERCENT_RESOURCE,
    POD_CARDS,
    SERVES_CLAIMS,
)
from kubeapi.errors import Conflict, KubeApiError, NotFound, TimedOut
from kubeapi.lease import SOLE_PROCESS
from kubeapi.objects import Pod
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.binding.pod_claims import FINALIZER, MOST_RESULTS, BoundPodClaim, claim_of
from scheduler_plugin.cache.pods import read_pod
from scheduler_plugin.cache.published_nodes import Exclusion, read_published
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.errors import CommitError
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.binding_world import ARGS, Api, Leader, T
from tests.cluster_builders import container, node, pod, pod_object, uuid

RESOURCE = "gpupack.io/gpu-memory-gib"
SERVES = {NODE_SERVES: SERVES_CLAIMS}
SIZES = {uuid("n", 0): 16, uuid("n", 1): 32}
FIRST, SECOND = SIZES


def make(assigned: Mapping[str, Any], *args: Any, **options: Any) -> BoundPodClaim:
    return claim_of(read_pod(pod("p", *args, **options), RESOURCE), "n", SIZES, dict(assigned), 1024)


def results(claim: BoundPodClaim) -> list[tuple[str, str, str]]:
    found = claim.allocation["devices"]["results"]
    return [(one["request"], one["device"], one["consumedCapacity"]["memory"]) for one in found]


def test_the_claim_of_a_pod_with_one_container() -> None:
    claim = make({"main": ((SECOND, 8),)}, 8)
    metadata = claim.body["metadata"]
    assert metadata["name"] == "p-gpupack-uid-p"
    assert metadata["finalizers"] == [FINALIZER]
    assert metadata["ownerReferences"][0]["uid"] == "uid-p"
    assert results(claim) == [("container-0-request-0", SECOND.lower(), "8Gi")]
    assert {one["driver"] for one in claim.allocation["devices"]["results"]} == {DRA_DRIVER}
    assert claim.mappings == [
        {"containerName": "main", "resourceName": RESOURCE, "requestName": "container-0-request-0"}
    ]


def test_each_container_has_a_request_with_a_share_of_each_of_its_cards() -> None:
    both = [container("a", 4), container("b", 2)]
    assigned = {"a": ((FIRST, 2), (SECOND, 2)), "b": ((FIRST, 1), (SECOND, 1))}
    claim = make(assigned, containers=both, annotations={POD_CARDS: "2"})
    assert results(claim) == [
        ("container-0-request-0", FIRST.lower(), "2Gi"),
        ("container-0-request-0", SECOND.lower(), "2Gi"),
        ("container-1-request-0", FIRST.lower(), "1Gi"),
        ("container-1-request-0", SECOND.lower(), "1Gi"),
    ]
    counts = [one["exactly"]["count"] for one in claim.body["spec"]["devices"]["requests"]]
    assert counts == [2, 2]
    assert len(claim.shares) == 4


def test_with_an_init_container_all_have_one_request_of_the_effective_units() -> None:
    assigned = {"setup": ((FIRST, 6),), "main": ((FIRST, 4),)}
    claim = make(assigned, containers=[container("main", 4)], init=[container("setup", 6)])
    assert results(claim) == [("all-containers", FIRST.lower(), "6Gi")]
    assert {one["requestName"] for one in claim.mappings} == {"all-containers"}


def test_what_its_containers_ask_of_compute_stands_beside_the_memory() -> None:
    """So that kube-scheduler counts it. A container that asks for none has none, init containers the peak."""
    both = [container("a", 4, resources={COMPUTE_RESOURCE: "30"}), container("b", 2)]
    assigned = {"a": ((FIRST, 2), (SECOND, 2)), "b": ((FIRST, 1), (SECOND, 1))}
    split = make(assigned, containers=both, annotations={POD_CARDS: "2"})
    assigned = {"setup": ((FIRST, 6),), "a": ((FIRST, 4),), "b": ((FIRST, 2),)}
    mains = [
        container("a", 4, resources={COMPUTE_RESOURCE: "30"}),
        container("b", 2, resources={COMPUTE_RESOURCE: "20"}),
    ]
    shared = make(
        assigned, containers=mains, init=[container("setup", 6, resources={COMPUTE_RESOURCE: "10"})]
    )

    def compute(claim: BoundPodClaim) -> list[str | None]:
        found = claim.allocation["devices"]["results"]
        return [one["consumedCapacity"].get(DRA_COMPUTE) for one in found]

    assert (compute(split), compute(shared)) == (["30", "30", None, None], ["50"])


def test_percent_is_written_in_units_under_its_own_resource() -> None:
    half = {"name": "main", "resources": {"limits": {PERCENT_RESOURCE: "50"}}}
    claim = make({"main": ((FIRST, 8),)}, containers=[half])
    assert results(claim) == [("container-0-request-0", FIRST.lower(), "8Gi")]
    assert claim.mappings[0]["resourceName"] == PERCENT_RESOURCE


def test_a_pod_of_more_shares_than_a_claim_can_have_is_refused() -> None:
    many = [container(f"c{at}", 1) for at in range(MOST_RESULTS + 1)]
    with pytest.raises(CommitError, match="asks for 33 shares of cards: allowed on node n"):
        make({one["name"]: ((FIRST, 1),) for one in many}, containers=many)


def test_the_claim_is_the_same_for_every_node_and_the_shares_are_not() -> None:
    one, other = make({"main": ((FIRST, 8),)}, 8), make({"main": ((SECOND, 8),)}, 8)
    assert one.body == other.body
    assert not one.shares & other.shares


def test_a_node_that_serves_claims_needs_no_units_of_its_kubelet() -> None:
    claims = node("n", (16, 16), allocatable_units=0, resources={PERCENT_RESOURCE: "0"}, extra=SERVES)
    found = read_published(claims, 1024)
    assert (found.exclusion, found.serves_claims, found.percent) == (Exclusion.NONE, True, True)
    plain = node("n", (16, 16), allocatable_units=0)
    assert read_published(plain, 1024).exclusion is Exclusion.NO_PLUGIN


class Claims(Api):
    """An API server with claims and one pod, that fails at the write that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, dict[str, Any]] = {}
        self.version = self.pod_version = 3
        self.writes: list[str] = []
        self.fail_at: tuple[int, KubeApiError] | None = None
        self.status: dict[str, Any] = {}
        self.on_status: Callable[[], None] = lambda: None
        self.answers: dict[str, Any] = {}

    def _write(self, what: str) -> None:
        self.writes.append(what)
        if self.fail_at is not None and len(self.writes) == self.fail_at[0]:
            raise self.fail_at[1]
        self.version += 1

    def answer(self, verb: str, path: str, body: Any) -> Any:
        answer = self._answer(verb, path, body)
        return self.answers.get(verb, answer)

    def _answer(self, verb: str, path: str, body: Any) -> Any:
        match verb:
            case "bind":
                self._write("binding")
                assert body.resource_version == str(self.version - 1), "the version after the status"
                return super().answer(verb, path, body)
            case "patch":
                assert path == "/api/v1/namespaces/default/pods/p/status"
                self._write("status")
                if body["metadata"]["resourceVersion"] != str(self.pod_version):
                    raise Conflict("stale", status=409)
                self.status = body["status"]
                self.on_status()
                return {"metadata": {"resourceVersion": str(self.version)}}
            case "post":
                return self._create(body)
            case "put":
                return self._allocate(path.split("/")[-2], body)
        return super().answer(verb, path, body) if path.endswith("/pods/p") else self._read(path)

    def _read(self, path: str) -> dict[str, Any]:
        if path.endswith("/resourceclaims"):
            return {"items": list(self.claims.values())}
        if (name := path.rpartition("/")[2]) not in self.claims:
            raise NotFound(path, status=404)
        return self.claims[name]

    def _create(self, claim: dict[str, Any]) -> dict[str, Any]:
        name = claim["metadata"]["name"]
        if name in self.claims:
            raise Conflict("there is one", reason="AlreadyExists")
        self._write("create")
        self.claims[name] = json.loads(json.dumps(claim))
        return self.claims[name]

    def _allocate(self, name: str, claim: dict[str, Any]) -> dict[str, Any]:
        before = self.claims[name].get("status", {}).get("allocation")
        after = claim["status"].get("allocation")
        assert before is None or after is None or before == after, "an allocation cannot be changed"
        self._write("allocate" if after else "deallocate")
        self.claims[name] = json.loads(json.dumps(claim))
        return self.claims[name]

    @property
    def allocated(self) -> list[str]:
        found = []
        for claim in self.claims.values():
            allocation = claim.get("status", {}).get("allocation") or {"devices": {"results": []}}
            found += [one["device"] for one in allocation["devices"]["results"]]
        return found


class World:
    """A node of claims, a pod that fits there, and the binder of one process."""

    def __init__(self, api: Claims, leadership: Leader | None = None) -> None:
        self.api = api
        self.state = ClusterState()
        self.claims = ClaimWriter(api, T, self.state.is_pending, sleep=self.sleep)
        self.binder = Binder(
            Committer(self.state, ClusterPolicies()),
            api,
            lambda: 100.0,
            T,
            leadership or SOLE_PROCESS,
            refresh=self.refresh,
            claims=self.claims,
            sleep=self.sleep,
        )
        self.state.apply_node(node("n", (16, 16), version=2, allocatable_units=0, extra=SERVES), 0)
        self.state.apply_pod(pod("p", 8, version=3), 0)

    async def refresh(self) -> None:
        """Do nothing: the state is as it is."""

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let what runs in the background end."""
        for _ in range(50):
            await asyncio.sleep(0)


async def test_the_writes_come_in_an_order_in_which_nothing_starts_bare() -> None:
    api = Claims()
    assert await World(api).binder.bind(*ARGS) == ""
    assert api.writes == ["create", "allocate", "status", "binding"]
    (device,) = api.allocated
    assert device in {uuid("n", card).lower() for card in range(2)}
    assert api.status["extendedResourceClaimStatus"]["resourceClaimName"] in api.claims


async def test_the_watch_that_shows_the_pods_new_status_lets_no_card_go() -> None:
    api = Claims()
    world = World(api)
    seen = []

    def on_status() -> None:
        world.state.apply_pod(pod("p", 8, version=api.version), 0)
        seen.append(int(world.state.nodes.assumed.sum()))

    api.on_status = on_status
    api.during = lambda: seen.append(int(world.state.nodes.assumed.sum()))
    assert await world.binder.bind(*ARGS) == ""
    assert seen == [8, 8]
    await world.settle()
    assert len(api.allocated) == 1
    # A change after that of the Binding means that it is refused.
    world.state.apply_pod(pod("p", 8, version=api.version + 1, labels={"changed": "yes"}), 0)
    assert int(world.state.nodes.assumed.sum()) == 0


async def test_a_status_that_kube_scheduler_has_patched_meanwhile_is_written_once_more() -> None:
    """As a Binding is: for pods of a PodGroup kube-scheduler writes nominatedNodeName before it binds."""
    api = Claims()
    api.pod, api.pod_version = pod_object("p", 8, version=5, status={"nominatedNodeName": "n"}), 5
    assert await World(api).binder.bind(*ARGS) == ""
    assert api.writes == ["create", "allocate", "status", "status", "binding"]
    assert len(api.allocated) == 1


async def test_a_status_of_a_pod_that_has_changed_otherwise_is_not_written() -> None:
    api = Claims()
    api.pod, api.pod_version = pod_object("p", 8, version=5, labels={"changed": "yes"}), 5
    assert (await World(api).binder.bind(*ARGS)).startswith("claim of the pod not written")
    assert api.writes == ["create", "allocate", "status"]


def names_claim(version: int, **status: object) -> dict[str, Any]:
    mappings = [{"containerName": "main", "resourceName": RESOURCE, "requestName": "container-0-request-0"}]
    made = {"resourceClaimName": "p-gpupack-uid-p", "requestMappings": mappings}
    return pod_object("p", 8, version=version, status={"extendedResourceClaimStatus": made, **status})


async def test_a_pod_whose_status_names_a_claim_stays_away_from_nodes_of_the_device_plugin() -> None:
    """No kubelet without our driver starts it, and the API server lets nobody take the name away again."""
    api = Claims()
    api.fail_at = (4, KubeApiError("the API server is ending", status=500))
    world = World(api)
    world.state.apply_node(node("plugin", (32,), version=2), 0)
    extender = Extender(world.state, ClusterPolicies("least-requested"), 16)
    nodes = {"NodeNames": ["n", "plugin"]}

    def passing(found: dict[str, Any]) -> list[str]:
        reply = extender.filter(json.dumps({"Pod": found, **nodes}).encode(), 0)
        return sorted(json.loads(reply.answer)["NodeNames"])

    assert passing(pod_object("p", 8, version=3)) == ["n", "plugin"]
    assert await world.binder.bind(*ARGS) != ""
    await world.settle()
    found = names_claim(api.version)
    world.state.apply_pod(convert(found, Pod), 0)
    assert passing(found) == ["n"]
    why = await world.binder.bind("default", "p", "uid-p", "plugin")
    assert "no claims served by the node, and the pod has one" in why
    world.state.delete_node("n", "9", 0)
    refused = json.loads(extender.filter(json.dumps({"Pod": found, **nodes}).encode(), 0).answer)
    assert "no claims served" in refused["FailedAndUnresolvableNodes"]["plugin"]


async def test_a_claim_of_other_resources_says_nothing_of_the_cards() -> None:
    found = names_claim(3)
    found["status"]["extendedResourceClaimStatus"]["requestMappings"][0]["resourceName"] = "example.com/nic"
    request = read_pod(convert(found, Pod), RESOURCE).request
    assert request is not None
    assert not request.claimed


async def test_a_patch_between_the_status_and_the_binding_lets_no_card_go() -> None:
    api = Claims()
    world = World(api)

    def patch() -> None:
        found = names_claim(api.version + 5, nominatedNodeName="n")
        world.state.apply_pod(convert(found, Pod), 0)

    api.during = patch
    assert await world.binder.bind(*ARGS) == ""
    assert int(world.state.nodes.assumed.sum()) == 8


async def test_the_first_bind_of_a_process_keeps_its_allocation() -> None:
    api = Claims()
    world = World(api, Leader(is_leader=True, since=1.0))
    api.on_status = lambda: world.state.apply_pod(pod("p", 8, version=api.version), 0)
    assert await world.binder.bind(*ARGS) == ""
    world.state.apply_pod(pod("p", 8, version=api.version, node="n"), 0)
    await world.settle()
    assert len(api.allocated) == 1


@pytest.mark.parametrize("write", [1, 2, 3, 4], ids=["create", "allocate", "status", "binding"])
async def test_a_refused_write_gives_card_and_allocation_back_and_the_next_try_binds(write: int) -> None:
    api = Claims()
    api.fail_at = (write, Conflict("stale"))
    world = World(api)
    answer = await world.binder.bind(*ARGS)
    assert answer.startswith("Binding refused" if write == 4 else "claim of the pod not written")
    await world.settle()
    assert int(world.state.nodes.assumed.sum()) == 0
    assert api.allocated == []

    api.fail_at, api.writes = None, []
    api.version = 3
    world.state.apply_pod(pod("p", 8, version=3), 0)
    assert await world.binder.bind(*ARGS) == ""
    assert len(api.claims) == 1
    assert len(api.allocated) == 1


@pytest.mark.parametrize("answer", [{}, [], {"metadata": None}], ids=str)
@pytest.mark.parametrize("verb", ["post", "put", "patch"], ids=["create", "allocate", "status"])
async def test_an_answer_to_a_write_that_is_not_the_objects_gives_card_and_allocation_back(
    verb: str, answer: object
) -> None:
    api = Claims()
    api.answers = {verb: answer}
    world = World(api)
    assert "that cannot be read" in await world.binder.bind(*ARGS)
    await world.settle()
    assert int(world.state.nodes.assumed.sum()) == 0
    assert api.allocated == []
    assert "binding" not in api.writes


@pytest.mark.parametrize("write", [1, 2, 3, 4], ids=["create", "allocate", "status", "binding"])
async def test_what_a_killed_process_left_is_put_right_by_the_next_one(write: int) -> None:
    api = Claims()
    api.fail_at = (write, TimedOut("killed here"))
    killed = World(api)
    answer = asyncio.create_task(killed.binder.bind(*ARGS))
    await asyncio.sleep(0)
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    await killed.binder.close()

    api.fail_at, api.writes, api.version = None, [], 3
    world = World(api)
    await world.claims.sweep()
    assert api.allocated == [], "what was allocated to an unbound pod is given back"
    assert await world.binder.bind(*ARGS) == ""
    assert len(api.claims) == len(api.allocated) == 1


async def test_the_sweep_leaves_claims_of_bound_and_of_unknown_pods() -> None:
    api = Claims()
    world = World(api)
    await world.binder.bind(*ARGS)
    world.state.apply_pod(pod("p", 8, version=9, node="n"), 0)
    await world.claims.sweep()
    assert len(api.allocated) == 1

    other = World(api)
    other.state.delete_pod(pod("p", 8, version=9), "10", 0)
    await other.claims.sweep()
    assert len(api.allocated) == 1


async def test_the_sweep_leaves_a_claim_that_kube_scheduler_allocated_whatever_its_label_says() -> None:
    api = Claims()
    world = World(api)
    await world.binder.bind(*ARGS)
    (found,) = api.claims.values()
    found["status"]["allocation"]["devices"]["results"][0]["shareID"] = "7d0a3c5e-5d3f-4b0e-9a39-2f6d2f0c5a11"
    other = World(api)
    assert other.state.is_pending("uid-p")
    await other.claims.sweep()
    assert len(api.allocated) == 1


async def test_a_claim_of_that_name_of_another_pod_is_left_alone() -> None:
    api = Claims()
    world = World(api)
    foreign = make({"main": ((FIRST, 8),)}, 8).body
    foreign["metadata"]["ownerReferences"][0]["uid"] = "another"
    await api.post("", foreign)
    assert "belongs to another pod" in await world.binder.bind(*ARGS)
    await world.settle()
    assert int(world.state.nodes.assumed.sum()) == 0


async def test_a_process_that_may_not_bind_any_more_sends_no_binding() -> None:
    api = Claims()
    leader = Leader(is_leader=True, since=1.0)
    world = World(api, leader)
    patch = api.patch

    async def lose(*args: Any, **options: Any) -> bytes:
        leader.is_leader = False
        return await patch(*args, **options)

    api.patch = lose  # type: ignore[method-assign]
    assert "is not the leader" in await world.binder.bind(*ARGS)
    assert "binding" not in api.writes


async def test_a_claim_that_was_written_too_late_is_followed_by_no_binding() -> None:
    api = Claims()
    world = World(api)
    await world.binder.wait_for_fence()
    begun = replace(world.binder.begin(*ARGS), explain_stop=lambda: "too late" if api.status else "")
    assert "too late" in await world.binder.finish(begun)
    await world.settle()
    assert "binding" not in api.writes
    assert api.allocated == []
    assert int(world.state.nodes.assumed.sum()) == 0


async def test_who_waits_for_a_pods_turn_keeps_others_from_having_one_of_their_own() -> None:
    """However many pods came meanwhile, also between the end of one turn and the begin of the next."""
    claims = World(Claims()).claims
    first = claims._lock("uid-p")
    async with first:
        waiting = asyncio.create_task(first.acquire())
        await asyncio.sleep(0)
    for number in range(2000):
        claims._lock(f"uid-{number}")
    assert claims._lock("uid-p") is first
    await waiting
