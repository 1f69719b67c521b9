"""Follows what becomes of the objects below a path of the API, beside a test."""

import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException

from benchmarks.throughput import watch
from tests.cluster.harness.rest import Api, Json


def follow(api: Api, path: str, note: Callable[[Json], None]) -> None:
    """Call `note` in a thread with each object that is seen from now on, until the API server ends."""
    since = api.get(path, limit=1)["metadata"]["resourceVersion"]

    def run() -> None:
        with suppress(OSError, HTTPException):  # the API server ends with the cluster
            for event in watch(api, path, since):
                note(event["object"])

    threading.Thread(target=run, daemon=True).start()
