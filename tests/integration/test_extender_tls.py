"""The extender process: one leader, TLS and client certificates."""

import asyncio
import inspect
import ssl
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from allocator.names import LEADER_LABEL
from scheduler_plugin.app import run
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.settings import Settings
from standins.apiserver.server import ApiServer
from tests.certificates import make_certificate
from tests.cluster_builders import pod_object
from tests.extender_client import Client, client, extender
from tests.waiting import until

STANDBY = "this gpupack scheduler is not the leader; the leader answers\n"


__all__ = ["client"]


async def test_one_leader_binds(tmp_path: Path) -> None:
    async with ApiServer() as api:
        elected = {"leader_elect": True, "lease_s": 30}
        async with extender(tmp_path, api, **elected, identity="first") as first:
            await until(first.ready)
            async with extender(tmp_path, api, **elected, identity="second") as second:
                first.make_node("b", (16, 16))
                pod = first.make_pod("p", 9)
                await second.knows(pod["metadata"]["uid"])
                assert await second.get("/readyz") == (503, "not the leader\n")
                assert await second.post("/bind", b"{}") == (503, STANDBY)
                await first.knows(pod["metadata"]["uid"])
                assert await first.bind(pod, "b") == ""
                assert (
                    api.lease("kube-system", "gpupack-scheduler-extender")["spec"]["holderIdentity"]
                    == "first"
                )


def add_pod(api: ApiServer, name: str) -> None:
    made: Any = pod_object(name, namespace="kube-system", containers=[{"name": "gpupack"}])
    api.add_pod({"metadata": {"name": name, "namespace": "kube-system"}, "spec": made["spec"]})


def leaders(api: ApiServer) -> list[str]:
    """Names of the pods that the Service of the extender selects."""
    found = ((pod["metadata"]["name"], pod["metadata"].get("labels", {})) for pod in api.objects("pods"))
    return [name for name, labels in found if labels.get(LEADER_LABEL) == "gpupack-scheduler-extender"]


async def test_a_standby_with_a_pod_is_ready_and_leads_kept_connections_to_the_leader(tmp_path: Path) -> None:
    async with ApiServer() as api:
        add_pod(api, "first")
        add_pod(api, "second")

        def replica(name: str) -> AbstractAsyncContextManager[Client]:
            elected = {"leader_elect": True, "lease_s": 30, "identity": name, "pod_name": name}
            return extender(tmp_path, api, **elected)

        async with replica("second") as second:
            await until(lambda: leaders(api) == ["second"])
            async with replica("first") as first:
                await until(first.ready)
                first.make_node("b", (16, 16))
                for verb in ("filter", "prioritize", "bind", "preempt"):
                    for headers in ({}, {"X-Of-Aiohttp": "1"}):
                        url = f"{first.url}/{verb}"
                        async with first.session.post(url, data=b"{}", headers=headers) as answer:
                            assert (answer.status, await answer.text()) == (503, STANDBY)
                            assert answer.headers["Connection"] == "close"
                pod = second.make_pod("p", 9)
                await second.knows(pod["metadata"]["uid"])
                assert await second.bind(pod, "b") == ""
                assert await first.get("/readyz") == (200, "ok\n")
            await until(lambda: leaders(api) == ["second"])
        async with replica("first") as first:
            await until(lambda: leaders(api) == ["first"])
            await until(first.ready)
            pod = first.make_pod("q", 9)
            await first.knows(pod["metadata"]["uid"])
            assert await first.bind(pod, "b") == ""


async def test_tls(tmp_path: Path) -> None:
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path, "IP:127.0.0.1")
    tls = {"tls_cert": str(certificate), "tls_key": str(key)}
    async with ApiServer() as api, extender(tmp_path, api, **tls) as client:
        assert client.url.startswith("https://")
        client.tls = ssl.create_default_context(cafile=str(certificate))
        assert await client.get("/healthz") == (200, "ok\n")


async def test_a_renewed_certificate_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeapi.tls.LOOK_S", 0.01)
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path, "IP:127.0.0.1")
    tls = {"tls_cert": str(certificate), "tls_key": str(key)}
    async with ApiServer() as api, extender(tmp_path, api, **tls) as client:
        client.tls = ssl.create_default_context(cafile=str(certificate))
        assert await client.get("/healthz") == (200, "ok\n")
        await asyncio.to_thread(make_certificate, tmp_path, "IP:127.0.0.1")

        async def renewed() -> bool:
            client.tls = ssl.create_default_context(cafile=str(certificate))
            try:
                return (await client.get("/healthz"))[0] == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

        await until(renewed)


async def test_verbs_are_for_clients_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path, "IP:127.0.0.1")
    tls = {"tls_cert": str(certificate), "tls_key": str(key), "tls_client_ca": str(certificate)}
    async with ApiServer() as api, extender(tmp_path, api, **tls) as client:
        client.tls = ssl.create_default_context(cafile=str(certificate))
        await until(client.ready)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path))[0] == 200
        for verb in ("filter", "prioritize", "bind", "preempt"):
            refused = await client.post(f"/{verb}", b"{}")
            assert refused == (403, "allowed: a client certificate of the authority given at start\n")
        known = ssl.create_default_context(cafile=str(certificate))
        known.load_cert_chain(certificate, key)
        client.tls = known
        assert (await client.post("/filter", b"{}"))[0] == 422


async def test_the_certificates_of_the_installation_page_are_what_both_sides_need(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "install" / "joining.md").read_text(encoding="utf-8")
    lines = text.partition("openssl req")[2].partition("kubectl")[0]
    script = "set -e\n" + inspect.cleandoc("   openssl req" + lines)
    done = await asyncio.create_subprocess_exec(
        "sh", "-c", script, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    _, said = await done.communicate()
    assert done.returncode == 0, said.decode()
    files = {"tls_cert": "tls.crt", "tls_key": "tls.key", "tls_client_ca": "ca.crt"}
    tls = {option: str(tmp_path / name) for option, name in files.items()}
    host = "gpupack-extender.gpupack-system.svc"
    async with ApiServer() as api, extender(tmp_path, api, **tls) as client:
        # As kube-scheduler does it with `serverName` in its configuration.
        for ours, status in (("client", 422), (None, 403)):
            trust = ssl.create_default_context(cafile=tmp_path / "ca.crt")
            if ours is not None:
                trust.load_cert_chain(tmp_path / f"{ours}.crt", tmp_path / f"{ours}.key")
            async with client.session.post(
                f"{client.url}/filter", data=b"{}", ssl=trust, server_hostname=host
            ) as answer:
                assert answer.status == status


async def test_settings_that_cannot_work_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        await run(Settings(kubeconfig=str(tmp_path / "missing")), stop=asyncio.Event())
