"""`gpupack verify` against a cluster of plain data: what it says, and that it leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from deviceplugin.proof.report import ProofReport
from gpupack.errors import InputError
from gpupack.inventory.records import NodeRow
from gpupack.inventory.rows import build_rows
from gpupack.verify import verifier as v
from gpupack.verify.container import Given, Used, run
from gpupack.verify.target import choose_card, explain_no_card
from gpupack.verify.verifier import Verifier, VerifyOptions, has_failed, list_rights
from kubeapi.errors import Conflict, Forbidden, Invalid, NotFound, TimedOut
from tests import kubectl_nodes
from tests.api_requests import ApiRequests
from tests.unit.test_cuda_child import Library

NAMESPACES = "/api/v1/namespaces"
OURS = f"{NAMESPACES}/gpupack-verify"
SYSTEM = f"{NAMESPACES}/gpupack-system/pods"
UUID = "GPU-b"
SHARE_MIB = 2048
SEEN = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class FakeCluster(ApiRequests):
    """An API server, a kubelet, a scheduler and a daemon, as far as one run needs them.

    Attributes:
        objects: by path.
        denied: rights that are missing, as verb and resource.
        held: what holds containers to their shares on the card.
        used: what the container says that uses memory.
        given: what each container says that it was given.
        status: what the pods that share the card have for a status, by the look at them.
        forgets: what the cluster does not do, a word each.
        on_request: called before each request.
    """

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Any] = {}
        self.denied: set[tuple[str, str]] = set()
        self.held = "driver"
        self.real = True
        self.used = Used(UUID, SHARE_MIB, SHARE_MIB - 128)
        self.given = Given(f"{UUID}:2", str(SHARE_MIB))
        self.status: dict[str, Any] | None = None
        self.forgets: set[str] = set()
        self.restarts = 0
        self.daemon = 1
        self.now = 0.0
        self.on_request: Callable[[], None] = lambda: None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        answer = await super().ask(verb, path, body, timeout_s)
        await asyncio.sleep(0)
        return answer

    async def delete(self, path: str, body: Any = None) -> bytes:
        return await self.ask("delete", path, body, 0)

    async def get_at_most(self, path: str, _most: int, *, timeout_s: float = 0, **query: Any) -> bytes:
        return await self.ask("get", path, query, timeout_s)

    async def pages(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        yield await self.ask("get", path, query, 0)

    # --- what is asked

    def answer(self, verb: str, path: str, body: Any) -> Any:
        self.on_request()
        if path == v.ACCESS_REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return {"status": {"allowed": (asked["verb"], resource) not in self.denied}}
        if verb == "post":
            return self.create(path, body)
        if verb == "delete":
            return self.remove(path)
        return self.read(path)

    def create(self, path: str, body: Any) -> Any:
        name = body["metadata"]["name"]
        if name == "wrong":
            if "policies" in self.forgets:
                return body
            raise Invalid("ValidatingAdmissionPolicy 'p' denied request: 8Gi; allowed: 8")
        if (key := f"{path}/{name}") in self.objects:
            raise Conflict("exists", cause="exists")
        body["metadata"]["uid"] = f"uid-{name}"
        self.objects[key] = body
        return body

    def remove(self, path: str) -> Any:
        if path.startswith(SYSTEM):
            self.daemon += "daemon" not in self.forgets
            self.restarts += "pods" in self.forgets
        elif path != OURS or "namespace" not in self.forgets:
            self.objects = {key: each for key, each in self.objects.items() if not key.startswith(path)}
        return {}

    def read(self, path: str) -> Any:
        match path.removeprefix(OURS).split("/"):
            case ["", "events"]:
                return {"items": [] if "event" in self.forgets else [{"reason": "CardsAssigned"}]}
            case ["", "pods", "share-1", "log"]:
                lines = [self.given, *([self.used] if self.uses_memory else [])]
                return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            case ["", "pods", _, "log"]:
                return msgspec.json.encode(self.given) + b"\n"
            case ["", "pods", name] if path in self.objects:
                return {**self.objects[path], "status": self.pod_status(name)}
        daemon = self.make_daemon()
        pages = {
            "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.1"},
            "/api/v1/nodes": {"items": [self.node()]},
            "/api/v1/nodes/n1": self.node(),
            SYSTEM: {"items": [daemon]},
            f"{SYSTEM}/d{self.daemon}": daemon,
            f"{SYSTEM}/d{self.daemon}/proxy/metrics": self.metrics(),
            **self.objects,
        }
        if path not in pages:
            raise NotFound(path)
        return pages[path]

    # --- what there is

    @property
    def uses_memory(self) -> bool:
        (container,) = self.objects[f"{OURS}/pods/share-1"]["spec"]["containers"]
        return container["args"] != ["verify", "--in-container=0"]

    def pod_status(self, name: str) -> dict[str, Any]:
        if name == "too-large" and "limits" not in self.forgets:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {"phase": "Pending", "conditions": [{**said, "message": "no healthy card of 45 GiB"}]}
        if self.status is not None:
            return self.status
        running = {"containerID": name, "restartCount": self.restarts, "state": {"running": {}}}
        return {"phase": "Running", "containerStatuses": [running]}

    def node(self) -> dict[str, Any]:
        pods = {"uid-share-1", "uid-share-2"}
        known = {each["metadata"].get("uid") for each in self.objects.values()} & pods
        counted = pods if "release" in self.forgets else known
        cards = [
            CardRecord("GPU-a", 0, "NVIDIA L40S", 45056, None, True, held=self.held),
            CardRecord(UUID, 1, "NVIDIA L40S", 45056, None, True, held=self.held),
        ]
        annotations = {
            "gpupack.io/cards": dump_cards(cards),
            "gpupack.io/holds": dump_holds(Holds(1, frozenset(counted))),
        }
        node = kubectl_nodes.node("n1", [44, 44], [43, 2 * len(known)], annotations)
        node["metadata"]["labels"] = {"kubernetes.io/hostname": "host-1"}
        node["status"]["nodeInfo"] = {"kernelVersion": "6.18", "kubeletVersion": "v1.37.1"}
        return node

    def make_daemon(self) -> dict[str, Any]:
        owner = {"kind": "DaemonSet", "name": "gpupack-node", "controller": True}
        name = f"d{self.daemon}"
        metadata = {"name": name, "namespace": "gpupack-system", "uid": name, "ownerReferences": [owner]}
        metadata["labels"] = {"app.kubernetes.io/name": "gpupack-node"}
        container = {"image": "gpupack:1", "args": ["node", f"--gpus={'nvml' if self.real else 'simulated'}"]}
        spec = {"nodeName": "n1", "runtimeClassName": "nvidia", "containers": [container]}
        ready = {"type": "Ready", "status": "True"}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": [ready]}}

    def metrics(self) -> bytes:
        labels = '{container="main",namespace="gpupack-verify",pod="share-1",uuid="GPU-b"}'
        mib = {"promised": SHARE_MIB, "used": self.used.given_mib + 300}
        told = {name: value for name, value in mib.items() if name not in self.forgets}
        lines = [
            f"gpupack_container_{name}_bytes{labels} {float(value << 20)}" for name, value in told.items()
        ]
        return "\n".join(["# HELP x", "gpupack_container_promised_bytes{} 1", *lines]).encode()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def verifier(cluster: FakeCluster, said: list[str] | None = None, **options: Any) -> Verifier:
    lines = [] if said is None else said
    client: Any = cluster
    return Verifier(
        client, VerifyOptions(**options), "0.1", "run-1", lines.append, cluster.sleep, lambda: cluster.now
    )


async def verify(cluster: FakeCluster, **options: Any) -> ProofReport:
    report = await verifier(cluster, **options).run()
    assert [each.what for each in report.proofs] in ([], list(v.STEPS)), "a line for each step"
    return report


def outcome(report: ProofReport, what: str) -> tuple[str, str]:
    (proof,) = [each for each in report.proofs if each.what == what]
    return proof.result, f"{proof.found}; {proof.means}"


async def test_on_real_cards_everything_is_proven_and_nothing_is_left(cluster: FakeCluster) -> None:
    said: list[str] = []
    report = await verifier(cluster, said, restart_daemon=True).run()
    assert {each.what: each.result for each in report.proofs} == dict.fromkeys(v.STEPS, "proven")
    assert not has_failed(report)
    assert [each.verdict for each in report.findings] == ["ok"] * len(report.findings)
    assert (report.simulated, report.interrupted, report.kernel) == (False, False, "6.18")
    assert (
        outcome(report, v.HELD)[1]
        == "1920 MiB of a share of 2048 MiB were given, then no more; the driver holds containers here"
    )
    assert cluster.objects == {}
    for number, what in enumerate(v.STEPS, 1):
        assert f"{number}/10 {what}" in said


async def test_pods_use_no_more_than_the_two_shares_and_make_no_autoscaler_add_a_node(
    cluster: FakeCluster,
) -> None:
    await verify(cluster)
    pods = {
        body["metadata"]["name"]: body["spec"]
        for (verb, path), body in zip(cluster.asked, cluster.bodies, strict=True)
        if (verb, path) == ("post", f"{OURS}/pods")
    }
    asked = {name: spec["containers"][0]["resources"]["limits"] for name, spec in pods.items()}
    two, many = ({"gpupack.io/gpu-memory-gib": amount} for amount in ("2", "45"))
    wrong = {"gpupack.io/gpu-memory-gib": "8Gi"}
    assert asked == {"wrong": wrong, "share-1": two, "share-2": two, "too-large": many}
    used = {name: spec["containers"][0]["args"][1] for name, spec in pods.items()}
    assert used.pop("share-1") == "--in-container=2176"
    assert set(used.values()) == {"--in-container=0"}
    for spec in pods.values():
        assert spec["nodeSelector"] == {"kubernetes.io/hostname": "host-1"}
        assert (spec["runtimeClassName"], spec["containers"][0]["image"]) == ("nvidia", "gpupack:1")


def forgetting(*words: str) -> Callable[[FakeCluster], None]:
    return lambda cluster: cluster.forgets.update(words)


def having(**values: Any) -> Callable[[FakeCluster], None]:
    def change(cluster: FakeCluster) -> None:
        for name, value in values.items():
            setattr(cluster, name, value)

    return change


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    scheduled = {"type": "PodScheduled", "status": "True"}
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [{"state": state}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    ],
}


JUST_RELEASED = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
}


NO_EXTENDER = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "Post"}
    ],
}


@pytest.mark.parametrize(
    ("change", "what", "result", "words"),
    [
        pytest.param(forgetting("policies"), v.REFUSED, "refuted", "manifests/policies", id="no-policies"),
        pytest.param(
            having(given=Given("GPU-a:2", "2048")), v.SHARED, "refuted", "expected: GPU-b:2", id="other-card"
        ),
        pytest.param(having(given=Given("", "")), v.SHARED, "refuted", "cards none, no MiB", id="no-card"),
        pytest.param(
            having(status=waiting("ImagePullBackOff")), v.SHARED, "unproven", "--image names", id="no-image"
        ),
        pytest.param(
            having(status=waiting("ContainerCreating")), v.SHARED, "refuted", "ContainerCreating", id="slow"
        ),
        pytest.param(
            having(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "m"}),
            v.SHARED, "refuted", "it has ended: UnexpectedAdmissionError m", id="refused-by-the-kubelet",
        ),
        pytest.param(having(status={"phase": "Pending"}), v.SHARED, "refuted", "no scheduler", id="unseen"),
        pytest.param(having(status=JUST_RELEASED), v.SHARED, "refuted", "no scheduler", id="just-released"),
        pytest.param(having(status=NO_EXTENDER), v.SHARED, "refuted", "SchedulerError Post", id="mute"),
        pytest.param(having(status=UNSCHEDULABLE), v.SHARED, "refuted", "0/1 nodes", id="no-room"),
        pytest.param(forgetting("limits"), v.WAITS, "refuted", "45 units", id="too-large-runs"),
        pytest.param(forgetting("event"), v.EVENT, "refuted", "no Event CardsAssigned", id="no-event"),
        pytest.param(forgetting("promised"), v.METRIC, "refuted", "is missing", id="no-metric"),
        pytest.param(
            having(used=Used(error="libcuda.so.1: no")), v.USED, "refuted", "--runtime-class", id="no-cuda"
        ),
        pytest.param(having(used=Used("GPU-a", 1, 1)), v.USED, "refuted", "CUDA sees GPU-a", id="sees-other"),
        pytest.param(having(used=Used(UUID, 44000, 2176)), v.HELD, "refuted", "2176 MiB of", id="not"),
        pytest.param(
            having(held="accounted", used=Used(UUID, 44000, 1024)), v.HELD, "measured", "1324 MiB", id="told"
        ),
        pytest.param(having(real=False), v.HELD, "unproven", "the driver holds", id="simulated"),
        pytest.param(forgetting("daemon"), v.RESTARTED, "refuted", "no other pod", id="no-new-daemon"),
        pytest.param(forgetting("pods"), v.RESTARTED, "refuted", "was restarted", id="pods-restarted"),
        pytest.param(forgetting("release"), v.FREED, "refuted", "still counts", id="not-released"),
        pytest.param(forgetting("namespace"), v.REMOVED, "refuted", "is still there", id="namespace-stays"),
    ],
)  # fmt: skip
async def test_what_is_not_as_promised_is_told(
    cluster: FakeCluster, change: Callable[[FakeCluster], None], what: str, result: str, words: str
) -> None:
    change(cluster)
    report = await verify(cluster, restart_daemon=True)
    found = outcome(report, what)
    assert found[0] == result, found
    assert words in found[1]
    assert has_failed(report) is (result == "refuted" or what == v.SHARED)
    assert what == v.REMOVED or cluster.objects == {}


async def test_where_nothing_holds_containers_half_a_share_is_used(cluster: FakeCluster) -> None:
    cluster.held = "accounted"
    on_the_way: list[Any] = []
    cluster.on_request = lambda: on_the_way.extend(cluster.objects.values())
    await verify(cluster)
    args = {each["spec"]["containers"][0]["args"][1] for each in on_the_way if "spec" in each}
    assert args == {"--in-container=1024", "--in-container=0"}


async def test_a_daemon_is_left_alone_unless_that_is_asked_for(cluster: FakeCluster) -> None:
    report = await verify(cluster)
    assert outcome(report, v.RESTARTED)[0] == "unproven"
    assert cluster.daemon == 1
    assert not has_failed(report)


async def test_without_time_steps_are_not_called_refuted(cluster: FakeCluster) -> None:
    cluster.status = {"phase": "Pending"}
    cluster.forgets = {"limits"}
    report = await verify(cluster, timeout_s=5)
    assert outcome(report, v.SHARED)[0] == "refuted"
    assert outcome(report, v.WAITS) == (
        "unproven",
        "no scheduler has said anything of it; no time was left: --timeout",
    )


@pytest.mark.parametrize("right", list_rights(VerifyOptions(restart_daemon=True)), ids=str)
async def test_a_missing_right_is_told_before_anything_is_created(
    cluster: FakeCluster, right: v.Right
) -> None:
    cluster.denied = {(right.verb, right.resource)}
    report = await verify(cluster, restart_daemon=True)
    found = {each.found: each.verdict for each in report.findings if each.what == "rights"}
    where = f" in {right.namespace}" if right.namespace else ""
    assert found[f"no right to {right.verb} {right.resource}{where}"] == ("less" if right.without else "bad")
    if "bad" in found.values():
        assert report.proofs == ()
        assert has_failed(report)
        assert not [path for verb, path in cluster.asked if verb == "post" and path != v.ACCESS_REVIEWS]


async def test_without_the_daemons_pod_an_image_has_to_be_named(cluster: FakeCluster) -> None:
    cluster.make_daemon = lambda: {"metadata": {"name": "other"}}  # type: ignore[method-assign]
    report = await verify(cluster)
    assert [each.verdict for each in report.findings if each.what == "image"] == ["bad"]
    report = await verify(cluster, image="gpupack:2", runtime_class="")
    results = {each.what: each.result for each in report.proofs}
    assert [results[what] for what in (v.SHARED, v.METRIC, v.USED)] == ["proven", "unproven", "proven"]
    cluster.used = Used(error="no libcuda")
    report = await verify(cluster, image="gpupack:2")
    assert outcome(report, v.USED) == ("unproven", "CUDA: no libcuda; simulated cards have no CUDA")


async def test_a_namespace_of_somebody_else_is_left_alone(cluster: FakeCluster) -> None:
    cluster.objects[OURS] = {"metadata": {"name": "gpupack-verify", "labels": {v.RUN_LABEL: "run-0"}}}
    with pytest.raises(InputError, match=r"namespace gpupack-verify exists.*allowed: "):
        await verify(cluster)
    assert list(cluster.objects) == [OURS]


async def test_a_namespace_whose_answer_was_lost_is_removed(cluster: FakeCluster) -> None:
    def lose_the_answer() -> None:
        if cluster.asked[-1] == ("post", NAMESPACES):
            cluster.create(NAMESPACES, cluster.bodies[-1])
            raise TimedOut("no answer")

    cluster.on_request = lose_the_answer
    with pytest.raises(TimedOut):
        await verify(cluster)
    assert cluster.objects == {}


async def test_the_service_account_of_a_new_namespace_is_waited_for(cluster: FakeCluster) -> None:
    refusals = iter(range(3))

    def refuse() -> None:
        if cluster.asked[-1] == ("post", f"{OURS}/pods") and next(refusals, None) is not None:
            raise Forbidden("error looking up service account gpupack-verify/default")

    cluster.on_request = refuse
    assert outcome(await verify(cluster), v.SHARED)[0] == "proven"


async def test_interrupted_anywhere_it_leaves_nothing(cluster: FakeCluster) -> None:
    await verify(cluster, restart_daemon=True)
    first = next(number for number, asked in enumerate(cluster.asked) if asked == ("post", NAMESPACES))
    for number in range(first, len(cluster.asked) - 1):
        interrupted = FakeCluster()
        task = asyncio.ensure_future(verifier(interrupted, restart_daemon=True).run())

        def cancel(cluster: FakeCluster = interrupted, number: int = number, task: Any = task) -> None:
            if len(cluster.asked) == number + 1:
                task.cancel()

        interrupted.on_request = cancel
        report = await task
        assert report.interrupted, interrupted.asked[number]
        assert outcome(report, v.REMOVED)[0] == "proven"
        assert interrupted.objects == {}, interrupted.asked[number]


def row(sizes: list[int] | None, used: list[int] | None = None, **changes: Any) -> NodeRow:
    healthy = changes.pop("healthy", True)
    cards = [
        CardRecord(f"GPU-{place}", place, "T4", 1024, None, healthy) for place, _ in enumerate(sizes or ())
    ]
    used = used or [0] * len(cards)
    node = kubectl_nodes.node("n", sizes, used, {"gpupack.io/cards": dump_cards(cards)})
    (built,) = build_rows(kubectl_nodes.listed(node), ["n"])
    return replace(built, **changes)


def test_the_card_with_most_room_is_chosen() -> None:
    choice = choose_card([row([16, 16, 8], [10, 3, 0]), row([16], [13]), row([80], unschedulable=True)])
    assert choice is not None
    assert (choice.uuid, choice.units, choice.share_mib) == ("GPU-1", 2, SHARE_MIB)


@pytest.mark.parametrize(
    ("sizes", "used", "units"),
    [
        pytest.param([16, 8], [0, 0], 17, id="the-sum-suffices-and-no-card-does"),
        pytest.param([16], [0], 17, id="one-card"),
        pytest.param([16, 16], [0, 16], 33, id="more-than-the-sum-that-could-be-free"),
    ],
)
def test_what_fits_no_card_would_not_fit_if_others_ended(
    sizes: list[int], used: list[int], units: int
) -> None:
    choice = choose_card([row(sizes, used)])
    assert choice is not None
    assert choice.too_large == units


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param([], "no node publishes cards", id="no-nodes"),
        pytest.param([row(None)], "publishes no words", id="no-words"),
        pytest.param([row([16], ready=False)], "NotReady", id="not-ready"),
        pytest.param([row([16], unschedulable=True)], "cordoned", id="cordoned"),
        pytest.param([row([16], offered_units=0)], "its daemon does not run", id="no-daemon"),
        pytest.param([row([16], usable=False, error="annotation bad")], "annotation bad", id="not-read"),
        pytest.param([row([16], healthy=False)], "or the daemon has ended", id="unhealthy"),
        pytest.param([row([16], [13])], "3072 MiB free on its emptiest card; needed: 2 x 2048", id="full"),
    ],
)
def test_why_no_card_will_do(rows: list[NodeRow], words: str) -> None:
    assert choose_card(rows) is None
    assert words in explain_no_card(rows)


def run_container(use_mib: int, library: Any) -> list[Used]:
    lines: list[str] = []

    def load(_name: str) -> Any:
        if isinstance(library, OSError):
            raise library
        return library

    run(use_mib, {"GPUPACK_CARDS": "GPU-a:2", "GPUPACK_MEMORY_MIB": "2048"}, lines.append, load)
    given, *used = lines
    assert msgspec.json.decode(given, type=Given) == Given("GPU-a:2", "2048")
    return [msgspec.json.decode(line, type=Used) for line in used]


@pytest.mark.parametrize(
    ("use_mib", "library", "used"),
    [
        pytest.param(0, Library(), [], id="none"),
        pytest.param(500, Library(), [Used(SEEN, 1000, 512)], id="enough"),
        pytest.param(2176, Library(), [Used(SEEN, 1000, 896)], id="refused"),
        pytest.param(9, OSError("no libcuda"), [Used(error="no libcuda")], id="no-library"),
        pytest.param(
            9, Library(cuInit=100), [Used(error="cuInit: CUDA_ERROR_NO_DEVICE (100)")], id="no-card"
        ),
    ],
)
def test_what_a_container_says(use_mib: int, library: Any, used: list[Used]) -> None:
    assert run_container(use_mib, library) == used
