"""The pure core of gpupack: cards, exact quantities, packing, card policies and the ledger.

Nothing here does I/O, reads a clock or logs, and nothing imports numpy, which the node daemon does without.
"""
