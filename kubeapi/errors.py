# ruff: noqa: N818  (the names are what happened; "GoneError" says no more)
"""Errors of the kubeapi package, one class for each thing a caller does differently.

KubeApiError
├── ConfigError       no usable kubeconfig or service account
├── Unreachable       no answer: refused, reset, name not found, TLS failure
├── TimedOut          no answer in time; a write may have happened all the same
├── Unauthorized      401
├── Forbidden         403
├── NotFound          404
├── Conflict          409, and 422 for another UID; `cause` says which of them
├── Gone              410, as status or as ERROR event of a watch: list again
├── Invalid           400, 405, 413, 415, 422: the request itself is wrong, or an eviction refused for good
├── TooManyRequests   429: the API server has too much to do
├── BudgetRefused     a PodDisruptionBudget does not allow an eviction now, nearly always 429
├── ServerError       5xx
└── Malformed         an answer that is not what the API promises
"""

import os
import socket
import ssl
from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar

import msgspec

Cause = Literal["stale", "uid", "bound", "gated", "terminating", "exists", "other"]

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoding foreign bytes raises; msgspec lets the last two through."""

MESSAGE_LIMIT = 256
"""Characters of a foreign message that are kept."""


class KubeApiError(Exception):
    """Root of the package's errors.

    Attributes:
        reason: the `reason` of the Kubernetes Status object ("Conflict"), else a word of ours.
        message: what the server said, cut at 256 characters.
        resource: what the request would have listed, as the Status names it ("nodes"); empty if it was for
            one object, or nobody says.
        maybe_done: True when a write may have taken effect although this error came back.
        is_passing: True when the same request may succeed soon: the server, or the way to it, is in trouble.
        retry_after_s: what the server asked to wait, None if it did not say.
    """

    maybe_done: ClassVar[bool] = False
    is_passing: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        reason: str = "",
        resource: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self.message = shorten(message)
        self.status = status
        self.resource = resource
        self.retry_after_s = retry_after_s
        self.reason = reason or type(self).__name__
        super().__init__(self.message)

    @property
    def can_be_repeated(self) -> bool:
        """Return True if nothing was done, and the same write may succeed soon."""
        return self.is_passing and not self.maybe_done


class ConfigError(KubeApiError):
    """No usable kubeconfig, service account or credential plugin."""


class Unreachable(KubeApiError):
    """No answer: refused, reset, unknown host or a TLS failure."""

    is_passing = True

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done  # type: ignore[misc]


class TimedOut(KubeApiError):
    """No answer in time; a write may have happened."""

    maybe_done = True
    is_passing = True


class Unauthorized(KubeApiError):
    """401: credentials missing, wrong or expired."""

    def after_renewal(self) -> "Unauthorized":
        """Make the error of a request that was sent again with other credentials."""
        message = f"{self.message}; credentials that were fetched anew are refused, too"
        return Unauthorized(message, status=self.status, reason=self.reason)


class Forbidden(KubeApiError):
    """403: RBAC or an admission policy says no."""


class NotFound(KubeApiError):
    """404."""


class Conflict(KubeApiError):
    """409, or 422 where a patch names another UID.

    Attributes:
        cause: one of these:

            - "stale": the resourceVersion is not the newest.
            - "uid": another object has that name.
            - "bound": the pod has a node.
            - "gated": the pod has scheduling gates.
            - "terminating": the object is being deleted.
            - "exists": the object that is to be created exists.
            - "other": none of these.
    """

    def __init__(
        self, message: str, *, status: int | None = 409, reason: str = "", cause: Cause | None = None
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.cause: Cause = cause or find_conflict_cause(reason, message)


class Gone(KubeApiError):
    """410: the resourceVersion or continue token is too old."""


class Invalid(KubeApiError):
    """400, 405, 413, 415 or 422, or 500 for a pod that two budgets cover: asking again will not help."""


class TooManyRequests(KubeApiError):
    """429: the API server has too much to do, and has done nothing."""

    is_passing = True


class BudgetRefused(KubeApiError):
    """An eviction that a PodDisruptionBudget does not allow now: 429, or 403 if the budget is in disorder."""


class ServerError(KubeApiError):
    """5xx; a write may have happened (504 is the server's own time-out)."""

    maybe_done = True
    is_passing = True


class Malformed(KubeApiError):
    """An answer that is not JSON, or not of the promised shape."""

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done  # type: ignore[misc]


def decode_answer(body: bytes, decode: Callable[[bytes], T], what: str) -> T:
    """Decode an answer of the API server.

    Args:
        what: names the answer in the error, with its article.

    Raises:
        Malformed: it cannot be read, be it for its JSON, its UTF-8 or its depth.
    """
    try:
        return decode(body)
    except UNREADABLE as error:
        raise Malformed(f"{what} that cannot be read: {error}") from error


def describe_unreachable(error: BaseException) -> str:
    """Say why there was no connection: the system's words where it gave a reason, else the library's.

    aiohttp's own words name Python's calls, and TLS where there is none.
    """
    reason = getattr(error, "os_error", error)
    if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError):
        if isinstance(reason, socket.gaierror) or not reason.errno:
            return reason.strerror or str(error)
        return os.strerror(reason.errno)
    return str(error) or type(error).__name__


class StatusCause(msgspec.Struct):
    """The part of one cause of a Status that is read."""

    reason: str | None = None


class StatusDetails(msgspec.Struct):
    """The part of a Status's details that is read: what the request was for, and why it was refused."""

    kind: str = ""
    name: str = ""
    causes: tuple[StatusCause, ...] | None = None


class ApiStatus(msgspec.Struct):
    """The part of a Kubernetes Status object that is read."""

    kind: str | None = None
    reason: str | None = None
    message: str | None = None
    code: int | None = None
    status: str | None = None
    details: StatusDetails | None = None

    @property
    def resource(self) -> str:
        return "" if self.details is None or self.details.name else self.details.kind

    @property
    def is_of_budget(self) -> bool:
        causes = self.details.causes if self.details is not None else None
        return any(cause.reason == _BUDGET_CAUSE for cause in causes or ())


_BUDGET_CAUSE = "DisruptionBudget"
_SEVERAL_BUDGETS = "This pod has more than one PodDisruptionBudget"
_BY_STATUS: dict[int, type[KubeApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}
_decode_status = msgspec.json.Decoder(ApiStatus).decode


def make_printable(text: str) -> str:
    """Keep other people's control sequences off terminals, Events and logs."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def shorten(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Shorten a foreign text to `limit` characters that can be printed, on one line."""
    flat = make_printable(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def shorten_body(body: bytes) -> str:
    """Show how a foreign answer begins, as `shorten` does."""
    return shorten(body[:MESSAGE_LIMIT].decode(errors="replace"))


def is_gone(error: KubeApiError) -> bool:
    """Return True if an object is not there, or another one has its name; any other refusal may end."""
    return isinstance(error, NotFound) or (isinstance(error, Conflict) and error.cause == "uid")


def find_conflict_cause(reason: str, message: str) -> Cause:
    """Find the cause of a 409, or of a 422 for another UID, which the API server states only in words."""
    text = message.lower()
    if reason == "AlreadyExists":
        return "exists"
    for words, cause in _CAUSES:
        if any(word in text for word in words):
            return cause
    return "other"


_CAUSES: tuple[tuple[tuple[str, ...], Cause], ...] = (
    (("already assigned to node",), "bound"),
    (("non-empty .spec.schedulinggates",), "gated"),
    (("is being deleted",), "terminating"),
    (("uid in precondition", "uid in the precondition", "metadata.uid:"), "uid"),
    (("version in precondition", "version in the precondition", "object has been modified"), "stale"),
)


def make_error(status: int, body: bytes, *, what: str = "", retry_after: str | None = None) -> KubeApiError:
    """Build the error for an HTTP answer that is not 2xx; `what` is the request in words."""
    try:
        answer = _decode_status(body)
    except UNREADABLE:
        answer = ApiStatus(message=body[:MESSAGE_LIMIT].decode(errors="replace"))
    message = answer.message or f"HTTP status {status}"
    reason = answer.reason or ""
    cause = find_conflict_cause(reason, message)
    # The API server takes another UID in a patch for an attempt to change that, and says 422.
    if status == 409 or (status == 422 and cause == "uid"):  # noqa: PLR2004
        return Conflict(_join_message(what, message), status=status, reason=reason, cause=cause)
    is_fault = status >= 500 and _SEVERAL_BUDGETS not in message  # noqa: PLR2004
    kind = _BY_STATUS.get(status, ServerError if is_fault else Invalid)
    return (BudgetRefused if answer.is_of_budget else kind)(
        _join_message(what, message),
        status=status,
        reason=reason,
        resource=answer.resource,
        retry_after_s=_read_seconds(retry_after),
    )


def check_success(body: bytes, *, what: str) -> None:
    """Check that the answer to a Binding is an API server's: a 2xx alone may come from anything on the way.

    Raises:
        Malformed: it is neither; what became of the request is not known.
    """
    try:
        answer = _decode_status(body)
    except UNREADABLE:
        answer = ApiStatus()
    if answer.kind != "Binding" and (answer.kind, answer.status) != ("Status", "Success"):
        shown = shorten_body(body) or "nothing"
        raise Malformed(f"{what}: no API server answers so: {shown}", maybe_done=True)


def _join_message(what: str, message: str) -> str:
    return f"{what}: {message}" if what else message


def _read_seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None
