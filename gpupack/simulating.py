"""What `gpupack simulate` adds to its plain options, and how the simulator is asked for it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from scheduler_plugin.simulator.options import Options


def simulate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about what the policies know and about replays."""
    for option in reversed(
        (
            click.option(
                "--workload",
                default="learned",
                show_default=True,
                metavar="learned|trace[,...]",
                help="What fragmentation knows: what it learns from pods, as the extender does; the list.",
            ),
            click.option("--replay", is_flag=True, help="Pods come and end at the times of the trace."),
            click.option(
                "--load",
                default="1",
                show_default=True,
                metavar="NUMBER|trace",
                help="With --replay: GPUs asked for at a time, times the cluster's; trace: as it is.",
            ),
            click.option(
                "--max-pods",
                type=int,
                default=20_000,
                show_default=True,
                help="With --replay: rather than add more pods for the load, take fewer of the nodes.",
            ),
        )
    ):
        command = option(command)
    return command


def simulation(options: dict[str, Any]) -> "Options":
    """Read the command's options.

    Raises:
        SettingsError: one that cannot be read.
    """
    from scheduler_plugin.simulator import options as known  # noqa: PLC0415 - it loads numpy

    plain = ("nodes", "pods", "card_policy", "card_policy_parameters", "inflation", "card_units", "plot")
    return known.Options(
        **{name: options[name] for name in plain},
        policies=known.parse_names(options["policy"]),
        workloads=known.parse_names(options["workload"]),
        replay=options["replay"],
        load=known.parse_load(options["load"]),
        max_pods=options["max_pods"],
        seeds=known.parse_seeds(options["seeds"]),
        jobs=known.default_jobs() if options["jobs"] is None else options["jobs"],
        json=options["json_file"],
        parameters=known.parse_parameters(options["parameters"]),
    )
