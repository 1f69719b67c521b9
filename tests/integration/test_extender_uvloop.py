"""The extender on the event loop that it is shipped with: what the other loop shows, here too."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.extender_client import Client, two_nodes
from tests.integration import test_extender_http as shown
from tests.integration import test_extender_tls as over_tls


@pytest.mark.parametrize(
    "test", [shown.test_a_pod_from_filter_to_its_node_s_words, shown.test_health_and_metrics]
)
def test_a_client(tmp_path: Path, test: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def with_a_client() -> None:
        async with two_nodes(tmp_path) as client:
            await test(client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(with_a_client())


@pytest.mark.parametrize("test", [over_tls.test_tls, over_tls.test_verbs_are_for_clients_with_a_certificate])
def test_tls(tmp_path: Path, test: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test(tmp_path))
