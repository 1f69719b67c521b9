"""The queue's configuration: what is read, and every fault with its path."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from kubeapi.bounded_yaml import MOST_BYTES
from kubeapi.names import LABEL_KEY
from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.config.queues import (
    QueueConfig,
    _find_cohort_circles,
    explain_overcommit,
    parse_config,
)
from scheduler_plugin.queue.config.quota import find_cohorts
from scheduler_plugin.queue.controller.config_file import ConfigFile

FULL = """
queues:
  - name: research
    cohort: lab
    weight: 3
    nominalQuota: 160
    borrowingLimit: 40
    lendingLimit: 80
    namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [a, b]}]}
    queueingStrategy: StrictFIFO
    stopPolicy: Hold
  - name: other
cohorts: [{name: lab, parent: all}, {name: all}]
slots: {per: card, local: {count: 2, shareOfCards: 50}, free: {nodeSelector: {matchLabels: {a: b}}}}
locality: {labelPrefix: data/, rackLabel: rack}
mode: batch
nodePolicy: best-fit
nodePolicyParameters: {best-fit: {mode: pick, limit: 4}, weighted-balance: {threshold: 0.25}}
reclaim: evict
launchOrder: fifo
keepRoomAfter: 1h30m
keepRoomAtLatest: 48h
bindWithin: 90s
gangWithin: 10m
"""


def test_everything_is_read() -> None:
    config = parse_config("f", FULL)
    research = config.queues["research"]
    assert (research.weight, research.quota.nominal, research.queueing_strategy) == (3, 160, "StrictFIFO")
    assert config.parents == {"lab": "all"}
    assert config.slots is not None
    assert (config.slots.local.count, config.slots.local.share_of_cards) == (2, 50)
    assert config.keep_room_at_latest_s == 48 * 3600
    assert (config.keep_room_after_s, config.bind_within_s, config.gang_within_s) == (5400, 90, 600)
    assert (config.mode, config.reclaim, config.plain_launch) == ("batch", "evict", True)
    assert config.node_policy == "best-fit"
    assert config.node_policy_parameters == {
        "best-fit": {"mode": "pick", "limit": "4"},
        "weighted-balance": {"threshold": "0.25"},
    }


def test_faults_of_the_document_hide_none_of_its_parts() -> None:
    """Who mends a file wants all of its faults at once."""
    with pytest.raises(QueueConfigError) as caught:
        parse_config(
            "f",
            "mode: bach\nqueues: [{name: a, weigth: 3}, {name: b}]\ncohorts: 5\nbindWithin: -1m\n"
            "slots: {per: x}\nlocality: {enabled: maybe}\n",
        )
    for path in ("mode", "queues[0].weigth", "cohorts", "bindWithin", "slots.per", "locality.enabled"):
        assert f"f: {path}: " in str(caught.value)
    assert len(str(caught.value).splitlines()) == 6


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            """mode: bach
queues: [{name: a, lendingLimit: 1}, {name: a}]
cohorts: [{name: x, parent: y}]
slots: {per: node, free: {shareOfCards: 50}}""",
            [
                "mode: 'bach'; allowed: batch, gate",
                "queues.name: a stands twice; allowed: once",
                "queues[0].lendingLimit: 1; allowed beside a nominalQuota only",
                "cohorts[0].parent: y; allowed: the cohorts x",
                "slots: shareOfCards; allowed with per: card only",
            ],
        ),
        (
            "queues: [{name: a, weight: 0}, {name: a}]",
            [
                "queues[0].weight: 0; allowed: numbers from 0.000001 to 1000000",
                "queues.name: a stands twice; allowed: once",
            ],
        ),
        (
            "queues: [{name: a, cohort: c, weight: 0}]\ncohorts: [{name: x, parent: c}]",
            ["queues[0].weight: 0; allowed: numbers from 0.000001 to 1000000"],
        ),
        (
            "queues: [{name: a}]\ncohorts: [{name: x, parent: y}, {name: y, weight: 1}]",
            ["cohorts[1].weight: 1; there is no such key; allowed: name, parent"],
        ),
        (
            "queues: []\ncohorts: [{name: x, parent: c}]",
            ["queues: an empty list; allowed: a list of 1 or more"],
        ),
    ],
)
def test_a_fault_of_one_part_neither_hides_nor_makes_faults_between_parts(
    text: str, faults: list[str]
) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", text)
    assert list(caught.value.faults) == faults


def test_what_is_left_out_has_defaults() -> None:
    config = parse_config("f", "queues: [{name: a}]")
    queue = config.queues["a"]
    assert (queue.weight, queue.quota.nominal, queue.queueing_strategy, queue.stop_policy) == (
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
        ("queues: [{name: a, wieght: 1}]", ["queues[0].wieght"]),
        ("queues: [{weight: 1}]", ["queues[0].name"]),
        ("queues: [{name: a, weight: 1, weight: 7}]", ["queues[0].weight"]),
        ("queues: [{name: a}]\nqueues: [{name: b}]", ["queues"]),
        (
            "queues: [{name: a, cohort: My Cohort!}, {name: b, cohort: ' c'}]",
            ["queues[0].cohort", "queues[1].cohort"],
        ),
        ("queues: [{name: a}]\ncohorts: [{name: x, parent: y}]", ["cohorts[0].parent"]),
        (
            "queues: [{name: a, nominalQuota: 4, borrowingLimit: 4, lendingLimit: 4}]",
            ["queues[0].borrowingLimit", "queues[0].lendingLimit"],
        ),
        (
            "queues: [{name: A_}, {name: b, borrowingLimit: 1}]",
            ["queues[0].name", "queues[1].borrowingLimit"],
        ),
        ("queues: [{name: a}]\nlocality: false", ["locality"]),
        ("queues: [{name: a}]\nlocality: 0", ["locality"]),
        ("queues: [{name: a}]\nlocality: []", ["locality"]),
        (
            "queues: [{name: a}]\nslots: {gpu: {count: 1}, local: {count: many}}",
            ["slots.gpu", "slots.local.count"],
        ),
        (
            "queues: [{name: a, namespaceSelector: {matchLabels: {k: 1}}}]",
            ["queues[0].namespaceSelector.matchLabels.k"],
        ),
        ("queues: [{name: a}]\nbindWithin: " + "9" * 5000 + "s", ["bindWithin"]),
        ("queues: [{name: a, nominalQuota: -1}]", ["queues[0].nominalQuota"]),
        ("queues: [{name: a, lendingLimit: 1}]", ["queues[0].lendingLimit"]),
        ("queues: [{name: a, cohort: c, nominalQuota: 4, lendingLimit: 5}]", ["queues[0].lendingLimit"]),
        ("queues: [{name: a}, {name: a}]", ["queues.name"]),
        ("queues: [{name: a, queueingStrategy: Fifo}]", ["queues[0].queueingStrategy"]),
        ("queues: [{name: a, namespaceSelector: {labels: {}}}]", ["queues[0].namespaceSelector.labels"]),
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
        (
            "queues: [{name: a, weight: 0}, {name: b, stopPolicy: x}]",
            ["queues[0].weight", "queues[1].stopPolicy"],
        ),
    ],
)
def test_every_fault_is_told_with_its_path(text: str, faults: list[str]) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("queues.yaml", text)
    assert [fault.partition(":")[0] for fault in caught.value.faults] == faults
    assert all(line.startswith("queues.yaml: ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("weight: 0", "queues[0].weight: 0; allowed: numbers from 0.000001 to 1000000"),
        ("weight: .nan", "queues[0].weight: nan; allowed: numbers from 0.000001 to 1000000"),
        (
            "nominalQuota: 10Gi",
            "queues[0].nominalQuota: '10Gi'; allowed: whole numbers from 0 to 1099511627776",
        ),
        ("stopPolicy: foo", "queues[0].stopPolicy: 'foo'; allowed: Hold, HoldAndDrain, None"),
        ("weight: 1, weight: 7", "queues[0].weight: stands again with '7'; allowed: once"),
        (
            "gpu: {}",
            (
                "queues[0].gpu: a mapping; there is no such key; allowed: name, cohort, weight, "
                "nominalQuota, borrowingLimit, lendingLimit, namespaceSelector, queueingStrategy, stopPolicy"
            ),
        ),
        (
            "namespaceSelector: {matchLabels: all}",
            "queues[0].namespaceSelector.matchLabels: 'all'; allowed: a mapping of texts",
        ),
    ],
)
def test_a_fault_names_the_value_and_what_is_allowed(text: str, fault: str) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", f"queues: [{{name: a, {text}}}]")
    assert caught.value.faults == (fault,)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("locality: {rackLabel: KEY}", "locality.rackLabel"),
        ("slots: {free: {nodeSelector: {matchLabels: {KEY: x}}}}", "slots.free.nodeSelector.matchLabels"),
        (
            "slots: {local: {nodeSelector: {matchExpressions: [{key: KEY, operator: Exists}]}}}",
            "slots.local.nodeSelector.matchExpressions[0].key",
        ),
    ],
)
def test_a_key_that_no_label_can_have_is_a_fault(text: str, path: str) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", "queues: [{name: a}]\n" + text.replace("KEY", "'no such/ key!!'"))
    assert caught.value.faults == (f"{path}: 'no such/ key!!'; allowed: {LABEL_KEY}",)


def test_no_queue_is_a_fault_that_says_so() -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", "queues: []")
    assert caught.value.faults == ("queues: an empty list; allowed: a list of 1 or more",)


def test_a_key_may_stand_once_in_each_of_several_mappings() -> None:
    config = parse_config("f", "queues: [{name: a, cohort: c}, {<<: {cohort: c}, name: b}]")
    assert [queue.cohort for queue in config.queues.values()] == ["c", "c"]


def test_a_circle_of_cohorts_is_shown() -> None:
    with pytest.raises(QueueConfigError, match="x > y > x is a circle; allowed: a tree"):
        parse_config("f", "queues: [{name: a}]\ncohorts: [{name: x, parent: y}, {name: y, parent: x}]")


def test_quotas_over_the_sum_of_the_cluster_are_told() -> None:
    config = parse_config("f", "queues: [{name: a, nominalQuota: 60}, {name: b, nominalQuota: 60}]")
    assert explain_overcommit(config, 120) == ""
    assert explain_overcommit(config, 100) == (
        "nominal quotas sum up to 120 units and the cluster's cards have 100"
    )


async def test_a_file_that_cannot_be_read_for_whatever_reason_changes_nothing(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    path, taken = tmp_path / "queues.yaml", list[QueueConfig]()
    path.write_text("queues: [{name: a}]")
    file = ConfigFile(str(path))
    file.load()
    path.write_text("queues: [{name: b}]")
    bad = mocker.patch(
        "scheduler_plugin.queue.controller.config_file.parse_config", side_effect=ValueError("4300 digits")
    )
    await file.reload(taken.append)
    assert (taken, file.fault) == ([], f"{path}: cannot be read: ValueError: 4300 digits")
    mocker.stop(bad)
    path.write_text("queues: [{name: c}]")
    await file.reload(taken.append)
    assert ([list(config.queues) for config in taken], file.fault) == ([["c"]], "")


@pytest.mark.parametrize("text", [None, " " * MOST_BYTES + "queues: []"])
async def test_a_file_that_is_again_as_it_was_has_no_fault(tmp_path: Path, text: str | None) -> None:
    path, taken = tmp_path / "queues.yaml", list[QueueConfig]()
    path.write_text("queues: [{name: a}]")
    file = ConfigFile(str(path))
    file.load()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    await file.reload(taken.append)
    assert file.fault.startswith(f"{path}: ")
    path.write_text("queues: [{name: a}]")
    await file.reload(taken.append)
    assert (taken, file.fault) == ([], "")


async def test_the_faults_of_a_text_are_told_again_after_it_could_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text("queues: [{name: a}]")
    file = ConfigFile(str(path))
    file.load()
    faults = []
    for text in ("queues: [{name: b, weight: 0}]", None, "queues: [{name: b, weight: 0}]"):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        await file.reload(lambda _config: pytest.fail("it has faults"))
        faults.append(file.fault)
    assert "weight" in faults[0]
    assert "cannot be read" in faults[1]
    assert faults[2] == faults[0]


async def test_the_loop_goes_on_while_a_configuration_is_read(tmp_path: Path) -> None:
    """It renews the Lease: a leader that is silent while it reads stops being one."""
    path, taken, loop_went_on = tmp_path / "queues.yaml", list[QueueConfig](), threading.Event()
    path.write_text("queues: [{name: a}]")
    file = ConfigFile(
        str(path), lambda _policy, _given: () if loop_went_on.wait(10) else ["the loop stood still"]
    )
    asyncio.get_running_loop().call_soon(loop_went_on.set)
    await file.reload(taken.append)
    assert (len(taken), file.fault) == (1, "")


BOMB = "nodePolicyParameters: {p: {x: &a [x, x], y: [*a, *a]}}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (BOMB, "line 1: alias *a; allowed: the values written out"),
        ("queues:\n  " + "[" * 70 + "]" * 70, "line 2: nested deeper than 64 levels"),
        ("a: 1" + ":1" * 1000, "line 1: a number of 2001 characters; allowed: 1024"),
        ("#" * (1 << 20) + "\n", "1048577 bytes; allowed: 1048576"),
        ("queues: [{name: a}]\n---\nqueues: [{name: b}]", "line 3: another document; allowed: one"),
    ],
    ids=["alias", "depth", "number", "length", "documents"],
)
def test_what_would_take_long_to_read_is_refused(text: str, fault: str) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", text)
    assert caught.value.faults == (fault,)


class CountedParents(dict[str, str]):
    """Counts how often a cohort's parent is asked for."""

    asked = 0

    def __getitem__(self, name: str) -> str:
        self.asked += 1
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> Any:
        self.asked += 1
        return super().get(name, default)


@pytest.mark.parametrize(
    "find",
    [
        lambda parents: list(_find_cohort_circles(parents)),
        lambda parents: find_cohorts([(f"queue-{n}", f"c{n}") for n in range(400)], parents),
    ],
    ids=["circles", "roots"],
)
def test_a_chain_of_cohorts_is_followed_once(find: Callable[[Mapping[str, str]], object]) -> None:
    parents = CountedParents({f"c{at}": f"c{at + 1}" for at in range(400)})
    find(parents)
    assert parents.asked <= 2 * len(parents)


def test_of_a_thousand_faults_some_are_told_and_the_others_counted() -> None:
    cohorts = ", ".join(f"{{name: c{at}, parent: x{at}}}" for at in range(1000))
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", f"queues: [{{name: a}}]\ncohorts: [{cohorts}]")
    assert (len(caught.value.faults), caught.value.faults[-1]) == (101, "900 faults more")
    assert max(map(len, caught.value.faults)) < 256


def test_a_long_circle_of_cohorts_is_told_in_part() -> None:
    cohorts = ", ".join(f"{{name: c{at}, parent: c{(at + 1) % 1000}}}" for at in range(1000))
    with pytest.raises(
        QueueConfigError, match=r" c0 > c1 > .* > c18 > \.\.\. 981 more \.\.\. > c0 is a circle"
    ):
        parse_config("f", f"queues: [{{name: a}}]\ncohorts: [{cohorts}]")


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ("queues: [{name: a, strategy: StrictFIFO}]", "queues[0].strategy: 'StrictFIFO'"),
        ("queues: [{name: a}]\nlaunch: fifo", "launch: 'fifo'"),
    ],
)
def test_a_key_that_there_is_not_is_told_with_those_there_are(config: str, fault: str) -> None:
    with pytest.raises(QueueConfigError) as caught:
        parse_config("f", config)
    (found,) = caught.value.faults
    assert found.startswith(f"{fault}; there is no such key; allowed: ")
    assert ("queueingStrategy" if "strategy" in config else "launchOrder") in found


def test_yes_and_no_are_parameters_as_the_pages_write_them() -> None:
    """YAML makes booleans of them."""
    text = "queues: [{name: a}]\nnodePolicyParameters: {weighted-balance: {rotate: yes}, p: {q: no}}"
    assert parse_config("f", text).node_policy_parameters == {
        "weighted-balance": {"rotate": "yes"},
        "p": {"q": "no"},
    }
