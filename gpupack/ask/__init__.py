"""Questions that people ask of a cluster's cards: why is my pod pending, what would fit, what could move.

`Cluster` is what is asked about, as the extender sees it; `why` and `fit` answer plain values. All of it is
computed from nodes and pods alone, by the code of filter and policies. `objects` reads them, `fetching` asks
an API server for them, nothing else here does I/O.
"""

from gpupack.ask.answers import FitAnswer, Why, as_json
from gpupack.ask.cluster import Cluster
from gpupack.ask.fit import FitAsk, fit
from gpupack.ask.why import why

__all__ = ["Cluster", "FitAnswer", "FitAsk", "Why", "as_json", "fit", "why"]
