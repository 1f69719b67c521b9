"""The borrowing queue: which waiting pod comes next, and when its gate is taken away.

From what is given to what is done: `configuration` says what tenants may have, `places` where the cluster
has room, `sharing` who of the tenants comes next. `entering` is what is known of pods and gangs, `deciding`
who is released, waits, or must go, and `running` the process: it reads, decides when something has changed,
and writes.
"""
