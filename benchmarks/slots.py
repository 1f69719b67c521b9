"""The headline of the queue's slots as a picture: `python -m benchmarks.slots [FILE.png]`.

The queue has two local and two free slots. A job has eight local workloads, then four free ones; each
takes one round. Without borrowing a workload runs in slots of its own type only. The picture shows the
choices of `scheduler_plugin.queue.cache.lending`. The last line is JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import make_parser
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.cache.lending import pick_workload
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WaitingWorkloads, WorkloadGroup
from scheduler_plugin.simulator.plot import load_matplotlib, save_figure

SLOTS = (SlotType.LOCAL, SlotType.LOCAL, SlotType.FREE, SlotType.FREE)


@dataclass
class Owner:
    """The only queue."""

    name: str = "owner"
    weight: float = 1.0
    allocated: float = 0.0
    waiting: WaitingWorkloads[str] = field(default_factory=WaitingWorkloads)


def rounds(*, borrowing: bool) -> list[list[str]]:
    """Run the job; of each slot the workloads that sat in it, empty where it was idle."""
    owner = Owner()
    for number in range(8):
        owner.waiting.add(
            QueuedWorkload(f"m{number + 1}", SlotType.LOCAL, number, "one", frozenset({"d"}), "job")
        )
    for number in range(4):
        owner.waiting.add(QueuedWorkload(f"r{number + 1}", SlotType.FREE, number, "one", job="job"))
    sat: list[list[str]] = [[] for _ in SLOTS]
    while len(owner.waiting):
        running = []
        for at, slot in enumerate(SLOTS):

            def may(_: object, group: WorkloadGroup[str], slot: SlotType = slot) -> bool:
                return borrowing or group.key.kind is slot

            choice = pick_workload(slot, [owner], is_near=lambda _tenant, _group: True, can_run=may)
            sat[at].append("" if choice is None else choice.workload.uid)
            if choice is not None:
                owner.waiting.remove(choice.workload.uid)
                running.append(choice.workload)
        for workload in running:
            owner.waiting.finish_first_stage(workload.uid, workload.job)
    return sat


def find_busy_percent(slots: Sequence[Sequence[str]]) -> float:
    """The share of rounds in which a workload sat in a slot, over all slots."""
    busy = [bool(workload) for slot in slots for workload in slot]
    return 100 * sum(busy) / len(busy)


def plot_slots(path: Path, rounds: Mapping[str, Sequence[Sequence[str]]]) -> Path:
    """Draw which workload sits in which slot, round by round.

    Args:
        path: The PNG file.
        rounds: By what to call it; of each slot its workloads in order, empty: idle.
    """
    pyplot = load_matplotlib()
    figure, panels = pyplot.subplots(1, len(rounds), figsize=(10, 3), sharey=True, sharex=True)
    for axes, (title, slots) in zip(panels, rounds.items(), strict=True):
        axes.set_title(f"{title}: {len(slots[0])} rounds, {find_busy_percent(slots):.0f} % busy")
        axes.set_yticks(range(4), ["local 1", "local 2", "free 1", "free 2"])
        axes.set_xlabel("round")
        for at, slot in enumerate(slots):
            for number, workload in enumerate(slot):
                if workload:
                    color = "C0" if workload.startswith("m") else "C1"
                    axes.barh(at, 0.95, left=number + 0.5, height=0.85, color=color)
                    axes.text(number + 0.97, at, workload, ha="center", va="center", color="white")
    return save_figure(figure, None, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the picture."""
    parser = make_parser("slots", __doc__)
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path("slots.png"), help="the PNG file, slots.png if left out"
    )
    options = parser.parse_args(arguments)
    both = {"without borrowing": rounds(borrowing=False), "with borrowing": rounds(borrowing=True)}
    try:
        plot_slots(options.file, both)
    except SettingsError as error:
        parser.error(str(error))
    figures = {
        name: {"rounds": len(slots[0]), "busy_percent": find_busy_percent(slots)}
        for name, slots in both.items()
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
