"""The console command, also as `python -m gpupack`."""

import sys

from gpupack.signals import end_at_once


def main() -> None:
    """Run the command; a daemon that is still loading can be told to stop like one that serves."""
    if sys.argv[1:2] in (["node"], ["scheduler"]):
        end_at_once()
    from gpupack.cli import main as command  # noqa: PLC0415 - takes a tenth of a second

    command()


if __name__ == "__main__":
    main()
