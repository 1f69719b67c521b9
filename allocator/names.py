"""Every name that users, nodes and the API server see; one place, so that they cannot drift apart."""

import re

from allocator.errors import QuantityError

DOMAIN = "gpupack.io"
OWN_PREFIX = f"{DOMAIN}/"
SCHEDULER_NAME = "gpupack-scheduler"
BATCH_SCHEDULER = "gpupack-batch"

# Namespace of an installation, unless it says otherwise.
SYSTEM_NAMESPACE = "gpupack-system"

# Service of `gpupack queue` in that namespace, which leads to its leader.
QUEUE_SERVICE = "gpupack-queue"

# What containers ask for. The admission policies take any resource under GPU_PREFIX for a wish for a card.
GPU_PREFIX = f"{DOMAIN}/gpu-"
RESOURCE_PREFIX = f"{GPU_PREFIX}memory-"
PERCENT_RESOURCE = f"{GPU_PREFIX}percent"
COMPUTE_RESOURCE = f"{GPU_PREFIX}compute-percent"

# Dynamic resource allocation: driver of our ResourceSlices, class of the devices, and their capacities.
DRA_DRIVER = f"gpu.{DOMAIN}"
DEVICE_CLASS = "gpupack"
DRA_MEMORY = "memory"
DRA_COMPUTE = "compute"
DRA_API = "/apis/resource.k8s.io/v1"

# Label of the claims that the scheduler makes for pods that ask by their containers' limits.
CLAIM_LABEL = f"{DOMAIN}/pod-claim"

# Node annotation: `dra` where pods get their cards by claims.
NODE_SERVES = f"{DOMAIN}/serves"
SERVES_CLAIMS = "dra"

# Node capacity and allocatable: the packed words.
PACKED_PREFIX = f"{DOMAIN}/packed-"
PACKED_LAYOUT = f"{PACKED_PREFIX}layout"
PACKED_SIZE_PREFIX = f"{PACKED_PREFIX}size-"
PACKED_USED_PREFIX = f"{PACKED_PREFIX}used-"
PACKED_COMPUTE_LIMIT = f"{PACKED_PREFIX}compute-limit"
PACKED_COMPUTE_USED_PREFIX = f"{PACKED_PREFIX}compute-used-"
PACKED_REVISION = f"{PACKED_PREFIX}revision"

# Pod annotations written by users.
POD_CARDS = f"{DOMAIN}/cards"
POD_NODE_POLICY = f"{DOMAIN}/node-policy"
POD_CARD_POLICY = f"{DOMAIN}/card-policy"
POD_GPU_MODEL = f"{DOMAIN}/gpu-model"
POD_GPU_UUID = f"{DOMAIN}/gpu-uuid"
POD_MIXED_MODELS = f"{DOMAIN}/mixed-models"
POD_CONTAINERS = f"{DOMAIN}/containers"

POD_DATA = f"{DOMAIN}/data"
POD_JOB = f"{DOMAIN}/job"
POD_FIRST_STAGE_SIZE = f"{DOMAIN}/first-stage-size"
POD_GANG = f"{DOMAIN}/gang"
POD_GANG_SIZE = f"{DOMAIN}/gang-size"

# A pod's label, and its scheduling gate, while it waits for its turn.
QUEUE_NAME = f"{DOMAIN}/queue-name"
QUEUE_GATE = f"{DOMAIN}/queue"

# Pod annotations written by gpupack. A pod asks for the same with or without them.
POD_ASSIGNED = f"{DOMAIN}/assigned"
POD_ALLOCATION = f"{DOMAIN}/allocation"
POD_PLANNED = f"{DOMAIN}/planned"
POD_REQUEUED = f"{DOMAIN}/requeued"
OWN_POD_ANNOTATIONS = frozenset({POD_ASSIGNED, POD_ALLOCATION, POD_PLANNED, POD_REQUEUED})

# Label of the pod that leads, written by itself; the value is the Lease's name. Services select it.
LEADER_LABEL = f"{DOMAIN}/leader"

# Label app.kubernetes.io/name of the node daemons' pods.
DAEMON_NAMES = ("gpupack-node", "gpupack-node-dra")

# Pods that ask a cluster autoscaler for a node, and never run. gpupack autoscale writes the annotation.
PLACEHOLDER_LABEL = f"{DOMAIN}/placeholder"
PLACEHOLDER_SCHEDULER = "gpupack-placeholder"
PLACEHOLDER_FOR = f"autoscale.{DOMAIN}/stands-for"

# Label of a Node that placeholders keep out, for Karpenter: it refuses pods that name kubernetes.io/hostname.
NODE_HOST = f"{DOMAIN}/host"

# Taint with which a new node is born; the node daemon takes it away.
STARTUP_TAINT = f"startup-taint.cluster-autoscaler.kubernetes.io/{DOMAIN.partition('.')[0]}"

# Node taint and label written by users: nodes of batch mode alone.
BATCH_POOL = f"{DOMAIN}/batch"

# Node label written by users: the DaemonSet's nodes.
NODE_LABEL = f"{DOMAIN}/node"

# Node annotations.
NODE_CARDS = f"{DOMAIN}/cards"
NODE_HOLDS = f"{DOMAIN}/holds"
NODE_CORDON = f"{DOMAIN}/cordon"
NODE_CORDON_REASONS = f"{DOMAIN}/cordon-reasons"
NODE_DAEMON = f"{DOMAIN}/daemon"
NODE_KEPT = f"{DOMAIN}/kept"

# What chooses where nobody said: one for the node daemon, the extender, the demo and the simulator.
DEFAULT_NODE_POLICY = "fragmentation"
DEFAULT_CARD_POLICY = "fragmentation"

MIB_PER_GIB = 1024
MIB = 1 << 20
"""Bytes."""
MAX_UNIT_MIB = (1 << 24) - 1

_RESOURCE = re.compile(re.escape(RESOURCE_PREFIX) + r"(?:gib|([1-9][0-9]{0,7})mib)")


LARGEST_NUMBER = (1 << 31) - 1
"""The largest number in a record: units, MiB, or an index."""


def resource_name(unit_mib: int) -> str:
    """Name the extended resource whose quantum is `unit_mib` MiB.

    Raises:
        QuantityError: the unit is not within 1..16777215 MiB.
    """
    if not 1 <= unit_mib <= MAX_UNIT_MIB:
        raise QuantityError(f"unit of {unit_mib} MiB; allowed: 1 to {MAX_UNIT_MIB} MiB")
    return f"{RESOURCE_PREFIX}gib" if unit_mib == MIB_PER_GIB else f"{RESOURCE_PREFIX}{unit_mib}mib"


def unit_of_resource(name: str) -> int | None:
    """Return the unit in MiB that a resource name stands for, None when it is not one of ours.

    A unit has one name: `gpu-memory-1024mib` is not another way to write `gpu-memory-gib`.
    """
    match = _RESOURCE.fullmatch(name)
    if match is None:
        return None
    if match[1] is None:
        return MIB_PER_GIB
    unit_mib = int(match[1])
    return unit_mib if unit_mib <= MAX_UNIT_MIB and unit_mib != MIB_PER_GIB else None


def is_card_resource(name: str) -> bool:
    """Tell whether a resource is GPU memory: of any unit, or percent of cards."""
    return name == PERCENT_RESOURCE or unit_of_resource(name) is not None
