"""`gpupack autoscale`: asks a cluster autoscaler for nodes that its own sums do not show to be needed.

    cluster (nodes, pods) -> shapes         what a new node would be
                          -> sum_view       what an autoscaler sees, which adds cards up
                          -> planner        which pods wait for a card, and on how many new nodes they fit
                          -> placeholders   the pods that ask for these nodes
                          -> scale_down     the nodes whose pods have no cards elsewhere

These decide on plain values. `app` and `writer` talk to the API server.
"""
