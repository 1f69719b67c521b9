"""`gpupack top`: every card of every node, decoded from what the nodes publish.

`objects` reads Nodes and Pods from JSON, `rows` makes rows of them, `totals` adds these up and `rendering`
writes them, all pure; only `fetching` and `watching` talk to an API server.
"""

from gpupack.top.fetching import fetch
from gpupack.top.objects import load_nodes
from gpupack.top.records import CardRow, NodeRow, Output, PodRow
from gpupack.top.rendering import render
from gpupack.top.rows import rows

__all__ = ["CardRow", "NodeRow", "Output", "PodRow", "fetch", "load_nodes", "render", "rows"]
