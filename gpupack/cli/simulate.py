"""`gpupack simulate`: node policies on a trace."""

from typing import Any

import click

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from gpupack.cli.cluster_source import read_source, run_question, source_options
from gpupack.cli.common import (
    card_policy_parameter,
    exit_with_faults,
    load_policies_or_exit,
    print_lines,
    refuse_option,
    version_option,
)
from gpupack.cli.names import complete_nodes
from gpupack.helptexts import SIMULATE_HELP
from gpupack.policies import PolicyCommand, all_policies


@click.command(help=SIMULATE_HELP, cls=PolicyCommand, lists=all_policies)
@click.option("--nodes", metavar="FILE", help="CSV: sn, cpu_milli, memory_mib, gpu, model.")
@click.option("--pods", metavar="FILE", help="CSV: name, cpu_milli, memory_mib, num_gpu, gpu_milli.")
@click.option("--cluster", is_flag=True, help="The nodes and pods of your cluster, in place of files.")
@click.option(
    "--without",
    multiple=True,
    metavar="NODE",
    help="With --cluster: also as if it were gone.",
    shell_complete=complete_nodes,
)
@click.option(
    "--add", multiple=True, metavar="PROFILE[xN]", help="With --cluster: also with N more nodes of a profile."
)
@source_options
@click.option(
    "--policy",
    metavar="NAME[,NAME]",
    help=f"Default: nodePolicy of --queues FILE where it is set, else {DEFAULT_NODE_POLICY}.",
)
@click.option("--card-policy", default=DEFAULT_CARD_POLICY, show_default=True)
@card_policy_parameter
@click.option(
    "--workload",
    default="learned",
    show_default=True,
    metavar="learned|trace[,...]",
    help="What fragmentation knows: what it learns from pods, as the extender does; the list.",
)
@click.option("--replay", is_flag=True, help="Pods come and end at the times of the trace.")
@click.option("--queues", metavar="FILE", help="With --replay: through these queues, as of gpupack queue.")
@click.option(
    "--load",
    default="1",
    show_default=True,
    metavar="NUMBER|trace",
    help="With --replay: GPUs asked for at a time, times the cluster's; trace: as it is.",
)
@click.option(
    "--max-pods",
    type=int,
    default=20_000,
    show_default=True,
    help="With --replay: rather than add more pods for the load, take fewer of the nodes.",
)
@click.option(
    "--inflation",
    type=float,
    default=1.3,
    show_default=True,
    help="Without --replay: GPUs asked for, times the cluster's.",
)
@click.option(
    "--seeds", default="42", show_default=True, metavar="42-51", help="Numbers and ranges, by commas."
)
@click.option("--jobs", type=int, help="Processes; default: one for each core. Results do not depend on it.")
@click.option("--card-units", type=int, default=1000, show_default=True, help="Units of a card.")
@click.option("--plot", metavar="DIR", help="Write PNG curves there; needs matplotlib.")
@click.option("--json", "json_file", metavar="FILE|-", help="Write everything there.")
@click.option(
    "--policy-parameter", "parameters", multiple=True, metavar="POLICY.NAME=VALUE", help="May be repeated."
)
@version_option
def simulate(**options: Any) -> None:
    from gpupack.errors import InputError
    from scheduler_plugin.errors import SettingsError, TraceError
    from scheduler_plugin.scheduling.placing import POLICY_FAULTS
    from scheduler_plugin.simulator.app import run
    from scheduler_plugin.simulator.options import (
        SimulationOptions,
        choose_policies,
        count_default_jobs,
        parse_load,
        parse_names,
        parse_parameters,
        parse_seeds,
    )

    live = _is_live(options)
    if options["replay"]:
        refuse_option("inflation", "allowed without --replay only; with it --load says how much is asked for")
    else:
        for name in ("load", "max_pods"):
            refuse_option(name, "allowed with --replay only")
    load_policies_or_exit(all_policies())
    try:
        asked = SimulationOptions(
            nodes=options["nodes"] or "",
            pods=options["pods"] or "",
            policies=choose_policies(options["policy"], options["queues"]),
            card_policy=options["card_policy"],
            card_policy_parameters=options["card_policy_parameters"],
            workloads=parse_names(options["workload"]),
            replay=options["replay"],
            queues=options["queues"],
            load=parse_load(options["load"]),
            max_pods=options["max_pods"],
            inflation=options["inflation"],
            seeds=parse_seeds(options["seeds"]),
            jobs=count_default_jobs() if options["jobs"] is None else options["jobs"],
            card_units=options["card_units"],
            plot=options["plot"],
            json=options["json_file"],
            parameters=parse_parameters(options["parameters"]),
        )
        if live:
            _on_cluster(asked, options)
        else:
            run(asked)
    except (InputError, SettingsError, TraceError, *POLICY_FAULTS) as error:
        exit_with_faults(error)
    except ChildProcessError as error:
        exit_with_faults(error, status=1)


def _is_live(options: dict[str, Any]) -> bool:
    """Return True if a cluster is to be simulated, not files."""
    live = options["cluster"] or options["filename"] is not None
    files = [name for name in ("nodes", "pods") if options[name] is not None]
    if live and files:
        raise click.UsageError(f"--{files[0]} with a cluster; allowed: one of the two")
    if not live and len(files) < 2:  # noqa: PLR2004
        raise click.UsageError("no nodes and pods; allowed: --nodes FILE with --pods FILE, or --cluster")
    for name in ("without", "add", "unit_mib", "context", "kubeconfig"):
        if options[name] and not live:
            raise click.UsageError(f"--{name.replace('_', '-')} is for a cluster: allowed with --cluster")
    return bool(live)


def _on_cluster(asked: Any, options: dict[str, Any]) -> None:
    import gc
    from functools import partial

    from gpupack.whatif.fetching import read_cluster
    from gpupack.whatif.simulation import make_scenarios, simulate_all

    source = read_source({**options, "unit_mib": None})
    asked.check()
    cluster = run_question(lambda: read_cluster(source))
    gc.enable()
    found = make_scenarios(cluster, options["without"], options["add"], options["unit_mib"])
    simulate_all(found, asked, partial(print_lines, err=asked.json == "-"), partial(print_lines, err=True))
