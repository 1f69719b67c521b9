"""What others wrote reaches no terminal, log, Event or answer with control sequences, nor without end."""

import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from allocator.names import POD_FIRST_STAGE_SIZE
from gpupack.cli.common import exit_with_faults, print_lines
from gpupack.errors import InputError
from gpupack.logs import configure
from gpupack.queuestatus import read, render
from kubeapi.correlation import make_pod_ref
from kubeapi.errors import Forbidden, make_printable, shorten
from kubeapi.events import EventRecorder
from scheduler_plugin.queue.controller.status import explain_waiting
from tests.queue_world import QueueWorld

EVIL = "a\x1b[2J\x1b]0;b\x07\x9b31m\u202ec\r\nd"
COMMANDS = Path(__file__).parents[2] / "gpupack" / "cli"


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", [EVIL, "j" * 254, "j" * 200_000], ids=["escapes", "long", "200 kB"])
@pytest.mark.parametrize("key", ["job", "gang"])
def test_names_that_cannot_be_told_are_refused(key: str, name: str) -> None:
    """With a message that is short and names the value; nothing waits for such a pod."""
    world = QueueWorld(n1=(16,))
    world.pod("p", annotations={f"gpupack.io/{key}": name})
    (found,) = explain_waiting(world.queue, 0)
    assert found.message.startswith(f"annotation gpupack.io/{key} is ")
    assert found.message.endswith("allowed: 253 printable characters")
    assert found.message.isprintable()
    assert len(found.message) < 200
    assert world.admitted() == []


def test_names_that_can_be_told_are_taken() -> None:
    world = QueueWorld(n1=(16,))
    size = {POD_FIRST_STAGE_SIZE: "0"}
    world.pod("p", job="j" * 253, gang="Die Räuber, 2. Akt", size=1, annotations=size)
    assert world.admitted() == ["p"]


def test_a_message_names_few_of_many_values() -> None:
    """Of a gang whose pods disagree, and of a pod that wears many gates."""
    world = QueueWorld()
    for number in range(50):
        world.pod(f"p{number:02}", job=f"{number:03}" * 80, gang="g", size=50)
    gates = ["gpupack.io/queue", *(f"example.com/{number:02}" for number in range(50))]
    world.pod("gates", gates=gates)
    messages = {found.name: found.message for found in explain_waiting(world.queue, 0)}
    assert len(messages["p00"]) < 1000
    assert messages["p00"].endswith(" and 47 more; allowed: one")
    assert messages["gates"].endswith("example.com/09 and 40 more")


def test_the_tables_of_the_queue() -> None:
    pod = {"namespace": "d", "name": "p", "queue": EVIL, "position": 1, "reason": "Turn", "waitsS": 1}
    body = {"queues": [], "pods": [pod | {"message": EVIL}], "trouble": EVIL, "fault": EVIL, "warning": EVIL}
    text = render(read(msgspec.json.encode(body)), pods=True)
    assert is_clean(text)
    assert text.splitlines()[-1].count("a?[2J?]0;b??31m?c??d") == 2


def test_words_of_the_api_server() -> None:
    """In errors, so in Events, logs and answers that quote them."""
    assert Forbidden(EVIL).message == "a?[2J?]0;b??31m?c d"
    assert shorten("x" * 1000 + EVIL, 10) == "xxxxxxxxx…"
    assert make_printable("schön") == "schön"


def test_events() -> None:
    client: Any = None
    recorder = EventRecorder(client, "test")
    recorder.event(make_pod_ref("d", "p", "u"), "Normal", "Re\x1bason", EVIL)
    (series,) = recorder._queue
    assert (series.reason, series.message) == ("Re?ason", "a?[2J?]0;b??31m?c d")


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of structlog and of libraries."""
    lines: list[str] = []
    monkeypatch.setattr("gpupack.logs.Stderr.write", lambda _, text: lines.append(text))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        configure("info", form)
        structlog.get_logger("test").info("event", pod=EVIL, many=[EVIL])
        logging.getLogger("library").warning("%s", EVIL)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    text = "".join(lines)
    assert text.count("\n") == 2
    assert is_clean(text)


def test_what_commands_say(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(f"one\n{EVIL}")
    with pytest.raises(SystemExit):
        exit_with_faults(InputError(EVIL))
    said = capsys.readouterr()
    assert is_clean(said.out)
    assert is_clean(said.err)
    assert said.out.startswith("one\na?[2J")


def test_commands_write_with_say_only() -> None:
    """But for colours, a shell's own words, and YAML that is a file's."""
    found = {
        (path.stem, call)
        for path in COMMANDS.glob("*.py")
        for call in re.findall(r"(click\.echo|\bprint)\(", path.read_text())
    }
    own = {"advise", "app", "common", "completion", "dashboard", "migrate", "node", "top", "verify", "why"}
    assert {name for name, _ in found} <= own
