"""Pods as the page needs them: what the scheduler reads, and why kube-scheduler says that they wait."""

from msgspec import field

from scheduler_plugin.cluster.objects import PodLite, PodMetadata, PodStatus, Struct


class Condition(Struct):
    """One of a pod's conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class SeenStatus(PodStatus):
    """`status` of a pod."""

    conditions: list[Condition] | None = None


class SeenMetadata(PodMetadata):
    """`metadata` of a pod."""

    creation_timestamp: str | None = None


class SeenPod(PodLite):
    """A pod."""

    metadata: SeenMetadata = field(default_factory=SeenMetadata)
    status: SeenStatus = field(default_factory=SeenStatus)
