"""Keeps a node's list of cards as the driver shows them, reading after reading; pure.

- A card that is lost, or cannot be read for the moment, stays in the list as it was, with its instances. The
  card may be back, and pods may run on it. Its samples say that it fails.
- A card that can be read has the instances that are there. A card that is partitioned again loses the old
  ones for good.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from deviceplugin.gpus.api.source import GpuCard

_INSTANCE_MARK: Final = " MIG "

NO_INSTANCES: Final = "MIG mode is on and there are no instances: create some or turn it off"


@dataclass(frozen=True, slots=True)
class DetectedCard:
    """DetectedCard is a physical card as the driver shows it now.

    Attributes:
        uuid: UUID of the card, None if the driver does not tell.
        certain: the card is as it is shown. If False, that may be a passing failure of the driver.
    """

    uuid: str | None
    cards: tuple[GpuCard, ...]
    certain: bool


def physical_uuid(card: GpuCard) -> str:
    """UUID of the card itself, of which this may be an instance."""
    return card.parent or card.uuid


def physical_model(card: GpuCard) -> str:
    """Model of the card itself: an instance has its profile behind that, `NVIDIA A100 MIG 1g.10gb`."""
    return card.model.partition(_INSTANCE_MARK)[0] if card.parent else card.model


def describe_shared_memory(gpu_instances: Sequence[int | None]) -> list[str | None]:
    """Say which of a card's MIG devices cannot be given, since their memory is also that of others.

    Compute instances of one GPU instance share its memory ("MIG User Guide", Concepts: Compute Instance), so
    each would promise the whole of it again. None of them is offered: pods may run on any.

    Args:
        gpu_instances: the number of each device's GPU instance, None if it is not told.
    """
    result: list[str | None] = []
    for number in gpu_instances:
        alike = gpu_instances.count(number)
        if number is None and len(gpu_instances) > 1:
            result.append(
                "the driver does not tell its GPU instance, so that its memory may be that of others"
            )
        elif alike > 1:
            result.append(
                f"{alike} compute instances share the memory of GPU instance {number}: "
                "create one that has all of its compute slices"
            )
        else:
            result.append(None)
    return result


def merge_cards(known: Sequence[GpuCard], detected: Iterable[DetectedCard]) -> list[GpuCard]:
    """Bring the list of cards up to date.

    Args:
        known: the list so far, empty at the start; entries with an `error` do not outlast this.
        detected: all that the driver shows, in its order.

    Returns:
        The cards in word order, numbered.
    """
    detected = list(detected)
    before: dict[str, list[GpuCard]] = {}
    for card in known:
        if card.error is None:
            before.setdefault(physical_uuid(card), []).append(card)
    missing = [uuid for uuid in before if uuid not in {detected_card.uuid for detected_card in detected}]
    result: list[GpuCard] = []
    for detected_card in detected:
        # A card that is shown without its UUID is one of those that are missing; which, nobody says.
        uuid = detected_card.uuid if detected_card.uuid is not None or not missing else missing.pop(0)
        stays = not detected_card.certain and uuid in before
        result += before[uuid] if stays and uuid is not None else detected_card.cards
    for uuid in missing:
        at = min(before[uuid][0].index, len(result))
        result[at:at] = before[uuid]
    return [replace(card, index=index) for index, card in enumerate(result)]
