"""Which cards can be shared by MPS: asked of the driver, or simulated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.gpus.nvidia.mps.grants import client_limit, find_obstacle


@dataclass(frozen=True, slots=True)
class MpsCard:
    """One card.

    Attributes:
        uuid: of the card.
        clients: processes that its MPS takes at once.
        problem: why it cannot be shared so; empty where it can.
    """

    uuid: str
    clients: int
    problem: str = ""


class CardGenerations(Protocol):
    """What the driver says of a card's generation. Blocking."""

    def architecture(self, uuid: str) -> int | None:
        """NVML's number of the card's architecture; None where the driver does not say."""

    def cuda(self) -> int | None:
        """The newest CUDA that the driver knows, 13010 for 13.1; likewise."""


class SimulatedGenerations:
    """The generation of simulated cards."""

    def architecture(self, _uuid: str) -> int | None:
        """Hopper."""
        return 9

    def cuda(self) -> int | None:
        """CUDA 13.0."""
        return 13_000


def list_mps_cards(source: GpuSource, generations: CardGenerations) -> Sequence[MpsCard]:
    """Look at the cards there are now.

    Raises:
        GpuError: the source as a whole does not work.
    """
    # What cards there are, a sample finds out.
    source.sample()
    cuda = generations.cuda()
    return [_judge(card, generations, cuda) for card in source.cards()]


def _judge(card: GpuCard, generations: CardGenerations, cuda: int | None) -> MpsCard:
    if card.error is not None:
        return MpsCard(card.uuid, 0, card.error)
    if card.parent is not None or card.uuid.startswith("MIG-"):
        return MpsCard(card.uuid, 0, "an instance of a card: MPS is for whole cards here")
    problem = find_obstacle(generations.architecture(card.uuid), cuda)
    return MpsCard(card.uuid, 0 if problem else client_limit(cuda or 0), problem)
