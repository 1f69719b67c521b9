"""Tries in a cluster, step by step, that cards are shared, and undoes it.

A step that fails is one line that says so, and the others go on. All that is created is in one namespace,
which is removed at the end, after a failure, and when the run is interrupted.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from allocator.errors import AllocatorError
from allocator.names import NODE_HOLDS, SCHEDULER_NAME, SYSTEM_NAMESPACE
from allocator.records import load_holds
from deviceplugin.gpus.api.check_finding import CheckFinding, Verdict
from deviceplugin.proof.prover import PIECE_MIB, CardProof, Result
from deviceplugin.proof.report import ProofReport, ProvenCard
from gpupack.errors import InputError
from gpupack.inventory.fetching import list_all
from gpupack.inventory.objects import NodesAndPods
from gpupack.inventory.rows import build_rows
from gpupack.inventory.telemetry import ask_daemon, find_daemons
from gpupack.verify.container import Given, Used
from gpupack.verify.objects import RUN_LABEL, TriedPod, make_namespace, make_pod
from gpupack.verify.target import SHARES, CardChoice, DaemonPod, Target, choose_card, explain_no_card
from kubeapi.errors import (
    UNREADABLE,
    Conflict,
    Forbidden,
    Invalid,
    KubeApiError,
    NotFound,
    decode_answer,
)
from kubeapi.objects import (
    AccessReview,
    KubeStruct,
    Namespace,
    Node,
    NodeStatus,
    NodeSystemInfo,
    ServerVersion,
)
from kubeapi.paths import (
    NAMESPACES_PATH,
    NODES_PATH,
    make_collection_path,
    make_node_path,
    make_pod_path,
    quote_segment,
)
from kubeapi.selectors import HOSTNAME

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

T = TypeVar("T")

STEP_S: Final = 90.0
"""Longest time of a step; the first pods may have to wait for their image, and have the whole time."""
UNDO_S: Final = 120.0
POLL_S: Final = 0.5

REFUSED: Final = "a wrong pod is refused"
SHARED: Final = "two pods share one card"
WAITS: Final = "a pod that fits no card waits with the reason"
EVENT: Final = "an Event arrives"
METRIC: Final = "a metric arrives"
USED: Final = "a container uses its card"
HELD: Final = "a container is held to its share"
RESTARTED: Final = "a daemon that is replaced loses nothing"
FREED: Final = "what pods had is free again"
REMOVED: Final = "the namespace is removed"
STEPS: Final = (REFUSED, SHARED, WAITS, EVENT, METRIC, USED, HELD, RESTARTED, FREED, REMOVED)

ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ASSIGNED: Final = "CardsAssigned"

_PODS: Final = ("share-1", "share-2")
_TOO_LARGE: Final = "too-large"
_HOLDERS: Final = {"driver": "the driver", "mps": "MPS"}


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What is tried, and where.

    Attributes:
        system_namespace: of gpupack's own pods.
        image: of the pods; empty for that of the node's daemon.
        runtime_class: of the pods; None for that of the node's daemon, empty for the node's default.
        restart_daemon: delete the pod of the node's daemon, which its DaemonSet replaces.
        timeout_s: for all steps together; what is undone has `UNDO_S` of its own.
    """

    namespace: str = "gpupack-verify"
    system_namespace: str = SYSTEM_NAMESPACE
    node: str = ""
    image: str = ""
    runtime_class: str | None = None
    scheduler_name: str = SCHEDULER_NAME
    restart_daemon: bool = False
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Right:
    """A right, and what needs it.

    Attributes:
        name: of the one object; empty for all.
        namespace: empty for the whole cluster.
        without: what is not tried without it; empty where nothing can be tried.
    """

    verb: str
    resource: str
    namespace: str = ""
    without: str = ""
    name: str = ""


def list_rights(options: VerifyOptions) -> list[Right]:
    ours, system = options.namespace, options.system_namespace
    rights = [
        Right("create", "namespaces"),
        *(Right(verb, "namespaces", name=ours) for verb in ("get", "delete")),
        *(Right(verb, "nodes") for verb in ("list", "get")),
        *(Right(verb, "pods", ours) for verb in ("create", "get", "delete")),
        Right("get", "pods/log", ours),
        Right("list", "events", ours, EVENT),
        *(Right(verb, "pods", system, f"the image is not known; {METRIC}") for verb in ("list", "get")),
        Right("get", "pods/proxy", system, METRIC),
    ]
    return [*rights, Right("delete", "pods", system, RESTARTED)] if options.restart_daemon else rights


class _StepError(Exception):
    def __init__(self, result: Result, found: str, means: str = "") -> None:
        super().__init__(found)
        self.result: Result = result
        self.means = means


class _NodeInfo(NodeSystemInfo):
    kernel_version: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""


class _NodeStatus(NodeStatus):
    node_info: _NodeInfo = msgspec.field(default_factory=_NodeInfo)


class _ListedNode(Node):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _Event(KubeStruct):
    reason: str = ""


@dataclass
class Verifier:
    """Goes through the steps.

    Args:
        run_id: marks what this run creates; no two runs have the same.
    """

    client: "KubeClient"
    options: VerifyOptions
    version: str
    run_id: str
    report: Callable[[str], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    findings: list[CheckFinding] = field(default_factory=list, init=False)
    proofs: list[CardProof] = field(default_factory=list, init=False)
    _created: bool = field(default=False, init=False)
    _ends: float = field(default=0.0, init=False)
    _step_ends: float = field(default=0.0, init=False)
    _has_time: bool = field(default=True, init=False)
    _card: str = field(default="", init=False)

    async def run(self) -> ProofReport:
        """Try everything; cancelled, undo what was done and report what was found out.

        Raises:
            InputError: the namespace exists.
            KubeApiError: the API server does not answer; nothing was created.
        """
        at = self.now().isoformat(timespec="seconds")
        self._ends = self.clock() + self.options.timeout_s
        interrupted = False
        kernel, choice, daemon = "", None, None
        try:
            kernel, choice, daemon, target = await self._look()
            if target is not None and choice is not None:
                await self._try_all(choice, target, daemon)
        except asyncio.CancelledError:
            interrupted = True
            self.report("interrupted: undoing what was done")
        finally:
            undoing = asyncio.ensure_future(self._undo())
            while not undoing.done():
                try:
                    await asyncio.shield(undoing)
                except asyncio.CancelledError:
                    # What was done is undone all the same.
                    interrupted = True
        cards = () if choice is None else (_describe_card(choice),)
        return ProofReport(
            gpupack=self.version,
            at=at,
            kernel=kernel,
            driver="",
            simulated=daemon is not None and daemon.is_simulated,
            interrupted=interrupted,
            cards=cards,
            findings=tuple(self.findings),
            proofs=tuple(self.proofs),
        )

    # --- what is there --------------------------------------------------------------------------------

    async def _look(self) -> tuple[str, CardChoice | None, DaemonPod | None, Target | None]:
        """Find out what is there; no target where nothing can be tried."""
        version = decode_answer(
            await self.client.get("/version"), msgspec.json.Decoder(ServerVersion).decode, "a version"
        )
        self._find("Kubernetes", "ok", version.git_version)
        if not await self._check_rights():
            return "", None, None, None
        nodes = await list_all(self.client, NODES_PATH, _ListedNode, "nodes")
        names = (self.options.node,) if self.options.node else ()
        rows = build_rows(NodesAndPods(nodes), names)
        choice = choose_card(rows)
        if choice is None:
            self._find("cards", "bad", "none that pods can be tried on", explain_no_card(rows))
            return "", None, None, None
        (node,) = (each for each in nodes if each.metadata.name == choice.node)
        self._card = choice.uuid
        self.report(f"card {choice.card.index} of node {choice.node}")
        free_mib = choice.card.free_units * choice.unit_mib
        self._find("cards", "ok", f"{choice.card.model or choice.uuid}, {free_mib} MiB free")
        info = node.status.node_info
        self._find("node", "ok", f"kubelet {info.kubelet_version}, {info.container_runtime_version}")
        daemon = await self._find_daemon(choice.node)
        options = self.options
        image = options.image or (daemon.image if daemon is not None else "")
        if not image:
            self._find("image", "bad", "not known", "--image names one of gpupack that the node can have")
            return info.kernel_version, choice, daemon, None
        self._find("image", "ok", image)
        runtime = options.runtime_class
        if runtime is None:
            runtime = daemon.spec.runtime_class_name if daemon is not None else ""
        hostname = node.metadata.get_label(HOSTNAME) or choice.node
        target = Target(hostname, choice.resource, choice.uuid, image, options.scheduler_name, runtime)
        return info.kernel_version, choice, daemon, target

    def _find(self, what: str, verdict: Verdict, found: str, uses: str = "") -> None:
        self.findings.append(CheckFinding(what, verdict, found[:256], uses[:256]))

    async def _check_rights(self) -> bool:
        """Ask for every right before anything is created; False where a needed one is missing."""
        complete, rights = True, list_rights(self.options)
        missing = [right for right in rights if not await self._has(right)]
        if not missing:
            self._find("rights", "ok", f"all {len(rights)} that are needed")
        for right in missing:
            where = f" in {right.namespace}" if right.namespace else ""
            uses = f"not tried: {right.without}" if right.without else "needed: nothing is tried"
            what = f"no right to {right.verb} {right.resource}{where}"
            self._find("rights", "less" if right.without else "bad", what, uses)
            complete = complete and bool(right.without)
        return complete

    async def _has(self, right: Right) -> bool:
        resource, _, part = right.resource.partition("/")
        asked = {
            "verb": right.verb,
            "resource": resource,
            "subresource": part,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await self.client.post(ACCESS_REVIEWS, body)
        return decode_answer(answer, msgspec.json.Decoder(AccessReview).decode, "a review").is_allowed

    async def _find_daemon(self, node: str) -> DaemonPod | None:
        """Find the pod of the node's daemon; None where there is none, or it may not be read."""
        where = self.options.system_namespace
        try:
            found = await self._read_daemon(node)
        except (InputError, Forbidden) as error:
            self._find("daemon", "less", str(error))
            return None
        if found is None:
            self._find("daemon", "less", f"no pod of it runs in {where} on the node", f"not tried: {METRIC}")
        else:
            self._find("daemon", "ok", "simulated cards" if found.is_simulated else "real cards")
        return found

    async def _read_daemon(self, node: str) -> DaemonPod | None:
        pod = (await find_daemons(self.client, node, self.options.system_namespace)).get(node)
        if pod is None:
            return None
        body = await self.client.get(make_pod_path(pod.metadata.namespace, pod.metadata.name))
        return decode_answer(body, msgspec.json.Decoder(DaemonPod).decode, "a Pod")

    # --- steps ------------------------------------------------------------------------------------------

    async def _try_all(self, choice: CardChoice, target: Target, daemon: DaemonPod | None) -> None:
        await self._create_namespace()
        async with self._step(REFUSED):
            await self._try_wrong_pod(target)
        lives: list[TriedPod] = []
        async with self._step(SHARED, self.options.timeout_s):
            lives = await self._try_sharing(choice, target, daemon)
        async with self._step(WAITS):
            await self._try_too_large(choice, target)
        if not lives:
            needs = "it needs two pods that share a card"
            steps = STEPS[STEPS.index(WAITS) + 1 : -1]
            self.proofs += [CardProof(self._card, what, "unproven", "not tried", needs) for what in steps]
            return
        async with self._step(EVENT):
            await self._wait_event()
        async with self._step(METRIC):
            promised_mib = await self._wait_metric(daemon, "promised", choice.share_mib)
            self._say(METRIC, "proven", f"{promised_mib} MiB promised to a container")
        used = None
        async with self._step(USED):
            used = await self._try_use(choice, daemon)
        async with self._step(HELD):
            await self._say_held(choice, daemon, used)
        async with self._step(RESTARTED):
            await self._try_restart(choice, daemon, lives)
        async with self._step(FREED):
            await self._try_end(choice, lives)

    @asynccontextmanager
    async def _step(self, what: str, at_most_s: float = STEP_S) -> AsyncIterator[None]:
        """Turn a failure into a line of the report; the step may wait until it has to end."""
        self.report(f"{STEPS.index(what) + 1}/{len(STEPS)} {what}")
        now_s = self.clock()
        self._step_ends = min(self._ends, now_s + at_most_s)
        self._has_time = now_s < self._ends
        try:
            yield
        except _StepError as error:
            self._say(what, error.result, str(error), error.means)
        except Forbidden as error:
            self._say(what, "unproven", str(error), "a right is missing")
        except (KubeApiError, InputError, *UNREADABLE) as error:
            self._say(what, "unproven", str(error) or type(error).__name__)

    def _say(self, what: str, result: Result, found: str, means: str = "") -> None:
        self.proofs.append(CardProof(self._card, what, result, found[:256], means))
        self.report(f"  {result}: {found}")

    async def _until(self, probe: Callable[[], Awaitable[T | None]], late: Callable[[], str]) -> T:
        """Probe until there is something, at the latest until the step has to end."""
        while True:
            problem = ""
            try:
                found = await probe()
                if found is not None:
                    return found
            except KubeApiError as error:
                if not error.is_passing:
                    raise
                problem = str(error)
            if self.clock() >= self._step_ends:
                if problem:
                    raise _StepError("unproven", problem, "the API server's last answer")
                if not self._has_time:
                    raise _StepError("unproven", late(), "no time was left: --timeout")
                raise _StepError("refuted", late(), "it did not come about in time")
            await self.sleep(POLL_S)

    async def _create_namespace(self) -> None:
        name = self.options.namespace
        self._created = True
        try:
            await self.client.post(NAMESPACES_PATH, make_namespace(name, self.run_id))
        except Conflict as error:
            self._created = False
            raise InputError(
                f"namespace {name} exists: another run is under way, or was killed; allowed: "
                f"`kubectl delete namespace {name}` first, or another --namespace"
            ) from error

    async def _create_pod(self, body: dict[str, object], name: str) -> None:
        """Create a pod; its namespace is so new that it may lack its service account."""

        async def create() -> bool | None:
            try:
                await self.client.post(self._pods_path, body)
            except Conflict:  # the answer to an earlier attempt was lost
                return True
            except Forbidden as error:
                if "serviceaccount" not in error.message.replace(" ", "").lower():
                    raise
                return None
            return True

        try:
            await self._until(create, lambda: f"pod {name}: the namespace gets no service account")
        except (Forbidden, Invalid) as error:
            raise _StepError("refuted", error.message, "the API server refuses the pod") from error

    @property
    def _pods_path(self) -> str:
        return make_collection_path(self.options.namespace, "pods")

    async def _get_pod(self, name: str) -> TriedPod:
        body = await self.client.get(make_pod_path(self.options.namespace, name))
        return decode_answer(body, msgspec.json.Decoder(TriedPod).decode, "a Pod")

    async def _try_wrong_pod(self, target: Target) -> None:
        body = make_pod("wrong", target, "8Gi")

        async def refuse() -> str | None:
            try:
                await self.client.post(self._pods_path, body, dryRun="All")
            except (Forbidden, Invalid) as error:
                return error.message
            return ""

        said = await self._until(refuse, lambda: "")
        if "ValidatingAdmissionPolicy" in said:
            self._say(REFUSED, "proven", said.partition("denied request: ")[2] or said)
        elif said:
            self._say(REFUSED, "unproven", said, "it was refused for another reason")
        else:
            missing = "the policies of manifests/policies are not installed"
            self._say(REFUSED, "refuted", "a pod that asks for 8Gi units is taken", missing)

    async def _try_sharing(
        self, choice: CardChoice, target: Target, daemon: DaemonPod | None
    ) -> list[TriedPod]:
        """Run two pods on the card, and return them."""
        uses = daemon is None or not daemon.is_simulated
        # What the first uses beyond its share, if nothing refuses it, is in the share of the second.
        most_mib = choice.share_mib + PIECE_MIB if choice.card.held in _HOLDERS else choice.share_mib // 2
        for name, use_mib in zip(_PODS, (most_mib if uses else 0, 0), strict=True):
            await self._create_pod(make_pod(name, target, str(choice.units), use_mib=use_mib), name)
        pods = [await self._wait_running(name, target) for name in _PODS]
        expected = Given(f"{choice.uuid}:{choice.units}", str(choice.share_mib))
        for name in _PODS:
            (line,) = await self._wait_lines(name, 1)
            given = msgspec.json.decode(line, type=Given)
            if given != expected:
                found = f"cards {given.cards or 'none'}, {given.memory_mib or 'no'} MiB"
                raise _StepError("refuted", found, f"expected: {expected.cards}, {expected.memory_mib} MiB")
        self._say(SHARED, "proven", f"each was given {choice.share_mib} MiB of {choice.uuid}")
        return pods

    async def _wait_running(self, name: str, target: Target) -> TriedPod:
        state = "it is not there"

        async def probe() -> TriedPod | None:
            nonlocal state
            pod = await self._get_pod(name)
            state = pod.describe()
            if pod.image_problem:
                cure = "--image names one that the node can have"
                raise _StepError("unproven", f"image {target.image}: {pod.image_problem}", cure)
            if pod.has_ended:
                raise _StepError("refuted", f"pod {name}: {state}")
            return pod if pod.runs else None

        return await self._until(probe, lambda: f"pod {name}: {state}")

    async def _wait_lines(self, name: str, count: int) -> list[str]:
        path = f"{make_pod_path(self.options.namespace, name)}/log"

        async def probe() -> list[str] | None:
            *lines, _unfinished = (await self.client.get(path)).decode("utf-8", "replace").split("\n")
            return lines[:count] if len(lines) >= count else None

        return await self._until(probe, lambda: f"pod {name} wrote too little")

    async def _try_too_large(self, choice: CardChoice, target: Target) -> None:
        body = make_pod(_TOO_LARGE, target, str(choice.too_large), any_card=True)
        await self._create_pod(body, _TOO_LARGE)
        state = ""

        async def probe() -> str | None:
            nonlocal state
            pod = await self._get_pod(_TOO_LARGE)
            state = pod.describe()
            if pod.runs or pod.has_ended:
                raise _StepError("refuted", f"a pod that asks for {choice.too_large} units: {state}")
            return pod.refusal or None

        said = await self._until(probe, lambda: state)
        self._say(WAITS, "proven", said.partition(" preemption: ")[0])

    async def _wait_event(self) -> None:
        path = make_collection_path(self.options.namespace, "events")
        selector = f"involvedObject.name={_PODS[0]},reason={ASSIGNED}"

        async def probe() -> bool | None:
            found = await list_all(self.client, path, _Event, "Events", fieldSelector=selector)
            return True if found else None

        await self._until(probe, lambda: f"no Event {ASSIGNED} about a pod that runs")
        self._say(EVENT, "proven", f"{ASSIGNED}, about a pod that runs")

    async def _wait_metric(self, daemon: DaemonPod | None, name: str, least_mib: int) -> int:
        """Wait until the daemon's metric of the first pod's container is at least so much; return its MiB."""
        if daemon is None:
            raise _StepError("unproven", "not tried", "no pod of the daemon was found")
        metric = f"gpupack_container_{name}_bytes"
        labels = (f'namespace="{self.options.namespace}"', f'pod="{_PODS[0]}"')
        told_mib: int | None = None

        async def probe() -> int | None:
            nonlocal told_mib
            text = (await ask_daemon(self.client, daemon, "metrics")).decode("utf-8", "replace")
            for line in text.splitlines():
                if line.startswith(f"{metric}{{") and all(label in line for label in labels):
                    with suppress(ValueError):
                        told_mib = round(float(line.rpartition(" ")[2])) >> 20
            return told_mib if told_mib is not None and told_mib >= least_mib else None

        return await self._until(
            probe, lambda: f"{metric} is {'missing' if told_mib is None else f'{told_mib} MiB'}"
        )

    # --- memory -----------------------------------------------------------------------------------------

    async def _try_use(self, choice: CardChoice, daemon: DaemonPod | None) -> Used:
        if daemon is not None and daemon.is_simulated:
            raise _StepError("unproven", "not tried", "the cards are simulated: there is no memory to use")
        _, line = await self._wait_lines(_PODS[0], 2)
        used = msgspec.json.decode(line, type=Used)
        if used.error and daemon is None:
            raise _StepError("unproven", f"CUDA: {used.error}", "simulated cards have no CUDA")
        if used.error:
            raise _StepError("refuted", f"CUDA: {used.error}", "NVIDIA's runtime: --runtime-class")
        # CUDA names an instance of MIG like a card.
        if used.uuid.partition("-")[2] != choice.uuid.partition("-")[2]:
            raise _StepError("refuted", f"CUDA sees {used.uuid}", f"expected: {choice.uuid}")
        self._say(
            USED, "proven", f"CUDA sees this card, of {used.size_mib} MiB, and gave {used.given_mib} MiB"
        )
        return used

    async def _say_held(self, choice: CardChoice, daemon: DaemonPod | None, used: Used | None) -> None:
        holder = _HOLDERS.get(choice.card.held)
        who = f"{holder} holds containers here" if holder else "nothing holds containers here"
        if used is None:
            raise _StepError("unproven", "not tried", f"{who}, as the node says; no memory was used")
        if holder is not None:
            given = f"{used.given_mib} MiB of a share of {choice.share_mib} MiB"
            if used.given_mib > choice.share_mib:
                raise _StepError("refuted", f"{given} were given", who)
            self._say(HELD, "proven", f"{given} were given, then no more", who)
            return
        told_mib = await self._wait_metric(daemon, "used", used.given_mib)
        self._say(HELD, "measured", f"the daemon measures {told_mib} MiB in use", f"{who}: docs/limits.md")

    # --- the daemon, and the end ------------------------------------------------------------------------

    async def _try_restart(
        self, choice: CardChoice, daemon: DaemonPod | None, lives: Sequence[TriedPod]
    ) -> None:
        if not self.options.restart_daemon:
            raise _StepError("unproven", "not tried", "--restart-daemon deletes its pod; running pods run on")
        if daemon is None:
            raise _StepError("unproven", "not tried", "no pod of the daemon was found")
        uid = daemon.metadata.uid
        path = make_pod_path(daemon.metadata.namespace, daemon.metadata.name)
        await self.client.delete(path, {"preconditions": {"uid": uid}})

        async def replaced() -> DaemonPod | None:
            daemons = await find_daemons(self.client, choice.node, self.options.system_namespace)
            pod = daemons.get(choice.node)
            ready = pod.status.get_condition("Ready") if pod is not None and pod.metadata.uid != uid else None
            return await self._read_daemon(choice.node) if ready is not None and ready.is_true else None

        await self._until(replaced, lambda: "no other pod of the daemon is ready on the node")
        uids = {pod.metadata.uid for pod in lives}

        async def counted() -> bool | None:
            node = await self._get_node(choice.node)
            (row,) = build_rows(NodesAndPods([node]), (choice.node,))
            # A daemon that ends calls its cards full and unhealthy.
            counts = any(
                card.uuid == choice.uuid and card.healthy and card.used_units >= SHARES * choice.units
                for card in row.cards
            )
            held = _read_holds(node)
            return True if row.takes_pods and counts and held is not None and uids <= held else None

        await self._until(counted, lambda: "the node does not count the pods that run")
        for before, name in zip(lives, _PODS, strict=True):
            pod = await self._get_pod(name)
            if not pod.runs or pod.life != before.life:
                raise _StepError("refuted", f"pod {name} was restarted, or has ended: {pod.describe()}")
        self._say(RESTARTED, "proven", "both pods ran on, and the new daemon counts both")

    async def _get_node(self, name: str) -> Node:
        body = await self.client.get(make_node_path(name))
        return decode_answer(body, msgspec.json.Decoder(Node).decode, "a Node")

    async def _try_end(self, choice: CardChoice, lives: Sequence[TriedPod]) -> None:
        for name in _PODS:
            with suppress(NotFound):
                await self.client.delete(make_pod_path(self.options.namespace, name))
        uids = {pod.metadata.uid for pod in lives}

        async def freed() -> bool | None:
            held = _read_holds(await self._get_node(choice.node))
            return True if held is not None and not uids & held else None

        await self._until(freed, lambda: "the node still counts pods that were deleted")
        self._say(FREED, "proven", "the node counts neither pod any more")

    # --- undoing ----------------------------------------------------------------------------------------

    async def _undo(self) -> None:
        """Remove the namespace, if it is this run's."""
        if not self._created:
            return
        self._ends = self.clock() + UNDO_S
        name = self.options.namespace
        path = f"{NAMESPACES_PATH}/{quote_segment(name)}"

        async def gone() -> bool | None:
            try:
                body = await self.client.get(path)
                found = decode_answer(body, msgspec.json.Decoder(Namespace).decode, "a Namespace").metadata
                if found.get_label(RUN_LABEL) != self.run_id:
                    return True
                if not found.is_terminating:
                    await self.client.delete(path, {"preconditions": {"uid": found.uid}})
            except NotFound:
                return True
            return None

        async with self._step(REMOVED, UNDO_S):
            await self._until(gone, lambda: f"namespace {name} is still there")
            self._say(REMOVED, "proven", "and all that was in it")


def _read_holds(node: Node) -> frozenset[str] | None:
    """Read the UIDs of the pods that a node counts; None where it does not say."""
    try:
        return load_holds(node.metadata.get_annotation(NODE_HOLDS) or "").uids
    except AllocatorError:
        return None


def _describe_card(choice: CardChoice) -> ProvenCard:
    return ProvenCard(choice.uuid, choice.card.model or "", choice.card.size_units * choice.unit_mib, 0)


def has_failed(report: ProofReport) -> bool:
    """Tell whether sharing was not shown, or something was refuted."""
    shared = any(proof.what == SHARED and proof.result == "proven" for proof in report.proofs)
    return report.refuted or not shared
