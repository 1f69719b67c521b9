"""The TLS side of a server, from files that are renewed while it runs."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

LOOK_S: Final = 60.0
"""How often the files are checked."""

log = structlog.get_logger(__name__)


class ServerTls:
    """A TLS context that uses the newest valid contents of the files.

    With `client_ca` a client may present a certificate, which must be issued by one of these authorities.

    Args:
        client_ca: PEM file, None for no client certificates.

    Raises:
        OSError: the files cannot be used.
    """

    def __init__(self, certificate: str, key: str, client_ca: str | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._seen = self._contents()
        self._newest = self._make()
        self.context = self._newest
        self.context.sni_callback = self._on_hello

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        while True:
            await sleep(LOOK_S)
            self.reload()

    def reload(self) -> None:
        """Load the files again if they have changed; unusable files change nothing."""
        contents = self._contents()
        if contents == self._seen:
            return
        self._seen = contents
        try:
            self._newest = self._make()
        except OSError as error:
            log.warning(
                "changed TLS files cannot be used, the certificate of before stays",
                certificate=self._certificate,
                error=str(error),
            )
        else:
            log.info("TLS files read again", certificate=self._certificate)

    def _on_hello(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Switch a new connection to the newest context, with or without a server name."""
        connection.context = self._newest

    def _contents(self) -> list[bytes | None]:
        files = (self._certificate, self._key, self._client_ca)
        return [None if file is None else _content(file) for file in files]

    def _make(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def open_tls(
    certificate: str | None, key: str | None, client_ca: str | None, make_error: Callable[[str], Exception]
) -> ServerTls | None:
    """Make the TLS side of a server; None if no certificate is named, so that it speaks plain HTTP.

    Raises:
        Exception: by `make_error`: the files cannot be used.
    """
    if certificate is None or key is None:
        return None
    try:
        return ServerTls(certificate, key, client_ca)
    except OSError as error:
        authority = f", client CA {client_ca!r}" if client_ca else ""
        raise make_error(
            f"TLS certificate {certificate!r}, key {key!r}{authority} cannot be used: "
            f"{error.strerror or error}; allowed: PEM files, certificate and key of one pair"
        ) from error


def _content(file: str) -> bytes | None:
    try:
        return Path(file).read_bytes()
    except OSError:
        return None
