"""Answers of the API server stand-in that say no, worded as kube-apiserver 1.37 words them."""

from typing import Any, NamedTuple

JsonObject = dict[str, Any]


class Resource(NamedTuple):
    """A kind of objects; the group is empty for the core group."""

    plural: str
    kind: str
    group: str = ""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Value of `apiVersion`; every served version is v1."""
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def full_name(self) -> str:
        """Name in messages: "pods", "leases.coordination.k8s.io"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def full_kind(self) -> str:
        """Kind in messages: "Pod", "Lease.coordination.k8s.io"."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


class Cause(NamedTuple):
    """A reason why an object is invalid."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class RefusedError(Exception):
    """A request that gets a Status object and not 2xx."""

    def __init__(
        self, code: int, reason: str, message: str, details: JsonObject | None = None, **metadata: str
    ) -> None:
        self.code = code
        self.body: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": message,
        }
        if reason:
            self.body["reason"] = reason
        if details is not None:
            self.body["details"] = details
        self.body["code"] = code
        super().__init__(message)


def details(resource: Resource, name: str, kind: str | None = None) -> JsonObject:
    found: JsonObject = {"name": name} if name else {}
    if resource.group:
        found["group"] = resource.group
    return {**found, "kind": kind or resource.plural}


def not_found(resource: Resource, name: str) -> RefusedError:
    return RefusedError(404, "NotFound", f'{resource.full_name} "{name}" not found', details(resource, name))


def no_such_path() -> RefusedError:
    message = "the server could not find the requested resource"
    return RefusedError(404, "NotFound", message, {})


def already_exists(resource: Resource, name: str) -> RefusedError:
    """409 of a create."""
    message = f'{resource.full_name} "{name}" already exists'
    return RefusedError(409, "AlreadyExists", message, details(resource, name))


def conflict(resource: Resource, name: str, why: str, shown: str | None = None) -> RefusedError:
    """409 of anything else; `shown` replaces the resource's name ("pods/binding")."""
    kind = shown or resource.full_name
    message = f'Operation cannot be fulfilled on {kind} "{name}": {why}'
    return RefusedError(409, "Conflict", message, details(resource, name, shown))


def modified(resource: Resource, name: str) -> RefusedError:
    """409 of a stale resourceVersion."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def precondition(
    resource: Resource, key: tuple[str, str], what: str, wanted: str, found: str
) -> RefusedError:
    """409 of storage; `what` is "UID" or "ResourceVersion", `key` namespace and name."""
    folder = {"nodes": "minions"}.get(resource.plural, resource.plural)
    place = "/".join(part for part in (folder, *key) if part)
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in object "
        f"meta: {found}"
    )
    return conflict(resource, key[1], why)


def bad_request(message: str) -> RefusedError:
    return RefusedError(400, "BadRequest", message)


def invalid(resource: Resource, name: str, causes: list[Cause], shown: str | None = None) -> RefusedError:
    """422 with its causes; `shown` replaces the kind."""
    texts = [f"{cause.field}: {cause.message}" for cause in dict.fromkeys(causes)]
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kind = shown or resource.full_kind
    listed = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    found = details(resource, name, resource.plural if shown else resource.kind)
    return RefusedError(422, "Invalid", f'{kind} "{name}" is invalid: {joined}', {**found, "causes": listed})


def unreadable_patch(why: str) -> RefusedError:
    """422 of a patch whose result does not decode; the real one quotes the whole object."""
    message = f"Invalid value: <object>: {why}"
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]
    return RefusedError(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": causes})


def expired(message: str) -> RefusedError:
    return RefusedError(410, "Expired", message)


def success(
    resource: Resource | None = None, name: str = "", uid: str = "", code: int | None = None
) -> JsonObject:
    body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if resource is not None:
        body["details"] = {**details(resource, name), "uid": uid}
    if code is not None:
        body["code"] = code
    return body
