import msgspec
import pytest

from kubeapi import errors
from kubeapi.errors import make_error


def status(reason: str, message: str) -> bytes:
    return msgspec.json.encode({"kind": "Status", "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("code", "kind", "maybe_done"),
    [
        (400, errors.Invalid, False),
        (401, errors.Unauthorized, False),
        (403, errors.Forbidden, False),
        (404, errors.NotFound, False),
        (405, errors.Invalid, False),
        (409, errors.Conflict, False),
        (410, errors.Gone, False),
        (413, errors.Invalid, False),
        (422, errors.Invalid, False),
        (429, errors.TooManyRequests, False),
        (500, errors.ServerError, True),
        (504, errors.ServerError, True),
    ],
)
def test_each_status_has_its_class(code, kind, maybe_done) -> None:
    error = make_error(code, status("R", "m"), what="GET /x")
    assert type(error) is kind
    assert (error.status, error.reason, error.message, error.maybe_done) == (
        code,
        "R",
        "GET /x: m",
        maybe_done,
    )
    assert isinstance(error, errors.KubeApiError)


STORAGE = (
    'Operation cannot be fulfilled on pods "p": StorageError: invalid object, Code: 4, '
    "Key: /registry/pods/d/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
)


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("AlreadyExists", 'pods "p" already exists', "exists"),
        ("Conflict", f"{STORAGE}UID in precondition: a, UID in object meta: b", "uid"),
        (
            "Conflict",
            f"{STORAGE}ResourceVersion in precondition: 1, ResourceVersion in object meta: 2",
            "stale",
        ),
        ("Conflict", "the object has been modified; please apply your changes", "stale"),
        ("Conflict", 'pod p is already assigned to node "n"', "bound"),
        ("Conflict", "pod p has non-empty .spec.schedulingGates", "gated"),
        ("Conflict", "pod p is being deleted, cannot be assigned to a host", "terminating"),
        ("Conflict", "the UID in the precondition (a) does not match the UID in record (b)", "uid"),
        ("Conflict", "the ResourceVersion in the precondition (1) does not match", "stale"),
        ("Conflict", "something new", "other"),
    ],
)
def test_conflicts_are_told_apart(reason, message, cause) -> None:
    error = make_error(409, status(reason, message))
    assert isinstance(error, errors.Conflict)
    assert error.cause == cause


def test_another_uid_in_a_patch_is_a_conflict_and_what_else_is_invalid_is_not() -> None:
    error = make_error(422, status("Invalid", 'Pod "p" is invalid: metadata.uid: Invalid value: "u1"'))
    assert isinstance(error, errors.Conflict)
    assert (error.cause, error.status) == ("uid", 422)
    other = make_error(
        422, status("Invalid", 'Pod "p" is invalid: status.x: Invalid value: "is being deleted"')
    )
    assert isinstance(other, errors.Invalid)


@pytest.mark.parametrize(
    ("details", "resource"),
    [({"kind": "nodes"}, "nodes"), ({"kind": "nodes", "name": "n1"}, ""), (None, ""), ({}, "")],
)
def test_an_error_says_what_could_not_be_listed(details, resource) -> None:
    body = msgspec.json.encode({"kind": "Status", "reason": "Forbidden", "message": "m", "details": details})
    assert make_error(403, body).resource == resource


@pytest.mark.parametrize("name", ["guid", "resourceversion", "object-has-been-modified", "is-being-deleted"])
def test_a_pods_name_does_not_decide_the_cause(name) -> None:
    stale = "ResourceVersion: 0, ResourceVersion in precondition: 1"
    message = f'on pods "{name}": Key: /registry/pods/d/{name}, {stale}'
    assert make_error(409, status("Conflict", message)).cause == "stale"
    message = f'on pods/binding "{name}": pod {name} is already assigned to node "{name}"'
    assert make_error(409, status("Conflict", message)).cause == "bound"
    message = f'on pods/binding "{name}": pod {name} has non-empty .spec.schedulingGates'
    assert make_error(409, status("Conflict", message)).cause == "gated"


@pytest.mark.parametrize(
    "body", [b"", b"<html>gateway</html>", b"\xff\xfe", b"[]", b"null", b'{"message": 5}', b'{"code": "x"}']
)
def test_rubbish_bodies_are_quoted_not_raised(body) -> None:
    error = make_error(502, body)
    assert isinstance(error, errors.ServerError)
    assert error.reason == "ServerError"
    assert error.message


def test_foreign_messages_are_cut_and_on_one_line() -> None:
    error = make_error(400, status("BadRequest", "a\nb " * 500))
    assert len(error.message) == errors.MESSAGE_LIMIT
    assert "\n" not in error.message
    assert error.message.endswith("…")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("", None), ("3", 3.0), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after(code, header, seconds) -> None:
    assert make_error(code, b"{}", retry_after=header).retry_after_s == seconds


@pytest.mark.parametrize("code", [429, 403])
def test_a_budgets_refusal_of_an_eviction_is_none_of_a_busy_api_server(code) -> None:
    """As kube-apiserver 1.37 answers; requests that it has no time for get a text."""
    body = {
        "kind": "Status",
        "reason": "TooManyRequests",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget b needs 2"}]},
    }
    error = make_error(code, msgspec.json.encode(body), retry_after="10")
    assert (type(error), error.retry_after_s, error.is_passing) == (errors.BudgetRefused, 10.0, False)
    busy = make_error(429, b"Too many requests, please try again later.\n", retry_after="1")
    assert (type(busy), busy.can_be_repeated) == (errors.TooManyRequests, True)
    details = {"group": "storage", "kind": "pods", "causes": None}
    starts = make_error(429, msgspec.json.encode({"kind": "Status", "details": details}))
    assert type(starts) is errors.TooManyRequests


def test_a_pod_that_two_budgets_cover_is_not_evicted_later_either() -> None:
    """The words and the status of kube-apiserver, which gives no reason."""
    text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    error = make_error(500, msgspec.json.encode({"kind": "Status", "message": text, "code": 500}))
    assert (type(error), error.maybe_done, error.is_passing) == (errors.Invalid, False, False)


@pytest.mark.parametrize(
    ("error", "is_passing", "can_be_repeated"),
    [
        (errors.Unreachable("refused"), True, True),
        (errors.Unreachable("reset", maybe_done=True), True, False),
        (errors.TimedOut("late"), True, False),
        (errors.ServerError("no leader"), True, False),
        (errors.Unauthorized("expired"), False, False),
        (errors.Forbidden("no right"), False, False),
        (errors.Malformed("no JSON"), False, False),
    ],
    ids=repr,
)
def test_which_requests_may_succeed_soon(error, is_passing, can_be_repeated) -> None:
    assert (error.is_passing, error.can_be_repeated) == (is_passing, can_be_repeated)


def test_unreachable_says_whether_a_write_may_have_happened() -> None:
    assert not errors.Unreachable("refused").maybe_done
    assert errors.Unreachable("reset", maybe_done=True).maybe_done
    assert not errors.Unreachable("refused").maybe_done
    assert errors.TimedOut("late").maybe_done
