"""The server's certificates, and what happens when their files change."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
import structlog

from kubeapi.tls import LOOK_S, ServerTls
from tests.certificates import make_certificate

NAMES = ("DNS:extender.test", "IP:127.0.0.1")


class Files:
    """Certificate, key and client authority as a Secret is mounted, and two pairs to put there."""

    def __init__(self, folder: Path) -> None:
        self.old = make_certificate(folder / "old", *NAMES)
        self.new = make_certificate(folder / "new", *NAMES)
        self.certificate, self.key, self.authority = (folder / name for name in ("crt", "key", "ca"))
        self.put(self.old)

    def put(self, pair: tuple[Path, Path]) -> None:
        shutil.copy(pair[0], self.certificate)
        shutil.copy(pair[1], self.key)
        shutil.copy(pair[0], self.authority)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def greet(
    tls: ServerTls, trusted: Path, name: str = "extender.test", shown: tuple[Path, Path] | None = None
) -> ssl.SSLObject:
    """Shake hands in memory; returns the server's side.

    Raises:
        SSLError: one of the two does not believe the other.
    """
    context = ssl.create_default_context(cafile=str(trusted))
    if shown is not None:
        context.load_cert_chain(*shown)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return server


def test_the_files_of_the_start_are_used(files: Files) -> None:
    tls = ServerTls(str(files.certificate), str(files.key))
    greet(tls, files.old[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tls, files.new[0])


@pytest.mark.parametrize("name", ["extender.test", "127.0.0.1"])
def test_a_renewed_certificate_is_shown_to_new_connections(files: Files, name: str) -> None:
    tls = ServerTls(str(files.certificate), str(files.key))
    files.put(files.new)
    tls.reload()
    greet(tls, files.new[0], name)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tls, files.old[0], name)


def test_a_renewed_authority_replaces_the_one_of_before(files: Files) -> None:
    tls = ServerTls(str(files.certificate), str(files.key), str(files.authority))
    assert greet(tls, files.old[0], shown=files.old).getpeercert()
    assert not greet(tls, files.old[0]).getpeercert()
    files.put(files.new)
    tls.reload()
    assert greet(tls, files.new[0], shown=files.new).getpeercert()
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tls, files.new[0], shown=files.old)


@pytest.mark.parametrize("what", ["rubbish", "another's key", "nothing"])
def test_files_that_cannot_be_used_change_nothing_and_are_told_once(files: Files, what: str) -> None:
    tls = ServerTls(str(files.certificate), str(files.key))
    if what == "rubbish":
        files.certificate.write_text("rubbish")
    elif what == "another's key":
        shutil.copy(files.new[1], files.key)
    else:
        files.key.unlink()
    with structlog.testing.capture_logs() as logs:
        tls.reload()
        tls.reload()
        greet(tls, files.old[0])
        files.put(files.new)
        tls.reload()
        greet(tls, files.new[0])
    assert [(line["log_level"], line["certificate"]) for line in logs] == [
        ("warning", str(files.certificate)),
        ("info", str(files.certificate)),
    ]


async def test_the_files_are_looked_at_again_and_again(files: Files) -> None:
    tls = ServerTls(str(files.certificate), str(files.key))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError
        files.put(files.new)

    with pytest.raises(asyncio.CancelledError):
        await tls.run(sleep)
    assert slept == [LOOK_S] * 3
    greet(tls, files.new[0])
