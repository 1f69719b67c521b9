"""The extender's second listener, for probes and Prometheus."""

from pathlib import Path

import pytest
import structlog

from scheduler_plugin.errors import SettingsError
from standins.apiserver.server import ApiServer
from tests.certificates import make_certificate
from tests.extender_client import extender
from tests.waiting import until


async def test_a_second_listener_has_no_verbs_and_no_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "IP:127.0.0.1")
    options = {"tls_cert": str(certificate), "tls_key": str(key), "metrics_http": "127.0.0.1:0"}
    with structlog.testing.capture_logs() as logs:
        async with ApiServer() as api, extender(tmp_path, api, **options) as client:
            (line,) = [line for line in logs if line["event"] == "serving metrics"]
            client.url = f"http://{line['host']}:{line['port']}"
            await until(client.ready)
            assert await client.get("/healthz") == (200, "ok\n")
            assert "gpupack_build_info{" in (await client.get("/metrics"))[1]
            for verb in ("filter", "prioritize", "bind", "preempt"):
                status, text = await client.post(f"/{verb}", {})
                assert status == 404
                assert text.endswith("allowed: GET /healthz, GET /readyz, GET /metrics\n")


async def test_a_second_listener_whose_address_is_taken_says_so(tmp_path: Path) -> None:
    async with ApiServer() as api, extender(tmp_path, api) as first:
        address = first.url.removeprefix("http://")
        with pytest.raises(SettingsError, match=f"--metrics-http '{address}': "):
            async with extender(tmp_path, api, metrics_http=address):
                pass
