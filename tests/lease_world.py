"""A Lease kept in memory with compare and swap, and candidates on one clock, for tests of the election."""

import json
from datetime import UTC, datetime

from kubeapi.errors import Conflict, NotFound, TimedOut, Unreachable
from kubeapi.lease import LeaseElector


class LeaseApi:
    """What the elector asks of an API server; `fault` strikes the next write.

    Attributes:
        now: seconds, for everybody.
        fault: None, "lost" (the request never arrives) or "late" (it is done, the answer never comes).
        refuse: every request fails.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.body = None
        self.version = 0
        self.fault = None
        self.refuse = False
        self.writes = 0

    async def get(self, _path, *, timeout_s) -> bytes:
        self._reach()
        if self.body is None:
            raise NotFound("no lease", status=404)
        return json.dumps(self.body).encode()

    async def post(self, _path, body, *, timeout_s) -> bytes:
        return self._write(json.loads(body), create=True)

    async def put(self, _path, body, *, timeout_s) -> bytes:
        return self._write(json.loads(body), create=False)

    def _reach(self) -> None:
        if self.refuse:
            raise Unreachable("refused")

    def _write(self, body, *, create) -> bytes:
        self._reach()
        fault, self.fault = self.fault, None
        if fault == "lost":
            raise Unreachable("reset", maybe_done=True)
        if create and self.body is not None:
            raise Conflict("exists", reason="AlreadyExists")
        if not create:
            if self.body is None:
                raise NotFound("no lease", status=404)
            if body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
                raise Conflict("the object has been modified")
        self.version += 1
        self.writes += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.body = body
        if fault == "late":
            raise TimedOut("no answer")
        return json.dumps(body).encode()

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
