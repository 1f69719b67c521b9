"""PodDisruptionBudgets as the preemptor reads them."""

import json
from typing import Any

import msgspec
import pytest

from kubeapi.objects import PodDisruptionBudget
from scheduler_plugin.cache.disruption_budgets import (
    DisruptionBudgets,
    EvictionAllowance,
    find_violations,
    keeps_budgets,
)
from scheduler_plugin.cache.pods import PodRecord, read_pod
from tests.cluster_builders import MEMORY, pod

WEB = {"matchLabels": {"app": "web"}}


def budget(name: str, selector: Any, allowed: int = 1, namespace: str = "default") -> PodDisruptionBudget:
    body = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.json.decode(json.dumps(body), type=PodDisruptionBudget)


def labelled(name: str = "p", **labels: str) -> PodRecord:
    return read_pod(pod(name, 4, labels=labels), MEMORY)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        (None, False),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "x"}}, False),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Near"}]}, False),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    ],
    ids=str,
)
def test_selectors(selector: Any, matches: bool) -> None:
    budgets = DisruptionBudgets()
    budgets.replace([budget("b", selector)], "1")
    allowance = EvictionAllowance("default", "b", 1, covers_all=not selector)
    assert budgets.list_covering(labelled(app="web")) == ([allowance] if matches else [])


def test_what_the_watch_brings() -> None:
    budgets = DisruptionBudgets()
    assert not budgets.synced
    budgets.replace([budget("one", {}), budget("two", {}, namespace="other")], "1")
    assert budgets.synced
    assert [each.name for each in budgets.list_covering(labelled())] == ["one"]
    budgets.event("MODIFIED", budget("one", {}, allowed=-1), "2")
    assert budgets.list_covering(labelled()) == [EvictionAllowance("default", "one", 0, covers_all=True)]
    budgets.event("ADDED", budget("three", {}), "3")
    budgets.event("DELETED", budget("one", {}), "4")
    budgets.event("DELETED", budget("never", {}, namespace="seen"), "5")
    budgets.bookmark("6")
    budgets.disconnected(OSError())
    assert [each.name for each in budgets.list_covering(labelled())] == ["three"]
    budgets.replace([], "7")
    assert budgets.list_covering(labelled()) == []


def test_a_budget_counts_all_of_its_pods_and_no_other() -> None:
    budgets = DisruptionBudgets()
    budgets.replace([budget("web", WEB, allowed=1)], "1")
    first, second, other = labelled("a", app="web"), labelled("b", app="web"), labelled("c")
    assert keeps_budgets(budgets, [first, other])
    assert not keeps_budgets(budgets, [first, second])


def test_a_pod_that_two_budgets_count_is_evicted_by_nobody() -> None:
    budgets = DisruptionBudgets()
    budgets.replace([budget("one", {}, allowed=5), budget("two", {}, allowed=5)], "1")
    assert not keeps_budgets(budgets, [labelled()])


def test_an_empty_selector_and_pods_without_labels_are_no_violation_for_kube_scheduler() -> None:
    absent = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
    budgets = DisruptionBudgets()
    shut = [budget("all", {}, 0), budget("absent", absent, 0), budget("web", WEB, 0)]
    budgets.replace(shut, "1")
    pods = [
        labelled("plain"),
        labelled("web", app="web"),
        labelled("other", app="other"),
        labelled("t", tier="1"),
    ]
    assert find_violations(budgets, pods) == {"uid-web", "uid-t"}
