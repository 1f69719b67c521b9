"""A member's side: a token for the namespace's ServiceAccount, and a question through the API server's proxy.

The member's own credentials go to the API server alone. What the answering process gets is a token of ten
minutes that the API server itself refuses, because it is made for another audience.
"""

from typing import Any, Final

import msgspec

from allocator.names import SYSTEM_NAMESPACE
from gpupack.errors import InputError
from gpupack.teams import AUDIENCE, MEMBER, PORT, SERVICE, TOKEN_HEADER
from kubeapi.client import KubeClient
from kubeapi.errors import UNREADABLE, Forbidden, Invalid, KubeApiError, NotFound, ServerError
from kubeapi.paths import make_collection_path, make_service_path

TOKEN_S: Final = 600
"""Lifetime of a token, the shortest that the API server gives."""
_SIGNS_OF_PLAIN_HTTP: Final = (
    "tls: first record does not look like a TLS handshake",
    "server gave HTTP response to HTTPS client",
)
"""What the API server says of a port that speaks plain HTTP, as Go's HTTP client words it."""
_SEE: Final = "docs/teams.md of gpupack says what your administrator can set up"


class _TokenStatus(msgspec.Struct):
    token: str


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


async def ask_as_member(
    client: KubeClient, token: str, namespace: str, question: str, query: dict[str, str | int]
) -> bytes:
    """Ask as a member of a namespace.

    Returns:
        The answer, as `-o json` writes it.

    Raises:
        InputError: something is wrong with the question.
        KubeApiError: there is no such Service, or no right to ask.
    """
    headers = {TOKEN_HEADER: token}
    whole: dict[str, Any] = {"namespace": namespace, **query}

    async def ask(scheme: str) -> bytes:
        path = make_service_path(SYSTEM_NAMESPACE, SERVICE, question, PORT, scheme)
        return await client.get_with_headers(path, headers, **whole)

    try:
        try:
            return await ask("https:")
        except ServerError as error:
            if not _speaks_no_tls(error):
                raise
            return await ask("")
    except Invalid as error:
        raise InputError(error.message.rpartition(f"/proxy/{question}: ")[2]) from error
    except (Forbidden, NotFound, ServerError) as error:
        raise type(error)(
            f"you may not list nodes, and the Service {SERVICE} in namespace {SYSTEM_NAMESPACE} did not "
            f"answer for namespace {namespace}: {_short(error)}; {_SEE}",
            status=error.status,
        ) from error


def _speaks_no_tls(error: ServerError) -> bool:
    return any(sign in error.message for sign in _SIGNS_OF_PLAIN_HTTP)


async def make_member_token(client: KubeClient, namespace: str) -> str:
    """Have the API server make a token for the ServiceAccount of a namespace's members.

    Raises:
        InputError: the answer is no token.
        Forbidden: the user is no member.
        NotFound: the namespace has no such ServiceAccount.
        KubeApiError: no server.
    """
    path = f"{make_collection_path(namespace, 'serviceaccounts')}/{MEMBER}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_S},
    }
    try:
        return msgspec.json.decode(await client.post(path, body), type=_TokenRequest).status.token
    except UNREADABLE as error:
        raise InputError(f"{client.server} answers a TokenRequest with something else: {error}") from error


def explain_missing_rights(namespace: str, error: Forbidden | NotFound) -> str:
    """Say what an administrator has to add where a user gets no member's token, and what helps meanwhile."""
    if isinstance(error, NotFound):
        missing = (
            f"namespace {namespace} has no ServiceAccount {MEMBER}, so gpupack answers none of its members"
        )
    else:
        missing = (
            f"nor may you make tokens for ServiceAccount {MEMBER} in namespace {namespace}, which is how "
            "gpupack knows its members"
        )
    create, account = f"kubectl -n {namespace} create", f"--serviceaccount={namespace}:{MEMBER}"
    ask = f"gpupack-ask-{namespace}"
    return "\n".join(
        (
            missing,
            "an administrator adds what of this is missing, see docs/teams.md#set-up:",
            f"  {create} serviceaccount {MEMBER}",
            f"  {create} rolebinding {MEMBER}-account --clusterrole={MEMBER}-account {account}",
            f"  {create} rolebinding {MEMBER} --clusterrole={MEMBER} --group=TEAM",
            f"  kubectl -n {SYSTEM_NAMESPACE} create rolebinding {ask} --role=gpupack-ask --group=TEAM",
            f"until then the Events of a pod say why it waits: kubectl -n {namespace} describe pod POD",
        )
    )


def _short(error: KubeApiError) -> str:
    """Leave out the path of a request."""
    return error.message.partition(": ")[2] or error.message
