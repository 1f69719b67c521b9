"""A program that uses a card as it is told, line by line; each is answered by a line of JSON.

start            makes a context                     {"total_mib": 81079}
uuid             names the card                      {"uuid": "GPU-..."}
allocate N       has N MiB more                      {"given": true}, or false where there is no memory
multiprocessors  counts those that it may use        {"count": 132}
fault            writes where no memory is           {"error": "cuCtxSynchronize: ... (700)"}
"""

import ctypes
import json
import sys

from deviceplugin.gpus.nvidia.cuda_child import LIBRARY, Cuda, CudaError

_MULTIPROCESSOR_COUNT = 16

# PTX ISA: a store to address 16, which is mapped nowhere.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .u64 %place;
    .reg .u32 %word;
    mov.u64 %place, 16;
    mov.u32 %word, 1;
    st.global.u32 [%place], %word;
    ret;
}
"""


class CudaWithFault(Cuda):
    """The driver, for a program that also makes a mistake."""

    def count_multiprocessors(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSOR_COUNT, 0)
        return count.value

    def fault(self) -> None:
        """Run a kernel that writes where no memory is; the driver reports an XID that is the program's."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, b"fault")
        sizes = [ctypes.c_uint(1)] * 6
        self._call("cuLaunchKernel", kernel, *sizes, ctypes.c_uint(0), None, None, None)
        self._call("cuCtxSynchronize")


def main() -> None:
    """Serve on the standard streams."""
    cuda = CudaWithFault(ctypes.CDLL(LIBRARY))
    for line in sys.stdin:
        word, *rest = line.split()
        said: dict[str, object] = {}
        try:
            if word == "start":
                said["total_mib"] = cuda.start()
            elif word == "uuid":
                said["uuid"] = cuda.name_card()
            elif word == "allocate":
                said["given"] = cuda.allocate(int(rest[0]))
            elif word == "multiprocessors":
                said["count"] = cuda.count_multiprocessors()
            elif word == "fault":
                cuda.fault()
        except CudaError as error:
            said["error"] = str(error)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
