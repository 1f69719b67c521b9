"""The real API server answers the script as recorded, and so as the embedded one does.

The embedded one is held to the same recording by its integration test, so neither can drift alone.
"""

import ssl
from typing import Any

import aiohttp

from tests.cluster.harness.controlplane import ADMIN_TOKEN
from tests.scripts import apiserver_script as script


def differences(transcript: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> list[str]:
    expected = {entry["step"]: entry for entry in recorded}
    return [
        f"{entry['step']}\n  now:      {entry}\n  recorded: {expected.get(entry['step'])}"
        for entry in transcript
        if entry != expected.get(entry["step"])
    ]


async def test_every_answer_is_as_recorded(make_cluster):
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
        target = script.Target(session, control.url, compact, identity)
        transcript = await script.play(target, script.STEPS)
    assert [entry["step"] for entry in transcript] == [step.name for step in script.STEPS]
    wrong = differences(transcript, script.recorded())
    assert not wrong, "\n".join(wrong)
