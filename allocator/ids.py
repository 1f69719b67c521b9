"""Device IDs: what the kubelet hands out, one for each unit of a card, and one for each percent.

An ID is `<card uuid>::<number>`, numbers counted from 0 in decimal; `<card uuid>::p<number>` is a percent.
The kubelet accepts at most 63 characters. The kubelet wants every ID to be unique over all resources of a
node: the UUID and the letter see to that.
"""

import re
from collections.abc import Iterable
from typing import Final

from allocator.errors import DeviceIdError, shown

MAX_ID_LENGTH: Final = 63

PERCENT_IDS: Final = 200
"""Percent IDs of a card.

A share of p percent is charged floor(p * size / 100) units, 1 or more, and so has p < 200 * units / size.
So shares whose units fit on a card need fewer than 200 IDs there. Together they can be more than 100 percent:
three times 34 percent of 44 units are 42 units. With 100 IDs the kubelet would refuse what has room.
"""

SEPARATOR: Final = "::"
# No comma, colon or blank: UUIDs also stand in comma lists and in `uuid:units` pairs.
UUID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,59}"
_UUID: Final = re.compile(UUID_PATTERN)
_NOT_IN_LABELS: Final = re.compile(r"[^a-z0-9]+")
_MOST_LABEL_CHARS: Final = 63
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")


def is_card_uuid(text: str) -> bool:
    """Tell whether `text` can be a card's UUID: 1 to 60 of letters, digits and `._/-`."""
    return _UUID.fullmatch(text) is not None


def device_id(uuid: str, number: int) -> str:
    """Name the unit `number` (0 or more) of the card `uuid`.

    Raises:
        DeviceIdError: the UUID cannot be one, the number is negative, or the ID is longer than 63 characters.
    """
    if not is_card_uuid(uuid):
        raise DeviceIdError(f"card UUID {shown(uuid)}; allowed: 1 to 60 letters, digits and . _ / -")
    if number < 0:
        raise DeviceIdError(f"number {number} of card {uuid}; allowed: 0 or more")
    text = f"{uuid}{SEPARATOR}{number}"
    if len(text) > MAX_ID_LENGTH:
        raise DeviceIdError(f"device ID {text} has {len(text)} characters; allowed: {MAX_ID_LENGTH}")
    return text


def percent_id(uuid: str, number: int) -> str:
    """Name the percent `number` (0 or more) of the card `uuid`.

    Raises:
        DeviceIdError: as `device_id`.
    """
    text = device_id(uuid, number).replace(SEPARATOR, f"{SEPARATOR}p")
    if len(text) > MAX_ID_LENGTH:
        raise DeviceIdError(f"device ID {text} has {len(text)} characters; allowed: {MAX_ID_LENGTH}")
    return text


def parse_device_id(text: str) -> tuple[str, int]:
    """Split a device ID into its card's UUID and the number; the exact inverse of `device_id`.

    Raises:
        DeviceIdError: the text is not an ID that `device_id` would make.
    """
    uuid, separator, number = text.partition(SEPARATOR)
    well_formed = (
        len(text) <= MAX_ID_LENGTH and separator and is_card_uuid(uuid) and _NUMBER.fullmatch(number)
    )
    if not well_formed:
        raise DeviceIdError(f"device ID {shown(text)}; allowed: <card uuid>::<number>, at most 63 characters")
    return uuid, int(number)


def device_names(uuids: Iterable[str]) -> dict[str, str]:
    """Name the cards of a node, in word order, as devices of its ResourceSlices: different DNS labels."""
    names: dict[str, str] = {}
    for uuid in uuids:
        name = _NOT_IN_LABELS.sub("-", uuid.lower()).strip("-")[:_MOST_LABEL_CHARS].rstrip("-") or "card"
        while name in names.values():
            number = len(names)
            name = f"{name[: _MOST_LABEL_CHARS - 4]}-{number}"
        names[uuid] = name
    return names
