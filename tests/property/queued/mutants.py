"""Each precaution of two queues taken out, one at a time: some history must break that passes with it."""

from scheduler_plugin.queue.scheduler import pod_charges, queue
from tests.property.kernel.mutant import Mutant

from . import replica
from .simulation import run

STEPS = 400


def troubled(seed: int) -> None:
    """One history in which much goes wrong."""
    run(seed, STEPS, density=2.0)


def very_troubled(seed: int) -> None:
    """One history in which nearly everything does."""
    run(seed, STEPS, density=6.0)


MUTANTS = (
    Mutant(
        "no fence between two leaders",
        replica.Replica.decide,
        "            if self.now < self.leads_since + WRITE_S:\n                return\n"
        "            self.relist_pods()\n",
        "",
        very_troubled,
    ),
    Mutant(
        "what was released keeps no room",
        queue.QueueChargeRules.is_binding_stale,
        "return False",
        "return ChargeRules.is_binding_stale(self, assumed, pod)",
        troubled,
    ),
    Mutant(
        "releases of another process take no room",
        pod_charges.PodCharges._place_pod,
        "if pod is None or pod.requirements is None or pod.phase is not Phase.ADMITTED:",
        "if True:",
        troubled,
    ),
)
