"""The scheduler extender: cluster state in arrays, pure filters, scores and commit, and the HTTP around them.

`server`, `watching` and `app` do I/O; every other module is pure: time and resourceVersions come in as
arguments, nothing logs.
"""
