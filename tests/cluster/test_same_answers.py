"""The embedded stand-ins are as good as the real components: the same scripts, the same answers.

The stand-ins are held to the same recordings by the integration tests, so neither side can drift alone.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from tests.cluster.harness import ApiError, Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controlplane import ADMIN_TOKEN
from tests.scripts import apiserver_script, kubelet_script
from tests.scripts.kubelet_play import RESOURCE, ScriptPod

KUBELET_SCRIPT_LIMIT_S = 420


class RealKubelet:
    """The real kubelet and API server as a driver of the kubelet script."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.plugin_dir = cluster.host.device_plugin_dir
        self.pod_resources = cluster.host.pod_resources_socket

    async def create(self, pod: ScriptPod) -> None:
        until(lambda: self.cluster.api.post(PODS, self.manifest(pod)), f"pod {pod.name} created", 20)

    def manifest(self, pod: ScriptPod) -> dict[str, Any]:
        main = ("/bin/true",) if pod.ends else w.SLEEP
        init = [
            w.container(f"i{index}", limits={RESOURCE: one[0]}, sidecar=True)
            if isinstance(one, tuple)
            else w.container(f"i{index}", limits={RESOURCE: one}, command=("/bin/true",))
            for index, one in enumerate(pod.init)
        ]
        mains = [
            w.container(f"m{index}", command=main, limits={RESOURCE: units})
            for index, units in enumerate(pod.mains)
        ]
        return w.pod(pod.name, *mains, init=init, nodeName=self.cluster.node_name)

    async def status(self, name: str) -> Mapping[str, Any] | None:
        try:
            status: Mapping[str, Any] = self.cluster.pod(name)["status"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return status

    async def delete(self, name: str, *, force: bool) -> None:
        self.cluster.delete(name, grace_s=0 if force else 1, wait=False)

    async def node_status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.cluster.node_object()["status"]
        return status

    async def restart(self, *, lose_checkpoint: bool = False) -> None:
        self.cluster.host.kill_kubelet()
        if lose_checkpoint:
            (self.plugin_dir / "kubelet_internal_checkpoint").unlink()
        self.cluster.host.start_kubelet()

    async def api_away(self, away: bool) -> None:
        control = self.cluster.control
        if away:
            control.kill("kube-apiserver")
            return
        control.start_api_server(wait=False)
        while True:
            try:
                self.cluster.api.call("GET", "/readyz", timeout_s=2)
            except (OSError, ApiError):
                await asyncio.sleep(0.1)
            else:
                return


def differences(transcript: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> list[str]:
    expected = {entry["step"]: entry for entry in recorded}
    return [
        f"{entry['step']}\n  now:      {entry}\n  recorded: {expected.get(entry['step'])}"
        for entry in transcript
        if entry != expected.get(entry["step"])
    ]


@pytest.mark.timeout(KUBELET_SCRIPT_LIMIT_S)
async def test_kubelet_answers_as_recorded(make_cluster):
    transcript = await kubelet_script.play(RealKubelet(make_cluster()))
    assert [entry["step"] for entry in transcript] == [step.name for step in kubelet_script.STEPS]
    wrong = differences(transcript, kubelet_script.recorded())
    assert not wrong, "\n".join(wrong)


async def test_api_server_answers_as_recorded(make_cluster):
    cluster = make_cluster(with_node=False)
    control = cluster.control
    # The controllers would annotate the script's node; they have made the default service account by now.
    control.kill("kube-controller-manager")

    async def compact() -> None:
        # Its watch cache remembers what etcd forgot, so it starts anew.
        control.compact_etcd()
        control.kill("kube-apiserver")
        control.start_api_server()

    trust = ssl.create_default_context(cafile=control.ca)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        identity = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        target = apiserver_script.Target(session, control.url, compact, identity)
        transcript = await apiserver_script.play(target, apiserver_script.STEPS)
    assert [entry["step"] for entry in transcript] == [step.name for step in apiserver_script.STEPS]
    wrong = differences(transcript, apiserver_script.recorded())
    assert not wrong, "\n".join(wrong)
