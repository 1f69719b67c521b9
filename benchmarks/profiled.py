"""What each library costs in a process of gpupack: `gpupack` under cProfile, which adds times up by library.

`python -m benchmarks.throughput --profile FILE` runs the extender so. FILE then has seconds by
library, without those of the start. cProfile makes calls of Python functions dearer: shares count,
not seconds. A function of C counts for the library that calls it, but for those of `OF_C`.
"""

import cProfile
import os
import pstats
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

from gpupack.__main__ import main

FILE: Final = "GPUPACK_PROFILE"
"""Variable with the name of the file."""

STARTS_S: Final = 6.0
"""What a process does so long after it began is no matter."""

WRITES_EVERY_S: Final = 2.0
OF_C: Final = ("msgspec", "numpy", "_ssl", "orjson")
OURS: Final = "gpupack itself"


def name_library(file: str, function: str) -> str:
    """Name the library of a function; empty for one of C that no library is named of."""
    if file == "~":
        return next((name for name in OF_C if name in function), "")
    found = re.search(r"site-packages/([^/]+)", file)
    if found:
        return found[1].removesuffix(".py")
    if re.search(r"/(kubeapi|scheduler_plugin|allocator|gpupack)/", file):
        return OURS
    found = re.search(r"python3\.\d+/([^/]+)", file)
    return found[1].removesuffix(".py") if found else "generated code"


def sum_by_library(stats: pstats.Stats) -> Counter[str]:
    """Add up seconds by library."""
    found: Counter[str] = Counter()
    for (file, _, function), (_, _, own_s, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        name = name_library(file, function)
        if name:
            found[name] += own_s
            continue
        for (caller_file, _, caller), (_, _, s, _) in callers.items():
            found[name_library(caller_file, caller) or "other C"] += s
    return found


def write_table(profile: cProfile.Profile, file: Path) -> None:
    """Write shares by library, the dearest first."""
    seconds = sum_by_library(pstats.Stats(profile))
    total = sum(seconds.values())
    lines = [
        f"{name:24} {s / total:6.1%} {s:8.3f} s" for name, s in seconds.most_common() if s / total > 1e-3
    ]
    file.write_text("\n".join([f"{'all':24} {1:6.1%} {total:8.3f} s", *lines, ""]))


def profile_main() -> None:
    """Run `gpupack` with the arguments of this process."""
    profile = cProfile.Profile(time.process_time)
    file = Path(os.environ[FILE])

    def look(_signal: int, _frame: object) -> None:
        profile.disable()
        if profile.getstats():
            write_table(profile, file)
        profile.enable()

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, STARTS_S, WRITES_EVERY_S)
    main()


if __name__ == "__main__":
    profile_main()
