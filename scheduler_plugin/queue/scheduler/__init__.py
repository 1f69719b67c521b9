"""Decisions of the queue: who is admitted, requeued or evicted, and for whom room is reserved."""
