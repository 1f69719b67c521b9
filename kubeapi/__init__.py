"""Access to the Kubernetes API: requests in bytes, list and watch, leader election, Events.

The `kubernetes` package reads configuration, credentials and TLS. The bytes go through aiohttp: decoding
thousands of objects through models costs seconds and hundreds of MiB.
"""
