"""Completion in shells, and for `kubectl gpupack`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupack.cli.app import cli
from gpupack.cli.completion import FILES, NO_FILES, SHELLS, proposals


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_asks_gpupack(shell: str) -> None:
    made = CliRunner().invoke(cli, ["completion", shell])
    assert made.exit_code == 0
    assert "_GPUPACK_COMPLETE" in made.output
    assert f"{shell}_complete" in made.output


def test_an_unknown_shell_is_named() -> None:
    made = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert made.exit_code != 0
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in made.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_gets_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "gpupack"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpupack "$@"\n')
    program.chmod(0o755)
    lines = [
        CliRunner().invoke(cli, ["completion", "bash"]).output,
        "COMP_WORDS=(gpupack simulate --pol); COMP_CWORD=2",
        "_gpupack_completion gpupack",
        'echo "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "--polic" in done.stdout, done.stderr


def test_kubectl_gets_proposals_with_their_help_and_a_directive() -> None:
    lines = proposals(cli, [], "to")
    assert lines[0].startswith("top\t")
    assert lines[1:] == [NO_FILES]
    assert any(line.startswith("--output") for line in proposals(cli, ["top"], "--ou"))
    assert proposals(cli, ["completion"], "b") == ["bash", NO_FILES]
    assert proposals(cli, ["migrate"], "")[-1] in {FILES, NO_FILES}
    assert proposals(cli, ["no-such-command"], "x")[-1] == NO_FILES
