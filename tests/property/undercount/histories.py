"""Kinds of histories: how often trouble comes in them, and what comes more often."""

from random import Random
from typing import Any, Final

from tests.property.kernel.mutant import Kind

from .simulation import Simulation, run

HISTORY = 1500
"""Steps of one."""


def plain(seed: int) -> None:
    run(seed, HISTORY)


def dense(seed: int) -> None:
    """Trouble comes twice as often."""
    run(seed, HISTORY, density=2.0)


def calm(seed: int) -> None:
    """Nothing goes wrong but the kubelet's checkpoint, which at times is an older copy."""
    run(seed, HISTORY, density=0.0)


def percent(seed: int) -> None:
    """Half of the pods ask for percent."""
    run(seed, HISTORY, density=1.0 + seed % 2, percent=0.5)


def compute(seed: int) -> None:
    """Half of the pods ask for compute too."""
    run(seed, HISTORY, density=1.0 + seed % 2, percent=0.25 * (seed % 3), compute=0.5)


def mixed(seed: int) -> None:
    """Some events, chosen by the seed, come up to ten times less or eight times more often."""
    _mixed(seed, {})


def cards_change(seed: int) -> None:
    """Cards go, come again, and fall sick before the kubelet hears of it; and as in `mixed`."""
    _mixed(seed, {"change_cards": 3.0 + 9 * (seed % 4), "fall_sick_unheard": 3.0})


def _mixed(seed: int, besides: dict[str, float]) -> None:
    random = Random(seed)
    more = {event: random.choice((0.1, 0.3, 3, 4, 8)) for event in EVENTS if random.random() < 0.35}
    run(seed, HISTORY, density=1.0 + seed % 3, more=more | besides, percent=0.25 * (seed % 2))


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

compute_restarts = odds(
    compute=0.7,
    more={
        **dict.fromkeys(("stop_daemon", "force_delete", "restart_kubelet"), 8.0),
        **dict.fromkeys(("run", "publish", "view"), 4.0),
        "reap": 0.3,
        "sleep": 0.3,
    },
)
"""Pods that ask for compute are deleted while they run, and the daemon does not remember them."""

compute_rollouts = odds(
    compute=0.9,
    more={
        "roll_out": 60.0,
        **dict.fromkeys(("stop_daemon", "publish"), 6.0),
        **dict.fromkeys(("create", "schedule", "settle_binding", "extender_hears", "view"), 3.0),
        **dict.fromkeys(("finish", "force_delete", "recover"), 0.2),
        **dict.fromkeys(("away", "delete_node", "restart_kubelet", "sleep"), 0.1),
    },
)
"""Daemons restart with other limits of compute, and with a version that publishes none."""

about_to_start = odds(
    more={
        **dict.fromkeys(("create", "kubelet_hears"), 2.0),
        **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "daemon_hears", "admit"), 3.0),
        **dict.fromkeys(("publish", "read_checkpoint"), 4.0),
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
        "read_checkpoint": 3,
        "restart_kubelet": 0.3,
    },
)
"""Containers of deleted pods run on, and daemons restart."""

_QUICK: Final = dict.fromkeys(("schedule", "settle_binding", "extender_hears"), 5.0)
_NO_RESTARTS: Final = dict.fromkeys(
    ("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0
)

slow_looks = odds(
    more={
        **_QUICK,
        **_NO_RESTARTS,
        **dict.fromkeys(("daemon_hears", "kubelet_hears", "admit", "read_checkpoint", "publish"), 4.0),
        **dict.fromkeys(("run", "start", "force_delete"), 6.0),
        "create": 3.0,
        "cgroups": 0.15,
        "reap": 0.05,
        "sleep": 0.0,
        "view": 0.1,
    }
)
"""A look at the cgroups takes long, pods come and are deleted meanwhile."""

names_again = odds(
    more={
        **_QUICK,
        **_NO_RESTARTS,
        **dict.fromkeys(("daemon_hears", "view", "bookmark", "sleep", "finish"), 0.15),
        **dict.fromkeys(("kubelet_hears", "admit"), 3.0),
        "create": 5.0,
        "force_delete": 8.0,
    }
)
"""Pods are deleted and come again under their names, and the daemon hears of it last."""

_FOREIGN: Final = {
    "foreign": 14.0,
    "restart_kubelet": 10.0,
    "recover": 4.0,
    **dict.fromkeys(("publish", "schedule"), 6.0),
    **dict.fromkeys(("create", "admit"), 3.0),
    **dict.fromkeys(("finish", "start", "force_delete", "settle_binding", "sleep", "cordon"), 0.1),
    "run": 0.03,
    **dict.fromkeys(("restart_extender", "away", "delete_node", "fall_sick", "pressure"), 0.0),
}

foreign_forgotten = odds(density=2.0, more={**_FOREIGN, "stop_daemon": 0.0})
"""Other schedulers bind pods, and kubelets lose them before they run."""

foreign_lost = odds(density=2.0, more={**_FOREIGN, "stop_daemon": 8.0})
"""The same, and daemons restart."""

forgets_and_hears_late = odds(
    more={
        **_QUICK,
        "restart_kubelet": 8.0,
        "force_delete": 8.0,
        **dict.fromkeys(("create", "publish", "read_checkpoint", "cgroups", "recover", "daemon_hears"), 3.0),
        **dict.fromkeys(("kubelet_hears", "sleep", "run", "admit"), 0.3),
        **dict.fromkeys(("stop_daemon", "restart_extender", "away", "delete_node", "tear"), 0.0),
    }
)
"""Kubelets lose their checkpoint, and hear late of pods that are deleted."""

long_lingering = odds(
    density=2.0,
    more={
        **dict.fromkeys(("stop_daemon", "force_delete", "recover"), 6.0),
        **dict.fromkeys(("create", "schedule", "admit", "publish", "read_checkpoint", "run"), 3.0),
        "reap": 0.02,
        "sleep": 0.1,
        **dict.fromkeys(("restart_kubelet", "restart_extender", "delete_node"), 0.2),
    },
)
"""Containers of deleted pods run on for long, other pods are admitted, and daemons restart."""

told_late = odds(
    density=2.0,
    more={
        **dict.fromkeys(("restart_kubelet", "stop_daemon"), 9.0),
        **dict.fromkeys(("run", "recover", "publish", "admit"), 4.0),
        "create": 2.0,
        **dict.fromkeys(("sleep", "finish", "force_delete", "away"), 0.1),
        "start": 0.02,
        **dict.fromkeys(("delete_node", "restart_extender"), 0.0),
    },
)
"""Pods run for long before their status says so, and kubelets and daemons restart."""

not_written = odds(
    more={
        "restart_kubelet": 30.0,
        "run": 20.0,
        **dict.fromkeys(("publish", "recover"), 7.0),
        **dict.fromkeys(("create", "schedule", "start"), 3.0),
        **dict.fromkeys(("admit", "reap", "finish"), 0.4),
        **dict.fromkeys(("read_checkpoint", "sleep"), 0.05),
        **dict.fromkeys(("stop_daemon", "restart_extender", "tear", "delete_node", "away"), 0.0),
    }
)
"""Kubelets restart before they have written down what they gave."""

behind = odds(
    density=0.0,
    more={
        **_QUICK,
        **dict.fromkeys(("daemon_hears", "bookmark", "view"), 0.05),
        **dict.fromkeys(("kubelet_hears", "admit", "finish", "run"), 3.0),
        "create": 6.0,
    },
)
"""Nothing goes wrong, but the daemon hears of pods long after the kubelet does."""

forgets_behind = odds(
    more={
        **_QUICK,
        "restart_kubelet": 12.0,
        "recover": 3.0,
        **dict.fromkeys(("daemon_hears", "bookmark", "view", "finish", "sleep"), 0.05),
        **dict.fromkeys(("create", "admit", "run", "cgroups", "foreign", "kubelet_hears"), 3.0),
        **dict.fromkeys(("restart_extender", "delete_node", "away"), 0.1),
    }
)
"""Kubelets lose their checkpoint, and the daemon hears of new pods long after them."""

deaf_extender = odds(
    more={
        "extender_hears": 0.1,
        "settle_binding": 0.3,
        **dict.fromkeys(("publish", "daemon_hears", "read_checkpoint"), 8.0),
        **dict.fromkeys(("create", "kubelet_hears", "admit"), 2.0),
        "force_delete": 10.0,
        "reap": 0.1,
        "finish": 0.5,
        **_NO_RESTARTS,
        **dict.fromkeys(("relist", "sleep", "cordon", "fall_sick", "pressure"), 0.0),
        **dict.fromkeys(("tear", "hush", "foreign"), 0.0),
        "restart_extender": 30.0,
    }
)
"""The extender starts again and again, hears of little between, and pods are deleted."""

served_again = odds(
    more={
        **_FOREIGN,
        "foreign": 1.0,
        "restart_kubelet": 30.0,
        **dict.fromkeys(("stop_daemon", "recover"), 16.0),
        **dict.fromkeys(("create", "settle_binding", "admit"), 6.0),
        **dict.fromkeys(
            ("schedule", "extender_hears", "kubelet_hears", "daemon_hears", "cgroups", "force_delete"), 3.0
        ),
        **dict.fromkeys(("publish", "finish"), 2.0),
        **dict.fromkeys(("sleep", "tear"), 0.0),
        "run": 0.01,
    }
)
"""Kubelets and daemons restart all the time, and pods are served again and again before they run."""

start_again = odds(
    more={
        "crash": 30.0,
        "restart_kubelet": 8.0,
        **dict.fromkeys(("recover", "run", "start", "publish"), 3.0),
        **dict.fromkeys(("finish", "sleep", "delete_node", "restart_extender"), 0.2),
    }
)
"""Kubelets lose their checkpoint, and containers start again of which it had something."""

deleted_and_behind = odds(
    density=0.0,
    more={
        **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "kubelet_hears", "finish"), 3.0),
        **dict.fromkeys(("daemon_hears", "view"), 0.1),
        "admit": 4.0,
        "create": 9.0,
        "force_delete": 10.0,
        "cgroups": 0.03,
    },
)
"""Nothing goes wrong, but pods are deleted and come again under their names, and the daemon hears of it last.

For mutants only: the new pod may get the card of the old one, see "Outside" in docs/accounting.md.
"""

mute = odds(
    more={
        "hush": 60.0,
        **dict.fromkeys(("create", "force_delete", "foreign"), 3.0),
        **dict.fromkeys(("daemon_hears", "read_checkpoint"), 0.2),
        **dict.fromkeys(("restart_extender", "delete_node", "sleep"), 0.2),
    },
    percent=0.4,
)
"""The kubelet does not say which pods it has taken up."""

alike = odds(more={"hush": 60.0, "create": 3.0, "schedule": 2.0}, percent=0.5, large=True)
"""Pods ask for as many units as percent, and the kubelet does not say which it has taken up."""

ODD: Final = {
    "busy": busy,
    "others bind": others_bind,
    "forgetful": forgetful,
    "about to start": about_to_start,
    "heard late": heard_late,
    "lingering": lingering,
    "slow looks": slow_looks,
    "names again": names_again,
    "foreign forgotten": foreign_forgotten,
    "foreign lost": foreign_lost,
    "forgets and hears late": forgets_and_hears_late,
    "long lingering": long_lingering,
    "told late": told_late,
    "not written": not_written,
    "behind": behind,
    "forgets behind": forgets_behind,
    "deaf extender": deaf_extender,
    "served again": served_again,
    "start again": start_again,
    "cards change": cards_change,
    "alike": alike,
    "mute": mute,
    "compute rollouts": compute_rollouts,
}

EVENTS = [action.__name__[1:] for weight, action in Simulation(0).actions if weight]
