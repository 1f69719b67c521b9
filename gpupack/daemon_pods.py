"""How the pods of node daemons are found, as the manifests name them."""

from typing import Final

DAEMON_NAMES: Final = ("gpupack-node", "gpupack-node-dra")
"""Label `app.kubernetes.io/name` of the node daemons' pods."""

DAEMON_NAMESPACE: Final = "gpupack-system"
"""Where an installation has them, unless it says otherwise. Pods elsewhere are not believed."""
