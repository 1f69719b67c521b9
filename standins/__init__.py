"""Stand-ins for kubelet, API server and kube-scheduler, compared with the real ones by tests."""
