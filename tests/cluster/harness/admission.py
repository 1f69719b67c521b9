"""What the API server's admission says to a request: refused, warned of, changed, or taken as it is."""

import http.client
import json
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.harness import workload
from tests.cluster.harness.cluster import PODS, Cluster
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Api, ApiError, Json


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


def told(cluster: Cluster, pod: dict[str, Any]) -> str:
    """What the API server says to a pod; empty where it takes it."""
    try:
        cluster.api.post(PODS, pod, dryRun="All")
    except ApiError as error:
        return error.message
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
    """Return once a user has a right: the authorizer has a view of its own of roles and their bindings.

    Args:
        user: `user` or `groups` of a SubjectAccessReview.
    """
    spec = {**user, "resourceAttributes": {"verb": verb, "resource": resource}}
    review = {"spec": spec}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    until(lambda: cluster.api.post(path, review)["status"]["allowed"], f"{user} may {verb} {resource}")


def warnings_of(cluster: Cluster, path: str, body: dict[str, Any]) -> list[str]:
    """The warnings that kubectl would print, of a dry run that is taken."""
    server = urlsplit(cluster.api.url)
    context = ssl.create_default_context(cafile=cluster.api.ca)
    connection = http.client.HTTPSConnection(server.hostname or "", server.port, timeout=20, context=context)
    headers = {"Authorization": f"Bearer {cluster.api.token}", "Content-Type": "application/json"}
    connection.request("POST", f"{path}?dryRun=All", json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()
    return answer.headers.get_all("Warning") or []


def scheduler_of(cluster: Cluster, pod: dict[str, Any]) -> str:
    return str(cluster.api.post(PODS, pod, dryRun="All")["spec"]["schedulerName"])
