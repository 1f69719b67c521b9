"""Capacity of the cluster for queued pods: free, reserved, and at most."""
