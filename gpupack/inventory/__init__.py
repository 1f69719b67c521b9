"""Every card of the cluster with its pods, as rows: `gpupack top`, and what others show of them."""

from gpupack.inventory.fetching import fetch
from gpupack.inventory.objects import load_nodes
from gpupack.inventory.records import CardRow, NodeRow, Output, PodRow
from gpupack.inventory.rendering import render
from gpupack.inventory.rows import build_rows

__all__ = ["CardRow", "NodeRow", "Output", "PodRow", "build_rows", "fetch", "load_nodes", "render"]
