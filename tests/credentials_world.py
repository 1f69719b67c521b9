"""A kubeconfig, plugins and certificates for tests."""

import json
import sys

import pytest
from kubernetes.aio.config import incluster_config

from tests.certificates import make_certificate


def write(path, cluster, user) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def kubeconfig(path, url, **user) -> str:
    return write(path, {"server": url}, user)


def plugin(tmp_path, **status) -> dict:
    """A credential plugin that counts its calls and gives token-<n>."""
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, pathlib, sys\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(n))\n"
        f"status = {{'token': f'token-{{n}}', **{status!r}}}\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps({**kind, 'status': status}))\n"
    )
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
        }
    }


@pytest.fixture
def outside_a_cluster(tmp_path, monkeypatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def service_account(tmp_path, monkeypatch):
    """A pod's token and authority; returns the token's file."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("sa-1\n")
    authority.write_bytes(make_certificate(tmp_path, "DNS:api.test")[0].read_bytes())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    return token


@pytest.fixture
def in_cluster(tmp_path, monkeypatch):
    return service_account(tmp_path, monkeypatch)
