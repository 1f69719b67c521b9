"""Finds what the kernel lets this process do beyond what is its own."""

from pathlib import Path
from typing import Final

CAP_SYS_ADMIN: Final = 21
"""Its number in the kernel's linux/capability.h."""

_EFFECTIVE: Final = "CapEff:"


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Return True where the capability is effective; False where that cannot be read.

    Args:
        number: the kernel's.
        status: of a process, as in proc(5).
    """
    try:
        lines = status.read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    found = [line.removeprefix(_EFFECTIVE).strip() for line in lines if line.startswith(_EFFECTIVE)]
    try:
        return bool(int(found[0], 16) >> number & 1)
    except (IndexError, ValueError):
        return False
