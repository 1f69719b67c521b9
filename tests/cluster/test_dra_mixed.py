"""Claims and ordinary pods in random order on one node, of two kube-schedulers that do not talk.

`GPUPACK_DRA_PODS` sets how many, 30 by default.
"""

import os
from collections import Counter
from random import Random
from typing import Any, Final

import pytest

from allocator.ids import device_names
from tests.cluster.harness import Cluster, until, workload
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.dra import (
    CLAIMS,
    DRIVER,
    cdi_files,
    claim_pod,
    make_template,
    prepared_units,
    slices,
    start_with_claims,
)
from tests.cluster.harness.rest import Json
from tests.cluster.harness.views import promised_now

ALL: Final = int(os.environ.get("GPUPACK_DRA_PODS", "30"))
AT_ONCE: Final = 24
STAY: Final = 6
SECOND: Final = "second-scheduler"
SIZES: Final = {workload.uuid(0): 16, workload.uuid(1): 32}
CLAIMED_GIB: Final = (2, 5, 9)
# A pod without a card fails, and the test with it.
WORKS: Final = ("/bin/sh", "-c", 'test -n "$GPUPACK_CARDS" && sleep 1')
STAYS: Final = ("/bin/sh", "-c", 'test -n "$GPUPACK_CARDS" && exec sleep 1000000')

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300 + 10 * ALL)]


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(
        workload.cards(*(size << 10 for size in SIZES.values())), start=start_with_claims
    )
    cluster.control.start_second_scheduler(SECOND)
    for gib in CLAIMED_GIB:
        make_template(cluster, f"of-{gib}", gib)
    return cluster


def any_pod(random: Random, name: str, command: tuple[str, ...]) -> Json:
    """An ordinary pod or one with a claim, of one scheduler or the other."""
    scheduler = random.choice(("default-scheduler", SECOND))
    if random.random() < 0.5:
        container, template = workload.container(command=command), f"of-{random.choice(CLAIMED_GIB)}"
        return claim_pod(name, template, container, from_template=True, schedulerName=scheduler)
    limits = workload.container(gib=random.randint(1, 12), command=command)
    return workload.pod(name, limits, schedulerName=scheduler)


def prepared(cluster: Cluster) -> dict[str, int]:
    """Units by card that the node gives; no card may give more than it has, or one unit twice."""
    units = prepared_units(cluster)
    for card, ids in units.items():
        assert len(ids) == len(set(ids)), f"units of {card} that two claims have: {sorted(ids)}"
        assert len(ids) <= SIZES[card], f"{card} gives {len(ids)} of {SIZES[card]} units"
    return {card: len(ids) for card, ids in units.items()}


def allocated(cluster: Cluster) -> dict[str, int]:
    """Units by card of the claims that are allocated."""
    cards = {device: card for card, device in device_names(SIZES).items()}
    found: Counter[str] = Counter()
    for item in cluster.api.get(CLAIMS)["items"]:
        allocation = (item.get("status") or {}).get("allocation") or {"devices": {"results": []}}
        for result in allocation["devices"]["results"]:
            assert result["driver"] == DRIVER
            found[cards[result["device"]]] += gib(result["consumedCapacity"]["memory"])
    return dict(found)


def gib(amount: str) -> int:
    assert amount.endswith("Gi"), amount
    return int(amount.removesuffix("Gi"))


def phases(cluster: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.api.get(PODS)["items"]}


def test_no_card_has_more_than_there_is_and_no_pod_runs_without_one(cluster: Cluster) -> None:
    random = Random(33)
    waiting, ended, wrong = [f"mixed-{number}" for number in range(ALL)], set(), []

    def step() -> bool:
        """Take away who has ended and let others come; what is wrong ends it all."""
        try:
            prepared(cluster)
        except AssertionError as error:
            wrong.append(str(error))
        now = phases(cluster)
        wrong.extend(f"{name} failed" for name, phase in now.items() if phase == "Failed")
        for name in {name for name, phase in now.items() if phase == "Succeeded"} - ended:
            cluster.delete(name, wait=False)
            ended.add(name)
        for _ in range(min(len(waiting), AT_ONCE - len(now))):
            cluster.create(any_pod(random, waiting.pop(), WORKS))
        return len(ended) == ALL or bool(wrong)

    until(step, f"{ALL} pods have ended", 250 + 10 * ALL, 0.2)
    assert not wrong, wrong
    until(lambda: not phases(cluster), "all pods gone")
    until(lambda: not cluster.api.names(CLAIMS), "all claims gone")
    cluster.wait_used([0, 0])
    until(lambda: prepared(cluster) == {} and cdi_files(cluster) == [], "all claims let go")


def test_words_slices_claims_and_containers_agree_when_all_is_quiet(cluster: Cluster) -> None:
    """Pods come one after the other: of two at once the node may refuse one, until there is room."""
    random = Random(34)
    for number in range(STAY):
        name = f"stays-{number}"
        cluster.create(any_pod(random, name, STAYS))
        until(lambda name=name: settled(cluster, name), f"{name} settled")

    def agree() -> dict[str, int]:
        views = cluster.state().used_by_uuid, promised_now(cluster), allocated(cluster), prepared(cluster)
        running = list(phases(cluster).values()).count("Running")
        assert running == len(cdi_files(cluster)), (running, cdi_files(cluster))
        assert all(view == views[0] for view in views), views
        return views[0]

    units = until(agree, "all views agree")
    assert units
    free = {card.lower(): size - units.get(card, 0) for card, size in SIZES.items()}

    def order() -> bool:
        (published,) = slices(cluster)
        devices = [one["name"] for one in published["spec"]["devices"]]
        return devices == sorted(free, key=lambda device: free[device])

    until(order, "the slice's devices in the order of their room")


def settled(cluster: Cluster, name: str) -> bool:
    """Whether a pod runs, or a scheduler found no room for it."""
    return cluster.phase(name) == "Running" or cluster.scheduled(name).get("reason") == "Unschedulable"
