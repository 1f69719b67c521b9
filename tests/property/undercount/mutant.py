"""What one mutant is, and the odds of events with which some of them fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from scheduler_plugin.cluster.rules import Rules


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: the rule.
        target: where the shipped code has it.
        method: the function.
        instead: what stands in its place.
        seed: a history that breaks without it; others are tried when this one does not.
        density: of that history.
        more: events that come more often in it.
        percent: how many of its pods ask for percent of cards.
        also: the same rule at its second place, where extender and node both keep it.
        fresh_words: the extender reads words anew before it binds; older words make more histories break.
        guessed: PodResources does not answer, so who asks for devices is guessed.
    """

    name: str
    target: type | ModuleType
    method: str
    instead: Any
    seed: int = 1000
    density: float = 1.0
    more: Mapping[str, float] = field(default_factory=dict)
    percent: float = 0.0
    also: tuple[ModuleType, str, Any] | None = None
    fresh_words: bool = False
    guessed: bool = False

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped code for the length of a test."""
        assert hasattr(self.target, self.method)
        if self.also is not None:
            monkeypatch.setattr(*self.also)
        if self.target is Rules:
            return type("MutantRules", (Rules,), {self.method: self.instead})
        monkeypatch.setattr(self.target, self.method, self.instead)
        return Rules


BUSY_WITHOUT_RESTARTS = {
    **dict.fromkeys(("create", "publish"), 2.0),
    **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "daemon_hears", "admit"), 3.0),
    "force_delete": 8.0,
    "run": 4.0,
    "kubelet_hears": 0.15,
    "sleep": 0.2,
    "finish": 0.3,
    **dict.fromkeys(("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0),
}
"""Pods come, are deleted and come again quickly, the kubelet hears of it late, and nobody restarts."""

OTHERS_BIND_TOO = {
    "daemon_hears": 0.3,
    "view": 0.1,
    "bookmark": 0.2,
    "publish": 3.0,
    "foreign": 10.0,
    "cordon": 4.0,
    "admit": 0.5,
    **dict.fromkeys(
        (
            "force_delete",
            "stop_daemon",
            "tear",
            "fall_sick",
            "pressure",
            "restart_extender",
            "sleep",
            "away",
            "delete_node",
        ),
        0.0,
    ),
}
"""Other schedulers bind pods, cards are cordoned, and the daemon hears of pods late."""
DEAF_AND_OFTEN_RESTARTED = {
    "restart_extender": 20.0,
    "extender_hears": 0.05,
    "settle_binding": 0.3,
    "publish": 3.0,
    "admit": 2.0,
    "force_delete": 4.0,
    **dict.fromkeys(("stop_daemon", "restart_kubelet", "away", "relist"), 0.2),
    "sleep": 0.3,
    **dict.fromkeys(("tear", "fall_sick", "cordon", "delete_node", "foreign"), 0.0),
}
"""The extender starts again and again, and hears of little between."""
