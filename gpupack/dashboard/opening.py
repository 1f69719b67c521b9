"""Opens the page where somebody sits in front of a screen."""

import os
import sys
import threading
import webbrowser


def can_open() -> bool:
    """Whether there is a terminal with a screen: over SSH a browser would take the terminal itself."""
    there = os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    screen = sys.platform in {"darwin", "win32"} or bool(there)
    return sys.stdout.isatty() and screen


def open_page(url: str) -> None:
    """Open it, without waiting for the browser."""
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
