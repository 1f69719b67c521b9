"""Asks the leader of `gpupack queue` for queues and waiting pods, from time to time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from gpupack import queuestatus
from gpupack.errors import InputError
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeApiError, NotFound
from kubeapi.paths import make_service_path
from scheduler_plugin.queue.controller.status import WaitExplanation

EVERY_S: Final = 5.0
AWAY_S: Final = 60.0
"""Time between two requests where there is no queue."""
SHOWN: Final = 200
"""Waiting pods on the page, the first of each queue first."""

Ask = Callable[[], Awaitable[bytes]]


def ask_through_api(client: KubeClient, namespace: str, service: str) -> Ask:
    """Ask through the API server, which needs the right to `get` services/proxy."""
    path = make_service_path(namespace, service, "status")

    async def ask() -> bytes:
        return await client.get(path)

    return ask


async def poll_queue(
    ask: Ask,
    show: Callable[[dict[str, Any]], None],
    tell: Callable[[Sequence[WaitExplanation] | None], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Show the queues again and again, until cancelled.

    Args:
        tell: Takes what the queue says of every pod that waits; None if it does not answer.
    """
    while True:
        shown, pods, pause_s = await _poll_once(ask)
        show(shown)
        tell(pods)
        await sleep(pause_s)


async def _poll_once(ask: Ask) -> tuple[dict[str, Any], Sequence[WaitExplanation] | None, float]:
    """Ask the queue: what the page shows, or why there is nothing, all pods that wait, and when to ask again.

    A queue that does not answer may be changing its leader, and is asked again soon.
    """
    pause_s = AWAY_S
    try:
        status = queuestatus.read(await ask())
        shown = msgspec.structs.replace(status, pods=status.pods[:SHOWN])
        more = len(status.pods) - len(shown.pods)
        return {"there": True, "text": "", "more": more, **msgspec.to_builtins(shown)}, status.pods, EVERY_S
    except NotFound:
        why = "No queue is installed here; docs/queue.md says what one is for."
    except Forbidden as error:
        why = f"The queue cannot be asked: {error}"
    except queuestatus.NoQueueError as error:
        why = f"No queue was found: {error}; docs/queue.md says what one is for."
    except (InputError, KubeApiError) as error:
        why, pause_s = f"The queue does not answer: {error}", EVERY_S
    return explain_no_queues(why), None, pause_s


def explain_no_queues(text: str) -> dict[str, Any]:
    return {"there": False, "text": text, "queues": [], "pods": [], "more": 0}
