"""What the real programs answered to a script: all for the newest Kubernetes, what differs for an older one.

`X.json` is the transcript of the newest version; `X_1.34.json` has the steps that 1.34 answers otherwise.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Transcript = list[dict[str, Any]]


def recorded(whole: Path, minor: str | None = None) -> Transcript:
    """The transcript of one version.

    Args:
        whole: The file of the newest version.
        minor: As in "1.34"; None for the newest.
    """
    transcript: Transcript = json.loads(whole.read_text(encoding="utf-8"))
    if minor is None:
        return transcript
    of_its_own = _of_its_own(whole, minor)
    if not of_its_own.exists():
        return transcript
    other = {entry["step"]: entry for entry in json.loads(of_its_own.read_text(encoding="utf-8"))}
    assert other.keys() <= {entry["step"] for entry in transcript}, f"{of_its_own} has unknown steps"
    return [other.get(entry["step"], entry) for entry in transcript]


def record(
    transcript: Transcript, whole: Path, minor: str | None, text_of: Callable[[Transcript], str]
) -> None:
    """Write the transcript of one version; arguments as of `recorded`, and how a file is written."""
    if minor is None:
        whole.write_text(text_of(transcript), encoding="utf-8")
        return
    newest = recorded(whole)
    differing = [entry for entry in transcript if entry not in newest]
    of_its_own = _of_its_own(whole, minor)
    if differing:
        of_its_own.write_text(text_of(differing), encoding="utf-8")
    else:
        of_its_own.unlink(missing_ok=True)


def differences(transcript: Sequence[dict[str, Any]], expected: Transcript) -> list[str]:
    """Each step that was answered otherwise than expected, with both answers; and each that is missing."""
    by_step = {entry["step"]: entry for entry in expected}
    asked = {entry["step"] for entry in transcript}
    return [
        f"{entry['step']}\n  now:      {entry}\n  recorded: {by_step.get(entry['step'])}"
        for entry in transcript
        if entry != by_step.get(entry["step"])
    ] + [f"{step}\n  was not played" for step in by_step if step not in asked]


def _of_its_own(whole: Path, minor: str) -> Path:
    return whole.with_stem(f"{whole.stem}_{minor}")
