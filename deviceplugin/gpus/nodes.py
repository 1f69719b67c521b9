"""The device nodes that go with cards, as far as the machine has them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.gpus.grant import DeviceNode
from deviceplugin.gpus.source import GpuCard
from deviceplugin.gpus.vendor import Vendor

DEVICES: Final = Path("/dev")


def node_paths(card: GpuCard, vendor: Vendor, devices: Path | None) -> list[str]:
    """Name a card's own node and those of every card; an instance of a card has none that is known here.

    Args:
        card: of the machine.
        vendor: of the card.
        devices: folder of the machine's device nodes, `/dev`; None for cards that are none of its.
    """
    if card.parent is not None or devices is None:
        return []
    wanted = (vendor.card_node(card.minor), *vendor.control_nodes)
    return [path for path in wanted if path and (devices / path.removeprefix("/dev/")).exists()]


class DeviceNodes:
    """Names the nodes of cards by UUID.

    Args:
        vendor: of the cards.
        cards: those of the machine, as they are now.
        devices: as in `node_paths`.
    """

    def __init__(
        self, vendor: Vendor, cards: Callable[[], Sequence[GpuCard]], devices: Path | None = DEVICES
    ) -> None:
        self._vendor = vendor
        self._cards = cards
        self._devices = devices

    def of(self, uuids: Sequence[str]) -> tuple[DeviceNode, ...]:
        """The nodes of some cards, each once."""
        found = [
            path
            for card in self._cards()
            if card.uuid in uuids
            for path in node_paths(card, self._vendor, self._devices)
        ]
        return tuple(DeviceNode(path) for path in dict.fromkeys(found))
