"""`gpupack mps`: a control daemon for each card that can be shared so, as long as it runs."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from deviceplugin.errors import DriverGoneError, GpuError, NodeSettingsError
from deviceplugin.gpus.api.mps import CardGenerations
from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.gpus.nvidia.mps.control import ControlDaemon
from deviceplugin.gpus.nvidia.mps.folder import SHM, CardFolder, lock_root
from deviceplugin.gpus.nvidia.mps.grants import client_limit, find_obstacle
from deviceplugin.gpus.nvidia.mps.namespace_control import NamespaceControlDaemon
from deviceplugin.gpus.nvidia.mps.namespaces import CUDA_WITH_NAMESPACES
from deviceplugin.gpus.nvidia.mps.options import MpsOptions
from kubeapi.process import run_until
from kubeapi.serving import serve_health, start_serving

log = structlog.get_logger(__name__)

LOOK_S: Final = 30.0
"""How often it is checked which cards there are."""


@dataclass(frozen=True, slots=True)
class MpsCard:
    """A card, with what keeps MPS from it.

    Attributes:
        interface: of MPS, 2 or 3.
        problem: why it cannot be shared so; empty if it can.
    """

    uuid: str
    clients: int
    problem: str = ""
    interface: int = 2


def list_mps_cards(
    source: GpuSource, generations: CardGenerations, interface: str = "auto"
) -> Sequence[MpsCard]:
    """List the cards there are now; `interface` is a value of `--interface`."""
    # What cards there are, a sample finds out.
    source.sample()
    cuda = generations.cuda()
    return [_make_mps_card(card, generations, cuda, interface) for card in source.cards()]


def _make_mps_card(card: GpuCard, generations: CardGenerations, cuda: int | None, interface: str) -> MpsCard:
    if card.error is not None:
        return MpsCard(card.uuid, 0, card.error)
    if card.parent is not None:
        return MpsCard(card.uuid, 0, "an instance of a card: MPS is for whole cards here")
    problem = find_obstacle(generations.architecture(card.uuid), cuda, interface)
    if problem:
        return MpsCard(card.uuid, 0, problem)
    newest = 3 if (cuda or 0) >= CUDA_WITH_NAMESPACES else 2
    return MpsCard(
        card.uuid,
        client_limit(cuda or 0),
        interface=newest if interface == "auto" else int(interface),
    )


def make_root(root: Path) -> None:
    """Make the folder that the node daemon and the containers see too.

    Raises:
        NodeSettingsError: the folder cannot be used.
    """
    try:
        (root / SHM).mkdir(parents=True, exist_ok=True)
        # Clients of any user put files there, as into /dev/shm.
        (root / SHM).chmod(0o1777)
    except OSError as error:
        raise NodeSettingsError((f"--root {str(root)!r}: {error.strerror or error}",)) from error


def take_root(root: Path) -> int:
    """Be the only one in the folder: an open file, which keeps others out until it is closed.

    Raises:
        NodeSettingsError: another one runs there.
    """
    file = lock_root(root)
    if file is None:
        raise NodeSettingsError((f"--root {str(root)!r}: another gpupack mps runs there",))
    return file


class MpsSupervisor:
    """Runs control daemons for the cards there are."""

    def __init__(
        self,
        settings: MpsOptions,
        source: GpuSource,
        generations: CardGenerations,
        *,
        make: Callable[[CardFolder, MpsCard], ControlDaemon] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._settings = settings
        self._source = source
        self._generations = generations
        self._make = make or self._daemon
        self._look_s = look_s
        self._running: dict[str, tuple[ControlDaemon, asyncio.Task[None]]] = {}
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Work until cancelled; then every control daemon has ended.

        Raises:
            DriverGoneError: the driver does not come back to this process.
        """
        try:
            while True:
                try:
                    cards = await asyncio.to_thread(
                        list_mps_cards, self._source, self._generations, self._settings.interface
                    )
                except DriverGoneError:
                    raise
                except GpuError as error:
                    log.warning("cards cannot be read", error=str(error))
                except Exception:
                    # To end for it would take the GPU from all clients' programs.
                    log.exception("reading the cards failed")
                else:
                    await self._follow(cards)
                await asyncio.sleep(self._look_s)
        finally:
            await self._stop(list(self._running))

    def find_unready(self) -> str:
        """Say which cards have no control daemon that answers; empty if all that can have one do."""
        if not self._running:
            return "no card has been found that MPS can share"
        silent = [uuid for uuid, (daemon, _) in self._running.items() if not daemon.answers]
        return "\n".join(f"card {uuid}: its control daemon does not answer" for uuid in silent)

    async def _follow(self, cards: Sequence[MpsCard]) -> None:
        """Start what is new and stop what is gone; a card in trouble keeps its control daemon."""
        there = {card.uuid for card in cards}
        await self._stop([uuid for uuid in self._running if uuid not in there])
        for card in cards:
            if card.uuid in self._running:
                continue
            if card.problem:
                self._warn_once(card)
                continue
            daemon = self._make(CardFolder(self._settings.root, card.uuid), card)
            self._running[card.uuid] = daemon, asyncio.create_task(daemon.run())

    async def _stop(self, uuids: Sequence[str]) -> None:
        tasks = [self._running.pop(uuid)[1] for uuid in uuids]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _daemon(self, folder: CardFolder, card: MpsCard) -> ControlDaemon:
        settings = self._settings
        if card.interface == NamespaceControlDaemon.interface:
            return NamespaceControlDaemon(folder, card.clients, program=settings.program)
        return ControlDaemon(folder, card.clients, program=settings.program, arguments=settings.arguments)

    def _warn_once(self, card: MpsCard) -> None:
        if self._reported.get(card.uuid) != card.problem:
            log.warning("card is not shared by MPS", card=card.uuid, reason=card.problem)
            self._reported[card.uuid] = card.problem


async def run(
    settings: MpsOptions, source: GpuSource, generations: CardGenerations, stop: asyncio.Event
) -> None:
    """Be `gpupack mps` until `stop` is set.

    Raises:
        NodeSettingsError: the settings have faults, or the folder cannot be used.
        GpuError: there are no cards, or the driver does not come back to this process.
    """
    make_root(settings.root)
    lock = take_root(settings.root)
    try:
        await asyncio.to_thread(source.open)
        try:
            supervisor = MpsSupervisor(settings, source, generations)
            async with AsyncExitStack() as stack:
                if settings.http is not None:
                    await _serve(stack, settings.http, supervisor)
                await run_until(stop, supervisor)
        finally:
            await asyncio.to_thread(source.close)
    finally:
        os.close(lock)
    log.info("stopped")


async def _serve(stack: AsyncExitStack, address: str, supervisor: MpsSupervisor) -> None:
    app = web.Application()
    app.add_routes(serve_health(supervisor.find_unready))
    served = await start_serving(stack, app, address, lambda text: NodeSettingsError((text,)))
    log.info("serving", url=served.url)
