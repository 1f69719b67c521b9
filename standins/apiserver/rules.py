"""Defaults and validation of objects in the API server stand-in: what kube-apiserver does to them."""

import re
from collections.abc import Iterator
from typing import Any

from allocator.errors import QuantityError
from allocator.quantity import canonical, parse_quantity
from kubeapi.names import is_label_key, is_subdomain
from kubeapi.objects import is_extended_resource
from standins.apiserver.status import Cause, JsonObject, RefusedError, Resource, bad_request, invalid

PODS = Resource("pods", "Pod")
NODES = Resource("nodes", "Node", namespaced=False)
NAMESPACES = Resource("namespaces", "Namespace", namespaced=False)
EVENTS = Resource("events", "Event")
LEASES = Resource("leases", "Lease", "coordination.k8s.io")
BUDGETS = Resource("poddisruptionbudgets", "PodDisruptionBudget", "policy")
JOBS = Resource("jobs", "Job", "batch")
CLAIMS = Resource("resourceclaims", "ResourceClaim", "resource.k8s.io")
SLICES = Resource("resourceslices", "ResourceSlice", "resource.k8s.io", namespaced=False)
RESOURCES = (PODS, NODES, NAMESPACES, EVENTS, LEASES, BUDGETS, JOBS, CLAIMS, SLICES)

ANNOTATIONS_LIMIT = 262_144

_QUANTITY_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_NOT_EQUAL = "must be equal to {name} limit of {limit}"
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_FREE_SPEC_FIELDS = {"tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds"}
_GATED_SPEC_FIELDS = {"nodeSelector", "affinity"}
_SPEC_RULE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)


class UnreadableError(ValueError):
    """The object cannot be decoded; how that is answered depends on the verb."""


def decode_check(item: JsonObject) -> None:
    """Canonicalise every quantity in place, and check what Go's types would not take."""
    metadata = item.get("metadata") or {}
    for field in ("annotations", "labels"):
        for value in (metadata.get(field) or {}).values():
            if not isinstance(value, str):
                kind = "bool" if isinstance(value, bool) else "number"
                where = f"ObjectMeta.metadata.{field} of type string"
                raise UnreadableError(f"json: cannot unmarshal {kind} into Go struct field {where}")
    for amounts in _amounts(item):
        for name, value in amounts.items():
            amounts[name] = _canonical(value)
    for field in ("firstTimestamp", "lastTimestamp"):
        value = item.get(field)
        if value is not None and not _TIME.fullmatch(str(value)):
            raise UnreadableError(
                f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
            )
    for field in ("acquireTime", "renewTime"):
        value = (item.get("spec") or {}).get(field)
        if value is not None and not _TIME.fullmatch(str(value)):
            raise UnreadableError(
                f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": '
                f'cannot parse "{value}" as "2006"'
            )


def _amounts(item: JsonObject) -> Iterator[JsonObject]:
    status = item.get("status") or {}
    yield from (status[field] for field in ("capacity", "allocatable") if status.get(field))
    for _, container in containers(item):
        resources = container.get("resources") or {}
        yield from (resources[field] for field in ("limits", "requests") if resources.get(field))


def containers(pod: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Iterate the containers of a pod with their paths, ordinary ones first."""
    spec = pod.get("spec") or {}
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield f"spec.{field}[{index}]", container


def _canonical(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UnreadableError(_QUANTITY_RULE)
    text = repr(value) if isinstance(value, float) else value
    try:
        return canonical(text.strip() if isinstance(text, str) else text)
    except QuantityError as error:
        suffix = isinstance(text, str) and re.fullmatch(
            r"[+-]?[0-9.]+[eEinumkKMGTP]+[-+]?[0-9]*", text.strip()
        )
        raise UnreadableError("unable to parse quantity's suffix" if suffix else _QUANTITY_RULE) from error


def check_amounts(path: str, amounts: JsonObject | None) -> Iterator[Cause]:
    """Check that quantities are in range.

    The API server asks `MilliValue() % 1000 == 0` of extended resources, in wrapping 64-bit arithmetic. So
    nearly all values above 9 223 372 036 854 775 fail although they are whole.
    """
    for name, value in (amounts or {}).items():
        whole = is_extended_resource(name)
        field = f"{path}.{name}" if path.startswith("status") else f"{path}[{name}]"
        number = parse_quantity(value)
        if number < 0:
            yield Cause(field, f'Invalid value: "{value}": must be greater than or equal to 0')
        elif whole and (number.denominator != 1 or _wrapped(number.numerator * 1000) % 1000):
            yield Cause(field, f'Invalid value: "{value}": must be an integer')


def _wrapped(number: int) -> int:
    """Return the lowest 64 bits, signed."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >> 63 else low


def check_metadata(resource: Resource, item: JsonObject) -> list[Cause]:
    metadata = item["metadata"]
    causes: list[Cause] = []
    name = metadata.get("name")
    if not name:
        causes.append(
            Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
        )
    elif not is_subdomain(name) and resource.plural in {"pods", "nodes", "leases"}:
        causes.append(Cause("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}'))
    for field in ("labels", "annotations"):
        causes += [
            Cause(f"metadata.{field}", f'Invalid value: "{key}": {_NAME_PART_RULE}')
            for key in metadata.get(field) or {}
            if not is_label_key(key if field == "labels" else key.lower())
        ]
    size = sum(len(key) + len(value) for key, value in (metadata.get("annotations") or {}).items())
    if size > ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        causes.append(Cause("metadata.annotations", message, "FieldValueTooLong"))
    return causes


def check(resource: Resource, item: JsonObject) -> None:
    """Validate a whole object, quantities canonical.

    A Binding is not checked like this. So it can bring a bad annotation key onto a pod, and every later
    update of that pod fails.

    Raises:
        RefusedError: 422 with every cause.
    """
    name = item["metadata"].get("name", "")
    causes = check_metadata(resource, item)
    if resource is NODES:
        status = item.get("status") or {}
        for field in ("capacity", "allocatable"):
            causes += check_amounts(f"status.{field}", status.get(field))
    elif resource is PODS:
        causes += _check_pod(item)
    elif resource is LEASES:
        seconds = item.get("spec", {}).get("leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            message = f"Invalid value: {seconds}: must be greater than 0"
            causes.append(Cause("spec.leaseDurationSeconds", message))
    elif resource is EVENTS:
        about = (item.get("involvedObject") or {}).get("namespace", "")
        if (about or "default") != item["metadata"].get("namespace"):
            message = f'Invalid value: "{about}": does not match event.namespace'
            causes.append(Cause("involvedObject.namespace", message))
    if causes:
        raise invalid(resource, name, causes)


def _check_pod(pod: JsonObject) -> list[Cause]:
    causes: list[Cause] = []
    if not (pod.get("spec") or {}).get("containers"):
        return [Cause("spec.containers", "Required value", "FieldValueRequired")]
    for path, container in containers(pod):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        causes += check_amounts(f"{path}.resources.limits", limits)
        causes += check_amounts(f"{path}.resources.requests", requests)
        for name, value in requests.items():
            if is_extended_resource(name) and limits.get(name) != value:
                wanted = _NOT_EQUAL.format(name=name, limit=limits.get(name, 0))
                causes.append(Cause(f"{path}.resources.requests", f'Invalid value: "{value}": {wanted}'))
    return causes


def set_defaults(resource: Resource, item: JsonObject, now: str) -> None:
    """Fill in what the API server fills in on create, in place."""
    if resource is PODS:
        _pod_defaults(item, now)
    elif resource is NODES:
        item.setdefault("spec", {})
        node_defaults(item)
    elif resource is NAMESPACES:
        name = item["metadata"]["name"]
        item["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        item.setdefault("spec", {"finalizers": ["kubernetes"]})
        item["status"] = {"phase": "Active"}


def node_defaults(node: JsonObject) -> None:
    status = node.setdefault("status", {})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _pod_defaults(pod: JsonObject, now: str) -> None:
    spec = pod.setdefault("spec", {})
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
        ("priority", 0),
    ):
        spec.setdefault(field, value)
    pod["metadata"]["generation"] = 1
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [{**_GATED, "lastProbeTime": None, "lastTransitionTime": now}]
    for _, container in containers(pod):
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def check_pod_spec(old: JsonObject, new: JsonObject) -> None:
    """Check a change of a pod's spec, of which hardly any is allowed; the generation grows with it."""
    before, after = old["spec"], new["spec"]
    name = new["metadata"]["name"]
    gates = {gate["name"] for gate in before.get("schedulingGates") or ()}
    free = _FREE_SPEC_FIELDS | {"schedulingGates", "containers", "initContainers"}
    if gates:
        free |= _GATED_SPEC_FIELDS
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if gate["name"] not in gates:
            message = f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            path = f"spec.schedulingGates[{index}].name"
            raise invalid(PODS, name, [Cause(path, message, "FieldValueForbidden")])
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    same_containers = _without_images(old) == _without_images(new)
    if changed - free or not same_containers:
        raise invalid(PODS, name, [Cause("spec", _SPEC_RULE, "FieldValueForbidden")])
    if not after.get("schedulingGates"):
        after.pop("schedulingGates", None)
    if after != before:
        new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1


def _without_images(pod: JsonObject) -> list[tuple[str, JsonObject]]:
    return [
        (path, {key: value for key, value in container.items() if key != "image"})
        for path, container in containers(pod)
    ]


def check_binding(body: JsonObject, namespace: str, name: str) -> None:
    """Check the fields of a Binding; the node's existence and the annotations' keys are not among them.

    Raises:
        RefusedError: 400, or a 500 without a reason, as the real one answers.
    """
    metadata, target = body.get("metadata") or {}, body.get("target") or {}
    if metadata.get("namespace", namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in {None, "", "Node"}:
        message = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise RefusedError(500, "", message)
    if not target.get("name"):
        raise RefusedError(500, "", "target.name: Required value")
