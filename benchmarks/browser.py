"""Drives Debian's Chromium over its DevTools protocol, for the dashboard's tests and its benchmark."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0
ANSWER_S = 120.0
WAIT_S = 60.0
MAX_MESSAGE = 64 * 2**20
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--mute-audio",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def program() -> str | None:
    """Find Chromium, None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class PageError(Exception):
    """The page raised, or something did not come."""


class Tab:
    """Tab is a page in the browser.

    Attributes:
        faults: lines of its console, exceptions and violations of its security policy, in order.
        requested: addresses that it asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self._loaded: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self.faults: list[str] = []
        self.requested: list[str] = []

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                answer = self._answers.pop(data["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(data)
            else:
                self._note(data.get("method"), data.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired" and self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            said = [str(each.get("value", each.get("description"))) for each in params["args"]]
            self.faults.append(f"{params['type']}: {' '.join(said)}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.faults.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol.

        Raises:
            PageError: it is refused.
        """
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_S):
            data: dict[str, Any] = await answer
        if "error" in data:
            raise PageError(f"{method}: {data['error']}")
        result: dict[str, Any] = data["result"]
        return result

    async def begin(self) -> None:
        """Listen to everything that goes wrong."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")

    async def size(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        """Set the size of the window, in pixels of CSS."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    async def dark(self, *, dark: bool) -> None:
        """Say which theme the system has."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def open(self, url: str) -> None:
        """Go to an address, and wait for its files; within one page there are none."""
        loaded = self._loaded = asyncio.get_running_loop().create_future()
        answer = await self.send("Page.navigate", url=url)
        if "loaderId" in answer:
            async with asyncio.timeout(ANSWER_S):
                await loaded

    async def run(self, script: str) -> Any:
        """Evaluate an expression, a promise to its end.

        Raises:
            PageError: it throws.
        """
        result = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    async def until(self, script: str, limit_s: float = WAIT_S) -> Any:
        """Wait until an expression is true, looked at once a frame; returns its value.

        Raises:
            PageError: it does not come true in time.
        """
        waiting = (
            "new Promise((done) => { const end = performance.now() + %d; const look = () => { let value;"
            " try { value = (%s); } catch { value = null; }"
            " if (value || performance.now() > end) done(value instanceof Node ? true : value);"
            " else setTimeout(look, 16); }; look(); })"
        )
        value = await self.run(waiting % (int(limit_s * 1000), script))
        if not value:
            text = await self.run("document.body.innerText")
            raise PageError(f"{script}: not within {limit_s:g} s; the page says: {text[:400]}")
        return value

    async def press(self, key: str, text: str = "") -> None:
        """Press a key and let it go."""
        code = {
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Tab": 9,
        }
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code.get(key, 0)}
        typed = "\r" if key == "Enter" else text
        await self.send(
            "Input.dispatchKeyEvent", type="keyDown", **common, **({"text": typed} if typed else {})
        )
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        """Write text into what has the focus."""
        await self.send("Input.insertText", text=text)

    async def picture(self) -> bytes:
        """What is to be seen, as PNG."""
        result = await self.send("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return base64.b64decode(result["data"])

    async def close(self) -> None:
        """Close it."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()


class Browser:
    """A running Chromium."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """Open an empty page, and close it at the end."""
        async with self._session.put(f"http://{self._address}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        socket = await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=MAX_MESSAGE)
        tab = Tab(socket)
        try:
            await tab.begin()
            yield tab
        finally:
            with suppress(PageError, TimeoutError, ConnectionError):
                await tab.send("Page.close")
            await tab.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium with a profile of its own, and end it.

    Raises:
        PageError: it does not start.
    """
    found = program()
    if found is None:
        raise PageError(f"no browser; allowed: {', '.join(PROGRAMS)}; apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="gpupack-browser-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(  # noqa: ASYNC220 - starts at once, and is waited for by its file
            [found, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                yield Browser(session, f"127.0.0.1:{port}")
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _port(file: Path, process: "subprocess.Popen[bytes]") -> int:
    """Wait for the file in which Chromium says where it listens."""
    deadline = asyncio.get_running_loop().time() + START_S
    while asyncio.get_running_loop().time() < deadline:
        with suppress(OSError, ValueError, IndexError):
            return int(file.read_text().splitlines()[0])  # noqa: ASYNC240 - some bytes
        if process.poll() is not None:
            raise PageError(f"the browser ended with {process.returncode} before it listened")
        await asyncio.sleep(0.02)
    raise PageError(f"the browser does not listen within {START_S:g} s")
