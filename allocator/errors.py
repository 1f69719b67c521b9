"""Errors of the allocator package.

AllocatorError
├── QuantityError   a Kubernetes quantity that cannot be read exactly
├── PackingError    words, layouts or node records that do not decode
├── DeviceIdError   a device ID that no card of ours has
├── RequestError    a pod that asks for something that cannot be given
├── CardPolicyError an unknown card policy, or one whose costs are none
└── LedgerError     an event that contradicts the ledger
"""

import json


class AllocatorError(ValueError):
    """Root of the package's errors; the message names the value seen and what is allowed."""


class QuantityError(AllocatorError):
    """A Kubernetes quantity that cannot be read exactly."""


class PackingError(AllocatorError):
    """Words, a layout or a node record that does not decode."""


class DeviceIdError(AllocatorError):
    """A device ID, or a part of one, that cannot belong to a card of ours."""


class RequestError(AllocatorError):
    """A pod that asks for something that cannot be given."""


class CardPolicyError(AllocatorError):
    """A card policy that does not exist, or returns invalid costs."""


class LedgerError(AllocatorError):
    """An event that contradicts what the ledger knows."""


def shown(value: object, limit: int = 64) -> str:
    """Render a foreign value for an error message: one line, quoted when it is text, cut at `limit`."""
    text = json.dumps(value[: limit + 1]) if isinstance(value, str) else ascii(value)
    return text if len(text) <= limit + 2 else f"{text[:limit]}..."
