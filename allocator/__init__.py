"""The pure core of gpupack: cards, exact quantities, packing, card policies and the ledger.

Nothing here does I/O, reads a clock or logs. Only `allocator.vector` imports numpy, so that the node
daemon can use the rest without it.
"""
