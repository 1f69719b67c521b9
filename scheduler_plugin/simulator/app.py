"""`gpupack simulate`: every policy with every seed, in parallel processes."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from allocator.policies import CARD_POLICIES
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.controller.config_file import ConfigFile
from scheduler_plugin.scheduling.cluster_policies import explain_slow_policy
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.scheduling.policies.registry import NodePolicy
from scheduler_plugin.simulator.arrivals import make_replay
from scheduler_plugin.simulator.causes import split_free_gpu, sum_fragmented
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.options import TRACE, SimulationOptions, Variant
from scheduler_plugin.simulator.packing import make_typical_workload, run_packing
from scheduler_plugin.simulator.placer import make_simulated_policy
from scheduler_plugin.simulator.plot import load_matplotlib, plot_packing, plot_queues, plot_replay
from scheduler_plugin.simulator.queued_replay import QueuedReplayState, check_trace, remove_borrowing
from scheduler_plugin.simulator.queued_results import average_queue_runs, make_queue_result, report_queues
from scheduler_plugin.simulator.replay import run_arrivals, run_replay
from scheduler_plugin.simulator.replay_report import report_replays
from scheduler_plugin.simulator.replay_results import average_replays, make_replay_result
from scheduler_plugin.simulator.results import Run, average_runs, make_run_result, report_packing
from scheduler_plugin.simulator.trace import TraceNode, TracePod, draw_pods, read_nodes, read_pods

Progress = Callable[[int, int], None]
Task = tuple[Variant, int]
"""What is run, and its seed."""


def run(
    options: SimulationOptions,
    out: Callable[[str], None] = print,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Simulate, and write what was asked for.

    Args:
        out: Takes lines for people; with JSON on standard output they go to standard error.
        warn: Takes a line for every row of the trace that is left out or odd; None: to standard error.

    Raises:
        SettingsError: wrong options, or a file that cannot be written.
        TraceError: a trace that cannot be used.
        ChildProcessError: see `simulate`.
    """
    if options.json == "-" and out is print:
        out = _print_to_stderr
    everything = simulate(
        options, warn or _print_to_stderr, _draw_progress_bar if progress is None else progress
    )
    lines = report_replays(everything) if options.replay else report_packing(everything["mean"])
    for line in lines:
        out(line)
    if options.queues is not None:
        for line in report_queues(everything["mean"]):
            out(line)
    if options.plot is not None:
        draw_curves = plot_replay if options.replay else plot_packing
        paths = draw_curves(everything["runs"], options.plot)
        if options.queues is not None:
            paths += plot_queues(everything, options.plot)
        for path in paths:
            out(f"wrote {path}")
    if options.json is not None:
        write_json(options.json, json.dumps(everything, indent=1))


def simulate(
    options: SimulationOptions,
    warn: Callable[[str], None] = lambda _line: None,
    progress: Progress = lambda _done, _of: None,
) -> dict[str, Any]:
    """Run everything.

    Args:
        warn: Takes a line for every row of the trace that is left out or odd.
        progress: Called with runs done and runs in all.

    Returns:
        `{"runs": [...], "mean": {label: ...}}`, in the order of policies, their workloads, then seeds; the
        label is the policy's name, with the workload where there are several. The result is the same whatever
        the number of processes, but for `wall_s`.

    Raises:
        SettingsError: wrong options.
        TraceError: a trace that cannot be used.
        ChildProcessError: a process ended before its run did.
    """
    options.check()
    if options.plot is not None:
        load_matplotlib()
    others = options.other_resources
    nodes = read_nodes(options.nodes, warn, others)
    pods = read_pods(options.pods, nodes, warn, timed=options.replay, others=others)
    if options.queues is not None:
        check_trace(ConfigFile(options.queues).load(), pods)
    if not any(pod.cards for pod in pods):
        warn(f"{options.pods}: no pod asks for a GPU; the list is run as it is, without inflation")
    tasks = [(variant, seed) for variant in options.list_variants() for seed in options.seeds]
    run_variant = partial(replay_one if options.replay else run_one, options, nodes, pods)
    runs: dict[Task, Run] = {}
    _configure_card_policy(options)
    rankers = [NODE_POLICIES.made(variant.policy) for variant in options.list_variants()]
    for line in dict.fromkeys(explain_slow_policy(each, options.card_policy) for each in rankers):
        if line:
            warn(line)
    progress(0, len(tasks))
    for task, result in _run_tasks(
        run_variant, tasks, min(options.jobs, len(tasks)), partial(_configure_card_policy, options)
    ):
        runs[task] = result
        progress(len(runs), len(tasks))
    ordered = [runs[task] for task in tasks]
    mean = (average_replays if options.replay else average_runs)(ordered)
    if options.queues is not None:
        more = average_queue_runs(ordered)
        mean = {label: each | more[label] for label, each in mean.items()}
    return {"runs": ordered, "mean": mean}


def run_one(
    options: SimulationOptions,
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    variant: Variant,
    seed: int,
) -> Run:
    """Run one policy with one seed, on pods that all come and never end."""
    cluster = SimulatedCluster(nodes, options.card_units, options.other_resources)
    workload = make_typical_workload(cluster, pods)
    ranked = _make_node_policy(options, variant, workload)
    drawn = draw_pods(pods, cluster.gpus, options.inflation, seed)
    measure = None
    if options.plot is not None:
        measure = partial(_compute_fragmented, workload)
    last = str(round(100 * options.inflation))
    outcome = run_packing(
        cluster, ranked, options.card_policy, drawn, time.perf_counter, last=last, measure=measure
    )
    return _label_run(options, variant, seed) | make_run_result(
        outcome, cluster, split_free_gpu(cluster, workload)
    )


def replay_one(
    options: SimulationOptions,
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    variant: Variant,
    seed: int,
) -> Run:
    """Run one policy with one seed, on pods that come and end."""
    what = make_replay(nodes, pods, options.load, options.max_pods, seed)
    cluster = SimulatedCluster(what.nodes, options.card_units, options.other_resources)
    workload = make_typical_workload(cluster, pods)
    began = time.perf_counter()
    if options.queues is None:
        ranked = _make_node_policy(options, variant, workload)
        story = run_replay(cluster, ranked, options.card_policy, what.arrivals)
        wall_s = time.perf_counter() - began
        return _label_run(options, variant, seed) | make_replay_result(story, what, cluster, wall_s)
    config = options.make_config(variant.policy)
    used = config if variant.borrowing else remove_borrowing(config)
    known = workload if variant.workload == TRACE else None

    def make(name: str, parameters: Mapping[str, str] | None) -> NodePolicy:
        return make_simulated_policy(name, parameters or {}, known)

    replaying = QueuedReplayState(what, used, options.card_policy, options.card_units, make)
    story = run_arrivals(replaying, replaying.kinds)
    result = make_replay_result(story, what, cluster, time.perf_counter() - began)
    return _label_run(options, variant, seed) | result | make_queue_result(replaying, what, config)


def _make_node_policy(options: SimulationOptions, variant: Variant, workload: TypicalWorkload) -> NodePolicy:
    known = workload if variant.workload == TRACE else None
    return make_simulated_policy(variant.policy, options.parameters_of(variant.policy), known)


def _label_run(options: SimulationOptions, variant: Variant, seed: int) -> Run:
    named = {
        key: value for key, value in variant._asdict().items() if key != "borrowing" or value is not None
    }
    return {**named, "card_policy": options.card_policy, "seed": seed}


def _configure_card_policy(options: SimulationOptions) -> None:
    if options.card_policy_parameters:
        CARD_POLICIES.configure(options.card_policy, options.card_policy_parameters)


def _compute_fragmented(workload: TypicalWorkload, cluster: SimulatedCluster) -> float:
    return sum_fragmented(split_free_gpu(cluster, workload))


def _run_tasks(
    run_variant: Callable[[Variant, int], Run],
    tasks: Sequence[Task],
    jobs: int,
    prepare: Callable[[], None],
) -> Iterator[tuple[Task, Run]]:
    """Run workloads here or in processes, each of which is prepared first, and give results as they come.

    A process ends when its pipe does, so none is left whatever ends this one.
    """
    if jobs == 1:
        for task in tasks:
            yield task, run_variant(*task)
        return
    context = multiprocessing.get_context("spawn")
    # What begins it unblocks Ctrl-C, and must not do so between the processes.
    resource_tracker.ensure_running()
    left = iter(tasks)
    processes: dict[Connection, SpawnProcess] = {}
    running: dict[Connection, Task | None] = {}
    try:
        with _delay_ctrl_c():
            for _ in range(jobs):
                pipe, pipe_of_process = context.Pipe()
                process = context.Process(target=_work, args=(pipe_of_process, prepare), daemon=True)
                process.start()
                pipe_of_process.close()
                processes[pipe], running[pipe] = process, None
        while running:
            for pipe in running.keys() & wait(list(running)):
                done = running.pop(pipe)
                result = _receive(pipe, processes[pipe], done)
                if done is not None:
                    yield done, result
                following = next(left, None)
                if following is not None:
                    running[pipe] = following
                    # If the process has ended, its pipe says so.
                    with suppress(BrokenPipeError, ConnectionResetError):
                        pipe.send(partial(run_variant, *following))
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def _receive(pipe: Connection, process: SpawnProcess, task: Task | None) -> Any:
    """Read what a process sends of its task, and raise what it raised.

    Raises:
        ChildProcessError: the process has ended, as the kernel ends one when memory runs out.
    """
    try:
        received = pipe.recv()
    except (EOFError, OSError) as error:
        process.join()
        code = process.exitcode or 0
        if code == -signal.SIGINT:
            raise KeyboardInterrupt from error
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exited with {code}"
        )
        hint = "; the kernel does this when memory runs out: see --jobs" if code == -signal.SIGKILL else ""
        what = "before its first run" if task is None else f"in the run of {task[0].label}, seed {task[1]}"
        raise ChildProcessError(f"a process of the simulation {how} {what}{hint}") from error
    if isinstance(received, Exception):
        raise received
    return received


def _work(pipe: Connection, prepare: Callable[[], None]) -> None:
    """Be one of the processes: say that it is ready, then give the result of each run that it gets.

    From now on Ctrl-C ends it without a word, the command says enough.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    prepare()
    result: Run | Exception | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(result)
            run_task = pipe.recv()
            try:
                result = run_task()
            except Exception as error:  # noqa: BLE001 - the command raises it
                error.add_note(traceback.format_exc())
                result = error


@contextmanager
def _delay_ctrl_c() -> Iterator[None]:
    """Put Ctrl-C off, also for processes started meanwhile: each that still loads would print a traceback."""
    signals: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    # A thread of a library may get the signal in spite of the mask, which is for the processes.
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number)) if is_main else None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


def write_json(target: str, text: str) -> None:
    """Write to a file, or with `-` to standard output."""
    if target == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"JSON file {target}: {error.strerror or error}") from error


def _print_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _draw_progress_bar(done: int, total: int) -> None:
    """Draw a progress bar, on a terminal only that can write a line anew."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return
    width = 40
    filled = width * done // total
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r[{'#' * filled}{'.' * (width - filled)}] {done}/{total} runs{end}")
    sys.stderr.flush()
