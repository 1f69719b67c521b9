"""A real Kubernetes cluster on one machine, from nothing, and everything of it gone afterwards.

`Cluster` is the entry: a control plane on loopback ports and one node in namespaces of its own.
"""

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.daemons import Extender, NodeDaemon
from tests.cluster.harness.node import NodeSide
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Api, ApiError

__all__ = ["Api", "ApiError", "Cluster", "Extender", "NodeDaemon", "NodeSide", "until"]
