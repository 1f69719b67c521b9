"""The command line in the process of the test."""

import io
import sys

import pytest

from gpupack.cli.app import main


def in_process(monkeypatch, capsys, *first):
    """A function that runs `gpupack` in this process; it returns the exit status, stdout and stderr.

    Args:
        monkeypatch: of the test.
        capsys: of the test.
        first: arguments that stand before those of every call.
    """

    def command(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["gpupack", *first, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_of:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return exit_of.value.code or 0, out, err

    return command
