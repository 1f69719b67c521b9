"""The writer of claims' status, where the API server refuses one claim or does not answer."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from allocator.cards import Card
from deviceplugin.dra.claim_status import ClaimStatusWriter
from deviceplugin.dra.claims import ClaimShare
from deviceplugin.dra.prepared_claims import PreparedClaim
from kubeapi.errors import Invalid, KubeApiError, Unreachable
from tests.api_requests import ApiRequests
from tests.running import background
from tests.waiting import until


class FakeApi(ApiRequests):
    """Answers every claim that is asked for; writes of some fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, KubeApiError] = {}
        self.unreadable: dict[str, bytes] = {}
        self.tried: list[str] = []
        self.written: list[str] = []

    async def get(self, path: str, *, timeout_s: float = 0, **query: Any) -> bytes:
        answer = self.unreadable.get(path.rpartition("/")[2])
        return answer if answer is not None else await super().get(path, timeout_s=timeout_s, **query)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if verb == "get":
            name = path.rpartition("/")[2]
            metadata = {"name": name, "uid": f"uid-{name}"}
            return {"metadata": metadata, "status": {"allocation": {"devices": {}}}}
        name = path.split("/")[-2]
        self.tried.append(name)
        if name in self.failing:
            raise self.failing[name]
        assert body["status"]["devices"]
        self.written.append(name)
        return {}


class World:
    """A node that has prepared claims of these names."""

    def __init__(self, *names: str) -> None:
        self.api: Any = FakeApi()
        self.claims = [make_claim(name) for name in names]
        self.wake = lambda: None
        cards = {"GPU-1": Card(uuid="GPU-1", index=0, model="A100", size_units=8, used_units=0)}
        account: Any = SimpleNamespace(
            ledger=SimpleNamespace(accounts=SimpleNamespace(cards=cards)),
            subscribe=lambda wake: setattr(self, "wake", wake),
        )
        prepared: Any = self.claims
        self.writer = ClaimStatusWriter(self.api, account, prepared, node_name="n1")


def make_claim(name: str) -> PreparedClaim:
    return PreparedClaim(
        f"uid-{name}",
        "default",
        name,
        "uid-p",
        "p",
        {"main": ["GPU-1::0"]},
        (ClaimShare("r", "gpu-1", "GPU-1", 1, ""),),
    )


@asynccontextmanager
async def running(*names: str, failing: Mapping[str, KubeApiError]) -> AsyncIterator[World]:
    world = World(*names)
    world.api.failing = dict(failing)
    async with background(world.writer.run()):
        yield world


REFUSED = Invalid("an admission webhook says no", status=422)


async def test_a_claim_that_is_refused_keeps_no_other_waiting() -> None:
    async with running("bad", "good", failing={"bad": REFUSED}) as world:
        await until(lambda: world.api.written == ["good"], "the other claim written")
        assert world.api.tried[:2] == ["bad", "good"]


@pytest.mark.parametrize("answer", [b"[", b'{"a": "\xff"}', b"[" * 100_000, b"{}", b'{"metadata": null}'])
async def test_a_claim_that_cannot_be_read_keeps_no_other_waiting(answer: bytes) -> None:
    world = World("bad", "good")
    world.api.unreadable = {"bad": answer}
    assert await world.writer._step() is not None
    assert world.api.written == ["good"]


async def test_what_is_prepared_later_does_not_wait_for_one_that_is_refused() -> None:
    async with running("bad", "good", failing={"bad": REFUSED}) as world:
        await until(lambda: world.api.tried.count("bad") == 4, "the refused claim asked about again")
        world.claims.append(make_claim("later"))
        world.wake()
        await until(lambda: world.api.written == ["good", "later"], "the later claim written")
        assert world.api.tried.count("bad") <= 5


async def test_a_refused_claim_is_written_once_it_is_allowed() -> None:
    async with running("bad", "good", failing={"bad": REFUSED}) as world:
        await until(lambda: world.api.written == ["good"], "the other claim written")
        world.api.failing.clear()
        await until(lambda: world.api.written == ["good", "bad"], "the refused claim written")


async def test_an_api_server_that_does_not_answer_is_asked_about_one_claim_at_a_time() -> None:
    failing = {name: Unreachable("refused") for name in ("bad", "good")}
    async with running("bad", "good", failing=failing) as world:
        await until(lambda: len(world.api.tried) == 3, "asked again")
        assert world.api.tried == ["bad"] * 3
