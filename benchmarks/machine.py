"""What every benchmark has: its command line, what it says of machine and processes, sums of times."""

import argparse
import os
import platform
import resource
import socket
from collections.abc import Callable, Sequence
from pathlib import Path


def machine() -> str:
    """Describe the machine in one line."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"machine: {os.cpu_count()} x {cpu}, {memory_gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def make_parser(name: str, about: str | None, **numbers: tuple[float, str]) -> argparse.ArgumentParser:
    """Make the command line of a benchmark.

    Args:
        name: Its module.
        about: Its docstring.
        numbers: Options for numbers of at least 1, each with its default and what it is; whole where the
            default is.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    for option, (default, what) in numbers.items():
        flag, of_type = f"--{option.replace('_', '-')}", at_least(type(default)(1))
        parser.add_argument(flag, type=of_type, default=default, help=f"{what} (default %(default)s)")
    return parser


def at_least(least: float) -> Callable[[str], float]:
    """Make the type of an option for numbers from `least` on; whole ones where that is."""

    def number(text: str) -> float:
        value = type(least)(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text}; allowed: {least} or more")
        return value

    return number


def spread(values: Sequence[float]) -> str:
    """Write a distribution for people."""
    return f"p50 {percentile(values, 50):.3f} p99 {percentile(values, 99):.3f} worst {max(values):.3f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(percent) // 100) - 1)]


def free_port() -> int:
    """Find a TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far, in seconds, of all its threads."""
    # The name in parentheses may hold anything; user and system time are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """Processor time of all processes that this one has started and that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
