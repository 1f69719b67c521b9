"""The real kubelet answers the script as recorded, and so as the stand-in does."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.harness import Cluster, binaries, versions
from tests.cluster.harness import workload as w
from tests.cluster.harness.rest import ApiError
from tests.scripts import answers
from tests.scripts import kubelet_script as script
from tests.scripts.kubelet_play import RESOURCE, ScriptPod

pytestmark = pytest.mark.telling

PODS = "/api/v1/namespaces/default/pods"
# Does not end when asked to, as when the answers were recorded.
SLEEP = ("/bin/sleep", "1000000")


class RealKubelet:
    """A cluster as a driver of the script. Children are started from the main thread, the loop's."""

    pace = 1.0

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.plugin_dir = cluster.host.device_plugin_dir
        self.pod_resources = cluster.host.pod_resources_socket

    async def create(self, pod: ScriptPod) -> str:
        built = manifest(pod) | {"spec": manifest(pod)["spec"] | {"nodeName": self.cluster.node_name}}
        created = await asyncio.to_thread(self.cluster.api.post, PODS, built)
        return str(created["metadata"]["uid"])

    async def status(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await asyncio.to_thread(self.cluster.api.get, f"{PODS}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        status: Mapping[str, Any] = found.get("status", {})
        return status

    async def delete(self, name: str, *, force: bool) -> None:
        await asyncio.to_thread(self.cluster.api.delete, f"{PODS}/{name}", grace_s=0 if force else 1)

    async def node_status(self) -> Mapping[str, Any]:
        node = await asyncio.to_thread(self.cluster.node_object)
        status: Mapping[str, Any] = node["status"]
        return status

    async def kill(self) -> None:
        self.cluster.host.kill_kubelet()

    async def start(self) -> None:
        self.cluster.host.start_kubelet()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def api_away(self, away: bool) -> None:
        if away:
            self.cluster.control.kill("kube-apiserver")
        else:
            self.cluster.control.start_api_server(wait=False)
            await asyncio.to_thread(self.cluster.control.wait_ready)


def manifest(pod: ScriptPod) -> dict[str, Any]:
    command = ("/bin/true",) if pod.ends else SLEEP
    init = [
        w.container(f"i{index}", command=SLEEP, sidecar=True, limits={RESOURCE: one[0]})
        if isinstance(one, tuple)
        else w.container(f"i{index}", command=("/bin/true",), limits={RESOURCE: one})
        for index, one in enumerate(pod.init)
    ]
    mains = [
        w.container(f"m{index}", command=command, limits={RESOURCE: units})
        for index, units in enumerate(pod.mains)
    ]
    return w.pod(pod.name, *mains, init=init)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_every_answer_is_as_recorded(make_cluster) -> None:
    """With GPUPACK_RECORD=1 the answers are written instead, for a new Kubernetes."""
    cluster = make_cluster()
    minor = versions.older(binaries.programs())
    transcript = await script.play(RealKubelet(cluster))
    answers.check(transcript, script.ANSWERS, minor, script.as_recording)
