"""The borrowing queue: which waiting pod comes next, and when its gate is taken away."""
