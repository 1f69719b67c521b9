"""The list of devices as one message: what it weighs, and whether a kubelet can take it.

A kubelet reads messages of at most 4 MiB, and it gets the whole list in one. Every device is weighed as
unhealthy, the longer of the two words, so that a list that was accepted stays acceptable when cards fail.
"""

from collections.abc import Collection, Iterable
from typing import Final

from allocator.errors import shown
from allocator.ids import MAX_ID_LENGTH
from deviceplugin.errors import DeviceListError

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
# A string field of less than 128 bytes costs its key and its length, one byte each; so does a nested message.
_FIELD_OVERHEAD: Final = 2


def weigh_bytes(id_length: int) -> int:
    """Count the bytes that one device adds to the list: `2 + (2 + id) + (2 + len("Unhealthy"))`.

    Args:
        id_length: bytes of the device's ID, 1..63.
    """
    return _FIELD_OVERHEAD + (_FIELD_OVERHEAD + id_length) + (_FIELD_OVERHEAD + len(UNHEALTHY))


def fitting_devices(id_length: int) -> int:
    """Count the devices with IDs of `id_length` bytes that fit into one message."""
    return MAX_MESSAGE_BYTES // weigh_bytes(id_length)


def check_device_ids(ids: Collection[str]) -> None:
    """Refuse a list of devices that a kubelet could not take.

    Raises:
        DeviceListError: an ID is empty, longer than 63 characters or not ASCII, an ID stands twice, or the
            list is above 4 MiB; the message then says how many such devices would fit.
    """
    for identifier in ids:
        if not (0 < len(identifier) <= MAX_ID_LENGTH and identifier.isascii()):
            raise DeviceListError(
                f"device ID {shown(identifier)}: allowed are 1 to {MAX_ID_LENGTH} ASCII characters"
            )
    repeated = first_repeated(ids)
    if repeated is not None:
        raise DeviceListError(f"device ID {shown(repeated)} stands twice: an ID is unique on its node")
    total_bytes = sum(weigh_bytes(len(identifier)) for identifier in ids)
    if total_bytes > MAX_MESSAGE_BYTES:
        longest = max(len(identifier) for identifier in ids)
        raise DeviceListError(
            f"{len(ids)} devices make a message of {total_bytes} bytes: allowed are {MAX_MESSAGE_BYTES}, "
            f"which {fitting_devices(longest)} devices with IDs of {longest} characters fit into"
        )


def first_repeated(ids: Iterable[str]) -> str | None:
    """Return the first ID that stands twice, None when all differ."""
    seen: set[str] = set()
    for identifier in ids:
        if identifier in seen:
            return identifier
        seen.add(identifier)
    return None
