"""`gpupack` whose node daemon publishes no compute, as before there were shares of it: layout version 1.

Run as `python -m tests.cluster.harness.older node ...`.
"""

from allocator.ledger import Ledger
from allocator.packing import NodeWords
from gpupack.cli.app import main

MODULE = "tests.cluster.harness.older"

_make_words = Ledger.make_words


def _without_compute(ledger: Ledger, unit_mib: int) -> NodeWords:
    words = _make_words(ledger, unit_mib)
    return NodeWords.of(unit_mib, words.sizes, words.used, words.revision)


if __name__ == "__main__":
    Ledger.make_words = _without_compute  # type: ignore[method-assign]
    main()
