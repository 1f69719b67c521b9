"""Where a pod can go and where it should: filters, scores, policies, preemption. Pure."""
