"""Preemption: victims that free cards, budgets and nominations, and the verb preempt."""
