"""Whether a token may ask about a namespace: by a TokenReview and a SubjectAccessReview of the API server.

Tokens are never written anywhere: what is remembered of one is its digest.
"""

import base64
import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from gpupack.teams import AUDIENCE, MEMBER
from kubeapi.bounded import BoundedDict
from kubeapi.client import KubeClient
from kubeapi.errors import UNREADABLE, decode_answer
from kubeapi.objects import AccessReview
from kubeapi.ratelimit import KeyedTokenBuckets, TokenBucket

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

REMEMBERED_S: Final = 10.0
"""How long an answer of the API server is kept: a right that was taken away ends by then."""
MOST_REMEMBERED: Final = 1000
NAMESPACE_BURST, NAMESPACE_REFILL_S = 20, 0.5
"""Reviews for one namespace at once, and seconds for one more: its tokens keep no other namespace out."""
TOTAL_BURST, TOTAL_REFILL_S = 100, 0.05
"""Reviews at once, and seconds for one more: who has no token cannot keep the API server busy."""


class TooManyReviewsError(Exception):
    """More tokens came than are reviewed."""


class _User(msgspec.Struct, omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class _Claims(msgspec.Struct):
    """The claims in a token, not verified yet."""

    aud: list[str] | str = ""
    sub: str = ""


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] = msgspec.field(default_factory=list)
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class MemberReviewer:
    """Asks the API server whose token it is, and whether that user may list the pods of a namespace."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._total = TokenBucket(TOTAL_BURST, TOTAL_REFILL_S, clock)
        self._of_namespaces: KeyedTokenBuckets[str] = KeyedTokenBuckets(
            NAMESPACE_BURST, NAMESPACE_REFILL_S, clock, MOST_REMEMBERED
        )
        self._known: BoundedDict[tuple[bytes, str], tuple[float, bool]] = BoundedDict(MOST_REMEMBERED)

    async def is_member(self, token: str, namespace: str) -> bool:
        """Tell whether the user of a token may list the pods of a namespace.

        Raises:
            TooManyReviewsError: the API server was asked too often.
            KubeApiError: it does not answer.
        """
        if not _names_member(token, namespace):
            return False
        key = hashlib.sha256(token.encode()).digest(), namespace
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        if not (self._of_namespaces.take(namespace) and self._total.take()):
            raise TooManyReviewsError
        user = await self._find_user(token)
        allowed = user is not None and await self._may_list_pods(user, namespace)
        self._known[key] = self._clock() + REMEMBERED_S, allowed
        return allowed

    async def _find_user(self, token: str) -> _User | None:
        """Return the user of a token; None if it is invalid, or was made for another audience."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        answer = await self._client.post(TOKEN_REVIEWS, review)
        status = decode_answer(answer, _decode_token_review, "a TokenReview").status
        # An authenticator that knows no audiences names none.
        return status.user if status.authenticated and AUDIENCE in status.audiences else None

    async def _may_list_pods(self, user: _User, namespace: str) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.username,
                "uid": user.uid,
                "groups": user.groups,
                "extra": user.extra,
                "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "pods"},
            },
        }
        answer = await self._client.post(ACCESS_REVIEWS, review)
        return decode_answer(answer, _decode_access_review, "a SubjectAccessReview").is_allowed


def _names_member(token: str, namespace: str) -> bool:
    """Tell whether a token says that it is of the namespace's members; only the API server can verify it."""
    if not token.isascii():
        return False
    payload = token.partition(".")[2].partition(".")[0]
    try:
        raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        claims = msgspec.json.decode(raw, type=_Claims)
    except (ValueError, *UNREADABLE):
        return False
    audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    return AUDIENCE in audiences and claims.sub == f"system:serviceaccount:{namespace}:{MEMBER}"


_decode_token_review: Final = msgspec.json.Decoder(_TokenReview).decode
_decode_access_review: Final = msgspec.json.Decoder(AccessReview).decode
