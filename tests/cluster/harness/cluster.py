"""One whole cluster: control plane, node, and gpupack on both, with the helpers the tests read best with."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.cluster.harness import binaries, cgroups
from tests.cluster.harness.controlplane import ADMIN_TOKEN, RESOURCE, ControlPlane, free_ports
from tests.cluster.harness.daemons import Extender, NodeDaemon
from tests.cluster.harness.node import NodeSide
from tests.cluster.harness.polling import until
from tests.cluster.harness.processes import tail
from tests.cluster.harness.rest import Api, ApiError, Json
from tests.cluster.harness.words import NodeState, integer, node_state

# File times come from a coarser clock than `time.time()`.
CLOCK_TICK_S = 0.05
NAMESPACE = "gpupack-system"
"""Of gpupack's own objects."""
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVENTS = "/api/v1/namespaces/default/events"


def publish_node(api: Api, made: Json, **metadata: Any) -> None:
    """Write a Node as its daemon publishes it, Ready and without a kubelet; at first it is created."""
    metadata = {**made["metadata"], **metadata}
    del metadata["resourceVersion"]
    body = {"metadata": metadata, "status": {**made["status"], "conditions": [_ready()]}}
    try:
        api.post(NODES, body)
    except ApiError as error:
        if error.status != 409:
            raise
        api.merge(f"{NODES}/{metadata['name']}/status", body)


def write_status(api: Api, name: str, amounts: Mapping[str, str | None]) -> None:
    """Write what a Node has into its status, and that it is Ready."""
    status = {"capacity": dict(amounts), "allocatable": dict(amounts), "conditions": [_ready()]}
    api.merge(f"{NODES}/{name}/status", {"status": status})


def _ready() -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake", **times}


def account(name: str, namespace: str = "default") -> Json:
    """A service account, as role bindings name it."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def _rbac(namespace: str) -> str:
    """Where roles and their bindings of a namespace, or of the whole cluster, are."""
    return f"{RBAC}/namespaces/{namespace}" if namespace else RBAC


class Cluster:
    """A cluster of one node; a context manager that leaves nothing behind.

    `control`, `node`, `daemon` and `extender` are its parts, each of which can be killed and started again.

    Attributes:
        serves_claims: whether its node gives pods their cards by claims.
    """

    serves_claims = False

    def __init__(
        self, profile: dict[str, Any] | str | None = None, *, with_node: bool = True, name: str = "n1"
    ) -> None:
        """Prepare everything; nothing runs yet.

        Args:
            profile: Simulated GPUs of the node, or the name of the source of real ones; None starts neither
                `gpupack node` nor the extender.
        """
        programs = binaries.programs()
        cgroups.remove_orphans()
        self.home = Path(tempfile.mkdtemp(prefix=f"{cgroups.PREFIX}{os.getpid()}-"))
        kubelet_port, node_port, extender_port = free_ports(3)
        self.control = ControlPlane(
            self.home, programs, name, f"http://127.0.0.1:{extender_port}" if profile else None
        )
        self.api: Api = self.control.api
        self.node_name = name
        self.node = (
            NodeSide(self.home, programs, name, self.control.node_config, kubelet_port) if with_node else None
        )
        # Administrators until a test says otherwise, see `use_identity`.
        for part in ("gpupack-node", "gpupack-scheduler"):
            self.use_identity(part, ADMIN_TOKEN)
        self.extender = Extender(
            self.home / "gpupack-scheduler.kubeconfig", self.control.log_dir, extender_port
        )
        self._daemon = (
            NodeDaemon(self.node, self.home / "gpupack-node.kubeconfig", profile, node_port)
            if self.node and profile
            else None
        )

    # ---- life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; returns when a pod can be created and run."""
        self.control.start()
        if self.node is not None:
            self.node.start()
            until(self.node_ready, f"node {self.node_name} ready")
        if self._daemon is not None:
            self._daemon.start(ready=False)
            self.extender.start(ready=False)
            self._daemon.wait_ready()
            self.extender.wait_ready()
            until(self.cards, "the node's words")
            until(self.allocatable, "the kubelet's count of units")
        self.wait_account()

    def start_api_server(self) -> None:
        """Start etcd and the API server alone: nodes without a kubelet stay as they are."""
        self.control.start_without_controllers()

    def stop(self) -> None:
        """End everything and remove every trace."""
        for daemon in (self._daemon, self.extender):
            if daemon is not None:
                daemon.kill()
        if self.node is not None:
            self.node.stop()
        self.control.stop()
        if not os.environ.get("GPUPACK_CLUSTER_KEEP"):
            shutil.rmtree(self.home)

    def logs(self, lines: int = 30) -> dict[str, str]:
        return {log.stem: tail(log, lines) for log in sorted(self.control.log_dir.glob("*.log"))}

    def explain(self) -> str | None:
        """The node daemon's own view of its accounts; None when it does not answer."""
        try:
            return json.dumps(json.loads(self.daemon.http("/explain")), indent=1)
        except (AssertionError, OSError, ValueError):
            return None

    def _ledger(self) -> Json:
        return json.loads(self.daemon.http("/explain"))["ledger"]

    @property
    def daemon(self) -> NodeDaemon:
        """`gpupack node` of the only node."""
        assert self._daemon is not None, "this cluster was started without GPUs"
        return self._daemon

    @property
    def host(self) -> NodeSide:
        """The node's side."""
        assert self.node is not None, "this cluster was started without a kubelet"
        return self.node

    def use_identity(self, part: str, token: str) -> Path:
        """Write the kubeconfig of `gpupack-node` or `gpupack-scheduler`, for the next start of it."""
        return self.control.write_kubeconfig(part, token)

    def use_account(self, name: str, namespace: str = NAMESPACE, bound_node: str | None = None) -> Path:
        """Write the kubeconfig of a service account under its name, see `token`."""
        return self.use_identity(name, self.token(namespace, name, bound_node))

    def as_account(self, name: str, namespace: str = NAMESPACE, bound_node: str | None = None) -> Api:
        """The API server as a service account sees it, see `token`."""
        return self.api.as_user(self.token(namespace, name, bound_node))

    def token(self, namespace: str, service_account: str, bound_node: str | None = None) -> str:
        """A token of a service account, carrying a node's name as a DaemonSet pod's token does."""
        spec: Json = {"audiences": []}
        if bound_node is not None:
            metadata = self.api.get(f"{NODES}/{bound_node}")["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Node",
                **{k: metadata[k] for k in ("name", "uid")},
            }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        return str(self.api.post(path, {"spec": spec})["status"]["token"])

    def wait_account(self, name: str = "default", namespace: str = "default") -> None:
        """Return once a service account is there, which pods of its namespace need."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        until(lambda: self.api.get(path), f"service account {name} of {namespace}")

    def make_account(self, name: str, rules: Sequence[Json] = ()) -> Path:
        """Make a service account with these rights in the whole cluster, and return its kubeconfig."""
        self.api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        if rules:
            self.bind_role(account(name), rules)
        return self.use_account(name, "default")

    def bind_role(self, subject: Json, rules: Sequence[Json], namespace: str = "") -> None:
        """Give somebody these rights in a namespace, or in the whole cluster."""
        name, kind = subject["name"], "Role" if namespace else "ClusterRole"
        body = {"metadata": {"name": name}, "rules": list(rules)}
        self.api.post(f"{_rbac(namespace)}/{kind.lower()}s", body)
        self.grant_role(kind, name, namespace, subject)

    def grant_role(self, kind: str, role: str, namespace: str, *subjects: Json) -> None:
        """Give somebody the rights of a Role or ClusterRole in a namespace, or in the whole cluster."""
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        body = {"metadata": {"name": role}, "roleRef": reference, "subjects": list(subjects)}
        self.api.post(f"{_rbac(namespace)}/{'' if namespace else 'cluster'}rolebindings", body)

    # ---- the node

    def node_object(self) -> Json:
        return self.api.get(f"{NODES}/{self.node_name}")

    def wait_registered(self, after: float) -> None:
        """Return once the kubelet that runs now has taken `gpupack node`'s devices and the Node says so.

        Args:
            after: `time.time()` before the kubelet or the daemon was restarted: what the Node said before
                means nothing, it goes on saying so for a while.
        """
        until(lambda: self._sockets_since(after), "sockets of kubelet and plugin")
        until(self.daemon.is_ready, "gpupack node registered")
        full = sum(card.size for card in self.state().cards)
        until(lambda: self.host.has_taken_devices(RESOURCE, full, after), "our list in the kubelet")
        until(lambda: self.allocatable() == full, "the kubelet's count of units")

    def register_again(self, *steps: Callable[[], object]) -> None:
        """Do something that ends the registration of `gpupack node`, and wait for the next one."""
        since = time.time()
        for step in steps:
            step()
        self.wait_registered(since)

    def _sockets_since(self, after: float) -> bool:
        sockets = self.host.device_plugin_dir.glob("*.sock")
        ages = {path.name: path.stat().st_mtime for path in sockets}
        restarted = ages.pop("kubelet.sock", 0.0)
        return bool(ages) and min(ages.values()) > max(after, restarted) - CLOCK_TICK_S

    def node_ready(self) -> bool:
        conditions = self.node_object()["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def allocatable(self) -> int:
        """Units of our resource that the kubelet counts as allocatable."""
        return integer(self.node_object()["status"]["allocatable"].get(RESOURCE, "0"))

    def cards(self) -> NodeState | None:
        """What the Node's words say; None without words."""
        return node_state(self.node_object())

    def state(self) -> NodeState:
        """What the Node's words say."""
        state = self.cards()
        assert state is not None, "the node carries no packed words"
        return state

    def wait_used(self, expected: list[int]) -> NodeState:
        """Return the node's state once its cards' used units are, sorted, as expected."""

        def equal() -> NodeState | None:
            state = self.state()
            assert sorted(state.used) == sorted(expected), f"used {state.used}"
            return state

        state = until(equal, f"used units {expected}")
        assert state is not None
        return state

    # ---- pods

    def create(self, pod: Json) -> str:
        """Create a pod; returns its UID."""
        return str(self.api.post(PODS, pod)["metadata"]["uid"])

    def run(self, *pods: Json) -> None:
        """Create pods; returns when all of them run."""
        for pod in pods:
            self.create(pod)
        for pod in pods:
            self.wait_running(pod["metadata"]["name"])

    def bind(self, name: str) -> None:
        """Bind a pod to the node, as a scheduler without our extender does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node_name}
        self.api.post(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})

    def node_of(self, name: str) -> str:
        """Name of the node that a pod is bound to, empty for none."""
        return str(self.pod(name)["spec"].get("nodeName", ""))

    def wait_bound(self, *names: str) -> None:
        until(lambda: all(self.node_of(name) for name in names), f"{names} bound")

    def scheduled(self, name: str) -> Json:
        """The condition in which kube-scheduler, or batch mode, says what it found for a pod; else empty."""
        conditions = self.pod(name)["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == "PodScheduled"), {})

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase", ""))

    def wait_phase(self, name: str, phase: str) -> None:
        until(lambda: self.phase(name) == phase, f"pod {name} {phase}")

    def pod(self, name: str) -> Json:
        return self.api.get(f"{PODS}/{name}")

    def wait_running(self, name: str) -> Json:
        """Return the pod once it is Running with every container started.

        Raises:
            AssertionError: At once if the pod failed; shows why.
        """

        def running() -> Json:
            pod = self.pod(name)
            status = pod["status"]
            if status.get("phase") == "Failed":
                return pod
            parts = status.get("containerStatuses", [])
            started = bool(parts) and all("running" in part["state"] for part in parts)
            return pod if status.get("phase") == "Running" and started else None

        try:
            pod = until(running, f"pod {name} running")
        except AssertionError as error:
            raise AssertionError(f"{error}\nevents: {self.events(name)}") from error
        status = pod["status"]
        assert status["phase"] == "Running", f"pod {name}: {status.get('reason')} {status.get('message')}"
        return pod

    def delete(self, name: str, *, grace_s: int = 0, wait: bool = True) -> None:
        """Delete a pod; a pod that is not there is no error."""
        try:
            self.api.delete(f"{PODS}/{name}", grace_s=grace_s)
        except ApiError as error:
            if error.status != 404:
                raise
        if wait:
            self.wait_gone(name)

    def wait_gone(self, name: str) -> None:
        until(lambda: not self.exists(name), f"pod {name} gone")

    def exists(self, name: str) -> bool:
        return name in self.api.names(PODS)

    def delete_pods(self) -> None:
        """Delete every pod by force; returns when none is left."""
        self.api.delete(PODS, grace_s=0)
        until(lambda: not self.api.names(PODS), "all pods gone")

    def make_budget(self, name: str, labels: dict[str, str], **allows: int) -> None:
        """Make a PodDisruptionBudget of pods with these labels: `minAvailable` or `maxUnavailable`."""
        spec = {"selector": {"matchLabels": labels}, **allows}
        self.api.post(BUDGETS, {"metadata": {"name": name}, "spec": spec})

    def clear(self) -> None:
        """Delete every pod and wait until the words are empty again: the start of the next test.

        What a test that failed left dead is started.
        """
        if "kube-apiserver" not in self.control.running:
            self.control.start_api_server()
        if self.node is not None and "kubelet" not in self.node.running:
            self.node.start_kubelet()
        self.delete_pods()
        if self._daemon is not None:
            self._daemon.revive()
            self.extender.revive()
            # The words may be empty because they do not have the units of the last pods yet.
            until(lambda: not self._ledger()["charged"], "nothing charged")
            self.wait_used([0] * len(self.state().cards))

    def change_cards(self, profile: dict[str, Any]) -> None:
        """Clear the node and let it have other simulated cards, whose daemon starts with them."""
        self.clear()
        self.daemon.stop()
        self.daemon.profile.write_text(yaml.safe_dump(profile))
        self.register_again(self.daemon.start)
        self.wait_used([0] * len(self.state().cards))

    def events(self, name: str) -> list[str]:
        """`reason: message` of every event of the pod that has this name now."""
        return self.events_of(self.pod(name)["metadata"]["uid"])

    def events_of(self, uid: str) -> list[str]:
        """`reason: message` of every event of a pod, which may be gone."""
        found = self.find_events(f"involvedObject.uid={uid}")
        return [f"{event['reason']}: {event['message']}" for event in found]

    def find_events(self, *fields: str) -> list[Json]:
        """The Events that all these selectors of fields find."""
        items: list[Json] = self.api.get(EVENTS, fieldSelector=",".join(fields))["items"]
        return items

    def wait_event(self, name: str, text: str) -> str:
        """Return the pod's first event that contains `text`."""

        def matching() -> str:
            events = self.events(name)
            found = next((event for event in events if text in event), "")
            assert found, f"events {events}"
            return found

        return until(matching, f"event of {name} with {text!r}")

    def environment(self, name: str, container: str = "main") -> dict[str, str]:
        """The environment of a running container, read from its process."""
        status = self.pod(name)["status"]
        parts = status.get("containerStatuses", []) + status.get("initContainerStatuses", [])
        (found,) = [part for part in parts if part["name"] == container]
        return self.host.environment(found["containerID"].partition("://")[2])

    def output(self, name: str, container: str) -> str:
        return self.host.log_of(self.pod(name)["metadata"]["uid"], container)

    def allocation(self, name: str) -> Json:
        """The decoded `gpupack.io/allocation` of a pod; None where it has none."""
        text = self.pod(name)["metadata"].get("annotations", {}).get("gpupack.io/allocation")
        return None if text is None else json.loads(text)
