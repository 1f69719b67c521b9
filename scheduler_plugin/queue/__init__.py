"""The borrowing queue: which waiting pod comes next, and when its gate is taken away.

From what is given to what is done: `configuration` says what queues may have, `places` where the cluster
has room, `sharing` who of the queues comes next. `entering` is what is known of pods and gangs, `deciding`
who is admitted, waits, or must go, and `running` the process: it reads, decides when something has changed,
and writes.
"""
