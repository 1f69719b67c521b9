"""What the real programs answered to a script: all for the newest Kubernetes, what differs for older ones.

`X.json` is the transcript of the newest version; `X_1.36.json` has the steps that 1.36 and those before it
answer otherwise, `X_1.35.json` those where 1.35 and before differ from 1.36, and so on.
"""

import json
import os
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
    return _overlaid(whole, [] if minor is None else [one for one in _older(whole) if one >= _number(minor)])


def record(
    transcript: Transcript, whole: Path, minor: str | None, text_of: Callable[[Transcript], str]
) -> None:
    """Write the transcript of one version; arguments as of `recorded`, and how a file is written.

    Record newer versions first: what is written of an older one is its difference from them.
    """
    if minor is None:
        whole.write_text(text_of(transcript), encoding="utf-8")
        return
    newer = _overlaid(whole, [one for one in _older(whole) if one > _number(minor)])
    differing = [entry for entry in transcript if entry not in newer]
    of_its_own = _file(whole, _number(minor))
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


def check(
    transcript: Transcript, whole: Path, minor: str | None, text_of: Callable[[Transcript], str]
) -> None:
    """Compare a transcript with the one recorded, which GPUPACK_RECORD=1 has written before.

    Arguments are those of `record`.

    Raises:
        AssertionError: with all that was answered otherwise.
    """
    if os.environ.get("GPUPACK_RECORD") == "1":
        record(transcript, whole, minor, text_of)
    wrong = differences(transcript, recorded(whole, minor))
    assert not wrong, "\n".join(wrong)


def _overlaid(whole: Path, minors: Sequence[tuple[int, ...]]) -> Transcript:
    transcript: Transcript = json.loads(whole.read_text(encoding="utf-8"))
    for minor in minors:
        other = {
            entry["step"]: entry for entry in json.loads(_file(whole, minor).read_text(encoding="utf-8"))
        }
        transcript = [other.get(entry["step"], entry) for entry in transcript]
    return transcript


def _older(whole: Path) -> list[tuple[int, ...]]:
    """The minor versions that have a file of their own, the newest first."""
    files = whole.parent.glob(f"{whole.stem}_*.json")
    return sorted((_number(file.stem.rpartition("_")[2]) for file in files), reverse=True)


def _file(whole: Path, minor: tuple[int, ...]) -> Path:
    return whole.with_stem(f"{whole.stem}_{'.'.join(map(str, minor))}")


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))
