"""A kubelet for demo and tests."""
