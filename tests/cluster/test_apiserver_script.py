"""The real API server answers the script as recorded, and so as the embedded one does.

The embedded one is held to the same recording by its integration test, so neither can drift alone.
"""

import ssl

import aiohttp
import pytest

from tests.cluster.harness import binaries, versions
from tests.cluster.harness.controlplane import ADMIN_TOKEN
from tests.scripts import answers
from tests.scripts import apiserver_script as script

pytestmark = pytest.mark.telling


async def test_every_answer_is_as_recorded(make_cluster):
    """With GPUPACK_RECORD=1 the answers are written instead, for a new Kubernetes."""
    cluster = make_cluster(with_node=False)
    control = cluster.control
    minor = versions.older(binaries.programs())
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
    answers.check(transcript, script.ANSWERS, minor, script.as_recording)
