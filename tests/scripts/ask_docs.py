"""Runs what docs/ask.md and docs/python.md show, on one small cluster: `python -m tests.scripts.ask_docs`.

The cluster is written too, as docs/ask/cluster.json. A unit test compares the pages with it.
"""

import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from gpupack.cli.app import cli
from tests.ask_world import EXAMPLE

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
CONSOLE: Final = re.compile(r"(```console\n\$ kubectl gpupack ([^\n]*)\n)(.*?)(```)", re.DOTALL)
PYTHON: Final = re.compile(r"(```python\n(.*?)```.*?```text\n)(.*?)(```)", re.DOTALL)


def run() -> dict[Path, str]:
    """What the pages should have, by page."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("cluster.json").write_text(EXAMPLE.text, encoding="utf-8")
            example = DOCS / "ask" / "cluster.json"
            ask, python = DOCS / "ask.md", DOCS / "python.md"
            return {
                example: json.dumps(json.loads(EXAMPLE.text), indent=1) + "\n",
                ask: CONSOLE.sub(_console, ask.read_text(encoding="utf-8")),
                python: PYTHON.sub(_python, python.read_text(encoding="utf-8")),
            }
        finally:
            os.chdir(before)


def _console(match: re.Match[str]) -> str:
    result = CliRunner().invoke(cli, [*match[2].split(), "-f", "cluster.json"])
    return f"{match[1]}{result.output}{match[4]}"


def _python(match: re.Match[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(match[2], {})
    return f"{match[1]}{out.getvalue()}{match[4]}"


if __name__ == "__main__":
    for page, text in run().items():
        page.write_text(text, encoding="utf-8")
