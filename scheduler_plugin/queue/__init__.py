"""The queue: which waiting pod comes next, and when its gate is removed.

`config` reads what queues may have. `cache` knows waiting and admitted pods, gangs, jobs and queues.
`capacity` finds free cards and reserves them. `scheduler` decides who is admitted, requeued or evicted.
`controller` is the process: it watches, decides when something has changed, writes, and says why pods wait.
"""
