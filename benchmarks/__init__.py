"""Measured claims: each module runs as `python -m benchmarks.NAME` and ends with one JSON line."""
