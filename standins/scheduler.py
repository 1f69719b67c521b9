"""A stand-in for kube-scheduler: asks an extender over HTTP as kube-scheduler does, one pod at a time."""

from collections.abc import Sequence
from typing import Any

import aiohttp


class SchedulingError(Exception):
    """Root: what kept a pod from being placed, in one line."""


class ExtenderError(SchedulingError):
    """The extender answered with an error, in its own words."""


class Unschedulable(SchedulingError):  # noqa: N818 - the scheduler's own word
    """No node passed; the message has every reason once."""


class Scheduler:
    """Filter, prioritize, bind: nodeCacheCapable, so names only."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def schedule(self, pod: dict[str, Any], nodes: Sequence[str]) -> str:
        """Place one pod on one of the nodes, and return its name.

        Raises:
            Unschedulable: no node passed the filter.
            ExtenderError: filter or bind failed.
        """
        found = await self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if found.get("Error"):
            raise ExtenderError(found["Error"])
        names = found.get("NodeNames") or []
        if not names:
            failed = {**(found.get("FailedNodes") or {}), **(found.get("FailedAndUnresolvableNodes") or {})}
            raise Unschedulable("; ".join(sorted(set(failed.values()))))
        if len(names) > 1:
            scores = await self._post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": names})
            best = max(score["Score"] for score in scores)
            names = sorted(score["Host"] for score in scores if score["Score"] == best)
        meta = pod["metadata"]
        bound = await self._post(
            "bind",
            {
                "PodName": meta["name"],
                "PodNamespace": meta["namespace"],
                "PodUID": meta["uid"],
                "Node": names[0],
            },
        )
        if bound.get("Error"):
            raise ExtenderError(bound["Error"])
        return str(names[0])

    async def _post(self, verb: str, body: dict[str, Any]) -> Any:
        async with self._session.post(f"{self._url}/{verb}", json=body) as answer:
            if answer.status != 200:  # noqa: PLR2004 - the protocol's only success
                raise ExtenderError(f"{verb} answered {answer.status}: {(await answer.text())[:256]}")
            return await answer.json(content_type=None)
