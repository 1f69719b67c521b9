"""The texts that people read in a pod's events.

A reason depends on the request's shape alone: kube-scheduler writes reasons into the pod, and a pod whose
text changes is queued again at once. Numbers that change belong to `gpupack why`.
"""

from collections.abc import Sequence

from allocator.names import MIB_PER_GIB
from scheduler_plugin.placement.filtering import Misfit
from scheduler_plugin.placement.policies.registry import CardDemand

_FIXED = {
    Misfit.UNKNOWN_NODE: "node not known to the gpupack scheduler yet",
    Misfit.NO_WORDS: "no gpupack words on the node",
    Misfit.CORRUPT: "corrupt gpupack words on the node",
    Misfit.OTHER_UNIT: "gpupack words of another unit on the node",
    Misfit.NO_PLUGIN: "the node's kubelet has no gpupack device plugin at the moment",
    Misfit.BUSY: "a pod of the same size and another shape is starting on the node",
    Misfit.HELD_BACK: "held back by the node policy",
    Misfit.NO_SUCH_CARD: "no card of the cluster that the pod's gpu-model and gpu-uuid admit",
}


def memory(units: int, unit_mib: int) -> str:
    """Write an amount of GPU memory for people: in GiB where it is whole, else in MiB."""
    mib = units * unit_mib
    return f"{mib // MIB_PER_GIB} GiB" if mib % MIB_PER_GIB == 0 else f"{mib} MiB"


def demanded(demands: Sequence[CardDemand], unit_mib: int) -> str:
    """Write what a pod asks of cards: "8 GiB", "2 x 8 GiB + 4 GiB"."""
    return " + ".join(
        memory(d.units, unit_mib) if d.cards == 1 else f"{d.cards} x {memory(d.units, unit_mib)}"
        for d in demands
    )


def reason(misfit: Misfit, demands: Sequence[CardDemand], unit_mib: int) -> str:
    """Say why a node cannot take a pod.

    Args:
        misfit: What was found.
        demands: What the pod asks for, in order.
        unit_mib: MiB a unit.
    """
    fixed = _FIXED.get(misfit)
    if fixed is not None:
        return fixed
    if len(demands) > 1:
        what = demanded(demands, unit_mib)
        return {
            Misfit.NOT_ADMITTED: "no cards that the pod's gpu-model and gpu-uuid admit",
            Misfit.TOO_SMALL: f"no healthy cards large enough for {what}",
        }.get(misfit, f"no cards with {what} free")
    units, cards = demands[0]
    amount = memory(units, unit_mib)
    if cards == 1:
        return {
            Misfit.NOT_ADMITTED: "no card that the pod's gpu-model and gpu-uuid admit",
            Misfit.TOO_SMALL: f"no healthy card of {amount} or more",
        }.get(misfit, f"no card with {amount} free")
    return {
        Misfit.NOT_ADMITTED: f"no {cards} cards that the pod's gpu-model and gpu-uuid admit",
        Misfit.TOO_SMALL: f"no {cards} healthy cards of {amount} or more",
    }.get(misfit, f"no {cards} cards with {amount} free each")
