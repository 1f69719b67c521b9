"""Requests to the API server: bytes in, bytes out, every failure typed.

`kubernetes.aio` decides on address, credentials and TLS (credentials.py). Its models are never loaded:
nothing here turns an answer into objects, callers decode the few fields they read.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import msgspec
from yarl import URL

from kubeapi.credentials import Credentials, RequestCredentials
from kubeapi.errors import (
    UNREADABLE,
    KubeApiError,
    Malformed,
    TimedOut,
    Unauthorized,
    Unreachable,
    check_success,
    describe_unreachable,
    make_error,
)
from kubeapi.object_api import Body
from kubeapi.objects import KubeStruct, ListMeta
from kubeapi.paths import MERGE_PATCH, add_query, make_node_path, make_pod_path
from kubeapi.streams import make_keepalive_socket, read_at_most, split_lines

if TYPE_CHECKING:
    from kubeapi.posting import MakePosts


REQUEST_TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 5.0
CONNECTIONS: Final = 16
"""A burst of requests waits for one of these: a new one each would cost both sides a TLS handshake each.

Whoever has many writes has as many under way: more do not make the API server faster.
"""
WATCH_TIMEOUT_S = 120
"""The server is asked to end a watch after this long. So a quiet one shows that it is alive, and load spreads
over API servers. Bookmarks do not: a freshly started kube-apiserver sent none in 90 s of quiet."""
WATCH_GRACE_S = 15.0
"""A watch that is silent for this much longer than it may last is dead."""


class _PageHead(KubeStruct):
    metadata: ListMeta | None = None


_decode_head: Final = msgspec.json.Decoder(_PageHead).decode


def _read_next(page: bytes) -> str:
    """Read where the next page goes on, empty if nowhere.

    An API server writes that before the items: to go through them for it would cost a fifth of decoding them.
    """
    end = page.find(b',"items":')
    if end > 0:
        with suppress(*UNREADABLE):
            head = _decode_head(page[:end] + b"}").metadata
            if head is not None:
                return head.next
    metadata = _decode_head(page).metadata
    return metadata.next if metadata is not None else ""


class KubeClient:
    """Client of one API server. Make it with `connect`, close it with `close` or `async with`."""

    def __init__(
        self, credentials: Credentials, user_agent: str = "gpupack", posts: "MakePosts | None" = None
    ) -> None:
        self._credentials = credentials
        # Identity: compressing tens of MiB of nodes costs the API server more than the network saves.
        told = {"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"}
        headers = (*told.items(), *credentials.headers)
        self._posts = posts(credentials, headers, CONNECTIONS, CONNECT_TIMEOUT_S) if posts else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=make_keepalive_socket),
            headers=headers,
            read_bufsize=2**18,
        )

    @classmethod
    async def connect(
        cls, kubeconfig: str | None = None, *, user_agent: str = "gpupack", posts: "MakePosts | None" = None
    ) -> Self:
        """Read the configuration; the first request opens the connection.

        Args:
            kubeconfig: path; None means $KUBECONFIG, else ~/.kube/config, else in-cluster.
            user_agent: what the API server's audit log shows.
            posts: `posting.make_post_client` for processes that write often; without it they save memory.

        Raises:
            ConfigError: no usable configuration.
        """
        return cls(await Credentials.load(kubeconfig), user_agent, posts)

    @property
    def server(self) -> str:
        return self._credentials.server

    @property
    def namespace(self) -> str:
        return self._credentials.namespace

    async def close(self) -> None:
        self._credentials.close()
        if self._posts is not None:
            self._posts.close()
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, path: str, *, timeout_s: float = REQUEST_TIMEOUT_S, **params: str | int) -> bytes:
        """GET an object or a list.

        Args:
            path: from the root, "/api/v1/nodes/n1".
            timeout_s: for the whole call, credentials that are fetched and a second try included.
            **params: query, `labelSelector="a=b"`.
        """
        return await self._request("GET", path, params=params, timeout_s=timeout_s)

    async def get_at_most(
        self, path: str, max_bytes: int, *, timeout_s: float = REQUEST_TIMEOUT_S, **params: str | int
    ) -> bytes:
        """GET an answer that comes from another server, through the API server's proxy.

        Raises:
            Malformed: it has more than `max_bytes`; the rest is not read.
        """
        return await self._request("GET", path, params=params, timeout_s=timeout_s, max_bytes=max_bytes)

    async def get_with_headers(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **params: str | int,
    ) -> bytes:
        """GET with further headers, as for a server behind the API server's proxy."""
        return await self._request("GET", path, params=params, timeout_s=timeout_s, headers=headers)

    async def post(
        self, path: str, body: Body, *, timeout_s: float = REQUEST_TIMEOUT_S, **params: str | int
    ) -> bytes:
        return await self._request("POST", path, body=body, params=params, timeout_s=timeout_s)

    async def put(
        self, path: str, body: Body, *, timeout_s: float = REQUEST_TIMEOUT_S, **params: str | int
    ) -> bytes:
        """Replace an object; with a resourceVersion in it, compare and swap."""
        return await self._request("PUT", path, body=body, params=params, timeout_s=timeout_s)

    async def patch(
        self,
        path: str,
        body: Body,
        content_type: str = MERGE_PATCH,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **params: str | int,
    ) -> bytes:
        return await self._request(
            "PATCH", path, body=body, content_type=content_type, params=params, timeout_s=timeout_s
        )

    async def delete(
        self,
        path: str,
        body: Body | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **params: str | int,
    ) -> bytes:
        """Delete an object; `body` may be DeleteOptions with preconditions."""
        return await self._request("DELETE", path, body=body, params=params, timeout_s=timeout_s)

    async def patch_node_status(
        self, name: str, body: Body, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """Merge into nodes/NAME/status; labels and annotations in the same patch count too."""
        return await self.patch(f"{make_node_path(name)}/status", body, timeout_s=timeout_s)

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        annotations: Mapping[str, str | None],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        """Set annotations (None removes one) on exactly the pod with that UID.

        Raises:
            Conflict: cause "uid", another pod has the name now.
            NotFound: no such pod.
        """
        body = {"metadata": {"uid": uid, "annotations": annotations}}
        return await self.patch(make_pod_path(namespace, name), body, timeout_s=timeout_s)

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Bind a pod to a node and annotate it in the same write.

        Args:
            node: the API server does not check that it exists.
            annotations: written to the pod; they overwrite equal keys.
            timeout_s: after this long TimedOut is raised, and the pod may be bound all the same.

        Raises:
            Conflict: `cause` tells "stale", "uid", "bound", "gated" and "terminating" apart.
            Malformed: the answer is not an API server's.
            KubeApiError: see errors.py; where `maybe_done` is set, read the pod again.
        """
        metadata = {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        path = f"{make_pod_path(namespace, name)}/binding"
        check_success(await self.post(path, body, timeout_s=timeout_s), what=f"POST {path}")

    async def pages(
        self, path: str, limit: int = 500, *, timeout_s: float = REQUEST_TIMEOUT_S, **params: str | int
    ) -> AsyncGenerator[bytes]:
        """List in pages of one snapshot, as the server sent them.

        Raises:
            Gone: the snapshot was compacted while we read it; start over, forget the pages so far.
        """
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = await self.get(path, timeout_s=timeout_s, limit=limit, **more, **params)
            try:
                token = _read_next(page)
            except UNREADABLE as error:
                raise Malformed(f"GET {path}: not a list: {error}") from error
            yield page
            if not token:
                return

    async def watch(
        self,
        path: str,
        resource_version: str,
        *,
        timeout_s: int = WATCH_TIMEOUT_S,
        idle_s: float | None = None,
        opened: Callable[[], None] | None = None,
        **params: str | int,
    ) -> AsyncGenerator[bytes]:
        """Follow changes after a version; bookmarks are on.

        Args:
            resource_version: that of the last list, event or bookmark.
            timeout_s: the server ends the watch after this long; that is no error.
            opened: called once when the server has accepted the watch.
            **params: selectors, as in the list.

        Yields:
            A JSON event a line, ERROR events included.

        Raises:
            Gone: the version is too old (as HTTP status; also comes as an ERROR event).
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_s,
            **params,
        }
        silent_s = timeout_s + WATCH_GRACE_S if idle_s is None else idle_s
        proof = await self._credentials.proof()
        try:
            async with self._answer("GET", path, query, proof, within_s=silent_s) as response:
                if opened:
                    opened()
                async for line in split_lines(path, response.content.iter_any()):
                    yield line
        except Unauthorized:
            await self._credentials.renew(proof)
            raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int],
        timeout_s: float,
        body: Body | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        ends = asyncio.get_running_loop().time() + timeout_s

        async def once(proof: RequestCredentials) -> bytes:
            if self._posts is not None and method in self._posts.methods:
                where = method, add_query(path, params)
                return await self._posts.send(
                    *where, data or b"", content_type, proof, within_s=timeout_s, ends=ends
                )
            async with self._answer(
                method,
                path,
                params,
                proof,
                within_s=timeout_s,
                ends=ends,
                data=data,
                content_type=content_type,
                headers=headers,
                max_bytes=max_bytes,
            ) as response:
                if max_bytes is None:
                    return await response.read()
                return await read_at_most(f"{method} {path}", response.content.iter_any(), max_bytes)

        again = False
        while True:
            proof = await self._credentials.within(ends, f"{method} {path}", timeout_s)
            try:
                return await once(proof)
            except Unauthorized as error:
                # Refused before anything was done: with new credentials it is safe to ask again, any verb.
                if again:
                    raise error.after_renewal() from error
                again = await self._credentials.renew(proof, ends)
                if not again:
                    raise

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int],
        proof: RequestCredentials,
        *,
        within_s: float,
        ends: float | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and hand out the answer once its status is 2xx; library errors become ours.

        The answer has to be read by `ends`, on the event loop's clock, `within_s` after the call began. With
        None it has no end, and `within_s` is the longest silence.
        """
        what = f"{method} {path}"
        url = URL(self.server + add_query(path, params), encoded=True)
        sent = {**(headers or {}), **({"Content-Type": content_type} if data is not None else {})}
        if proof.authorization:
            sent["Authorization"] = proof.authorization
        try:
            async with self._session.request(
                method,
                url,
                data=data,
                headers=sent,
                timeout=_make_timeout(within_s, ends),
                allow_redirects=False,
                # A new TLS context needs new connections: the existing ones presented the old certificate.
                ssl=proof.tls or True,
                server_hostname=self._credentials.tls_server_name,
                proxy=self._credentials.proxy,
            ) as response:
                if not 200 <= response.status < 300:  # noqa: PLR2004
                    chunks = response.content.iter_any()
                    raise make_error(
                        response.status,
                        await (
                            response.read() if max_bytes is None else read_at_most(what, chunks, max_bytes)
                        ),
                        what=what,
                        retry_after=response.headers.get("Retry-After"),
                    )
                yield response
        except KubeApiError:
            raise
        except aiohttp.ConnectionTimeoutError as error:
            raise Unreachable(f"{what}: {self.server} did not accept a connection in time") from error
        except TimeoutError as error:
            raise TimedOut(f"{what}: no answer within {within_s:g} s") from error
        except (aiohttp.ClientConnectorError, ssl.SSLCertVerificationError, ValueError) as error:
            # ValueError: what the library finds in addresses and headers before it sends anything.
            raise Unreachable(f"{what}: {self.server}: {describe_unreachable(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{what}: {error or type(error).__name__}", maybe_done=True) from error


def _make_timeout(within_s: float, ends: float | None) -> aiohttp.ClientTimeout:
    """Express the limits of `KubeClient._answer` for aiohttp, which takes 0 for none and may round up."""
    if ends is None:
        return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=within_s)
    left_s = max(ends - asyncio.get_running_loop().time(), 0.001)
    return aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_TIMEOUT_S, ceil_threshold=float("inf"))
