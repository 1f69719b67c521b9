"""One script of pods, restarts and plugin answers for the real kubelet and the stand-in.

`play` runs STEPS against a `Driver` with a device plugin of its own and returns a transcript. What must
differ between two runs (IDs chosen at random, UIDs, times) is put as relations: how many IDs were offered,
how many taken, on one card or on more, which set lies in which. `kubelet_answers.json` is the transcript of
kubelet 1.37.1 (`answers.py` has the older ones): the stand-in and the cluster are both compared with it. A
stand-in that drifts fails here, a new Kubernetes that behaves otherwise fails there.

A step leaves nothing behind: its pods are deleted, the plugin is registered and every card healthy.
"""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.scripts import answers
from tests.scripts.answers import Transcript
from tests.scripts.kubelet_play import Driver, Play, Step
from tests.scripts.kubelet_steps_checkpoint import CHECKPOINT_STEPS
from tests.scripts.kubelet_steps_devices import DEVICE_STEPS
from tests.scripts.kubelet_steps_life import LIFE_STEPS

STEPS: tuple[Step, ...] = (*DEVICE_STEPS, *LIFE_STEPS, *CHECKPOINT_STEPS)
ANSWERS = Path(__file__).with_name("kubelet_answers.json")


async def play(driver: Driver, steps: Sequence[Step] = STEPS) -> Transcript:
    """Run the steps in order and return what each one answered."""
    transcript: Transcript = []
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(Play(driver))
        for step in steps:
            answer = await step.run(here)
            await here.clean()
            transcript.append({"step": step.name, "answer": answer})
    # What goes through JSON compares equal to what comes from it.
    recorded: Transcript = json.loads(json.dumps(transcript))
    return recorded


def recorded(minor: str | None = None) -> Transcript:
    """The transcript of the real kubelet of a minor version, the newest for None."""
    return answers.recorded(ANSWERS, minor)


def as_recording(transcript: Transcript) -> str:
    return json.dumps(transcript, indent=1) + "\n"


__all__ = ["ANSWERS", "STEPS", "Driver", "Play", "Step", "as_recording", "play", "recorded"]
