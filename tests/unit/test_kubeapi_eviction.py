"""What a preemptor writes, as requests."""

from collections.abc import Mapping

import pytest

from kubeapi.errors import Conflict, Invalid
from kubeapi.eviction import evict_pod, nominate_node


class Api:
    """Keeps requests; answers a patch with an error if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent: list[tuple[str, str, Mapping[str, object]]] = []

    async def get(self, path: str, *, timeout_s: float = 0) -> bytes:
        raise NotImplementedError

    async def post(self, path: str, body: Mapping[str, object], *, timeout_s: float = 0) -> bytes:
        self.sent.append(("POST", path, body))
        return b"{}"

    async def patch(self, path: str, body: Mapping[str, object], *, timeout_s: float = 0) -> bytes:
        self.sent.append(("PATCH", path, body))
        if self.error is not None:
            raise self.error
        return b"{}"


async def test_an_eviction_names_the_uid() -> None:
    api = Api()
    await evict_pod(api, "ns", "p", "u1")
    ((verb, path, body),) = api.sent
    assert (verb, path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert body["apiVersion"] == "policy/v1"
    assert body["kind"] == "Eviction"
    assert body["metadata"] == {"name": "p", "namespace": "ns"}
    assert body["deleteOptions"] == {"preconditions": {"uid": "u1"}}


@pytest.mark.parametrize(("node", "written"), [("n1", "n1"), ("", None)], ids=["kept", "taken back"])
async def test_a_nomination_goes_into_the_status(node: str, written: str | None) -> None:
    api = Api()
    await nominate_node(api, "ns", "p", "u1", node)
    body = {"metadata": {"uid": "u1"}, "status": {"nominatedNodeName": written}}
    assert api.sent == [("PATCH", "/api/v1/namespaces/ns/pods/p/status", body)]


async def test_another_pod_of_the_name_is_a_conflict() -> None:
    with pytest.raises(Conflict) as caught:
        await nominate_node(
            Api(Invalid('metadata.uid: Invalid value: "u1"', status=422)), "ns", "p", "u1", "n"
        )
    assert caught.value.cause == "uid"
    with pytest.raises(Invalid):
        await nominate_node(Api(Invalid("status.x: Invalid value", status=422)), "ns", "p", "u1", "n")
