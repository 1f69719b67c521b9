"""Kinds of histories: how often trouble comes in them, and what comes more often."""

from collections.abc import Callable
from random import Random
from typing import Any

from .simulation import Simulation, run

HISTORY = 1500
"""Steps of one."""

Kind = Callable[[int], None]
"""Runs a history, given its seed."""


def plain(seed: int) -> None:
    run(seed, HISTORY)


def dense(seed: int) -> None:
    """Trouble comes twice as often."""
    run(seed, HISTORY, density=2.0)


def calm(seed: int) -> None:
    """Nothing goes wrong but the kubelet's book, which at times is an older copy."""
    run(seed, HISTORY, density=0.0)


def percent(seed: int) -> None:
    """Half of the pods ask for percent."""
    run(seed, HISTORY, density=1.0 + seed % 2, percent=0.5)


def mixed(seed: int) -> None:
    """Some events, chosen by the seed, come up to ten times less or eight times more often."""
    random = Random(seed)
    more = {event: random.choice((0.1, 0.3, 3, 4, 8)) for event in EVENTS if random.random() < 0.35}
    run(seed, HISTORY, density=1.0 + seed % 3, more=more, percent=0.25 * (seed % 2))


def odds(**options: Any) -> Kind:
    """Make a kind of its own; see `run`."""
    return lambda seed: run(seed, HISTORY, **options) and None


busy = odds(
    more={
        **dict.fromkeys(("create", "publish"), 2.0),
        **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "daemon_hears", "admit"), 3.0),
        "force_delete": 8.0,
        "run": 4.0,
        "kubelet_hears": 0.15,
        "sleep": 0.2,
        "finish": 0.3,
        **dict.fromkeys(("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0),
    }
)
"""Pods come, are deleted and come again quickly, the kubelet hears of it late, and nobody restarts."""

others_bind = odds(
    more={
        "daemon_hears": 0.3,
        "view": 0.1,
        "bookmark": 0.2,
        "publish": 3.0,
        "foreign": 10.0,
        "cordon": 4.0,
        "admit": 0.5,
        "force_delete": 3.0,
        **dict.fromkeys(("tear", "fall_sick", "pressure", "restart_extender", "away", "delete_node"), 0.0),
    }
)
"""Other schedulers bind pods, cards are cordoned, and the daemon hears of pods late."""

forgetful = odds(
    density=2.0, more={"restart_kubelet": 5, "stop_daemon": 4, "tear": 3, "sleep": 0.3, "foreign": 3}
)
"""Kubelets and daemons restart and lose what they had."""

about_to_start = odds(
    more={
        **dict.fromkeys(("create", "kubelet_hears"), 2.0),
        **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "daemon_hears", "admit"), 3.0),
        **dict.fromkeys(("publish", "read_book"), 4.0),
        "force_delete": 8.0,
        "cgroups": 24.0,
        "run": 0.4,
        "sleep": 0.0,
        "finish": 0.3,
        **dict.fromkeys(("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0),
    }
)
"""Pods are deleted while the kubelet is about to start them, and everybody hears of it at once."""

heard_late = odds(
    more={
        **dict.fromkeys(("create", "daemon_hears", "publish", "admit"), 4.0),
        **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "force_delete"), 6.0),
        **dict.fromkeys(("kubelet_hears", "finish"), 0.1),
        "sleep": 0.0,
        **dict.fromkeys(("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0),
    }
)
"""Pods are deleted before the kubelet has heard of them, and it hears of that last."""

lingering = odds(
    density=2.0,
    more={
        "stop_daemon": 6,
        "force_delete": 6,
        "reap": 0.3,
        "create": 2,
        "schedule": 2,
        "admit": 2,
        "publish": 4,
        "read_book": 3,
        "restart_kubelet": 0.3,
    },
)
"""Containers of deleted pods run on, and daemons restart."""

EVENTS = [action.__name__[1:] for _, action in Simulation(0).actions]
