"""Logging set-up: one line an event, and no weight that a daemon has no use for."""

import json
import logging
import subprocess
import sys

import pytest
import structlog

from gpupack.logs import configure

LEAN = """
import sys
from gpupack.logs import configure
configure("info")
import deviceplugin.app
print(sorted({"rich", "numpy", "pynvml"} & set(sys.modules)))
import rich
print(rich.__name__)
"""


@pytest.fixture(autouse=True)
def restored():
    handlers = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers[:] = handlers
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("level", "heard"), [("info", ["warning", "info"]), ("error", []), ("loud", ["warning", "info"])]
)
def test_an_event_is_one_line_of_pairs(capfd, level, heard):
    configure(level)
    log = structlog.get_logger("test")
    log.warning("went wrong", pod="default/p", units=3, text="two\nlines", ok=False)
    log.info("went on")
    log.debug("thought")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(" level=")[1].split()[0] for line in lines] == heard
    if heard:
        assert lines[0].endswith('event="went wrong" pod=default/p units=3 text=two\\nlines ok=false')
        assert lines[0].startswith("timestamp=")


def test_as_json_every_line_is_an_object_those_of_libraries_too(capfd):
    logging.getLogger().handlers.clear()
    configure("info", "json")
    log = structlog.get_logger("test")
    log.info("went on", pod="default/p", units=3, ok=False, cards=("a", 1), text="two\nlines \udc80")
    logging.getLogger("asyncio").warning("no connection can be taken: %s", "why")
    try:
        int("bad")
    except ValueError:
        log.exception("failed")
        logging.getLogger("aiohttp.server").exception("failed too")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.pop("timestamp")[10] for line in lines] == ["T"] * 4
    traces = [line.pop("exception", "").splitlines()[-1:] for line in lines]
    error = "ValueError: invalid literal for int() with base 10: 'bad'"
    assert traces == [[], [], [error], [error]]
    told = {"pod": "default/p", "units": 3, "ok": False, "cards": ["a", 1], "text": "two\nlines \udc80"}
    assert lines == [
        {"level": "info", "event": "went on", **told},
        {"level": "warning", "event": "no connection can be taken: why"},
        {"level": "error", "event": "failed"},
        {"level": "error", "event": "failed too"},
    ]


def test_lines_of_libraries_look_like_ours(capfd):
    logging.getLogger().handlers.clear()
    configure("info")
    logging.getLogger("asyncio").warning("no connection can be taken: %s", "why")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("timestamp=")
    assert line.endswith(' level=warning event="no connection can be taken: why"')


def test_a_daemon_loads_no_rich_and_others_still_can():
    done = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\nrich\n", "")
