"""Each rule of pod groups taken out, one at a time: some history must break that passes with the rule."""

from scheduler_plugin.cache.charges import AssumedPod
from scheduler_plugin.cache.group_holds import GroupHolds
from scheduler_plugin.cache.reservations import Reservations
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.extender.verbs import Extender
from tests.property.kernel.mutant import Mutant

from .history import run

STEPS = 600


def troubled(seed: int) -> None:
    """One history in which Bindings fail and processes begin anew."""
    run(seed, STEPS, 1.0)


def quiet(seed: int) -> None:
    """One history in which nothing fails."""
    run(seed, STEPS, 0.0)


MUTANTS = (
    Mutant(
        "other pods respect held cards",
        Reservations.charged_against,
        "chain(self._by_uid.values(), self.held.values(), planned)",
        "chain(self._by_uid.values(), planned)",
        quiet,
    ),
    Mutant(
        "a pod of a group gets one node",
        Extender._filter_cards,
        "most if group is None else 1",
        "most",
        quiet,
    ),
    Mutant(
        "a hold ends once the pod is assumed",
        ClusterState.assume,
        "self._end_group_holds(pod)",
        "pass",
        quiet,
    ),
    Mutant(
        "a hold ends with its pod",
        ClusterState._remove_pod,
        "self._end_group_holds(old)",
        "pass",
        quiet,
    ),
    Mutant(
        "holds end some time after the last call",
        GroupHolds.expire,
        "if age_s >= HOLD_S and (age_s >= BINDING_HOLD_S or not self._is_binding(key, cycle)):",
        "if False:",
        quiet,
    ),
    Mutant(
        "holds last no longer than that where no Binding is under way",
        GroupHolds.expire,
        "age_s >= BINDING_HOLD_S or not self._is_binding(key, cycle)",
        "age_s >= BINDING_HOLD_S",
        quiet,
    ),
    Mutant(
        "a group that has failed in a pass gets no more nodes in it",
        GroupHolds.begin_call,
        "return not cycle.has_failed",
        "return True",
        quiet,
    ),
    Mutant(
        "pods that hold cards count in their group, known or not",
        GroupHolds._can_start,
        "waiting.union(cycle.asked, (uid for uid, _ in cycle.held))",
        "waiting.union(cycle.asked)",
        quiet,
    ),
    Mutant(
        "a pod whose status alone has changed stays assumed",
        AssumedPod.is_same_request,
        "return msgspec.structs.replace(pod, resource_version=version, nominated=nominated) == known",
        "return False",
        troubled,
    ),
)
