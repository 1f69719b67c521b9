"""Access to the Kubernetes API: requests in bytes, list and watch, leader election, Events.

The `kubernetes` package reads configuration, credentials and TLS; the bytes go through aiohttp, because
decoding thousands of objects through models costs seconds and hundreds of MiB.
"""
