"""`gpupack demo --dashboard`: the demo's cluster under pods that come and go, on the dashboard."""

import asyncio
from random import Random
from typing import Any, Final

import click

from gpupack.dashboard.app import serve_cluster
from gpupack.dashboard.browser import can_open_browser, open_browser
from gpupack.dashboard.settings import Settings
from gpupack.demo.pods import NODES, PODS, TOO_LARGE
from gpupack.embedded import EmbeddedCluster, EmbeddedNode
from scheduler_plugin.settings import Settings as SchedulerSettings
from standins.scheduler import SchedulingError, Unschedulable

EVERY_S: Final = 0.6
"""Time between two events."""
FULL: Final = 34
"""Number of pods from which on more go than come."""
WAITING: Final = 5
"""Pods without a card at most; further ones are not created."""
EXCESS_MIB: Final = 3 * 1024


class DemoLoad:
    """Pods that come and go, and now and then trouble."""

    def __init__(self, cluster: EmbeddedCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = Random(seed)  # noqa: S311 - chance, not secrecy
        self._number = 0
        self._excess: tuple[EmbeddedNode, str] | None = None
        self.running: list[str] = []
        self.waiting: list[str] = []

    async def run(self) -> None:
        self._create(TOO_LARGE)
        while True:
            await self.do_step()
            await asyncio.sleep(EVERY_S)

    async def do_step(self) -> None:
        came = self._chance.random() > len(self.running) / (2 * FULL)
        if came and len(self.waiting) < WAITING:
            self._create(self._chance.choice(PODS))
        elif self.running:
            name = self.running.pop(self._chance.randrange(len(self.running)))
            self._cluster.api.delete_pod("default", name)
        await self._schedule()
        if self._chance.random() < 1 / 20:
            self._exceed()

    def _create(self, shape: dict[str, Any]) -> None:
        self._number += 1
        name = f"pod-{self._number:03d}"
        self._cluster.create(self._cluster.make_pod_manifest(name, **shape))
        self.waiting.append(name)

    async def _schedule(self) -> None:
        """Try every pod that waits, as kube-scheduler does when something has changed."""
        for name in list(self.waiting):
            try:
                await self._cluster.schedule(self._cluster.api.pod("default", name))
            except Unschedulable:
                continue
            except SchedulingError:
                continue  # the view was older than the cards: the next turn has a newer one
            self.waiting.remove(name)
            self.running.append(name)

    def _exceed(self) -> None:
        """Let a process that belongs to no pod use some of a card, and end the one before."""
        if self._excess is not None:
            node, uuid = self._excess
            node.gpus.set_used(uuid, 0)
        node = self._chance.choice(list(self._cluster.nodes.values()))
        uuid = self._chance.choice(list(node.gpus.cards())).uuid
        node.gpus.set_used(uuid, EXCESS_MIB)
        self._excess = (node, uuid)


async def watch(seed: int, node_policy: str, card_policy: str, port: int, stop: asyncio.Event) -> None:
    """Show the cluster on the dashboard until `stop` is set.

    Raises:
        SettingsError: no such policy.
        GpupackError: the port is in use, or a part does not start.
    """
    SchedulerSettings(node_policy=node_policy, card_policy=card_policy).check()
    click.echo(
        f"Starting an API server, {len(NODES)} nodes with simulated GPUs and the scheduler extender ..."
    )

    def started(url: str) -> None:
        click.echo(f"gpupack dashboard: {url} (Ctrl-C ends it)")
        if can_open_browser():
            open_browser(url)

    async with EmbeddedCluster(NODES, node_policy=node_policy, card_policy=card_policy, seed=seed) as cluster:
        load = asyncio.create_task(DemoLoad(cluster, seed).run())
        settings = Settings(kubeconfig=cluster.kubeconfig, http=f"127.0.0.1:{port}")
        try:
            await serve_cluster(settings, stop=stop, started=started)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
