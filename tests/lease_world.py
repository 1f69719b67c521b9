"""A Lease kept in memory with compare and swap, and candidates on one clock, for tests of the election."""

from datetime import UTC, datetime

from kubeapi.errors import Conflict, NotFound
from kubeapi.lease import LeaseElector
from tests.api_requests import ApiRequests


class LeaseApi(ApiRequests):
    """What the elector asks of an API server; `now` are seconds, for everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.body = None
        self.version = 0
        self.writes = 0

    def answer(self, verb, path, body) -> dict:
        if verb == "get" or (verb == "put" and self.body is None):
            if self.body is None:
                raise NotFound("no lease", status=404)
            return self.body
        if verb == "post" and self.body is not None:
            raise Conflict("exists", reason="AlreadyExists")
        if verb == "put" and body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        self.version += 1
        self.writes += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.body = body
        return body

    @property
    def spec(self) -> dict:
        return self.body["spec"]


def candidate(api, name, lease_s=15, renew_s=2.0, **options) -> LeaseElector:
    return LeaseElector(
        api,
        "ns",
        "lease",
        name,
        lease_s,
        renew_s,
        clock=lambda: api.now,
        wall=lambda: datetime.fromtimestamp(api.now, UTC),
        uniform=lambda _low, high: high,
        **options,
    )
