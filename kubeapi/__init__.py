"""Access to the Kubernetes API: requests in raw bytes, endless list and watch, leader election.

The `kubernetes` package reads configuration, credentials and TLS; the bytes go through aiohttp, because
decoding thousands of objects through models costs seconds and hundreds of MiB.
"""
