"""Values that every object of the API has, read from their texts. Pure."""

from datetime import UTC, datetime


def parse_resource_version(text: str) -> int:
    """Read a resourceVersion as a number, 0 if it is none, as none of Kubernetes' own ever is."""
    return int(text) if text.isascii() and text.isdigit() else 0


def parse_time(text: str | None) -> float | None:
    """Read a time of the API, UTC without a zone, in seconds since the epoch; None if the text is no time."""
    try:
        at = datetime.fromisoformat(text or "")
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def format_time(when_s: float) -> str:
    """Write seconds since the epoch as the API writes times."""
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
