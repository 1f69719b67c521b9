"""Cards that lose units while pods hold them: who is told, and how often."""

from dataclasses import replace

import pytest

from allocator.ids import percent_id
from allocator.ledger import Ledger, PodAccount
from deviceplugin.allocation.card_list import CardList, find_lost_cards
from deviceplugin.allocation.inventory import cards_in_units
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.health import HealthTracker
from deviceplugin.gpus.api.source import GpuCard, HealthEvent
from deviceplugin.monitoring.card_health import CardHealth
from deviceplugin.node_events import NodeEvents
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE, ids, pod

GIB = 1024


def gpu(number: int, gib: int = 8, error: str | None = None) -> GpuCard:
    return GpuCard(number, f"c{number}", "M", gib * GIB, 0, None, "", number, error)


class Node:
    """Cards c0 and c1 of 8 units; pod a has 5 of c0, pod b 3 of c1."""

    def __init__(self, *gpus: GpuCard) -> None:
        self.events: list[tuple[str, str, str]] = []
        gpus = gpus or (gpu(0), gpu(1))
        self.checkpoint = FakeCheckpoint()
        ledger = Ledger(cards_in_units(gpus, GIB))
        self.account = LedgerService(ledger, self.checkpoint.read, RESOURCE)
        notices = self.notices = NodeEvents(
            lambda ref, _, why, said: self.events.append((ref.name, why, said)), "n", {}
        )
        self.cards = CardList(self.account, gpus, GIB, notices, lambda: None)
        ledger.apply_pod_list([pod("a", 5, "c0"), pod("b", 3, "c1")], 0, 0)
        self.checkpoint.write("a", ids("c0", *range(5)))
        self.checkpoint.write("b", ids("c1", *range(3)))
        self.account.read_checkpoint()

    @property
    def told(self) -> list[str]:
        return sorted(name for name, why, _ in self.events if why == "GPUGone")

    def take(self, *gpus: GpuCard) -> list[str]:
        """Take a list; returns whose GPUGone Events there are for it."""
        self.events.clear()
        self.cards.apply_gpus(gpus, lambda _: True)
        return self.told


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (gpu(0, error="MIG mode without instances"), ["n", "pod-a"]),
        (gpu(0, error="the driver has lost it"), ["n", "pod-a"]),
        (gpu(0, 4), ["n", "pod-a"]),
        (gpu(0, 5), []),
        (gpu(0, 16), []),
        (replace(gpu(0), model="other"), []),
    ],
)
def test_whose_card_has_less_than_they_hold_is_told(now: GpuCard, told: list[str]) -> None:
    node = Node()
    assert node.take(now, gpu(1)) == told
    if told:
        assert all((now.error or "4 units") in said for _, _, said in node.events)
        assert node.events[-1][2].endswith("delete the pod")


@pytest.mark.parametrize("now", [[gpu(0, error="lost"), gpu(1)], [gpu(0, 4), gpu(1)], [gpu(1)]])
def test_a_pod_that_has_ended_and_is_still_charged_is_not_told_to_be_deleted(now: list[GpuCard]) -> None:
    node = Node()
    node.account.ledger.apply_pod_list([pod("b", 3, "c1")], 1, 0)
    assert node.account.ledger.allocated_units_by_pod()["c0"] == {"a": 5}
    assert "pod-a" not in node.take(*now)


def test_the_health_of_a_card_is_told_to_pods_that_live() -> None:
    node = Node()
    health = CardHealth(node.account, HealthTracker(quiet_s=60), node.notices, lambda: None)
    node.account.ledger.apply_pod_list([pod("b", 3, "c1")], 1, 0)
    health.apply_events([HealthEvent(card, healthy=False, reason="lost") for card in ("c0", "c1")])
    assert [name for name, why, _ in node.events if why == "GPUUnhealthy"] == ["n", "n", "pod-b"]


def test_nobody_is_told_twice_of_one_loss() -> None:
    node = Node()
    lost = gpu(0, error="lost")
    assert node.take(lost, gpu(1)) == ["n", "pod-a"]
    assert node.take(lost, replace(gpu(1), model="other")) == []
    assert node.take(gpu(1)) == []
    assert node.take(gpu(0), gpu(1)) == []
    assert node.take(gpu(0, 2), gpu(1)) == ["n", "pod-a"]


def test_a_card_without_pods_makes_no_event() -> None:
    node = Node()
    assert node.take(gpu(0), gpu(1), gpu(2)) == []
    assert node.take(gpu(0), gpu(1), gpu(2, error="lost")) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([gpu(0, error="MIG mode without instances"), gpu(1)], "MIG mode without instances"),
        ([gpu(0, 4), gpu(1)], "it has 4 units"),
        ([gpu(1)], "is gone"),
        ([gpu(0, 5), gpu(1)], ""),
    ],
)
def test_pods_whose_card_was_lost_while_no_daemon_ran_are_told_once(now: list[GpuCard], said: str) -> None:
    """As where MIG takes effect with a reboot."""
    node = Node(*now)
    assert node.told == (["n", "pod-a"] if said else [])
    assert all(said in text for _, _, text in node.events)
    node.account.notify_subscribers()
    assert node.told == (["n", "pod-a"] if said else [])


def test_shares_in_percent_of_a_card_without_units_are_told_too() -> None:
    node = Node(gpu(1), gpu(2, error="lost"))
    node.events.clear()
    percent = {percent_id("c2", slot) for slot in range(30)}
    assert find_lost_cards(
        node.account.ledger.accounts, PodAccount(pod("x", 1), known_ids={"main": frozenset(percent)})
    ) == {"c2"}


def test_a_pod_that_no_list_shows_is_not_told() -> None:
    node = Node(gpu(0), gpu(1))
    again = LedgerService(Ledger(cards_in_units((gpu(1),), GIB)), node.checkpoint.read, RESOURCE)
    told = []
    CardList(again, (gpu(1),), GIB, NodeEvents(lambda *event: told.append(event), "n", {}), lambda: None)
    again.read_checkpoint()
    again.ledger.apply_pod_list([pod("b", 3, "c1")], again.now_s() + 1, 0)
    again.notify_subscribers()
    assert again.ledger.is_complete
    assert told == []
