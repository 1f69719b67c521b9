import platform
from importlib.metadata import PackageNotFoundError

import prometheus_client
import pytest
from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpupack import __version__
from kubeapi import read_version
from kubeapi.metrics import make_process_registry


@pytest.fixture(autouse=True)
def restored():
    yield
    prometheus_client.enable_created_metrics()


def test_a_process_says_what_runs_and_what_it_uses_but_not_when_series_were_created() -> None:
    registry = make_process_registry()
    Counter("calls_total", "Calls.", registry=registry).inc()
    Histogram("call_duration_seconds", "Calls.", registry=registry).observe(1)
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (build,) = families["gpupack_build_info"].samples
    assert build.labels == {"version": __version__, "python_version": platform.python_version()}
    assert build.value == 1
    assert families["process_resident_memory_bytes"].samples[0].value > 2**20
    assert families["process_cpu_seconds"].samples[0].value > 0
    assert "process_start_time_seconds" in families
    assert "_created" not in text


def test_a_tree_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", refuse)
    assert read_version() == "0.0.0+unknown"
