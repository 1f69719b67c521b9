"""The queue keeps its promises whatever happens: the shipped controller in a model of everybody else.

`GPUPACK_QUEUE_STEPS` sets the number of steps, `GPUPACK_QUEUE_FIRST_SEED` the seed of the first history.
What the model leaves out is said in docs/queue/measured.md.
"""

import logging
import os
import re
import shlex
import subprocess
import sys

import pytest
import structlog

from tests.property.kernel.history import AGAIN, ViolationError
from tests.property.queuemodel.histories import KINDS
from tests.property.queuemodel.simulation import run

STEPS = int(os.environ.get("GPUPACK_QUEUE_STEPS", "3000"))
FIRST_SEED = int(os.environ.get("GPUPACK_QUEUE_FIRST_SEED", "0"))
PARTS = 2

SHARES = {
    "mixed": 0.09,
    "advised": 0.03,
    "tenants": 0.05,
    "claimed": 0.05,
    "reclaim": 0.12,
    "lent": 0.06,
    "staged": 0.04,
    "refused": 0.11,
    "gangs": 0.06,
    "grouped": 0.04,
    "load": 0.1,
    "batch": 0.1,
    "together": 0.08,
    "slotted": 0.07,
}
"""Of the steps, by kind; a step under load takes several times as long as others."""

pytestmark = pytest.mark.timeout(0 if STEPS > 7_000 else 300)


@pytest.fixture(autouse=True)
def _silent_logs(_plain_logs: None) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def test_every_kind_has_its_share() -> None:
    assert SHARES.keys() == KINDS.keys()
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.histories
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_promises_are_kept_in_every_history(kind: str, part: int) -> None:
    done, seed = 0, FIRST_SEED + part
    while done < STEPS * SHARES[kind] / PARTS:
        done += run(kind, seed)
        seed += PARTS


def test_a_history_that_fails_tells_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.property.queuemodel.promises.MESSAGE", 10)
    with pytest.raises(ViolationError) as first:
        run("reclaim", 4)
    command = shlex.split(first.value.__notes__[-1].removeprefix(AGAIN))
    assert command[:2] == ["python", "-c"]
    with pytest.raises(ViolationError, match=re.escape(str(first.value))):
        exec(command[2], {})


TOLD = """
import hashlib, logging, structlog
from tests.property.queuemodel.simulation import Simulation
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
for kind, seed in (("gangs", 1), ("reclaim", 5018)):
    history = Simulation(kind, seed)
    history.run()
    events = [(each.kind, each.at, repr(each.item)) for each in history.world.events]
    told = history.trace, events, history.process.said
    print(len(events), hashlib.sha256(repr(told).encode()).hexdigest())
"""


def test_a_seed_is_the_same_history_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": salt}
    with subprocess.Popen(
        [sys.executable, "-c", TOLD], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        exec(TOLD, {})
        assert process.communicate()[0] == capsys.readouterr().out != ""
    assert process.returncode == 0
