"""The console command, also as `python -m gpupack`."""

import sys

from gpupack.signals import exit_on_signals

INTERRUPTED = 130


def main() -> None:
    """Run the command; one that is still loading can be told to stop like one that serves."""
    try:
        exit_on_signals(sys.argv[1:])
        from gpupack.cli.app import main as command  # noqa: PLC0415 - takes a tenth of a second

        command()
    except KeyboardInterrupt:
        # While it was still loading.
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
