"""Where the API server is and how to prove who we are: read by the `kubernetes` package, kept fresh here."""

import ipaddress
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kubernetes.aio import config as k8s_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from kubeapi.errors import ConfigError

if TYPE_CHECKING:
    import ssl

REFRESH_S = 60.0
"""Token files, certificate files and expiring credentials are looked at this often; a 401 looks at once."""

FORCED_GAP_S = 5.0
"""Shortest time between two refreshes caused by 401s."""


class Credentials:
    """Address, TLS context and the current bearer token of one API server.

    Attributes:
        server: URL without a trailing slash.
        tls: context for https, None for http; another object when certificates have changed.
        tls_server_name: name expected in the server's certificate, None for the host's own.
        proxy: proxy URL from the kubeconfig, None to let the environment decide.
    """

    def __init__(self, configuration: Configuration, loader: object, clock: Callable[[], float]) -> None:
        self._configuration = configuration
        self._loader = loader
        self._clock = clock
        self._loaded_at = clock()
        self.server: str = configuration.host.rstrip("/")
        self.tls: ssl.SSLContext | None = None
        self._tls_made_of: tuple[bytes, ...] = ()
        self._follow_certificates()
        self.tls_server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy

    @classmethod
    async def load(cls, kubeconfig: str | None, clock: Callable[[], float] = time.monotonic) -> "Credentials":
        """Read the service account's files, or a kubeconfig.

        Args:
            kubeconfig: path; None means in-cluster where the environment says so, else $KUBECONFIG, else
                ~/.kube/config.
            clock: monotonic seconds.

        Raises:
            ConfigError: nothing usable there; the message names the file.
        """
        configuration = Configuration()
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            _load_in_cluster(configuration)
            return cls(configuration, None, clock)
        named = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        paths = _existing(named)
        try:
            loader = await k8s_config.load_kube_config(  # type: ignore[no-untyped-call]
                paths, client_configuration=configuration, persist_config=False
            )
        except Exception as error:  # the loader lets AttributeError, TypeError, YAMLError and more through
            raise ConfigError(
                f"kubeconfig {named} cannot be used: {error or type(error).__name__}"
            ) from error
        plugin = _exec_command(loader)
        if plugin and not (configuration.api_key.get("BearerToken") or configuration.cert_file):
            raise ConfigError(
                f"kubeconfig {named}: credential plugin {plugin!r} gave neither token nor certificate"
            )
        return cls(configuration, loader, clock)

    @property
    def trust_env(self) -> bool:
        """Whether proxy variables of the environment count; they never do for this machine itself."""
        host = urlsplit(self.server).hostname or ""
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"

    async def authorization(self) -> str | None:
        """Value of the Authorization header, None where none is needed; re-reads what may have changed.

        Raises:
            ConfigError: a file has vanished or cannot be used; what was read before stays in use.
        """
        if self._clock() - self._loaded_at >= REFRESH_S and self._renewable():
            await self._reload()
        try:
            value: str | None = await self._configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
        except (k8s_config.ConfigException, OSError) as error:
            raise ConfigError(f"service account token cannot be read: {error}") from error
        return value.strip() if value else None

    async def renew(self) -> bool:
        """After a 401: fetch credentials again.

        Returns:
            True when token or certificates differ now, so that asking once more makes sense.
        """
        if self._clock() - self._loaded_at < FORCED_GAP_S:
            return False
        token, tls = self._configuration.api_key.get("BearerToken"), self.tls
        if hasattr(self._loader, "exec_plugin_expiry"):
            del self._loader.exec_plugin_expiry  # else the loader keeps a refused token until its expiry
        await self._reload()
        return self.tls is not tls or bool(self._configuration.api_key.get("BearerToken") != token)

    def _renewable(self) -> bool:
        """A plugin whose credentials carry no expiry is asked again after a 401 only, as kubectl does."""
        return _exec_command(self._loader) is None or hasattr(self._loader, "exec_plugin_expiry")

    async def _reload(self) -> None:
        self._loaded_at = self._clock()
        try:
            if self._loader is None:
                _load_in_cluster(self._configuration)
            else:
                await self._loader.load_and_set(self._configuration)  # type: ignore[attr-defined]
        except Exception as error:  # as above; the old token may still do
            raise ConfigError(
                f"credentials cannot be read again: {str(error) or type(error).__name__}"
            ) from error
        self._follow_certificates()

    def _follow_certificates(self) -> None:
        """Make the TLS context, and another one when its files have other bytes than at the last time.

        Raises:
            ConfigError: files that cannot be used; the context stays as it was.
        """
        if not self.server.startswith("https"):
            return
        files = (
            self._configuration.ssl_ca_cert,
            self._configuration.cert_file,
            self._configuration.key_file,
        )
        try:
            made_of = tuple(Path(file).read_bytes() if file else b"" for file in files)
            if self.tls is None or made_of != self._tls_made_of:
                self.tls = RESTClientObject(self._configuration).ssl_context
                self._tls_made_of = made_of
        except OSError as error:
            raise ConfigError(f"TLS files for {self.server} cannot be used: {error}") from error


def _existing(named: str) -> str:
    paths = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    if not any(path.is_file() for path in paths):
        raise ConfigError(f"kubeconfig {named} is not a file; name one with --kubeconfig or $KUBECONFIG")
    return os.pathsep.join(str(path) for path in paths)


def _load_in_cluster(configuration: Configuration) -> None:
    try:
        k8s_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (k8s_config.ConfigException, OSError) as error:
        raise ConfigError(f"no usable service account in this pod: {error}") from error


def _exec_command(loader: object) -> str | None:
    """Command of the kubeconfig's credential plugin, None where there is none."""
    user = getattr(loader, "_user", None)
    if user is None or "exec" not in user:
        return None
    return str(user["exec"].safe_get("command"))
