"""What a preemptor writes, as requests."""

from typing import Any

import pytest

from kubeapi.eviction import evict_pod, nominate_node
from tests.api_requests import ApiRequests


class Api(ApiRequests):
    """Keeps requests."""

    def answer(self, verb: str, path: str, body: Any) -> Any:
        return {}


async def test_an_eviction_names_the_uid() -> None:
    api = Api()
    await evict_pod(api, "ns", "p", "u1")
    (body,) = api.bodies
    assert api.asked == [("post", "/api/v1/namespaces/ns/pods/p/eviction")]
    assert body["apiVersion"] == "policy/v1"
    assert body["kind"] == "Eviction"
    assert body["metadata"] == {"name": "p", "namespace": "ns"}
    assert body["deleteOptions"] == {"preconditions": {"uid": "u1"}}


@pytest.mark.parametrize(("node", "written"), [("n1", "n1"), ("", None)], ids=["kept", "taken back"])
async def test_a_nomination_goes_into_the_status(node: str, written: str | None) -> None:
    api = Api()
    await nominate_node(api, "ns", "p", "u1", node)
    assert api.asked == [("patch", "/api/v1/namespaces/ns/pods/p/status")]
    assert api.bodies == [{"metadata": {"uid": "u1"}, "status": {"nominatedNodeName": written}}]
