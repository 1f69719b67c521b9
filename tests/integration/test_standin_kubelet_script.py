"""The stand-in kubelet answers the script as kubelet 1.37.1 does, and as 1.36.3 where it is told to."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from standins.apiserver.server import ApiServer
from standins.kubelet.node import Kubelet
from tests.kubelet_world import short_folder
from tests.scripts import answers
from tests.scripts import kubelet_script as script
from tests.scripts.kubelet_play import RESOURCE, ScriptPod
from tests.waiting import until


class StandIns:
    """Both stand-ins as a driver of the script."""

    pace = 0.25  # it makes up its mind within `sync_delay_s`

    def __init__(self, api: ApiServer, kubelet: Kubelet) -> None:
        self.api = api
        self.kubelet = kubelet
        self.plugin_dir = kubelet.device_plugin_dir
        self.pod_resources = kubelet.pod_resources_socket

    async def create(self, pod: ScriptPod) -> str:
        uid = str(self.api.add_pod(manifest(pod))["metadata"]["uid"])
        if pod.ends:
            await until(lambda: self.kubelet.admission(uid))
            self.kubelet.finish(uid)
        return uid

    async def status(self, name: str) -> Mapping[str, Any] | None:
        return self.api.pod("default", name).get("status", {}) if self.api.has_pod("default", name) else None

    async def delete(self, name: str, *, force: bool) -> None:
        self.api.delete_pod("default", name, 0 if force else 1)

    async def node_status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.api.node("n1")["status"] if self.api.objects("nodes") else {}
        return status

    async def kill(self) -> None:
        await self.kubelet.kill()

    async def start(self) -> None:
        await self.kubelet.start()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def api_away(self, away: bool) -> None:
        await self.api.away(away)


def manifest(pod: ScriptPod) -> dict[str, Any]:
    def container(name: str, units: int, **more: str) -> dict[str, Any]:
        return {"name": name, "image": "x", "resources": {"limits": {RESOURCE: str(units)}}, **more}

    init = [
        container(f"i{index}", one[0], restartPolicy="Always")
        if isinstance(one, tuple)
        else container(f"i{index}", one)
        for index, one in enumerate(pod.init)
    ]
    return {
        "metadata": {"name": pod.name, "namespace": "default"},
        "spec": {
            "nodeName": "n1",
            "initContainers": init,
            "containers": [container(f"m{index}", units) for index, units in enumerate(pod.mains)],
        },
    }


@asynccontextmanager
async def stand_ins(*, by_resource: bool) -> AsyncIterator[StandIns]:
    async with ApiServer() as api, short_folder() as folder:
        kubelet = Kubelet(folder, "n1", api.url, seed=7, sync_delay_s=0.3, by_resource=by_resource)
        await kubelet.start()
        yield StandIns(api, kubelet)
        await kubelet.stop()


@pytest.mark.parametrize("minor", [None, "1.36"], ids=["newest", "1.36"])
async def test_every_answer_is_that_of_the_real_one(minor: str | None) -> None:
    async with stand_ins(by_resource=minor is not None) as here:
        transcript = await script.play(here)
    wrong = answers.differences(transcript, script.recorded(minor))
    assert not wrong, "\n".join(wrong)


def test_every_step_was_recorded() -> None:
    names = [step.name for step in script.STEPS]
    assert [entry["step"] for entry in script.recorded()] == names
    assert len(set(names)) == len(names)
