"""TLS, and credentials that are renewed."""

import shutil
import ssl
import sys

import pytest
from aiohttp import web

from kubeapi import errors
from kubeapi.client import KubeClient
from kubeapi.credentials import FORCED_GAP_S, REFRESH_S, Credentials
from tests.certificates import make_certificate
from tests.clock import Clock
from tests.credentials_world import in_cluster, outside_a_cluster, plugin, write
from tests.http_server import server_context, serving

__all__ = ["in_cluster", "outside_a_cluster"]
pytestmark = pytest.mark.usefixtures("outside_a_cluster")


@pytest.fixture
async def tls_server(tmp_path):
    """An HTTPS server known as api.test that accepts the second token only."""
    cert, key = make_certificate(tmp_path, "DNS:api.test")
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({}, status=200 if seen[-1] == "Bearer token-2" else 401)

    async with serving(handle, server_context(cert, key)) as url:
        yield url, cert, seen


async def test_tls_is_verified_and_a_401_renews_the_token_once(tls_server, tmp_path) -> None:
    url, cert, seen = tls_server
    cluster = {"server": url, "certificate-authority": str(cert), "tls-server-name": "api.test"}
    path = write(tmp_path / "kc", cluster, plugin(tmp_path))
    clock = Clock()
    async with KubeClient(await Credentials.load(path, clock)) as client:
        with pytest.raises(errors.Unauthorized):
            await client.get("/x")
        clock.now += FORCED_GAP_S
        await client.get("/x")
        await client.get("/x")
    assert seen == ["Bearer token-1", "Bearer token-1", "Bearer token-2", "Bearer token-2"]


@pytest.mark.parametrize("cluster", [{}, {"tls-server-name": "other.test"}])
async def test_another_name_or_authority_is_unreachable(tls_server, tmp_path, cluster) -> None:
    url, cert, seen = tls_server
    authority = {"certificate-authority": str(cert)} if cluster else {}
    path = write(tmp_path / "kc", {"server": url, **authority, **cluster}, {"token": "token-2"})
    async with await KubeClient.connect(path) as client:
        with pytest.raises(errors.Unreachable) as caught:
            await client.get("/x")
    assert not caught.value.maybe_done
    assert seen == []


async def test_verification_can_be_switched_off(tls_server, tmp_path) -> None:
    path = write(
        tmp_path / "kc", {"server": tls_server[0], "insecure-skip-tls-verify": True}, {"token": "token-2"}
    )
    async with await KubeClient.connect(path) as client:
        assert await client.get("/x") == b"{}"


async def test_a_watch_refused_with_401_has_a_new_token_the_next_time(tls_server, tmp_path) -> None:
    url, cert, seen = tls_server
    cluster = {"server": url, "certificate-authority": str(cert), "tls-server-name": "api.test"}
    clock = Clock()
    credentials = await Credentials.load(write(tmp_path / "kc", cluster, plugin(tmp_path)), clock)
    clock.now += FORCED_GAP_S
    async with KubeClient(credentials) as client:
        with pytest.raises(errors.Unauthorized):
            await anext(client.watch("/x", "1"))
        assert [line async for line in client.watch("/x", "1")] == [b"{}"]
    assert seen == ["Bearer token-1", "Bearer token-2"]


def certificates(tmp_path):
    """Two certificates with their keys, of the same name."""
    return [make_certificate(tmp_path / name, "DNS:api.test") for name in ("old", "new")]


async def test_a_client_certificate_is_read_again(tmp_path) -> None:
    (cert, key), (newer, its_key) = certificates(tmp_path)
    clock = Clock()
    user = {"client-certificate": str(cert), "client-key": str(key)}
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "https://h:1"}, user), clock)
    first = credentials.tls
    clock.now += REFRESH_S
    await credentials.authorization()
    assert credentials.tls is first
    shutil.copy(newer, cert)
    clock.now += REFRESH_S
    with pytest.raises(errors.ConfigError, match="TLS files for https://h:1"):
        await credentials.authorization()
    await credentials.authorization()
    assert credentials.tls is first
    shutil.copy(its_key, key)
    clock.now += REFRESH_S
    await credentials.authorization()
    assert credentials.tls is not first


async def test_the_authority_of_the_cluster_is_read_again(in_cluster, tmp_path) -> None:
    clock = Clock()
    credentials = await Credentials.load(None, clock)
    first = credentials.tls
    (tmp_path / "ca.crt").write_bytes(certificates(tmp_path)[1][0].read_bytes())
    clock.now += REFRESH_S
    await credentials.authorization()
    assert credentials.tls is not first


def pem_plugin(tmp_path, cert, key) -> dict:
    """A credential plugin that gives what is in the two files."""
    script = tmp_path / "pem_plugin.py"
    script.write_text(
        "import json, pathlib\n"
        f"cert, key = [pathlib.Path(path).read_text() for path in {[str(cert), str(key)]!r}]\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps({**kind, 'status': {'clientCertificateData': cert, 'clientKeyData': key}}))\n"
    )
    kind = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable}
    return {"exec": {**kind, "args": [str(script)]}}


@pytest.fixture
async def client_world(tmp_path):
    """The two certificates, and an HTTPS server known as api.test that wants the second from its clients."""
    old, new = certificates(tmp_path)
    context = server_context(*old)
    context.verify_mode = ssl.CERT_REQUIRED
    for cert, _ in (old, new):
        context.load_verify_locations(cert)
    wanted = ssl.PEM_cert_to_DER_cert(new[0].read_text())

    async def handle(request: web.Request) -> web.Response:
        shown = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return web.json_response({}, status=200 if shown == wanted else 401)

    async with serving(handle, context) as url:
        yield old, new, {"server": url, "certificate-authority": str(old[0]), "tls-server-name": "api.test"}


async def test_a_client_certificate_refused_with_401_is_fetched_anew(client_world, tmp_path) -> None:
    old, new, cluster = client_world
    given = tmp_path / "given.crt", tmp_path / "given.key"
    for source, copy in zip(old, given, strict=True):
        shutil.copy(source, copy)
    clock = Clock()
    path = write(tmp_path / "kc", cluster, pem_plugin(tmp_path, *given))
    async with KubeClient(await Credentials.load(path, clock)) as client:
        clock.now += FORCED_GAP_S
        with pytest.raises(errors.Unauthorized):
            await client.get("/x")
        for source, copy in zip(new, given, strict=True):
            shutil.copy(source, copy)
        clock.now += FORCED_GAP_S
        assert await client.get("/x") == b"{}"


async def test_a_token_that_vanishes_between_two_requests(in_cluster, monkeypatch) -> None:
    credentials = await Credentials.load(None)
    in_cluster.unlink()
    loader = credentials._configuration.refresh_api_key_hook.__closure__
    owner = next(cell.cell_contents for cell in loader if hasattr(cell.cell_contents, "token_expires_at"))
    owner.token_expires_at = owner.token_expires_at.replace(year=2000)
    with pytest.raises(errors.ConfigError, match="token cannot be read"):
        await credentials.authorization()
