"""One node of the model: its parts, and what is excused on it."""

from dataclasses import dataclass, field

from .daemon import ModelDaemon
from .kubelet import ModelKubelet


@dataclass
class Node:
    """The parts of one node.

    Attributes:
        ever_held: pods that its words have held.
        clouded: containers run on it that nobody knows of, or did so since it was last at peace.
        amnesia: pods that ran when the kubelet lost its checkpoint.
        excused: pods that were bound, or may have been, to a card that fell sick, or beside an older copy of
            the kubelet's checkpoint.
        sick_until: version of the Node with the words that tell of the newest sick card, or of such a copy;
            `UNSAID` before.
        rivals: when other schedulers bound pods to it, as versions of the API, by UID.
        racing: rivals of which the extender had not heard when it chose cards for a pod of ours, by its UID,
            and which the kubelet has not served since.
        served: rivals that the kubelet has served, whatever it forgot later.
    """

    name: str
    kubelet: ModelKubelet
    daemon: ModelDaemon
    daemon_up: bool = True
    ever_held: set[str] = field(default_factory=set)
    clouded: bool = False
    amnesia: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    sick_until: int | None = None
    rivals: dict[str, int] = field(default_factory=dict)
    racing: dict[str, set[str]] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
