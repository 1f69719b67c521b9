"""The process that uses memory of a card: what it says line by line, with a library of plain Python."""

import json
from typing import Any

import pytest

from deviceplugin.gpus.nvidia.cuda_child import LIBRARY, serve

MIB = 1 << 20


class Library:
    """The driver of a card of 1 000 MiB; `errors` are the codes that calls return."""

    def __init__(self, **errors: int) -> None:
        self.errors = errors
        self.used_mib = 0

    def __getattr__(self, name: str) -> Any:
        if name not in {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"}:
            raise AttributeError(f"undefined symbol: {name}")
        return lambda *_: self.errors.get(name, 0)

    def cuDeviceGetUuid_v2(self, name: Any, _device: int) -> int:  # noqa: N802
        name[:] = bytes(range(16))
        return self.errors.get("cuDeviceGetUuid_v2", 0)

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value, total._obj.value = (1000 - self.used_mib) * MIB, 1000 * MIB
        return self.errors.get("cuMemGetInfo_v2", 0)

    def cuMemAlloc_v2(self, place: Any, size: Any) -> int:  # noqa: N802
        mib = size.value // MIB
        if self.used_mib + mib > 1000:
            return 2
        place._obj.value = 4096
        self.used_mib += mib
        return self.errors.get("cuMemAlloc_v2", 0)

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = {100: b"CUDA_ERROR_NO_DEVICE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code)
        return int(text._obj.value is None)


def said(lines: list[str], library: Library | None = None) -> list[dict[str, Any]]:
    answers: list[str] = []

    def load(name: str) -> Library:
        assert name == LIBRARY
        return library or Library()

    serve(lines, answers.append, load)
    return [json.loads(answer) for answer in answers]


def test_it_has_memory_until_there_is_none() -> None:
    assert said(["start\n", "allocate 600\n", "allocate 401\n", "allocate 400\n"]) == [
        {"total_mib": 1000},
        {"given": True},
        {"given": False},
        {"given": True},
    ]


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ({"cuInit": 100}, "cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        ({"cuDevicePrimaryCtxRetain": 999}, "cuDevicePrimaryCtxRetain: an error without a name (999)"),
    ],
)
def test_a_card_that_gives_no_context(errors: dict[str, int], says: str) -> None:
    assert said(["start"], Library(**errors)) == [{"error": says}]


def test_an_allocation_that_fails_otherwise_is_no_refusal() -> None:
    answers = said(["start", "allocate 1"], Library(cuMemAlloc_v2=700))
    assert answers[1] == {"error": "cuMemAlloc_v2: CUDA_ERROR_ILLEGAL_ADDRESS (700)"}


@pytest.mark.parametrize("line", ["", "stop", "allocate 1", "allocate"])
def test_lines_that_it_does_not_know(line: str) -> None:
    assert said([line]) == [{"error": f"'{line}'; allowed: start, then allocate N"}]


@pytest.mark.parametrize("line", ["allocate many", "allocate"])
def test_amounts_that_are_none(line: str) -> None:
    assert "error" in said(["start", line])[1]


def test_a_machine_without_the_library() -> None:
    def load(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    answers: list[str] = []
    serve(["start"], answers.append, load)
    assert json.loads(answers[0])["error"].startswith("libcuda.so.1: cannot open shared object file")


def test_a_library_that_lacks_a_call() -> None:
    class Old(Library):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"undefined symbol: {name}")

    assert said(["start"], Old()) == [{"error": "undefined symbol: cuInit"}]
