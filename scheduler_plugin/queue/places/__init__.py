"""Where the cluster has room for what a pod needs, and what of it is kept free."""
