"""Records of use over time: periods, and the part of each pod."""

import msgspec


class PodUse(msgspec.Struct, frozen=True, gc=False):
    """What one pod had during a period.

    Attributes:
        namespace, name: empty if nobody says.
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
    """Some minutes of sampled use, of which `sampled_s` were seen; times are seconds since the epoch."""

    start: float
    end: float
    sampled_s: float
    pods: list[PodUse]
