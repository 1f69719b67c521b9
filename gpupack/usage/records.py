"""Records of use over time: the cluster's sums at moments, periods, and the part of each pod."""

import msgspec


class PodUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """PodUse is what one pod had during a period.

    Attributes:
        namespace: namespace of the pod; empty if nobody says.
        name: name of the pod; empty if nobody says.
        labels: labels of the pod, without those that differ from one replica to the next.
        promised_mib_s: MiB it was promised times seconds.
        used_mib_s: MiB used times seconds, over the measured time; None if nothing was measured.
        measured_mib_s: the part of `promised_mib_s` whose use was measured; None in older histories, where
            all of it was or nothing.
    """

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    promised_mib_s: float
    used_mib_s: float | None
    measured_mib_s: float | None = None

    @property
    def measured_promised_mib_s(self) -> float:
        """Promised MiB times seconds, over the time whose use was measured."""
        if self.used_mib_s is None:
            return 0.0
        return self.promised_mib_s if self.measured_mib_s is None else self.measured_mib_s


class TrendPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cluster at one moment; amounts in MiB.

    Attributes:
        at: seconds since the epoch.
        size: units of all cards.
        allocated: to pods.
        overuse: used beyond promises, by pods or others.
        free: what pods could get.
        whole_free: part of that on cards with nothing on them.
        whole: how many such cards there are.
        largest: the most that one card could give.
        pending: pods that wait for cards.
    """

    at: int
    size: int
    allocated: int
    overuse: int
    free: int
    whole_free: int
    whole: int
    largest: int
    pending: int


class Period(msgspec.Struct, frozen=True, gc=False):
    """Period is some minutes of sampled use.

    Attributes:
        start: seconds since the epoch.
        end: seconds since the epoch.
        sampled_s: seconds of it that were seen.
        pods: that had something.
        point: the cluster's sums at its end, None if they were not known.
    """

    start: float
    end: float
    sampled_s: float
    pods: list[PodUse]
    point: TrendPoint | None = None
