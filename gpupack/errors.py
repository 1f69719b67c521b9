"""Errors of the command line.

GpupackError
└── InputError   a file or an answer that a person gave us and that is not what the command reads
"""


class GpupackError(Exception):
    """Root of the package's errors; its message is the one line that the user sees."""


class InputError(GpupackError):
    """Input that is not what the command reads; the message says what it reads."""
