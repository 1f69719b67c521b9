"""A kube-apiserver for demo and tests."""
