"""Decisions on the cache: filter, reasons, scores and node policies."""
