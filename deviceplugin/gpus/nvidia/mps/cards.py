"""Finds which cards can be shared by MPS: asked of the driver, or simulated."""

from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin.gpus.api.mps import CardGenerations
from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.gpus.nvidia.mps.grants import client_limit, find_obstacle


@dataclass(frozen=True, slots=True)
class MpsCard:
    """MpsCard is a card, with what keeps MPS from it.

    Attributes:
        uuid: of the card.
        clients: processes that its MPS takes at once.
        problem: why it cannot be shared so; empty where it can.
    """

    uuid: str
    clients: int
    problem: str = ""


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
