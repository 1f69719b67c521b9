"""What the API server's admission says to a request: refused, warned of, changed, or taken as it is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.harness import workload
from tests.cluster.harness.cluster import PODS, Cluster
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import JSON_PATCH, MERGE_PATCH, Api, ApiError, Json


def refused(call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Make a call that a policy must refuse, and return what it says."""
    with pytest.raises(ApiError) as error:
        call(*arguments, **options)
    assert error.value.status in {403, 422}, error.value
    assert "ValidatingAdmissionPolicy" in error.value.message, error.value
    return error.value.message


def denied(api: Api, path: str, body: Json) -> str:
    """What a policy says to a POST; empty while RBAC still refuses it."""
    with pytest.raises(ApiError) as error:
        api.post(path, body)
    return error.value.message if "ValidatingAdmissionPolicy" in error.value.message else ""


def told(cluster: Cluster, pod: dict[str, Any], user: Api | None = None) -> str:
    """What the API server says to a pod of an administrator, or of another user; empty where it takes it."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    try:
        (user or cluster.api).post(path, pod, dryRun="All")
    except ApiError as error:
        return error.message
    return ""


def refused_patch(api: Api, name: str, body: Any) -> str:
    """What a policy or the authorizer says to a patch of a pod; empty where it is taken, or finds no pod."""
    kind = JSON_PATCH if isinstance(body, list) else MERGE_PATCH
    try:
        api.call("PATCH", f"{PODS}/{name}", body, content_type=kind, query={"dryRun": "All"})
    except ApiError as error:
        return "" if error.status == 404 else error.message
    return ""


def add_priority_class(cluster: Cluster, name: str, value: int, **more: Any) -> None:
    """Make a PriorityClass; returns when the admission plugin, which has a view of its own, knows it."""
    body = {"metadata": {"name": name}, "value": value, **more}
    cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    pod = workload.pod("p", workload.container(), priorityClassName=name)
    until(lambda: told(cluster, pod) == "", f"PriorityClass {name} known")


def wait_quota(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Return once a quota refuses a pod: admission has a view of its own of what a quota's status says."""
    until(lambda: "exceeded quota" in told(cluster, pod), "the quota in force")


def wait_allowed(cluster: Cluster, user: Json, verb: str, resource: str) -> None:
    """Return once a user has a right: the authorizer has a view of its own of roles and their bindings."""
    until(lambda: is_allowed(cluster, user, verb, resource), f"{user} may {verb} {resource}")


def is_allowed(cluster: Cluster, user: Json, verb: str, resource: str) -> bool:
    """Ask whether a user has a right.

    Args:
        user: `user` or `groups` of a SubjectAccessReview.
        resource: As in `pods` or `pods/log`.
    """
    kind, _, part = resource.partition("/")
    attributes = {"verb": verb, "resource": kind, "subresource": part}
    review = {"spec": {**user, "resourceAttributes": attributes}}
    answer = cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def warnings_of(cluster: Cluster, path: str, body: dict[str, Any]) -> list[str]:
    """The warnings that kubectl would print, of a dry run that is taken."""
    headers = {"Content-Type": "application/json"}
    answer = cluster.api.send("POST", path, body, headers=headers, query={"dryRun": "All"})
    assert answer.status == 201, answer.data
    return answer.headers.getlist("Warning")


def scheduler_of(cluster: Cluster, pod: dict[str, Any]) -> str:
    return str(cluster.api.post(PODS, pod, dryRun="All")["spec"]["schedulerName"])
