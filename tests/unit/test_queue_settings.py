"""The queue's settings: every fault is told at once."""

from typing import Any

import pytest

from allocator.request import PodRequest
from scheduler_plugin.errors import PolicyError, QueueConfigError, SettingsError
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.controller.settings import QueueSettings


def test_the_defaults_hold() -> None:
    QueueSettings(config="queues.yaml").check()


def test_every_fault_is_told_at_once() -> None:
    settings = QueueSettings(
        config="queues.yaml",
        kubeconfig="/nowhere",
        http="8911",
        node_policy="best",
        card_policy="worst",
        unit_mib=0,
        leader_elect=True,
        lease_namespace="A",
        lease_name="_",
        lease_s=9,
        write_timeout_s=3,
        stale_s=1,
        log_level="loud",
        log_format="xml",
        committer="127.0.0.1:8910",
    )
    with pytest.raises(SettingsError) as caught:
        settings.check()
    told = str(caught.value)
    assert len(told.splitlines()) == 12
    for value in (
        "/nowhere",
        "'8911'",
        "best",
        "worst",
        "--unit-mib 0;",
        "'A'",
        "'_'",
        "3 s",
        "1 s",
        "'loud'",
        "'xml'",
        "--committer '127.0.0.1:8910'; allowed: http://HOST",
    ):
        assert value in told, value


def test_a_lease_is_looked_at_where_there_is_an_election_only() -> None:
    QueueSettings(config="queues.yaml", lease_namespace="A", lease_s=1).check()


def test_the_queue_finds_nodes_through_the_index_of_best_fit_unless_told_otherwise() -> None:
    """Also for a pod that names the policy by its annotation, and beside other parameters."""
    best_fit, other = PodRequest((), node_policy="best-fit"), PodRequest(())
    settings = QueueSettings(config="queues.yaml", node_policy="least-requested")
    policies: Any = settings.make_policies()
    assert policies.get_policy(best_fit).picks
    for parameters, picks, limit in (
        ({"limit": "4"}, True, 4),
        ({"mode": "candidates"}, False, None),
        ({}, True, None),
    ):
        assert policies.configure("balanced", {"best-fit": parameters})
        assert (policies.get_policy(best_fit).picks, policies.get_policy(best_fit).settings.limit) == (
            picks,
            limit,
        )
        assert policies.get_policy(other) is policies.get_policy(PodRequest((), node_policy="balanced"))
        assert not policies.configure("balanced", {"best-fit": parameters})
    settings = QueueSettings("q", node_policy="best-fit", node_policy_parameters={"limit": "2"})
    policies = settings.make_policies()
    assert (policies.get_policy(other).picks, policies.get_policy(other).settings.limit) == (True, 2)


def test_what_a_policy_refuses_is_a_fault_and_changes_nothing() -> None:
    """Of the options and of the configuration."""
    with pytest.raises(SettingsError, match="limit is 0"):
        QueueSettings("q", node_policy="best-fit", node_policy_parameters={"limit": "0"}).check()
    settings = QueueSettings("q")
    text = "queues: [{name: a}]\nnodePolicyParameters: {best-fit: {limit: 0}}"
    with pytest.raises(QueueConfigError, match="nodePolicyParameters: best-fit: limit is 0"):
        parse_config("q", text, settings.find_policy_faults)
    with pytest.raises(QueueConfigError, match='nodePolicy: node policy "worst"'):
        parse_config("q", f"{text}\nnodePolicy: worst", settings.find_policy_faults)
    policies = settings.make_policies()
    with pytest.raises(PolicyError, match="worst"):
        policies.configure("worst", {})
    assert policies.node_policy == settings.node_policy
