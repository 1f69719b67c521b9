"""What was used over time: periods, and the part of each pod."""

import msgspec

from gpupack.dashboard.trend import Point


class PodUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one pod had during a period.

    Attributes:
        namespace: of the pod; empty where nobody says.
        name: of the pod; likewise.
        uid: of the pod.
        labels: of the pod, without those that differ from one replica to the next.
        promised_mib_s: MiB it was promised times seconds.
        used_mib_s: MiB it used times seconds; None where that was not measured.
    """

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    promised_mib_s: float
    used_mib_s: float | None


class Period(msgspec.Struct, frozen=True, gc=False):
    """Some minutes.

    Attributes:
        start: seconds since the epoch.
        end: likewise.
        sampled_s: seconds of it that were seen.
        pods: that had something.
        point: the cluster's sums at its end, None where they were not known.
    """

    start: float
    end: float
    sampled_s: float
    pods: list[PodUse]
    point: Point | None = None
