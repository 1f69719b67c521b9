"""Loads of the `kubernetes` package only what reads credentials: the rest of it takes 17 MiB and 0.15 s.

The package imports all its parts, synchronous and asynchronous ones, and a library that checks models.
An import of one of them later gets it as ever.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_PARTS: Final = {
    "kubernetes": frozenset(
        {"client", "config", "dynamic", "watch", "stream", "utils", "leaderelection", "informer"}
    ),
    "kubernetes.aio": frozenset({"dynamic", "leaderelection", "stream", "watch"}),
}
_CLIENT: Final = "kubernetes.aio.client"
_API_CLIENT: Final = f"{_CLIENT}.api_client"


@contextmanager
def import_without_models() -> Iterator[None]:
    """Have `kubernetes.aio.config` imported without the parts that it uses for nothing here.

    Changes nothing if the package was imported before. A release whose parts hang together in another way
    is imported whole.
    """
    if "kubernetes" not in sys.modules:
        left_out = _make_placeholders()
        sys.modules.update(left_out)
        try:
            importlib.import_module("kubernetes.aio.config")
        except (ImportError, AttributeError):
            for name in [name for name in sys.modules if name.partition(".")[0] == "kubernetes"]:
                del sys.modules[name]
        else:
            _restore_modules(left_out)
    yield


def _make_placeholders() -> dict[str, ModuleType]:
    names = [_API_CLIENT, *(f"{package}.{part}" for package, parts in _PARTS.items() for part in parts)]
    empty = {name: ModuleType(name) for name in names}
    empty[_API_CLIENT].__dict__["ApiClient"] = _refuse_client
    return empty


def _restore_modules(left_out: dict[str, ModuleType]) -> None:
    """Let the next import of what was left out load it, and `kubernetes.client` work without one."""
    for name in left_out:
        del sys.modules[name]
        package, _, part = name.rpartition(".")
        sys.modules[package].__dict__.pop(part, None)
    sys.modules[_CLIENT].__dict__.pop("ApiClient", None)
    for package in _PARTS:
        _import_lazily(sys.modules[package], _PARTS[package])


def _refuse_client(*args: Any, **kwargs: Any) -> Any:
    return importlib.import_module(_API_CLIENT).ApiClient(*args, **kwargs)


def _import_lazily(package: ModuleType, parts: frozenset[str]) -> None:
    def attribute(name: str) -> object:
        if name in parts:
            return importlib.import_module(f"{package.__name__}.{name}")
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

    package.__dict__["__getattr__"] = attribute
