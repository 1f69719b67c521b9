"""Runs a script of API calls against any API server and masks what must differ between two runs."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.scripts import answers

ANSWERS = Path(__file__).with_name("apiserver_answers.json")


@dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        name: what it shows; unique.
        method: HTTP method, WATCH (all events of a one-second watch) or COMPACT (forget history).
        path: with query; `{x}` is replaced by the value saved as x.
        body: JSON value, or bytes sent as they are; `{x}` in strings as above.
        content_type: of the body.
        save: name -> dotted path in the answer to keep under that name.
        pick: dotted paths in the answer (in each item of a list, in each event's object) to compare.
    """

    name: str
    method: str
    path: str = ""
    body: Any = None
    content_type: str = "application/json"
    save: Mapping[str, str] = field(default_factory=dict)
    pick: tuple[str, ...] = ()


class Target:
    """An API server to play on.

    Attributes:
        url: may change while COMPACT is under way (a restarted server).
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        compact: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.compact = compact
        self._session = session
        self._headers = dict(headers or {})

    async def call(self, method: str, path: str, body: bytes | None, content_type: str) -> tuple[int, bytes]:
        headers = {**self._headers, **({"Content-Type": content_type} if body is not None else {})}
        request = self._session.request(method, self.url + path, data=body, headers=headers)
        async with request as answer:
            return answer.status, await answer.read()


async def play(target: Target, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Run the script.

    Returns:
        One entry a step: name, status, and of the answer whatever the step compares.
    """
    saved: dict[str, str] = {}
    transcript = []
    for step in steps:
        entry: dict[str, Any] = {"step": step.name}
        if step.method == "COMPACT":
            await target.compact()
        elif step.method == "WATCH":
            entry |= await _watch(target, step, saved)
        else:
            entry |= await _call(target, step, saved)
        transcript.append(masked(entry))
    return transcript


async def _call(target: Target, step: Step, saved: dict[str, str]) -> dict[str, Any]:
    body = step.body
    if body is not None and not isinstance(body, bytes):
        body = fill(json.dumps(body), saved).encode()
    status, raw = await target.call(step.method, fill(step.path, saved), body, step.content_type)
    try:
        answer = json.loads(raw)
    except ValueError:
        return {"status": status, "text": raw.decode()}
    for name, path in step.save.items():
        saved[name] = at(answer, path)
    return {"status": status, **shown(answer, step.pick)}


async def _watch(target: Target, step: Step, saved: dict[str, str]) -> dict[str, Any]:
    path = f"{fill(step.path, saved)}&watch=1&timeoutSeconds=1"
    status, raw = await target.call("GET", path, None, "")
    events = []
    for line in raw.splitlines():
        event = json.loads(line)
        name = at(event["object"], "metadata.name")
        events.append([event["type"], name, shown(event["object"], step.pick)])
    return {"status": status, "events": events}


def shown(answer: dict[str, Any], pick: tuple[str, ...]) -> dict[str, Any]:
    """What is compared: all of a refusal, else the picked fields, in a list those of each item."""
    if answer.get("kind") == "Status" and answer.get("status") != "Success":
        causes = (answer.get("details") or {}).get("causes") or []
        found = {field: answer[field] for field in ("reason", "message", "code") if field in answer}
        about = {key: value for key, value in (answer.get("details") or {}).items() if key != "causes"}
        kept = sorted({(cause.get("field", ""), cause.get("reason", "")) for cause in causes})
        return {**found, "details": about, "causes": [list(each) for each in kept]}
    if "items" in answer:
        return {
            "kind": answer["kind"],
            "items": [[at(item, path) for path in pick] for item in answer["items"]],
        }
    return {path: at(answer, path) for path in pick}


def at(value: Any, path: str) -> Any:
    """The value at a dotted path, None where there is none; keys may hold dots themselves."""
    if not path or value is None:
        return value
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        return at(value[int(head)], rest) if int(head) < len(value) else None
    if path in value:
        return value[path]
    for index, letter in enumerate(path):
        if letter == "." and path[:index] in value:
            return at(value[path[:index]], path[index + 1 :])
    return None


def fill(text: str, saved: Mapping[str, str]) -> str:
    """Put saved values in place of `{name}`."""
    return re.sub(r"\{([a-z.]+)\}", lambda found: saved[found[1]], text)


_MASKS = (
    (r'(?s)Invalid value: "\{.*\}": ', "Invalid value: <object>: "),
    (r"(?s)(?<=previously negative\)).*", ""),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[1-9a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
    (r"(?<=Version in precondition: )\d+", "<version>"),
    (r"(?<=Version in object meta: )\d+", "<version>"),
    (r"(?<=ResourceVersion in record \()\d+", "<version>"),
    (r"(?<=resource version: )\d+ \(\d+\)", "<version> (<version>)"),
    (r"(?<=current: )\d+", "<version>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>"),
)


def masked(value: Any) -> Any:
    """Hide in every text what differs between two runs."""
    if isinstance(value, dict):
        return {key: masked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [masked(each) for each in value]
    if isinstance(value, str):
        for pattern, replacement in _MASKS:
            value = re.sub(pattern, replacement, value)
    return value


def recorded(minor: str | None = None) -> list[dict[str, Any]]:
    """What kube-apiserver of a minor version answered, the newest for None."""
    return answers.recorded(ANSWERS, minor)


def as_recording(transcript: Sequence[dict[str, Any]]) -> str:
    """The text of ANSWERS for a transcript, one step a line."""
    lines = ",\n".join(f" {json.dumps(entry, ensure_ascii=False)}" for entry in transcript)
    return f"[\n{lines}\n]\n"
