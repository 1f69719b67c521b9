"""The scheduler extender: cluster state in arrays, pure filters, scores and commit, and the HTTP around them.

Adapters do I/O, wait and log: the extender's servers, the binder, the preemptor, the watcher and the queue's
controller. Every other module is pure: time and resourceVersions come in as arguments. The import contract
"only the scheduler's adapters" in pyproject.toml lists the adapters.
"""
