"""`gpupack dashboard`: every card of the cluster on one page, live, from what Nodes and Pods say.

`whatif/live_feed` (or a file) feeds a `board`, which makes a small record of each node. `page_hub` tells each
open page what has changed, `handlers` serves it. `advice` says why pods wait and what fits now, `trend`
remembers the sums. `member` is the page for members of one namespace. `queues` and `telemetry` ask the
queue's leader and the node daemons. The page itself lies in `static`.
"""
