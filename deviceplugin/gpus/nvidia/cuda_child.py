"""A process that uses memory of one card through the CUDA driver, on commands line by line.

`cuda_process` is the other side: it puts this process into a cgroup before the first line. Started as

    CUDA_VISIBLE_DEVICES=<UUID> python -m deviceplugin.gpus.nvidia.cuda_child

it answers each line of its input with one line of JSON:

    start         makes a context                {"total_mib": 81079}
    allocate N    has N MiB more                 {"given": true}, or false where there is no memory
                  whatever fails otherwise       {"error": "cuInit: CUDA_ERROR_NO_DEVICE (100)"}

and ends with its input, so that it never outlives its parent. Nothing of gpupack is imported.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

LIBRARY = "libcuda.so.1"

_MIB = 1 << 20
_OUT_OF_MEMORY = 2


class CudaError(Exception):
    """A call of the driver that failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


class Cuda:
    """The few calls of the CUDA driver API that are needed, with the signatures of CUDA 11.4 and later."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def start(self) -> int:
        """Make a context on the first visible card; return the MiB that the card seems to have here."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // _MIB

    def allocate(self, mib: int) -> bool:
        """Allocate more memory; return False if there is none."""
        place = ctypes.c_void_p()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(mib * _MIB))
        except CudaError as error:
            if error.code == _OUT_OF_MEMORY:
                return False
            raise
        return True

    def name_card(self) -> str:
        """Name the first visible card as NVML does; a MIG instance is named like a card, too."""
        name = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", name, 0)
        return f"GPU-{UUID(bytes=bytes(name))}"

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code, self._text(code))

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return "an error without a name"
        return text.value.decode("ascii", "replace")


def serve(lines: Iterable[str], answer: Callable[[str], None], load: Callable[[str], Any]) -> None:
    """Do what the lines say until there are no more."""
    cuda: Cuda | None = None
    for line in lines:
        word, *rest = line.split() or [""]
        said: dict[str, Any]
        try:
            if word == "start":
                cuda = Cuda(load(LIBRARY))
                said = {"total_mib": cuda.start()}
            elif word == "allocate" and cuda is not None:
                said = {"given": cuda.allocate(int(rest[0]))}
            else:
                said = {"error": f"{line.strip()[:64]!r}; allowed: start, then allocate N"}
        except (CudaError, OSError, AttributeError, ValueError, IndexError) as error:
            said = {"error": str(error)}
        answer(json.dumps(said))


def main() -> None:

    def answer(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    serve(sys.stdin, answer, ctypes.CDLL)


if __name__ == "__main__":
    main()
