"""What shells propose for arguments: names that the API server and the queue know, or nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpupack.cli.app import cli
from gpupack.cli.completion import NO_FILES, proposals
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, pod_object

TENANT = {
    "cohort": "",
    "weight": 1,
    "nominal": None,
    "used": 0,
    "borrowed": 0,
    "lent": 0,
    "running": 0,
    "waiting": 0,
    "oldestWaitS": 0,
    "stop": "None",
}
STATUS = {"pods": [], "queues": [{**TENANT, "name": name} for name in ("research", "default")]}


async def served(look: Callable[[str], Any], tmp_path: Path, *, status: int = 200) -> Any:
    """Serve two nodes, three pods and two queues; `look` runs in a thread."""
    async with ApiServer() as api:
        for name in ("gpu-a", "gpu-b"):
            api.add_node(name)
        for name, namespace in (("web-1", "default"), ("web-2", "default"), ("train", "team-a")):
            pod = pod_object(name, namespace=namespace, containers=[container("main", 1)])
            del pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
            api.add_pod({**pod, "status": {}})

        async def intercept(request: web.Request) -> web.Response | None:
            if status != 200:
                return web.Response(status=status)
            return web.json_response(STATUS) if request.path.endswith("/proxy/status") else None

        api.http.intercept = intercept
        return await asyncio.to_thread(look, str(api.kubeconfig(tmp_path / "kubeconfig")))


CASES = (
    (["top"], "gpu-", ["gpu-a", "gpu-b"]),
    (["cordon"], "gpu-b", ["gpu-b"]),
    (["why"], "web", ["web-1", "web-2"]),
    (["why", "-n", "team-a"], "", ["train"]),
    (["why"], "team-a/t", ["team-a/train"]),
    (["queue", "status"], "", ["default", "research"]),
    (["queue", "status"], "re", ["research"]),
)


@pytest.mark.parametrize(("words", "unfinished", "proposed"), CASES)
def test_names_that_the_cluster_knows(
    words: list[str], unfinished: str, proposed: list[str], tmp_path: Path
) -> None:
    def look(kubeconfig: str) -> list[str]:
        return proposals(cli, [*words, "--kubeconfig", kubeconfig], unfinished)

    assert asyncio.run(served(look, tmp_path)) == [*proposed, NO_FILES]


@pytest.mark.parametrize(
    ("command", "option"), [(["fit", "8"], "--without"), (["advise"], "--empty"), (["simulate"], "--without")]
)
def test_options_that_take_a_node_propose_nodes(command: list[str], option: str, tmp_path: Path) -> None:
    def look(kubeconfig: str) -> list[str]:
        return proposals(cli, [*command, "--kubeconfig", kubeconfig, option], "gpu-")

    assert asyncio.run(served(look, tmp_path)) == ["gpu-a", "gpu-b", NO_FILES]


def test_no_answer_is_no_proposal_and_no_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def look(kubeconfig: str) -> list[list[str]]:
        return [proposals(cli, [*words, "--kubeconfig", kubeconfig], "") for words, _, _ in CASES]

    assert asyncio.run(served(look, tmp_path, status=403)) == [[NO_FILES]] * len(CASES)
    assert proposals(cli, ["top", "--kubeconfig", str(tmp_path / "none")], "") == [NO_FILES]
    assert capfd.readouterr() == ("", "")
