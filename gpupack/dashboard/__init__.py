"""`gpupack dashboard`: every card of the cluster on one page, live, from what Nodes and Pods say.

`following` (or a file) feeds a `board`, which makes a small record of each node. `live` tells each open page
what has changed, `http` serves it. `advice` says why pods wait and what fits now, `trend` remembers the sums.
Only `following`, `queues` and `http` talk to anybody. The page itself lies in `static`.
"""
