"""The queue's settings: every fault is told at once."""

import pytest

from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.running.settings import QueueSettings


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
    )
    with pytest.raises(SettingsError) as caught:
        settings.check()
    told = str(caught.value)
    assert len(told.splitlines()) == 11
    for value in (
        "/nowhere",
        "'8911'",
        "best",
        "worst",
        "of 0 MiB",
        "'A'",
        "'_'",
        "3 s",
        "1 s",
        "'loud'",
        "'xml'",
    ):
        assert value in told, value


def test_a_lease_is_looked_at_where_there_is_an_election_only() -> None:
    QueueSettings(config="queues.yaml", lease_namespace="A", lease_s=1).check()
