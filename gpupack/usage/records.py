"""Records of use over time: periods, and the part of each pod."""

import msgspec


class PodUse(msgspec.Struct, frozen=True, gc=False):
    """PodUse is what one pod had during a period.

    Attributes:
        namespace: namespace of the pod; empty if nobody says.
        name: name of the pod; empty if nobody says.
        labels: labels of the pod, without those that differ from one replica to the next.
        promised_mib_s: MiB it was promised times seconds.
        used_mib_s: MiB used times seconds, over the measured time; None if nothing was measured.
        measured_mib_s: the part of `promised_mib_s` whose use was measured.
    """

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    promised_mib_s: float
    used_mib_s: float | None
    measured_mib_s: float


class Period(msgspec.Struct, frozen=True, gc=False):
    """Period is some minutes of sampled use.

    Attributes:
        start: seconds since the epoch.
        end: seconds since the epoch.
        sampled_s: seconds of it that were seen.
        pods: that had something.
    """

    start: float
    end: float
    sampled_s: float
    pods: list[PodUse]
