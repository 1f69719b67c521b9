"""What of a node itself keeps a pod off: one order for batch mode, `why` and the queue."""

from itertools import product

import pytest

from kubeapi.selectors import (
    UNSCHEDULABLE,
    NodeRejection,
    NodeRules,
    NodeTraits,
    Taint,
    Toleration,
    find_node_rejection,
)

TAINTED = Taint(key="a", value="b", effect="NoSchedule")
EVERYTHING = NodeRules(tolerations=(Toleration(operator="Exists"),))


def reject(*, ready=True, cordoned=False, labels=None, taints=(), rules=None):
    rules = rules or NodeRules(selector=(("zone", "x"),))
    node = NodeTraits("n", ready, cordoned, {"zone": "x"} if labels is None else labels, taints)
    found = find_node_rejection(node, rules, rules.tolerates)
    if ready is not False:
        assert rules.allows_node("n", node.labels, taints, unschedulable=cordoned) == (found is None)
    return found


def test_the_first_reason_counts_in_the_order_of_the_enumeration():
    for not_ready, cordoned, other_zone, tainted in product((False, True), repeat=4):
        found = reject(
            ready=not not_ready,
            cordoned=cordoned,
            labels={} if other_zone else None,
            taints=(TAINTED,) if tainted else (),
        )
        asked = zip(NodeRejection, (not_ready, cordoned, other_zone, tainted), strict=True)
        first = next((each for each, holds in asked if holds), None)
        taint = TAINTED if first is NodeRejection.TAINT else None
        assert found == (None if first is None else (first, taint))


@pytest.mark.parametrize("ready", [True, None])
def test_a_node_that_says_nothing_of_being_ready_is_ready(ready):
    assert reject(ready=ready) is None


def test_a_cordon_may_be_tolerated_and_its_taint_outlives_it():
    assert reject(cordoned=True, rules=EVERYTHING) is None
    assert reject(taints=(UNSCHEDULABLE,)) == (NodeRejection.TAINT, UNSCHEDULABLE)


@pytest.mark.parametrize(
    ("operator", "stands"), [("", True), ("Equal", True), ("Exists", True), ("Gt", False)]
)
def test_a_toleration_with_an_operator_that_is_off_by_default_covers_nothing(operator, stands):
    """kube-scheduler compares numbers only with the feature gate TaintTolerationComparisonOperators."""
    toleration = Toleration(key="a", operator=operator, value="b")
    found = reject(taints=(TAINTED,), rules=NodeRules(tolerations=(toleration,)))
    assert found == (None if stands else (NodeRejection.TAINT, TAINTED))
