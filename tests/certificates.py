"""Certificates for tests."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """Make a certificate that is its own authority, and its key, in a folder that may be there.

    Args:
        names: Whom it is for, such as `DNS:api.test` and `IP:127.0.0.1`.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", "/CN=test", "-keyout", str(key), "-out", str(certificate)]
    for extension in (
        f"subjectAltName={','.join(names)}",
        "basicConstraints=critical,CA:TRUE",
        "keyUsage=critical,digitalSignature,keyCertSign",
    ):
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
