"""Errors of the allocator package.

AllocatorError
├── QuantityError   a Kubernetes quantity that cannot be read exactly
├── PackingError    words, layouts or node records that do not decode
├── RequestError    a pod that asks for something that cannot be given
├── PolicyError     an unknown card policy
└── LedgerError     an event that contradicts the ledger
"""


class AllocatorError(ValueError):
    """Root of the package's errors; the message names the value seen and what is allowed."""


class QuantityError(AllocatorError):
    """A Kubernetes quantity that cannot be read exactly."""


class PackingError(AllocatorError):
    """Words, a layout or a node record that does not decode."""


class RequestError(AllocatorError):
    """A pod that asks for something that cannot be given."""


class PolicyError(AllocatorError):
    """A card policy that does not exist."""


class LedgerError(AllocatorError):
    """An event that contradicts what the ledger knows."""
