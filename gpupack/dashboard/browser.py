"""Opens the page in a browser if there is a screen."""

import os
import sys
import threading
import webbrowser


def can_open_browser() -> bool:
    """Return True for a terminal with a screen: over SSH a browser would take over the terminal."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    screen = sys.platform in {"darwin", "win32"} or bool(display or os.environ.get("BROWSER"))
    return sys.stdout.isatty() and screen


def open_browser(url: str) -> None:
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
