"""The queue's configuration: what is read, and every fault with its path."""

import pytest

from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.config import over_the_cluster, parse_config

FULL = """
queues:
  - name: research
    cohort: lab
    weight: 3
    nominalQuota: 160
    borrowingLimit: 40
    lendingLimit: 80
    namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [a, b]}]}
    strategy: StrictFIFO
    stop: Hold
  - name: other
cohorts: [{name: lab, parent: all}, {name: all}]
slots: {per: card, local: {count: 2, shareOfCards: 50}, free: {nodeSelector: {matchLabels: {a: b}}}}
locality: {labelPrefix: data/, rackLabel: rack}
mode: batch
reclaim: evict
launch: fifo
keepRoomAfter: 1h30m
keepRoomAtLatest: 48h
bindWithin: 90s
gangWithin: 10m
"""


def test_everything_is_read() -> None:
    config = parse_config("f", FULL)
    research = config.queues["research"]
    assert (research.weight, research.quota.nominal, research.strategy) == (3, 160, "StrictFIFO")
    assert config.parents == {"lab": "all"}
    assert config.slots is not None
    assert (config.slots.local.count, config.slots.local.share_of_cards) == (2, 50)
    assert config.keep_room_at_latest_s == 48 * 3600
    assert (config.keep_room_after_s, config.bind_within_s, config.gang_within_s) == (5400, 90, 600)
    assert (config.mode, config.reclaim, config.plain_launch) == ("batch", "evict", True)


def test_what_is_left_out_has_defaults() -> None:
    config = parse_config("f", "queues: [{name: a}]")
    queue = config.queues["a"]
    assert (queue.weight, queue.quota.nominal, queue.strategy, queue.stop) == (
        1,
        None,
        "BestEffortFIFO",
        "None",
    )
    assert (config.slots, config.mode, config.reclaim) == (None, "gate", "wait")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("queues: [", ["not YAML"]),
        ("[]", ["document"]),
        ("queues: []", ["queues"]),
        ("queues: [{name: A_}]", ["queues[0].name"]),
        ("queues: [{name: a, weight: 0}]", ["queues[0].weight"]),
        ("queues: [{name: a, weight: -1}]", ["queues[0].weight"]),
        ("queues: [{name: a, wieght: 1}]", ["queues[0]"]),
        ("queues: [{name: a, nominalQuota: -1}]", ["queues[0].nominalQuota"]),
        ("queues: [{name: a, lendingLimit: 1}]", ["queues[0].lendingLimit"]),
        ("queues: [{name: a, nominalQuota: 4, lendingLimit: 5}]", ["queues[0].lendingLimit"]),
        ("queues: [{name: a}, {name: a}]", ["queues.name"]),
        ("queues: [{name: a, strategy: Fifo}]", ["queues[0].strategy"]),
        ("queues: [{name: a, namespaceSelector: {labels: {}}}]", ["queues[0].namespaceSelector"]),
        (
            "queues: [{name: a, namespaceSelector: {matchExpressions: [{key: k, operator: Gt}]}}]",
            ["queues[0].namespaceSelector.matchExpressions[0].operator"],
        ),
        (
            "queues: [{name: a, namespaceSelector: {matchExpressions: [{key: k, operator: In}]}}]",
            ["queues[0].namespaceSelector.matchExpressions[0].values"],
        ),
        (
            """queues: [{name: a}]
slots: {free: {nodeSelector: {matchExpressions: [{key: k, operator: Exists, values: [x]}]}}}""",
            ["slots.free.nodeSelector.matchExpressions[0].values"],
        ),
        ("queues: [{name: a}]\ncohorts: [{name: x, parent: y}, {name: y, parent: x}]", ["cohorts"]),
        ("queues: [{name: a}]\ncohorts: [{name: x, parent: x}]", ["cohorts"]),
        ("queues: [{name: a}]\nslots: {local: {count: 0}, free: {count: 0}}", ["slots"]),
        ("queues: [{name: a}]\nslots: {per: rack}", ["slots.per"]),
        ("queues: [{name: a}]\nslots: {per: node, local: {shareOfCards: 50}}", ["slots"]),
        ("queues: [{name: a}]\nbindWithin: 5", ["bindWithin"]),
        ("queues: [{name: a}]\nbindWithin: 5 minutes", ["bindWithin"]),
        ("queues: [{name: a}]\nkeepRoomAfter: 0s", ["keepRoomAfter"]),
        ("queues: [{name: a}]\nkeepRoomAtLatest: a week", ["keepRoomAtLatest"]),
        ("queues: [{name: a}]\nmode: now", ["mode"]),
        ("queues: [{name: a, weight: 0}, {name: b, stop: x}]", ["queues[0].weight", "queues[1].stop"]),
    ],
)
def test_every_fault_is_told_with_its_path(text: str, faults: list[str]) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("queues.yaml", text)
    assert [fault.partition(":")[0] for fault in caught.value.faults] == faults
    assert all(line.startswith("queues.yaml: ") for line in str(caught.value).splitlines())


def test_a_circle_of_cohorts_is_shown() -> None:
    with pytest.raises(QueueConfigError, match="x > y > x is a circle; allowed is a tree"):
        parse_config("f", "queues: [{name: a}]\ncohorts: [{name: x, parent: y}, {name: y, parent: x}]")


def test_quotas_over_the_sum_of_the_cluster_are_told() -> None:
    config = parse_config("f", "queues: [{name: a, nominalQuota: 60}, {name: b, nominalQuota: 60}]")
    assert over_the_cluster(config, 120) == ""
    assert over_the_cluster(config, 100) == (
        "nominal quotas sum up to 120 units and the cluster's cards have 100"
    )
