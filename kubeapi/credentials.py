"""Address and credentials of the API server: read by the `kubernetes` package, kept fresh here."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kubeapi.errors import ConfigError
from kubeapi.impersonation import Headers, make_impersonation_headers
from kubeapi.loading import import_without_models
from kubeapi.urls import check_url, find_proxy, is_host

with import_without_models():
    from kubernetes.aio import config as k8s_config
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

if TYPE_CHECKING:
    import ssl

REFRESH_S = 60.0
"""How often token files, certificate files and expiring credentials are checked; a 401 checks at once."""

HOME_CONFIG: Final = "~/.kube/config"

_TEXTS: Final = (
    "token",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
)

FORCED_GAP_S = 5.0
"""Shortest time between two refreshes caused by 401s."""


class RequestCredentials(NamedTuple):
    """What identifies the sender of a request: a header, and the TLS context with a client's certificate."""

    authorization: str | None
    tls: "ssl.SSLContext | None"


class Credentials:
    """Address, TLS context and the current bearer token of one API server.

    Attributes:
        tls: context for https, None for http; another object when certificates have changed.
        proxy: proxy URL of the kubeconfig, else of the environment, None for a direct connection.
        headers: headers of every request beside Authorization: as whom the kubeconfig's user acts.
    """

    def __init__(
        self,
        configuration: Configuration,
        loader: object,
        clock: Callable[[], float],
        headers: Headers,
    ) -> None:
        self._configuration = configuration
        self._loader = loader
        self._clock = clock
        self._loaded_at = self._forced_at = clock()
        self._reloading: asyncio.Task[None] | None = None
        self.server: str = configuration.host.rstrip("/")
        self.tls: ssl.SSLContext | None = None
        self._tls_made_of: tuple[bytes, ...] = ()
        self._follow_certificates()
        self.tls_server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy or find_proxy(self.server, os.environ)
        self.headers = headers

    @classmethod
    async def load(
        cls,
        kubeconfig: str | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        context: str | None = None,
    ) -> "Credentials":
        """Read a kubeconfig, or the service account's files.

        Raises:
            ConfigError: nothing usable there; the message names the file and the value.
        """
        configuration = Configuration()
        named = kubeconfig or os.environ.get("KUBECONFIG") or ""
        in_cluster = context is None and os.environ.get("KUBERNETES_SERVICE_HOST")
        if not named and in_cluster and not _is_file(HOME_CONFIG):
            source, loader = "service account", None
            _load_in_cluster(configuration)
        else:
            source = f"kubeconfig {named or HOME_CONFIG}"
            loader = await _load_kubeconfig(source, named or HOME_CONFIG, configuration, context)
        credentials = cls(configuration, loader, clock, make_impersonation_headers(source, _get_user(loader)))
        try:
            await credentials.authorization()
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
        return credentials

    @property
    def namespace(self) -> str:
        """The namespace that the kubeconfig's context names, empty if it names none."""
        if not isinstance(self._loader, KubeConfigLoader):
            return ""
        context: Any = self._loader.current_context.get("context") or {}
        return str(context.get("namespace") or "")

    async def authorization(self) -> str | None:
        """Return the Authorization header's value, None if none is needed; re-reads what may have changed.

        Raises:
            ConfigError: a file has vanished or cannot be used, or no header can carry the token; what was
                read before stays in use.
        """
        if self._clock() - self._loaded_at >= REFRESH_S and self._renewable():
            await self._reload()
        return await self._token()

    async def _token(self) -> str | None:
        try:
            value: str | None = await self._configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
        except (k8s_config.ConfigException, OSError, ValueError) as error:
            raise ConfigError(f"service account token cannot be read: {error}") from error
        return clean_token(value) if value else None

    async def proof(self) -> RequestCredentials:
        """Return the credentials of the next request."""
        return RequestCredentials(await self.authorization(), self.tls)

    async def within(self, ends: float, what: str, within_s: float) -> RequestCredentials:
        """Return the credentials of the next request; raise once `ends` has come on the event loop's clock.

        Raises:
            ConfigError: as of `authorization`, or not in time.
        """
        try:
            async with asyncio.timeout_at(ends):
                return await self.proof()
        except TimeoutError as error:
            raise ConfigError(f"{what}: no credentials within {within_s:g} s") from error

    async def renew(self, refused: RequestCredentials, ends: float | None = None) -> bool:
        """After a 401: fetch credentials again, once for all requests that were refused with the same ones.

        Args:
            ends: When to wait no longer, on the event loop's clock; None waits for ever.

        Returns:
            True when token or certificates differ now, so that asking once more makes sense.

        Raises:
            ConfigError: as of `authorization`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                if not await self._differ(refused) and self._reloading is not None:
                    # For another request, or because it was time: that asks no plugin before its expiry.
                    await asyncio.shield(self._reloading)
                if not await self._differ(refused) and self._clock() - self._forced_at >= FORCED_GAP_S:
                    await self._reload(forced=True)
                return await self._differ(refused)
        return False

    async def _differ(self, refused: RequestCredentials) -> bool:
        return RequestCredentials(await self._token(), self.tls) != refused

    def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()

    def _renewable(self) -> bool:
        """Return False if a plugin's credentials carry no expiry: as in kubectl, only a 401 renews them."""
        return _get_exec_command(self._loader) is None or hasattr(self._loader, "exec_plugin_expiry")

    async def _reload(self, *, forced: bool = False) -> None:
        """Load again in a separate task, so that a cancelled request does not cancel it for others.

        Args:
            forced: The reason is a 401, so a plugin's credentials are not valid until their expiry.
        """
        self._loaded_at = self._clock()
        self._reloading = asyncio.get_running_loop().create_task(self._load_again(forced))
        self._reloading.add_done_callback(self._reloaded)
        await asyncio.shield(self._reloading)

    def _reloaded(self, task: asyncio.Task[None]) -> None:
        self._reloading = None
        if not task.cancelled():
            task.exception()  # whoever waits has it, too; perhaps nobody does any more

    async def _load_again(self, forced: bool) -> None:
        if forced:
            self._forced_at = self._clock()
            if hasattr(self._loader, "exec_plugin_expiry"):
                del self._loader.exec_plugin_expiry  # else the loader keeps a refused token until its expiry
        try:
            if self._loader is None:
                _load_in_cluster(self._configuration)
            else:
                await self._loader.load_and_set(self._configuration)  # type: ignore[attr-defined]
        except Exception as error:  # the old token may still do
            raise ConfigError(
                f"credentials cannot be read again: {str(error) or type(error).__name__}"
            ) from error
        finally:
            if forced:
                self._forced_at = self._clock()
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


class _Merger(KubeConfigMerger):  # type: ignore[misc]
    """Merges kubeconfigs as kubectl does, also in the two cases where the library differs.

    The first file that names a current context decides, and an empty file adds nothing.
    """

    def load_config(self, path: str) -> None:
        lines = (line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines())
        if not any(line and line != "---" and not line.startswith("#") for line in lines):
            return
        before: Any = self.config_merged
        current = before.value.get("current-context") if before else None
        super().load_config(path)
        if current:
            before.value["current-context"] = current


async def _load_kubeconfig(
    source: str, named: str, configuration: Configuration, context: str | None
) -> KubeConfigLoader:
    """Read the files `named` into `configuration`."""
    paths = _join_existing_files(named)
    try:
        config = _Merger(paths).config
        _check_named(source, config, context)
        loader = KubeConfigLoader(config, active_context=context, config_base_path=None)
        _check_context(source, loader)
        await loader.load_and_set(configuration)
    except ConfigError:
        raise
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"{source} cannot be used; allowed: YAML with lists of clusters, users, contexts ({error})"
        ) from error
    except Exception as error:  # the loader lets YAMLError and more through
        raise ConfigError(f"{source} cannot be used: {error or type(error).__name__}") from error
    plugin = _get_exec_command(loader)
    if plugin and not (configuration.api_key.get("BearerToken") or configuration.cert_file):
        raise ConfigError(f"{source}: credential plugin {plugin!r} gave neither token nor certificate")
    return loader


def _check_named(source: str, config: Any, context: str | None) -> None:
    """Check that there is a context of the name that was asked for."""
    if config is None:
        raise ConfigError(f"{source} cannot be used: it is empty")
    if context is None:
        return
    known = [entry["name"] for entry in config.value["contexts"]]
    if context not in known:
        names = ", ".join(map(repr, sorted(known))) or "none"
        raise ConfigError(f"context {context!r}; allowed: {names}, of {source}")


def _check_context(source: str, loader: KubeConfigLoader) -> None:
    """Check values that the loader accepts unchecked."""
    cluster: Any = loader._cluster  # noqa: SLF001 (the loader keeps it to itself)
    server, proxy, name = (cluster.safe_get(key) for key in ("server", "proxy-url", "tls-server-name"))
    check_url(f"{source}: server", server)
    if proxy is not None:
        check_url(f"{source}: proxy-url", proxy)
    if name is not None and not is_host(name):
        raise ConfigError(f"{source}: tls-server-name {name!r}; allowed: a host name")
    insecure = cluster.safe_get("insecure-skip-tls-verify")
    if insecure is not None and not isinstance(insecure, bool):
        # The loader would take any text for true, also "false".
        raise ConfigError(f"{source}: insecure-skip-tls-verify {insecure!r}; allowed: true, false")
    _check_user(source, _get_user(loader))
    if server.startswith("https") and loader._user is None:  # noqa: SLF001 (as above)
        raise ConfigError(
            f"{source}: server {server!r} and a context without user: "
            "allowed with https is a user that the file has"
        )


def _check_user(source: str, user: dict[str, Any]) -> None:
    """Check values of a user that the loader accepts unchecked; errors show no secret."""
    for key in _TEXTS:
        value = user.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{source}: {key} is of type {type(value).__name__}; allowed: text")
    plugin = user.get("exec")
    if plugin is not None and not (isinstance(plugin, dict) and isinstance(plugin.get("command"), str)):
        raise ConfigError(f"{source}: exec has no command; allowed: a map with one")


def _join_existing_files(named: str) -> str:
    paths = [part for part in named.split(os.pathsep) if part]
    if not any(_is_file(path) for path in paths):
        raise ConfigError(f"kubeconfig {named} is not a file; name one with --kubeconfig or $KUBECONFIG")
    return os.pathsep.join(str(Path(path).expanduser()) for path in paths)


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except OSError:  # nobody may look there
        return False


def _load_in_cluster(configuration: Configuration) -> None:
    try:
        k8s_config.load_incluster_config(client_configuration=configuration)
        check_url("server of $KUBERNETES_SERVICE_HOST and _PORT", configuration.host)
    except ConfigError:
        raise
    except (k8s_config.ConfigException, OSError, ValueError) as error:
        raise ConfigError(f"no usable service account in this pod: {error}") from error


def _get_user(loader: object) -> dict[str, Any]:
    user = getattr(loader, "_user", None)
    return {} if user is None else user.value


def _get_exec_command(loader: object) -> str | None:
    plugin = _get_user(loader).get("exec")
    return None if plugin is None else str(plugin["command"])


def clean_token(text: str) -> str:
    """Take the blanks around a bearer token away.

    Raises:
        ConfigError: no header can carry it. The text does not show it: it is secret.
    """
    token = text.strip()
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "the token has a line break or another character that no header can carry; "
            "allowed: printable ASCII"
        )
    return token
